"""Distillation from packed texts in a plain torch loop, for machines that have little else, and for minutes at a time.

A run can be continued after a kill as after its time limit: state and batches depend on the number of the step
alone, so it ends with the weights of a run that was never stopped.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from checkpoints import restore_checkpoint, save_checkpoint
from heads import fit_head, fit_rotation, token_loss
from packed import BatchOrder, PackedTexts
from pairs import pair_loss
from processes import Processes
from safetensors.torch import save
from torch import nn

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.files import write_atomic
from aveyb_retrieval.training.losses import batch_scores, distillation_loss
from aveyb_retrieval.training.run_folder import CHECKPOINTS, RunFolder, check_loss, last_checkpoint
from aveyb_retrieval.training.settings import Limits
from aveyb_retrieval.training.trainer import build_optimizer, learning_rate_factor, parameter_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from packed_settings import PackedSettings

    from aveyb_retrieval.encoder.network.model import AveyBModel

HEAD = "head.safetensors"  # beside the model: maps its vectors to the teacher's
_HEAD_TEXTS = 4096  # on which the head is fitted before the first step
_HEAD_BATCH = 64


class StepLoss(NamedTuple):
    """What a step of training gives: a float32 scalar, the tokens of all processes, and other means to log."""

    loss: torch.Tensor
    tokens: int
    logged: dict[str, float]


class PackedRun:
    """A run on packed texts: where it stands in its folder, and how it goes on.

    Args:
        model: where a new run starts from; a continued one takes the weights of its checkpoint.
        texts: with the teacher's vectors.
        folder: the run folder; `model/` appears in it with the last step.
        settings: `log_every`, `save_every` and `keep` may change when a run is continued.
        steps: how many there are.
        facts: whatever else decides the result.
        device: "cpu", "cuda", ...

    Raises:
        ConfigError: settings are out of range, or not those that the run was started with.
        InputError: the run was started on other texts, or its checkpoint belongs to a model of other sizes.
    """

    def __init__(
        self,
        model: AveyBModel,
        texts: PackedTexts,
        folder: str | Path,
        settings: PackedSettings,
        *,
        steps: int,
        facts: Mapping[str, Any],
        device: str = "cpu",
    ) -> None:
        """Start a run, or find the newest checkpoint of one."""
        settings.check()
        for name in ("temperature", "embedding_rate"):
            Limits(0, math.inf, least_open=True, most_open=True).check(name, getattr(settings, name))
        _check_tokens(settings, texts)
        self.model, self.texts, self.settings, self.steps = model, texts, settings, steps
        self.checkpoints = Path(folder) / CHECKPOINTS
        resume = last_checkpoint(self.checkpoints) is not None
        self.processes = Processes.join(device)
        self.processes.wait()  # until all have looked for a checkpoint
        known = {**asdict(settings), "processes": self.processes.count, **facts}
        self.folder = RunFolder(folder, known, texts.facts, resume=resume, main=self.processes.rank == 0)
        self.order = BatchOrder(
            texts, settings.batch_size, settings.seed, settings.batch_tokens, similar=settings.similar
        )
        nn.Module.to(model, device).train()
        self.head = Head(model.config.hidden_size, texts.vectors.shape[1], learnt=settings.head == "linear").to(device)
        self.trained = nn.ModuleDict({"model": model, "head": self.head})
        self.optimizer = build_optimizer(rated_groups(self.trained, settings), settings)
        self.factor = learning_rate_factor(settings.schedule, steps, settings.warmup, settings.floor)
        self.step = 0
        if self.folder.checkpoint is None:
            fit_start(self.head, model, texts, settings)
            self._save()
        else:
            self.step = restore_checkpoint(Path(self.folder.checkpoint), self.trained, self.optimizer)
        self.folder.drop_metrics_after(self.step)

    def packed_loss(self) -> StepLoss:
        """Return the loss of the next batch of packed texts."""
        rows = self.order[self.step]
        loss = batch_loss(self.model, self.head, self.texts, self.processes.share(rows), self.settings)
        return StepLoss(loss, int(self.texts.lengths[rows].sum()), {})

    def train(self, step_loss: Callable[[], StepLoss], minutes: float | None = None) -> int:
        """Train until the last step or the time limit; return the number of steps done so far.

        Args:
            step_loss: computes the loss of step `self.step`, for this process's share of it.
            minutes: stop with a checkpoint after about this long; None: at the last step.

        Raises:
            InputError: the loss is not a number.
        """
        settings, processes = self.settings, self.processes
        started, tokens, seen = time.monotonic(), 0, defaultdict[str, list[float]](list)
        while self.step < self.steps and processes.first_says(
            minutes is None or time.monotonic() < started + 60 * minutes
        ):
            for group in self.optimizer.param_groups:
                group["lr"] = settings.learning_rate * self.factor(self.step) * group["rate"]
            loss, count, logged = step_loss()
            check_loss(loss, self.step + 1, self.checkpoints)
            loss.backward()
            processes.average(self.trained.parameters())
            if settings.clip:
                nn.utils.clip_grad_norm_(self.trained.parameters(), settings.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
            tokens += count
            for name, value in ({"loss": loss.item()} | logged).items():
                seen[name].append(processes.mean(value))
            if self.step % settings.log_every == 0 or self.step == self.steps:
                seconds = time.monotonic() - started
                self.folder.log({
                    "step": self.step,
                    **{name: float(np.mean(values)) for name, values in seen.items()},
                    "learning_rate": self.optimizer.param_groups[0]["lr"],
                    "seconds": round(seconds, 2),
                    "tokens_per_second": round(tokens / seconds, 1),
                })  # fmt: skip
                seen.clear()
            if self.step % settings.save_every == 0 or self.step == self.steps:
                self._save()
        if self.step < self.steps:
            self._save()
        elif self.folder.main:
            self.model.eval().save_pretrained(self.folder.model)
            tensors = {"head": self.head.weight.detach().cpu().contiguous(), "scale": self.head.scale.cpu()}
            write_atomic(self.folder.model / HEAD, save(tensors))
        processes.wait()
        return self.step

    def _save(self) -> None:
        if self.folder.main:
            save_checkpoint(self.checkpoints, self.step, self.trained, self.optimizer, self.settings.keep)


def train_packed(
    model: AveyBModel,
    texts: PackedTexts,
    folder: str | Path,
    *,
    settings: PackedSettings,
    device: str = "cpu",
    minutes: float | None = None,
) -> int:
    """Train on packed texts alone until the last step or the time limit, from the newest checkpoint if there is one.

    Arguments and errors are those of `PackedRun`; `minutes` and what is returned, those of its `train`.
    """
    run = PackedRun(model, texts, folder, settings, steps=settings.steps, facts={}, device=device)
    return run.train(run.packed_loss, minutes)


def _check_tokens(settings: PackedSettings, texts: PackedTexts) -> None:
    if settings.token_weight and (settings.head != "rotation" or texts.tokens is None):
        raise ConfigError(
            f"token_weight is {settings.token_weight}, which needs head = rotation (it is {settings.head}) and the "
            f"teacher's vectors of tokens ({'none' if texts.tokens is None else 'at hand'})"
        )


def rated_groups(trained: nn.Module, settings: PackedSettings) -> list[dict[str, Any]]:
    """Return the groups of a run's parameters; `rate` is a group's multiple of the learning rate.

    Token embeddings have `embedding_rate`: Adam's step is of the learning rate's size whatever the entries' is, and
    those of an embedding may be 20 times those of a matrix.
    """
    groups = parameter_groups(trained, settings.weight_decay)
    if settings.embedding_rate != 1:
        tables = {id(m.weight) for m in trained.modules() if isinstance(m, nn.Embedding)}
        own = [p for p in groups[0]["params"] if id(p) in tables]
        groups[0]["params"] = [p for p in groups[0]["params"] if id(p) not in tables]
        groups.append({"params": own, "weight_decay": settings.weight_decay, "rate": settings.embedding_rate})
    return [{"rate": 1.0} | group for group in groups]


class Head(nn.Module):
    """Maps the student's vectors to the teacher's: `W s`. The teacher's tokens come the other way: `scale W^T h`."""

    scale: torch.Tensor

    def __init__(self, size: int, teacher_size: int, *, learnt: bool) -> None:
        """Make room; the values are fitted to the model that a run starts from."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(teacher_size, size), requires_grad=learnt)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Map `[..., D]` to `[..., D_teacher]`."""
        return vectors @ self.weight.T

    def targets(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map the teacher's tokens `[..., D_teacher]` to what the student's should be, `[..., D]`."""
        return tokens @ self.weight * self.scale


def token_vectors(model: AveyBModel, ids: np.ndarray, mask: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float32 token vectors `[B, T, D]`, 0 in the padding, and their mean in each text, `[B, D]`.

    Args:
        model: the student.
        ids: int64 `[B, T]`.
        mask: bool `[B, T]`, which of them are tokens.
    """
    tokens, exist = torch.from_numpy(ids).to(model.device), torch.from_numpy(mask).to(model.device)
    hidden = model(input_ids=tokens, attention_mask=exist).last_hidden_state.float() * exist[..., None]
    return hidden, hidden.sum(1) / exist.sum(1, keepdim=True)


def batch_loss(
    model: AveyBModel, head: Head, texts: PackedTexts, rows: np.ndarray, settings: PackedSettings
) -> torch.Tensor:
    """Compute the loss of a batch of rows int64 `[B, 1 or 2]`; questions are not padded to the length of passages."""
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=settings.precision == "bfloat16"):
        found = [token_vectors(model, *texts.padded(column)) for column in rows.T]
    students = [nn.functional.normalize(means, dim=-1) for _, means in found]
    teachers = [torch.from_numpy(texts.vectors[column]).to(model.device).float() for column in rows.T]
    weights = {"vector_weight": settings.vector_weight, "score_weight": settings.score_weight}
    loss = distillation_loss(students, teachers, head, **weights, temperature=settings.temperature)
    if settings.pair_weight and len(students) == 2:
        pairs = pair_loss(batch_scores(students), batch_scores(teachers), settings.temperature)
        loss = loss + settings.pair_weight * pairs
    if settings.token_weight:
        targets = [head.targets(torch.from_numpy(texts.padded_tokens(column)).to(model.device)) for column in rows.T]
        losses = [token_loss(tokens, wanted) for (tokens, _), wanted in zip(found, targets, strict=True)]
        loss = loss + settings.token_weight * torch.stack(losses).mean()
    return loss


@torch.no_grad()
def fit_start(head: Head, model: AveyBModel, texts: PackedTexts, settings: PackedSettings) -> None:
    """Fit the head on some texts, drawn evenly, for the weights that the run starts from."""
    rows = np.random.default_rng(settings.seed).permutation(len(texts.lengths))[:_HEAD_TEXTS]
    rows = rows[np.argsort(texts.lengths[rows], kind="stable")]
    parts = np.array_split(rows, -(-len(rows) // min(settings.batch_size, _HEAD_BATCH)))
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=settings.precision == "bfloat16"):
        means = torch.cat([token_vectors(model, *texts.padded(part))[1].cpu() for part in parts])
    students, teachers = nn.functional.normalize(means, dim=-1), torch.from_numpy(texts.vectors[rows])
    fit = fit_head if settings.head == "linear" else fit_rotation
    head.weight.copy_(fit(students, teachers))
    if texts.tokens is not None:
        wanted = torch.stack([torch.from_numpy(texts.padded_tokens([row])[0].mean(0)) for row in rows])
        head.scale.copy_(means.norm() / (wanted @ head.weight.cpu()).norm())
