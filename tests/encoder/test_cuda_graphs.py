"""Layers as CUDA graphs: sizes, buffers and changes on any machine, the graphs themselves where there is a GPU.

Without one, a "graph" runs the layers again on the memory that was there when it was captured, as a real one does.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aveyb_retrieval.encoder.network.cuda_graphs import LayerGraphs
from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.kernels import cpu
from tests.encoder.models import PRESETS, small_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.encoder.network.model import AveyBModel

MAX_TOKENS = 256


class Repeated(LayerGraphs):
    """Repeats the operations on the captured memory, and counts captures and replays."""

    captures = replays = 0

    def _record(self, run: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.captures += 1
        out = run().clone()

        def replay() -> None:
            self.replays += 1
            for rows in self._inputs.values():
                rows[rows == 0] = float("nan")  # what no group wrote must not count
            out.fill_(float("nan")).copy_(run())

        return replay, out


def with_graphs(preset: str, **settings: int) -> tuple[AveyBModel, Repeated]:
    model = small_model(preset, **settings)
    graphs = model._graphs = Repeated(model.run_layers, model, split_size=model.split_size, max_tokens=MAX_TOKENS)
    return model, graphs


def encode(model: AveyBModel, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.inference_mode():
        return model(ids, mask).last_hidden_state


def test_after_a_warm_up_no_single_text_captures_a_graph() -> None:
    model, graphs = with_graphs("paper", split_size=64)
    assert model.warm_up() == 2 * 7 + 1  # 8, 16, 24, 32, 48, 63 and 64 tokens, twice; two splits
    captured = graphs.captures
    assert captured <= 20
    for tokens in range(1, 65):
        encode(model, torch.ones(1, tokens, dtype=torch.int64))
    assert graphs.captures == captured


def plainly(model: AveyBModel, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with mock.patch.object(model, "_graphs", None), mock.patch.object(cpu, "_AVAILABLE", False):
        return encode(model, ids, mask)


@pytest.mark.parametrize("preset", PRESETS)
def test_graphs_give_what_layers_give(preset: str) -> None:
    model, graphs = with_graphs(preset)
    for seed, (n, tokens) in enumerate([(1, 1), (3, 10), (1, 16), (5, 16), (2, 60), (1, 100), (1, 9), (4, 33)]):
        ids = torch.randint(0, 97, (n, tokens), generator=torch.Generator().manual_seed(seed))
        mask = torch.ones_like(ids)
        mask[-1, tokens // 2 + 1 :] = 0
        for given in (None, mask):
            got, expected = encode(model, ids, given), plainly(model, ids, given)
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert graphs.replays > graphs.captures > 3


def test_the_number_of_graphs_does_not_grow_with_the_lengths_met() -> None:
    model, graphs = with_graphs("paper", split_size=64)
    for n in range(1, 9):
        for tokens in range(1, 65, 3):
            encode(model, torch.zeros(n, tokens, dtype=torch.int64))
    # 1, 2, 4 and 8 splits by 16, 32 and 64 tokens without 8 x 64, which is too large; the same for groups all of whose
    # splits are full, but for 32 tokens, which no text here has.
    assert graphs.captures == (4 * 3 - 1) + (4 * 2 - 1)


def test_a_result_is_not_overwritten_by_the_next() -> None:
    model, _ = with_graphs("paper")
    first = encode(model, torch.full((1, 10), 3))
    kept = first.clone()
    encode(model, torch.full((1, 10), 4))
    assert torch.equal(first, kept)


def test_large_groups_and_gradients_do_not_run_as_graphs() -> None:
    model, graphs = with_graphs("paper")
    encode(model, torch.zeros(MAX_TOKENS // 16 + 1, 10, dtype=torch.int64))
    assert graphs.replays == 0
    model(torch.zeros(1, 10, dtype=torch.int64)).last_hidden_state.sum().backward()
    assert graphs.replays == 0
    assert model.layers[0].fuser.weight.grad is not None


def test_a_changed_parameter_captures_again() -> None:
    model, graphs = with_graphs("paper")
    ids = torch.zeros(1, 10, dtype=torch.int64)
    before = encode(model, ids)
    encode(model, ids)
    assert graphs.captures == 1
    with torch.no_grad():
        model.layers[0].fuser.weight.mul_(2)  # type: ignore[operator, union-attr]
    after = encode(model, ids)
    assert graphs.captures == 2
    assert (after - before).abs().max() > 1e-4
    model.use_float8()
    rounded = encode(model, ids)
    assert graphs.captures == 3
    assert 1e-5 < (rounded - after).abs().max() < 1


def test_threads_get_their_own_results() -> None:
    model, _ = with_graphs("paper")
    texts = [torch.full((1 + i % 3, 5 + i % 7), i) for i in range(40)]
    expected = [plainly(model, ids) for ids in texts]
    with ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(lambda ids: encode(model, ids), texts), expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


def test_copies_have_no_graphs() -> None:
    model, _ = with_graphs("paper")
    encode(model, torch.zeros(1, 10, dtype=torch.int64))
    assert copy.deepcopy(model)._graphs is None


def test_a_model_on_a_cpu_has_none() -> None:
    model = small_model("paper")
    with pytest.raises(BackendError, match="need the model on a CUDA device; it is on cpu"):
        model.use_cuda_graphs()
    model.use_cuda_graphs(False)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("ragged", [False, True])
def test_nothing_within_a_graph_waits_for_the_device(preset: str, ragged: bool) -> None:
    """A value read back to the host cannot be captured; tensors without values show where one is asked for."""
    model = small_model(preset)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        x = torch.empty(2, 16, 32)
        lengths = torch.empty(2, dtype=torch.int64) if ragged else None
        with mock.patch.object(cpu, "_AVAILABLE", False):
            assert model.run_layers(x, lengths).shape == x.shape
        with pytest.raises(RuntimeError):
            bool(x.sum() > 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_graphs() -> None:
    model = small_model("paper").cuda()
    ids = torch.randint(0, 97, (3, 40)).cuda()
    expected = encode(model, ids)
    model.use_cuda_graphs()
    for _ in range(3):
        torch.testing.assert_close(encode(model, ids), expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        model.layers[0].fuser.weight.mul_(2)  # type: ignore[operator, union-attr]
    changed = encode(model, ids)
    model.use_cuda_graphs(False)
    torch.testing.assert_close(changed, encode(model, ids), atol=1e-5, rtol=1e-5)
