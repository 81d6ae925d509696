"""What the GPU scripts share: options, timing, a deadline, tables and JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from aveyb_retrieval.encoder.config import AveyBConfig

PEAK_FLOPS = (
    790e12  # bf16 matrix products of one H200 (SXM), as measured ceilings of such cards go; not the data sheet's
)
PEAK_BYTES = 4.3e12  # bytes a second of a copy
RUN_ERRORS = (RuntimeError, ValueError, ImportError, NotImplementedError)  # what a peer may raise; reported in its row


def options(description: str) -> argparse.ArgumentParser:
    """--device, --toy, --out and --minutes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, for a dry run on a CPU")
    parser.add_argument("--minutes", type=float, default=7.0, help="measurements that would end later are left out")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "benchmarks/results")))
    return parser


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

    def peak_memory(self, run: Callable[[], Any]) -> float | None:
        """GiB allocated at most during one run; None off CUDA."""
        if self.device.type != "cuda":
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self.once(run)
        return torch.cuda.max_memory_allocated(self.device) / 2**30


def flops_per_token(config: AveyBConfig, tokens: int) -> float:
    """Operations of one forward per token of a text of so many: layers, compressor, MaxSim of all earlier splits."""
    d, mixed, size = config.hidden_size, config.mixed_size, config.split_size
    dense = 2 * d * 4 * mixed + 2 * 3 * mixed * d
    mixing = {"static": 2 * size * mixed, "dynamic": 4 * size * mixed}
    layers = sum(dense + mixing[kind] for kind in config.layer_pattern or [])
    splits = -(-tokens // size)
    full = min(config.num_retrieved, splits - 1) + 1
    return layers + 2 * d * size * full + d * max(0, tokens - size)


def about(device: torch.device, **more: Any) -> dict[str, Any]:
    """The machine and versions of a run."""
    facts: dict[str, Any] = {"torch": torch.__version__, "device": str(device), **more}
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return facts


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows (of one set of keys) as a table."""
    if not rows:
        return
    cells = [[str(k) for k in rows[0]]] + [[_cell(row.get(k)) for k in rows[0]] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(folder: Path, name: str, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """`folder/gpu_{name}.json` ("toy" runs and CPU runs get names of their own)."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "gpu" if facts["device"].startswith("cuda") and not facts.get("toy") else "dry_run"
    (folder / f"{kind}_{name}.json").write_text(json.dumps({"about": facts, "rows": list(rows)}, indent=1) + "\n")
