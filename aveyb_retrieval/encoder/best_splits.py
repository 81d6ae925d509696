"""The k best earlier splits of every split of one long document, in memory linear in its length.

All scores at once are a square: 6 GB for a document of ten million tokens. Here they are made for a block of columns at
a time, and each row keeps its k best of the blocks so far.
"""

from __future__ import annotations

import torch

from aveyb_retrieval.kernels.maxsim import unit_rows
from aveyb_retrieval.kernels.vocabulary import vocabulary_of

BLOCK = 128  # columns whose scores exist at once


def best_of_long(
    ids: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, eps: float, k: int, block: int = BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score a document's splits as `maxsim_by_token` does, and keep each split's k best earlier ones.

    Args:
        ids: int64 `[n, S]`, token ids of one document's splits; entries beyond `lengths` are ignored.
        lengths: int `[n]`, valid tokens of each split; all but the last are S.
        table: `[V, D]` token embeddings.
        eps: added to each norm.
        k: how many.
        block: how many columns to score at once.

    Returns:
        float32 `[n, k]` scores, best first, equal ones by the lower split, -inf where there are fewer than k earlier
        splits; int64 `[n, k]` their splits, counted in the document.
    """
    n, device = len(ids), ids.device
    vocabulary = vocabulary_of(ids, lengths)
    unit = unit_rows(table[vocabulary.ids], eps)
    starts = vocabulary.starts.tolist()
    # Ids with a last occurrence after split j, for every j: those that a later split can ask of it. Fewer and fewer.
    asking = torch.searchsorted(-vocabulary.last_seen, -torch.arange(n, device=device)).tolist()
    rows = torch.repeat_interleave(torch.arange(n, device=device), vocabulary.starts.diff())
    scores = torch.full((n, k), float("-inf"), device=device)
    chosen = torch.zeros((n, k), dtype=torch.int64, device=device)
    for first in range(0, n - 1, block):
        stop = min(first + block, n - 1)
        best = unit.new_zeros(asking[first], stop - first)
        for j in range(first, stop):
            held = unit[vocabulary.entries[starts[j] : starts[j + 1]]]
            best[: asking[j], j - first] = torch.matmul(unit[: asking[j]], held.T).amax(1)
        later = slice(starts[first + 1], None)  # entries of the splits after the block's first
        place = torch.stack([rows[later] - (first + 1), vocabulary.entries[later]])
        shape = (n - first - 1, len(best))
        counts = torch.sparse_coo_tensor(place, vocabulary.counts[later], shape, check_invariants=False)
        columns = torch.arange(first, stop, device=device)
        found = torch.sparse.mm(counts, best)
        found.masked_fill_(columns >= torch.arange(first + 1, n, device=device)[:, None], float("-inf"))
        # Stable, and what is kept comes first: equal scores stay with the lower split.
        merged, order = torch.sort(torch.cat([scores[first + 1 :], found], 1), dim=1, descending=True, stable=True)
        numbers = torch.cat([chosen[first + 1 :], columns.expand_as(found)], 1)
        scores[first + 1 :], chosen[first + 1 :] = merged[:, :k], numbers.gather(1, order[:, :k])
    return scores, chosen
