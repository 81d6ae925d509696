"""What the layers cost a GPU in launches and bytes: bounds that a change may lower."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tests.kernels.counts import BATCH, LENGTHS, PRESETS, RESULTS, layer_counts, rows


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_launches_and_bytes_per_layer(preset: str, tokens: int) -> None:
    before, now = layer_counts(preset, tokens, joined=False), layer_counts(preset, tokens)
    assert now.launches / 2 <= {"released": 6, "paper": 7}[preset], now.names
    assert now.launches < before.launches
    assert now.bytes < before.bytes
    assert now.bytes / (2 * BATCH * tokens) < {"released": 41_000, "paper": 53_000}[preset]


def test_the_committed_counts_are_those_of_the_layers() -> None:
    committed = json.loads(RESULTS.read_text())["rows"]
    for row, now in zip(committed, rows(waits=False), strict=True):
        assert {key: row[key] for key in now} == now
        assert row["waits_per_forward_now"] == 0  # tests/kernels/test_waits.py counts them


def test_the_context_is_written_over_the_gate() -> None:
    names = layer_counts("released", 512).names
    assert names.count("static_mix_over_gate") == names.count("dynamic_mix_over_gate") == 1
    assert names.count("addmm") == 4  # enricher and fuser, one product each
    assert not {"copy_", "clone", "cat", "contiguous", "_to_copy"} & set(names)
