"""The rows of a collection, and how they are read.

A collection of Milvus is one table, so documents, passages, words and the state share its columns:

| partition | kind | number | holds |
|---|---|---|---|
| `document` | document | the document's | vector, id (`name`), metadata (`fields`), passages (`spans`), text (`body`) |
| `passage` | passage | the passage's | its vector; `body` its characters and heading |
| `data` | piece | document, then a count | what does not fit into the `body` of a row, in several rows |
| `data` | words of documents, of passages | generation, then a count | `body`: which of them hold some words |
| `state` | removed | generation, then a count | `body`: documents that were removed |
| `state` | state | generation | `body`: the settings, and how many documents there are |

The primary key `number` is the number above times 8, plus the kind. A row never changes. `born` is the generation that
made it: a generation exists once the row with its state does, and a search looks at one generation.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.engines.milvus.connection import READ_WAIT
from aveyb_retrieval.indexes.store.numbering import id_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aveyb_retrieval.indexes.engines.milvus.connection import Server
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

DOCUMENT, PASSAGE, PIECE, DOCUMENT_WORDS, PASSAGE_WORDS, REMOVED, STATE = range(7)
PARTITIONS = ("document", "passage", "data", "state")
PARTITION_OF = {
    DOCUMENT: "document", PASSAGE: "passage", PIECE: "data", DOCUMENT_WORDS: "data", PASSAGE_WORDS: "data",
    REMOVED: "state", STATE: "state",
}  # fmt: skip
KIND_BITS = 3
COUNT_BITS = 20  # of the numbers that end with a count

MOST_BYTES = 65_535  # that Milvus keeps in a text column
PIECE_BYTES = 60_000  # of a longer text that go into one row
INSERT_BYTES = 8 << 20  # that are sent at once; a server takes 64 MB
MOST_ROWS = 16_384  # that Milvus gives for one search
MOST_NAMED = 10_000  # documents that a condition names one by one
_READ_ROWS = 2048  # rows that are asked for at once, by number
_VECTOR_BYTES = 8 << 20  # of vectors that are asked for at once

Row = dict[str, Any]


def row_number(number: int, kind: int) -> int:
    """The primary key of a row."""
    return number << KIND_BITS | kind


def counted(number: int, count: int) -> int:
    """The number of the `count`-th row that belongs to a document or generation."""
    if count >= 1 << COUNT_BITS:
        raise InputError(f"{count:,} rows for one document; at most {1 << COUNT_BITS:,} are possible")
    return number << COUNT_BITS | count


def id_key(document_id: str) -> int:
    """The first 63 bits of the hash of an id, to look it up by; two may share them, so the id is compared as well."""
    return int.from_bytes(id_digest(document_id)[:8], "big") >> 1


def pieces(text: str) -> list[str]:
    """Cut a text into parts that fit into a row each, never inside a character; at least one."""
    data = text.encode()
    if len(data) <= PIECE_BYTES:
        return [text]
    found, start = [], 0
    while start < len(data):
        stop = min(start + PIECE_BYTES, len(data))
        while stop < len(data) and data[stop] & 0xC0 == 0x80:
            stop -= 1
        found.append(data[start:stop].decode())
        start = stop
    return found


class Table:
    """The rows of one version of a collection."""

    def __init__(self, server: Server, collection: str, dim: int) -> None:
        self.server = server
        self.collection = collection
        self._dim = dim
        self._zeros = np.zeros(dim, dtype=np.float32)

    # --- writing -----------------------------------------------------------------------------------------------------

    def row(self, number: int, kind: int, born: int, **columns: Any) -> Row:
        """Make a row; columns that are not given are empty."""
        made: Row = {
            "number": row_number(number, kind), "kind": kind, "born": born, "doc": 0, "key": 0, "n": 0, "first": 0,
            "pieces": 0, "name": "", "fields": "", "spans": "", "counts": "", "body": "",
        }  # fmt: skip
        made.update(columns)
        made.setdefault("vector", self._zeros)
        return made

    def insert(self, rows: Sequence[Row]) -> int:
        """Add rows of one partition; returns the time of the server at which they are there."""
        waiting: list[Row] = []
        size = 0
        for row in rows:
            waiting.append(row)
            size += 4 * self._dim + 200 + 4 * sum(len(row[name]) for name in ("name", "fields", "spans", "body"))
            if size >= INSERT_BYTES:
                self._insert(waiting)
                waiting, size = [], 0
        if waiting:
            self._insert(waiting)
        return self._written()

    def _insert(self, rows: list[Row]) -> None:
        partition = PARTITION_OF[rows[0]["kind"]]
        with self.server.translated():
            # never sent twice: after a lost answer the rows could be there two times
            self.server.client.insert(self.collection, rows, partition_name=partition, retry_times=0)

    def delete(self, numbers: Sequence[int], partition: str) -> None:
        """Remove rows by their primary keys."""
        for some in _parts(numbers, MOST_ROWS):
            with self.server.translated():
                self.server.client.delete(
                    self.collection, filter=f"number in {some}", partition_name=partition, timeout=READ_WAIT
                )

    def remove(self, condition: str, partition: str, columns: Sequence[str] = ()) -> list[Row]:
        """Remove the rows of a partition that satisfy a condition; returns them."""
        rows = self.query(condition, columns, partition)
        self.delete([row["number"] for row in rows], partition)
        return rows

    def _written(self) -> int:
        from pymilvus.client.ts_utils import get_collection_ts

        handler = self.server.client._get_connection()
        found = get_collection_ts(self.collection, handler.server_address, self.server.address.database)
        return int(found or 0)

    # --- reading -----------------------------------------------------------------------------------------------------

    def query(self, condition: str, columns: Sequence[str], partition: str, *, since: int | None = None) -> list[Row]:
        """All rows of a partition that satisfy a condition: as of now, or what was there at the time `since`."""
        found: list[Row] = self._ask("query", condition, partition, since, output_fields=["number", *columns])
        return found

    def count(self, condition: str, partition: str) -> int:
        """Count the rows of a partition that satisfy a condition, as of now."""
        (row,) = self._ask("query", condition, partition, None, output_fields=["count(*)"])
        return int(row["count(*)"])

    def read(
        self, kind: int, numbers: Iterable[int], columns: Sequence[str], *, since: int | None = None
    ) -> Iterator[tuple[int, Row]]:
        """Rows by number, in any order; those that are not there are left out."""
        keys = [row_number(number, kind) for number in numbers]
        most = max(1, _VECTOR_BYTES // (4 * self._dim)) if "vector" in columns else _READ_ROWS
        most = 128 if "body" in columns and kind != PASSAGE else most
        for some in _parts(keys, most):
            for row in self.query(f"number in {some}", columns, PARTITION_OF[kind], since=since):
                yield row["number"] >> KIND_BITS, row

    def find(
        self, ids: Iterable[str], columns: Sequence[str], generation: int, *, since: int | None = None
    ) -> list[Row]:
        """The rows of documents with some ids that a generation or one before it made, removed ones included."""
        wanted = set(ids)
        found = list[Row]()
        for keys in _parts(sorted({id_key(document_id) for document_id in wanted}), MOST_NAMED):
            condition = f"key in {keys} and born <= {generation}"
            rows = self.query(condition, ["name", *columns], "document", since=since)
            found += [row for row in rows if row["name"] in wanted]
        return found

    def bodies(self, rows: Sequence[Row], *, since: int | None = None) -> list[Any]:
        """The content of the bodies of rows, which have the columns `doc`, `first`, `pieces` and `body`."""
        wanted = [
            counted(row["doc"], count) for row in rows for count in range(row["first"], row["first"] + row["pieces"])
        ]
        found = {number: row["body"] for number, row in self.read(PIECE, wanted, ["body"], since=since)}
        missing = next((number for number in wanted if number not in found), None)
        if missing is not None:
            raise KeyError(missing)
        whole = (
            row["body"]
            + "".join(found[counted(row["doc"], c)] for c in range(row["first"], row["first"] + row["pieces"]))
            for row in rows
        )
        return [json.loads(text) for text in whole]

    def search(
        self, kind: int, queries: FloatArray, k: int, condition: str, ef: int, *, since: int | None = None
    ) -> list[tuple[FloatArray, IntArray]]:
        """The vectors nearest to each of some unit vectors `[n, d]`: scores and numbers, at most `k` each."""
        found = self._ask(
            "search",
            condition,
            PARTITION_OF[kind],
            since,
            data=queries.tolist(),
            limit=k,
            anns_field="vector",
            output_fields=[],
            search_params={"metric_type": "IP", "params": {"ef": ef}},
        )
        return [
            (np.array(hits.distances, dtype=np.float32), np.array(hits.ids, dtype=np.int64) >> KIND_BITS)
            for hits in found
        ]

    def _ask(self, what: str, condition: str, partition: str, since: int | None, **options: Any) -> Any:
        """Search or query one partition."""
        return self.server.read(
            self.collection,
            lambda: getattr(self.server.client, what)(
                self.collection,
                filter=condition,
                partition_names=[partition],
                timeout=READ_WAIT,
                **consistency(since),
                **options,
            ),
        )


def consistency(since: int | None) -> dict[str, Any]:
    """Options of a query: see all that was acknowledged, or at least what was there at a time of the server."""
    if not since:  # milvus-lite says no times, and shows everything at once
        return {"consistency_level": "Strong"}
    return {"consistency_level": "Customized", "guarantee_timestamp": since}


def _parts(numbers: Sequence[int], most: int) -> Iterator[list[int]]:
    return (list(numbers[start : start + most]) for start in range(0, len(numbers), most))
