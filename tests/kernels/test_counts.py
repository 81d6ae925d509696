"""What the layers cost a GPU in launches and bytes, and what the host waits for, counted without a
GPU: bounds that a change may lower.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.network import cuda_graphs, split_encoder
from aveyb_retrieval.encoder.network.splits import split_table
from aveyb_retrieval.kernels.dispatch import to_device
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
from rigs.kernels.pretended_device import DEVICE, DeviceTensor, forward_waits, pretended_device

if TYPE_CHECKING:
    from collections.abc import Callable


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
        assert row["waits_per_forward_now"] == 0  # counted below


def test_a_fused_layer_copies_nothing() -> None:
    names = layer_counts("released", 512).names
    assert names.count("static_mix_over_gate") == names.count("dynamic_mix_over_gate") == 15
    assert names.count("addmm") == 60  # enricher and fuser, one product each
    assert names.count("add_norm") == 29
    assert not {"copy_", "clone", "cat", "contiguous", "_to_copy"} & set(names)


def test_the_ranker_launches_as_much_for_eight_documents_as_for_one() -> None:
    assert ranker_launches(8, 384) == ranker_launches(1, 384) < 65


# --- waits ---------------------------------------------------------------------------------------

LONG = 70 * 16 + 3  # tokens: more splits than one launch of MaxSim takes


@pytest.mark.parametrize(("texts", "tokens"), [(8, 16), (4, 40), (8, 512), (3, LONG)])
@pytest.mark.parametrize("mask", [None, "host"])
def test_nothing_is_waited_for(texts: int, tokens: int, mask: str | None) -> None:
    assert forward_waits(texts, tokens, ragged=mask is not None, mask=mask) == {}


@pytest.mark.parametrize("tokens", [40, LONG])
def test_a_mask_on_the_device_is_waited_for_once(tokens: int) -> None:
    assert forward_waits(4, tokens, ragged=True, mask="device") == {"copy to the host": 1}


class _Direct(cuda_graphs.CudaGraphs):
    """Captures like a GPU's, and replays nothing: `DeviceTensor` has no values that would be
    missed.
    """

    def _record(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        return lambda: None


@pytest.mark.parametrize("mask", [None, "host"])
@pytest.mark.parametrize(("texts", "tokens"), [(1, 5), (8, 32), (4, LONG)])
def test_captures_and_replays_wait_for_nothing(
    texts: int, tokens: int, mask: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_encoder, "_REPLAYS", (DEVICE.type,))
    monkeypatch.setattr(split_encoder, "CudaGraphs", _Direct)
    assert forward_waits(texts, tokens, ragged=mask is not None, mask=mask, times=2) == {}


def test_an_embedder_waits_for_its_results_only() -> None:
    embedder = Embedder.load(precision="float32", batch_tokens=900)
    texts = [("", "one two three. " * n) for n in (0, 1, 20, 300, 5, 120)]
    queries = ["short", "a longer query of some more words"]
    with pretended_device() as waits, torch.no_grad():
        embedder.model.to(DEVICE)
        waits.clear()
        assert len(list(embedder.encode_documents(texts))) == len(texts)
        batches = len(list(embedder._batches(embedder._cut(*text) for text in texts)))
        assert batches > 1
        assert +waits == {"copy to the host": batches}
        waits.clear()
        embedder.encode_queries(queries)
        assert +waits == {"copy to the host": 1}


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        ("nonzero", torch.nonzero),
        ("boolean index", lambda x: x[x > 0]),
        ("_local_scalar_dense", lambda x: int(x.sum())),
        ("_local_scalar_dense", lambda x: bool((x > 0).all())),
        ("copy to the host", lambda x: x.tolist()),
        ("copy to the host", lambda x: x.cpu()),
        ("equal", lambda x: torch.equal(x, x)),
        ("repeat_interleave", lambda x: torch.repeat_interleave(x, x)),
        ("copy of unlocked memory", lambda x: torch.tensor([1, 2], device=x.device)),
        ("copy of unlocked memory", lambda x: x[torch.tensor([0, 1])]),
    ],
)
def test_what_makes_the_host_wait_is_counted(
    kind: str, ask: Callable[[torch.Tensor], object]
) -> None:
    with pretended_device() as waits:
        (x,) = to_device([torch.arange(4).numpy()], DEVICE)
        assert not +waits
        ask(x)
    assert waits[kind] == 1


def test_a_batch_without_tokens_has_no_groups() -> None:
    with pretended_device():
        table = split_table(np.zeros(0, dtype=np.int64), [0], 16, DEVICE)
        assert table.groups(full_width=False, max_tokens=64) == []


def test_indices_are_contiguous() -> None:
    rows, columns = np.nonzero(np.ones((3, 4)))  # two columns of one array
    for device in (torch.device("cpu"), DEVICE):
        with pretended_device():
            sent = to_device([rows, columns], device)
        assert [part.is_contiguous() for part in sent] == [True, True]


def test_the_pretended_device_computes_and_refuses_mixtures() -> None:
    with pretended_device():
        x = torch.arange(4.0).to(DEVICE)
        doubled = x + x
        assert isinstance(doubled, DeviceTensor)
        assert doubled.held.tolist() == [0, 2, 4, 6]
        with pytest.raises(RuntimeError, match="on the device and on the CPU together"):
            x + torch.arange(4.0)
