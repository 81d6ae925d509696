"""A checkpoint's token embeddings, read row by row from the file: the ranker needs those of a text's tokens only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

_NAME = "embed.weight"
_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_LARGEST_HEADER = 1 << 26


class EmbeddingTable:
    """`[V, D]`, mapped into memory: only rows that are asked for are read, and processes share them."""

    def __init__(self, path: Path, rows: int, dim: int) -> None:
        """Map the embedding of a safetensors file.

        Args:
            path: the file.
            rows: V, and dim: D, as the file must say.

        Raises:
            ModelError: the file is damaged or cut short, or holds an embedding of another shape or type.
        """
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size)) if size <= _LARGEST_HEADER else {}
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = 8 + size + max(int(entry["data_offsets"][1]) for entry in tensors.values())
            (entry,) = (entry for name, entry in tensors.items() if f".{name}".endswith(f".{_NAME}"))
            dtype, begin = _DTYPES.get(entry["dtype"]), 8 + size + int(entry["data_offsets"][0])
            shape = entry["shape"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{path}: damaged, cut short or without an embedding ({type(error).__name__}); copy it again"
            ) from error
        if dtype is None or shape != [rows, dim]:
            raise ModelError(
                f"{path}: no embedding of {rows} x {dim} in float32, float16 or bfloat16: weights and ONNX file belong "
                "to different models; export it again"
            )
        if not 0 <= begin <= end - rows * dim * np.dtype(dtype).itemsize or end > path.stat().st_size:
            raise ModelError(f"{path}: cut short; copy or download it again")
        self._rows = np.memmap(path, dtype=dtype, mode="r", offset=begin, shape=(rows, dim))

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """Return float32 `[n, D]`, the embeddings of ids `[n]`."""
        rows: np.ndarray = self._rows[ids]
        if rows.dtype == np.uint16:  # bfloat16: the upper half of a float32
            return (rows.astype(np.uint32) << 16).view(np.float32)
        return rows.astype(np.float32)
