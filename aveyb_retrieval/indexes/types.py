"""What all rooms of an index share: arrays, numbers of documents, and what is needed from a model,
as a protocol.

The number of a document is given once and never again, a passage's holds its document's: passage
`i` of document `doc` has the number `doc << 20 | i`. No number depends on a position, and a passage
names its document without a look-up. What must not depend on the order in which documents came goes
by the hashes of their ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import IndexFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec, TokenCodes
    from aveyb_retrieval.encoder.text.passages import PassageSize


FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Kind = Literal["document", "passage"]


@runtime_checkable
class Encoded(Protocol):
    """One encoded document: float32 vectors, zeros for a text without tokens, and int64 spans."""

    @property
    def vector(self) -> FloatArray:
        """Of the document: `[d]`, unit length."""

    @property
    def passages(self) -> FloatArray:
        """`[n, d]`, unit rows."""

    @property
    def spans(self) -> IntArray:
        """`[n, 2]`, characters of the text."""

    @property
    def n_tokens(self) -> int:
        """Tokens read."""

    @property
    def n_cut(self) -> int:
        """Tokens dropped by the length limit."""


@dataclass(frozen=True)
class EncodedRow:
    """An encoded document as an index keeps it, or as its vector was given.

    Arrays are as in `Encoded`. Of each passage there is a heading. `tokens` are the codes of its
    tokens, where they are kept.
    """

    vector: FloatArray
    passages: FloatArray
    spans: IntArray
    headings: tuple[str, ...] = ()
    n_tokens: int = 0
    n_cut: int = 0
    tokens: TokenCodes | None = None
    weights: FloatArray | None = None  # [n], how well the model knows each passage; None: in full


def unusable(encoded: Encoded, dim: int) -> str | None:
    """Say what is wrong with a model's answer where vectors have `dim` numbers; None: nothing."""
    if encoded.vector.shape != (dim,) or encoded.passages.shape != (len(encoded.spans), dim):
        return (
            f"vectors of shapes {encoded.vector.shape} and {encoded.passages.shape} for dimension"
            f" {dim} and {len(encoded.spans)} passages"
        )
    if not (np.isfinite(encoded.vector).all() and np.isfinite(encoded.passages).all()):
        return "its vectors hold NaN or infinity; the model or the vectors given are broken"
    return None


@runtime_checkable
class EmbedderLike(Protocol):
    """What turns text into vectors, as our `Embedder` does; an index opens only with the model that
    made it.
    """

    @property
    def dim(self) -> int:
        """Width of the vectors."""

    @property
    def model_name(self) -> str:
        """Name or folder that was loaded."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides its vectors."""

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Encoded]:
        """Encode (prefix, text) pairs, one result per pair, in order, in constant memory."""

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Encode queries into `[n, d]` float32 unit rows."""

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[FloatArray]:
        """Encode texts into one `[T, d]` float32 array of unit rows each, for late interaction."""


@runtime_checkable
class PassageCutter(Protocol):
    """A model that cuts passages of any size.

    One without these members cuts them in its own way.
    """

    @property
    def passage_size(self) -> PassageSize | None:
        """How long passages are; None: in its own way."""

    def with_passage_size(self, size: PassageSize | None) -> EmbedderLike:
        """The same model, cutting passages of another size."""


@runtime_checkable
class TokenEncoder(Protocol):
    """A model that can give the tokens of documents, too, for late interaction."""

    def with_token_codec(self, codec: TokenCodec | None) -> EmbedderLike:
        """The same model, whose encoded documents have `tokens`: a `TokenCodes` of the passages it
        had to encode.
        """


@runtime_checkable
class QueryWeights(Protocol):
    """A model that says how well it knows a query: the vector of one that it does not weighs
    less.
    """

    def query_weights(self, queries: Sequence[str]) -> FloatArray:
        """What each query's vector weighs, `[n]`, 0 to 1."""


@runtime_checkable
class WatchedEncoder(Protocol):
    """A model that says while it reads how many tokens it has read."""

    def with_watch(self, watch: Callable[[int], None]) -> EmbedderLike:
        """The same model, which calls `watch` with counts of tokens while it reads them."""


@runtime_checkable
class PlacedEncoder(Protocol):
    """A model that says where it computes."""

    @property
    def computes_on_cpu(self) -> bool:
        """Whether it takes the processors of this machine, and no GPU or server."""


def takes_processors(model: object) -> bool:
    """Whether a model says that it computes on the processors of this machine."""
    return isinstance(model, PlacedEncoder) and model.computes_on_cpu


@runtime_checkable
class WordVectors(Protocol):
    """A model that knows what its tokens mean without context: the best sentences of hits are
    chosen by them.
    """

    def word_vectors(
        self, texts: Sequence[str]
    ) -> tuple[FloatArray, list[tuple[IntArray, IntArray]]]:
        """Unit rows `[n, D]` of tokens; of each text which rows those in it have `[T]`, and where
        they begin `[T]`.
        """


class Progress(Protocol):
    """Called as work goes on: what is being done, how much of it is done, of how much (None: not
    known), and tokens.
    """

    def __call__(self, stage: str, done: int, total: int | None, tokens: int) -> None:
        """Show how far a stage is."""


def silent(stage: str, done: int, total: int | None, tokens: int) -> None:
    """Show no progress."""


def check_fingerprint(
    model: dict[str, Any] | None, dim: int, embedder: EmbedderLike, where: object
) -> None:
    """Check that a model is the one an index at `where` was made by (or, where nobody named it,
    could be).
    """
    if model is None:
        if embedder.dim != dim:
            raise IndexFormatError(
                f"{where}: vectors of dimension {dim}, but the model {embedder.model_name} makes"
                f" {embedder.dim}; give the model that made them"
            )
    elif model["fingerprint"] != embedder.fingerprint:
        raise IndexFormatError(
            f"{where}: made by the model {model['name']} (fingerprint {model['fingerprint'][:16]}),"
            f" but this is {embedder.model_name} (fingerprint {embedder.fingerprint[:16]}); use the"
            " same model, or build the index again with this one"
        )


def model_description(embedder: EmbedderLike) -> dict[str, Any]:
    """Describe a model for the manifest: what it is called, what it is, and what it puts in front
    of a text.
    """
    return {
        "name": embedder.model_name,
        "fingerprint": embedder.fingerprint,
        "dim": embedder.dim,
        "split_size": getattr(embedder, "split_size", None),
        "prompts": dict(getattr(embedder, "prompts", {})),
        "max_tokens": getattr(embedder, "max_tokens", None),
    }


def unit_rows(rows: npt.NDArray[np.floating]) -> FloatArray:
    """Rows `[n, d]` scaled to unit length, float32; zeros stay zeros, and a row with NaN or
    infinity becomes all NaN.

    Divided by their largest component first: squares of very large or very small numbers do not fit
    into a float.
    """
    rows = np.asarray(rows, dtype=np.float32)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    largest[~np.isfinite(largest)] = np.nan
    scaled = rows / np.where(largest == 0, 1, largest)
    return scaled / np.where(largest == 0, 1, np.linalg.norm(scaled, axis=1, keepdims=True))


_MANY_ROWS, _FEW_PRODUCTS = 8, 1 << 16  # from where on BLAS is worth its threads


def products(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Inner products `[n, m]` of rows `[n, d]` with others `[m, d]`.

    Those of a search are summed pair by pair: BLAS would wake its threads for them, and these go on
    waiting actively for tens of milliseconds, which is longer than a search, on processors that
    others need.
    """
    if len(rows) >= _MANY_ROWS and len(rows) * len(others) > _FEW_PRODUCTS:
        return rows @ others.T
    return (others[None, :, None, :] @ rows[:, None, :, None])[..., 0, 0]


def widened(rows: np.ndarray) -> FloatArray:
    """Finite float16 or float32 rows `[n, d]` as float32; float16 by its bits: NumPy takes each
    number by itself.
    """
    if rows.dtype != np.float16:
        return np.asarray(rows, dtype=np.float32)
    bits = rows.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= -0x70002000  # the sign, and the exponent, which counts from 112 less
    return bits.view(np.float32) * np.float32(2**112)


def find_in(ascending: IntArray, numbers: IntArray) -> tuple[IntArray, BoolArray]:
    """Where numbers, in any shape, are among ascending ones `[n]`, and whether they are: both in
    that shape.
    """
    places = np.minimum(np.searchsorted(ascending, numbers), max(len(ascending) - 1, 0))
    return places, (
        ascending[places] == numbers if len(ascending) else np.zeros(np.shape(numbers), np.bool_)
    )


def ascending(numbers: IntArray) -> IntArray:
    """Numbers in order, each once: what `np.unique` makes of hundreds in twice the time."""
    ordered = np.sort(numbers)
    return ordered[_is_new(ordered)]


def starts_of_equals(numbers: IntArray) -> IntArray:
    """Where runs of equal numbers begin, of numbers that lie together where they are equal."""
    return np.flatnonzero(_is_new(numbers))


def _is_new(numbers: IntArray) -> BoolArray:
    """Which numbers are not the same as the one before."""
    is_new = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=is_new[1:])
    return is_new


def ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """The numbers of ranges, one range after the other: so many from each start `[n]` on."""
    ends = np.cumsum(counts)
    return np.repeat(starts - ends + counts, counts) + np.arange(counts.sum(), dtype=np.int64)


def slices_of(sizes: IntArray, limit: int) -> list[slice]:
    """Divide things of `sizes` `[n]`, in their order, into slices of about `limit` together, or of
    one that is larger.
    """
    groups = np.cumsum(sizes) // limit
    bounds = np.flatnonzero(np.diff(groups)) + 1
    return [slice(*pair) for pair in pairwise([0, *bounds.tolist(), len(sizes)])]


# of `eights`, by how many are meant
FIRST_BYTES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


def eights(data: bytes) -> np.ndarray:
    """The eight bytes from each place of some bytes on, as numbers `[n]`; behind the
    end are zeros.
    """
    return np.ndarray(len(data), "<u8", data + bytes(7), strides=(1,))


def inner_products(vectors: FloatArray, query: FloatArray) -> FloatArray:
    """Products of vectors `[n, d]` with a query `[d]`, `[n]`: the same for equal vectors, wherever
    they stand.
    """
    return products(query.astype(np.float64)[None], vectors.astype(np.float64))[0].astype(
        np.float32
    )


def token_width(model: EmbedderLike) -> int:
    """Return the width of a model's token vectors, 0 where it has none: as of its other vectors,
    unless it says so.
    """
    return int(getattr(model, "token_dim", model.dim))


PASSAGE_BITS = 20
MAX_PASSAGES = 1 << PASSAGE_BITS
END_NUMBER = 1 << 42  # above the number of any document


def check_ids(ids: Iterable[str]) -> list[str]:
    """Return ids as a list."""
    if isinstance(ids, str):
        raise InputError(f"ids={ids!r} is one string; give a list of ids, as [{ids!r}]")
    if not isinstance(ids, Iterable) or isinstance(ids, (Mapping, bytes)):
        raise InputError(f"ids={ids!r} is of type {type(ids).__name__}; give a list of ids")
    listed = list(ids)
    for document_id in listed:
        if not isinstance(document_id, str):
            raise InputError(
                f"the id {document_id!r} is of type {type(document_id).__name__}; ids are strings"
            )
        try:
            document_id.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"the id {document_id!r} is not valid Unicode; no document has such an id"
            ) from None
    return listed


def id_digest(document_id: str) -> bytes:
    """The SHA-256 of an id: 32 bytes, however long it is."""
    return hashlib.sha256(document_id.encode()).digest()


def sample_rank(document_id: str) -> int:
    """The first 63 bits of the hash of an id: the documents of least rank are a sample that depends
    on no order.
    """
    return int.from_bytes(id_digest(document_id)[:8], "big") >> 1


def expand_passages(table: IntArray) -> IntArray:
    """All passage numbers of `[n, 2]` rows of (document, number of passages)."""
    docs, lengths = table[:, 0], table[:, 1]
    if len(lengths) and not 0 <= lengths.min() <= lengths.max() < MAX_PASSAGES:
        raise IndexFormatError(
            f"documents have {lengths.min()} to {lengths.max()} passages, but 0 to"
            f" {MAX_PASSAGES - 1} are possible: the index is damaged; restore it from a copy or"
            " build it again"
        )
    return ranges(docs << PASSAGE_BITS, lengths)


def number_range(kind: Kind, first: int, stop: int) -> tuple[int, int]:
    """The numbers of one kind of vectors of the documents numbered in `[first, stop)`."""
    return (first, stop) if kind == "document" else (first << PASSAGE_BITS, stop << PASSAGE_BITS)
