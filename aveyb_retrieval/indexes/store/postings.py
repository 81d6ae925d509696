"""Which rows hold a word, how often and among how many words: the lists of Lance's index of words,
and BM25 from them.

Lance numbers the rows of each part of its index and keeps for each word the numbers of those that
hold it, ascending, and how often each does: 128 rows a block, each number as its distance from the
one before.

    block   f32 of its best score | u32 its first row | u8 width, 128 distances | u8 width, 128
    counts rest    f32 of its best score | distances (of the first: its number), then counts, as
    varints

128 numbers of a width in bits are four lanes, whose words of 32 bits take turns: number `i` is in
lane `i % 4`, and a lane's numbers follow each other from the lowest bit on. Rows that were deleted
since it was written are still there.

With N rows that have any words, of which n hold the word, f times each, and lengths in words:

    idf = ln(1 + (N - n + 0.5) / (n + 0.5)) score = sum over words of idf * f * (k1 + 1) / (f + k1 *
    (1 - b + b * length / mean length)),    k1 = 1.2, b = 0.75
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from aveyb_retrieval.indexes.store.words import K1, B

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa
    from lance.file import LanceFileReader

    from aveyb_retrieval.indexes.store.vocabulary import WordSet
    from aveyb_retrieval.indexes.types import BoolArray, IntArray

Keep: TypeAlias = (
    "Callable[[IntArray], BoolArray]"  # which rows of numbers `[n]`, or `[n, m]`, are looked at
)
POSTING = np.dtype([("number", "<i8"), ("count", "<i4"), ("length", "<i4")])
BLOCK = 128
_LAYOUT = {b"posting_block_size": b"128", b"posting_tail_codec": b"varint_delta_v1"}


@dataclass(frozen=True, eq=False)
class PartLists:
    """The lists of one part of an index of words: of each row `[n]` our number, and how many words
    it has.
    """

    words: WordSet
    numbers: IntArray
    lengths: npt.NDArray[np.int32]
    lists: LanceFileReader  # which serves one thread at a time
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def read(cls, words: WordSet, part: str, numbers: Callable[[IntArray], IntArray]) -> PartLists:
        """Read the files `PART_docs.lance` and `PART_invert.lance`; `numbers` gives those of rows
        at addresses `[n]`.

        Raises what Lance raises, and ValueError where lists are laid out otherwise.
        """
        from lance.file import LanceFileReader

        rows = LanceFileReader(f"{part}_docs.lance").read_all().to_table()
        lists = LanceFileReader(f"{part}_invert.lance", columns=["_posting"])
        about = lists.metadata().schema.metadata or {}
        if any(about.get(key) != value for key, value in _LAYOUT.items()):
            raise ValueError(f"{part}_invert.lance: lists of another layout")
        return cls(
            words,
            numbers(rows["_rowid"].to_numpy()),
            rows["_num_tokens"].to_numpy().astype(np.int32),
            lists,
        )

    def count(self, word: str) -> int:
        return self.words.count(word)

    def of(self, words: Sequence[str], keep: Keep) -> list[np.ndarray]:
        """What `together` gives, of this part."""
        known = {word: number for word in words if (number := self.words.number(word)) is not None}
        asked, nothing = sorted(set(known.values())), np.empty(0, POSTING)
        if not asked:
            return [nothing] * len(words)
        sizes = self.words.rows[asked]
        with self._lock:
            blocks = self.lists.take_rows(asked).to_table()["_posting"].combine_chunks()
        rows, counts, lists = decoded(blocks, sizes, lambda rows: keep(self.numbers[rows]))
        held = np.empty(len(rows), POSTING)
        held["number"], held["count"], held["length"] = (
            self.numbers[rows],
            counts,
            self.lengths[rows],
        )
        ends = np.cumsum(np.bincount(lists, minlength=len(asked)))
        by_number = dict(
            zip(asked, np.split(held[np.argsort(lists, kind="stable")], ends[:-1]), strict=True)
        )
        return [by_number[known[word]] if word in known else nothing for word in words]


@dataclass(frozen=True)
class FreshLists:
    """The same of rows that are in no part yet: how often each has its words, by our numbers."""

    rows: Mapping[int, Counter[str]]

    @property
    def numbers(self) -> IntArray:
        return np.array([number for number, words in self.rows.items() if words], np.int64)

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        return np.array([words.total() for words in self.rows.values() if words], np.int32)

    def count(self, word: str) -> int:
        return sum(word in has for has in self.rows.values())

    def of(self, words: Sequence[str], keep: Keep) -> list[np.ndarray]:
        rows = self.rows.items()
        found = [
            np.array([(n, has[word], has.total()) for n, has in rows if word in has], POSTING)
            for word in words
        ]
        return [held[keep(held["number"])] for held in found]


WordLists: TypeAlias = (
    "Sequence[PartLists | FreshLists]"  # of all rows, those in no part last; some may be deleted
)


def counted(lists: WordLists, keep: Keep) -> tuple[int, int]:
    """How many rows with words there are of those that `keep` says true of, and how many words
    these have.
    """
    lengths = [part.lengths[keep(part.numbers)] for part in lists]
    return sum(map(len, lengths)), sum(int(each.sum()) for each in lengths)


def scored(
    lists: WordLists, words: Sequence[str], keep: Keep
) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Numbers and scores `[n]` as Lance gives them, of those rows that `keep` says true of, by
    their numbers.
    """
    rows, total, holding, found = 0, 0, np.zeros(len(words), np.int64), []
    for parts in (
        lists[:-1],
        lists[-1:],
    ):  # rows of parts are scored by what these count, others by all
        rows += sum(len(part.numbers) for part in parts)
        total += sum(int(part.lengths.sum()) for part in parts)
        holding += [sum(part.count(word) for part in parts) for word in words]
        found.append(bm25(together(parts, words, keep), rows, total / max(rows, 1), holding))
    numbers, scores = map(np.concatenate, zip(*found, strict=True))
    return numbers, scores


def together(parts: WordLists, words: Sequence[str], keep: Keep) -> list[np.ndarray]:
    """The rows, of those that `keep` says true of, that hold each of some words: `POSTING` `[n]`,
    in any order.
    """
    nothing = [np.empty(0, POSTING)] * len(words)
    return list(
        map(np.concatenate, zip(nothing, *(part.of(words, keep) for part in parts), strict=True))
    )


def decoded(lists: pa.Array, sizes: IntArray, keep: Keep) -> tuple[IntArray, IntArray, IntArray]:
    """Rows, how often each holds the word, and which of the lists of so many rows `[t]` it is of:
    `[n]` each.

    Only of the rows that `keep` says true of.
    """
    blocks, left, blocks_of = lists.flatten(), sizes % BLOCK, -(-sizes // BLOCK)
    edges = np.frombuffer(blocks.buffers()[1], np.int64)[
        blocks.offset : blocks.offset + len(blocks) + 1
    ]
    data, of_list = blocks.buffers()[2], np.repeat(np.arange(len(sizes)), blocks_of)
    if len(of_list) != len(blocks):
        raise ValueError(f"{len(blocks)} blocks of lists of {sizes.sum()} rows")
    eight, four = (
        np.frombuffer(data, np.uint8),
        np.ndarray(data.size - 3, "<u4", data, strides=(1,)),
    )
    rests = np.cumsum(blocks_of)[left > 0] - 1
    whole = np.delete(np.arange(len(blocks)), rests)
    start = edges[whole] + 4
    counts = start + 6 + 16 * eight[start + 4].astype(np.int64)
    rows = four[start][:, None] + np.cumsum(_unpacked(four, start + 5, eight[start + 4]), axis=1)
    more, more_often = _rests(eight, edges[rests] + 4, edges[rests + 1], left[left > 0])
    kept, more_kept = keep(rows), keep(more)
    some = np.flatnonzero(kept.any(axis=1))
    often = _unpacked(four, counts[some], eight[counts[some] - 1])
    return (
        np.concatenate([rows[kept], more[more_kept]]),
        np.concatenate([often[kept[some]], more_often[more_kept]]),
        np.concatenate(
            [
                np.repeat(of_list[whole], kept.sum(axis=1)),
                np.repeat(of_list[rests], left[left > 0])[more_kept],
            ]
        ),
    )


def _unpacked(four: np.ndarray, places: IntArray, widths: npt.NDArray[np.uint8]) -> IntArray:
    """The numbers `[m, 128]` of so many bits `[m]` that begin at places `[m]`, by the four bytes
    from each place on.
    """
    out, nth = np.zeros((len(places), BLOCK), np.int64), np.arange(BLOCK // 4)
    for width in np.unique(widths[widths > 0]).tolist():
        mine, word, bit = (
            np.flatnonzero(widths == width),
            nth * width >> 5,
            (nth * width & 31).astype(np.uint32),
        )
        words = four[places[mine][:, None] + np.arange(0, 16 * width, 4)].reshape(-1, width, 4)
        numbers = words[:, word] >> bit[:, None]
        over = np.flatnonzero(bit + width > 32)  # they go over into the next word of their lane
        numbers[:, over] |= words[:, word[over] + 1] << (32 - bit[over])[:, None]
        out[mine] = (numbers & np.uint32((1 << width) - 1)).reshape(-1, BLOCK)
    return out


def _rests(
    data: npt.NDArray[np.uint8], starts: IntArray, stops: IntArray, sizes: IntArray
) -> tuple[IntArray, IntArray]:
    """Rows and counts `[n]` of the last blocks of lists, of so many rows `[m]`, in bytes `[start,
    stop)`.
    """
    lengths = stops - starts
    places = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    parts = data[places].astype(np.int64)
    begins = np.flatnonzero(
        np.concatenate([[True], parts < 128])[:-1]
    )  # behind the last seven bits of a number
    nth = np.arange(len(parts)) - np.repeat(begins, np.diff(begins, append=len(parts)))
    numbers = np.add.reduceat((parts & 127) << 7 * nth, begins) if len(begins) else parts
    is_count = np.repeat(np.tile([False, True], len(sizes)), np.repeat(sizes, 2))
    distances, first = numbers[~is_count], np.cumsum(sizes) - sizes
    summed = np.cumsum(distances)
    return summed - np.repeat(summed[first] - distances[first], sizes), numbers[is_count]


def bm25(
    lists: Sequence[np.ndarray], rows: int, mean_length: float, holding: IntArray | None = None
) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Numbers, ascending, and scores `[n]` of the rows that hold any of some words `[t]`, by their
    `lists`.

    `holding`: how many rows hold each word, where the lists do not have all of them.
    """
    if not lists:
        return np.empty(0, np.int64), np.empty(0)
    if holding is None:
        holding = np.array([np.sign(held["count"]).sum() for held in lists])
    idf = np.repeat(np.log1p((rows - holding + 0.5) / (holding + 0.5)), list(map(len, lists)))
    held = np.concatenate(lists)
    sign, count = np.sign(held["count"]), np.abs(held["count"])
    penalty = K1 * (1 - B + B * held["length"] / max(mean_length, 1e-9))
    worth = idf * sign * count * (K1 + 1) / (count + penalty)
    order = np.argsort(held["number"], kind="stable")  # each list mostly ascends already
    numbers = held["number"][order]
    first = np.flatnonzero(np.diff(numbers, prepend=-2))
    if not len(first):
        return numbers, np.empty(0)
    scores, there = np.add.reduceat(worth[order], first), np.add.reduceat(sign[order], first) > 0
    return numbers[first][there], scores[there]
