"""What the layers cost a GPU in launches and bytes: bounds that a change may lower."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from rigs.kernels.counts import (
    BATCH,
    LENGTHS,
    PRESETS,
    RESULTS,
    layer_counts,
    ranker_launches,
    rows,
    training_counts,
)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_launches_and_bytes_per_layer(preset: str, tokens: int) -> None:
    before, now = layer_counts(preset, tokens, fused=False), layer_counts(preset, tokens)
    layers = PRESETS[preset]().num_hidden_layers
    assert now.launches == 5 * layers + 1, now.names
    assert now.launches < before.launches
    assert now.bytes < before.bytes
    assert now.bytes / (layers * BATCH * tokens) < 36_000


def test_relu_squared_costs_training_one_pass_each_way() -> None:
    before, now = training_counts("paper", 2048, fused=False), training_counts("paper", 2048)
    assert now.names.count("relu2") == now.names.count("relu2_backward") == 2
    assert not {"relu", "pow", "threshold_backward"} & set(now.names)
    assert now.bytes < 0.73 * before.bytes
    gelu = training_counts("released", 2048)
    assert gelu.names.count("gelu") == gelu.names.count("gelu_backward") == 2


def test_the_committed_counts_are_those_of_the_layers() -> None:
    committed = json.loads(RESULTS.read_text())["rows"]
    for row, now in zip(committed, rows(waits=False), strict=True):
        assert {key: row[key] for key in now} == now
        assert row["waits_per_forward_now"] == 0  # tests/kernels/test_waits.py counts them


def test_a_fused_layer_copies_nothing() -> None:
    names = layer_counts("released", 512).names
    assert names.count("static_mix_over_gate") == names.count("dynamic_mix_over_gate") == 15
    assert names.count("addmm") == 60  # enricher and fuser, one product each
    assert names.count("add_norm") == 29
    assert not {"copy_", "clone", "cat", "contiguous", "_to_copy"} & set(names)


def test_the_ranker_launches_as_much_for_eight_documents_as_for_one() -> None:
    assert ranker_launches(8, 384) == ranker_launches(1, 384) < 65
