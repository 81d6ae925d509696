"""The loss of aveyb-mini-en: that of `aveyb-train distill`, and a ranking of the pairs of a batch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-small-en"))
from pairs import pair_loss

from aveyb_retrieval.training.distill import DistillationLoss
from aveyb_retrieval.training.losses import batch_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from sentence_transformers import SentenceTransformer


class PairDistillationLoss(DistillationLoss):
    """The loss of `aveyb-train distill`, and that of `pairs.py` over the pairs of a batch.

    Args:
        model, teacher_vectors, weights: as for `DistillationLoss`.
        pair_weight: weight of the pairs.
        head: `[D_teacher, D_student]`, where W starts; None: at random.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        teacher_vectors: np.ndarray,
        *,
        pair_weight: float,
        head: np.ndarray | None = None,
        **weights: float,
    ) -> None:
        super().__init__(model, teacher_vectors, **weights)
        self.pair_weight = pair_weight
        if head is not None:
            with torch.no_grad():
                self.head.weight.copy_(torch.from_numpy(head))

    def terms(self, students: Sequence[torch.Tensor], teachers: Sequence[torch.Tensor]) -> torch.Tensor:
        """Add the pairs; single texts have no such term."""
        loss = super().terms(students, teachers)
        if self.pair_weight and len(students) == 2:
            loss = loss + self.pair_weight * pair_loss(batch_scores(students), batch_scores(teachers), self.temperature)
        return loss
