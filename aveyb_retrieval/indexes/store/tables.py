"""The documents of an index as a Lance dataset and three tables of our own, and what is read from
them.

    documents   doc, id, title, keywords, metadata (JSON), rank (of its id's hash), digest (of
                title, keywords and text), language (ISO 639-1, by whose rules its words are made;
                null where all have the same), weight (of its vector, 0 to 1, see
                `encoder.text.knowledge`), passages, tokens, cut_tokens, characters, words (counts;
                the last two of its passages), file_sha256, labels_sha256, folder, pages (JSON;
                these four are null where it was not read from a file of its own), edits (JSON: what
                people set in the metadata, which hold it already; null where nobody did), names
                (null unless id or metadata have changed since those of `texts` were written)
    texts       doc, text, copy (the digest of its words), thread (of the conversation that a mail
                belongs to, 0 for none), words (of title, keywords and text), forms (these as they
                are written, where they are stemmed), names (the words of id, title and metadata),
                called (these and those of the beginning, see `store.called`), codes
    vectors     doc, vector: none of a document whose only passage has the same one
    passages    passage, start, stop (characters of the document's text), copy (the digest of its
                words), weight, share (how much it counts: less of what a mail only repeats,
                see `encoder.text.quoting`), heading, text (from there to where the next one starts,
                or to its stop if that comes later), words (of heading and passage), vector, codes

`vector` is a fixed-size list of d float32 or float16 of unit length, where the index keeps that
kind; `codes` are those of the tokens, one row of bytes after the other, where it keeps them. What a
change of metadata rewrites is in `documents` alone. Lance sorts the keys of JSON: metadata come
back equal to what was given, types included, and in another order. A document's number, `doc`, is
given once and never again; its passage `i` has `doc << 20 | i`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import pyarrow as pa

from aveyb_retrieval.documents.records import Edits, FileOrigin, Pages
from aveyb_retrieval.encoder.network.token_codec import TokenCodes
from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.store.called import CalledBy
from aveyb_retrieval.indexes.store.copies import NO_THREAD, UNLINKED
from aveyb_retrieval.indexes.store.dataset import LanceTable
from aveyb_retrieval.indexes.store.expressions import TimedExpression
from aveyb_retrieval.indexes.store.filters import (
    ALL,
    OWN,
    compile_filter,
    elements_at,
    expressions_of,
    field_keys,
    join,
    json_path_of,
    no_such_field,
    quoted,
)
from aveyb_retrieval.indexes.store.lance_session import damage
from aveyb_retrieval.indexes.store.manifest import DOCUMENTS, ROW_TABLES, TableFiles
from aveyb_retrieval.indexes.store.rows import CALLED_BY, FORMS, NAME_WORDS, VECTOR, WORDS, RowTable
from aveyb_retrieval.indexes.store.shares import (
    FIRST_SIGNED_SHARE,
    FORWARDED_SHARE,
    QUOTED_SHARE,
    SIGNED_SHARE,
)
from aveyb_retrieval.indexes.store.words import PLAIN
from aveyb_retrieval.indexes.types import (
    END_NUMBER,
    MAX_PASSAGES,
    PASSAGE_BITS,
    expand_passages,
    find_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec
    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.store.filters import Expression, Filter, Scalar
    from aveyb_retrieval.indexes.store.rows import NewFiles
    from aveyb_retrieval.indexes.types import BoolArray, FloatArray, IntArray, Kind

CODES = "codes"
COPY = "copy"  # the digest of a text's words
THREAD = "thread"  # the digest of the conversation that a mail belongs to
WEIGHT = "weight"
SHARE = "share"  # how much a passage counts
_TITLE = ("title", "keywords", "file_sha256", "labels_sha256", "folder", "pages")
Part = Literal["title", "metadata", "text"]
# of a document, which are read by themselves; the pages come with the title
PARTS: tuple[Part, ...] = get_args(Part)
COUNTS = ("passages", "tokens", "cut_tokens", "characters", "words")


class StoredDocument(NamedTuple):
    """A document as it is stored; `of_index` names its index where several are searched."""

    doc: int
    id: str
    title: str
    text: str
    metadata: dict[str, Any]
    origin: FileOrigin | None = None
    of_index: str | None = None
    keywords: str = ""


@dataclass(frozen=True)
class StoredPassages:
    """Passages as a search ranks them, in columns `[n]`, ascending by number."""

    numbers: IntArray
    spans: IntArray  # characters `[start, stop)` in the documents' texts, `[n, 2]`
    held: BoolArray  # which of `t` words that were asked for each holds, `[n, t]`

    @classmethod
    def of(
        cls, numbers: IntArray, starts: IntArray, stops: IntArray, held: BoolArray
    ) -> StoredPassages:
        """Put columns that are in any order into that of their numbers."""
        order = np.argsort(numbers)
        return cls(numbers[order], np.stack([starts, stops], axis=1)[order], held[order])

    @classmethod
    def none(cls, words: int) -> StoredPassages:
        return cls(
            np.empty(0, np.int64), np.empty((0, 2), np.int64), np.empty((0, words), np.bool_)
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def rows(self, numbers: IntArray) -> IntArray:
        """The rows `[m]` of passages by their numbers `[m]`; -1 for those that are not
        among these.
        """
        places, is_present = find_in(self.numbers, numbers)
        return np.where(is_present, places, -1)

    def take(self, rows: IntArray) -> StoredPassages:
        """Those in some rows, ascending."""
        return StoredPassages(self.numbers[rows], self.spans[rows], self.held[rows])

    def joined(self, more: StoredPassages) -> StoredPassages:
        columns = (
            np.concatenate([getattr(self, name), getattr(more, name)])
            for name in ("numbers", "spans", "held")
        )
        numbers, spans, held = columns
        return StoredPassages.of(numbers, spans[:, 0], spans[:, 1], held)


class ShownPassage(NamedTuple):
    """What is shown of a passage: its text with what comes before the next one, and what reads the
    heading over it.
    """

    text: str
    heading: Callable[[], str]  # "" where there is none
    span: tuple[int, int]  # characters `[start, stop)` in the document's text


def texts_of_passages(text: str, spans: IntArray) -> list[str]:
    """What is stored of a text for each of its passages, `[n, 2]`: parts that neighbors can be put
    together of.
    """
    following = [*spans[1:, 0].tolist(), 0]
    return [
        text[start : max(stop, end)]
        for (start, stop), end in zip(spans.tolist(), following, strict=False)
    ]


def schemas(encoding: Encoding) -> dict[str, pa.Schema]:
    """The columns of each dataset of an index."""
    number = pa.float16() if encoding.storage_dtype == "float16" else pa.float32()
    vector = pa.field(VECTOR, pa.list_(number, encoding.dim))
    codes = [pa.field(CODES, pa.large_binary())] if encoding.token_codec is not None else []
    return {
        "documents": pa.schema(
            [
                pa.field("doc", pa.int64()),
                pa.field("id", pa.string()),
                pa.field("title", pa.large_string()),
                pa.field("keywords", pa.large_string()),
                pa.field("metadata", pa.json_(pa.string())),
                pa.field("rank", pa.int64()),
                pa.field("digest", pa.binary(32)),
                pa.field("language", pa.string()),
                pa.field(WEIGHT, pa.float32()),
                *(pa.field(name, pa.int64()) for name in COUNTS),
                pa.field("file_sha256", pa.string()),
                pa.field("labels_sha256", pa.string()),
                pa.field("folder", pa.string()),
                pa.field("pages", pa.large_string()),
                pa.field("edits", pa.large_string()),
                pa.field(NAME_WORDS, pa.large_string()),
            ]
        ),
        "texts": pa.schema(
            [
                pa.field("doc", pa.int64()),
                pa.field("text", pa.large_string()),
                pa.field(COPY, pa.int64()),
                pa.field(THREAD, pa.int64()),
                pa.field(WORDS, pa.large_string()),
                *([] if encoding.language == PLAIN else [pa.field(FORMS, pa.large_string())]),
                pa.field(NAME_WORDS, pa.large_string()),
                pa.field(CALLED_BY, pa.large_string()),
                *(codes if encoding.tokens_of == "document" else []),
            ]
        ),
        "vectors": pa.schema([pa.field("doc", pa.int64()), vector]),
        "passages": pa.schema(
            [
                pa.field("passage", pa.int64()),
                pa.field("start", pa.int64()),
                pa.field("stop", pa.int64()),
                pa.field(COPY, pa.int64()),
                pa.field(WEIGHT, pa.float32()),
                pa.field(SHARE, pa.float32()),
                *(pa.field(column, pa.large_string()) for column in ("heading", "text", WORDS)),
                *([vector] if "passage" in encoding.kinds else []),
                *(codes if encoding.tokens_of == "passage" else []),
            ]
        ),
    }


class Described(Protocol):
    """What says what tables are made of: a manifest, or how far a change is."""

    @property
    def tables(self) -> TableFiles:
        """The pieces of the tables."""

    @property
    def encoding(self) -> Encoding:
        """How vectors and words were made."""


@dataclass(frozen=True)
class Tables:
    """The tables of an index, each open at one version."""

    root: Path
    documents: LanceTable
    texts: RowTable
    own_vectors: RowTable
    passages: RowTable

    @classmethod
    def create(cls, root: Path, encoding: Encoding) -> Tables:
        """Make them, empty, as new versions of those that are there."""
        documents = LanceTable.create(
            root / f"{DOCUMENTS}.lance", schemas(encoding)[DOCUMENTS], "doc"
        )
        return cls._of(root, documents, TableFiles(), encoding, None, None)

    @classmethod
    def open(
        cls,
        root: Path,
        version: Described,
        before: Tables | None = None,
        at: str | None = None,
    ) -> Tables:
        """Open a version, in the store `at`; much of `before`, another version, is kept."""
        documents = LanceTable.open(
            root / f"{DOCUMENTS}.lance",
            version.tables.documents,
            "doc",
            before.documents if before is not None else None,
            None if at is None else f"{at}/{DOCUMENTS}.lance",
        )
        return cls._of(root, documents, version.tables, version.encoding, before, at)

    @classmethod
    def _of(
        cls,
        root: Path,
        documents: LanceTable,
        contents: TableFiles,
        encoding: Encoding,
        before: Tables | None,
        at: str | None,
    ) -> Tables:
        described, tables = schemas(encoding), dict[str, RowTable]()
        for name in ROW_TABLES:
            listed = (WORDS, FORMS, NAME_WORDS)
            columns = [column for column in listed if column in described[name].names]
            tables[name] = RowTable(
                root,
                name,
                described[name],
                documents,
                shift=PASSAGE_BITS if name == "passages" else 0,
                pieces=contents.rows.get(name, ()),
                words={column: contents.words.get(f"{name}/{column}", ()) for column in columns},
                before=None if before is None else before.rows[name],
                address=at,
            )
        return cls(root, documents, tables["texts"], tables["vectors"], tables["passages"])

    @property
    def rows(self) -> dict[str, RowTable]:
        """The tables of our own, by name."""
        return {table.name: table for table in (self.texts, self.own_vectors, self.passages)}

    @property
    def contents(self) -> TableFiles:
        """What they are made of."""
        words = {
            f"{name}/{column}": list(index.parts)
            for name, table in self.rows.items()
            for column, index in table.words.items()
        }
        pieces = {name: list(table.pieces) for name, table in self.rows.items()}
        return TableFiles(self.documents.version, pieces, words)

    def files(self) -> set[str]:
        """All files that these versions are made of, relative to the index directory."""
        listed = {f"{self.documents.path.name}/{name}" for name in self.documents.files()}
        return listed | set(self.contents.files)

    def add(self, rows: Mapping[str, pa.Table], first: int, stop: int, new: NewFiles) -> None:
        """Add the rows of the documents numbered in `[first, stop)`, by table."""
        self.documents.append(rows[DOCUMENTS])
        for name, table in self.rows.items():
            table.moved()
            table.append(rows[name], first, stop, new)

    def delete(self, docs: IntArray) -> None:
        """Delete documents, and with them all their rows; those that are not there are fine."""
        self.documents.delete(docs)
        for table in self.rows.values():
            table.moved()

    def replace_documents(self, docs: IntArray, rows: pa.Table) -> None:
        """Write the rows of documents anew in the dataset of documents."""
        self.documents.delete(docs)
        self.documents.append(rows)

    def of(self, kind: Kind) -> RowTable:
        """The table that holds the texts and words of a kind."""
        return self.texts if kind == "document" else self.passages

    # --- documents -------------------------------------------------------------------------------

    def find(self, ids: Iterable[str]) -> dict[str, tuple[int, bytes]]:
        """Number and content digest of documents by their ids; those that are not there are left
        out.
        """
        unique_ids = list(dict.fromkeys(ids))
        documents_by_id: dict[str, tuple[int, bytes]] = {}
        for start in range(0, len(unique_ids), 1024):
            listed = ",".join(quoted(name) for name in unique_ids[start : start + 1024])
            rows = self.documents.scan(["doc", "id", "digest"], f"id IN ({listed})")
            documents_by_id |= {row["id"]: (row["doc"], row["digest"]) for row in rows.to_pylist()}
        return documents_by_id

    def edits(self, docs: Iterable[int]) -> dict[str, Edits]:
        """What people set in the metadata of documents `docs`, by id; those without are
        left out.
        """
        rows = self.documents.take(
            np.array(sorted(docs), dtype=np.int64), ["id", "edits"]
        ).to_pylist()
        return {row["id"]: self.edits_in(row) for row in rows if row["edits"] is not None}

    def edits_in(self, row: Mapping[str, Any]) -> Edits:
        """What people set in the metadata of a document, by its row."""
        if row["edits"] is None:
            return Edits(self._metadata(row))
        try:
            return Edits.from_json(row["edits"])
        except (ValueError, RecursionError) as error:
            what = f"what was set in the metadata of document {row['id']!r} is damaged ({error})"
            raise self._damaged(what) from error

    def read_documents(
        self, docs: Sequence[int], parts: Sequence[Part] = PARTS
    ) -> dict[int, StoredDocument]:
        """Fetch documents by number; those that are not there, and parts not asked for, are left
        out.
        """
        numbers = np.array(docs, dtype=np.int64)
        if tuple(parts) == ("text",):
            rows = self.texts.take(numbers, ["text"]).to_pylist()
            return {
                row["doc"]: StoredDocument(row["doc"], "", "", row["text"], {}, None)
                for row in rows
            }
        columns = [
            "id",
            *(_TITLE if "title" in parts else ()),
            *(["metadata"] if "metadata" in parts else []),
        ]
        documents = {}
        for row in self.documents.take(numbers, columns).to_pylist():
            metadata = self._metadata(row) if "metadata" in parts else {}
            origin = self._origin(row) if "title" in parts else None
            documents[row["doc"]] = StoredDocument(
                row["doc"],
                row["id"],
                row.get("title", ""),
                "",
                metadata,
                origin,
                keywords=row.get("keywords") or "",
            )
        if "text" not in parts:
            return documents
        texts = {row["doc"]: row["text"] for row in self.texts.take(numbers, ["text"]).to_pylist()}
        return {
            doc: document._replace(text=texts[doc])
            for doc, document in documents.items()
            if doc in texts
        }

    def _metadata(self, row: Mapping[str, Any]) -> dict[str, Any]:
        try:
            metadata = json.loads(row["metadata"])
        except (ValueError, RecursionError):
            metadata = None
        if not isinstance(metadata, dict):
            raise self._damaged(f"the metadata of document {row['id']!r} are damaged")
        return metadata

    def _origin(self, row: Mapping[str, Any]) -> FileOrigin | None:
        if row["file_sha256"] is None:
            return None
        try:
            pages = None if row["pages"] is None else Pages.from_json(json.loads(row["pages"]))
        except (ValueError, RecursionError) as error:
            raise self._damaged(
                f"the pages of document {row['id']!r} are damaged ({error})"
            ) from error
        return FileOrigin(row["file_sha256"], row["folder"], pages, row["labels_sha256"] or "")

    def _damaged(self, what: str) -> IndexFormatError:
        where = self.documents.path
        return IndexFormatError(
            f"{where}: {what}; restore the files from a copy or build the index again"
        )

    def matching(self, where: Filter) -> IntArray:
        """Numbers of the documents that satisfy a filter, ascending."""
        return np.sort(self.select({"doc": "doc"}, where)["doc"].to_numpy())

    def select(self, columns: Mapping[str, str], where: Filter) -> pa.Table:
        """Columns, expressions of SQL by name, of the documents that satisfy a filter.

        ConfigError if an expression (`$regex`) takes too long.
        """
        expressions = expressions_of(where)
        if not expressions:
            condition = compile_filter(where)
            return self.documents.scan(dict(columns), None if condition == ALL else condition.sql)
        # what the filter says in each case of which expressions hold: in the first one, none
        conditions = [compile_filter(where, holding) for holding in _subsets(expressions)]
        cases = {f"case {number}": c.sql for number, c in enumerate(conditions)}
        values = {f"value {n}": _column_of(e.field) for n, e in enumerate(expressions)}
        any_case = join(" OR ", conditions).sql
        rows = self.documents.scan({**columns, **cases, **values}, any_case)
        selected = np.stack([rows[name].to_numpy() for name in cases])
        for number, expression in enumerate(expressions):
            without, with_it = selected[0::2], selected[1::2]
            # texts that change nothing are not looked at: neither the time nor an error may speak
            # of documents that another part of the filter hides
            matters = (without != with_it).any(axis=0)
            matching = np.zeros(rows.num_rows, np.bool_)
            column = rows[f"value {number}"].filter(pa.array(matters))
            matching[matters] = _matching(expression, column)
            selected = np.where(matching, with_it, without)
        return rows.select(list(columns)).filter(pa.array(selected[0]))

    def languages(self, docs: IntArray | None = None) -> dict[str, int]:
        """How many documents are in each language, by its code, most first; of some documents, or
        of all.
        """
        (column,) = self.documents.columns("language")
        if docs is not None:
            (numbers,) = self.documents.columns("doc")
            column = column.filter(pa.array(find_in(docs, numbers.to_numpy())[1]))
        column = column.drop_null()
        counts = {row["values"]: row["counts"] for row in column.value_counts().to_pylist()}
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def languages_of(self, docs: IntArray) -> dict[int, str | None]:
        """The codes of the languages of documents, None if all have one; documents that are not
        there are left out.
        """
        rows = self.documents.take(docs, ["language"]).to_pydict()
        return dict(zip(rows["doc"], rows["language"], strict=True))

    def renamed(self) -> dict[int, str]:
        """The words of id, title and metadata of documents whose lists of names are of others."""
        rows = self.documents.scan(["doc", NAME_WORDS], f"{NAME_WORDS} IS NOT NULL").to_pydict()
        return dict(zip(rows["doc"], rows[NAME_WORDS], strict=True))

    def called(self, docs: IntArray) -> dict[int, CalledBy]:
        """What documents were called by when they were added; those that are not there are left
        out.
        """
        docs = docs[self.live("document", docs)]
        stored = self.texts.encoded_texts(docs, CALLED_BY)
        with damage(self.texts.path):
            return {
                doc: CalledBy.read(text.decode())
                for doc, text in zip(docs.tolist(), stored, strict=True)
            }

    def light(self, kind: Kind) -> tuple[IntArray, FloatArray]:
        """Numbers `[n]`, ascending, and weights `[n]` of all vectors that weigh less than 1."""
        if kind == "passage":
            return self.passages.below_one(WEIGHT)
        numbers, weights = (c.to_numpy() for c in self.documents.columns("doc", WEIGHT))
        light = np.flatnonzero(weights < 1)
        light = light[np.argsort(numbers[light])]
        return numbers[light], weights[light]

    def repeating(self) -> tuple[IntArray, FloatArray]:
        """Numbers `[n]`, ascending, and shares `[n]` of all passages that count less than 1.

        A signature that no other mail has counts in full. Of those that are copies, that of the
        document whose id has the least hash counts more than the others. A quotation counts as what
        is forwarded does if its mail is the only one of its thread: the mail that it quotes is not
        in the index.
        """
        numbers, shares = self.passages.below_one(SHARE)
        is_signed = shares == np.float32(SIGNED_SHARE)
        is_quoted = shares == np.float32(QUOTED_SHARE)
        if is_signed.any():
            firsts, copies = self._first_copies(numbers[is_signed])
            shares[np.flatnonzero(is_signed)[firsts]] = np.where(copies > 1, FIRST_SIGNED_SHARE, 1)
        if is_quoted.any():
            docs = numbers[is_quoted] >> PASSAGE_BITS
            is_alone = np.isin(docs, self._alone_in_threads())
            shares[np.flatnonzero(is_quoted)[is_alone]] = FORWARDED_SHARE
        is_less = shares < 1
        return numbers[is_less], shares[is_less]

    def _alone_in_threads(self) -> IntArray:
        """The mails `[n]` that are the only ones of their threads; no unlinked replies."""
        rows = self.texts.scan(["doc", THREAD])
        docs, digests = rows["doc"].to_numpy(), rows[THREAD].to_numpy()
        _, places, counts = np.unique(digests & ~UNLINKED, return_inverse=True, return_counts=True)
        is_known = (digests != NO_THREAD) & (digests & UNLINKED == 0)
        return docs[is_known & (counts[places] == 1)]

    def ranks(self) -> tuple[IntArray, IntArray]:
        """All documents `[n]`, and the hashes of their ids `[n]`."""
        rows = self.documents.scan(["doc", "rank"])
        return rows["doc"].to_numpy(), rows["rank"].to_numpy()

    def _first_copies(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """The places `[m]`, among passages `[n]`, of the first of those alike, by hashes of ids,
        and how many are alike, `[m]`.
        """
        docs, ranks = self.ranks()
        order = np.argsort(docs)
        places = order[np.searchsorted(docs, numbers >> PASSAGE_BITS, sorter=order)]
        first = np.lexsort((numbers, ranks[places]))
        digests = self.copies("passage", numbers)[first]
        _, firsts, counts = np.unique(digests, return_index=True, return_counts=True)
        return first[firsts], counts

    def counted(self, docs: IntArray) -> tuple[IntArray, dict[str, IntArray]]:
        """The counts of documents, in the order of `docs` `[n]`: numbers `[m]` of those that are
        there, and columns.
        """
        rows = self.documents.take(docs, COUNTS)
        return rows["doc"].to_numpy(), {name: rows[name].to_numpy() for name in COUNTS}

    # --- passages --------------------------------------------------------------------------------

    def numbers(self, kind: Kind, first: int = 0, stop: int = END_NUMBER) -> IntArray:
        """Numbers of the documents in `[first, stop)`, or of their passages, ascending."""
        docs, counts = self.documents.held
        part = slice(*np.searchsorted(docs, [first, stop]))
        return (
            docs[part]
            if kind == "document"
            else expand_passages(np.stack([docs[part], counts[part]], axis=1))
        )

    def passage_counts(self, docs: IntArray) -> IntArray:
        """How many passages documents `[n]` have, `[n]`; 0 for those that are not there."""
        is_present, counts = self._counts(docs)
        return np.where(is_present, counts, 0)

    def passage_numbers(self, docs: Sequence[int] | IntArray) -> IntArray:
        """Numbers of the passages of some documents, `[n]`, ascending; documents that are not there
        have none.
        """
        numbers = np.asarray(docs, dtype=np.int64)
        if (np.diff(numbers) <= 0).any():  # those of a selection ascend
            numbers = np.unique(numbers)
        return expand_passages(np.stack([numbers, self.passage_counts(numbers)], axis=1))

    def _counts(self, docs: IntArray) -> tuple[BoolArray, IntArray]:
        """Whether documents `[n]` are there, and how many passages they have (of others: any
        number).
        """
        stored_docs, counts = self.documents.held
        if not len(stored_docs):
            return np.zeros(len(docs), dtype=bool), np.zeros(len(docs), dtype=np.int64)
        places, is_present = find_in(stored_docs, docs)
        return is_present, counts[places]

    def read_passages(self, numbers: IntArray, words: Sequence[str] = ()) -> StoredPassages:
        """Fetch passages `[n]` by number, with which of some words they hold; those that are not
        there are left out.
        """
        numbers = np.sort(numbers[self.live("passage", numbers)])
        held = self.passages.held(numbers, words)
        return StoredPassages(numbers, self.passages.spans(numbers), held)

    def copies(self, kind: Kind, numbers: IntArray) -> IntArray:
        """The digests `[n]` of the words of documents or passages, by numbers `[n]`."""
        self.check_all(kind, numbers, numbers[self.live(kind, numbers)])
        return self.of(kind).values(numbers, COPY)

    def threads(self, docs: IntArray) -> IntArray:
        """The digests `[n]` of the conversations that documents `[n]` belong to."""
        self.check_all("document", docs, docs[self.live("document", docs)])
        return self.texts.values(docs, THREAD)

    def read_shown(self, numbers: Sequence[int]) -> dict[int, ShownPassage]:
        """What is shown of passages, by number; those that are not there are left out."""
        live_numbers = np.array(numbers, np.int64)
        live_numbers = live_numbers[self.live("passage", live_numbers)]

        def column(name: str) -> list[str]:
            texts = self.passages.encoded_texts(live_numbers, name)
            with damage(self.passages.path):
                return [text.decode() for text in texts]

        @cache  # a request, where the index is in an object store
        def headings() -> dict[int, str]:
            return dict(zip(live_numbers.tolist(), column("heading"), strict=True))

        spans = self.passages.spans(live_numbers).tolist()
        rows = zip(live_numbers.tolist(), spans, column("text"), strict=True)
        return {
            n: ShownPassage(text, partial(lambda n: headings()[n], n), (a, b))
            for n, (a, b), text in rows
        }

    # --- words -----------------------------------------------------------------------------------

    @property
    def forms(self) -> str:
        """The column of texts that has words as they are written."""
        return FORMS if FORMS in self.texts.schema.names else WORDS

    # --- vectors ---------------------------------------------------------------------------------

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` float32 of documents or passages, in the order of their
        numbers `[n]`.
        """
        live_numbers, rows = self.live_vectors(kind, numbers)
        self.check_all(kind, numbers, live_numbers)
        return rows

    def live_vectors(self, kind: Kind, numbers: IntArray) -> tuple[IntArray, FloatArray]:
        """The same without those that are not there any more: numbers `[m]` and vectors
        `[m, d]`.
        """
        numbers = numbers[self.live(kind, numbers)]
        if kind == "passage":
            return numbers, self.passages.vectors(numbers)
        own = self.own_vectors.has(numbers)
        if own.all():
            return numbers, self.own_vectors.vectors(numbers)
        vectors = np.empty(
            (len(numbers), self.own_vectors.schema.field(VECTOR).type.list_size), "f4"
        )
        vectors[own] = self.own_vectors.vectors(numbers[own])
        vectors[~own] = self.passages.vectors(numbers[~own] << PASSAGE_BITS)
        return numbers, vectors

    def stored_vectors(
        self, kind: Kind, numbers: IntArray, size: int
    ) -> Iterator[tuple[IntArray, np.ndarray]]:
        """The vectors of documents or passages that are all stored, up to `size` at a time: numbers
        `[m]` and `[m, d]`, float16 or float32, until the next.
        """
        if kind == "passage":
            yield from self.passages.stored_vectors(numbers, size)
            return
        own = self.own_vectors.has(numbers)
        yield from self.own_vectors.stored_vectors(numbers[own], size)
        shared = numbers[~own] << PASSAGE_BITS
        for passages, vectors in self.passages.stored_vectors(shared, size) if len(shared) else ():
            yield passages >> PASSAGE_BITS, vectors

    def live(self, kind: Kind, numbers: IntArray) -> BoolArray:
        """Which of documents or passages `[n]` are still there, `[n]`."""
        if kind == "document":
            return self._counts(numbers)[0]
        live, counts = self._counts(numbers >> PASSAGE_BITS)
        return live & (numbers & (MAX_PASSAGES - 1) < counts)

    def check_all(self, kind: Kind, numbers: IntArray, live_numbers: IntArray) -> None:
        """Raise IndexFormatError where some of the wanted documents or passages were not found."""
        if not np.array_equal(numbers, live_numbers):
            missing = np.setdiff1d(numbers, live_numbers)
            raise IndexFormatError(
                f"{self.root}: the index has {kind} number {missing[:1]}, which is not stored; run"
                f" `aveyb-index verify {self.root}`"
            )


@dataclass(frozen=True)
class StoredTokens:
    """The token vectors of a version, for late interaction: what they are kept with, and how."""

    tables: Tables
    kind: Kind
    codec: TokenCodec

    def gather(self, numbers: IntArray) -> TokenCodes:
        """The codes of the tokens of passages (of documents, where these own them), one after the
        other.
        """
        codec, dataset = self.codec, self.tables.of(self.kind)
        rows = dataset.take(numbers, [CODES])
        self.tables.check_all(self.kind, numbers, rows[dataset.key].to_numpy())
        parts = [value.as_buffer() for value in rows[CODES]]
        sizes = np.array([part.size for part in parts], dtype=np.int64)
        if (sizes % codec.row_bytes).any():
            raise IndexFormatError(
                f"{dataset.path}: damaged codes of tokens; build the index again"
            )
        ends = np.cumsum(sizes // codec.row_bytes)
        flat = np.frombuffer(b"".join(parts), dtype=codec.dtype).reshape(-1, codec.row_bytes)
        return TokenCodes(flat, np.stack([ends - sizes // codec.row_bytes, ends], axis=1))


MOST_COUNTED = 100_000  # different values of a field, and so what they take in memory
MAX_GIVEN_ROWS = 10_000


def _subsets(expressions: Sequence[Expression]) -> list[list[Expression]]:
    """All `2 ** n` subsets of `n` expressions: the bits of a subset's place say which are in it."""
    return [
        [expression for n, expression in enumerate(expressions) if place >> n & 1]
        for place in range(1 << len(expressions))
    ]


def _column_of(field: str) -> str:
    """What SQL reads of a field: a text, or JSON of the value that its path begins with.

    Behind that, a path may lead through lists: of several values, JSON's functions make a list that
    looks like one value.
    """
    return (
        OWN.get(field) or f"json_extract(metadata, {quoted(json_path_of(field_keys(field)[:1]))})"
    )


def _elements_of(field: str, stored: str | None) -> list[Any]:
    """What conditions on a field look at, by what SQL has read of it."""
    if stored is None or field in OWN:
        return [stored]
    keys = field_keys(field)
    return list(elements_at({keys[0]: json.loads(stored)}, keys))


def _matching(expression: Expression, column: pa.ChunkedArray) -> BoolArray:
    """Which values `[n]` of a field, as SQL has read them, have a text that an expression matches,
    `[n]`; each different one is looked at once.
    """
    encoded = column.combine_chunks().dictionary_encode()
    texts, owners = [], []
    for number, stored in enumerate(encoded.dictionary.to_pylist()):
        strings = [e for e in _elements_of(expression.field, stored) if isinstance(e, str)]
        texts += strings
        owners += [number] * len(strings)
    matcher = TimedExpression(
        expression.compile(), expression.what, "combine it with other conditions"
    )
    matching = np.zeros(len(encoded.dictionary) + 1, np.bool_)
    matching[np.array(owners, np.int64)[matcher.matches(texts)]] = True
    # the last place is that of documents without a value
    return matching[encoded.indices.fill_null(-1).to_numpy()]


def count_values(tables: Tables, field: str, where: Filter) -> list[tuple[Scalar, int]]:
    """Count the documents that satisfy a filter by the values of a field: the most frequent ones
    first.
    """
    rows = tables.select({"value": _column_of(field)}, where)
    counts: Counter[tuple[bool, Scalar]] = Counter()
    for counted in rows["value"].value_counts().to_pylist():
        count = counted["counts"]
        items = _elements_of(field, counted["values"])
        scalars = {
            (isinstance(item, bool), item) for item in items if isinstance(item, (str, int, float))
        }
        counts.update(dict.fromkeys(scalars, count))
        if len(counts) > MOST_COUNTED:
            raise ConfigError(
                f"the field {field!r} has more than {MOST_COUNTED:,} values; choose another"
                " field, or a filter that selects fewer documents"
            )
    if (
        not counts
        and field not in OWN
        and (reason := no_such_field(tables, field))
        and len(tables.documents)
    ):
        raise ConfigError(f"no document can be counted: {reason}")
    return most_frequent((value, count) for (_, value), count in counts.items())


def most_frequent(counted: Iterable[tuple[Scalar, int]]) -> list[tuple[Scalar, int]]:
    """Add up counts of values, the most frequent first."""
    totals: Counter[tuple[bool, Scalar]] = Counter()
    for value, count in counted:
        totals[isinstance(value, bool), value] += count
    best = sorted(
        totals.items(), key=lambda entry: (-entry[1], isinstance(entry[0][1], str), entry[0])
    )
    return [(value, count) for (_, value), count in best]


@dataclass(frozen=True)
class StoredVectors:
    """The vectors of documents or passages, unit length, d = `dim`."""

    tables: Tables
    kind: Kind
    dim: int

    def live(self, numbers: IntArray) -> tuple[IntArray, FloatArray]:
        """Those of numbers `[n]` that are still stored, in their order: numbers `[m]` and vectors
        `[m, d]` float32.
        """
        return self.tables.live_vectors(self.kind, numbers)

    def stored(self, numbers: IntArray) -> IntArray:
        """Those of numbers `[n]` that are still stored, in their order."""
        return numbers[self.tables.live(self.kind, numbers)]

    def selected(self, numbers: IntArray, rows: int) -> Iterator[tuple[IntArray, np.ndarray]]:
        """Those of numbers that are all stored, `rows` at a time: numbers `[m]`, `[m, d]` float16
        or float32.
        """
        return self.tables.stored_vectors(self.kind, numbers, rows)

    def blocks(
        self, first: int, stop: int, rows: int = 16384
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """All vectors of documents numbered in `[first, stop)`, ascending: numbers `[n]`, vectors
        `[n, d]` float32.
        """
        numbers = self.tables.numbers(self.kind, first, stop)
        for start in range(0, len(numbers), rows):
            yield self.live(numbers[start : start + rows])


def ids_of(tables: Tables, kind: Kind) -> IntArray:
    """Numbers of all documents or passages that are stored, ascending."""
    dataset = tables.of(kind)
    return np.sort(dataset.scan([dataset.key])[dataset.key].to_numpy())
