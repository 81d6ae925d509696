"""What generation keeps of each text: unit rows of its finished splits, and how well the current split matches them.

Every new token adds its best cosine with each finished split to that split's score, which costs O(N d) a token (Avey,
appendix on complexity). The layers' states cannot be kept: a new token changes the weights of all retrieved splits.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import Cache

from aveyb_retrieval.kernels.maxsim import unit_rows

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.network.ranker import SplitRanker


class TextState:
    """One text so far.

    Attributes:
        finished: int64 `[i, S]`, token ids of the splits before the current one.
        current: int64 `[T]`, those of the current split, up to S of them.
        scores: float64 `[i]`, the current split's MaxSim with each finished one.

    A shallow copy goes on by itself: tensors are replaced and never written to.
    """

    def __init__(self, embedding: torch.Tensor, split_size: int, eps: float) -> None:
        """Begin an empty text.

        Args:
            embedding: `[V, D]`, the token embedding table.
            split_size: S.
            eps: added to each norm.
        """
        self.embedding, self.eps = embedding, eps
        device = embedding.device
        self.finished = torch.empty(0, split_size, dtype=torch.int64, device=device)
        self.current = torch.empty(0, dtype=torch.int64, device=device)
        self.scores = torch.empty(0, dtype=torch.float64, device=device)
        self._unit = torch.empty(0, embedding.shape[1], device=device)  # of the finished splits, `[i S, D]`

    @torch.no_grad()
    def append(self, ids: torch.Tensor) -> None:
        """Add tokens int64 `[n]` at the end."""
        size = self.finished.shape[1]
        if len(self.current) + len(ids) > size:  # the current split is finished, and perhaps some after it
            everything = torch.cat([self.current, ids])
            splits = (len(everything) - 1) // size
            self._finish(everything[: splits * size].view(splits, size))
            ids, self.current = everything[splits * size :], everything[:0]
        self.scores = self.scores + self._best(ids).sum(0)
        self.current = torch.cat([self.current, ids])

    def _finish(self, splits: torch.Tensor) -> None:
        self.finished = torch.cat([self.finished, splits])
        self._unit = torch.cat([self._unit, unit_rows(self.embedding[splits.flatten()], self.eps)])
        self.scores = torch.zeros(len(self.finished), dtype=torch.float64, device=splits.device)

    def _best(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the best cosine of each token with each finished split, float64 `[n, i]`."""
        unit = unit_rows(self.embedding[ids], self.eps)
        return (unit @ self._unit.T).view(len(ids), *self.finished.shape).amax(-1).double()

    def scores_by_length(self) -> torch.Tensor:
        """Return the scores that the current split had after each of its tokens, float64 `[T, i]`."""
        return self._best(self.current).cumsum(0)


def choose(ranker: SplitRanker, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the k best splits for each row of scores.

    Args:
        ranker: gives k and the weights.
        scores: float `[n, i]`, i finished splits.

    Returns:
        int64 `[n, k]`, splits in reading order, -1 on the left where there are fewer; float32 weights `[n, k]`.
    """
    k = ranker.num_retrieved
    if k == 0:
        return torch.empty(len(scores), 0, dtype=torch.int64, device=scores.device), scores[:, :0].float()
    best, chosen = torch.sort(scores.float(), dim=1, descending=True, stable=True)
    chosen, order = torch.sort(chosen[:, :k], dim=1)
    missing = (k - chosen.shape[1], 0)
    rows = torch.nn.functional.pad(chosen, missing, value=-1)
    return rows, ranker.weights(rows, torch.nn.functional.pad(best[:, :k].gather(1, order), missing))


class AveyCache(Cache):
    """The states of a batch of texts, as `past_key_values` of transformers' `generate`."""

    is_compileable = False
    is_croppable = False

    def __init__(self, texts: list[TextState]) -> None:
        super().__init__(layers=[])
        self.texts = texts

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens of the longest text."""
        return max((text.finished.numel() + len(text.current) for text in self.texts), default=0)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let beam i go on from beam `beam_idx[i]`."""
        self.texts = [copy(self.texts[i]) for i in beam_idx.tolist()]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each text `repeats` times."""
        self.texts = [copy(text) for text in self.texts for _ in range(repeats)]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some texts."""
        self.texts = [self.texts[i] for i in indices.tolist()]
