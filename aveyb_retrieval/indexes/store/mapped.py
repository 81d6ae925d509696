"""Arrow files of an index, mapped: rows of columns are read by their position in the file.

A file is in Arrow's IPC format, without compression and nulls, in batches of rows. Where the
columns of a batch begin in the file is known from the addresses of their buffers, which Arrow gives
without a copy. A row then costs the copy of its bytes.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from aveyb_retrieval import files
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.types import widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from aveyb_retrieval.files import FileInfo
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

ROWS_AT_HAND = 512  # vectors copied at a time: copies of more take new memory, and longer by far
BATCH_ROWS = 16_384  # tables of fewer are put together in a file, and of twice as many divided
_BATCH_BYTES = 64 << 20  # from which on they are written: a merge has some times that in memory
_OFFSET_BYTES = 8  # of a place in a column of texts


class FileBytes(Protocol):
    """The bytes of one file, of which perhaps only parts are on this machine."""

    def require(self, starts: IntArray, stops: IntArray) -> npt.NDArray[np.uint8]:
        """An array as long as the file, in which bytes `[start, stop)` of all pairs are there."""


@dataclass(frozen=True)
class LocalBytes:
    """The bytes of a file on this machine, mapped."""

    data: npt.NDArray[np.uint8]

    @classmethod
    def map(cls, path: Path) -> LocalBytes:
        return cls(np.asarray(np.memmap(path, np.uint8, "r")))

    def require(self, starts: IntArray, stops: IntArray) -> npt.NDArray[np.uint8]:
        return self.data


class _RequiredFile(io.RawIOBase):
    """A file for Arrow to read, which requires the bytes that are read, and notes them."""

    def __init__(self, source: FileBytes, size: int) -> None:
        self._source, self._size, self._place = source, size, 0
        self._starts, self._stops = list[int](), list[int]()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._place + size)
        start, self._place = self._place, stop
        if stop <= start:
            return b""
        self._starts.append(start)
        self._stops.append(stop)
        return self._source.require(np.array([start]), np.array([stop]))[start:stop].tobytes()

    def require_again(self) -> npt.NDArray[np.uint8]:
        """The bytes of the file, in which all that was read is there at once: of what is kept in
        memory, other threads may have made the source forget some.
        """
        return self._source.require(np.array(self._starts), np.array(self._stops))


def read_batches(source: FileBytes) -> tuple[list[pa.RecordBatch], int]:
    """The batches of an Arrow file, whose buffers are parts of its bytes, and the address of these.

    Of a file that is in an object store the metadata and the first column are brought.
    """
    nothing = np.empty(0, np.int64)
    data = source.require(nothing, nothing)
    if not isinstance(source, LocalBytes):
        file = _RequiredFile(source, len(data))
        options = pa.ipc.IpcReadOptions(included_fields=[0])
        with pa.PythonFile(file, "r") as handle:
            reader = pa.ipc.open_file(handle, options=options)
            for number in range(reader.num_record_batches):
                reader.get_batch(number)
        data = file.require_again()
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data)))
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    return batches, data.ctypes.data


@dataclass(frozen=True)
class _Places:
    """Where a column's data, and the offsets of its texts, begin in the file, by batch `[b]`."""

    data: IntArray
    offsets: IntArray | None  # None: values of one width
    width: int  # bytes of a value
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class MappedRows:
    """The rows of one file, in batches."""

    path: Path
    source: FileBytes
    schema: pa.Schema
    starts: IntArray  # the first row of each batch, `[b]`
    numbers: IntArray  # the column that rows are known by, ascending, `[n]`
    _batches: list[pa.RecordBatch] = field(repr=False)
    _base: int  # the address of the bytes that the batches are parts of
    _places: dict[str, _Places] = field(default_factory=dict, repr=False)
    _below_one: dict[str, tuple[IntArray, FloatArray]] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: Path, source: FileBytes, schema: pa.Schema) -> MappedRows:
        """Open a file of columns that `schema` has; rows are known by the first one."""
        batches, base = read_batches(source)
        for batch in batches:
            if batch.schema.names != schema.names or batch.schema.types != schema.types:
                raise IndexFormatError(
                    f"{path}: has the columns {batch.schema.names}, not {schema.names}, or other"
                    " types; build the index again"
                )
        sizes = [batch.num_rows for batch in batches]
        numbers = np.concatenate(
            [np.empty(0, np.int64), *(batch.column(0).to_numpy() for batch in batches)]
        )
        if (np.diff(numbers) <= 0).any():
            raise IndexFormatError(f"{path}: its rows are out of order; build the index again")
        starts = np.cumsum([0, *sizes])[: len(sizes)].astype(np.int64)
        return cls(path, source, schema, starts, numbers, batches, base)

    def __len__(self) -> int:
        return len(self.numbers)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns of all rows, batch by batch, of which all was checked."""
        for number, batch in enumerate(self._batches):
            selected = batch.select(list(columns))
            if not isinstance(self.source, LocalBytes):
                selected = self._brought(selected, number)
            selected.validate(full=True)
            yield selected

    def below_one(self, column: str) -> tuple[IntArray, FloatArray]:
        """Numbers `[n]` and values `[n]` of the rows whose value of a column is below 1: read
        once.
        """
        if column not in self._below_one:
            batches = [batch.column(0).to_numpy() for batch in self.batches([column])]
            values = np.concatenate([np.empty(0, np.float32), *batches])
            rows = np.flatnonzero(values < 1)
            self._below_one[column] = self.numbers[rows], values[rows]
        return self._below_one[column]

    def fixed(self, column: str, rows: IntArray) -> np.ndarray:
        """Values of one width of rows `[n]`, as they are stored: `[n]` or, of lists, `[n, d]`."""
        places = self._of(column)
        batch = np.searchsorted(self.starts, rows, side="right") - 1
        first = places.data[batch] + (rows - self.starts[batch]) * places.width
        data = self.source.require(first, first + places.width)
        values = sliding_window_view(data, places.width)[first].view(places.dtype)
        return (
            values if pa.types.is_fixed_size_list(self.schema.field(column).type) else values[:, 0]
        )

    def texts(self, column: str, rows: IntArray) -> list[bytes]:
        """Texts of rows `[n]`, in UTF-8, or bytes."""
        places = self._of(column)
        assert places.offsets is not None
        batch = np.searchsorted(self.starts, rows, side="right") - 1
        at = places.offsets[batch] + (rows - self.starts[batch]) * _OFFSET_BYTES
        data = self.source.require(at, at + 2 * _OFFSET_BYTES)
        numbers = np.ndarray(max(len(data) - 7, 0), "<i8", data, strides=(1,))
        first = places.data[batch] + numbers[at]
        last = places.data[batch] + numbers[at + _OFFSET_BYTES]
        data = self.source.require(first, last)
        pairs = zip(first.tolist(), last.tolist(), strict=True)
        return [data[start:stop].tobytes() for start, stop in pairs]

    def copy_vectors(self, column: str, rows: IntArray, out: FloatArray, places: IntArray) -> None:
        """Copy vectors of rows `[n]` to places `[n]` of `out` `[m, d]`, widened to float32."""
        for start in range(0, len(rows), ROWS_AT_HAND):
            vectors = self.fixed(column, rows[start : start + ROWS_AT_HAND])
            out[places[start : start + ROWS_AT_HAND]] = widened(vectors)

    def block(self, column: str, rows: IntArray, out: npt.NDArray[np.uint8]) -> np.ndarray:
        """Vectors of rows `[n]`, ascending, copied to bytes `out` `[n, row]`, batch by batch.

        For many rows that is faster than `fixed`.
        """
        places = self._of(column)
        edges = np.append(np.searchsorted(rows, self.starts), len(rows)).tolist()
        for number, first in enumerate(places.data.tolist()):
            inside = rows[edges[number] : edges[number + 1]] - self.starts[number]
            if len(inside):
                stop = first + (int(inside[-1]) + 1) * places.width
                data = self.source.require(np.array([first]), np.array([stop]))
                stored = data[first:stop].reshape(-1, places.width)
                target = out[edges[number] : edges[number + 1]]
                np.take(stored, inside, axis=0, out=target, mode="clip")  # "raise" copies twice
        return out.view(places.dtype)

    def _of(self, column: str) -> _Places:
        if column not in self._places:
            self._places[column] = self._locate(column)
        return self._places[column]

    def _locate(self, column: str) -> _Places:
        kind = self.schema.field(column).type
        listed = pa.types.is_fixed_size_list(kind)
        value = kind.value_type if listed else kind
        varying = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        data, offsets = list[int](), list[int]()
        for batch in self._batches:
            array = batch.column(column)
            buffers = array.buffers()
            if array.null_count or array.offset:
                raise IndexFormatError(
                    f"{self.path}: the column {column!r} has nulls; build the index again"
                )
            data.append(buffers[-1].address - self._base if buffers[-1] is not None else 0)
            if varying:
                offsets.append(buffers[1].address - self._base)
        if varying:
            starts = np.array(offsets, np.int64)
            return _Places(np.array(data, np.int64), starts, 0, np.dtype(np.uint8))
        dtype = numpy_type(value)
        width = dtype.itemsize * (kind.list_size if listed else 1)
        return _Places(np.array(data, np.int64), None, width, dtype)

    def _brought(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """A batch of this number with all bytes of its columns."""
        buffers = [
            buffer for column in batch.columns for buffer in column.buffers() if buffer is not None
        ]
        starts = np.array([buffer.address - self._base for buffer in buffers], np.int64)
        data = self.source.require(starts, starts + np.array([buffer.size for buffer in buffers]))
        if data.ctypes.data == self._base:
            return batch
        data = self.source.require(np.array([0]), np.array([len(data)]))
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(data)))
        return reader.get_batch(number).select(batch.schema.names)


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """NumPy's type of values of one width. Arrow before 26 names it only beside pandas."""
    dtype: np.dtype[Any] = pa.array([], kind).to_numpy().dtype
    return dtype


@contextmanager
def arrow_writer(
    path: Path, schema: pa.Schema
) -> Iterator[tuple[pa.ipc.RecordBatchFileWriter, Callable[[], FileInfo]]]:
    """Write an Arrow file, which appears when the block ends, complete and durable.

    Yields its writer, and what gives its size and hash when the block has ended.
    """
    files.make_folder(path.parent)
    with (
        files.atomic_writer(path) as out,
        pa.PythonFile(_Sink(out), "w") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        yield writer, out.info


class _Sink(io.RawIOBase):
    """What Arrow writes to."""

    def __init__(self, out: files.HashingWriter) -> None:
        self._out, self._place = out, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = self._out.write(memoryview(data))
        self._place += written
        return written

    def tell(self) -> int:
        return self._place


def write_batches(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> FileInfo:
    """Write tables as one file, in batches of `BATCH_ROWS` rows or more: small tables together,
    others as they lie in memory.
    """
    waiting, rows, size = list[pa.Table](), 0, 0
    with arrow_writer(path, schema) as (writer, info):

        def flush() -> None:
            if waiting:
                joined = pa.concat_tables(waiting).combine_chunks()
                batches = max(joined.num_rows // BATCH_ROWS, 1)
                writer.write_table(joined, max_chunksize=max(-(-joined.num_rows // batches), 1))
            waiting.clear()

        for table in tables:
            waiting.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
            if rows >= BATCH_ROWS or size >= _BATCH_BYTES:
                flush()
                rows = size = 0
        flush()
    return info()
