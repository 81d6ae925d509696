"""Documents on their way into a change: read, checked, encoded, committed batch by batch; bounded
in memory.

While one batch is read and encoded, the words of the one before are found in a thread, and then its
rows are made and written in another: no more are in memory. A model on the CPU takes all
processors, and waits until its batch is written. What fails ends the change with the first error,
and nothing is written after it.

The position in the input and a running hash of everything read so far are part of each commit. A
continued change reads the input again up to that position and compares the hash, so that it never
mixes two inputs; what comes after the position may have been corrected meanwhile.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aveyb_retrieval.documents.records import (
    Notice,
    OnError,
    Record,
    Rejected,
    chain_digest,
)
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.indexes.changes.disk_errors import disk_errors, from_outside
from aveyb_retrieval.indexes.encoding import AUTO
from aveyb_retrieval.indexes.store.called import naming_texts
from aveyb_retrieval.indexes.store.columns import TextColumns, different_words, text_columns
from aveyb_retrieval.indexes.store.copies import thread_digest
from aveyb_retrieval.indexes.store.languages import DocumentLanguages, rules_of, stemmer_of
from aveyb_retrieval.indexes.store.manifest import Counts
from aveyb_retrieval.indexes.store.rows import (
    CALLED_BY,
    FORMS,
    NAME_WORDS,
    VECTOR,
    WORDS,
    fixed_lists,
)
from aveyb_retrieval.indexes.store.shares import passage_shares
from aveyb_retrieval.indexes.store.tables import (
    CODES,
    COPY,
    COUNTS,
    SHARE,
    THREAD,
    WEIGHT,
    schemas,
    texts_of_passages,
)
from aveyb_retrieval.indexes.types import (
    MAX_PASSAGES,
    EmbedderLike,
    Encoded,
    FloatArray,
    IntArray,
    WatchedEncoder,
    check_fingerprint,
    expand_passages,
    ranges,
    sample_rank,
    takes_processors,
    unusable,
)
from aveyb_retrieval.indexes.vectors import (
    PrecomputedVectors,
    StoredShards,
    encoded_of,
    shard_of,
    stored_documents,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from aveyb_retrieval.documents.readers.file_limits import Watch
    from aveyb_retrieval.documents.records import Item, OcrTry
    from aveyb_retrieval.encoder.network.token_codec import TokenCodes
    from aveyb_retrieval.indexes.changes.transaction import Transaction
    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.model import Vectors
    from aveyb_retrieval.indexes.store.segments import Text
    from aveyb_retrieval.indexes.store.tables import Tables
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import Progress

Worded = TypeVar("Worded")  # what has words
Words = TypeVar("Words")  # columns of them
Made = tuple["Record", "Encoded", "TokenCodes | None"]
"""A document, its vectors, and the codes of its tokens where these are kept."""
Rows: TypeAlias = "tuple[dict[str, pa.Table], Counts]"


def content_digest(title: str, text: str, keywords: str) -> bytes:
    """Identify what was encoded and is found by words, so that an unchanged document is never
    encoded again.
    """
    head = f"{len(title)}:{len(keywords)}:{title}{keywords}"
    return hashlib.sha256(f"{head}{text}".encode()).digest()


def titled_words(title: str, keywords: str | None) -> str:
    """Return the text whose words stand in front of those of a document's text."""
    return f"{title}\n{keywords}" if keywords else title


def metadata_columns(record: Record) -> dict[str, str | None]:
    """What is stored of a document's metadata, and of the file that it was read from."""
    origin = record.origin
    return {
        "metadata": record.metadata_json,
        "edits": record.edits.to_json() if record.edits else None,
        "file_sha256": origin.sha256 if origin else None,
        "labels_sha256": origin.labels_sha256 if origin else None,
        "folder": origin.folder if origin else None,
        "pages": record.pages_json,
    }


@dataclass(frozen=True, eq=False)
class DocumentBatch:
    """Documents that become rows.

    Attributes:
        made: The documents, `n` of them, with their vectors.
        numbers: Their numbers `[n]`.
        texts: What words are made of.
        languages: The codes of their languages.
        passage_texts: What is stored of each document's text for its passages.
        columns: Their words and digests.
        encoding: How vectors and words are made.
    """

    made: Sequence[Made]
    numbers: IntArray
    texts: Sequence[Text]
    languages: Sequence[str]
    passage_texts: Sequence[Sequence[str]]
    columns: TextColumns
    encoding: Encoding

    @classmethod
    def of(
        cls,
        made: Sequence[Made],
        first_doc: int,
        encoding: Encoding,
        languages: Sequence[str],
    ) -> DocumentBatch:
        """Number documents from `first_doc`, and find their words, each by the rules of its
        language.
        """
        has_passages = "passage" in encoding.kinds
        spans = [encoded.spans if has_passages else encoded.spans[:0] for _, encoded, _ in made]
        passage_texts = [
            texts_of_passages(record.text, own)
            for (record, _, _), own in zip(made, spans, strict=True)
        ]
        texts = [
            _text_of(record, encoded, own, parts)
            for (record, encoded, _), own, parts in zip(made, spans, passage_texts, strict=True)
        ]
        columns = columns_by_language(encoding, languages, texts)
        numbers = np.arange(first_doc, first_doc + len(made))
        return cls(made, numbers, texts, languages, passage_texts, columns, encoding)

    @property
    def records(self) -> list[Record]:
        return [record for record, _, _ in self.made]

    @property
    def passage_counts(self) -> IntArray:
        """How many passages documents have, `[n]`."""
        return np.array([len(spans) for _, _, spans, _, _ in self.texts], np.int64)

    @cached_property
    def bounds(self) -> IntArray:
        """The characters `[start, stop)` of all passages in their documents, `[p, 2]`."""
        return np.concatenate([spans for _, _, spans, _, _ in self.texts])

    @property
    def vector_type(self) -> pa.DataType:
        """The type of stored vectors, of documents and of passages."""
        return schemas(self.encoding)["vectors"].field(VECTOR).type

    def sums(self, of_passages: IntArray) -> list[int]:
        """Add up values of passages `[p]` by document, `[n]`."""
        owners = np.repeat(np.arange(len(self.made)), self.passage_counts)
        return np.bincount(owners, of_passages, len(self.made)).astype(np.int64).tolist()


def find_words(
    made: Sequence[Made], first_doc: int, encoding: Encoding, languages: Sequence[str]
) -> DocumentBatch | None:
    """Return some documents with their words, as `DocumentBatch.of` does; None of no documents."""
    return DocumentBatch.of(made, first_doc, encoding, languages) if made else None


def make_rows(batch: DocumentBatch) -> Rows:
    """Return the rows of some documents, by dataset, and what they add to the counts."""
    columns = _columns_by_table(batch)
    rows = {
        name: pa.Table.from_pydict({field: columns[name][field] for field in schema.names}, schema)
        for name, schema in schemas(batch.encoding).items()
        if name in columns
    }
    totals = {name: int(sum(columns["documents"][name])) for name in COUNTS}
    cut_documents = sum(tokens > 0 for tokens in columns["documents"]["cut_tokens"])
    return rows, Counts(documents=len(batch.made), cut_documents=cut_documents, **totals)


def _columns_by_table(batch: DocumentBatch) -> dict[str, dict[str, Any]]:
    """The columns of all datasets."""
    encoding = batch.encoding
    columns = {
        "documents": _document_table(batch),
        "texts": _text_table(batch),
        "passages": _passage_table(batch),
        "vectors": _vector_table(batch),
    }
    if encoding.token_codec is not None:
        columns["texts" if encoding.tokens_of == "document" else "passages"][CODES] = _codes(batch)
    if "passage" in encoding.kinds:
        vectors = np.concatenate([encoded.passages for _, encoded, _ in batch.made])
        columns["passages"][VECTOR] = fixed_lists(vectors, batch.vector_type)
    return columns


def _text_of(
    record: Record, encoded: Encoded, spans: IntArray, passage_texts: Sequence[str]
) -> Text:
    """What the words of a document and of its passages are made of."""
    # not every model finds them
    headings = getattr(encoded, "headings", None) or ("",) * len(spans)
    head = titled_words(record.title, record.keywords)
    beginning = passage_texts[0] if passage_texts else ""
    naming = naming_texts(record.id, record.title, record.metadata, beginning)
    return head, record.text, spans, headings[: len(spans)], naming


def _document_table(batch: DocumentBatch) -> dict[str, Any]:
    """The columns of the dataset `documents`."""
    records, encoded = batch.records, [encoded for _, encoded, _ in batch.made]
    passage_words = pc.count_substring(batch.columns.passage_words, " ").to_numpy() - 1
    metadata = [metadata_columns(record) for record in records]
    has_languages = batch.encoding.language == AUTO
    return {
        "doc": batch.numbers,
        "id": [record.id for record in records],
        "title": [record.title for record in records],
        "rank": [sample_rank(record.id) for record in records],
        "keywords": [record.keywords or None for record in records],
        "digest": [
            content_digest(record.title, record.text, record.keywords) for record in records
        ],
        "language": batch.languages if has_languages else [None] * len(records),
        "weight": [mean_weight(getattr(each, "weights", None), each.spans) for each in encoded],
        "passages": batch.passage_counts,
        "tokens": [each.n_tokens for each in encoded],
        "cut_tokens": [each.n_cut for each in encoded],
        "characters": batch.sums(batch.bounds[:, 1] - batch.bounds[:, 0]),
        "words": batch.sums(np.maximum(passage_words, 0)),
        NAME_WORDS: [None] * len(records),
        **{field: [row[field] for row in metadata] for field in metadata[0]},
    }


def _text_table(batch: DocumentBatch) -> dict[str, Any]:
    """The columns of the dataset `texts`."""
    return {
        "doc": batch.numbers,
        "text": [record.text for record in batch.records],
        COPY: batch.columns.copies,
        THREAD: [thread_digest(record.metadata) for record in batch.records],
        WORDS: batch.columns.words,
        FORMS: batch.columns.forms,
        NAME_WORDS: batch.columns.names,
        CALLED_BY: batch.columns.called,
    }


def _passage_table(batch: DocumentBatch) -> dict[str, Any]:
    """The columns of the dataset `passages`, but for vectors and codes."""
    shares = [
        passage_shares(record.title, text, spans)
        for record, (_, text, spans, _, _) in zip(batch.records, batch.texts, strict=True)
    ]
    headings = [headings for _, _, _, headings, _ in batch.texts]
    return {
        "passage": expand_passages(np.stack([batch.numbers, batch.passage_counts], axis=1)),
        "start": batch.bounds[:, 0],
        "stop": batch.bounds[:, 1],
        "heading": list(itertools.chain.from_iterable(headings)),
        "text": list(itertools.chain.from_iterable(batch.passage_texts)),
        COPY: batch.columns.passage_copies,
        WEIGHT: _passage_weights(batch),
        SHARE: np.concatenate(shares),
        WORDS: batch.columns.passage_words,
    }


def _passage_weights(batch: DocumentBatch) -> FloatArray:
    """How well the model knows passages, `[p]`."""
    counts = batch.passage_counts
    weights = np.ones(counts.sum(), np.float32)
    places = zip(batch.made, (np.cumsum(counts) - counts).tolist(), counts.tolist(), strict=True)
    for (_, encoded, _), first, count in places:
        own = getattr(encoded, "weights", None)  # not every model knows them
        if own is not None:
            weights[first : first + count] = own[:count]
    return weights


def _codes(batch: DocumentBatch) -> list[bytes]:
    """The codes of the tokens of documents, or of passages, which own them."""
    of_passages = batch.encoding.tokens_of == "passage"
    codes = []
    for _, _, tokens in batch.made:
        if tokens is not None:
            owned = tokens.ranges.tolist() if of_passages else [(0, len(tokens.codes))]
            codes += [tokens.codes[start:stop].tobytes() for start, stop in owned]
    return codes


def _vector_table(batch: DocumentBatch) -> dict[str, Any]:
    """The columns of the dataset `vectors`: of documents whose vector no passage has."""
    encoding, made = batch.encoding, batch.made
    of_passage = _of_passage(made) if "passage" in encoding.kinds else set()
    has_vectors = "document" in encoding.kinds
    own = [doc for doc in range(len(made)) if has_vectors and doc not in of_passage]
    vectors = np.array([made[doc][1].vector for doc in own]).reshape(len(own), encoding.dim)
    return {"doc": batch.numbers[own], VECTOR: fixed_lists(vectors, batch.vector_type)}


def mean_weight(weights: FloatArray | None, spans: IntArray) -> float:
    """The weight of a document's vector: the mean of its passages', each by its length."""
    if weights is None or not len(weights):
        return 1.0
    lengths = np.maximum(spans[:, 1] - spans[:, 0], 1)
    return float((weights * lengths).sum() / lengths.sum())


def columns_by_language(
    encoding: Encoding, codes: Sequence[str], texts: Sequence[Text]
) -> TextColumns:
    """Return `text_columns` of documents, each by the rules of its language."""
    parts, documents = _made_by_rules(encoding, codes, texts, text_columns)
    if len(parts) == 1:
        return parts[0]
    counts = np.array([len(spans) for _, _, spans, _, _ in texts], np.int64)
    starts = np.cumsum(counts) - counts
    passages = ranges(starts[documents], counts[documents])
    return TextColumns.concatenated(parts).take(np.argsort(documents), np.argsort(passages))


def different_words_by_language(
    encoding: Encoding, codes: Sequence[str], texts: Sequence[str]
) -> pa.Array:
    """Return `different_words` of texts, each by the rules of its document's language."""
    parts, documents = _made_by_rules(encoding, codes, texts, different_words)
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(documents)))


def _made_by_rules(
    encoding: Encoding,
    codes: Sequence[str],
    texts: Sequence[Worded],
    make: Callable[[Language, list[Worded]], Words],
) -> tuple[list[Words], IntArray]:
    """What the rules of each language make of its texts, and the places `[n]` of these texts, one
    language behind the other.
    """
    if encoding.language != AUTO:
        return [make(rules_of(encoding), [*texts])], np.arange(len(codes))
    names = np.array([stemmer_of(code) for code in codes])
    groups = [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]
    parts = [
        make(rules_of(encoding, [codes[int(places[0])]]), [texts[n] for n in places.tolist()])
        for places in groups
    ]
    return parts, np.concatenate(groups)


def _of_passage(made: Sequence[Made]) -> set[int]:
    """The places of documents whose vector is that of their only passage, but for rounding."""
    alone = [doc for doc, (_, encoded, _) in enumerate(made) if len(encoded.passages) == 1]
    if not alone:
        return set()
    vectors = np.stack([made[doc][1].vector for doc in alone])
    passages = np.concatenate([made[doc][1].passages for doc in alone])
    is_same = np.abs(vectors - passages).max(axis=1, initial=0) <= MAX_ROUNDING
    return {alone[place] for place in np.flatnonzero(is_same).tolist()}


def place_of(path: str) -> str:
    """The path of a file as it is known to an index, however it was named."""
    parent, name = os.path.split(path)
    # a text, which may have stood for other bytes
    return os.path.join(  # noqa: PTH118
        os.path.realpath(parent), name
    )


def left_out_of(item: Notice | Rejected) -> tuple[str, str] | None:
    """The place and the reason where a file of a folder is left out, or a part of one, that a
    search could have found.
    """
    if isinstance(item, Rejected):
        return (place_of(item.location.source), item.reason) if item.in_folder else None
    return (place_of(item.path), item.reason) if item.is_loss else None


def ocr_try_of(item: Notice | Rejected) -> tuple[str, OcrTry] | None:
    """The place of a file that OCR may read more of another time, and the conditions."""
    if item.ocr_try is None:
        return None
    path = item.location.source if isinstance(item, Rejected) else item.path
    return place_of(path), item.ocr_try


def watch_pictures(progress: Progress) -> Watch:
    """Return what shows how many pages OCR has read."""
    return lambda done, total: progress("reading pages by OCR", done, total, 0)


BATCH_BYTES = 32 << 20
BATCH_DOCUMENTS = 8192
BATCH_SECONDS = 30.0
REPORT_SECONDS = 0.2
MAX_ROUNDING = 1e-7  # of a number of a unit vector: a document's mean is summed in another order
LOOK_AHEAD_ITEMS = 256  # items whose ids are looked up together
Action = Literal["encode", "keep", "metadata", "reject", "pass"]
CHANGING: tuple[Action, ...] = ("encode", "keep")  # after which a document has new rows


@dataclass(frozen=True)
class PlannedItem:
    """One item of the input, where it stands, the hash of the input up to and with it, and what is
    to be done.

    "keep" takes the vectors of `doc`, whose title and text are the same. "pass" is for an item of
    another share, which is not kept.
    """

    item: Record | Rejected | None
    position: int
    digest: str
    action: Action
    doc: int = 0

    @property
    def record(self) -> Record:
        assert isinstance(self.item, Record)
        return self.item


class Ingestion:
    """Feeds one stream of documents, with their vectors from `source`, into a change.

    `mode` "add" takes only new ids; "upsert" replaces documents whose id is known, and encodes only
    what has changed. Of `total` items, if that is known, the transaction's `progress` is called.
    """

    def __init__(
        self,
        transaction: Transaction,
        source: VectorSource,
        *,
        mode: Literal["add", "upsert"],
        on_error: OnError,
        share: tuple[int, int] | None = None,
        total: int | None = None,
    ) -> None:
        self.transaction, self._share, self._total = transaction, share, total
        self._encoding = transaction.state.encoding
        self._source, self._mode, self._on_error = source, mode, on_error
        self._progress = transaction.progress
        self._waiting: deque[PlannedItem] = deque()  # read, not yet encoded
        self._batch: list[tuple[PlannedItem, Encoded | None, TokenCodes | None]] = []
        self._batch_bytes, self._tokens = 0, 0
        self._tokens_read = 0  # of documents that are not encoded whole yet
        self._next_doc = transaction.state.next_doc  # of what is not handed on yet
        self._writing: Future[Sequence[PlannedItem]] | None = None
        self._ids = _Ids(transaction)
        self._same_vectors: set[str] = set()  # ids looked up last, where the given vector is stored
        self._last_commit = time.monotonic()
        self._last_reported = 0.0
        stored = transaction.tables.languages() if transaction.base is not None else {}
        self._languages = DocumentLanguages(stored)
        self.notices: list[Notice] = []
        self.left_out: dict[str, str] = {}  # files of folders, with the reasons
        self.ocr_tries: dict[str, OcrTry] = {}
        self.first_rejected: Rejected | None = None

    def run(self, items: Iterable[Item]) -> int:
        """Take the whole input in; returns how many items it had.

        Its notices are kept and change nothing.
        """
        state = self.transaction.state
        self._progress("encoding", state.consumed, self._total, 0)
        with ThreadPoolExecutor(1) as self._words, ThreadPoolExecutor(1) as self._writer:
            try:
                for encoded in from_outside(
                    self._source.encode(self._to_encode(items), self._read)
                ):
                    while self._waiting and self._waiting[0].action != "encode":
                        self._take(self._waiting.popleft())
                    if not self._waiting:
                        raise ModelError(
                            "the model gave more vectors than it was given documents; it must"
                            " return one result for each document, in order"
                        )
                    self._take(self._waiting.popleft(), encoded)
                for step in self._waiting:
                    if step.action == "encode":
                        name = step.record.id
                        raise ModelError(
                            f"the model gave no vectors for the document {name!r}; it must"
                            " return vectors for every document"
                        )
                    self._take(step)
                self._commit(save=False)
            finally:
                self._written()  # what failed there came first
        return state.consumed

    def _steps(self, items: Iterable[Item]) -> Iterator[PlannedItem]:
        state = self.transaction.state
        consumed, expected = state.consumed, state.digest
        position, digest = 0, ""
        read = self._without_notices(items)
        while batch := list(
            itertools.islice(read, LOOK_AHEAD_ITEMS if position >= consumed else 1)
        ):
            self._ids.look_up((item.id for item in batch if isinstance(item, Record)), self._tables)
            self._same_vectors = self._with_stored_vectors(batch, position)
            for item in batch:
                position, digest = position + 1, chain_digest(digest, item)
                if position > consumed and not self._is_mine(item, position):
                    yield PlannedItem(None, position, digest, "pass")
                elif position > consumed:
                    yield self._step(item, position, digest)
                elif position == consumed:
                    self._check_same_input(digest == expected, consumed)
        self._check_same_input(position >= consumed, consumed)

    def _is_mine(self, item: Record | Rejected, position: int) -> bool:
        """Whether an item is of the share; what is no document is counted by one of them."""
        if self._share is None:
            return True
        number, of = self._share
        if isinstance(item, Record):
            return shard_of(item.id, of) == number
        if item.stops(self._on_error):
            raise item.error()
        return position % of + 1 == number

    def _without_notices(self, items: Iterable[Item]) -> Iterator[Record | Rejected]:
        for item in items:
            if not isinstance(item, Record) and (path_and_reason := left_out_of(item)):
                self.left_out[path_and_reason[0]] = path_and_reason[1]
            if not isinstance(item, Record) and (ocr_try := ocr_try_of(item)):
                self.ocr_tries[ocr_try[0]] = ocr_try[1]
            if isinstance(item, Notice):
                self.notices.append(item)
            else:
                yield item

    def _check_same_input(self, same: bool, consumed: int) -> None:
        if not same:
            raise ConfigError(
                f"{self.transaction.place}: the first {consumed:,} documents of the input"
                " differ from those of the interrupted change; give the same input, or discard"
                " its work with --restart"
            )

    def _step(self, item: Record | Rejected, position: int, digest: str) -> PlannedItem:
        if isinstance(item, Record):
            waiting = self._ids.waiting[item.id] > 0
            # what is stored of a document that changes is no longer what it will be
            changing = self._ids.changing[item.id] > 0
            stored = None if changing else self._ids.find(item.id, self._tables)
            if item.id_is_made and (waiting or stored):  # the very same document
                self._ids.waiting[item.id] += 1
                return PlannedItem(item, position, digest, "metadata")
            if self._mode == "add" and (waiting or stored):
                item = Rejected(
                    item.location,
                    f"the id {item.id!r} is already in use by an earlier document",
                    item.raw(),
                )
            else:
                action, doc = self._least_work(item, stored)
                self._ids.waiting[item.id] += 1
                if action in CHANGING:
                    self._ids.changing[item.id] += 1
                return PlannedItem(item, position, digest, action, doc)
        if item.stops(self._on_error):
            raise item.error()
        self.first_rejected = self.first_rejected or item
        return PlannedItem(item, position, digest, "reject")

    def _least_work(self, record: Record, stored: tuple[int, bytes] | None) -> tuple[Action, int]:
        """The cheapest way to have this document's vectors, given the stored document of the same
        id, and the number of the document whose vectors are kept.
        """
        if stored is None:
            return "encode", 0
        doc, content = stored
        if content == content_digest(record.title, record.text, record.keywords):
            # the vectors that are given may be others
            is_known = not self._source.is_given or (
                record.id in self._same_vectors and not self._ids.is_recent(record.id)
            )
            return ("metadata" if is_known else "encode"), 0
        may_move = record.origin is not None  # a file has other keywords by another path
        if doc >= self.transaction.state.first_doc or not may_move:
            return "encode", 0
        old = self._tables().read_documents([doc])[doc]
        if (old.title, old.text) == (record.title, record.text):
            return "keep", doc
        return "encode", 0

    def _with_stored_vectors(self, items: Sequence[Record | Rejected], first: int) -> set[str]:
        """The ids of documents whose text and given vector are stored already, of items that were
        looked up; `first` is the place in the input of the first of them, from 0.
        """
        if not isinstance(self._source, PrecomputedSource) or not self._source.is_given:
            return set()
        known_vectors = dict[str, tuple[int, FloatArray]]()
        for position, item in enumerate(items, start=first):
            stored_document = (
                self._ids.find(item.id, self._tables) if isinstance(item, Record) else None
            )
            if isinstance(item, Record) and stored_document is not None:
                doc, content = stored_document
                if content == content_digest(item.title, item.text, item.keywords):
                    known_vectors[item.id] = doc, self._source.vector(position, item.id)
        if not known_vectors:
            return set()
        stored = self._tables().vectors(
            "document", np.array([doc for doc, _ in known_vectors.values()])
        )
        rounded = np.stack([vector for _, vector in known_vectors.values()])
        rounded = rounded.astype(self._encoding.storage_dtype).astype(np.float32)
        is_stored = (rounded == stored).all(axis=1)
        return {name for name, same in zip(known_vectors, is_stored.tolist(), strict=True) if same}

    def _to_encode(self, items: Iterable[Item]) -> Iterator[PlannedItem]:
        """Plan what is done with the input, and yield what has to be encoded."""
        with disk_errors(self.transaction.index_dir):  # what is written here is pulled by a model
            for step in self._steps(from_outside(items)):
                if step.action != "encode" and not self._waiting:
                    self._take(step)
                    continue
                self._waiting.append(step)
                if step.action == "encode":
                    yield step

    def _take(self, step: PlannedItem, encoded: Encoded | None = None) -> None:
        tokens = None
        self._batch_bytes += len(step.record.text) if isinstance(step.item, Record) else 0
        if step.action == "keep":
            encoded, tokens = self._stored(step)
        elif encoded is not None and self._encoding.token_codec is not None:
            tokens = _tokens(encoded, step)
        if encoded is not None:
            self._check(encoded, step)
            self._batch_bytes += encoded.vector.nbytes + encoded.passages.nbytes
            self._batch_bytes += 0 if tokens is None else tokens.codes.nbytes
            self._tokens += encoded.n_tokens
            self._tokens_read = max(0, self._tokens_read - encoded.n_tokens)
        self._batch.append((step, encoded, tokens))
        full = self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_DOCUMENTS
        if full or time.monotonic() - self._last_commit > BATCH_SECONDS:
            self._commit(save=True)
        elif time.monotonic() - self._last_reported >= REPORT_SECONDS:
            self._progress("encoding", step.position, self._total, self._tokens)
            self._last_reported = time.monotonic()

    def _read(self, tokens: int) -> None:
        """Show that tokens of a document were read: a long one takes minutes."""
        self._tokens_read += tokens
        if time.monotonic() - self._last_reported >= REPORT_SECONDS:
            position, read = self._waiting[0].position - 1, self._tokens + self._tokens_read
            self._progress("encoding", position, self._total, read)
            self._last_reported = time.monotonic()

    def _tables(self) -> Tables:
        """The datasets, which nothing is being written to."""
        self._written()
        return self.transaction.tables

    def _written(self) -> None:
        """Wait for the batch that is being written, if there is one."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._wrote(writing.result())

    def _wrote(self, steps: Sequence[PlannedItem]) -> None:
        """Note the documents that were written, and tell how far it is."""
        self._ids.committed(steps)
        self._progress("encoding", self.transaction.state.consumed, self._total, self._tokens)

    def _commit(self, *, save: bool) -> None:
        """Hand the batch on to be written; the one before is, when this returns."""
        if not self._batch:
            return
        batch, self._batch, self._batch_bytes, self._last_commit = (
            self._batch,
            [],
            0,
            time.monotonic(),
        )
        made = [
            (step.record, encoded, tokens) for step, encoded, tokens in batch if encoded is not None
        ]
        last = {row[0].id: row for row in made}  # of the same id, the last one
        if self.transaction.base is not None:
            self._written()  # it may be of the same documents
        edits = self.transaction.edits_of(last)
        made = [
            (record.edited(edits.get(name)), encoded, tokens)
            for name, (record, encoded, tokens) in last.items()
        ]
        codes = self._languages.of([record.text for record, _, _ in made])
        documents = partial(find_words, made, self._next_doc, self._encoding, codes)
        self._next_doc += len(made)
        write = partial(self._write, [step for step, _, _ in batch], {*last}, save=save)
        if self._source.writes_beside:
            worded = self._words.submit(documents)
            self._written()
            self._writing = self._writer.submit(write, worded.result)
        else:
            self._wrote(write(documents))

    def _write(
        self,
        steps: Sequence[PlannedItem],
        made: set[str],
        documents: Callable[[], DocumentBatch | None],
        *,
        save: bool,
    ) -> Sequence[PlannedItem]:
        """Write a batch, in which the documents whose ids are `made` have new rows, and return
        it.
        """
        transaction, state = self.transaction, self.transaction.state
        replaced = transaction.tables.find(made) if self._mode == "upsert" else {}
        transaction.remove(np.array([doc for doc, _ in replaced.values()], dtype=np.int64))
        batch = documents()
        if batch is not None:
            transaction.add(*make_rows(batch))
        again = [step.record for step in steps if step.action == "metadata"]
        # a document that comes again is encoded anew: what was said of it before is over
        updated = transaction.set_metadata(
            {record.id: record for record in again if record.id not in made}
        )
        transaction.reject(step.item for step in steps if isinstance(step.item, Rejected))
        added, encoded = (
            len(made) - len(replaced),
            sum(step.action in CHANGING for step in steps),
        )
        transaction.count(
            added=added,
            replaced=encoded - added,
            updated=updated,
            unchanged=len(again) - updated,
        )
        state.consumed, state.digest = steps[-1].position, steps[-1].digest
        if save:
            transaction.save()
        return steps

    def _stored(self, step: PlannedItem) -> tuple[Encoded, TokenCodes | None]:
        """What was encoded of a document that only has other keywords."""
        docs = np.array([step.doc], np.int64)
        stored = next(
            stored_documents(str(self.transaction.root), self._tables(), self._encoding, docs)
        )
        encoded = encoded_of(stored)
        return encoded, encoded.tokens

    def _check(self, encoded: Encoded, step: PlannedItem) -> None:
        wrong = unusable(encoded, self._encoding.dim)
        if wrong is None and len(encoded.spans) >= MAX_PASSAGES:
            wrong = (
                f"{len(encoded.spans)} passages, at most {MAX_PASSAGES - 1} are possible; cut it"
                " in two"
            )
        if wrong is not None:
            raise InputError(f"{step.record.location}: document {step.record.id!r}: {wrong}")


class _Ids:
    """What is stored under the ids of an input, looked up some at a time.

    A build from nothing would look through all that it has written for each of them, so it first
    asks the hashes of these ids, which take about 70 bytes each.

    Attributes:
        waiting: How many items of each id wait for their commit.
        changing: How many of these give the document new rows.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._stored_by_id: dict[str, tuple[int, bytes]] = {}
        self._recent: set[str] = set()  # committed since the last look-up began
        stored = transaction.tables.documents
        self._hashes = None if transaction.base else set(stored.scan(["rank"])["rank"].to_pylist())
        self.waiting: Counter[str] = Counter()
        self.changing: Counter[str] = Counter()

    def look_up(self, ids: Iterable[str], tables: Callable[[], Tables]) -> None:
        # `tables` may wait for a batch to be written: its documents are not among those that are
        # sought, and become recent meanwhile
        self._recent = set()
        sought_ids = [i for i in ids if self._hashes is None or sample_rank(i) in self._hashes]
        self._stored_by_id = tables().find(sought_ids) if sought_ids else {}

    def find(self, document_id: str, tables: Callable[[], Tables]) -> tuple[int, bytes] | None:
        """Number and content digest of the stored document with an id that was looked up."""
        if document_id in self._recent:
            return tables().find([document_id]).get(document_id)
        return self._stored_by_id.get(document_id)

    def is_recent(self, document_id: str) -> bool:
        """Whether a document may have changed since it was looked up."""
        return document_id in self._recent

    def committed(self, steps: Iterable[PlannedItem]) -> None:
        records = [(step.record.id, step.action) for step in steps if isinstance(step.item, Record)]
        ids = [document_id for document_id, _ in records]
        self.waiting -= Counter(ids)
        self.changing -= Counter(i for i, action in records if action in CHANGING)
        self._recent.update(ids)
        if self._hashes is not None:
            self._hashes.update(map(sample_rank, ids))


def _tokens(encoded: Encoded, step: PlannedItem) -> TokenCodes:
    tokens: TokenCodes | None = getattr(encoded, "tokens", None)
    if tokens is None:
        raise ModelError(
            f"the model gave no token vectors of the document {step.record.id!r}; leave"
            " token_vectors out"
        )
    return tokens


class ModelSource:
    """Encodes documents with a model."""

    is_given = False

    def __init__(self, embedder: EmbedderLike) -> None:
        self.embedder = embedder

    @property
    def writes_beside(self) -> bool:
        """Whether a batch is written while the next one is encoded.

        A model on the CPU takes all processors: writing beside it would only add memory to its own.
        """
        return not takes_processors(self.embedder)

    def encode(
        self, steps: Iterator[PlannedItem], watch: Callable[[int], None]
    ) -> Iterator[Encoded]:
        """Return one result for each step, in order; `watch` is given counts of tokens meanwhile.

        It may read ahead, but only in the calling thread: pulling a step may commit those before
        it.
        """
        embedder = self.embedder
        if isinstance(embedder, WatchedEncoder):
            embedder = embedder.with_watch(watch)
        pairs = ((step.record.prefix, step.record.text) for step in steps)
        # only as they are asked for: a model may work when it is called
        yield from embedder.encode_documents(pairs)

    def check_fits(self, encoding: Encoding, where: object) -> None:
        """Raise an error of ours where these vectors do not fit the index at `where`."""
        if encoding.model is None:
            raise ConfigError(
                f"{where}: made from ready-made vectors; add documents with vectors of the same"
                " model"
            )
        check_fingerprint(encoding.model, encoding.dim, self.embedder, where)

    def describe(self) -> None:
        """Nothing: `check_fits` has compared the model already."""


class PrecomputedSource:
    """Takes the vectors that documents of an index bring along, or those of a file at their place
    in the corpus.
    """

    writes_beside = True  # no model needs the processors and the memory

    def __init__(self, vectors: PrecomputedVectors | StoredShards) -> None:
        # those of stored shards are of the same model and text, and therefore the same
        self.is_given = isinstance(vectors, PrecomputedVectors)
        self.vectors = vectors

    def encode(
        self, steps: Iterator[PlannedItem], _watch: Callable[[int], None]
    ) -> Iterator[Encoded]:
        if isinstance(self.vectors, StoredShards):
            return (encoded_of(step.record) for step in steps)
        return (self.vectors.document(step.position - 1, step.record.id) for step in steps)

    def vector(self, position: int, document_id: str) -> FloatArray:
        """The given unit vector `[d]` of the document at `position` of the corpus, from 0."""
        assert isinstance(self.vectors, PrecomputedVectors)  # `is_given`
        return self.vectors.document(position, document_id).vector

    def check_fits(self, encoding: Encoding, where: object) -> None:
        if isinstance(self.vectors, StoredShards):
            encoding.check_takes(self.vectors.encoding, where, self.vectors.name)
            return
        if encoding.token_vectors is not None:
            raise ConfigError(
                f"{self.vectors.name}: no token vectors, which {where} has of every document;"
                " add documents with its model instead"
            )
        if encoding.granularity != "document" or self.vectors.dim != encoding.dim:
            raise ConfigError(
                f"{self.vectors.name}: one vector of dimension {self.vectors.dim} per document, but"
                f" {where} has granularity {encoding.granularity!r} and dimension {encoding.dim}"
            )

    def check_all_used(self, documents: int) -> None:
        """Raise InputError where there are vectors for another number of documents than
        were read.
        """
        if documents != len(self.vectors):
            raise InputError(
                f"{self.vectors.name}: {len(self.vectors)} vectors for {documents} documents of the"
                " corpus; one row each is needed"
            )

    def describe(self) -> str:
        """Identify the vectors, so that an interrupted change never continues with others."""
        return self.vectors.describe()


VectorSource: TypeAlias = "ModelSource | PrecomputedSource"


def open_vectors(
    vectors: Vectors | None, corpus: object
) -> PrecomputedVectors | StoredShards | None:
    """Open ready-made vectors: an array, a file of them, an index, or several; None where none are
    given.
    """
    if vectors is None:
        if corpus is None:
            raise ConfigError("no corpus and no vectors: give at least one of them")
        return None
    if isinstance(vectors, np.ndarray) or (
        isinstance(vectors, (str, Path)) and not Path(vectors).is_dir()
    ):
        return PrecomputedVectors.open(vectors)
    if corpus is not None:
        raise ConfigError(
            f"{vectors}: an index already holds documents with their vectors; leave the corpus out"
        )
    return StoredShards(vectors)
