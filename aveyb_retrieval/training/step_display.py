"""Show the steps of a run on stderr: a bar on a terminal, elsewhere (a file, a job's log) one line per log step."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tqdm import tqdm

BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps{postfix} [{elapsed}<{remaining}]"


class StepDisplay:
    """Steps, loss, speed and the time left.

    Args:
        total: steps of the whole run.
        first: steps done by the run that is resumed; they do not count for the time left.
        unit: what the speed counts, such as "tokens".
        out: where to write; None: stderr.
    """

    def __init__(self, total: int, first: int, unit: str, *, out: TextIO | None = None) -> None:
        self.total, self.first, self.unit, self.out = total, first, unit, out or sys.stderr
        self.started = time.perf_counter()
        self.bar: tqdm | None = None
        if self.out.isatty():
            self.bar = tqdm(total=total, initial=first, bar_format=BAR, dynamic_ncols=True, file=self.out)

    def advance(self, step: int) -> None:
        """Show that `step` steps are done."""
        if self.bar is not None:
            self.bar.update(step - self.bar.n)

    def report(self, step: int, loss: float, units_per_second: float) -> None:
        """Show the mean loss since the last report, and the speed."""
        figures = f"loss {loss:.4g}, {units_per_second:,.0f} {self.unit}/s"
        if self.bar is not None:
            self.bar.set_postfix_str(figures)
        else:
            left = (time.perf_counter() - self.started) / max(1, step - self.first) * (self.total - step)
            self.out.write(f"step {step}/{self.total}, {figures}, {tqdm.format_interval(left)} left\n")
            self.out.flush()

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self.bar is not None:
            self.bar.close()
