"""The paper in the code: the place of each equation, and the forward pass of `examples/`."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest
import torch

from aveyb_retrieval.encoder import network
from tests.encoder.models import small_model

ROW = re.compile(
    r"^ {4}(section|equations?) ([\d.-]+) +.*? ((?:kernels|network)\.[\w.]+)$", re.MULTILINE
)
PLACES = {(kind, number, place) for kind, number, place in ROW.findall(network.__doc__ or "")}


def named(place: str) -> object:
    """The function or method of a place such as `kernels.mixing.static_mix_reference`."""
    room, file, *names = place.split(".")
    package = "aveyb_retrieval.encoder.network" if room == "network" else f"aveyb_retrieval.{room}"
    found: object = importlib.import_module(f"{package}.{file}")
    for name in names:
        found = getattr(found, name)
    return found


def test_every_equation_is_in_the_table() -> None:
    assert {number for kind, number, _ in PLACES if kind != "section"} == {
        "1",
        "3",
        "4",
        "5-7",
        "8",
    }
    assert len(PLACES) == 8


@pytest.mark.parametrize(("kind", "number", "place"), sorted(PLACES))
def test_a_place_names_its_equation(kind: str, number: str, place: str) -> None:
    said = " ".join((named(place).__doc__ or "").split())
    assert f"{kind} {number.replace('-', ' to ')}" in said


# --- the example, written straight through --------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples" / "avey_b_in_100_lines.py"


def test_the_example_prints_differences_of_rounding_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    printed = re.findall(
        r"^(random|embedded) .* largest difference (\S+), numbers up to (\S+)$", said, re.M
    )
    assert [name for name, _, _ in printed] == ["random", "embedded"], said
    for _, difference, largest in printed:
        assert float(difference) < 1e-5 * max(1, float(largest))
    assert float(printed[0][1]) < 1e-5


@pytest.mark.parametrize(
    "settings", [{}, {"num_retrieved": 1}, {"num_retrieved": 9, "final_norm": False}]
)
def test_the_example_is_the_model_in_its_parts(settings: dict[str, int]) -> None:
    compare = runpy.run_path(str(EXAMPLE))["compare"]
    model = small_model("paper", **settings)  # biases are not zero
    for tokens in (1, 16, 17, 150):
        assert compare("small model", model, torch.randint(0, 97, (tokens,))) < 1e-5
