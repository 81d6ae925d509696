"""Data sets: BEIR folders, copies of hub data sets, qrels, by name.

Read relevance judgements (qrels) in every common layout without losing a line.

Two layouts exist: BEIR's `query-id<TAB>corpus-id<TAB>score` below a header row, and TREC's `qid 0 docid grade` without
one. BEIR's own loader skips the first line whatever it says, so a file without a header silently loses a judgement;
here the header is recognised by its last field not being a number, and its names decide the order of the columns.

Decisions (each one that touches the data is added to `Qrels.notices`, which reports print):

- a grade below zero is trec_eval's "judged, not relevant": read as 0;
- `1.0` is read as 1; a grade such as 0.5 is an error, because nDCG's gains are the grades themselves;
- the same judgement twice with the same grade is kept once; with two grades it is an error;
- ids may hold spaces only in a tab-separated file.

A test collection: corpus, queries, judgements per split, and (where a set has them) the true character spans.

`load_folder` opens a folder in BEIR layout; `loading.load_dataset` also opens known data sets by name:

    corpus.jsonl    {"_id", "title", "text"} per line
    queries.jsonl   {"_id", "text"}
    qrels/SPLIT.tsv query-id, corpus-id, score
    spans.jsonl     optional: {"query-id", "corpus-id", "spans": [[start, end), ...]} in characters of the text

Public data sets by name, at pinned revisions.

Everything goes through a local folder: a hub name is first resolved to the snapshot of one exact commit in the Hugging
Face cache (downloaded when it can be, used from the cache when offline), then opened by the same code that opens a
local copy. So a saved cache works without the network, and the tests exercise the real loaders on small folders of the
same schema.

Two schemas cover all of them:

- `beir` (the `mteb/...` mirrors of BEIR): configurations `corpus` (`_id`, `title`, `text`), `queries` (`_id`, `text`)
  and `default` or `qrels` (`query-id`, `corpus-id`, `score`), one split of it per judged split; some call `_id` `id`;
- `mldr` (`Shitao/MLDR`): `mldr-v1.0-LANG/corpus.jsonl.gz` (`docid`, `text`), and `dev.jsonl.gz` and `test.jsonl.gz`
  (`query_id`, `query`, `positive_passages`). Its loading script is not run.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.json_lines import read_objects
from aveyb_retrieval.errors import InputError, OptionalDependencyError
from aveyb_retrieval.eval.base import reading
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.eval.base import Judgements

_QUERY_NAMES = {"query-id", "query_id", "queryid", "qid", "query", "topic", "topic_id"}
_DOCUMENT_NAMES = {"corpus-id", "corpus_id", "doc-id", "doc_id", "docid", "docno", "document-id", "pid"}
_GRADE_NAMES = {"score", "relevance", "rel", "grade", "label", "judgement", "judgment"}
_ITERATION_NAMES = {"iteration", "iter", "q0", "0", "unused"}


@dataclass(frozen=True)
class Qrels:
    """Judgements and what was decided while reading them."""

    judgements: Judgements
    notices: tuple[str, ...] = ()


def read_qrels(path: str | Path) -> Qrels:
    """Read a qrels file: BEIR (with or without header) or TREC column order, separated by tabs or spaces.

    Raises:
        InputError: the file cannot be read, is empty or not text, or a line has the wrong number of columns, a grade
            that is not an integer, or contradicts an earlier line. The message names the file and the line.
    """
    path = Path(path)
    with reading(path, "qrels file"):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    return Qrels(*_collect(_rows(lines, str(path)), str(path)))


def collect_qrels(rows: Iterable[tuple[str, str, object]], source: str) -> Qrels:
    """Check rows of (query id, document id, grade) from anywhere, for example a hub data set.

    `source` names the place in messages; rows are numbered from 1.
    """
    numbered = ((n, query, doc, str(grade)) for n, (query, doc, grade) in enumerate(rows, start=1))
    return Qrels(*_collect(numbered, source))


def _rows(lines: list[str], source: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line number, query id, document id, grade) of each judgement."""
    columns: tuple[int, int, int] | None = None
    width = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = [f.strip() for f in line.split("\t")] if "\t" in line else line.split()
        if columns is None:
            width = len(fields)
            if width not in (3, 4):
                raise InputError(
                    f"{source}, line {number}: {width} columns, expected 3 (query-id, corpus-id, score) or 4 (TREC: "
                    "qid 0 docid grade); ids that hold spaces need a tab-separated file"
                )
            if _is_number(fields[-1]):
                columns = (0, 1, 2) if width == 3 else (0, 2, 3)
            else:
                columns = _columns_of_header(fields, source, number)
                continue
        if len(fields) != width:
            raise InputError(
                f"{source}, line {number}: {len(fields)} columns where the file began with {width}; ids that hold "
                "spaces need a tab-separated file"
            )
        query, doc, grade = (fields[c] for c in columns)
        yield number, query, doc, grade


def _columns_of_header(names: list[str], source: str, number: int) -> tuple[int, int, int]:
    lowered = [name.lower() for name in names]
    found = []
    for wanted in (_QUERY_NAMES, _DOCUMENT_NAMES, _GRADE_NAMES):
        places = [i for i, name in enumerate(lowered) if name in wanted]
        if len(places) != 1:
            raise InputError(
                f"{source}, line {number}: {names} is neither a judgement (the last field is not a number) nor a "
                "header with query-id, corpus-id and score"
            )
        found.append(places[0])
    rest = [name for i, name in enumerate(lowered) if i not in found]
    if any(name not in _ITERATION_NAMES for name in rest):
        raise InputError(f"{source}, line {number}: unknown column {rest[0]!r} in the header {names}")
    return found[0], found[1], found[2]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _grade(text: str, where: str) -> int:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where}: the grade {text!r} is not a number") from None
    if not value.is_integer():  # neither are inf and nan
        raise InputError(
            f"{where}: the grade {text!r} is not an integer; nDCG uses grades as gains, so scale them first"
        )
    return int(value)


def _collect(rows: Iterable[tuple[int, str, str, str]], source: str) -> tuple[Judgements, tuple[str, ...]]:
    judgements: Judgements = {}
    first_line: dict[tuple[str, str], int] = {}
    duplicates = negatives = 0
    for number, query, doc, text in rows:
        where = f"{source}, line {number}"
        if not query or not doc:
            raise InputError(f"{where}: empty {'query' if not query else 'document'} id")
        grade = _grade(text, where)
        if grade < 0:
            negatives += 1
            grade = 0
        documents = judgements.setdefault(query, {})
        if doc in documents:
            if documents[doc] != grade:
                raise InputError(
                    f"{where}: query {query!r}, document {doc!r} is judged {grade} here and {documents[doc]} on line "
                    f"{first_line[query, doc]}; keep one of them"
                )
            duplicates += 1
            continue
        documents[doc] = grade
        first_line[query, doc] = number
    if not judgements:
        raise InputError(f"{source}: no judgements in this qrels file")
    notices = []
    if duplicates:
        notices.append(f"{source}: {plural(duplicates, 'repeated judgement')} (same grade) kept once")
    if negatives:
        notices.append(f"{source}: {plural(negatives, 'negative grade')} read as 0 (judged, not relevant)")
    return judgements, tuple(notices)


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


MLDR_LANGUAGES = ("en", "ar", "de", "es", "fr", "hi", "it", "ja", "ko", "pt", "ru", "th", "zh")


@dataclass(frozen=True)
class HubSet:
    """Where a data set lives and which of its splits are judged; `splits` maps our names to the hub's."""

    repo: str
    revision: str
    schema: str
    splits: dict[str, str]
    patterns: tuple[str, ...]
    language: str = "en"


def _beir(repo: str, revision: str, **splits: str) -> HubSet:
    patterns = ("README.md", "*corpus*", "*queries*", "*qrels*", "data/*", "default/*")
    return HubSet(repo, revision, "beir", splits or {"test": "test"}, patterns)


def _mldr(language: str) -> HubSet:
    files = tuple(f"mldr-v1.0-{language}/{name}.jsonl.gz" for name in ("corpus", "dev", "test"))
    revision = "d67138e705d963e346253a80e59676ddb418810a"
    return HubSet("Shitao/MLDR", revision, "mldr", {"dev": "dev", "test": "test"}, files, language)


_CQADUPSTACK = {
    "english": "ad9991cb51e31e31e430383c75ffb2885547b5f0",
    "gaming": "4885aa143210c98657558c04aaf3dc47cfb54340",
    "gis": "5003b3064772da1887988e05400cf3806fe491f2",
    "mathematica": "90fceea13679c63fe563ded68f3b6f06e50061de",
    "physics": "79531abbd1fb92d06c6d6315a0cbbbf5bb247ea4",
    "programmers": "6184bc1440d2dbc7612be22b50686b8826d22b32",
    "stats": "65ac3a16b8e91f9cee4c9828cc7c335575432a2a",
    "tex": "46989137a86843e03a6195de44b09deda022eec7",
    "unix": "6c6430d3a6d36f8d2a829195bc5dc94d7e063e53",
    "webmasters": "160c094312a0e1facb97e55eeddb698c0abe3571",
    "wordpress": "4ffe81d471b1924886b33c7567bfb200e9eec5c4",
}

REGISTRY: dict[str, HubSet] = {
    **{("mldr" if lang == "en" else f"mldr-{lang}"): _mldr(lang) for lang in MLDR_LANGUAGES},
    # BEIR's "test" of MS MARCO is TREC DL 2019 (43 queries, graded); "dev" is the split to quote
    "msmarco": _beir("mteb/msmarco", "c5a29a104738b98a9e76336939199e264163d4a0", dev="dev", dl19="test"),
    "trec-dl-2019": _beir("whybe-choi/trec-dl-2019", "cbb055c2528c544edf84db8ec6aef1885ec8cfda"),
    "trec-dl-2020": _beir("whybe-choi/trec-dl-2020", "83d7d3532f3fa653f132da188bbaa852d959d6f9"),
    "nq": _beir("mteb/nq", "b774495ed302d8c44a3a7ea25c90dbce03968f31"),
    "arguana": _beir("mteb/arguana", "c22ab2a51041ffd869aaddef7af8d8215647e41a"),
    "climate-fever": _beir("mteb/climate-fever", "47f2ac6acb640fc46020b02a5b59fdda04d39380"),
    "cqadupstack-android": _beir("mteb/CQADupstackAndroidRetrieval", "9be4c0e46342e8e3aff577a89b9a1ec9bc6b4af3"),
    **{f"cqadupstack-{forum}": _beir(f"mteb/cqadupstack-{forum}", rev) for forum, rev in _CQADUPSTACK.items()},
    "dbpedia": _beir("mteb/dbpedia", "c0f706b76e590d620bd6618b3ca8efdd34e2d659", dev="dev", test="test"),
    "fever": _beir("mteb/fever", "bea83ef9e8fb933d90a2f1d5515737465d613e12", dev="dev", test="test"),
    "fiqa": _beir("mteb/fiqa", "27a168819829fe9bcd655c2df245fb19452e8e06", dev="dev", test="test"),
    "hotpotqa": _beir("mteb/hotpotqa", "ab518f4d6fcca38d87c25209f94beba119d02014", dev="dev", test="test"),
    "nfcorpus": _beir("mteb/nfcorpus", "ec0fa4fe99da2ff19ca1214b7966684033a58814", dev="dev", test="test"),
    "quora": _beir("mteb/quora", "e4e08e0b7dbe3c8700f0daef558ff32256715259", dev="dev", test="test"),
    "scidocs": _beir("mteb/scidocs", "f8c2fcf00f625baaa80f62ec5bd9e1fff3b8ae88"),
    "scifact": _beir("mteb/scifact", "d56462d0e63a25450459c4f213e49ffdb866f7f9"),
    "touche2020": _beir("mteb/touche2020", "a34f9a33db75fa0cbb21bb5cfc3dae8dc8bec93f"),
    "trec-covid": _beir("mteb/trec-covid", "bb9466bac8153a0349341eb1b22e06409e78ef4e"),
}


def names() -> list[str]:
    """Return the known data set names."""
    return list(REGISTRY)


def load_from_hub(name: str) -> Dataset:
    """Open a known data set at its pinned revision, from the hub or from its local cache.

    Raises:
        InputError: not in the cache and the hub cannot be reached; the message says how to get a local copy.
        OptionalDependencyError: `datasets` is not installed.
    """
    _require_datasets()
    entry = REGISTRY[name]
    folder = _snapshot(name, entry)
    return _LOADERS[entry.schema](name, entry, folder, f"{entry.repo}@{entry.revision[:12]}")


def load_local_copy(name: str, folder: Path) -> Dataset:
    """Open a folder that holds a copy of the known hub data set `name` (as `hf download --local-dir` makes it).

    Raises:
        InputError: unknown name, no such folder, or its files do not have the data set's schema.
        OptionalDependencyError: `datasets` is not installed.
    """
    if name not in REGISTRY:
        raise InputError(f"{name!r} is not a known data set; known are {', '.join(names())}")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder (looking for a local copy of {name})")
    _require_datasets()
    entry = REGISTRY[name]
    return _LOADERS[entry.schema](name, entry, folder, f"{folder} (local copy of {entry.repo})")


def _require_datasets() -> None:
    from importlib.util import find_spec

    if find_spec("datasets") is None:
        raise OptionalDependencyError("datasets", "hub", "data sets from the Hugging Face hub")


def _snapshot(name: str, entry: HubSet) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    options: dict[str, Any] = {
        "repo_type": "dataset",
        "revision": entry.revision,
        "allow_patterns": list(entry.patterns),
    }
    try:
        return Path(snapshot_download(entry.repo, **options))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, ConnectionError) as error:
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        include = " ".join(f"--include '{pattern}'" for pattern in entry.patterns)
        raise InputError(
            f"{name}: {entry.repo} at revision {entry.revision} is not in the Hugging Face cache, and the hub gave no "
            f"answer{offline}: {type(error).__name__}. On a machine with the network run\n  hf download --repo-type "
            f"dataset {entry.repo} --revision {entry.revision} {include} --local-dir DIR\nand pass --data {name}=DIR, "
            "or copy the cache folder here and point HF_HOME at it"
        ) from error


def _load_beir(name: str, entry: HubSet, folder: Path, source: str) -> Dataset:
    import datasets

    documents, document_id = _identified(_table(folder, "corpus", None, ("text",)))
    corpus = Corpus(documents, f"{source}, corpus", id_field=document_id)
    texts, query_id = _identified(_table(folder, "queries", None, ("text",)))
    queries = {str(row[query_id]): row["text"] for row in texts}
    config = "default" if "default" in datasets.get_dataset_config_names(str(folder)) else "qrels"
    splits = {}
    for ours, theirs in entry.splits.items():
        table = _table(folder, config, theirs, ("query-id", "corpus-id", "score"))
        where = f"{source}, qrels {theirs}"
        rows = ((str(row["query-id"]), str(row["corpus-id"]), row["score"]) for row in table)
        splits[ours] = checked_qrels(collect_qrels(rows, where), corpus, queries, where)
    return Dataset(name, source, corpus, queries, splits)


def _identified(table: Any) -> tuple[Any, str]:
    """Return the table and the name of its id column."""
    name = "id" if "id" in table.column_names and "_id" not in table.column_names else "_id"
    return _with_columns(table, (name,), "this data set"), name


def _table(folder: Path, config: str, split: str | None, columns: tuple[str, ...]) -> Any:
    """Return one configuration of a data set folder as a memory-mapped `datasets.Dataset`, its columns checked."""
    import datasets

    try:
        loaded = datasets.load_dataset(str(folder), config)
    except (ValueError, FileNotFoundError, datasets.exceptions.DatasetGenerationError) as error:
        raise InputError(f"{folder}: the configuration {config!r} cannot be read: {error}") from error
    if split is None:
        if len(loaded) != 1:
            raise InputError(
                f"{folder}: configuration {config!r} has the splits {sorted(loaded)}, expected exactly one"
            )
        split = next(iter(loaded))
    if split not in loaded:
        raise InputError(f"{folder}: configuration {config!r} has no split {split!r}; there are {sorted(loaded)}")
    return _with_columns(loaded[split], columns, f"{folder}, {config}/{split}")


def _load_mldr(name: str, entry: HubSet, folder: Path, source: str) -> Dataset:
    base = folder / f"mldr-v1.0-{entry.language}"
    corpus_rows = _json_lines(base / "corpus.jsonl.gz", ("docid", "text"))
    corpus = Corpus(corpus_rows, f"{source}, corpus", id_field="docid")
    queries: dict[str, str] = {}
    splits: dict[str, Qrels] = {}
    for split in entry.splits:
        rows = _json_lines(base / f"{split}.jsonl.gz", ("query_id", "query", "positive_passages"))
        judgements: list[tuple[str, str, object]] = []
        for row in rows:
            queries[str(row["query_id"])] = row["query"]
            judgements.extend((str(row["query_id"]), str(p["docid"]), 1) for p in row["positive_passages"])
        where = f"{source}, {split}"
        splits[split] = checked_qrels(collect_qrels(judgements, where), corpus, queries, where)
    return Dataset(name, source, corpus, queries, splits)


def _json_lines(path: Path, columns: tuple[str, ...]) -> Any:
    import datasets

    if not path.is_file():
        raise InputError(f"{path}: no such file; an MLDR copy holds mldr-v1.0-LANG/{{corpus,dev,test}}.jsonl.gz")
    try:
        table = datasets.load_dataset("json", data_files=str(path), split="train")
    except (ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise InputError(f"{path}: not gzip-compressed JSON lines: {error}") from error
    return _with_columns(table, columns, str(path))


def _with_columns(table: Any, columns: Iterable[str], where: str) -> Any:
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise InputError(f"{where}: no column {missing[0]!r}; there are {table.column_names}")
    return table


_LOADERS: dict[str, Callable[[str, HubSet, Path, str], Dataset]] = {"beir": _load_beir, "mldr": _load_mldr}


def load_dataset(data: str, split: str | None = None) -> Dataset:
    """Open a data set by folder, by name (`mldr`, `mldr-de`, `msmarco`, `nq`, `scifact` ...), or `name=FOLDER`.

    `name=FOLDER` reads a local copy of that hub data set, in the hub's own layout. `split` is only needed here for
    `train`: training judgements are not read unless they are asked for.

    Raises:
        InputError: neither a folder nor a known name, a file is missing or malformed, or the hub cannot be reached.
        OptionalDependencyError: a hub data set was asked for and `datasets` is not installed.
    """
    path = Path(data)
    if path.is_dir():
        return load_folder(path, split)
    name, _, folder = data.partition("=")
    if folder:
        return load_local_copy(name, Path(folder))
    if data in names():
        return load_from_hub(data)
    raise InputError(
        f"{data!r} is neither a folder nor a known data set; known are {', '.join(names())}; a folder needs "
        "corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv (BEIR layout)"
    )
