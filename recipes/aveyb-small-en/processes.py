"""Several processes of one training run, as torchrun starts them: who does which rows, and their mean gradient."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np


@dataclass(frozen=True)
class Processes:
    """This process, number `rank` of `count`; alone unless torchrun says otherwise."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls, device: str) -> Processes:
        """Meet the others, if there are any."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        return cls(dist.get_rank(), count)

    def share(self, rows: np.ndarray) -> np.ndarray:
        """Return this process's rows of a batch; a batch of fewer rows than processes is everyone's."""
        return rows if len(rows) < self.count else rows[self.rank :: self.count]

    def average(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace the gradients by their mean over the processes."""
        if self.count == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, mean in zip(gradients, (flat / self.count).split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def mean(self, number: float) -> float:
        """Return the mean of a number over the processes."""
        if self.count == 1:
            return number
        total = torch.tensor([number], dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.count

    def first_says(self, flag: bool) -> bool:
        """Return what the first process says, for decisions by its clock."""
        if self.count == 1:
            return flag
        said = torch.tensor([int(flag)])
        dist.broadcast(said, 0)
        return bool(said.item())

    def wait(self) -> None:
        """Wait for the others."""
        if self.count > 1:
            dist.barrier()
