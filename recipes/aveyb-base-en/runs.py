"""A run that may be stopped at any time: its folder, its copy elsewhere, its steps."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from figures import FIGURES
from token_ids import groups
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-small-en"))
from checkpoints import restore_checkpoint, save_checkpoint

from aveyb_retrieval.files import rename, write_atomic
from aveyb_retrieval.training.run_folder import CHECKPOINTS, METRICS, SETTINGS, RunFolder, check_loss, last_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from muon import Muon
    from student import Batch, Teacher

    from aveyb_retrieval.encoder.network.model import AveyBModel

BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # of /proc/cpuinfo: elsewhere it is slower than float32
GROUP_TOKENS = 2048  # tokens that go through the layers together, with padding


class Texts(Protocol):
    """What the steps of a run read; depends on a step's number alone."""

    def __getitem__(self, step: int) -> list[np.ndarray]:
        """Return the ids of every text of a step, uint16 `[t]` each."""
        ...


@dataclass(frozen=True)
class StepLoss:
    """loss: a scalar; explained: of what the teacher's layers change (or of its states), by each pair of layers."""

    loss: torch.Tensor
    explained: list[float]
    cosine: float | None = None


class Run:
    """A run in its folder: new, or where its newest checkpoint left it.

    Args:
        model: a new run's; a continued one takes the weights of its checkpoint.
        optimizer: of the model; its groups' `rate` is their multiple of the learning rate.
        folder: of the run.
        settings: whatever decides the result.
        data: fingerprints of what it is trained on.

    Raises:
        ConfigError: other settings than those that the run was started with.
        InputError: other data, or a checkpoint that is damaged or of another size.
    """

    def __init__(
        self, model: AveyBModel, optimizer: Muon, folder: Path, settings: dict[str, Any], data: dict[str, Any]
    ) -> None:
        """Start a run, or find its newest checkpoint."""
        self.model, self.optimizer = model.train(), optimizer
        self.checkpoints = folder / CHECKPOINTS
        newest = newest_checkpoint(folder)
        self.folder = RunFolder(folder, settings, data, resume=newest is not None)
        self.holder = nn.ModuleDict({"model": model})  # gives the tensors of a checkpoint their names
        self.step = 0
        if newest is None:
            self.save()
        else:
            self.step = restore_checkpoint(newest, self.holder, optimizer)
        self.folder.drop_metrics_after(self.step)
        self.tokens = 0

    def save(self) -> None:
        """Write a checkpoint; the one before it is kept."""
        save_checkpoint(self.checkpoints, self.step, self.holder, self.optimizer, keep=2)

    def train(
        self,
        texts: Texts,
        teacher: Teacher,
        step_loss: Callable[[list[Batch], np.ndarray, int], StepLoss],
        rate: Callable[[int], float],
        *,
        until: Callable[[], bool],
        after_step: Callable[[], None],
        clip: float = 5.0,
        log_every: int = 10,
    ) -> None:
        """Train step by step.

        Args:
            texts: of every step.
            teacher: whose states are the targets.
            step_loss: the loss of a step's groups of texts; for each text in them, its place in the step, int64; and
                the step.
            rate: the learning rate of a step.
            until: asked before every step whether to stop.
            after_step: called after every step.
            clip: limit of the gradient's norm.
            log_every: steps of a line of metrics.

        Raises:
            InputError: the loss is not a number.
        """
        self.tokens = sum(sum(map(len, texts[step])) for step in range(self.step))
        amp, seen = uses_bfloat16(), list[StepLoss]()
        self.optimizer.dtype = torch.bfloat16 if amp else torch.float32
        started, counted = time.monotonic(), self.tokens
        while not until():
            ids = texts[self.step]
            rows = groups(ids, GROUP_TOKENS)
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                batches = [teacher.batch([ids[i] for i in part]) for part in rows]
                found = step_loss(batches, np.concatenate(rows), self.step)
            check_loss(found.loss, self.step + 1, self.checkpoints)
            for group in self.optimizer.param_groups:
                group["lr"] = rate(self.step) * group["rate"]
            found.loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            seen.append(replace(found, loss=found.loss.detach()))
            self.step += 1
            self.tokens += sum(map(len, ids))
            if self.step % log_every == 0:
                speed = (self.tokens - counted) / (time.monotonic() - started)
                self.folder.log(self._line(seen) | {"tokens_per_second": round(speed)})
                seen, started, counted = [], time.monotonic(), self.tokens
            after_step()

    def _line(self, seen: list[StepLoss]) -> dict[str, Any]:
        cosines = [found.cosine for found in seen if found.cosine is not None]
        return {
            "step": self.step,
            "tokens": self.tokens,
            "loss": round(float(np.mean([found.loss.item() for found in seen])), 4),
            "explained": np.mean([found.explained for found in seen], axis=0).round(4).tolist(),
            "cosine": round(float(np.mean(cosines)), 4) if cosines else None,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }


class Saver:
    """Saves a run from time to time, copies what it saved, and notes that the run was asked to stop (TERM or INT)."""

    def __init__(self, run: Run, folder: Path, mirror: Path | None, minutes: float) -> None:
        """Take over both signals."""
        self.stopped = False
        self._run, self._folder, self._mirror, self._minutes = run, folder, mirror, minutes
        self._saved = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: object) -> None:
        self.stopped = True

    def save(self) -> None:
        """Save now."""
        self._run.save()
        if self._mirror is not None:
            copy_run(self._folder, self._mirror)
        self._saved = time.monotonic()

    def save_in_time(self) -> None:
        """Save if the last time is long enough ago."""
        if time.monotonic() - self._saved > 60 * self._minutes:
            self.save()


def uses_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16."""
    path = Path("/proc/cpuinfo")
    return path.is_file() and bool(BFLOAT16 & set(path.read_text(encoding="utf-8").split()))


def newest_checkpoint(run: Path) -> Path | None:
    """Return the newest checkpoint in a run folder, if there is one."""
    found = last_checkpoint(run / CHECKPOINTS)
    return None if found is None else Path(found)


def copy_run(run: Path, to: Path) -> None:
    """Copy a run's newest checkpoint, if it has one, and its settings, metrics and figures; no file is ever in part.

    Args:
        run: the run folder.
        to: another; of its checkpoints only the newest remains.
    """
    newest = newest_checkpoint(run)
    if newest is None:
        return
    target = to / CHECKPOINTS / newest.name
    if not target.exists():
        work = target.with_name("." + target.name)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(newest, work)
        rename(work, target)
    for name in (SETTINGS, METRICS, FIGURES):
        if (run / name).is_file():
            write_atomic(to / name, (run / name).read_bytes())
    for old in (to / CHECKPOINTS).glob("checkpoint-*"):
        if old != target:
            shutil.rmtree(old)
