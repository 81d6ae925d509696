"""`publish_index`: the documents of an index, or of shards, with their vectors, into a database
server.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.records import Record
from aveyb_retrieval.engines.collection import CollectionSettings
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.engine import is_address, open_engine, open_writer
from aveyb_retrieval.indexes.progress import shown
from aveyb_retrieval.indexes.store.languages import main_language
from aveyb_retrieval.indexes.types import EncodedRow, Progress, check_ids
from aveyb_retrieval.indexes.vectors import StoredShards, encoded_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.store.filters import Filter

BATCH_DOCUMENTS = 256
BATCH_PASSAGES = 4096

Row = tuple[Record, EncodedRow]


@dataclass(frozen=True)
class PublishReport:
    """What was published: `name` is the address without a password; `written` are the documents of
    this call alone.
    """

    name: str
    documents: int
    passages: int
    written: int
    seconds: float


def publish_index(
    source: str | Path,
    to: str,
    *,
    update: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
) -> PublishReport:
    """Put the documents of an index directory, or of shards, into a collection, which
    `Retriever.load` opens.

    Without `update` they take the place of all documents that are there: readers see the old ones
    until everything is written, and then, by one switch, the new ones. An interrupted call
    continues when it is made again.

    Args:
        source: An index directory, or a folder of shards.
        to: The address of the collection, `postgresql://USER@HOST/DATABASE/NAME`.
        update: Upsert the documents into what readers see, batch by batch, instead.
        restart: Discard what an interrupted call has written.
        progress: Called as work goes on; left out, a notebook shows a bar.

    Raises:
        EngineError: the server cannot be reached, or fails.
        ConfigError: an address is not one, or the documents do not fit what is there (with
            `update`).
        IndexLockedError: another process is publishing under the same name.
        InputError: the shards are not complete, or a document holds what the engine cannot.
    """
    started = time.monotonic()
    _check_address(to)
    documents = StoredShards(source)
    with shown(progress) as show, closing(open_writer(to)) as writer:
        made = CollectionSettings(main_language(documents.encoding, documents.languages), "")
        identity = json.dumps([documents.describe(), made.to_json()], sort_keys=True)
        settings = replace(made, publication=hashlib.sha256(identity.encode()).hexdigest())
        if update:
            writer.version.settings.check_same(settings, writer.name)
        done = 0 if update else writer.begin(settings, restart=restart)
        written = 0
        for batch in _batches(documents, done):
            (writer.upsert if update else writer.add)(batch)
            written += len(batch)
            show("publishing", done + written, len(documents), 0)
        if not update:
            show("indexing", 0, 1, 0)
            writer.finish()
            show("indexing", 1, 1, 0)
            writer.switch()
        return PublishReport(
            writer.name, len(documents), documents.passages, written, time.monotonic() - started
        )


def _batches(documents: StoredShards, done: int) -> Iterator[list[Row]]:
    waiting: list[Row] = []
    passages = 0
    for record in documents.documents(done):
        row = encoded_of(record)
        waiting.append((record, row))
        passages += len(row.spans)
        if len(waiting) >= BATCH_DOCUMENTS or passages >= BATCH_PASSAGES:
            yield waiting
            waiting, passages = [], 0
    if waiting:
        yield waiting


def unpublish_documents(
    to: str, ids: Sequence[str] = (), *, where: Filter | None = None, missing_ok: bool = False
) -> int:
    """Remove the documents with these ids, and those that satisfy a filter, from a collection;
    returns how many.

    InputError where an id is not there (unless `missing_ok`); nothing was removed. Raises as
    `publish_index`, too.
    """
    _check_address(to)
    if not check_ids(ids) and where is None:
        raise ConfigError("give ids or a filter; an empty filter {} selects every document")
    matching_ids: list[str] = []
    if where is not None:
        with closing(open_engine(to)) as engine, engine.view() as view:
            matching = view.matching(view.select(where)).tolist()
            matching_ids = [document.id for document in view.documents(matching, ()).values()]
    with closing(open_writer(to)) as writer:
        removed = writer.delete(ids, missing_ok=missing_ok) if ids else 0
        return removed + (writer.delete(matching_ids) if matching_ids else 0)


def _check_address(to: str) -> None:
    if not is_address(to):
        raise ConfigError(
            f"{to!r}: not the address of an engine, such as postgresql://USER@HOST/DATABASE/NAME"
        )
