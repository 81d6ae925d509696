"""Ranker and compressor: find each split's k most relevant earlier splits and fold them into it.

The ranker reads only token embeddings, so it runs once per document, before the neural processor.
Scores, choice and weights are float32, whatever the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from aveyb_retrieval.encoder.network.host_ranker import choose
from aveyb_retrieval.kernels.dispatch import to_device, use_triton
from aveyb_retrieval.kernels.maxsim import (
    best_of_long,
    maxsim_selected,
    rows_on_host,
    scores_of_short,
    split_scores,
    unit_rows,
)
from aveyb_retrieval.kernels.positionwise import across, zero_padding

if TYPE_CHECKING:
    from typing import Self

    from aveyb_retrieval.encoder.network.splits import SplitGroup, SplitTable
    from aveyb_retrieval.encoder.settings import EncoderSettings

# a document of more is ranked block by block: all its scores at once would take over 16 MiB
LONG_SPLITS = 2048


@dataclass(frozen=True)
class Retrieved:
    """The earlier splits that each split of a table retrieves, in the order in which the compressor
    reads them.

    Attributes:
        rows: int64 `[n, k]`, rows of the table; -1 (always on the left) where a split has fewer
            than k predecessors.
        weights: float32 `[n, k]`; 0 where `rows` is -1.
    """

    rows: torch.Tensor
    weights: torch.Tensor


class Ranker(nn.Module):
    """Choose splits by MaxSim (section 3.1) and compress `(k + 1) S` tokens back to S with one
    learned matrix (equation 8).
    """

    def __init__(self, settings: EncoderSettings) -> None:
        """Make the projection P `[S, (k + 1) S]`, uninitialized; none where nothing is
        retrieved.
        """
        super().__init__()
        self.settings = settings
        self.split_size, self.num_retrieved = settings.split_size, settings.num_retrieved
        sizes = self.split_size, (self.num_retrieved + 1) * self.split_size
        self.down_proj = nn.Parameter(torch.empty(sizes)) if self.num_retrieved else None
        self._takes_nothing: bool | None = None  # as last read; None: not read yet
        self.register_load_state_dict_post_hook(_forget)

    def train(self, mode: bool = True) -> Self:
        """Set the mode as for any module; the compressor is looked at again."""
        super().train(mode)
        self._takes_nothing = None
        if not mode:
            self.takes_nothing()
        return self

    def takes_nothing(self) -> bool:
        """Return whether the compressor takes nothing from retrieved splits, in evaluation mode.

        Its columns for them, the first `k S`, are all zero then, or k is 0. A CPU reads them each
        time, in 50 microseconds. Another device would have to be waited for: there they are read
        once, and again after `eval()` and `load_state_dict`.
        """
        if self.down_proj is None:
            return True
        if self.training or self.down_proj.is_meta:
            return False
        if self._takes_nothing is None or self.down_proj.device.type == "cpu":
            retrieved = self.down_proj[:, : self.num_retrieved * self.split_size]
            self._takes_nothing = not bool(retrieved.any())
        return self._takes_nothing

    def retrieve(self, table: SplitTable, embedding: torch.Tensor) -> Retrieved:
        """Rank every split of the batch against the earlier splits of its own document, by
        embeddings `[V, D]`.

        Gradients flow to `embedding` through the weights, which are functions of the scores; the
        choice has none.
        """
        n, k = len(table.lengths), self.num_retrieved
        if k == 0 or not table.layout.earlier.any():
            # Only one-split documents, such as queries: there is nothing to choose from.
            empty = torch.zeros(n, k, device=table.ids.device)
            return Retrieved(torch.full_like(empty, -1, dtype=torch.int64), empty)
        with torch.no_grad():
            if use_triton("auto", embedding, operation="split_scores"):
                rows, scores = self._ordered(*self._best(table, embedding), table.first)
            else:
                rows, scores = self._chosen_on_host(table, embedding)
        if torch.is_grad_enabled() and embedding.requires_grad:
            scores = self._differentiable_scores(table, rows, embedding)
        return Retrieved(rows, self.weights(rows, scores))

    def _chosen_on_host(
        self, table: SplitTable, embedding: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows int64 `[n, k]` and scores float32 `[n, k]` that the host chooses."""
        ids, rows_of = table.ids.cpu().numpy(), rows_on_host(embedding)
        choice = choose(table.layout, ids, rows_of, self.settings)
        rows, scores = torch.from_numpy(choice.rows), torch.from_numpy(choice.scores)
        return rows.to(table.ids.device), scores.to(table.ids.device)

    def retrieve_short(
        self,
        ids: torch.Tensor,
        lengths: torch.Tensor,
        first: torch.Tensor,
        embedding: torch.Tensor,
        width: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `retrieve` of documents of at most `width` splits on a GPU: nothing depends on
        values of the host.

        Ids int64 `[n, S]`, lengths and first int64 `[n]` are those of a `SplitTable`.
        """
        eps = self.settings.similarity_eps
        scores = scores_of_short(ids, lengths, first, embedding, eps, width)
        rows, scores = self._ordered(*_sorted(scores, self.num_retrieved), first)
        return rows, self.weights(rows, scores)

    def _ordered(
        self, best: torch.Tensor, chosen: torch.Tensor, first: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put what `_best` has chosen into slots: rows of the table, int64 `[n, k]`, -1 on the
        left, and scores.
        """
        k = best.shape[1]
        missing = torch.isneginf(best)
        # Put into slot order: missing ones first, then by the order the configuration asks for.
        key = chosen
        if self.settings.retrieved_order == "score":
            key = torch.arange(k, device=chosen.device).expand_as(chosen)
        order = torch.argsort(key.masked_fill(missing, -1), dim=1, stable=True)
        best, chosen, missing = (t.gather(1, order) for t in (best, chosen, missing))
        rows = (chosen + first[:, None]).masked_fill(missing, -1)
        left = (self.settings.num_retrieved - k, 0)
        return nn.functional.pad(rows, left, value=-1), nn.functional.pad(
            best.masked_fill(missing, 0), left
        )

    def _best(
        self, table: SplitTable, embedding: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 `[n, k]` best scores, best first, and int64 `[n, k]` splits, counted in the same
        document.
        """
        starts = table.layout.starts
        if max(np.diff(starts)) <= LONG_SPLITS:
            return self._best_of_few(table.ids, table.lengths, starts, embedding)
        found = [self._best_of(table, document, embedding) for document in table.layout.documents()]
        return torch.cat([scores for scores, _ in found]), torch.cat(
            [chosen for _, chosen in found]
        )

    def _best_of(
        self, table: SplitTable, document: slice, embedding: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k, eps = self.settings.num_retrieved, self.settings.similarity_eps
        ids, lengths = table.ids[document], table.lengths[document]
        if len(ids) > LONG_SPLITS:
            return best_of_long(ids, lengths, embedding, eps, k)
        best, chosen = self._best_of_few(ids, lengths, [0, len(ids)], embedding)
        missing = (0, k - best.shape[1])
        return nn.functional.pad(best, missing, value=float("-inf")), nn.functional.pad(
            chosen, missing
        )

    def _best_of_few(
        self, ids: torch.Tensor, lengths: torch.Tensor, starts: list[int], embedding: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = split_scores(ids, lengths, starts, embedding, self.settings.similarity_eps)
        return _sorted(scores, self.settings.num_retrieved)  # column j: split j of the document

    def _differentiable_scores(
        self, table: SplitTable, rows: torch.Tensor, embedding: torch.Tensor
    ) -> torch.Tensor:
        scores = torch.zeros(rows.shape, device=rows.device)
        # The last `min(k, number of candidates)` columns of a row are taken: known without looking.
        free = self.num_retrieved - table.layout.earlier[:, None]
        taken = np.nonzero(np.arange(self.num_retrieved) >= free)
        current, slot = to_device(taken, rows.device)
        unit = unit_rows(embedding[table.ids], self.settings.similarity_eps)
        with torch.autocast(unit.device.type, enabled=False):
            found = maxsim_selected(unit, table.lengths, current, rows[current, slot])
        return scores.index_put((current, slot), found)

    def weights(self, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the weights float32 `[n, k]` of chosen splits (section 3.1): score over highest or
        lowest score.

        A divisor d that is small beside the scores, |d| < f = max |score| / `max_split_weight`, is
        replaced by f^2 / d. So no weight is larger than `max_split_weight`, and as d passes through
        0 and changes its sign, so do the weights.

        Args:
            rows: int64 `[n, k]`, -1 on the left where none is chosen.
            scores: float32 `[n, k]`, theirs.
        """
        chosen = rows >= 0
        if self.settings.weight_norm == "max":
            divisor = scores.masked_fill(~chosen, float("-inf")).amax(1, keepdim=True)
        else:
            lowest = scores.masked_fill(~chosen, float("inf")).amin(1, keepdim=True)
            divisor = lowest + self.settings.similarity_eps
        divisor = divisor.masked_fill(~chosen.any(1, keepdim=True), 1)
        largest = scores.detach().masked_fill(~chosen, 0).abs().amax(1, keepdim=True)
        floor = largest / self.settings.max_split_weight
        floor = floor.clamp_min(torch.finfo(largest.dtype).tiny)
        small = divisor.abs() < floor
        ratio = scores / divisor.masked_fill(small, 1)
        return torch.where(small, scores * (divisor / floor) / floor, ratio).masked_fill(~chosen, 0)

    def inputs(
        self, table: SplitTable, retrieved: Retrieved | None, group: SplitGroup
    ) -> tuple[torch.Tensor | None, ...]:
        """Return what `compress` takes of a group of splits of a table, up to the embedding table.

        `retrieved` None: no split retrieves any.
        """
        rows = group.rows
        ragged = group.tokens is not None or (
            group.places is not None and group.width < self.split_size
        )
        own = table.ids[rows, : group.width], table.lengths[rows] if ragged else None
        if group.alone or retrieved is None:
            return *own, None, None
        return *own, table.ids[retrieved.rows[rows].clamp_min(0)], retrieved.weights[rows]

    def compress(
        self,
        ids: torch.Tensor,
        lengths: torch.Tensor | None,
        retrieved: torch.Tensor | None,
        weights: torch.Tensor | None,
        embedding: torch.Tensor,
    ) -> torch.Tensor:
        """Return the neural processor's input for one group of splits, `P [w1 X_r1, ..., wk X_rk,
        X] + X` (equation 8, with the published version's residual).

        Of the current split's block of P only the first T rows and columns are used.

        Args:
            ids: int64 `[m, T]`, token ids.
            lengths: int64 `[m]`, tokens of each split; None: all T exist.
            retrieved: int64 `[m, k, S]`, ids of the retrieved splits; None: no split has any.
            weights: float32 `[m, k]`, theirs; 0 where there is none.
            embedding: `[V, D]`, the token embedding table.

        Returns:
            `[m, T, D]` in the dtype of `embedding`; rows beyond a split's length are not
            meaningful.
        """
        current = zero_padding(embedding[ids], lengths)
        own = self.compress_alone(current)
        if retrieved is None or weights is None or self.down_proj is None:
            return own
        _, k, size = retrieved.shape
        earlier = embedding[retrieved]
        weights = weights.to(earlier.dtype)
        # The weights scale columns of P, of which there are fewer than rows of embeddings are wide.
        columns = (
            self.down_proj[: ids.shape[1], : k * size].unflatten(1, (k, size))
            * weights[:, None, :, None]
        )
        return own + torch.bmm(columns.flatten(2), earlier.flatten(1, 2)).to(own.dtype)

    def compress_alone(self, current: torch.Tensor) -> torch.Tensor:
        """Return `compress` for splits that retrieve nothing: `P X + X`, with the current split's
        block of P.

        X: `[m, T, D]`, token embeddings, zero where there is no token; returned where the model
        never retrieves.
        """
        if self.down_proj is None:
            return current
        width, start = current.shape[1], self.num_retrieved * self.split_size
        block = self.down_proj[:width, start : start + width]
        return across(block, current) + current


def _forget(ranker: Ranker, _: object) -> None:
    ranker._takes_nothing = None


def _sorted(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of each row, best first, and their columns.

    A stable sort, not top-k: ties go to the lower index.
    """
    best, chosen = torch.sort(scores, dim=1, descending=True, stable=True)
    return best[:, :k], chosen[:, :k]
