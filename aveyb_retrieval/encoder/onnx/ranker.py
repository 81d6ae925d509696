"""The ranker in NumPy: each split's k most relevant earlier splits and their weights, the same as in torch.

    score(i, j) = sum over distinct ids u of split i of count_i(u) * max over distinct ids v of split j of cos(E_u, E_v)

A document's distinct ids are compared with those of each split once. The scores of a block of columns exist at a time,
and each row keeps its k best so far, so memory grows with the length of a document, not with its square.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.folders import TABLE, TABLE_SCALE
from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.encoder.network.layout import SplitLayout
    from aveyb_retrieval.encoder.onnx.model import OnnxSettings

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I8": np.int8}
_LARGEST_HEADER = 1 << 26
BLOCK = 128  # columns whose scores exist at once


@dataclass(frozen=True)
class Choice:
    """What each split retrieves, in the order in which the compressor reads it.

    rows: int64 `[n, k]`, splits of the batch; -1 (always on the left) where there is none.
    weights: float32 `[n, k]`; 0 where `rows` is -1.
    """

    rows: np.ndarray
    weights: np.ndarray


def retrieve(layout: SplitLayout, ids: np.ndarray, table: EmbeddingTable, settings: OnnxSettings) -> Choice:
    """Rank every split of a batch against the earlier (or all other) splits of its own document.

    Args:
        layout: the batch, n splits.
        ids: int `[n, S]`; entries beyond a split's length are ignored.
        table: the embeddings that cosines are taken of.
        settings: of the model.
    """
    n, k = len(layout.lengths), settings.num_retrieved
    scores, rows = np.zeros((n, k), np.float32), np.full((n, k), -1, dtype=np.int64)
    for document in layout.documents():
        if k and document.stop - document.start > 1:
            splits = [row[:length] for row, length in zip(ids[document], layout.lengths[document], strict=True)]
            best, chosen = best_splits(splits, table, settings.similarity_eps, k, both_ways=settings.looks_ahead)
            missing = np.isneginf(best)
            # Put into slot order: missing ones first, then by the order that the model asks for.
            key = chosen if settings.retrieved_order == "sequence" else np.broadcast_to(np.arange(k), chosen.shape)
            order = np.argsort(np.where(missing, -1, key), axis=1, kind="stable")
            best, chosen, missing = (np.take_along_axis(part, order, 1) for part in (best, chosen, missing))
            rows[document] = np.where(missing, -1, chosen + document.start)
            scores[document] = np.where(missing, 0, best)
    return Choice(rows, split_weights(rows, scores, settings))


def best_splits(
    splits: list[np.ndarray], table: EmbeddingTable, eps: float, k: int, *, both_ways: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Score one document's splits, and keep each split's k best earlier (with `both_ways`: other) ones.

    Args:
        splits: the ids of each split.
        table: the embeddings.
        eps: added to each norm.
        k: how many.
        both_ways: whether later splits are candidates, too.

    Returns:
        float32 `[n, k]` scores, best first, equal ones by the lower split, -inf where there are fewer than k; int64
        `[n, k]` their splits.
    """
    n = len(splits)
    distinct, position = np.unique(np.concatenate(splits), return_inverse=True)
    last_seen = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(last_seen, position, np.repeat(np.arange(n), [len(split) for split in splits]))
    # Latest last occurrence first: ids that a later split can ask of split j are the first of them.
    order = np.argsort(-last_seen, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    ends = np.cumsum([len(split) for split in splits])
    held = [np.unique(part, return_counts=True) for part in np.split(place[position], ends[:-1])]
    unit = _unit_rows(table[distinct[order]], eps)
    asking = np.full(n, len(unit)) if both_ways else np.searchsorted(-last_seen[order], -np.arange(n))
    best = np.full((n, k), -np.inf, dtype=np.float32)
    chosen = np.zeros((n, k), dtype=np.int64)
    for first in range(0, n, BLOCK):
        stop = min(first + BLOCK, n)
        highest = np.zeros((len(unit), stop - first), dtype=np.float32)
        for j in range(first, stop):
            if asking[j]:
                highest[: asking[j], j - first] = (unit[: asking[j]] @ unit[held[j][0]].T).max(axis=1)
        after = 0 if both_ways else first + 1
        if after >= n:
            break
        found = np.stack([counts.astype(np.float32) @ highest[entries] for entries, counts in held[after:]])
        columns, own = np.arange(first, stop), np.arange(after, n)[:, None]
        found[columns == own if both_ways else columns >= own] = -np.inf
        # Stable, and what is kept comes first: equal scores stay with the lower split.
        scores = np.concatenate([best[after:], found], axis=1)
        numbers = np.concatenate([chosen[after:], np.broadcast_to(columns, found.shape)], axis=1)
        kept = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best[after:], chosen[after:] = (np.take_along_axis(part, kept, 1) for part in (scores, numbers))
    return best, chosen


def split_weights(rows: np.ndarray, scores: np.ndarray, settings: OnnxSettings) -> np.ndarray:
    """Return the weights float32 `[n, k]` of chosen splits.

    Args:
        rows: int64 `[n, k]`; -1 (on the left) where there is none.
        scores: float32 `[n, k]`, theirs.
        settings: of the model.
    """
    found = rows >= 0
    if not found.any():
        return np.zeros_like(scores)
    highest = np.where(found, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf).astype(np.float32)
    if settings.weight_norm == "max":
        divisor = highest
    else:
        lowest = np.where(found, scores, np.inf).min(axis=1, keepdims=True).astype(np.float32)
        divisor = lowest + np.float32(settings.similarity_eps)
    smallest = np.float32(np.finfo(np.float32).tiny)
    floor = np.maximum(np.abs(highest) / np.float32(settings.max_split_weight), smallest)
    divisor = np.where(found.any(axis=1, keepdims=True), np.maximum(divisor, floor), np.float32(1))
    weights: np.ndarray = np.where(found, scores / divisor, 0).astype(np.float32)
    return weights


def _unit_rows(rows: np.ndarray, eps: float) -> np.ndarray:
    """`x / (|x| + eps)`, the ranker's form of the cosine."""
    return rows / (np.linalg.norm(rows, axis=1, keepdims=True) + np.float32(eps))


class EmbeddingTable:
    """A checkpoint's token embeddings `[V, D]`, mapped into memory.

    Only rows that are asked for are read, those of a text's tokens, and processes share them.

    Attributes:
        rows: `[V, D]` as stored; bfloat16 as uint16.
        scale: float32 `[V, 1]`, of rows in int8; else None.
        place: bytes from the start of the file to the rows.
    """

    def __init__(self, path: Path) -> None:
        """Map the embedding of a safetensors file.

        Raises:
            ModelError: the file is damaged or cut short, or holds no embedding, or one of another type.
        """
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size)) if size <= _LARGEST_HEADER else {}
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = 8 + size + max(int(entry["data_offsets"][1]) for entry in tensors.values())
            (name,) = (name for name in tensors if f".{name}".endswith(f".{TABLE}"))
            entry, scale = tensors[name], tensors.get(name.removesuffix(TABLE) + TABLE_SCALE)
            dtype, self.place = _DTYPES.get(entry["dtype"]), 8 + size + int(entry["data_offsets"][0])
            rows, dim = map(int, entry["shape"])
            scaled = scale is not None and (scale["dtype"], scale["shape"]) == ("F32", [rows, 1])
            scale_place = 8 + size + int(scale["data_offsets"][0]) if scale is not None else 0
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{path}: damaged, cut short or without an embedding ({type(error).__name__}); copy it again"
            ) from error
        if dtype is None or (dtype is np.int8) != scaled:
            raise ModelError(
                f"{path}: its embedding is not in float32, float16, bfloat16 or int8 with scales; copy it again"
            )
        if min(rows, dim) < 1:
            raise ModelError(f"{path}: an embedding of {rows} x {dim}; copy it again")
        spans = [(self.place, rows * dim * np.dtype(dtype).itemsize), (scale_place, rows * 4 if scaled else 0)]
        if any(not 0 <= begin <= end - size for begin, size in spans) or end > path.stat().st_size:
            raise ModelError(f"{path}: cut short; copy or download it again")
        self.rows = np.memmap(path, dtype=dtype, mode="r", offset=self.place, shape=(rows, dim))
        self.scale = np.fromfile(path, np.float32, rows, offset=scale_place)[:, None] if scaled else None

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """Return float32 `[n, D]`, the embeddings of ids `[n]`."""
        rows: np.ndarray = self.rows[ids]
        if rows.dtype == np.uint16:  # bfloat16: the upper half of a float32
            return (rows.astype(np.uint32) << 16).view(np.float32)
        found = rows.astype(np.float32)
        return found if self.scale is None else found * self.scale[ids]
