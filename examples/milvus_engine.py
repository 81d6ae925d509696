"""An engine of another package: Milvus, a server of 2.5 or newer or milvus-lite in a file, the only
one ever run.

    register_engine("milvus", MilvusCollection)
    publish_index("handbook.index", "milvus://ann:secret@vectors.example:19530/handbook")
    publish_index("handbook.index", "milvus:///srv/search/all.db/handbook")     # milvus-lite

Needs pymilvus 3 (and milvus-lite). docs/engines.md says what an engine is, tests/engines what this
one keeps to.

A version has two of Milvus's collections, `aveyb_NAME_N_documents` and `aveyb_NAME_N_passages`,
with the settings as a property of theirs. The alias `aveyb_NAME` is of the first one of the version
that readers see; moving it is the switch. Nothing keeps two writers apart: the last one to write a
document decides.

After a `?` an address takes `timeout=SECONDS` (10), `secure=true`, `consistency=` (`strong`,
`bounded` or `eventually`; Milvus's own default is the second) and `index=` (of the vectors, by
Milvus's name; `HNSW` by default).

Limits: documents and passages are read one after the other, so beside an update a search may show a
passage of the text before or end in an error that says to search again; an interrupted update may
be there in part, so do it again. Counts are remembered for five seconds or 20 times as long as
counting took. The mean vector and the statistics of words come from 1,024 documents. BM25 counts as
Milvus does, and a search for documents finds their words up to 65,535 bytes; exact words (phrases,
`+`, `-`) are refused. milvus-lite reads all rows for a filter and is one process's at a time.
"""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote

import msgspec
import numpy as np

from aveyb_retrieval.engines.collection import NOT_THERE, Collection, CollectionView
from aveyb_retrieval.engines.database_rows import FactFilters, ascii_word
from aveyb_retrieval.errors import (
    ConfigError,
    EngineError,
    IndexFormatError,
    InputError,
    first_line,
)
from aveyb_retrieval.indexes.engine import SAMPLE_DOCUMENTS
from aveyb_retrieval.indexes.store.words import K1, B
from aveyb_retrieval.indexes.types import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.documents.records import Record
    from aveyb_retrieval.engines.collection import (
        Address,
        CollectionSettings,
        DocumentRow,
        Rows,
        Version,
    )
    from aveyb_retrieval.indexes.store.filters import Filter, FilterCondition
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

    Row = dict[str, Any]

MOST_HITS = 16_384  # of one search
NAMED = 4096  # values in one expression
EF = 200  # candidates that a search of a graph keeps; as many as are asked for if these are more
ALL = "number >= 0"
COUNTED = 5.0  # seconds that counts are remembered, as long as Milvus's bounded reads may be behind
PATIENCE = (
    20.0  # times as long as the counting took, if this is longer: milvus-lite reads all rows for it
)
SAMPLED = 60.0  # seconds that what a sample says is remembered while the counts stay


class MilvusFilters(FactFilters):
    """Filters as expressions of Milvus."""

    def has_part(self, field: str, text: str) -> FilterCondition:
        """The field is a string that holds this text, letter by letter."""
        if any(letter in text for letter in "%_\\"):
            raise ConfigError(
                f"filter: $contains on {field!r}: Milvus cannot look for {text!r}, of %, _ and \\"
            )
        return super().has_part(field, text and f"%{text}%")


_COMPARED = '(exists bounds["{key}"] AND bounds["{key}"] {operator} %s)'
FILTERS = MilvusFilters(
    holds="array_contains_any(facts, [{}])",
    has_key='exists bounds["{}"]',
    number=_COMPARED,
    text=_COMPARED,
    part='bounds["{}"] like %s',
)


class MilvusView(CollectionView):
    """What one search reads."""

    remedy = "it was changed meanwhile: search again, and if it stays so, publish it again"

    def __init__(self, collection: MilvusCollection, version: Version) -> None:
        super().__init__(collection, version)
        self._client, self._options = collection.client, collection.options

    @cached_property
    def state(self) -> tuple[float, ...]:
        """What a sample says is used again as long as this stays."""
        return time.monotonic() // SAMPLED, self.count("document"), self.count("passage")

    def select(self, where: Filter | None) -> str | None:
        """Compile a filter to an expression, which documents and passages both understand."""
        if where is None:
            return None
        sql, parameters = FILTERS.compile(where)
        # what a user wrote stands in the parameters alone
        sql = sql.replace("1 = 1", ALL).replace("1 = 0", "number < 0")
        return sql % tuple(json.dumps(value, ensure_ascii=False) for value in parameters)

    def count(self, kind: Kind, selection: str | None = None) -> int:
        """Count the vectors of a kind that can be found."""
        key, now = ("count", kind, selection), time.monotonic()
        until, counted = self.version.known.get(key, (now, 0))
        if until <= now:
            counted = self._query(kind, selection or "", ["count(*)"])[0]["count(*)"]
            self.remember(key, (now + max(COUNTED, PATIENCE * (time.monotonic() - now)), counted))
        return counted

    def matching(self, selection: str) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        return np.array(
            sorted(row["number"] for row in self._all("document", selection)), dtype=np.int64
        )

    def nearest(
        self,
        kind: Kind,
        queries: FloatArray,
        k: int,
        selection: str | None = None,
        *,
        exact: bool = False,
    ) -> tuple[FloatArray, IntArray]:
        """Find the vectors nearest to unit vectors `[n, d]`: cosines and numbers `[n, k]`, best
        first.

        `exact`, and what the index finds too little of, reads and scores all vectors here.
        """
        if k and not exact and k <= MOST_HITS:
            found = self._search(kind, "vector", "IP", list(queries), k, selection, ef=max(EF, k))
            if min(map(len, found), default=0) == k:
                hits = np.array(found, dtype=[("number", np.int64), ("score", np.float32)])
                return hits["score"], hits["number"]
        rows = self._all(kind, selection or ALL, "vector")
        numbers = np.array([row["number"] for row in rows], dtype=np.int64)
        vectors = np.array([row["vector"] for row in rows], dtype=np.float32).reshape(
            -1, self.encoding.dim
        )
        scores = queries @ vectors.T
        best = np.lexsort((np.broadcast_to(numbers, scores.shape), -scores))[:, :k]
        return np.take_along_axis(scores, best, axis=1), numbers[best]

    def by_words(
        self, kind: Kind, words: Sequence[str], k: int, selection: str | None = None
    ) -> list[tuple[int, float]]:
        """The `k` best documents or passages by Milvus's BM25, best first; fewer where fewer hold a
        word.
        """
        k = min(k, self.count(kind, selection)) if k > MOST_HITS else k
        if k > MOST_HITS:
            raise ConfigError(
                f"{self.info.name}: {k:,} hits by words; Milvus gives up to {MOST_HITS:,}: ask for"
                " fewer"
            )
        if not words or not k:
            return []
        (found,) = self._search(
            kind, "bm25", "BM25", [" ".join(map(ascii_word, words))], k, selection
        )
        return [hit for hit in found if hit[1]]

    def holding(self, words: Sequence[str]) -> list[int]:
        """How many passages hold each of some words, by those of a sample of documents."""
        seen, held = self.remembered("words", self._words_of_sample)
        return [
            round(held[ascii_word(word)] * self.count("passage") / max(seen, 1)) for word in words
        ]

    def _words_of_sample(self) -> tuple[int, Counter[str]]:
        """How many passages a sample of documents has, and how many of these hold each word."""
        rows = self.read(
            "passage", ("words",), self.passage_numbers(self.sample(SAMPLE_DOCUMENTS)).tolist()
        )
        return len(rows), Counter(word for (words,) in rows for word in set(words.split()))

    def read(
        self, kind: Kind, columns: Sequence[str], values: Iterable[int], *, by: str = "number"
    ) -> list[tuple[Any, ...]]:
        """Columns of the rows whose number, or rank, is one of some values, in any order."""
        wanted, rows = list(values), list[tuple[Any, ...]]()
        for start in range(0, len(wanted), NAMED):
            found = self._query(kind, f"{by} in {wanted[start : start + NAMED]}", list(columns))
            rows += [tuple(row[column] for column in columns) for row in found]
        return rows

    def sample(self, most: int) -> list[int]:
        """Numbers of the documents of least rank."""
        total = self.count("document")
        # of so many ranks, evenly spread, at least `most` are below this, but for one chance in
        # 10^15
        below = ALL if total <= 2 * most else f"rank < {int(1.3 * most / total * 2**63)}"
        rows = sorted(self._all("document", below, "rank"), key=lambda row: int(row["rank"]))
        return [row["number"] for row in rows[:most]]

    def _query(self, kind: Kind, condition: str, fields: list[str]) -> list[dict[str, Any]]:
        name = f"{self.version.label}_{kind}s"
        return self._client.query(name, filter=condition, output_fields=fields, **self._options)

    def _all(self, kind: Kind, condition: str, *fields: str) -> list[dict[str, Any]]:
        """Fields of all rows that satisfy a condition, however many."""
        name, fields = f"{self.version.label}_{kind}s", ("number", *fields)
        pages = self._client.query_iterator(
            name, 8192, filter=condition, output_fields=list(fields), **self._options
        )
        rows: list[dict[str, Any]] = []
        while page := pages.next():
            rows.extend(page)
        pages.close()
        return rows

    def _search(
        self,
        kind: Kind,
        field: str,
        metric: str,
        data: list[Any],
        k: int,
        where: str | None,
        **effort: int,
    ) -> list[list[tuple[int, float]]]:
        """The best rows for each of some queries, best first: (number, score)."""
        parameters = {"metric_type": metric, "params": effort}
        found = self._client.search(
            f"{self.version.label}_{kind}s",
            data=data,
            anns_field=field,
            limit=k,
            filter=where or "",
            search_params=parameters,
            **self._options,
        )
        # milvus-lite gives the negative of a score by words
        sign = (
            -1
            if metric == "BM25" and any(hit["distance"] < 0 for hits in found for hit in hits)
            else 1
        )
        scored = [
            [(int(hit["number"]), sign * float(hit["distance"])) for hit in hits] for hits in found
        ]
        return [sorted(hits, key=lambda hit: (-hit[1], hit[0])) for hits in scored]


# Documents are numbered from 0 as they are published. Numbers of documents that updates add are
# drawn at random from those above, so that writers need not know of each other; passages leave 43
# bits to them.
FIRST_ADDED, MOST = 1 << 40, 1 << (63 - PASSAGE_BITS)
WAIT = 600.0  # seconds for a server to answer, write, flush or load
DEFAULT_PORT = 19530
OLDEST = (2, 5)  # full-text search by a BM25 function
CUT = 64  # documents whose passages one expression deletes
CALL_ROWS = 1024  # rows of one call; a call has at most 64 MB
_SETTINGS = "aveyb.settings"
KINDS: tuple[Kind, ...] = ("passage", "document")
LONGEST = 65_535  # bytes of a VARCHAR
MOST_ELEMENTS = 4096  # of an ARRAY
_PIECE = 16_000  # characters of up to four bytes each
_PARAMETERS: dict[str, dict[str, Any]] = {  # of indexes that need some; others have Milvus's own
    "HNSW": {"M": 16, "efConstruction": 128},
    "HNSW_SQ": {"M": 16, "efConstruction": 128, "sq_type": "SQ8"},
    "IVF_RABITQ": {"nlist": 1024, "refine": True, "refine_type": "SQ8"},
}
_users: Counter[str] = Counter()  # clients of this process, by server or database of milvus-lite
_lock = threading.Lock()

logger = logging.getLogger(__name__)


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands after the `?` of an address.

    Attributes:
        timeout: Seconds for the server to accept a connection.
        secure: Whether it is encrypted.
        consistency: Milvus's level for what searches read.
        index: Milvus's name of the index over vectors that a publication makes.
    """

    timeout: Annotated[float, msgspec.Meta(gt=0, le=WAIT)] = 10.0
    secure: Literal["true", "false"] = "false"
    consistency: Literal["strong", "bounded", "eventually"] = "bounded"
    index: Annotated[str, msgspec.Meta(pattern="^[A-Z][A-Z0-9_]*$")] = "HNSW"


class MilvusCollection(Collection):
    """A collection; many threads may read it at once."""

    viewed_by = MilvusView

    def __init__(self, address: Address, *, writes: bool) -> None:
        """Connect; who `writes` reads everything that was acknowledged, and makes a database of
        milvus-lite.
        """
        super().__init__(address, writes=writes)
        parameters, target = read_address(address)
        level = "Strong" if writes else parameters.consistency.capitalize()
        self.options = {"consistency_level": level, "timeout": WAIT}
        self._names = rf"{self.prefix}_([0-9]+)_(documents|passages)"
        self._index, self._next, self._uri, self._lite = (
            parameters.index,
            0,
            target["uri"],
            not address.url.netloc,
        )
        import pymilvus

        for name in ("pymilvus.decorators", "pymilvus.client.connection_manager"):
            # what is raised is not printed as well
            logging.getLogger(name).setLevel(logging.CRITICAL)
        path, advice = (
            Path(self._uri),
            "check that the server runs there, and the user, password and database",
        )
        if self._lite:
            advice = "milvus-lite serves one process at a time: end the other one, or run a server"
            if not path.parent.is_dir():
                raise ConfigError(f"{self.name}: there is no folder {path.parent}")
            if not writes and not path.exists():
                raise IndexFormatError(f"{self.name}: {NOT_THERE}")
        with self.translated(f"no connection; {advice}"), _lock:
            self.client: Any = pymilvus.MilvusClient(
                **target, timeout=parameters.timeout, dedicated=True
            )
            _users[self._uri] += 1
        try:
            with self.translated():
                found = self.client.get_server_version(timeout=WAIT)
            version = re.search(r"(\d{1,9})\.(\d{1,9})", found)
            if version is None or tuple(map(int, version.groups())) < OLDEST:
                raise ConfigError(
                    f"{self.name}: Milvus {found}; {'.'.join(map(str, OLDEST))} or newer is needed"
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the last one to a database of milvus-lite also lets go of its
        files.
        """
        with _lock:
            self.client.close()
            _users[self._uri] -= 1
            if self._lite and not _users[self._uri]:
                from milvus_lite.server_manager import server_manager_instance

                server_manager_instance.release_server(self._uri)

    @contextmanager
    def translated(
        self, failed: str = "the server refused, failed or went away; try again"
    ) -> Iterator[None]:
        """Turn what pymilvus raises into errors of ours."""
        import grpc
        from pymilvus.exceptions import ErrorCode, MilvusException

        try:
            yield
        except (MilvusException, grpc.RpcError) as error:
            said = first_line(error, getattr(error, "message", None))
            gone = getattr(error, "code", None) == ErrorCode.COLLECTION_NOT_FOUND
            missing = ("collection not found", "can't find collection", "does not exist")
            if gone or any(each in said.lower() for each in missing):
                raise self.missing_version() from error
            raise EngineError(f"{self.name}: {failed} ({said})") from error

    def versions(self) -> dict[int, Mapping[str, Any] | None]:
        """The settings of every version by number, ascending; None where one of its collections is
        missing.
        """
        found: dict[int, list[Mapping[str, Any]]] = {}
        for name in self.client.list_collections(timeout=WAIT):
            if re.fullmatch(self._names, name):
                number, settings = self._made(name)
                found.setdefault(number, []).append(settings)
        return {
            number: about[0] if len(about) == len(KINDS) else None
            for number, about in sorted(found.items())
        }

    def visible_version(self) -> tuple[int, Mapping[str, Any]] | None:
        """The version that readers see, and its settings."""
        from pymilvus.exceptions import MilvusException

        try:
            name = str(self.client.describe_alias(self.prefix, timeout=WAIT)["collection_name"])
        except MilvusException as error:
            if "not found" in error.message.lower() or "not exist" in error.message.lower():
                return None
            raise
        return self._made(name)

    def _made(self, name: str) -> tuple[int, Mapping[str, Any]]:
        """The version that one of Milvus's collections is of, and its settings."""
        found = self.client.describe_collection(name, timeout=WAIT)["properties"].get(_SETTINGS)
        match = re.fullmatch(self._names, name)
        if found is None or match is None:
            what = "was made by somebody else; rename it, or choose another name"
            raise IndexFormatError(f"{self.name}: the collection {name} {what}")
        return int(match[1]), json.loads(found)

    def create(self, number: int, settings: CollectionSettings) -> None:
        """Make the empty collections of a version, and their indexes."""
        from pymilvus import DataType, Function, FunctionType

        whole: tuple[Any, Row] = DataType.INT64, {}
        text: tuple[Any, Row] = DataType.VARCHAR, {"max_length": LONGEST}
        words = {
            "enable_analyzer": True,
            "enable_match": True,
            "analyzer_params": {"tokenizer": "standard"},
        }
        pieces = {
            "element_type": DataType.VARCHAR,
            "max_capacity": MOST_ELEMENTS,
            "max_length": LONGEST,
        }
        own: dict[Kind, dict[str, tuple[Any, Row]]] = {
            "document": {
                "id": text,
                "rank": whole,
                "passages": whole,
                "stored": (DataType.ARRAY, pieces),
            },
            "passage": {
                "start": whole,
                "stop": whole,
                "heading": text,
                "share": (DataType.FLOAT, {}),
            },
        }
        shared: dict[str, tuple[Any, Row]] = {
            "facts": (
                DataType.ARRAY,
                {"element_type": DataType.INT64, "max_capacity": MOST_ELEMENTS},
            ),
            "bounds": (DataType.JSON, {}),
            "words": (DataType.VARCHAR, {"max_length": LONGEST, **words}),
            "bm25": (DataType.SPARSE_FLOAT_VECTOR, {}),
            "vector": (DataType.FLOAT_VECTOR, {"dim": settings.encoding.dim}),
        }
        bm25 = Function(
            "bm25", FunctionType.BM25, input_field_names=["words"], output_field_names=["bm25"]
        )
        indexes = self.client.prepare_index_params()
        indexes.add_index(
            "vector",
            index_type=self._index,
            metric_type="IP",
            params=_PARAMETERS.get(self._index, {}),
        )
        form = {"bm25_k1": K1, "bm25_b": B}
        indexes.add_index(
            "bm25", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params=form
        )
        for kind in KINDS:
            schema = self.client.create_schema(auto_id=False)
            schema.add_field("number", DataType.INT64, is_primary=True)
            for field, (data_type, options) in (own[kind] | shared).items():
                schema.add_field(field, data_type, **options)
            schema.add_function(bm25)
            name, about = (
                f"{self.label(number)}_{kind}s",
                {_SETTINGS: json.dumps(settings.to_json())},
            )
            self.client.create_collection(
                name, schema=schema, index_params=indexes, properties=about, timeout=WAIT
            )

    def show(self, number: int) -> None:
        """Let readers see a version."""
        move = (
            self.client.create_alias if self.visible_version() is None else self.client.alter_alias
        )
        move(f"{self.label(number)}_documents", self.prefix, timeout=WAIT)

    def drop(self, number: int) -> None:
        """Remove a version."""
        for kind in KINDS:
            self.client.drop_collection(f"{self.label(number)}_{kind}s", timeout=WAIT)

    def opened(self, number: int, settings: CollectionSettings) -> Version:
        """A version whose collections are loaded."""
        for kind in KINDS:
            self.client.load_collection(f"{self.label(number)}_{kind}s", timeout=WAIT)
        return super().opened(number, settings)

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Begin, and remove passages of documents that were not acknowledged."""
        self._next = super().begin(settings, restart=restart)
        with self.translated():
            self._delete("passage", filter=f"number >= {self._next << PASSAGE_BITS}")
        return self._next

    def add(self, rows: Rows) -> None:
        """Add new documents to what is published, each after its passages."""
        with self.translated():
            self._write(range(self._next, self._next + len(rows)), rows, ("passage", "document"))
        self._next += len(rows)

    def finish(self) -> None:
        """Seal what was added, so that its indexes are built, and count it: nobody else may have
        written.
        """
        with self.translated():
            for kind in KINDS:
                self.client.flush(f"{self.version.label}_{kind}s", timeout=WAIT)
            self.version.known.clear()
            count = self.view().count("document")
        if count != self._next:
            raise EngineError(
                f"{self.name}: {count:,} documents where {self._next:,} were written: another"
                " process publishes under this name; let one do it, with --restart"
            )

    def replace(self, there: dict[str, int], rows: Rows) -> None:
        """Write documents, then remove what is left of their former texts: if it is interrupted, do
        it again.
        """
        fresh = iter(self._fresh(len(rows) - len(there)))
        numbers = [there[record.id] if record.id in there else next(fresh) for record, _ in rows]
        self._write(numbers, rows, ("document", "passage"))
        self._cut(
            [
                number << PASSAGE_BITS | len(row.spans)
                for number, (_, row) in zip(numbers, rows, strict=True)
            ]
        )

    def remove(self, docs: list[int]) -> None:
        """Remove documents and their passages by number."""
        self._cut([doc << PASSAGE_BITS for doc in docs])
        for start in range(0, len(docs), NAMED):
            self._delete("document", ids=docs[start : start + NAMED])

    def _write(self, numbers: Iterable[int], rows: Rows, order: tuple[Kind, ...]) -> None:
        """Write documents under numbers.

        Those that come after their passages are whole if they are there.
        """
        made: dict[Kind, list[Row]] = {kind: [] for kind in KINDS}
        for number, (record, row) in zip(numbers, rows, strict=True):
            document, passages = self.rows_of(number, record, row)
            pieces = [
                document.stored[start : start + _PIECE]
                for start in range(0, len(document.stored), _PIECE)
            ]
            self._check(record, document, [passage.heading for passage in passages], pieces)
            about = {"facts": document.facts, "bounds": document.bounds}
            whole = document._asdict() | {
                "stored": pieces,
                "words": self._fitting(document.words, record),
            }
            made["document"].append(whole)
            made["passage"] += [
                {**p._asdict(), **about, "words": self._fitting(p.words, record)} for p in passages
            ]
        for kind in order:
            for start in range(0, len(made[kind]), CALL_ROWS):
                some = made[kind][start : start + CALL_ROWS]
                self.client.upsert(f"{self.version.label}_{kind}s", some, timeout=WAIT)

    def _check(
        self, record: Record, document: DocumentRow, headings: list[str], pieces: list[str]
    ) -> None:
        """Raise InputError where an id or metadata, or a heading, are longer than Milvus keeps."""
        bounds, longest = json.dumps(document.bounds), max(headings, key=len, default="")
        for name, text, most in (
            ("id", record.id, LONGEST),
            ("metadata", bounds, 1 << 16),
            ("heading", longest, LONGEST),
        ):
            if (size := len(text.encode())) > most:
                raise InputError(
                    f"{record.location}: the {name} {text[:20]!r}... has {size:,} bytes; Milvus"
                    f" keeps up to {most:,}"
                )
        facts, size = len(document.facts), len(document.stored)
        if max(facts, len(pieces)) > MOST_ELEMENTS:
            raise InputError(
                f"{record.location}: document {record.id!r} has {facts:,} fields and values in"
                f" {size:,} characters; Milvus keeps {MOST_ELEMENTS:,} in"
                f" {MOST_ELEMENTS * _PIECE:,}"
            )

    def _fitting(self, words: str, record: Record) -> str:
        if len(words) <= LONGEST:
            return words
        logger.warning(
            "%s: document %r has %d bytes of words, of which Milvus keeps %d: a search of documents"
            " by words finds it by its beginning only, one of passages by all of it",
            self.name,
            record.id,
            len(words),
            LONGEST,
        )
        return words[: words.rfind(" ", 0, LONGEST)]

    def _cut(self, firsts: list[int]) -> None:
        """Delete passages of documents from the first given of each on, those of an interrupted
        update, too.
        """
        for start in range(0, len(firsts), CUT):
            ranges = [
                f"(number >= {first} and number < {(first >> PASSAGE_BITS) + 1 << PASSAGE_BITS})"
                for first in firsts[start : start + CUT]
            ]
            self._delete("passage", filter=" or ".join(ranges))

    def _delete(self, kind: Kind, **which: Any) -> None:
        self.client.delete(f"{self.version.label}_{kind}s", **which, timeout=WAIT)

    def _fresh(self, count: int) -> list[int]:
        """Numbers that no document has."""
        while True:
            numbers = random.SystemRandom().sample(range(FIRST_ADDED, MOST), count)
            if not self.view().read("document", ["number"], numbers):
                return numbers


def read_address(address: Address) -> tuple[Parameters, dict[str, str]]:
    """The parameters of an address, and where pymilvus connects to; or raise ConfigError where it
    is none.
    """
    url, folders = address.url, address.folders
    given = dict(parse_qsl(url.query, keep_blank_values=True))
    try:
        parameters = msgspec.convert(given, Parameters, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(Parameters.__struct_fields__)
        raise ConfigError(
            f"{address.name}: {given}: {error}; the parameters are {known}"
        ) from error
    if not url.netloc and folders and folders[-1].endswith(".db"):
        return parameters, {"uri": "/" + "/".join(folders)}
    if not url.netloc or len(folders) > 1 or not all(folders):
        raise ConfigError(
            f"{address.name}: write it as milvus://USER@HOST:PORT/NAME or .../DATABASE/NAME, or for"
            " milvus-lite as milvus:///FOLDER/FILE.db/NAME"
        )
    try:
        port = url.port or DEFAULT_PORT
    except ValueError as error:
        raise ConfigError(f"{address.name}: not an address of a server ({error})") from error
    token = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else ""
    scheme = "https" if parameters.secure == "true" else "http"
    return parameters, {
        "uri": f"{scheme}://{url.hostname}:{port}",
        "token": token,
        "db_name": "".join(folders),
    }
