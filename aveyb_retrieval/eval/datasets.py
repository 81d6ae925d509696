"""A test collection: corpus, queries, judgements per split, and (where a set has them) the true character spans.

`load_folder` opens a folder in BEIR layout; `loading.load_dataset` also opens known data sets by name:

    corpus.jsonl    {"_id", "title", "text"} per line
    queries.jsonl   {"_id", "text"}
    qrels/SPLIT.tsv query-id, corpus-id, score
    spans.jsonl     optional: {"query-id", "corpus-id", "spans": [[start, end), ...]} in characters of the text
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval.qrels import Qrels, read_qrels
from aveyb_retrieval.indexes.input.json_lines import read_objects
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

Spans = dict[str, dict[str, list[tuple[int, int]]]]
"""Query id -> document id -> character ranges [start, end) of the text that answers the query."""

_HUB_HINT = "a local copy of a hub data set is opened by NAME=FOLDER, for example mldr=FOLDER"


class Document(NamedTuple):
    """One document; `title` may be empty, character offsets always count in `text`."""

    id: str
    title: str
    text: str


class Corpus:
    """Documents in a fixed order over any sequence of rows: a list, or a memory-mapped `datasets.Dataset`.

    Only the ids are held in memory besides the rows themselves.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], source: str, *, id_field: str = "_id") -> None:
        """Read the ids of the rows; `source` names them in messages.

        Raises:
            InputError: there are no rows, or an id occurs twice.
        """
        self._rows = rows
        self._id_field = id_field
        self.source = source
        select = getattr(rows, "column_names", None)
        column: Iterable[Any] = rows[id_field] if select else (row[id_field] for row in rows)  # type: ignore[call-overload]
        self.ids = [str(value) for value in column]
        self.positions = {doc: i for i, doc in enumerate(self.ids)}
        if len(self.positions) != len(self.ids):
            seen: set[str] = set()
            twice = next(doc for doc in self.ids if doc in seen or seen.add(doc))  # type: ignore[func-returns-value]
            raise InputError(f"{source}: the document id {twice!r} occurs more than once")
        if not self.ids:
            raise InputError(f"{source}: the corpus is empty")

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, doc: str) -> bool:
        return doc in self.positions

    def __iter__(self) -> Iterator[Document]:
        for doc, row in zip(self.ids, self._rows, strict=True):
            yield Document(doc, row.get("title") or "", row.get("text") or "")

    def get(self, doc: str) -> Document:
        """Return the document with that id; `KeyError` when there is none."""
        row = self._rows[self.positions[doc]]
        return Document(doc, row.get("title") or "", row.get("text") or "")

    def subset(self, keep: set[str]) -> Corpus:
        """Return a corpus of the documents whose ids are in `keep`, in the same order."""
        positions = [i for i, doc in enumerate(self.ids) if doc in keep]
        select = getattr(self._rows, "select", None)
        rows = select(positions) if select else [self._rows[i] for i in positions]
        return Corpus(rows, self.source, id_field=self._id_field)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) over all ids, titles and texts, in order."""
        digest = hashlib.sha256()
        for document in self:
            for part in document:
                data = part.encode("utf-8", "surrogatepass")
                digest.update(len(data).to_bytes(8, "little"))
                digest.update(data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A collection with the judgements of every evaluation split (training judgements are never loaded)."""

    name: str
    source: str
    corpus: Corpus
    queries: dict[str, str]
    splits: dict[str, Qrels]
    spans: Spans = field(default_factory=dict)

    def split(self, name: str | None = None) -> tuple[str, Qrels]:
        """Return the name and the judgements of a split; None takes `test`, else `dev`, else the first one.

        Raises:
            InputError: no such split.
        """
        if name is None:
            name = next((s for s in ("test", "dev", "validation") if s in self.splits), next(iter(self.splits)))
        if name not in self.splits:
            raise InputError(f"{self.source}: no split {name!r}; there are {', '.join(sorted(self.splits))}")
        return name, self.splits[name]


def load_folder(path: Path, split: str | None = None) -> Dataset:
    """Open a folder in BEIR layout. Judgements called `train` are read only when `split` asks for them.

    Raises:
        InputError: a file is missing or malformed, an id occurs twice, or a judged query has no text.
    """
    corpus = Corpus(_read_documents(path / "corpus.jsonl"), str(path / "corpus.jsonl"))
    queries = _read_queries(path / "queries.jsonl")
    files = {file.stem: file for file in sorted((path / "qrels").glob("*.tsv"))}
    if not files:
        raise InputError(f"{path / 'qrels'}: no qrels/SPLIT.tsv in this folder; {_HUB_HINT}")
    wanted = {name for name in files if name != "train" or split == "train" or len(files) == 1}
    splits = {
        name: checked_qrels(read_qrels(files[name]), corpus, queries, str(files[name])) for name in sorted(wanted)
    }
    spans_file = path / "spans.jsonl"
    spans = read_spans(spans_file, corpus) if spans_file.is_file() else {}
    return Dataset(path.resolve().name, str(path), corpus, queries, splits, spans)


def checked_qrels(qrels: Qrels, corpus: Corpus, queries: Mapping[str, str], source: str) -> Qrels:
    """Check judgements against the collection they belong to.

    A judged query without text is an error: it could not be searched, and counting it as 0 would blame the system. A
    judged document that is not in the corpus stays, as in trec_eval (it is part of the ideal ranking and can never be
    found), with a notice; when none is in the corpus, the files do not belong together.

    Raises:
        InputError: as above.
    """
    strangers = [query for query in qrels.judgements if query not in queries]
    if strangers:
        raise InputError(
            f"{source}: no text in queries.jsonl for {plural(len(strangers), 'judged query', 'judged queries')}, e.g. "
            f"{strangers[0]!r}; do the files belong together?"
        )
    judged = {doc for documents in qrels.judgements.values() for doc in documents}
    unknown = sorted(doc for doc in judged if doc not in corpus)
    if len(unknown) == len(judged):
        raise InputError(
            f"{source}: not in the corpus: {plural(len(judged), 'judged document')} (all there are), e.g. "
            f"{unknown[0]!r}; do the files belong together, or are the columns swapped?"
        )
    if not unknown:
        return qrels
    notice = (
        f"{source}: not in the corpus: {plural(len(unknown), 'judged document')}, e.g. {unknown[0]!r}; the ideal "
        "ranking still holds them"
    )
    return Qrels(qrels.judgements, (*qrels.notices, notice))


def read_spans(path: Path, corpus: Corpus) -> Spans:
    """Read true character spans.

    Raises:
        InputError: a line is malformed, names an unknown document, or a range lies outside of its text.
    """
    spans: Spans = {}
    for number, row in _read_jsonl(path):
        where = f"{path}, line {number}"
        query, doc = _text_field(row, "query-id", where), _text_field(row, "corpus-id", where)
        if doc not in corpus:
            raise InputError(f"{where}: the document {doc!r} is not in the corpus")
        length = len(corpus.get(doc).text)
        ranges = row.get("spans")
        if not (isinstance(ranges, list) and ranges and all(isinstance(r, list) and len(r) == 2 for r in ranges)):
            raise InputError(f"{where}: 'spans' must be a list of at least one [start, end]; else leave the line out")
        for start, end in ranges:
            if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= length):
                raise InputError(
                    f"{where}: the span [{start}, {end}] does not lie in the {length} characters of {doc!r}"
                )
        spans.setdefault(query, {}).setdefault(doc, []).extend((start, end) for start, end in ranges)
    return spans


def _read_documents(path: Path) -> list[dict[str, str]]:
    rows = []
    for number, row in _read_jsonl(path):
        where = f"{path}, line {number}"
        title = row.get("title")
        if title is not None and not isinstance(title, str):
            raise InputError(f"{where}: 'title' must be text, not {type(title).__name__}")
        rows.append(
            {"_id": _text_field(row, "_id", where), "title": title or "", "text": _text_field(row, "text", where)}
        )
    return rows


def _read_queries(path: Path) -> dict[str, str]:
    queries: dict[str, str] = {}
    for number, row in _read_jsonl(path):
        where = f"{path}, line {number}"
        query = _text_field(row, "_id", where)
        if query in queries:
            raise InputError(f"{where}: the query id {query!r} occurs more than once")
        queries[query] = _text_field(row, "text", where)
    return queries


def _text_field(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if name in ("_id", "query-id", "corpus-id") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or (name != "text" and not value):
        raise InputError(f"{where}: {name!r} must be {'text' if name == 'text' else 'a non-empty id'}, not {value!r}")
    return value


def _read_jsonl(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; a BEIR folder needs corpus.jsonl, queries.jsonl and qrels/; {_HUB_HINT}"
        )
    yield from read_objects(path)
