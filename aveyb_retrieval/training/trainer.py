"""Parts shared by every run on transformers' Trainer: arguments, the optimizer, and the check of each loss."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import ProgressCallback, Trainer

from aveyb_retrieval.training.optimizers import build_optimizer, learning_rate_factor, parameter_groups
from aveyb_retrieval.training.run_folder import CHECKPOINTS, RunCallback, check_loss, check_shapes

if TYPE_CHECKING:
    from torch import nn

    from aveyb_retrieval.training.settings import RunSettings

    _Base = Trainer
else:
    _Base = object


def shared_arguments(settings: RunSettings, folder: str | Path, device: str | None) -> dict[str, Any]:
    """Return the arguments that transformers' and sentence-transformers' trainers have in common.

    Args:
        settings: of the run.
        folder: the run folder.
        device: "cpu" keeps the run off an accelerator; None: on one where there is one.
    """
    return {
        "output_dir": str(Path(folder) / CHECKPOINTS),
        "max_steps": settings.steps,
        "max_grad_norm": settings.clip,
        "bf16": settings.precision == "bfloat16",
        "seed": settings.seed,
        "logging_steps": settings.log_every,
        "logging_nan_inf_filter": False,
        "save_steps": settings.save_every,
        "save_total_limit": settings.keep,
        "dataloader_drop_last": True,
        "report_to": "none",
        "use_cpu": device == "cpu" or not torch.accelerator.is_available(),  # else bfloat16 would need a GPU
    }


def started_processes() -> int:
    """Return the number of processes that torchrun (or accelerate) started, also before they are connected."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def optimizer_and_schedule(
    trained: nn.Module, settings: RunSettings
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """Build the optimizer over all parameters of `trained`, and its learning-rate schedule.

    Raises:
        ConfigError: an unknown optimizer or schedule, or a warm-up outside 0 to 1.
    """
    optimizer = build_optimizer(parameter_groups(trained, settings.weight_decay), settings)
    factor = learning_rate_factor(settings.schedule, settings.steps, settings.warmup, settings.floor)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def run_to_end(trainer: Trainer, callback: RunCallback, checkpoint: str | None) -> bool:
    """Train, from a checkpoint if one is given; return False if Ctrl-C came first.

    Raises:
        ModelError: the checkpoint belongs to another model.
        InputError: the loss is not a number.
    """
    if checkpoint is not None and trainer.model is not None:
        check_shapes(checkpoint, trainer.model)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        callback.release()
    return not callback.interrupted


class CheckedSteps(_Base):
    """Mixed into a Trainer: stop at a loss that is not a number, and leave the display to `RunCallback`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.remove_callback(ProgressCallback)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Run one forward and backward pass.

        Raises:
            InputError: the loss is NaN or infinite; the step is named.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        check_loss(loss, self.state.global_step + 1, Path(self.args.output_dir or ""))
        return loss
