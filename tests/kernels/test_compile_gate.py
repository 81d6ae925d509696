"""Every kernel and shipped tile assembles for its GPU without spills, within shared memory, on the
matrix units.
"""

from __future__ import annotations

import json

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from rigs.kernels import compile_gate  # noqa: E402


def committed() -> dict:
    return json.loads(compile_gate.TABLE.with_suffix(".json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("case", list(compile_gate.cases()), ids=lambda case: case.key)
def test_tile_fits(case: compile_gate.Case, record_property: pytest.RecordProperty) -> None:
    table = committed()
    line = compile_gate.row(case, case.compile())
    record_property("compile_gate", json.dumps(line))
    # Tiles are chosen with the Triton of the committed table; 3.7.1 spills eight registers in one
    # float32 tile.
    assert line["stack"] <= (0 if table["triton"] == triton.__version__ else 32), (
        "registers spill to memory"
    )
    assert line["shared_bytes"] <= line["shared_limit"]
    assert line["matrix_instructions"] > 0 or case.name in compile_gate.WITHOUT_PRODUCTS, (
        "products run on scalar units"
    )
    if table["triton"] == triton.__version__:
        before = next((row for row in table["rows"] if row["case"] == case.key), None)
        assert before is not None, (
            "not in the committed table: python -m rigs.kernels.compile_gate --write"
        )
        # One ptxas gives a kernel up to fifty registers more on another host: one program less.
        assert line["programs_per_multiprocessor"] >= before["programs_per_multiprocessor"] - 1


@pytest.mark.slow
@pytest.mark.parametrize("case", list(compile_gate.cases()), ids=lambda case: case.key)
def test_no_race(case: compile_gate.Case) -> None:
    assert case.compile().findings.races == ()


def test_the_committed_table_is_complete() -> None:
    assert sorted(row["case"] for row in committed()["rows"]) == sorted(
        case.key for case in compile_gate.cases()
    )
