"""The token vectors on disk, for late interaction: codes of a `TokenCodec`, in the shards beside the vectors.

A shard of an index with token vectors also holds `token_ids` int64 `[n]` (numbers of passages; of documents where the
index has no passages), `token_ranges` int64 `[n, 2]` (the rows of each) and `token` `[R, row_bytes]`, int8 or uint8.
Ids ascend as those of vectors do, and passages that overlap share rows. The arrays are memory-mapped: a search reads
the rows of its candidates and no others.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.encoder.token_codec import TokenCodec
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store.vectors import damaged, map_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from aveyb_retrieval.indexes.store.store import Shard
    from aveyb_retrieval.indexes.types import IntArray, Kind

TENSORS = ("token_ids", "token_ranges", "token")


def token_codec(settings: Mapping[str, Any]) -> TokenCodec | None:
    """Return how an index with these settings keeps the vectors of tokens; None where it does not."""
    storage, dim = settings.get("token_vectors"), settings.get("token_dim")
    return None if storage is None or dim is None else TokenCodec(dim, storage)


def token_owner(kinds: Iterable[Kind]) -> Kind:
    """Return the kind of numbers that tokens are kept under, in an index with these kinds of vectors."""
    return "passage" if "passage" in kinds else "document"


class TokenBlock(NamedTuple):
    """Codes of tokens: ids `[n]`, the rows `[start, end)` of each `[n, 2]`, and all rows `[R, row_bytes]`."""

    ids: IntArray
    ranges: IntArray
    codes: npt.NDArray[np.integer]

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return its tensors, by their names in a shard."""
        return dict(zip(TENSORS, self, strict=True))


def open_tokens(path: Path, codec: TokenCodec) -> TokenBlock:
    """Map the token vectors of a shard into memory.

    Raises:
        IndexFormatError: it has none, or they are not codes of this codec.
    """
    arrays = map_arrays(path)
    if missing := [name for name in TENSORS if name not in arrays]:
        raise damaged(path, f"no tensor {missing[0]!r}, and the index has token vectors")
    ids, ranges, codes = (arrays[name] for name in TENSORS)
    if codes.ndim != 2 or (codes.dtype, codes.shape[1]) != (codec.dtype, codec.row_bytes):
        what = f"{codec.row_bytes} bytes of {codec.dtype} for each token"
        raise damaged(path, f"tensor 'token' of shape {codes.shape} and {codes.dtype}, not {what}")
    if ids.dtype != np.int64 or ranges.dtype != np.int64 or ids.ndim != 1 or ranges.shape != (len(ids), 2):
        raise damaged(path, f"tensors 'token_ids' {ids.shape} and 'token_ranges' {ranges.shape}: not a range for each")
    if len(ids) and not (ranges.min() >= 0 and ranges.max() <= len(codes) and (ranges[:, 0] <= ranges[:, 1]).all()):
        raise damaged(path, f"'token_ranges' leads outside of its {len(codes)} rows")
    return TokenBlock(ids, ranges, codes)


class TokenTable:
    """All token vectors of a version, in shards ordered by id. Safe to read from many threads."""

    def __init__(self, blocks: Iterable[TokenBlock], codec: TokenCodec) -> None:
        self.codec = codec
        self._blocks = sorted((b for b in blocks if len(b.ids)), key=lambda b: int(b.ids[0]))

    @cached_property
    def ids(self) -> IntArray:
        """Numbers `[n]` of all passages or documents that have tokens here, ascending."""
        return np.concatenate([np.empty(0, np.int64), *(block.ids for block in self._blocks)])

    @cached_property
    def _firsts(self) -> IntArray:
        return np.cumsum([0, *(len(block.ids) for block in self._blocks)])

    @property
    def rows(self) -> int:
        """Number of stored tokens, those of removed documents included."""
        return sum(len(block.codes) for block in self._blocks)

    def gather(self, ids: IntArray, *, shared: bool = False) -> TokenBlock:
        """Read the tokens of `n` ids, in their order: the rows of one after those of another.

        Args:
            ids: Numbers of passages or documents.
            shared: Keep rows that passages share only once, as in a shard; the ids then ascend.

        Raises:
            IndexFormatError: an id has no tokens.
        """
        places = np.searchsorted(self.ids, ids)
        if len(ids) and (places.max() >= len(self.ids) or not np.array_equal(self.ids[places], ids)):
            raise IndexFormatError(
                "a passage of the index is not among the stored token vectors: the index is damaged; "
                "run `aveyb-index verify` on it"
            )
        shards = np.searchsorted(self._firsts, places, side="right") - 1
        runs: list[list[int]] = []  # [shard, start, end): rows that are read at once
        ranges = np.empty((len(ids), 2), dtype=np.int64)
        before = 0  # rows of the runs before the last one
        for row, (shard, place) in enumerate(zip(shards.tolist(), places.tolist(), strict=True)):
            start, end = self._blocks[shard].ranges[place - self._firsts[shard]].tolist()
            if not (shared and runs and runs[-1][0] == shard and runs[-1][1] <= start <= runs[-1][2]):
                before += runs[-1][2] - runs[-1][1] if runs else 0
                runs.append([shard, start, start])
            runs[-1][2] = max(runs[-1][2], end)
            ranges[row] = start - runs[-1][1] + before, end - runs[-1][1] + before
        read = [self._blocks[shard].codes[start:end] for shard, start, end in runs]
        return TokenBlock(ids, ranges, np.concatenate([self.codec.empty(0), *read]))


def open_token_table(folder: Path, shards: Iterable[Shard], codec: TokenCodec) -> TokenTable:
    """Map the shards of a version (or of a change) into one table of token vectors."""
    return TokenTable((open_tokens(folder / shard.name, codec) for shard in shards), codec)
