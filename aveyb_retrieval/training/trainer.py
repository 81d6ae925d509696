"""What every run on transformers' Trainer shares: settings, arguments, the optimizer, and the check of each loss."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import ProgressCallback, Trainer

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.optimizers import build_optimizer, learning_rate_factor
from aveyb_retrieval.training.run_folder import CHECKPOINTS, RunCallback, check_loss, check_shapes

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object


@dataclass(frozen=True)
class RunSettings:
    """What decides a run of any objective. `batch_size` counts rows over all processes; `eps`, `betas` are Adam's."""

    steps: int = 1000
    batch_size: int = 128
    learning_rate: float = 1e-4
    schedule: str = "linear"
    warmup: float = 0.1
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-5
    weight_decay: float = 0.1
    clip: float = 1.0
    bf16: bool = True
    seed: int = 0
    log_every: int = 10
    save_every: int = 500
    keep: int = 2

    def check(self, *more: str) -> None:
        """Raises ConfigError where a number that must be above 0 is not; `more` names further fields of that kind."""
        for name in ("steps", "batch_size", "learning_rate", "log_every", "save_every", "keep", *more):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")


def shared_arguments(settings: RunSettings, folder: str | Path, device: str | None) -> dict[str, Any]:
    """The arguments that transformers' and sentence-transformers' trainers get alike.

    Args:
        folder: the run folder.
        device: "cpu" keeps the run off an accelerator; None: the trainer chooses.
    """
    return {
        "output_dir": str(Path(folder) / CHECKPOINTS),
        "max_steps": settings.steps,
        "max_grad_norm": settings.clip,
        "bf16": settings.bf16,
        "seed": settings.seed,
        "logging_steps": settings.log_every,
        "logging_nan_inf_filter": False,
        "save_steps": settings.save_every,
        "save_total_limit": settings.keep,
        "dataloader_drop_last": True,
        "report_to": "none",
        "use_cpu": device == "cpu",
    }


def started_processes() -> int:
    """How many processes torchrun (or accelerate) started for this run; known before they are connected."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def optimizer_and_schedule(
    trained: nn.Module, settings: RunSettings
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """Over all parameters of `trained`.

    Raises:
        ConfigError: an unknown optimizer or schedule, or a warm-up outside 0 to 1.
    """
    optimizer = build_optimizer(
        trained,
        settings.optimizer,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    factor = learning_rate_factor(settings.schedule, settings.steps, settings.warmup)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def run_to_end(trainer: Trainer, callback: RunCallback, checkpoint: str | None) -> bool:
    """Trains, from a checkpoint if one is given; False if Ctrl-C came first.

    Raises:
        ModelError: the checkpoint is one of a model of other sizes.
        InputError: a loss that is no number.
    """
    if checkpoint is not None and trainer.model is not None:
        check_shapes(checkpoint, trainer.model)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        callback.release()
    return not callback.interrupted


class CheckedSteps(_Base):
    """Mixed into a Trainer: stops at a loss that is no number; leaves the progress bar to `RunCallback`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.remove_callback(ProgressCallback)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """One forward and backward pass.

        Raises:
            InputError: the loss is NaN or infinite; the step is named.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        check_loss(loss, self.state.global_step + 1, Path(self.args.output_dir or ""))
        return loss
