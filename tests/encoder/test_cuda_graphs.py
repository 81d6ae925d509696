"""Inference as replays of captured graphs: any batch, whatever ran before it; real graphs where
there is a GPU.

Without one a "graph" calls the captured function again on the memory that was there when it was
captured, as a real one does, and what no split of the batch wrote is poisoned before.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from aveyb_retrieval.encoder.network import cuda_graphs, ranker, split_encoder
from aveyb_retrieval.encoder.network.layout import REPLAY_SIZES, SplitLayout, replay_widths
from aveyb_retrieval.kernels.maxsim import split_scores
from tests.encoder.models import PRESETS, small_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.encoder.network.model import AveyBModel

S = 16
# name -> tokens of each text
BATCHES = {
    "one text of one token": [1],
    "a full split": [16],
    "a short split": [9],
    "queries": [3 + i % 7 for i in range(100)],
    "ragged": [100, 1, 0, 33, 16, 17, 15, 64],
    "two splits each": [32] * 8,
    "a long one and short ones": [70 * 16 + 3, 5, 40],
    "more splits than one replay": [16 * 300],
}


class Repeated(cuda_graphs.CudaGraphs):
    """Repeats the operations on the captured memory; counts captures and replays."""

    captures = replays = 0

    def _capture(
        self, function: Callable[..., Any], places: int, like: Any
    ) -> cuda_graphs.Captured:
        captured = super()._capture(function, places, like)
        for x in captured.inputs:
            if x is not None and x.is_floating_point():
                x.fill_(float("nan"))  # weights that no split wrote
        return captured

    def _record(self, run: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            for out in self._buffers.values():
                out.fill_(float("nan") if out.is_floating_point() else -9)
            run()

        return replay


def plain_scores(
    ids: torch.Tensor,
    lengths: torch.Tensor,
    first: torch.Tensor,
    table: torch.Tensor,
    eps: float,
    width: int,
) -> torch.Tensor:
    """`scores_of_short` in plain torch."""
    scores = torch.full((len(ids), width), float("-inf"))
    for start in sorted(set(first.tolist())):
        own = torch.nonzero((first == start) & (lengths > 0))[:, 0]
        if len(own):
            starts = [0, len(own)]
            scores[own, : len(own)] = split_scores(
                ids[own], lengths[own], starts, table, eps, backend="torch"
            )
    return scores


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the CPU for a device on which inference is replays."""
    monkeypatch.setattr(split_encoder, "_REPLAYS", ("cpu",))
    monkeypatch.setattr(split_encoder, "CudaGraphs", Repeated)
    monkeypatch.setattr(split_encoder, "use_triton", lambda *_, **__: True)
    monkeypatch.setattr(ranker, "scores_of_short", plain_scores)


def padded(counts: list[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    ids = torch.randint(0, 97, mask.shape, generator=torch.Generator().manual_seed(seed))
    return ids, mask.long()


def encode(model: AveyBModel, counts: list[int], seed: int = 0) -> torch.Tensor:
    ids, mask = padded(counts, seed)
    with torch.inference_mode():
        return model(ids, mask).last_hidden_state


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str], torch.Tensor]:
    """What models give launch by launch; made before the CPU is taken for a GPU."""
    return {
        (p, b): encode(small_model(p), counts) for p in PRESETS for b, counts in BATCHES.items()
    }


@pytest.mark.parametrize("preset", PRESETS)
def test_replays_give_what_launches_give(
    preset: str, expected: dict[tuple[str, str], torch.Tensor], on_a_gpu: None
) -> None:
    model, alone = small_model(preset), {}
    for name, counts in BATCHES.items():
        alone[name] = encode(small_model(preset), counts)
        torch.testing.assert_close(
            alone[name], expected[preset, name], atol=2e-5, rtol=1e-4, msg=name
        )
    # bit for bit, whatever the memory held before
    for name, counts in [*BATCHES.items(), *BATCHES.items()]:
        assert torch.equal(encode(model, counts), alone[name]), name
        encode(model, counts, seed=1)
    assert isinstance(model._graphs, Repeated)
    assert model._graphs.replays > 2 * model._graphs.captures


def test_after_a_warm_up_nothing_is_captured(on_a_gpu: None) -> None:
    model = small_model("paper")
    # a long text; texts and documents of 1 to 256 splits, full and ragged
    assert model.warm_up() == 1 + 5 * 2 + 4 * 2
    assert isinstance(model._graphs, Repeated)
    captured = model._graphs.captures
    for counts in BATCHES.values():
        encode(model, counts)
    assert model._graphs.captures == captured


def test_gradients_autocast_and_hooks_run_launch_by_launch(on_a_gpu: None) -> None:
    model, ids = small_model("paper"), torch.zeros(1, 40, dtype=torch.int64)
    model(ids).last_hidden_state.sum().backward()
    assert model.layers[0].fuser.weight.grad is not None
    model.layers[1].register_forward_hook(lambda _module, _args, out: 2 * out)
    encode(model, [40])
    assert model._graphs is None


def double(model: AveyBModel) -> None:
    with torch.no_grad():
        model.layers[0].fuser.weight.mul_(2)  # type: ignore[operator, union-attr]


def new_parameter(model: AveyBModel) -> None:
    fuser = model.layers[1].fuser
    assert isinstance(fuser, torch.nn.Linear)
    fuser.weight = torch.nn.Parameter(2 * fuser.weight.detach())


def new_module(model: AveyBModel) -> None:
    model.layers[0].enricher = copy.deepcopy(model.layers[1].enricher)


def new_storage(model: AveyBModel) -> None:
    for layer in model.layers:
        layer.norm.weight.data = layer.norm.weight.data * 2  # type: ignore[operator, union-attr]


def without_a_layer(model: AveyBModel) -> None:
    del model.layers[2]


def trained(model: AveyBModel) -> None:
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.5)
    model(torch.arange(40)[None]).last_hidden_state.square().sum().backward()
    optimizer.step()
    model.eval()


@pytest.mark.parametrize(
    "change", [double, new_parameter, new_module, new_storage, without_a_layer, trained]
)
def test_a_changed_model_is_never_encoded_with_the_old_one(
    change: Callable[[AveyBModel], None], on_a_gpu: None
) -> None:
    model, counts = small_model("paper"), [40, 7]
    before = encode(model, counts)
    change(model)
    after = encode(model, counts)
    assert (after - before).abs().max() > 1e-4
    other = copy.deepcopy(model)
    assert other._graphs is None
    assert torch.equal(encode(other, counts), after)


def test_threads_get_their_own_results(on_a_gpu: None) -> None:
    model = small_model("paper")
    texts = [[5 + i % 7] * (1 + i % 3) + [20] for i in range(40)]
    wanted = [encode(model, counts, seed) for seed, counts in enumerate(texts)]
    with ThreadPoolExecutor(4) as pool:
        for got, own in zip(
            pool.map(lambda i: encode(model, texts[i], i), range(40)), wanted, strict=True
        ):
            assert torch.equal(got, own)


@pytest.mark.parametrize("size", [1, 5, 16, 24, 256])
def test_replays_hold_every_split_once(size: int) -> None:
    generator = np.random.default_rng(0)
    for counts in ([1], [size] * 70, [300 * size], generator.integers(0, 4 * size, 60)):
        layout = SplitLayout.of(counts, size)
        groups = list(layout.replays(full_width=False))
        assert sorted(row for rows, *_ in groups for row in rows) == list(
            range(len(layout.lengths))
        )
        for rows, width, places in groups:
            assert len(rows) <= places
            assert layout.lengths[rows].max() <= width
            assert width in replay_widths(size)
            assert places in [min(256, n * size // width) for n in REPLAY_SIZES]


def test_eight_texts_of_512_tokens_are_one_replay_of_sixteen_splits() -> None:
    for counts, wanted in {
        (512,) * 8: [(256, 16)],
        (98_304,): [(256, 256), (256, 64), (256, 64)],
        (10,) * 1000: [(16, 256)] * 4,
        (10,): [(16, 16)],
        (2000,) * 8: [(256, 64)],  # the short splits at the ends fill the places
    }.items():
        groups = SplitLayout.of(counts, 256).replays(full_width=False)
        assert [(width, places) for _, width, places in groups] == wanted


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("ragged", [False, True])
def test_nothing_within_a_graph_waits_for_the_device(preset: str, ragged: bool) -> None:
    """A value read back to the host cannot be captured; tensors without values show where one is
    asked for.
    """
    model = small_model(preset)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        ids, lengths = torch.zeros(2, 16, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
        inputs = ids, lengths if ragged else None, ids[:, None].expand(-1, 3, -1), torch.ones(2, 3)
        assert model._run(None, inputs, model.embed.weight).shape == (2, 16, 32)
        with pytest.raises(RuntimeError):
            bool(lengths.sum() > 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_graphs() -> None:
    model = small_model("paper")
    wanted = {name: encode(model, counts) for name, counts in BATCHES.items()}
    model.cuda()
    for _ in range(2):
        for name, counts in BATCHES.items():
            ids, mask = padded(counts)
            with torch.inference_mode():
                got = model(ids.cuda(), mask).last_hidden_state.cpu()
            torch.testing.assert_close(got, wanted[name], atol=1e-3, rtol=1e-3, msg=name)
