"""The terms by which a student learns a teacher's vectors, in plain torch.

- vectors: `1 - cos(W s, t)`, where W maps the student's width to the teacher's and is dropped afterwards;
- scores: Kullback-Leibler divergence between the teacher's and the student's distribution over the batch
  (for pairs: anchor against every positive; for single texts: each against all others);
- pairs: InfoNCE over the batch (van den Oord et al., 2018); a batch-mate that the teacher finds as close to the anchor
  as its own positive does not count as a negative (as in GISTEmbed, Solatorio, 2024);
- tokens: the squared distance of every token's vector to the teacher's (`token_loss`).
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
    pair_weight: float,
    temperature: float,
    margin: float = 0.0,
) -> torch.Tensor:
    """Return the weighted sum of the terms over a batch, a float32 scalar.

    Args:
        students: float32 `[B, D]` unit rows for each text of a row: one (single texts) or two (anchor, positive).
        teachers: float32 `[B, D_teacher]` unit rows, likewise.
        head: maps `[B, D]` to `[B, D_teacher]`.
        vector_weight: weight of the vectors.
        score_weight: weight of the scores.
        pair_weight: weight of the pairs; single texts have no such term.
        temperature: of the score distributions and of InfoNCE, both on cosines.
        margin: how much closer than the positive a batch-mate must be for the teacher to be dropped as a negative.
    """
    loss = students[0].new_zeros(())
    if vector_weight:
        with torch.autocast(students[0].device.type, enabled=False):
            cosines = [
                nn.functional.cosine_similarity(head(s), t).mean() for s, t in zip(students, teachers, strict=True)
            ]
        loss = loss + vector_weight * (1 - torch.stack(cosines).mean())
    student, teacher = batch_scores(students), batch_scores(teachers)
    if score_weight:
        loss = loss + score_weight * score_divergence(student, teacher, temperature)
    if pair_weight and len(students) == 2:
        loss = loss + pair_weight * pair_loss(student, teacher, temperature, margin)
    return loss


def batch_scores(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return cosines `[B, B]`: first texts by second ones, or single texts by each other (-inf with themselves)."""
    if len(vectors) == 1:
        scores = vectors[0] @ vectors[0].T
        return scores.masked_fill(torch.eye(len(scores), dtype=torch.bool, device=scores.device), float("-inf"))
    return vectors[0] @ vectors[1].T


def score_divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean over rows of KL(teacher || student) of the softmax of scores `[B, B]`."""
    if len(student) == 1:
        return student.new_zeros(())
    target = (teacher / temperature).softmax(-1)
    # log p is -inf where a score is (a text with itself); the target is 0 there and the product must be, too.
    difference = (teacher / temperature).log_softmax(-1) - (student / temperature).log_softmax(-1)
    return torch.where(target > 0, target * difference, 0).sum(-1).mean()


def pair_loss(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float, margin: float, own: torch.Tensor | None = None
) -> torch.Tensor:
    """Return InfoNCE over scores `[B, N]` without the negatives that the teacher finds as close as the positive.

    Two questions may share a passage: it is no negative, and as close as itself.

    Args:
        student: float32 `[B, N]`, anchors by texts.
        teacher: float32 `[B, N]`, likewise.
        temperature: of the student's distribution.
        margin: as for `distillation_loss`.
        own: bool `[B, N]`, the texts that belong to an anchor, one at least: the one that the teacher finds closest is
            the positive, others are no negatives; None: text i belongs to anchor i.
    """
    own = torch.eye(len(student), dtype=torch.bool, device=student.device) if own is None else own
    closest, positive = teacher.masked_fill(~own, float("-inf")).max(1)
    left_out = (own | (teacher >= closest[:, None] + margin)).scatter(1, positive[:, None], value=False)
    logits = (student / temperature).masked_fill(left_out, float("-inf"))
    return nn.functional.cross_entropy(logits, positive)


def fit_head(students: torch.Tensor, teachers: torch.Tensor, ridge: float = 2e-4) -> torch.Tensor:
    """Return W `[D_teacher, D]` that maps students `[n, D]` to teachers `[n, D_teacher]` by ridge regression."""
    students, teachers = students.double(), teachers.double()
    gram = students.T @ students + ridge * len(students) * torch.eye(students.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, students.T @ teachers).T.float()


def fit_rotation(students: torch.Tensor, teachers: torch.Tensor) -> torch.Tensor:
    """Return W `[D_teacher, D]`, columns orthonormal, that maps students `[n, D]` nearest to teachers `[n, D_teacher]`.

    Its columns span the teacher's first D principal components (not centred), turned towards the students (orthogonal
    Procrustes problem; Schoenemann, 1966). Where a student meets `W^T t`, its cosines are the teacher's, but for what
    the other components hold; a learnt head has no such promise.
    """
    students, teachers = students.double(), teachers.double()
    components = torch.linalg.eigh(teachers.T @ teachers).eigenvectors.flip(1)[:, : students.shape[1]].T
    left, _, right = torch.linalg.svd(students.T @ (teachers @ components.T))
    return (left @ right @ components).T.float()


def token_loss(students: torch.Tensor, teachers: torch.Tensor) -> torch.Tensor:
    """Return `sum |s - t|^2 / sum |t|^2` over the tokens that the teacher has vectors of, a float32 scalar.

    Args:
        students: float32 `[B, T, D]`.
        teachers: float32 `[B, T, D]`, 0 for a token without a vector.
    """
    known = (teachers != 0).any(-1, keepdim=True)
    return ((students - teachers) * known).square().sum() / teachers.square().sum().clamp_min(1e-12)
