"""Each equation of the paper has its place, which is named where a reader begins."""

from __future__ import annotations

import importlib
import re

import pytest

from aveyb_retrieval.encoder import network

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
