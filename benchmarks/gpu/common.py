"""What the GPU scripts share: options, rows that are kept as they come, timing, ceilings, a deadline, tables."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from aveyb_retrieval.kernels.dispatch import Backend, use_triton
from aveyb_retrieval.kernels.maxsim import inverse_norms, maxsim_by_token
from aveyb_retrieval.kernels.vocabulary import batch_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aveyb_retrieval.encoder.config import AveyBConfig

Row = dict[str, Any]


def options(description: str) -> argparse.ArgumentParser:
    """--device, --toy, --out and --minutes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, for a dry run on a CPU")
    parser.add_argument("--minutes", type=float, default=8.0, help="measurements that would end later are left out")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "benchmarks/results")))
    return parser


class Journal:
    """Rows of one script, each printed and written to disk as soon as it is there: a killed run keeps what it has.

    `OUT/gpu_NAME.jsonl` ("dry_run_NAME" for toy runs and CPUs) holds one JSON object per line, the first of which
    describes the run; `close` adds `.json`, the same as one document.
    """

    def __init__(self, folder: Path, name: str, facts: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        kind = "gpu" if str(facts["device"]).startswith("cuda") and not facts.get("toy") else "dry_run"
        self.path = folder / f"{kind}_{name}.jsonl"
        self.facts, self.rows = dict(facts), list[Row]()
        self.path.write_text(json.dumps({"about": self.facts}) + "\n")

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(dict(row))
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print("  ".join(f"{key}={_cell(value)}" for key, value in row.items() if value is not None), flush=True)

    def close(self, **facts: Any) -> None:
        """Write the JSON document and print the table."""
        document = {"about": self.facts | facts, "rows": self.rows}
        self.path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
        show(self.rows)


def attempt(row: Row, measure: Callable[[], Mapping[str, Any]]) -> Row:
    """`row` with what `measure` returns, or with the error that it raised: an error is a row and not the end.

    Any exception counts (Triton's and CUDA's derive from `Exception` alone). Memory is given back after it.
    """
    try:
        return row | dict(measure())
    except Exception as error:
        text = " ".join(str(error).split())
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    kind = "out of memory" if out_of_memory else "error"
    return row | {"ok": False, "note": f"{kind}: {text}"[:200]}


@dataclass
class Clock:
    """Times functions on a device until a deadline."""

    device: torch.device
    minutes: float
    begin: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.begin + 60 * self.minutes - time.monotonic()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def once(self, run: Callable[[], Any]) -> float:
        """Milliseconds of one run, by the host's clock around a synchronized device."""
        self.synchronize()
        start = time.perf_counter()
        run()
        self.synchronize()
        return 1e3 * (time.perf_counter() - start)

    def median(self, run: Callable[[], Any], *, seconds: float = 2.0, most: int = 30) -> float:
        """Median milliseconds of a run: up to `most` samples within `seconds` (three at least), after two that warm up.

        A sample is as many runs back to back as take 5 ms, so that launches overlap as they do in use.
        """
        warm = [self.once(run) for _ in range(2)][-1]
        together = max(1, int(5 / max(warm, 0.05)))
        samples = max(3, min(most, int(1e3 * min(seconds, self.left()) / (together * max(warm, 1e-3)))))

        def several() -> None:
            for _ in range(together):
                run()

        return statistics.median(self.once(several) for _ in range(samples)) / together

    def replayed(self, runs: Sequence[Callable[[], Any]], *, seconds: float = 1.0) -> float:
        """Median milliseconds of one of `runs`, captured one after another as a CUDA graph: the device's time alone.

        `runs` do the same on inputs of their own, so that none finds its input in the L2 cache.

        Raises:
            RuntimeError: a run cannot be captured, as one that waits for the device.
        """
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for run in runs:
                run()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for run in runs:
                run()
        return self.median(graph.replay, seconds=seconds) / len(runs)

    def peak_memory(self, run: Callable[[], Any]) -> float | None:
        """GiB allocated at most during one run; None off CUDA."""
        if self.device.type != "cuda":
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self.once(run)
        return torch.cuda.max_memory_allocated(self.device) / 2**30


@dataclass(frozen=True)
class Ceilings:
    """The most that this device does, measured: operations per second of a bf16 product, bytes per second of a copy."""

    flops: float
    bytes: float

    def facts(self) -> dict[str, float]:
        """For a report."""
        return {"peak_flops": self.flops, "peak_bytes": self.bytes}


def ceilings(clock: Clock, toy: bool, folder: Path) -> Ceilings:
    """The device's ceilings: measured once for a folder of results, in some two seconds, then read from there."""
    name = torch.cuda.get_device_name(clock.device) if clock.device.type == "cuda" else "cpu"
    path = folder / "ceilings.json"
    if path.exists() and (kept := json.loads(path.read_text())).get("name") == name:
        return Ceilings(kept["flops"], kept["bytes"])
    side, size = (64, 1 << 16) if toy else (8192, 1 << 30)
    a, b = (torch.randn(side, side, device=clock.device).bfloat16() for _ in range(2))
    source = torch.zeros(size, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    flops = 2.0 * side**3 / (1e-3 * clock.median(lambda: torch.mm(a, b), seconds=1.0))
    moved = 2.0 * size / (1e-3 * clock.median(lambda: target.copy_(source), seconds=1.0))
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, "flops": flops, "bytes": moved}) + "\n")
    return Ceilings(flops, moved)


def layer_flops(config: AveyBConfig) -> float:
    """Operations of the layers per token."""
    d, mixed, size = config.hidden_size, config.mixed_size, config.split_size
    dense = 2 * d * 4 * mixed + 2 * 3 * mixed * d
    mixing = {"static": 2 * size * mixed, "dynamic": 4 * size * mixed}
    return float(sum(dense + mixing[kind] for kind in config.layer_pattern or []))


def front_flops(config: AveyBConfig, ids: torch.Tensor) -> float:
    """Operations of compressor and ranker for one document, ids `[T]`: the fewest that give these scores.

    A cosine depends on two ids, and ids repeat: what counts is distinct ids of the whole document that a later split
    holds, times distinct ids of each split.
    """
    from aveyb_retrieval.kernels.vocabulary import vocabulary_of

    d, size, tokens = config.hidden_size, config.split_size, len(ids)
    splits = -(-tokens // size)
    full = min(config.num_retrieved, splits - 1) + 1
    compressor = 2.0 * d * size * full * tokens
    if splits == 1:
        return compressor
    padded = torch.zeros(splits * size, dtype=torch.int64)
    padded[:tokens] = ids.cpu()
    lengths = torch.tensor([size] * (splits - 1) + [tokens - size * (splits - 1)])
    vocabulary = vocabulary_of(padded.view(splits, size), lengths)
    asking = torch.searchsorted(-vocabulary.last_seen, -torch.arange(splits))  # ids that occur after each split
    return compressor + 2.0 * d * float((asking * vocabulary.starts.diff()).sum())


def draw_ids(kind: str, batch: int, tokens: int, vocabulary: int, device: torch.device) -> torch.Tensor:
    """int64 `[batch, tokens]`: "uniform", or "zipf" (rank r with probability about 1 / r, as words in text)."""
    if kind == "uniform":
        return torch.randint(5, vocabulary, (batch, tokens), device=device)
    draw = torch.rand(batch, tokens, device=device, dtype=torch.float64)
    return 4 + ((vocabulary - 5.0) ** draw).long().clamp(1, vocabulary - 5)


def by_token(
    ids: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, eps: float, *, backend: Backend = "auto"
) -> torch.Tensor:
    """MaxSim of one document by the token-id shortcut, however few splits it has."""
    if not use_triton(backend, table, operation="by_token"):
        return maxsim_by_token(ids, lengths, table, eps)
    from aveyb_retrieval.kernels.triton import maxsim as kernels

    vocabulary = batch_vocabulary(ids, lengths, [0, len(ids)], len(table))
    return kernels.by_token(table, inverse_norms(table, eps), vocabulary, len(ids))


def about(device: torch.device, **more: Any) -> dict[str, Any]:
    """The machine and versions of a run."""
    facts: dict[str, Any] = {"torch": torch.__version__, "device": str(device), **more}
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return facts


def show(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as a table; a column for every key."""
    rows = list(rows)
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
