"""A forward on a GPU waits for it only where the docs say so, counted without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.network import cuda_graphs, split_encoder
from aveyb_retrieval.encoder.network.splits import split_table
from aveyb_retrieval.kernels.dispatch import to_device
from rigs.kernels.pretended_device import DEVICE, DeviceTensor, forward_waits, pretended_device

if TYPE_CHECKING:
    from collections.abc import Callable

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
