"""Maps from a student's vectors to its teacher's, and the loss on vectors of tokens."""

from __future__ import annotations

import torch


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
