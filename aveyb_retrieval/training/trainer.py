"""Parts shared by every run on transformers' Trainer: arguments, the optimizer, and the check of
each loss.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PrinterCallback, ProgressCallback, Trainer

from aveyb_retrieval.encoder.progress_bars import without_progress_bars
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.run_folder import (
    CHECKPOINTS,
    RunCallback,
    TrainingRun,
    check_shapes,
    last_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from aveyb_retrieval.training.settings import RunSettings

    _Base = Trainer
else:
    _Base = object


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Group the parameters: weight decay on matrices only, none on biases, norms and scalars."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def learning_rate_factor(
    name: str, steps: int, warmup: float, floor: float = 0.0
) -> Callable[[int], float]:
    """Return a function from a step to its factor of the peak learning rate; what falls, falls to
    `floor`.

    It rises linearly over the first `warmup` share of the steps; `trapezoidal` falls as `1 - sqrt`
    over the last tenth (Warner et al., 2024, appendix). `transformers.get_scheduler` starts at 0: a
    run's first step would change nothing. What may be given is checked by `RunSettings.check`.
    """
    rising = round(warmup * steps)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        done = min(1.0, (step - rising) / max(1, steps - rising))
        return floor + (1 - floor) * shape(done)

    def shape(done: float) -> float:
        if name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if name == "linear":
            return 1 - done
        if name == "trapezoidal":
            return 1.0 if done < 0.9 else 1 - math.sqrt((done - 0.9) / 0.1)
        return 1.0

    return factor


def shared_arguments(settings: RunSettings, run: TrainingRun) -> dict[str, Any]:
    """Return the arguments that transformers' and sentence-transformers' trainers have
    in common.
    """
    return {
        "output_dir": str(Path(run.folder) / CHECKPOINTS),
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
        # else bfloat16 would need a GPU
        "use_cpu": (run.device == "cpu" or not torch.accelerator.is_available()),
    }


def optimizer_and_schedule(
    trained: nn.Module, settings: RunSettings
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """Build AdamW over all parameters of `trained`, and its learning-rate schedule."""
    groups = parameter_groups(trained, settings.weight_decay)
    optimizer = torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.eps
    )
    factor = learning_rate_factor(
        settings.schedule, settings.steps, settings.warmup, settings.floor
    )
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def check_memory(
    model: nn.Module,
    forward: Callable[[], Any],
    sample: int,
    tokens: int,
    device: torch.device,
    what: str,
    remedy: str,
) -> None:
    """Check that the activations of a step fit into memory, beside gradients and Adam's moments.

    The bytes that a token leaves for the backward pass are measured as `forward` reads `sample` of
    them; the run reads `tokens` at once. `what` needs the memory and the settings to lower,
    `remedy`, stand in the message.
    """
    saved_bytes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved_bytes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    parameters = {
        p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()
    }
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = forward()  # held while it is measured: a freed storage's place would be given again
    of_token = sum(size for place, size in saved_bytes.items() if place not in parameters) / sample
    del out
    needed, free = tokens * of_token + 3 * sum(parameters.values()), free_bytes(device)
    if needed > free:
        raise ConfigError(
            f"{what}: they need about {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f}"
            f" GiB are free; lower {remedy}"
        )


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free where a run computes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)


def run_to_end(trainer: Trainer, callback: RunCallback) -> bool:
    """Train, from the checkpoint of the callback's run if it has one; return False if Ctrl-C came
    first.
    """
    trainer.add_callback(callback)
    checkpoint = callback.run.checkpoint
    if checkpoint is not None and trainer.model is not None:
        check_shapes(checkpoint, trainer.model)
    try:
        with without_progress_bars():
            trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        callback.release()
    return not callback.interrupted


class CheckedSteps(_Base):
    """Mixed into a Trainer: stop at a loss that is not a number, and leave the display to
    `RunCallback`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.remove_callback(ProgressCallback)
        # transformers' choice where its progress bars are off
        self.remove_callback(PrinterCallback)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Run one forward and backward pass; a loss that is not finite is an error."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            good = last_checkpoint(Path(self.args.output_dir or "")) or "none yet"
            raise InputError(
                f"the loss of the batch at step {self.state.global_step + 1} is {loss.item()}:"
                f" stopped, nothing was overwritten; the last good checkpoint is {good}. A lower"
                " learning rate or a longer warm-up usually helps"
            )
        return loss
