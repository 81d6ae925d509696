"""`publish_index`: the documents of an index or of shards, with their vectors, into a database server."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.engines.opening import engine_addresses, open_engine, open_writer
from aveyb_retrieval.indexes.input.documents import Record, Rejected
from aveyb_retrieval.indexes.search.export import stored_documents
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.shards.encoded_shards import EncodedShards
from aveyb_retrieval.indexes.shards.place import is_url
from aveyb_retrieval.indexes.shards.shard import shard_of
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.store.words import language
from aveyb_retrieval.indexes.types import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.engines.collection import CollectionWriter
    from aveyb_retrieval.indexes.shards.parts import EncodedRow
    from aveyb_retrieval.indexes.store.filters import Filter

BATCH_DOCUMENTS = 256
BATCH_PASSAGES = 4096

Row = tuple[Record, "EncodedRow"]


@dataclass(frozen=True)
class PublishReport:
    """What was published.

    Attributes:
        names: The collection on every server, without passwords.
        documents, passages: What the source holds.
        written: Documents that this call wrote; the others an interrupted one had written.
        seconds: How long it took.
    """

    names: tuple[str, ...]
    documents: int
    passages: int
    written: int
    seconds: float


def publish_index(
    source: str | Path,
    to: str | Sequence[str],
    *,
    update: bool = False,
    restart: bool = False,
    language: str | None = None,
    progress: Progress = silent,
) -> PublishReport:
    """Put the documents of an index directory or of shards into a collection, which `Retriever.load` opens.

    Without `update` they take the place of all documents that are there: readers see the old ones until everything is
    written, and then, by one switch, the new ones. An interrupted call continues when it is made again.

    Args:
        source: An index directory, or a folder or URL of shards.
        to: The address of the collection, `postgresql://USER@HOST/DATABASE/NAME` or `milvus://USER@HOST/NAME`; several
            share the documents by the hash of their ids.
        update: Upsert the documents into what readers see, batch by batch, instead.
        restart: Discard what an interrupted call has written.
        language: Another language for the words of shards (an index keeps its own).
        progress: Called as work goes on.

    Raises:
        EngineError: a server cannot be reached, or fails.
        ConfigError: an address is not one, or the documents do not fit what is there (with `update`).
        IndexLockedError: another process is publishing under the same name.
        InputError: the shards are not complete, or a document holds what the engine cannot.
    """
    started = time.monotonic()
    addresses = _addresses(to)
    with ExitStack() as stack:
        documents = _open(source, language)
        stack.callback(documents.close)
        writers = [open_writer(address) for address in addresses]
        for writer in writers:
            stack.callback(writer.close)
        settings = _settings(documents, len(writers))
        written = 0
        if update:
            _check_fits(writers, settings)
            done = [0] * len(writers)
        else:
            done = [writer.begin(each, restart=restart) for writer, each in zip(writers, settings, strict=True)]
        for number, (part, batch) in enumerate(_batches(documents, done), start=1):
            if update:
                writers[part].upsert(batch)
            else:
                writers[part].add(batch)
            written += len(batch)
            if number % 4 == 0:
                progress("publishing", sum(done) + written, len(documents), 0)
        if not update:
            progress("indexing", 0, len(writers), 0)
            for number, writer in enumerate(writers, start=1):
                writer.finish()
                progress("indexing", number, len(writers), 0)
            for writer in writers:
                writer.switch()
        names = tuple(writer.name for writer in writers)
        seconds = time.monotonic() - started
        return PublishReport(names, len(documents), documents.passages, written, seconds)


def _batches(documents: _Source, done: list[int]) -> Iterator[tuple[int, list[Row]]]:
    """Documents in batches of one server each, without the first `done` of every server."""
    waiting: list[list[Row]] = [[] for _ in done]
    passages, seen = [0] * len(done), [0] * len(done)
    for record, row in documents.rows():
        part = shard_of(record.id, len(done)) - 1
        seen[part] += 1
        if seen[part] <= done[part]:
            continue
        waiting[part].append((record, row))
        passages[part] += len(row.passages)
        if len(waiting[part]) >= BATCH_DOCUMENTS or passages[part] >= BATCH_PASSAGES:
            yield part, waiting[part]
            waiting[part], passages[part] = [], 0
    yield from ((part, batch) for part, batch in enumerate(waiting) if batch)


def _settings(documents: _Source, parts: int) -> list[CollectionSettings]:
    """The settings of every server's share."""
    made = documents.settings()
    identity = [documents.describe(), parts, made.to_json()]
    publication = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return [replace(made, publication=publication, part=part, parts=parts) for part in range(1, parts + 1)]


def _check_fits(writers: list[CollectionWriter], settings: list[CollectionSettings]) -> None:
    """Check that documents can be upserted into what readers see, on all servers."""
    for writer, ours in zip(writers, settings, strict=True):
        there = writer.settings()
        there.check_same(ours, writer.name)
        there.check_share(ours.part, ours.parts, writer.name)


def unpublish_documents(
    to: str | Sequence[str], ids: Sequence[str] = (), *, where: Filter | None = None, missing_ok: bool = False
) -> int:
    """Remove the documents with these ids, and those that satisfy a filter, from a collection; returns how many.

    Raises:
        InputError: an id is not in the collection (unless `missing_ok`); nothing was removed.
        ConfigError: neither ids nor a filter are given, or an address is not one.
        EngineError: a server cannot be reached, or fails.
    """
    addresses = _addresses(to)
    if isinstance(ids, str):
        raise ConfigError(f"ids={ids!r} is one string; give a list of ids, as [{ids!r}]")
    if not ids and where is None:
        raise ConfigError("give ids or a filter; an empty filter {} is for every document")
    wanted = set(ids)
    if where is not None:
        engine = open_engine(addresses, partial=False)
        try:
            with engine.view() as view:
                found = view.documents(view.matching(view.select(where)).tolist(), texts=False)
            wanted.update(document.id for document in found.values())
        finally:
            engine.close()
    with ExitStack() as stack:
        shares: list[tuple[CollectionWriter, list[str]]] = []
        for part, address in enumerate(addresses, start=1):
            writer = open_writer(address)
            stack.callback(writer.close)
            shares.append((writer, sorted(i for i in wanted if shard_of(i, len(addresses)) == part)))
        for writer, mine in shares:
            if not missing_ok and (missing := writer.missing([i for i in mine if i in set(ids)])):
                raise InputError(f"{writer.name}: no document has the id {missing[0]!r}; nothing was changed")
        return sum(writer.delete(mine) for writer, mine in shares if mine)


def _addresses(to: str | Sequence[str]) -> list[str]:
    addresses = engine_addresses(to)
    if not addresses:
        raise ConfigError(
            f"{to!r}: not the address of an engine, such as postgresql://USER@HOST/DATABASE/NAME "
            "or milvus://USER@HOST/NAME"
        )
    return addresses


class _Source(Protocol):
    """Documents with vectors."""

    def __len__(self) -> int: ...
    @property
    def passages(self) -> int:
        """How many passages there are."""

    def settings(self) -> CollectionSettings:
        """What made them, without what identifies a publication."""

    def describe(self) -> str:
        """Identify the contents."""

    def rows(self) -> Iterator[Row]:
        """All documents, each time in the same order."""

    def close(self) -> None:
        """Let go of files."""


class _IndexSource:
    """The documents of an index directory."""

    def __init__(self, path: str | Path, words: str | None) -> None:
        self._snapshot = Snapshot.open(path)
        own = self._snapshot.language.name
        if words not in (None, own):
            raise ConfigError(f"language={words!r}: {path} has the language {own!r}")

    def __len__(self) -> int:
        return self._snapshot.info.documents

    @property
    def passages(self) -> int:
        return self._snapshot.info.passages

    def settings(self) -> CollectionSettings:
        return CollectionSettings(self._snapshot.manifest.encoding, "")

    def describe(self) -> str:
        return self._snapshot.manifest.name

    def rows(self) -> Iterator[Row]:
        return stored_documents(self._snapshot)

    def close(self) -> None:
        self._snapshot.close()


class _ShardSource:
    """The documents of shards."""

    def __init__(self, place: str | Path, words: str | None) -> None:
        self._shards = EncodedShards.open(place)
        made = self._shards.encoding
        self._encoding = made if words is None else replace(made, language=language(words).name)

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def passages(self) -> int:
        return self._shards.passages

    def settings(self) -> CollectionSettings:
        return CollectionSettings(self._encoding, "")

    def describe(self) -> str:
        return self._shards.describe()

    def rows(self) -> Iterator[Row]:
        for position, record in enumerate(self._shards.documents()):
            if isinstance(record, Rejected):
                raise record.error()
            yield record, self._shards.document(position, record.id)

    def close(self) -> None:
        return


def _open(source: str | Path, words: str | None) -> _Source:
    """Open an index directory, or shards."""
    if not is_url(source) and IndexDirectory(source).current() is not None:
        return _IndexSource(source, words)
    return _ShardSource(source, words)
