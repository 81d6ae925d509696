"""The folder that a training run leaves: settings, data fingerprints, metrics, curves, a model
card, checkpoints.

run.json        settings, fingerprints of the data, versions
metrics.jsonl   one line per log step: step, loss, learning rate, tokens or rows per second, seconds
loss.png        the curves
checkpoints/    the newest ones, in the trainer's own format
model/          the result
"""

from __future__ import annotations

import io
import json
import math
import platform
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
import transformers
from safetensors import safe_open
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState

from aveyb_retrieval.errors import ConfigError, InputError, ModelError, extra_for
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from torch import nn

BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps{postfix} [{elapsed}<{remaining}]"
RUN_FILE = "run.json"
METRICS = "metrics.jsonl"
CURVES = "loss.png"
CHECKPOINTS = "checkpoints"
MODEL = "model"
# may differ on resume: the result is the same
_MAY_CHANGE = {"save_every", "log_every", "keep", "micro_batch"}


class StepDisplay:
    """Steps, loss, speed in `unit` and the time left: a bar on a terminal, else lines; by default
    on stderr.

    The `first` steps of `total`, done by the run that is resumed, do not count for the time left.
    """

    def __init__(self, total: int, first: int, unit: str, *, out: TextIO | None = None) -> None:
        self.total, self.first, self.unit, self.out = total, first, unit, out or sys.stderr
        self.started = time.perf_counter()
        # None: not where it is no terminal
        self.bar = tqdm(
            total=total,
            initial=first,
            bar_format=BAR,
            dynamic_ncols=True,
            file=self.out,
            disable=None,
        )

    def advance(self, step: int) -> None:
        """Show that `step` steps are done."""
        self.bar.update(step - self.bar.n)

    def report(self, step: int, loss: float, units_per_second: float) -> None:
        """Show the mean loss since the last report, and the speed."""
        figures = f"loss {loss:.4g}, {units_per_second:,.0f} {self.unit}/s"
        if not self.bar.disable:
            self.bar.set_postfix_str(figures)
        else:
            left = (
                (time.perf_counter() - self.started)
                / max(1, step - self.first)
                * (self.total - step)
            )
            self.out.write(
                f"step {step}/{self.total}, {figures}, {tqdm.format_interval(left)} left\n"
            )
            self.out.flush()

    def close(self) -> None:
        """Leave the last state on the screen."""
        self.bar.close()


@dataclass(frozen=True)
class TrainingRun:
    """Where a run is written, what it reads, and how it is started.

    Attributes:
        folder: the run folder, described at the top of this file.
        data: the fingerprint of each input, as JSON values; a resumed run must have the same.
        resume: continue the run in the folder from its newest checkpoint.
        device: "cpu", or None for a GPU if there is one.
    """

    folder: str | Path
    data: dict[str, Any]
    resume: bool = False
    device: str | None = None


class RunFolder:
    """A new run folder, or an old one to continue in from its newest checkpoint, with the same
    settings and data.

    `settings` are everything that decides the result, as JSON values; only the `main` of several
    processes (rank 0) writes to the folder. `needs` are files that a checkpoint of this run must
    have, beside the trainer's.
    """

    def __init__(
        self,
        run: TrainingRun,
        settings: dict[str, Any],
        *,
        main: bool = True,
        needs: Sequence[str] = (),
    ) -> None:
        self.path, self.main = Path(run.folder), main
        self.checkpoints, self.model = self.path / CHECKPOINTS, self.path / MODEL
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        record = {
            "settings": settings,
            "data": run.data,
            "versions": versions | {"transformers": transformers.__version__},
        }
        file = self.path / RUN_FILE
        self.checkpoint = last_checkpoint(self.checkpoints, needs) if run.resume else None
        if run.resume:
            self._check(file, record)
            if self.checkpoint is None:
                raise InputError(
                    f"{self.checkpoints} holds no checkpoint to resume from: start the run again"
                    " without --resume"
                )
        elif main:
            # Without either, a run ended before its first checkpoint: nothing can be continued, and
            # nothing is lost.
            if self.model.exists() or last_checkpoint(self.checkpoints) is not None:
                raise ConfigError(
                    f"{self.path} already holds a run: add --resume to continue it, or choose"
                    " another folder"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(file, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())

    def drop_metrics_after(self, step: int) -> None:
        """Drop the metrics that a resumed run will measure again; the file exists afterwards.

        Main process only.
        """
        path = self.path / METRICS
        earlier = [m for m in read_metrics(path) if m["step"] <= step] if path.exists() else []
        write_atomic(path, "".join(json.dumps(m) + "\n" for m in earlier).encode())

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to the metrics. Main process only."""
        with (self.path / METRICS).open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    def finish(self, title: str, figures: dict[str, float]) -> None:
        """Draw the curves and write the card of a finished run."""
        metrics = read_metrics(self.path / METRICS)
        draw_curves(metrics, self.path / CURVES, title)
        record = json.loads((self.path / RUN_FILE).read_text(encoding="utf-8"))
        rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in figures.items())
        data = "\n".join(
            f"- {name}: `{json.dumps(value)}`" for name, value in record["data"].items()
        )
        settings = json.dumps(record["settings"], indent=2, sort_keys=True)
        card = (
            f"# {title}\n\n| figure | value |\n|---|---|\n{rows}\n\n![loss]({CURVES})\n\n##"
            f" Data\n\n{data}\n\n## Settings\n\n```json\n{settings}\n```\n"
        )
        write_atomic(self.path / "README.md", card.encode())

    def _check(self, file: Path, record: dict[str, Any]) -> None:
        if not file.is_file():
            raise InputError(f"{file} is missing: {self.path} holds no run to resume")
        old = json.loads(file.read_text(encoding="utf-8"))
        for part, error in (("settings", ConfigError), ("data", InputError)):
            new, was = json.loads(json.dumps(record[part])), old[part]
            fields = [f for f in {*new, *was} if f not in _MAY_CHANGE and new.get(f) != was.get(f)]
            if fields:
                field = min(fields)
                raise error(
                    f"{file}: the run was started with {part} {field} = {was.get(field)!r}, now it"
                    f" is {new.get(field)!r}; resume with the same, or start another run"
                )


class RunCallback(TrainerCallback):
    """Writes metrics.jsonl, shows the steps and their speed in units, saves on Ctrl-C; `release` it
    at the end.
    """

    def __init__(self, run: RunFolder, units_per_step: float, unit: str) -> None:
        self.run, self.units_per_step, self.unit = run, units_per_step, unit
        self.interrupted = False
        self._started, self._first_step = time.perf_counter(), 0
        self._previous_handler: Any = None
        self._display: StepDisplay | None = None

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: Any
    ) -> None:
        """Start the clock and take over Ctrl-C; in a resumed run, drop the metrics after its
        checkpoint.
        """
        self._started, self._first_step = time.perf_counter(), state.global_step
        try:
            self._previous_handler = signal.signal(signal.SIGINT, self._interrupt)
        except ValueError:  # not in the main thread: then Ctrl-C is not ours to catch
            self._previous_handler = None
        if state.is_world_process_zero:
            self.run.drop_metrics_after(state.global_step)
            self._display = StepDisplay(state.max_steps, state.global_step, self.unit)

    def on_log(
        self,
        args: object,
        state: TrainerState,
        control: object,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append one line to metrics.jsonl."""
        if not state.is_world_process_zero or not logs:
            return
        seconds = time.perf_counter() - self._started
        line: dict[str, Any] = {"step": state.global_step, "seconds": round(seconds, 2)}
        numbers = {
            name: float(value) for name, value in logs.items() if isinstance(value, (int, float))
        }
        line |= {name: value for name, value in numbers.items() if math.isfinite(value)}
        if done := state.global_step - self._first_step:
            line[f"{self.unit}_per_second"] = round(done * self.units_per_step / seconds, 1)
        self.run.log(line)
        if self._display is not None and "loss" in line:
            self._display.report(
                state.global_step, line["loss"], line.get(f"{self.unit}_per_second", 0.0)
            )

    def on_step_end(
        self, args: object, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Show one step more; after Ctrl-C: save, then stop."""
        if self._display is not None:
            self._display.advance(state.global_step)
        if self.interrupted:
            control.should_save = control.should_training_stop = True
        return control

    def release(self) -> None:
        """Give Ctrl-C back and leave the last state on the screen, however the run ended."""
        if self._display is not None:
            self._display.close()
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
            self._previous_handler = None

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.interrupted:  # a second Ctrl-C is meant
            raise KeyboardInterrupt
        self.interrupted = True


def last_checkpoint(checkpoints: Path, needs: Sequence[str] = ()) -> str | None:
    """Return the newest checkpoint in a run's folder of them that a killed run did not leave half
    written, or None.

    The trainer writes its state last: a checkpoint is whole if that file can be read and the files
    in `needs` exist.
    """
    complete = [
        state.parent
        for state in checkpoints.glob("checkpoint-*/trainer_state.json")
        if _is_json(state) and all((state.parent / name).is_file() for name in needs)
    ]
    if not complete:
        return None
    return str(max(complete, key=lambda folder: int(folder.name.rpartition("-")[2])))


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def check_shapes(checkpoint: str | Path, model: nn.Module) -> None:
    """Check that the weights of a trainer's checkpoint have the names and shapes of those of
    `model`.
    """
    named: dict[int, list[str]] = {}  # of weights that are tied, only one is saved
    shapes: dict[str, list[int]] = {}
    for name, tensor in model.state_dict().items():
        named.setdefault(tensor.data_ptr(), []).append(name)
        shapes[name] = list(tensor.shape)
    saved: dict[str, list[int]] = {}
    for path in sorted(Path(checkpoint).rglob("model.safetensors")):
        with safe_open(path, framework="pt") as file:
            saved |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    for names in named.values():
        # A part of a model is saved without the part's own name before those of its weights.
        saved_name = next(
            (name for name in saved if any(f".{own}".endswith(f".{name}") for own in names)), None
        )
        shape = None if saved_name is None else saved.pop(saved_name)
        if shape != shapes[names[0]]:
            raise _foreign(
                checkpoint,
                f"{names[0]} has the shape {shape}, in the model to train {shapes[names[0]]}",
            )
    if saved:
        raise _foreign(checkpoint, f"{min(saved)} is no weight of the model to train")


def _foreign(checkpoint: str | Path, reason: str) -> ModelError:
    return ModelError(
        f"{checkpoint}: {reason}: the checkpoint belongs to another model; resume with the one that"
        " the run started with, or start another run"
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics file; a last line cut by a crash is left out."""
    lines = []
    with suppress(json.JSONDecodeError):
        for line in path.read_text(encoding="utf-8").splitlines():
            lines.append(json.loads(line))
    return lines


def draw_curves(metrics: list[dict[str, Any]], path: Path, title: str) -> None:
    """Draw training and held-out loss over steps, as a PNG; matplotlib is optional."""
    with extra_for("drawing loss curves", "train"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, label in (("loss", "training"), ("eval_loss", "held out")):
        points = [(m["step"], m[name]) for m in metrics if name in m and math.isfinite(m[name])]
        if points:
            axes.plot(
                *zip(*points, strict=True), label=label, marker="." if len(points) < 50 else None
            )
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_atomic(path, image.getvalue())
