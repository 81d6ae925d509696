"""Checkpoints of a plain torch loop: weights and the optimizer's state in one file, whole or not at all."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.files import rename, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

STATE = "state.safetensors"


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


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint's file.

    Raises:
        InputError: it is missing or cut short.
    """
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path} cannot be read ({error}): delete its folder to go on from an earlier checkpoint, or copy it again"
        ) from error
    return tensors


def restore_checkpoint(checkpoint: Path, trained: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint; return its step.

    Raises:
        InputError: its weights are those of a model of other sizes, or it is damaged.
    """
    tensors = read_state(checkpoint / STATE)
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
