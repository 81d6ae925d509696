"""What the parts share: a device, random models and ids, milliseconds, errors, ceilings, floors."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aveyb_retrieval.encoder.config import AveyBConfig


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """`|got - wanted| / |wanted|` in float64; infinity where a value is NaN."""
    got, wanted = got.double(), wanted.double()
    error = float((got - wanted).norm() / wanted.norm().clamp_min(1e-30))
    return error if error == error else float("inf")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(
    run: Callable[[], Any], device: torch.device, seconds: float = 0.25, most: int = 20
) -> float:
    """Median of a run by device events, after two that warm up; short runs go several to a sample,
    back to back.
    """
    run()
    synchronize(device)
    begin = time.perf_counter()
    run()
    synchronize(device)
    once = max(1e-5, time.perf_counter() - begin)
    if device.type != "cuda":
        return 1e3 * once
    together, pairs = max(1, int(2e-3 / once)), []
    for _ in range(max(3, min(most, int(seconds / (together * once))))):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(together):
            run()
        last.record()
        pairs.append((first, last))
    torch.cuda.synchronize(device)
    return statistics.median(a.elapsed_time(b) for a, b in pairs) / together


def replayed(runs: Sequence[Callable[[], Any]], device: torch.device) -> float:
    """Milliseconds of one of `runs` captured one after another: the device's time alone.

    The runs do the same on inputs of their own, so that none is found in the L2 cache.
    """
    if device.type != "cuda":
        return milliseconds(runs[0], device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run in runs:
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            for run in runs:
                run()
    return milliseconds(graph.replay, device) / (2 * len(runs))


@dataclass(frozen=True)
class Ceilings:
    """The most that the device does, measured: operations a second of a bf16 product, bytes a
    second of a copy.
    """

    flops: float
    bytes: float


def ceilings(device: torch.device, toy: bool, out: Path) -> Ceilings:
    """Measure the ceilings in half a second, once for a folder of results."""
    path = out / "ceilings.json"
    if path.exists():
        kept = json.loads(path.read_text())
        return Ceilings(kept["flops"], kept["bytes"])
    side, size = (64, 1 << 16) if toy else (8192, 1 << 30)
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    found = Ceilings(2.0 * side**3 / (1e-3 * milliseconds(lambda: torch.mm(a, b), device)), 0)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found = Ceilings(
        found.flops, 2.0 * size / (1e-3 * milliseconds(lambda: target.copy_(source), device))
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    path.write_text(json.dumps({"name": name, "flops": found.flops, "bytes": found.bytes}) + "\n")
    return found


def draw_ids(
    kind: str, batch: int, tokens: int, vocabulary: int, device: torch.device
) -> torch.Tensor:
    """int64 `[batch, tokens]`: "uniform", or "zipf" (rank r with probability about 1 / r, as words
    in text).
    """
    if kind == "uniform":
        return torch.randint(5, vocabulary, (batch, tokens), device=device)
    draw = torch.rand(batch, tokens, device=device, dtype=torch.float64)
    return 4 + ((vocabulary - 5.0) ** draw).long().clamp(1, vocabulary - 5)


def layer_flops(config: AveyBConfig) -> float:
    """Operations of the layers per token."""
    d, mixed, size = config.hidden_size, config.settings.mixed_size, config.split_size
    dense = 2 * d * 4 * mixed + 2 * 3 * mixed * d
    mixing = {"static": 2 * size * mixed, "dynamic": 4 * size * mixed}
    return float(sum(dense + mixing[kind] for kind in config.layer_pattern or []))


def front_flops(config: AveyBConfig, ids: torch.Tensor) -> float:
    """Operations of compressor and ranker for one document, ids `[T]`: the fewest that give these
    scores.

    A cosine depends on two ids, and ids repeat: what counts is distinct ids of the whole document
    that a later split holds, times distinct ids of each split.
    """
    from aveyb_retrieval.kernels.host_maxsim import SplitVocabulary

    d, size, tokens = config.hidden_size, config.split_size, len(ids)
    splits = -(-tokens // size)
    full = min(config.num_retrieved, splits - 1) + 1
    compressor = 2.0 * d * size * full * tokens
    if splits == 1:
        return compressor
    vocabulary = SplitVocabulary.of([split.numpy() for split in ids.cpu().split(size)])
    pairs = zip(vocabulary.asked, vocabulary.held, strict=True)
    return compressor + 2.0 * d * float(sum(asked * len(held) for asked, (held, _) in pairs))
