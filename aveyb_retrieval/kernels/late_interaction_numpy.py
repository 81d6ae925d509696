"""Late interaction on a CPU by NumPy: what `late_interaction.py` says, for rows in memory, without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK_ROWS = 4096  # document rows multiplied at once: they, and their products, stay in the processor's cache


def late_interaction_numpy(
    query: npt.NDArray[np.float32], rows: npt.NDArray[Any], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Score every document against one query, in blocks of whole documents; products are summed in float32.

    Document i owns the rows `begins[i]` to `ends[i]` (int64 `[n]`, ascending) of `rows` `[R, D]`, whatever their type.
    Returns float32 `[n]`; 0 for a document, or a query `[q, D]`, without tokens.
    """
    scores = np.zeros(len(begins), dtype=np.float32)
    (present,) = np.nonzero(ends > begins)
    begins, ends, first = begins[present], ends[present], 0
    while len(query) and first < len(present):
        after = max(first + 1, int(np.searchsorted(ends, begins[first] + _BLOCK_ROWS, side="right")))
        origin = begins[first]
        products = query @ rows[origin : ends[after - 1]].astype(np.float32, copy=False).T  # [q, rows]
        # The maximum from each begin to its end, and from each end to the next begin, which is left out again.
        bounds = np.stack([begins[first:after], ends[first:after]], 1).ravel()[:-1] - origin
        scores[present[first:after]] = np.maximum.reduceat(products, bounds, axis=1)[:, ::2].sum(0)
        first = after
    return scores
