"""The loss on pairs that belong together."""

from __future__ import annotations

import torch
from torch import nn


def pair_loss(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float, own: torch.Tensor | None = None
) -> torch.Tensor:
    """Return InfoNCE over scores `[B, N]` without the negatives that the teacher finds as close as the positive.

    InfoNCE: van den Oord et al., 2018; what is left out: as in GISTEmbed (Solatorio, 2024). Two questions may share a
    passage: it is no negative, and as close as itself.

    Args:
        student: float32 `[B, N]`, anchors by texts.
        teacher: float32 `[B, N]`, likewise.
        temperature: of the student's distribution.
        own: bool `[B, N]`, the texts that belong to an anchor, one at least: the one that the teacher finds closest is
            the positive, others are no negatives; None: text i belongs to anchor i.
    """
    own = torch.eye(len(student), dtype=torch.bool, device=student.device) if own is None else own
    closest, positive = teacher.masked_fill(~own, float("-inf")).max(1)
    left_out = (own | (teacher >= closest[:, None])).scatter(1, positive[:, None], value=False)
    logits = (student / temperature).masked_fill(left_out, float("-inf"))
    return nn.functional.cross_entropy(logits, positive)
