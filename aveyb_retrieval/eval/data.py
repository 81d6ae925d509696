"""Data sets: BEIR folders, copies of hub data sets, and judgements (qrels) in every common layout.

`load_dataset` opens all of them; whatever the shape, rows come from `read_rows`, and documents,
queries and judgements are checked by the same functions. A folder in BEIR's layout:

    corpus.jsonl     {"_id", "title", "text"} per line
    queries.jsonl    {"_id", "text"}
    qrels/SPLIT.tsv  query-id, corpus-id, score
    spans.jsonl      optional: {"query-id", "corpus-id", "spans": [[start, end), ...]} in characters
                     of the text

Public data sets have names, at pinned revisions (`datasets.json`). A name is first resolved to the
snapshot of one exact commit in the Hugging Face cache (downloaded when it can be, used from the
cache when offline), then opened as a local copy is. Two schemas cover all of them:

- `beir` (the `mteb/...` mirrors of BEIR): configurations `corpus` (`_id`, `title`, `text`),
  `queries` (`_id`, `text`) and `default` or `qrels` (`query-id`, `corpus-id`, `score`), one split
  of it per judged split; some call `_id` `id`;
- `mldr` (`Shitao/MLDR`): `mldr-v1.0-LANG/corpus.jsonl.gz` (`docid`, `text`), and `dev.jsonl.gz` and
  `test.jsonl.gz` (`query_id`, `query`, `positive_passages`). Its loading script is not run.

The files themselves are read, never a cache of them, and no type is guessed: an id that looks like
a date stays as it is written.

Judgements are BEIR's `query-id<TAB>corpus-id<TAB>score` below a header row, or TREC's `qid 0 docid
grade` without one. BEIR's own loader skips the first line whatever it says, so a file without a
header silently loses a judgement; here the header is recognised by its last field not being a
number, and its names decide the order of the columns. Decisions (each one that touches the data is
added to `Qrels.notices`, which reports print):

- a grade below zero is trec_eval's "judged, not relevant": read as 0;
- `1.0` is read as 1; a grade such as 0.5 is an error, because nDCG's gains are the grades
  themselves, and so is one above 100,000, which is a count or a time stamp;
- the same judgement twice with the same grade is kept once; with two grades it is an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from aveyb_retrieval.documents.reading import read_objects, split_suffix
from aveyb_retrieval.errors import InputError, OptionalDependencyError, plural
from aveyb_retrieval.eval.base import (
    LARGEST_GRADE,
    check_id,
    check_unicode,
    parse_number,
    reading,
    table_rows,
)
from aveyb_retrieval.files import hash_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.eval.base import Judgements

_BATCH_ROWS = 4096  # rows that are held as Python objects at once
_QUERY_NAMES = {"query-id", "query_id", "queryid", "qid", "query", "topic", "topic_id"}
_DOCUMENT_NAMES = {
    "corpus-id",
    "corpus_id",
    "doc-id",
    "doc_id",
    "docid",
    "docno",
    "document-id",
    "pid",
}
_GRADE_NAMES = {"score", "relevance", "rel", "grade", "label", "judgement", "judgment"}
_ITERATION_NAMES = {"iteration", "iter", "q0", "0", "unused"}


@dataclass(frozen=True)
class Qrels:
    """Judgements and what was decided while reading them."""

    judgements: Judgements
    notices: tuple[str, ...] = ()


def read_qrels(path: str | Path) -> Qrels:
    """Read a qrels file: BEIR (with or without header) or TREC column order, separated by tabs or
    spaces.
    """
    return collect_qrels(_judgement_rows(Path(path)), str(path))


def _judgement_rows(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield place, query id, document id and grade of each judgement."""
    columns: tuple[int, int, int] | None = None
    for number, fields in table_rows(path, "qrels file", (3, 4)):
        if columns is None and parse_number(fields[-1]) is None:
            columns = _columns_of_header(fields, str(path), number)
            continue
        columns = columns or ((0, 1, 2) if len(fields) == 3 else (0, 2, 3))
        query, doc, grade = (fields[c] for c in columns)
        yield f"{path}, line {number}", query, doc, grade


def _columns_of_header(names: list[str], source: str, number: int) -> tuple[int, int, int]:
    lowered = [name.strip().lower() for name in names]
    columns = []
    for column_names in (_QUERY_NAMES, _DOCUMENT_NAMES, _GRADE_NAMES):
        places = [i for i, name in enumerate(lowered) if name in column_names]
        if len(places) != 1:
            raise InputError(
                f"{source}, line {number}: {names} is neither a judgement (the last field is not a"
                " number) nor a header with query-id, corpus-id and score"
            )
        columns.append(places[0])
    other_names = [name for i, name in enumerate(lowered) if i not in columns]
    if any(name not in _ITERATION_NAMES for name in other_names):
        raise InputError(
            f"{source}, line {number}: unknown column {other_names[0]!r} in the header {names}"
        )
    return columns[0], columns[1], columns[2]


def _grade(value: object, where: str) -> int:
    number = parse_number(str(value))
    if number is None:
        raise InputError(f"{where}: the grade {value!r} is not a number")
    if not number.is_integer():  # neither are inf and nan
        raise InputError(
            f"{where}: the grade {value!r} is not an integer; nDCG uses grades as gains, so scale"
            " them first"
        )
    if number > LARGEST_GRADE:
        raise InputError(
            f"{where}: the grade {value!r} is above {LARGEST_GRADE:,}; nDCG uses grades as gains,"
            " and a count or a time stamp is none: give the column with the relevance"
        )
    return int(number)


def collect_qrels(rows: Iterable[tuple[str, object, object, object]], source: str) -> Qrels:
    """Check judgements (place, query id, document id, grade) from anywhere; `source` names them all
    in messages.
    """
    judgements: Judgements = {}
    first: dict[tuple[str, str], str] = {}
    duplicates = negatives = 0
    for where, query_id, document_id, value in rows:
        query, doc = (
            check_id(query_id, where, "query-id"),
            check_id(document_id, where, "corpus-id"),
        )
        grade = _grade(value, where)
        if grade < 0:
            negatives += 1
            grade = 0
        documents = judgements.setdefault(query, {})
        if doc in documents:
            if documents[doc] != grade:
                raise InputError(
                    f"{where}: query {query!r}, document {doc!r} is judged {grade} here and"
                    f" {documents[doc]} in {first[query, doc]}; keep one of them"
                )
            duplicates += 1
            continue
        documents[doc] = grade
        first[query, doc] = where
    if not judgements:
        raise InputError(f"{source}: no judgements in this qrels file")
    notices = []
    if duplicates:
        notices.append(
            f"{source}: {plural(duplicates, 'repeated judgement')} (same grade) kept once"
        )
    if negatives:
        notices.append(
            f"{source}: {plural(negatives, 'negative grade')} read as 0 (judged, not relevant)"
        )
    return Qrels(judgements, tuple(notices))


Spans = dict[str, dict[str, list[tuple[int, int]]]]
"""Query id -> document id -> character ranges [start, end) of the text that answers the query."""

_HUB_HINT = "a local copy of a hub data set is opened by NAME=FOLDER, for example mldr=FOLDER"


class Document(NamedTuple):
    """One document; `title` may be empty, character offsets always count in `text`."""

    id: str
    title: str
    text: str


class Corpus:
    """Documents in a fixed order, held as Arrow's columns: as many bytes as their texts have."""

    def __init__(self, documents: Iterable[Document], source: str) -> None:
        """Take documents; that there are none, or an id occurs twice, is an InputError that names
        `source`.
        """
        self.source = source
        self.positions: dict[str, int] = {}
        self._batches: list[pa.RecordBatch] = []
        remaining = iter(documents)
        while batch := list(islice(remaining, _BATCH_ROWS)):
            for document in batch:
                if document.id in self.positions:
                    raise InputError(
                        f"{source}: the document id {document.id!r} occurs more than once"
                    )
                self.positions[document.id] = len(self.positions)
            texts = {
                "title": [document.title for document in batch],
                "text": [document.text for document in batch],
            }
            self._batches.append(pa.RecordBatch.from_pydict(texts))
        if not self._batches:
            raise InputError(f"{source}: the corpus is empty")
        self.ids = list(self.positions)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, doc: str) -> bool:
        return doc in self.positions

    def __iter__(self) -> Iterator[Document]:
        ids = iter(self.ids)
        for batch in self._batches:
            for title, text in zip(*(column.to_pylist() for column in batch), strict=True):
                yield Document(next(ids), title, text)

    def get(self, doc: str) -> Document:
        """Return the document with that id; `KeyError` when there is none."""
        number, row = divmod(self.positions[doc], _BATCH_ROWS)
        title, text = (column[row].as_py() for column in self._batches[number])
        return Document(doc, title, text)

    def subset(self, keep: set[str]) -> Corpus:
        """Return a corpus of the documents whose ids are in `keep`, in the same order."""
        return Corpus((document for document in self if document.id in keep), self.source)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) over all ids, titles and texts, in order."""
        return hash_texts(part for document in self for part in document)


@dataclass(frozen=True)
class Dataset:
    """A collection with the judgements of every evaluation split (training judgements are never
    loaded).

    Attributes:
        queries: split -> query id -> text; two splits may give one id to two queries.
    """

    name: str
    source: str
    corpus: Corpus
    queries: dict[str, dict[str, str]]
    splits: dict[str, Qrels]
    spans: Spans = field(default_factory=dict)

    def split(self, name: str | None = None) -> tuple[str, Qrels]:
        """Return the name and the judgements of a split; None takes `test`, else `dev`, else the
        first one.
        """
        if name is None:
            name = next(
                (s for s in ("test", "dev", "validation") if s in self.splits),
                next(iter(self.splits)),
            )
        if name not in self.splits:
            raise InputError(
                f"{self.source}: no split {name!r}; there are {', '.join(sorted(self.splits))}"
            )
        return name, self.splits[name]


def load_folder(path: Path, split: str | None = None) -> Dataset:
    """Open a folder in BEIR layout.

    Judgements called `train` are read only when `split` asks for them.
    """
    corpus = read_corpus([path / "corpus.jsonl"], str(path / "corpus.jsonl"))
    queries = read_queries([path / "queries.jsonl"])
    files = {file.stem: file for file in sorted((path / "qrels").glob("*.tsv"))}
    if not files:
        raise InputError(f"{path / 'qrels'}: no qrels/SPLIT.tsv in this folder; {_HUB_HINT}")
    split_names = {name for name in files if name != "train" or split == "train" or len(files) == 1}
    splits = {
        name: checked_qrels(read_qrels(files[name]), corpus, queries, str(files[name]))
        for name in sorted(split_names)
    }
    spans_file = path / "spans.jsonl"
    spans = read_spans(spans_file, corpus) if spans_file.is_file() else {}
    return Dataset(
        path.resolve().name, str(path), corpus, dict.fromkeys(splits, queries), splits, spans
    )


def checked_qrels(qrels: Qrels, corpus: Corpus, queries: Mapping[str, str], source: str) -> Qrels:
    """Check judgements against the collection they belong to; what is called an error is an
    `InputError`.

    A judged query without text is an error: it could not be searched, and counting it as 0 would
    blame the system. A judged document that is not in the corpus stays, as in trec_eval (it is part
    of the ideal ranking and can never be found), with a notice; that none is in the corpus is an
    error. So is an id that differs from one of the collection only in blanks at its ends or
    quotation marks around it.
    """
    strangers = [query for query in qrels.judgements if query not in queries]
    _check_spelling(strangers, queries, source, "query", "the queries")
    if strangers:
        raise InputError(
            f"{source}: no text in queries.jsonl for"
            f" {plural(len(strangers), 'judged query', 'judged queries')}, e.g. {strangers[0]!r};"
            " do the files belong together?"
        )
    blank = [query for query in qrels.judgements if not queries[query].strip()]
    if blank:
        raise InputError(
            f"{source}: {plural(len(blank), 'judged query has', 'judged queries have')} an empty"
            f" text, e.g. {blank[0]!r}; give the text, or leave the judgements out"
        )
    judged = {doc for documents in qrels.judgements.values() for doc in documents}
    unknown = sorted(doc for doc in judged if doc not in corpus)
    _check_spelling(unknown, corpus.positions, source, "document", "the corpus")
    if len(unknown) == len(judged):
        raise InputError(
            f"{source}: not in the corpus: {plural(len(judged), 'judged document')} (all there"
            f" are), e.g. {unknown[0]!r}; do the files belong together, or are the columns swapped?"
        )
    if not unknown:
        return qrels
    notice = (
        f"{source}: not in the corpus: {plural(len(unknown), 'judged document')}, e.g."
        f" {unknown[0]!r}; the ideal ranking still holds them"
    )
    return Qrels(qrels.judgements, (*qrels.notices, notice))


def _check_spelling(
    unknown: Sequence[str], known: Iterable[str], source: str, what: str, where: str
) -> None:
    """Raise InputError where an unknown id is a known one but for blanks at its ends or quotation
    marks around it.
    """
    plain = {_plain(name): name for name in known} if unknown else {}
    for name in unknown:
        if (other := plain.get(_plain(name))) is not None:
            raise InputError(
                f"{source}: the {what} {name!r} is {other!r} in {where}: ids are compared as they"
                " are written, blanks and quotation marks included; write both alike"
            )


def _plain(name: str) -> str:
    return name.strip().removeprefix('"').removesuffix('"').replace('""', '"').strip()


def read_spans(path: Path, corpus: Corpus) -> Spans:
    """Read true character spans, which lie inside the documents of `corpus`."""
    spans: Spans = {}
    for where, row in read_rows([path]):
        query, doc = (check_id(row.get(name), where, name) for name in ("query-id", "corpus-id"))
        if doc not in corpus:
            raise InputError(f"{where}: the document {doc!r} is not in the corpus")
        length = len(corpus.get(doc).text)
        ranges = row.get("spans")
        if not (
            isinstance(ranges, list)
            and ranges
            and all(isinstance(r, list) and len(r) == 2 for r in ranges)
        ):
            raise InputError(
                f"{where}: 'spans' must be a list of at least one [start, end]; else leave the"
                " line out"
            )
        for start, end in ranges:
            if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= length):
                raise InputError(
                    f"{where}: the span [{start}, {end}] does not lie in the {length} characters of"
                    f" {doc!r}"
                )
        spans.setdefault(query, {}).setdefault(doc, []).extend(
            (start, end) for start, end in ranges
        )
    return spans


def read_corpus(
    paths: Sequence[Path], source: str, *, id_names: tuple[str, ...] = ("_id",)
) -> Corpus:
    """Read documents from files of rows with an id, called one of `id_names`, a `text` and perhaps
    a `title`.
    """

    def documents() -> Iterator[Document]:
        for where, row, doc, text in _texts(paths, id_names, "text"):
            title = row.get("title")
            if title is not None and not isinstance(title, str):
                raise InputError(f"{where}: 'title' must be text, not {type(title).__name__}")
            yield Document(doc, check_unicode(title or "", where, "title"), text)

    return Corpus(documents(), source)


def read_queries(
    paths: Sequence[Path], *, id_names: tuple[str, ...] = ("_id",), text_name: str = "text"
) -> dict[str, str]:
    """Read queries, id -> text; see `read_corpus`."""
    queries: dict[str, str] = {}
    for where, _, query, text in _texts(paths, id_names, text_name):
        if query in queries:
            raise InputError(f"{where}: the query id {query!r} occurs more than once")
        queries[query] = text
    return queries


def _texts(
    paths: Sequence[Path], id_names: tuple[str, ...], text_name: str
) -> Iterator[tuple[str, Mapping[str, Any], str, str]]:
    """Yield place, row, id and text."""
    for where, row in read_rows(paths):
        id_name = next((name for name in id_names if name in row), id_names[0])
        name, text = check_id(row.get(id_name), where, id_name), row.get(text_name)
        if not isinstance(text, str):
            raise InputError(f"{where}: {text_name!r} must be text, not {text!r}")
        yield where, row, name, check_unicode(text, where, text_name)


def read_rows(paths: Iterable[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield place and fields of each row of JSON Lines (plain or compressed), Parquet, TSV or CSV
    files.

    Values have the types that the file gives them; those of TSV and CSV are texts.
    """
    for path in paths:
        if not path.is_file():
            raise InputError(
                f"{path}: no such file; a BEIR folder needs corpus.jsonl, queries.jsonl and qrels/;"
                f" {_HUB_HINT}"
            )
        suffix = split_suffix(path)[0]
        if suffix == ".parquet":
            yield from _parquet_rows(path)
        elif suffix in (".tsv", ".csv"):
            yield from _csv_rows(path, "\t" if suffix == ".tsv" else ",")
        elif suffix in (".jsonl", ".json", ".ndjson"):
            yield from ((f"{path}, line {number}", row) for number, row in read_objects(path))
        else:
            raise InputError(
                f"{path}: rows are read from .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .tsv and .csv"
                " files"
            )


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(path).iter_batches(_BATCH_ROWS)
        for number, row in enumerate(
            (row for batch in batches for row in batch.to_pylist()), start=1
        ):
            yield f"{path}, row {number}", row
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: cannot be read as Parquet ({error}); the file is damaged, fetch it again"
        ) from error


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import csv

    try:
        with reading(path, "table"), path.open(encoding="utf-8-sig", newline="\n") as lines:
            for number, row in enumerate(
                csv.DictReader(lines, delimiter=delimiter, strict=True), start=1
            ):
                yield f"{path}, row {number}", row
    except csv.Error as error:
        raise InputError(f"{path}: cannot be read as a table ({error})") from error


class HubSet(msgspec.Struct, frozen=True):
    """Where a data set lives and which of its splits are judged; `splits` maps our names to the
    hub's.

    `language` is that of MLDR's files; "" where the schema is `beir`.
    """

    repo: str
    revision: str
    splits: dict[str, str]
    language: str = ""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Which files are needed."""
        if not self.language:
            return ("README.md", "*corpus*", "*queries*", "*qrels*", "data/*", "default/*")
        return tuple(
            f"mldr-v1.0-{self.language}/{name}.jsonl.gz" for name in ("corpus", *self.splits)
        )


# BEIR's "test" of MS MARCO is TREC DL 2019 (43 queries, graded); "dev" is the split to quote.
REGISTRY = msgspec.json.decode(
    Path(__file__).with_name("datasets.json").read_bytes(), type=dict[str, HubSet]
)


def _snapshot(name: str, entry: HubSet) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    patterns = list(entry.patterns)
    try:
        return Path(
            snapshot_download(
                entry.repo, repo_type="dataset", revision=entry.revision, allow_patterns=patterns
            )
        )
    except (
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        HfHubHTTPError,
        ConnectionError,
    ) as error:
        offline = (
            " (HF_HUB_OFFLINE is set)"
            if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
            else ""
        )
        include = " ".join(f"--include '{pattern}'" for pattern in entry.patterns)
        raise InputError(
            f"{name}: {entry.repo} at revision {entry.revision} is not in the Hugging Face cache,"
            f" and the hub gave no answer{offline}: {type(error).__name__}. On a machine with the"
            f" network run `hf download --repo-type dataset {entry.repo} --revision"
            f" {entry.revision} {include} --local-dir DIR` and pass --data {name}=DIR, or copy the"
            " cache folder here and point HF_HOME at it"
        ) from error


def _load_beir(name: str, entry: HubSet, folder: Path, source: str) -> Dataset:
    import datasets

    ids = ("_id", "id")
    corpus = read_corpus(_only_split(folder, "corpus"), f"{source}, corpus", id_names=ids)
    queries = read_queries(_only_split(folder, "queries"), id_names=ids)
    try:
        configurations = datasets.get_dataset_config_names(str(folder))
    except (ValueError, OSError) as error:
        raise InputError(f"{folder}: not a copy of a hub data set ({error})") from error
    config = "default" if "default" in configurations else "qrels"
    files = _data_files(folder, config)
    splits = {}
    for ours, theirs in entry.splits.items():
        if theirs not in files:
            raise InputError(
                f"{folder}: configuration {config!r} has no split {theirs!r}; there are"
                f" {sorted(files)}"
            )
        where = f"{source}, qrels {theirs}"
        rows = (
            (place, row.get("query-id"), row.get("corpus-id"), row.get("score"))
            for place, row in read_rows(files[theirs])
        )
        splits[ours] = checked_qrels(collect_qrels(rows, where), corpus, queries, where)
    return Dataset(name, source, corpus, dict.fromkeys(splits, queries), splits)


def _data_files(folder: Path, config: str) -> dict[str, list[Path]]:
    """Return the files of each split of a configuration, as the folder's README or its
    names say.
    """
    import datasets

    try:
        files = datasets.load_dataset_builder(str(folder), config).config.data_files or {}
    except (ValueError, OSError) as error:
        raise InputError(
            f"{folder}: the configuration {config!r} cannot be read: {error}"
        ) from error
    return {str(split): [Path(file) for file in paths] for split, paths in files.items()}


def _only_split(folder: Path, config: str) -> list[Path]:
    files = _data_files(folder, config)
    if len(files) != 1:
        raise InputError(
            f"{folder}: configuration {config!r} has the splits {sorted(files)}, expected"
            " exactly one"
        )
    return next(iter(files.values()))


def _load_mldr(name: str, entry: HubSet, folder: Path, source: str) -> Dataset:
    base = folder / f"mldr-v1.0-{entry.language}"
    if not base.is_dir():
        raise InputError(
            f"{base}: no such folder; an MLDR copy holds"
            " mldr-v1.0-LANG/{corpus,dev,test}.jsonl.gz"
        )
    corpus = read_corpus([base / "corpus.jsonl.gz"], f"{source}, corpus", id_names=("docid",))
    queries: dict[str, dict[str, str]] = {}
    splits: dict[str, Qrels] = {}
    for split in entry.splits:
        file, where = base / f"{split}.jsonl.gz", f"{source}, {split}"
        queries[split] = read_queries([file], id_names=("query_id",), text_name="query")
        splits[split] = checked_qrels(
            collect_qrels(_mldr_judgements(file), where), corpus, queries[split], where
        )
    return Dataset(name, source, corpus, queries, splits)


def _mldr_judgements(file: Path) -> Iterator[tuple[str, object, object, object]]:
    for where, row in read_rows([file]):
        passages = row.get("positive_passages")
        if not isinstance(passages, list) or not all(
            isinstance(passage, dict) for passage in passages
        ):
            raise InputError(
                f"{where}: 'positive_passages' must be a list of objects, not {passages!r}"
            )
        yield from ((where, row.get("query_id"), passage.get("docid"), 1) for passage in passages)


def load_dataset(data: str, split: str | None = None) -> Dataset:
    """Open a data set by folder, by name (`mldr`, `mldr-de`, `msmarco`, `nq`, `scifact` ...), or
    `name=FOLDER`.

    A name is opened at its pinned revision, from the hub or its local cache; `name=FOLDER` reads a
    local copy of it (as `hf download --local-dir` makes one). `split` is only needed here for
    `train`: training judgements are not read unless they are asked for.
    """
    if Path(data).is_dir():
        return load_folder(Path(data), split)
    name, _, folder = data.partition("=")
    entry, copy = REGISTRY.get(name), Path(folder)
    if entry is None:
        what = "not" if folder else "neither a folder nor"
        raise InputError(
            f"{name!r} is {what} a known data set; known are {', '.join(REGISTRY)}; a folder needs"
            " corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv (BEIR layout)"
        )
    if folder and not copy.is_dir():
        raise InputError(f"{copy}: no such folder (looking for a local copy of {name})")
    if find_spec("datasets") is None:
        raise OptionalDependencyError("datasets", "hub", "data sets from the Hugging Face hub")
    load = _load_mldr if entry.language else _load_beir
    if folder:
        return load(name, entry, copy, f"{copy} (local copy of {entry.repo})")
    return load(name, entry, _snapshot(name, entry), f"{entry.repo}@{entry.revision[:12]}")
