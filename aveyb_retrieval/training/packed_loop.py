"""Distillation from packed texts in a plain torch loop, for machines that have little else, and for minutes at a time.

A run can be continued after a kill as after its time limit: state and batches depend on the number of the step
alone, so it ends with the weights of a run that was never stopped.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import nn
from transformers.trainer_utils import get_last_checkpoint

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.index.storage.files import rename, write_atomic
from aveyb_retrieval.training.losses import distillation_loss, fit_head, fit_rotation, token_loss
from aveyb_retrieval.training.optimizers import build_optimizer, learning_rate_factor
from aveyb_retrieval.training.packed import BatchOrder, PackedTexts
from aveyb_retrieval.training.processes import Processes
from aveyb_retrieval.training.run_folder import CHECKPOINTS, RunFolder, check_loss

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.model import AveyBModel
    from aveyb_retrieval.training.settings import PackedSettings

STATE = "state.safetensors"
HEAD = "head.safetensors"  # beside the model: maps its vectors to the teacher's
_HEAD_TEXTS = 4096  # on which the head is fitted before the first step
_HEAD_BATCH = 64


def train_packed(
    model: AveyBModel,
    texts: PackedTexts,
    folder: str | Path,
    *,
    settings: PackedSettings,
    device: str = "cpu",
    minutes: float | None = None,
) -> int:
    """Train until the last step or the time limit, from the newest checkpoint if there is one.

    Args:
        model: where a new run starts from; a continued one takes the weights of its checkpoint.
        texts: with the teacher's vectors.
        folder: the run folder; `model/` appears in it with the last step.
        settings: `log_every`, `save_every` and `keep` may change when a run is continued.
        device: "cpu", "cuda", ...
        minutes: stop with a checkpoint after about this long; None: at the last step.

    Returns:
        The number of steps done so far; `settings.steps` if the run is complete.

    Raises:
        ConfigError: settings are out of range, or not those that the run was started with.
        InputError: the run was started on other texts, or the loss is not a number.
    """
    settings.check("temperature", "embedding_rate")
    _check_tokens(settings, texts)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    checkpoints = Path(folder) / CHECKPOINTS
    resume = checkpoints.is_dir() and get_last_checkpoint(str(checkpoints)) is not None
    processes = Processes.join(device)
    facts = asdict(settings) | {"processes": processes.count}
    processes.wait()  # until all have looked for a checkpoint
    run = RunFolder(folder, facts, texts.facts, resume=resume, main=processes.rank == 0)
    order = BatchOrder(texts, settings.batch_size, settings.seed, settings.batch_tokens, similar=settings.similar)
    nn.Module.to(model, device).train()
    head = Head(model.config.hidden_size, texts.vectors.shape[1], learnt=settings.head == "linear").to(device)
    trained = nn.ModuleDict({"model": model, "head": head})
    optimizer = build_optimizer(
        trained,
        settings.optimizer,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        embedding_rate=settings.embedding_rate,
    )
    factor = learning_rate_factor(settings.schedule, settings.steps, settings.warmup, settings.floor)
    if run.checkpoint is None:
        fit_start(head, model, texts, settings)
        step = 0
        if run.main:
            save_checkpoint(checkpoints, step, trained, optimizer, settings.keep)
    else:
        step = restore_checkpoint(Path(run.checkpoint), trained, optimizer)
    run.drop_metrics_after(step)
    started, tokens, losses = time.monotonic(), 0, list[float]()
    while step < settings.steps and processes.first_says(deadline is None or time.monotonic() < deadline):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * factor(step) * group["rate"]
        rows = order[step]
        loss = batch_loss(model, head, texts, processes.share(rows), settings)
        check_loss(loss, step + 1, checkpoints)
        loss.backward()
        processes.average(trained.parameters())
        if settings.clip:
            nn.utils.clip_grad_norm_(trained.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        losses.append(processes.mean(loss.item()))
        tokens += int(texts.lengths[rows].sum())
        if step % settings.log_every == 0 or step == settings.steps:
            seconds = time.monotonic() - started
            run.log({
                "step": step,
                "loss": float(np.mean(losses)),
                "learning_rate": optimizer.param_groups[0]["lr"],
                "seconds": round(seconds, 2),
                "tokens_per_second": round(tokens / seconds, 1),
            })  # fmt: skip
            losses.clear()
        if run.main and (step % settings.save_every == 0 or step == settings.steps):
            save_checkpoint(checkpoints, step, trained, optimizer, settings.keep)
    if run.main and step < settings.steps:
        save_checkpoint(checkpoints, step, trained, optimizer, settings.keep)
    processes.wait()
    if step < settings.steps or not run.main:
        return step
    model.eval().save_pretrained(run.model)
    write_atomic(run.model / HEAD, save({"head": head.weight.detach().cpu().contiguous(), "scale": head.scale.cpu()}))
    return step


def _check_tokens(settings: PackedSettings, texts: PackedTexts) -> None:
    if settings.token_weight and (settings.head != "rotation" or texts.tokens is None):
        raise ConfigError(
            f"token_weight is {settings.token_weight}, which needs head = rotation (it is {settings.head}) and the "
            f"teacher's vectors of tokens ({'none' if texts.tokens is None else 'at hand'})"
        )


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
    loss = distillation_loss(
        [nn.functional.normalize(means, dim=-1) for _, means in found],
        [torch.from_numpy(texts.vectors[column]).to(model.device).float() for column in rows.T],
        head,
        vector_weight=settings.vector_weight,
        score_weight=settings.score_weight,
        pair_weight=settings.pair_weight,
        temperature=settings.temperature,
    )
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


def save_checkpoint(
    checkpoints: Path, step: int, trained: nn.Module, optimizer: torch.optim.Optimizer, keep: int
) -> None:
    """Write a checkpoint, whole or not at all, and delete all but the newest."""
    work = checkpoints / f".checkpoint-{step}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tensors = {f"weights.{name}": value for name, value in trained.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {"step": str(step)})
    write_atomic(work / STATE, data)
    target = checkpoints / f"checkpoint-{step}"
    if target.exists():  # written again by a run whose newest checkpoint it is: the same bytes
        shutil.rmtree(work)
    else:
        rename(work, target)
    found = sorted(checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    for old in found[:-keep]:
        shutil.rmtree(old)


def restore_checkpoint(checkpoint: Path, trained: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint; return its step.

    Raises:
        InputError: its weights are those of a model of other sizes.
    """
    tensors = load_file(checkpoint / STATE)
    weights = {name.removeprefix("weights."): value for name, value in tensors.items() if name.startswith("weights.")}
    shapes = {name: tuple(value.shape) for name, value in trained.state_dict().items()}
    for name in sorted({*shapes, *weights}):
        found = tuple(weights[name].shape) if name in weights else None
        if found != shapes.get(name):
            raise InputError(
                f"{checkpoint / STATE}: {name} has the shape {found}, the model to train {shapes.get(name)}: the "
                "checkpoint belongs to a model of other sizes; continue with the one that the run started with"
            )
    trained.load_state_dict(weights)
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            number, _, key = rest.partition(".")
            state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return int(checkpoint.name.partition("-")[2])
