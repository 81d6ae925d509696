"""Every measured figure in the documentation is the one in benchmarks/results/."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("readme", ROOT / "benchmarks" / "readme.py")
readme = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(readme)


@pytest.mark.parametrize("page", readme.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_hold_the_measured_figures(page):
    text = page.read_text(encoding="utf-8")
    assert readme.renew(text) == text, f"{page.name}: run `python benchmarks/readme.py`"


def test_every_block_has_a_page():
    used = {
        name
        for page in readme.pages()
        for name in re.findall(r"<!-- figures: ([a-z-]+) -->", page.read_text())
    }
    assert used == set(readme.BLOCKS)


def test_generated_paragraphs_are_no_wider_than_the_pages():
    lines = "\n".join(
        match[0]
        for page in readme.pages()
        for match in readme._BLOCK.finditer(page.read_text("utf-8"))
    )
    assert [
        line for line in re.findall(r"^\w.*", lines, re.MULTILINE) if len(line) > readme.WIDTH
    ] == []


def test_a_stale_figure_is_found():
    page = ROOT / "docs" / "measurements.md"
    text = page.read_text(encoding="utf-8")
    figure = f"{readme.ndcg()['qmsum-long', readme.INDEX]:.3f}"
    assert figure in text
    assert readme.renew(text.replace(figure, "0.999")) == text
    with pytest.raises(KeyError):
        readme.renew("<!-- figures: nothing-like-it -->\n<!-- /figures -->")


def test_figures_outside_of_blocks_are_not_those_of_an_older_model():
    """README states no score of retrieval quality outside of its block."""
    text = readme._BLOCK.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert re.findall(r"\b0\.\d{3}\b(?! ms)", text) == []
