"""A sweep: one objective trained with several learning rates and seeds; the median over seeds at the best rate counts.

Every run has a folder of its own, and its figures are written to sweep.json when it ends: a sweep that was interrupted
continues with the run that it was in, and one that is done can be given more rates or seeds.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.files import write_atomic
from aveyb_retrieval.training.run_folder import CHECKPOINTS, last_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

FILE = "sweep.json"
_LOWER_IS_BETTER = ("loss", "mse")


@dataclass(frozen=True)
class SweepRun:
    """The figures of one trained model, by their names."""

    rate: float
    seed: int
    figures: dict[str, float]


class Sweep:
    """The runs of a sweep, in one folder.

    Attributes:
        runs: those that are done.
        metric: the figure that decides between rates.
    """

    def __init__(self, folder: Path, objective: str, arguments: Sequence[str], metric: str) -> None:
        """Open the folder, which may not exist yet.

        Raises:
            ConfigError: it holds a sweep of another objective, or with other arguments.
        """
        self.folder, self.objective, self.arguments, self.metric = folder, objective, list(arguments), metric
        self.runs: list[SweepRun] = []
        path = folder / FILE
        if path.is_file():
            stored = json.loads(path.read_text(encoding="utf-8"))
            for name, now in (("objective", objective), ("arguments", self.arguments)):
                if stored[name] != now:
                    raise ConfigError(
                        f"{path}: {name} was {stored[name]!r}, now it is {now!r}; give the same, or another folder"
                    )
            self.runs = [SweepRun(**run) for run in stored["runs"]]

    def run(
        self, rates: Sequence[float], seeds: Sequence[int], train: Callable[[Path, float, int, bool], dict[str, float]]
    ) -> None:
        """Train what is missing.

        Args:
            rates: learning rates.
            seeds: of the data's order and whatever starts at random.
            train: trains in a folder with a rate and a seed, from the folder's newest checkpoint if the last argument
                says so; returns the figures.

        Raises:
            ConfigError: the metric is not among the figures.
        """
        done = {(run.rate, run.seed) for run in self.runs}
        for rate in rates:
            for seed in seeds:
                if (rate, seed) in done:
                    continue
                folder = self.folder / f"{rate:g}-{seed}"
                resume = last_checkpoint(folder / CHECKPOINTS) is not None
                if not resume:
                    shutil.rmtree(folder, ignore_errors=True)  # of a run that ended before its first checkpoint
                figures = train(folder, rate, seed, resume)
                if self.metric not in figures:
                    known = ", ".join(sorted(figures)) or "no figures"
                    raise ConfigError(f"metric is {self.metric!r}; {self.objective} gives {known}")
                self.runs.append(SweepRun(rate, seed, figures))
                self._write()

    def medians(self) -> dict[float, dict[str, float]]:
        """Return for each rate the median of every figure over its seeds."""
        found = {rate: [run.figures for run in self.runs if run.rate == rate] for rate in self._rates()}
        return {
            rate: {name: median(figures[name] for figures in group) for name in group[0]}
            for rate, group in found.items()
        }

    def best(self) -> float:
        """Return the rate with the best median of the metric; of equal ones the lowest."""
        sign = -1 if self.metric in _LOWER_IS_BETTER else 1
        medians = self.medians()
        return max(self._rates(), key=lambda rate: sign * medians[rate][self.metric])

    def table(self) -> list[list[str]]:
        """Return rate, seeds, median, lowest and highest of the metric as text, with a heading; the best is marked."""
        rows = [["learning rate", "seeds", f"{self.metric}, median", "lowest", "highest", ""]]
        for rate in self._rates():
            values = [run.figures[self.metric] for run in self.runs if run.rate == rate]
            numbers = (f"{value:.4f}" for value in (median(values), min(values), max(values)))
            rows.append([f"{rate:g}", str(len(values)), *numbers, "best" if rate == self.best() else ""])
        return rows

    def _rates(self) -> list[float]:
        return sorted({run.rate for run in self.runs})

    def _write(self) -> None:
        medians, best = self.medians(), self.best()
        record: dict[str, Any] = {
            "objective": self.objective,
            "arguments": self.arguments,
            "metric": self.metric,
            "best": {"rate": best, "medians": medians[best]},
            "medians": [{"rate": rate, **figures} for rate, figures in medians.items()],
            "runs": [asdict(run) for run in self.runs],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / FILE, (json.dumps(record, indent=1) + "\n").encode())
