"""Launches and bytes of our model's layers on a GPU, counted without one.

Operations run on tensors without values ("meta"), where reading a value back is an error, and which are taken for ones
on a GPU. An operation that writes memory counts as one launch, and moves what it reads and writes once. `python -m
tests.kernels.counts --write` renews benchmarks/results/gpu_counts.json, which docs/kernels.md shows.
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
from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.kernels import dispatch

if TYPE_CHECKING:
    from collections.abc import Iterator

PRESETS = {"released": AveyBConfig.released_base, "paper": AveyBConfig.paper_base}
BATCH, LENGTHS = 8, (512, 2048, 8192, 98_304)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_counts.json"
# By `pretended_device.forward_waits` with as many splits, of 16 tokens instead of 256, at commit e0d46cf.
WAITS_BEFORE = {512: 21, 2048: 21, 8192: 39, 98_304: 333}
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
    """launches: operations that run on the device; bytes: read and written by them; names: of each, in order."""

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
        renames = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if not renames and name not in FREE:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            written = {id(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor)}
            in_place = sum(
                _bytes(value)
                for argument, value in zip(func._schema.arguments, args, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write and id(value) not in written
            )
            self.counts.launches += 1
            self.counts.bytes += sum(_bytes(t) for t in tensors) + in_place
            self.counts.names.append(name)
        return out


def _bytes(tensor: torch.Tensor) -> int:
    """Of the elements that a view shows, each counted once where it is repeated by a stride of 0."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or size == 0 else 1
    return elements * tensor.element_size()


@torch.library.custom_op("aveyb_counts::rms_norm", mutates_args=())
def _rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    raise NotImplementedError("counted only")


@_rms_norm.register_fake
def _(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


@contextmanager
def hopper() -> Iterator[None]:
    """Within the block tensors on "meta" are taken for ones on a Hopper device with Triton.

    RMSNorm is one operation there (as on CUDA since torch 2.8); off CUDA torch takes it apart.
    """
    with (
        mock.patch.object(torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "meta")),
        mock.patch.object(torch.nn.functional, "rms_norm", _rms_norm),
        mock.patch.object(dispatch, "_TRITON_INSTALLED", True),
        mock.patch.object(dispatch, "_INTERPRETING", True),  # do not ask for the device's capability
    ):
        yield


def layer_counts(preset: str, tokens: int, *, joined: bool = True) -> Counts:
    """Counts of two layers, a static and a dynamic one, of the base model on `BATCH` texts of `tokens` each, in bf16.

    joined: as inference runs them; False: as they stand.
    """
    config = PRESETS[preset](num_hidden_layers=2, vocab_size=100, final_norm=False)
    with torch.device("meta"):
        model = AveyBModel(config).to(torch.bfloat16).eval()
        splits = BATCH * -(-tokens // config.split_size)
        x = torch.empty(splits, config.split_size, config.hidden_size, dtype=torch.bfloat16)
    plain = mock.patch.object(AveyBModel, "_inference_form", lambda self, x: None)
    with hopper(), torch.no_grad(), nullcontext() if joined else plain, Counter() as counter:
        model.run_layers(x, None)
    return counter.counts


def rows(*, waits: bool) -> list[dict[str, Any]]:
    """One row for each preset and length; without `waits`, which take seconds, the columns of layers alone."""
    from tests.kernels.pretended_device import forward_waits

    found: list[dict[str, Any]] = []
    for preset, tokens in product(PRESETS, LENGTHS):
        row: dict[str, Any] = {"preset": preset, "tokens": tokens}
        for name, joined in (("before", False), ("now", True)):
            counts = layer_counts(preset, tokens, joined=joined)
            row[f"launches_per_layer_{name}"] = counts.launches / 2
            row[f"bytes_per_token_and_layer_{name}"] = round(counts.bytes / (2 * BATCH * tokens))
        row["bytes_floor"] = 2 * 2 * PRESETS[preset]().hidden_size
        if waits:
            row["waits_per_forward_before"] = WAITS_BEFORE[tokens]
            row["waits_per_forward_now"] = sum(forward_waits(BATCH, tokens // 16).values())
        found.append(row)
    return found


if __name__ == "__main__":
    document = {"batch": BATCH, "precision": "bfloat16", "before": "layers as they stand; waits of e0d46cf"}
    text = json.dumps(document | {"rows": rows(waits=True)}, indent=1)
    print(text)
    if "--write" in sys.argv:
        RESULTS.write_text(text + "\n")
