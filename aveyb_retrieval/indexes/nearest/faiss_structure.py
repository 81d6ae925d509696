"""The structure of a FAISS file, checked before FAISS reads a byte of it: it trusts the lengths that a file states.

A file is walked as FAISS would read it. Sizes must fit each other and the file, which must end where the structure
ends; what is skipped (vectors, codes, ids) is not looked at, so the cost does not grow with the index. The walk covers
the types that `index="auto"` chooses and common others: flat, scalar and product quantizers, HNSW, inverted lists,
RaBitQ in inverted lists for fast scans, linear transforms. The format is that of FAISS's own `write_index`.
"""

from __future__ import annotations

import io
import os
import struct
from typing import TYPE_CHECKING, BinaryIO

from aveyb_retrieval import files
from aveyb_retrieval.errors import IndexFormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MAX_NESTING = 8
_MAX_LISTS = 1 << 26
# bytes for each component, and trained numbers: for each component, and in all (the order of FAISS's QuantizerType)
_SCALAR = ((8, 2, 0), (4, 2, 0), (8, 0, 2), (4, 0, 2), (16, 0, 0), (8, 0, 0), (6, 2, 0), (16, 0, 0), (8, 0, 0))


class _Unknown(Exception):
    """A part of a type that this module does not walk."""


class _Wrong(Exception):
    """A part that contradicts itself, another one, or the file's size."""


def check(path: Path) -> bool:
    """Check the structure of a FAISS file; return whether all of it is known (and therefore checked).

    Raises:
        IndexFormatError: it is damaged, or not a regular file.
    """
    with files.open_regular(path) as handle:
        try:
            return _is_known(_Walk(handle, os.fstat(handle.fileno()).st_size))
        except _Wrong as wrong:
            raise IndexFormatError(f"{path}: damaged ({wrong}); `aveyb-index verify --repair` rebuilds it") from None


def is_checked(data: bytes) -> bool:
    """Return whether files of the same type as this one, which FAISS has written, are checked."""
    return _is_known(_Walk(io.BytesIO(data), len(data)))


def _is_known(walk: _Walk) -> bool:
    try:
        walk.index()
    except _Unknown:
        return False
    if walk.place != walk.size:
        raise _Wrong(f"{walk.size - walk.place} bytes after its end")
    return True


class _Walk:
    """Reads what decides over sizes, skips the rest."""

    def __init__(self, handle: BinaryIO, size: int) -> None:
        self._handle = handle
        self.size = size
        self.place = 0
        self._depth = 0

    # --- parts of a file -----------------------------------------------------------------------------------------

    def _read(self, layout: str) -> tuple[int, ...]:
        length = struct.calcsize(f"<{layout}")
        self._skip(length)
        self._handle.seek(self.place - length)
        return struct.unpack(f"<{layout}", self._handle.read(length))

    def _number(self, layout: str = "Q") -> int:
        return self._read(layout)[0]

    def _skip(self, length: int) -> None:
        if length > self.size - self.place:
            raise _Wrong(f"a part of {length:,} bytes at byte {self.place:,} of {self.size:,}")
        self.place += length

    def _array(self, width: int, expected: int | None = None, what: str = "array") -> int:
        """Skip an array of elements of `width` bytes; how many there are."""
        count = self._number()
        if expected is not None and count != expected:
            raise _Wrong(f"{what} of {count:,} elements where {expected:,} belong")
        self._skip(count * width)
        return count

    def _name(self) -> str:
        (word,) = self._read("4s")
        return word.decode("latin-1")  # type: ignore[attr-defined]  # "4s" gives bytes

    # --- indexes -------------------------------------------------------------------------------------------------

    def index(self) -> tuple[int, int]:
        """Walk one index; its dimension and how many vectors it holds."""
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise _Wrong(f"more than {_MAX_NESTING} indexes inside each other")
        name = self._name()
        part = _INDEXES.get(name)
        if part is None:
            raise _Unknown(name)
        d, ntotal, _, _, trained, metric = self._read("iqqqBi")
        if not (0 < d <= 1 << 20 and 0 <= ntotal < 1 << 48 and trained <= 1 and 0 <= metric <= 1):
            raise _Wrong(f"dimension {d}, {ntotal} vectors, metric {metric}")
        part(self, d, ntotal)
        self._depth -= 1
        return d, ntotal

    def _inner(self, d: int, ntotal: int) -> None:
        found = self.index()
        if found != (d, ntotal):
            raise _Wrong(f"{found[1]:,} vectors of dimension {found[0]} inside {ntotal:,} of {d}")

    def _id_map(self, d: int, ntotal: int) -> None:
        self._inner(d, ntotal)
        self._array(8, ntotal, "ids")

    def _flat(self, d: int, ntotal: int) -> None:
        self._array(4, d * ntotal, "vectors")

    def _scalar(self, d: int, ntotal: int) -> None:
        self._array(1, ntotal * self._scalar_quantizer(d), "codes")

    def _product(self, d: int, ntotal: int) -> None:
        self._array(1, ntotal * self._product_quantizer(d), "codes")
        self._skip(struct.calcsize("<iBi"))

    def _hnsw(self, d: int, ntotal: int) -> None:
        self._array(8)
        self._array(4)
        self._array(4, ntotal, "levels")
        self._array(8, ntotal + 1, "offsets")
        self._array(4)
        self._skip(5 * 4)
        self._inner(d, ntotal)

    def _transformed(self, d: int, ntotal: int) -> None:
        count, width = self._number("i"), d
        if not 0 <= count <= _MAX_NESTING:
            raise _Wrong(f"{count} transforms")
        for _ in range(count):
            width = self._transform(width)
        self._inner(width, ntotal)

    # --- inverted lists ------------------------------------------------------------------------------------------

    def _lists_of_floats(self, d: int, ntotal: int) -> None:
        nlist = self._lists_header(d)
        self._lists(nlist, 4 * d, ntotal)

    def _lists_of_scalars(self, d: int, ntotal: int) -> None:
        nlist = self._lists_header(d)
        size = self._scalar_quantizer(d)
        if self._read("QB")[0] != size:
            raise _Wrong("two sizes of codes")
        self._lists(nlist, size, ntotal)

    def _lists_of_products(self, d: int, ntotal: int) -> None:
        nlist = self._lists_header(d)
        _, stated = self._read("BQ")
        size = self._product_quantizer(d)
        if stated != size:
            raise _Wrong("two sizes of codes")
        self._lists(nlist, size, ntotal)

    def _lists_of_bits(self, d: int, ntotal: int) -> None:
        """RaBitQ's inverted lists for fast scans: codes of several vectors, and numbers of each, in blocks."""
        nlist = self._lists_header(d)
        width, size, _, bits = self._read("QQiQ")
        by_residual, stated, each, _, m2, _, qb, centered = self._read("BQiQQiBB")
        numbers = 8 if bits == 1 else 20 + ((bits - 1) * d + 7) // 8  # beside the signs; bytes
        if width != d or not 1 <= bits <= 9 or stated != size or not (d + 7) // 8 <= size <= (d + 7) // 8 + numbers:
            raise _Wrong(f"codes of {size} bytes for {width} components")
        if by_residual > 1 or centered > 1 or not 1 <= qb <= 8 or not (d + 3) // 4 <= m2 <= (d + 3) // 4 + 1:
            raise _Wrong(f"codes in {m2} parts for {d} components, queries of {qb} bits")
        if (name := self._name()) != "ilbl":
            raise _Unknown(name)
        lists, _, in_block, packed = self._read("QQQQ")
        wrong_blocks = in_block != each or each % 32 or not 0 < each <= 1 << 10 or packed < each * (m2 // 2 + 8)
        if lists != nlist or wrong_blocks:
            raise _Wrong("other inverted lists than its header says")
        found = 0
        for _ in range(nlist):
            count = self._array(8)
            self._array(1, -(-count // each) * packed, "codes")
            found += count
        if found != ntotal:
            raise _Wrong(f"{found:,} vectors in the inverted lists, {ntotal:,} in its header")

    def _lists_header(self, d: int) -> int:
        nlist, nprobe = self._read("QQ")
        if not (0 < nlist <= _MAX_LISTS and 0 < nprobe < 1 << 31):
            raise _Wrong(f"{nlist:,} inverted lists, {nprobe:,} of them searched")
        self._inner(d, nlist) if self._peek_trained() else self.index()
        if self._number("B") != 0:
            raise _Unknown("direct map")
        self._array(8)
        return nlist

    def _peek_trained(self) -> bool:
        """Whether the quantizer that follows is filled: that of an empty index is not."""
        place = self.place
        self._name()
        ntotal = self._read("iq")[1]
        self.place = place
        return ntotal > 0

    def _lists(self, nlist: int, code_size: int, ntotal: int) -> None:
        if (name := self._name()) != "ilar":
            raise _Unknown(name)
        if self._read("QQ") != (nlist, code_size):
            raise _Wrong("other inverted lists than its header says")
        kind, count = self._name(), self._number()
        most = {"full": nlist, "sprs": 2 * nlist}.get(kind, -1)
        if count > most:
            raise _Wrong(f"sizes of {count:,} inverted lists")
        numbers = self._read(f"{count}Q")
        sizes, which = (numbers, ()) if kind == "full" else (numbers[1::2], numbers[::2])
        if (kind == "full" and count != nlist) or len(sizes) < len(which) or any(n >= nlist for n in which):
            raise _Wrong(f"sizes of {count:,} inverted lists")
        if sum(sizes) != ntotal:
            raise _Wrong(f"{sum(sizes):,} vectors in the inverted lists, {ntotal:,} in its header")
        self._skip(ntotal * (code_size + 8))

    # --- codecs --------------------------------------------------------------------------------------------------

    def _scalar_quantizer(self, d: int) -> int:
        """Walk a scalar quantizer; the bytes of one code."""
        kind, _, _, width, size = self._read("iifQQ")
        if not 0 <= kind < len(_SCALAR):
            raise _Unknown(f"scalar quantizer {kind}")
        bits, each, fixed = _SCALAR[kind]
        if width != d or size != (d * bits + 7) // 8:
            raise _Wrong(f"codes of {size} bytes for {width} components")
        self._array(4, None if size == 0 else self._trained(d * each + fixed), "trained numbers")
        return size

    def _trained(self, count: int) -> int | None:
        """How many trained numbers must follow: none in an index that has not been trained."""
        place, found = self.place, self._number()
        self.place = place
        return 0 if found == 0 else count

    def _product_quantizer(self, d: int) -> int:
        """Walk a product quantizer; the bytes of one code."""
        width, parts, bits = self._read("QQQ")
        if width != d or not 0 < parts <= d or d % parts or not 0 < bits <= 16:
            raise _Wrong(f"{parts} codes of {bits} bits for {width} components")
        self._array(4, d << bits, "centroids")
        return (parts * bits + 7) // 8

    def _transform(self, width: int) -> int:
        """Walk a linear transform of vectors; the dimension that it gives."""
        name, heads = self._name(), {"PcAm": "<fBi", "Pcam": "<ffBi"}
        if name in heads:
            self._skip(struct.calcsize(heads[name]))
            for _ in range(3):
                self._array(4)
        elif name not in ("rrot", "LTra"):
            raise _Unknown(name)
        have_bias = self._number("B")
        matrix, bias = self._array(4), self._array(4)
        d_in, d_out, trained = self._read("iiB")
        complete = matrix == d_in * d_out and (bias == d_out or not have_bias)
        if d_in != width or not 0 < d_out <= 1 << 20 or (trained and not complete):
            raise _Wrong(f"a transform of {matrix:,} numbers from {d_in} to {d_out} components")
        return d_out


_INDEXES: dict[str, Callable[[_Walk, int, int], None]] = {
    "IxMp": _Walk._id_map,
    "IxM2": _Walk._id_map,
    "IxFI": _Walk._flat,
    "IxF2": _Walk._flat,
    "IxSQ": _Walk._scalar,
    "IxPq": _Walk._product,
    "IHNf": _Walk._hnsw,
    "IHNs": _Walk._hnsw,
    "IHNp": _Walk._hnsw,
    "IxPT": _Walk._transformed,
    "IwFl": _Walk._lists_of_floats,
    "IwSq": _Walk._lists_of_scalars,
    "IwPQ": _Walk._lists_of_products,
    "Iwrn": _Walk._lists_of_bits,
}
