"""The terms by which a student learns a teacher's vectors, in plain torch.

- vectors: `1 - cos(W s, t)`, where W maps the student's width to the teacher's and is dropped afterwards;
- scores: Kullback-Leibler divergence between the teacher's and the student's distribution over the batch
  (for pairs: anchor against every positive; for single texts: each against all others).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Head = Callable[[torch.Tensor], torch.Tensor]


def distillation_loss(
    students: Sequence[torch.Tensor],
    teachers: Sequence[torch.Tensor],
    head: Head,
    *,
    vector_weight: float,
    score_weight: float,
    temperature: float,
) -> torch.Tensor:
    """Return the weighted sum of the terms over a batch, a float32 scalar.

    Args:
        students: float32 `[B, D]` unit rows for each text of a row: one (single texts) or two (anchor, positive).
        teachers: float32 `[B, D_teacher]` unit rows, likewise.
        head: maps `[B, D]` to `[B, D_teacher]`.
        vector_weight: weight of the vectors.
        score_weight: weight of the scores.
        temperature: of the score distributions, on cosines.
    """
    loss = students[0].new_zeros(())
    if vector_weight:
        with torch.autocast(students[0].device.type, enabled=False):
            cosines = [
                nn.functional.cosine_similarity(head(s), t).mean() for s, t in zip(students, teachers, strict=True)
            ]
        loss = loss + vector_weight * (1 - torch.stack(cosines).mean())
    if score_weight:
        loss = loss + score_weight * score_divergence(batch_scores(students), batch_scores(teachers), temperature)
    return loss


def batch_scores(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return cosines `[B, B]`: first texts by second ones, or single texts by each other (-inf with themselves)."""
    with torch.autocast(vectors[0].device.type, enabled=False):  # a temperature makes what bfloat16 rounds away large
        scores = vectors[0] @ vectors[-1].T
    if len(vectors) == 1:
        return scores.masked_fill(torch.eye(len(scores), dtype=torch.bool, device=scores.device), float("-inf"))
    return scores


def score_divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean over rows of KL(teacher || student) of the softmax of scores `[B, B]`."""
    if len(student) == 1:
        return student.new_zeros(())
    target = (teacher / temperature).softmax(-1)
    # log p is -inf where a score is (a text with itself); the target is 0 there and the product must be, too.
    difference = (teacher / temperature).log_softmax(-1) - (student / temperature).log_softmax(-1)
    return torch.where(target > 0, target * difference, 0).sum(-1).mean()
