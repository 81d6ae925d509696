"""Every measured figure in the documentation is the one in benchmarks/results/."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).parents[1]
with mock.patch.object(sys, "path", [str(ROOT / "benchmarks"), *sys.path]):
    import readme


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
    quality = readme.results("quality.json")
    figure = f"{readme.figures.ndcg(quality)['qmsum-long', 'default']:.3f}"
    assert figure in text
    assert readme.renew(text.replace(figure, "0.999")) == text
    with pytest.raises(KeyError):
        readme.renew("<!-- figures: nothing-like-it -->\n<!-- /figures -->")


def test_a_column_that_no_row_has_is_refused():
    table = readme.Table("ocr.json", "rows", {"page": "{kind}", "ink": "{ink:.1f}"})
    with pytest.raises(ValueError, match=r"ocr\.json: no row has a value for the column 'ink'"):
        table.write()


def test_a_table_has_a_line_for_each_row_that_is_chosen():
    columns = {"page": "{kind}", "ink": "{ink}", "processors": "{processors}"}
    rows = [{"kind": "a", "processors": 1}, {"kind": "b", "processors": 2, "ink": 3}]
    table = readme.Table("ocr.json", lambda _: rows, columns)
    head = "| page | ink | processors |\n| --- | --- | --- |\n"
    assert table.write() == head + "| a |  | 1 |\n| b | 3 | 2 |"
    chosen = readme.Table("ocr.json", lambda _: rows, columns, where={"processors": 2})
    assert chosen.write() == head + "| b | 3 | 2 |"
    turned = readme.Table("ocr.json", lambda _: rows, columns, transposed=True)
    assert (
        turned.write()
        == "| page | a | b |\n| --- | --- | --- |\n| ink |  | 3 |\n| processors | 1 | 2 |"
    )


def test_figures_outside_of_blocks_are_not_those_of_an_older_model():
    """README states no score of retrieval quality outside of its block."""
    text = readme._BLOCK.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert re.findall(r"\b0\.\d{3}\b(?! ms)", text) == []
