"""How far a run is, on stderr: a bar on a terminal, one line for every log step elsewhere (a file, a job's log)."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tqdm import tqdm

BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps{postfix} [{elapsed}<{remaining}]"


class Progress:
    """Shows steps, loss, speed and the time left.

    Args:
        total: steps of the whole run.
        first: steps that an earlier, resumed run has done; they do not count for the time left.
        unit: what the speed counts, "tokens" say.
        out: None: stderr.
    """

    def __init__(self, total: int, first: int, unit: str, *, out: TextIO | None = None) -> None:
        self.total, self.first, self.unit, self.out = total, first, unit, out or sys.stderr
        self.begun = time.perf_counter()
        self.bar: tqdm | None = None
        if self.out.isatty():
            self.bar = tqdm(total=total, initial=first, bar_format=BAR, dynamic_ncols=True, file=self.out)

    def advance(self, step: int) -> None:
        """`step` steps are done."""
        if self.bar is not None:
            self.bar.update(step - self.bar.n)

    def report(self, step: int, loss: float, units_per_second: float) -> None:
        """The mean loss since the last report, and the speed."""
        figures = f"loss {loss:.4g}, {units_per_second:,.0f} {self.unit}/s"
        if self.bar is not None:
            self.bar.set_postfix_str(figures)
        else:
            left = (time.perf_counter() - self.begun) / max(1, step - self.first) * (self.total - step)
            self.out.write(f"step {step}/{self.total}, {figures}, {tqdm.format_interval(left)} left\n")
            self.out.flush()

    def close(self) -> None:
        """Leaves the last state on the screen."""
        if self.bar is not None:
            self.bar.close()
