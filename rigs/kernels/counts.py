"""Launches and bytes of our model's layers on a GPU, in inference and in training, counted without
one.

Operations run on tensors without values ("meta"), where reading a value back is an error, and which
are taken for ones on a GPU. An operation that writes memory counts as one launch, and moves what it
reads and writes once. `python -m rigs.kernels.counts --write` renews
benchmarks/results/gpu_counts.json, which benchmarks/notes/kernels.md shows.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network import split_encoder
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.kernels import dispatch, positionwise
from aveyb_retrieval.kernels.maxsim import split_scores
from aveyb_retrieval.kernels.positionwise import enricher_activation

if TYPE_CHECKING:
    from collections.abc import Iterator

PRESETS = {"released": AveyBConfig.released_base, "paper": AveyBConfig.paper_base}
BATCH, LENGTHS = 8, (512, 2048, 8192, 98_304)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_counts.json"
# By `pretended_device.forward_waits` with as many splits, of 16 tokens instead of 256, at commit
# e0d46cf.
WAITS_BEFORE = {512: 21, 2048: 21, 8192: 39, 98_304: 333}
# By `ranker_launches` for 8 documents of 384 splits, at commit 8ca0209.
RANKER_BEFORE = 401
# Allocate or rename, but start nothing.
FREE = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "detach",
    "_unsafe_view",
    "lift_fresh",
)


@dataclass
class Counts:
    """launches: operations that run on the device; bytes: read and written by them; names: of each,
    in order.
    """

    launches: int = 0
    bytes: int = 0
    names: list[str] = field(default_factory=list)


class Counter(TorchDispatchMode):
    """Counts the operations within its block."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        returns = func._schema.returns
        renames = bool(returns) and all(
            r.alias_info is not None and not r.alias_info.is_write for r in returns
        )
        if not renames and name not in FREE:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            written = {id(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor)}
            in_place = sum(
                _bytes(value)
                for argument, value in zip(func._schema.arguments, args, strict=False)
                if argument.alias_info is not None
                and argument.alias_info.is_write
                and id(value) not in written
            )
            if name == "activate_around":  # neither reads nor writes the columns from start to stop
                in_place -= 2 * _bytes(args[0][..., args[2] : args[3]])
            self.counts.launches += 1
            self.counts.bytes += sum(_bytes(t) for t in tensors) + in_place
            self.counts.names.append(name)
        return out


def _bytes(tensor: torch.Tensor) -> int:
    """Of the elements that a view shows, each counted once where it is repeated by a
    stride of 0.
    """
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or size == 0 else 1
    return elements * tensor.element_size()


@torch.library.custom_op(
    "aveyb_counts::rms_norm",
    mutates_args=(),
    schema="(Tensor x, int[] shape, Tensor weight, float eps) -> Tensor",
)
def _rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    raise NotImplementedError("counted only")


@_rms_norm.register_fake
def _(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("aveyb_counts::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    raise NotImplementedError("counted only")


@_rms_norm_backward.register_fake
def _(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0], inputs[2])


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x_grad, weight_grad = _rms_norm_backward(grad, *ctx.saved_tensors)
    return x_grad, None, weight_grad, None


_rms_norm.register_autograd(_backward, setup_context=_save)


@contextmanager
def hopper() -> Iterator[None]:
    """Within the block tensors on "meta" are taken for ones on a Hopper device with Triton.

    RMSNorm is one operation there (as on CUDA since torch 2.8); off CUDA torch takes it apart.
    """
    with (
        mock.patch.object(
            torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "meta")
        ),
        mock.patch.object(torch.nn.functional, "rms_norm", _rms_norm),
        mock.patch.object(dispatch, "_TRITON_INSTALLED", True),
        # do not ask for the device's capability
        mock.patch.object(dispatch, "_INTERPRETING", True),
    ):
        yield


def layer_counts(preset: str, tokens: int, *, fused: bool = True) -> Counts:
    """Counts of the layers of the base model on `BATCH` texts of `tokens` each, in bfloat16.

    fused: as inference runs them; False: as they stand.
    """
    model, x = _model(preset, tokens, PRESETS[preset]().num_hidden_layers)
    with (
        hopper(),
        torch.no_grad(),
        nullcontext() if fused else _nothing_fused(),
        Counter() as counter,
    ):
        model.run_layers(x, None)
    return counter.counts


def training_counts(preset: str, tokens: int, *, fused: bool = True) -> Counts:
    """Counts of two layers, a static and a dynamic one, forward and backward; fused False: ReLU
    squared in torch.
    """
    model, x = _model(preset, tokens, 2)
    with hopper(), nullcontext() if fused else _nothing_fused(), Counter() as counter:
        out = model.run_layers(x.requires_grad_(), None)
        out.backward(torch.empty_like(out))
    return counter.counts


def ranker_launches(documents: int, splits: int) -> int:
    """Launches that score every pair of splits of some documents of more splits than one launch of
    MaxSim takes.
    """
    from rigs.kernels.pretended_device import no_scores_by_token

    ids = torch.empty((documents * splits, 256), dtype=torch.int64, device="meta")
    lengths = torch.empty(documents * splits, dtype=torch.int64, device="meta")
    table = torch.empty((1000, 64), dtype=torch.bfloat16, device="meta")
    starts = [splits * i for i in range(documents + 1)]
    kernels = mock.patch("aveyb_retrieval.kernels.triton.maxsim.by_token", no_scores_by_token)
    # there is none for "meta"
    no_autocast = mock.patch.object(torch, "autocast", lambda *_, **__: nullcontext())
    with hopper(), kernels, no_autocast, Counter() as counter:
        split_scores(ids, lengths, starts, table, 1e-12)
    return counter.counts.launches + 1  # two kernels stand for one `zeros`


@contextmanager
def _nothing_fused() -> Iterator[None]:
    """Within the block layers run as they stand, with torch's activations."""
    with (
        mock.patch.object(split_encoder, "fuses_passes", lambda x: False),
        mock.patch.object(positionwise, "activate", enricher_activation),
    ):
        yield


def _model(preset: str, tokens: int, layers: int) -> tuple[AveyBModel, torch.Tensor]:
    """A model without values, and an input for its layers: `BATCH` texts of `tokens` each."""
    config = PRESETS[preset](num_hidden_layers=layers, vocab_size=100, final_norm=False)
    with torch.device("meta"):
        model = AveyBModel(config).to(torch.bfloat16).eval()
        splits = BATCH * -(-tokens // config.split_size)
        return model, torch.empty(
            splits, config.split_size, config.hidden_size, dtype=torch.bfloat16
        )


def rows(*, waits: bool) -> list[dict[str, Any]]:
    """One row for each preset and length; without `waits`, which take seconds, the columns of
    layers alone.
    """
    from rigs.kernels.pretended_device import forward_waits

    found: list[dict[str, Any]] = []
    for preset, tokens in product(PRESETS, LENGTHS):
        row: dict[str, Any] = {"preset": preset, "tokens": tokens}
        kinds = {
            "": (layer_counts, PRESETS[preset]().num_hidden_layers),
            "training_": (training_counts, 2),
        }
        for (kind, (count, layers)), (name, fused) in product(
            kinds.items(), (("before", False), ("now", True))
        ):
            counts = count(preset, tokens, fused=fused)
            row[f"{kind}launches_per_layer_{name}"] = round(counts.launches / layers, 2)
            row[f"{kind}bytes_per_token_and_layer_{name}"] = round(
                counts.bytes / (layers * BATCH * tokens)
            )
        row["bytes_floor"] = 2 * 2 * PRESETS[preset]().hidden_size
        row["ranker_launches_before"], row["ranker_launches_now"] = (
            RANKER_BEFORE,
            ranker_launches(BATCH, 384),
        )
        if waits:
            row["waits_per_forward_before"] = WAITS_BEFORE[tokens]
            row["waits_per_forward_now"] = sum(forward_waits(BATCH, tokens // 16).values())
        found.append(row)
    return found


if __name__ == "__main__":
    before = (
        "layers as they stand; waits of e0d46cf; the ranker of 8ca0209, documents of 384 splits"
    )
    document = {"batch": BATCH, "precision": "bfloat16", "before": before}
    text = json.dumps(document | {"rows": rows(waits=True)}, indent=1)
    print(text)
    if "--write" in sys.argv:
        RESULTS.write_text(text + "\n")
