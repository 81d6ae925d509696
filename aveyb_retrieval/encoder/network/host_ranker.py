"""The ranker on a host, in NumPy: which earlier splits each split retrieves, and their weights.

A torch model on a CPU and an ONNX form choose by it. `ranker.py` does the same on devices, and has
the weights' gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.kernels.host_maxsim import best_splits

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.network.layout import SplitLayout
    from aveyb_retrieval.encoder.settings import EncoderSettings
    from aveyb_retrieval.kernels.host_maxsim import RowsOf


@dataclass(frozen=True)
class Choice:
    """What each split retrieves, in the order in which the compressor reads it.

    Attributes:
        rows: int64 `[n, k]`, splits of the batch; -1 (always on the left) where there is none.
        scores: float32 `[n, k]`, theirs; 0 where `rows` is -1.
    """

    rows: np.ndarray
    scores: np.ndarray


def choose(
    layout: SplitLayout, ids: np.ndarray, rows_of: RowsOf, settings: EncoderSettings
) -> Choice:
    """Choose for every split of a batch the k best earlier splits of its own document (section
    3.1).

    Args:
        layout: where the documents' splits are.
        ids: int `[n, S]`, token ids; entries beyond a split's length are ignored.
        rows_of: returns float32 `[U, D]`, the embeddings of ids `[U]`.
        settings: the model's.
    """
    n, k = len(layout.lengths), settings.num_retrieved
    scores, rows = np.zeros((n, k), np.float32), np.full((n, k), -1, dtype=np.int64)
    for document in layout.documents():
        if k == 0 or document.stop - document.start == 1:
            continue
        lengths = layout.lengths[document]
        splits = [row[:length] for row, length in zip(ids[document], lengths, strict=True)]
        best, chosen = best_splits(splits, rows_of, settings.similarity_eps, k)
        missing = np.isneginf(best)
        # Missing ones first, then by the order that the model asks for.
        key = chosen
        if settings.retrieved_order == "score":
            key = np.broadcast_to(np.arange(k), chosen.shape)
        order = np.argsort(np.where(missing, -1, key), axis=1, kind="stable")
        best, chosen, missing = (
            np.take_along_axis(part, order, 1) for part in (best, chosen, missing)
        )
        rows[document] = np.where(missing, -1, chosen + document.start)
        scores[document] = np.where(missing, 0, best)
    return Choice(rows, scores)


def split_weights(choice: Choice, settings: EncoderSettings) -> np.ndarray:
    """Return the weights float32 `[n, k]` of chosen splits: score over highest or lowest score.

    `Ranker.weights` says what becomes of small divisors.
    """
    rows, scores = choice.rows, choice.scores
    chosen = rows >= 0
    if not chosen.any():
        return np.zeros_like(scores)
    if settings.weight_norm == "max":
        divisor = np.where(chosen, scores, -np.inf).max(axis=1, keepdims=True).astype(np.float32)
    else:
        lowest = np.where(chosen, scores, np.inf).min(axis=1, keepdims=True).astype(np.float32)
        divisor = lowest + np.float32(settings.similarity_eps)
    divisor = np.where(chosen.any(axis=1, keepdims=True), divisor, np.float32(1))
    largest = np.abs(np.where(chosen, scores, 0)).max(axis=1, keepdims=True)
    floor = (largest / np.float32(settings.max_split_weight)).astype(np.float32)
    floor = np.maximum(floor, np.finfo(np.float32).tiny)
    small = np.abs(divisor) < floor
    ratio = scores / np.where(small, np.float32(1), divisor)
    return np.where(chosen, np.where(small, scores * (divisor / floor) / floor, ratio), 0)
