"""One change of an index, from the writer lock to the visible version; survives being killed at any
instant.

A change adds files, and versions of the Lance dataset, that readers of other versions do not see.
After a batch its files are flushed to the device and `journal.json` names the new versions and the
position in the input: from there the same command goes on. Lance versions that are newer than the
journal (or, without one, than the visible version) are thrown away at the next start, other files
with the next clean-up. At the end all is flushed, the manifest is written and the pointer replaced,
by one rename; only then is the journal removed. A change of a single batch needs no journal unless
it makes FAISS files: it is published or it never was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from aveyb_retrieval import files
from aveyb_retrieval.documents.records import OcrTry  # msgspec reads it  # noqa: TC001
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError
from aveyb_retrieval.indexes.changes.disk_errors import disk_errors, unmarked
from aveyb_retrieval.indexes.changes.ingest import different_words_by_language, metadata_columns
from aveyb_retrieval.indexes.encoding import Encoding  # msgspec reads it  # noqa: TC001
from aveyb_retrieval.indexes.store.called import name_text
from aveyb_retrieval.indexes.store.dataset import newer_versions
from aveyb_retrieval.indexes.store.languages import MAIN
from aveyb_retrieval.indexes.store.manifest import (
    DOCUMENTS,
    FOLDERS,
    FORMAT_VERSION,
    VERSIONS,
    Changes,
    Counts,
    IndexDirectory,
    Manifest,
    TableFiles,
    Tier,
    note_checked,
    problem,
    rejected_name,
    sealed,
    take_checksum,
    version_name,
)
from aveyb_retrieval.indexes.store.place import CLEAN_EVERY_VERSIONS, delete_unused
from aveyb_retrieval.indexes.store.rows import NAME_WORDS
from aveyb_retrieval.indexes.store.tables import Tables
from aveyb_retrieval.indexes.types import silent
from aveyb_retrieval.system import package_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.documents.records import Edits, Record, Rejected
    from aveyb_retrieval.files import FileInfo
    from aveyb_retrieval.indexes.types import IntArray, Progress

logger = logging.getLogger(__name__)

Job = dict[str, Any]

_REWRITTEN_ROWS = 4096  # rows at a time


@dataclass
class ChangeState:
    """How far a change is: what the journal keeps, and in the end the manifest.

    Based on the version `base` (None: on nothing), it added the documents numbered `[first_doc,
    next_doc)`. `consumed` items of the input are in it, of which `digest` is the hash; `step`
    counts what a change of several steps has behind it; `rejected_bytes` is the size of the list of
    what was left out.
    """

    job: Job
    base: str | None
    number: int
    build: str
    encoding: Encoding
    index: str
    first_doc: int = 1
    next_doc: int = 1
    counts: Counts = field(default_factory=Counts)
    tiers: list[Tier] = field(default_factory=list)
    tables: TableFiles = field(default_factory=TableFiles)
    serial: int = 0  # counts the files that it wrote
    changes: Changes = field(default_factory=Changes)
    left_out: dict[str, str] = field(default_factory=dict)
    ocr_tries: dict[str, OcrTry] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)
    consumed: int = 0
    digest: str = ""
    rejected_bytes: int = 0
    step: int = 0
    format: int = FORMAT_VERSION

    @property
    def name(self) -> str:
        return version_name(self.number, self.build)

    def manifest(self, tables: TableFiles, listed: dict[str, FileInfo]) -> Manifest:
        return Manifest(
            number=self.number,
            build=self.build,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            package=package_version(),
            encoding=self.encoding,
            index=self.index,
            next_doc=self.next_doc,
            counts=self.counts,
            changes=self.changes,
            tables=tables,
            tiers=self.tiers,
            files=listed,
            left_out=self.left_out,
            ocr_tries=self.ocr_tries,
            reading=self.reading,
            job=self.job,
            corpus=self.digest,
        )


class Transaction:
    """An unfinished change of the folder `root`; messages name `place`, as it was given, or the
    address that the folder is a copy of.

    It starts from `base` (None: from nothing). `resumed` says whether work of an interrupted run is
    continued, `done` is the version that such a run had published already; with `whole` all is
    merged, and the old deleted. `progress` is called as its work goes on.
    """

    def __init__(
        self,
        index_dir: IndexDirectory,
        base: Manifest | None,
        state: ChangeState,
        before: Tables | None,
    ) -> None:
        self.index_dir = index_dir
        self.root = index_dir.root
        self.place = index_dir.place
        self.base = base
        self.state = state
        self.resumed = False
        self.done: Manifest | None = None
        self.whole = False
        self.progress: Progress = silent
        self._before = before
        self._journaled = False
        self._synced: dict[str, FileInfo | None] = dict(base.files) if base else {}
        self._tables: Tables | None = None
        self._replaced: Tables | None = None  # what a build replaces

    @property
    def tables(self) -> Tables:
        assert self._tables is not None
        return self._tables

    def start(self, *, restart: bool, visible: Manifest | None) -> None:
        """Continue the journal of the same job, or begin."""
        for folder in (*FOLDERS, VERSIONS):
            files.check_plain(self.root / folder)
        if self.base is None and visible is not None:
            self._replaced = self._with_edits(visible)
        journal = self._journal()
        if journal is not None and visible is not None and journal.name == visible.name:
            self.index_dir.journal.unlink()  # all was done but this
            journal = None
            if visible.job == self.state.job and not restart:
                self.done = visible
                return
        if journal is not None and not restart:
            self._check_same(journal)
            self.state, self.resumed, self._journaled = journal, True, True
            self._discard_beyond(journal.tables)
            self._tables = Tables.open(self.root, journal)
            if self._rejected.exists():
                with files.open_regular(self._rejected, os.O_RDWR) as handle:
                    handle.truncate(self.state.rejected_bytes)
            return
        self.index_dir.journal.unlink(missing_ok=True)
        self._discard_beyond(None if visible is None else visible.tables)
        if self.base is None:
            if visible is None:
                for folder in (*FOLDERS, VERSIONS):
                    files.remove_tree(self.root / folder)
            self._tables = Tables.create(self.root, self.state.encoding)
        else:
            self._tables = Tables.open(self.root, self.base, self._before)
        self._rejected.unlink(missing_ok=True)

    def _with_edits(self, visible: Manifest) -> Tables | None:
        """The datasets that a build replaces, where people set something in their metadata."""
        try:
            tables = Tables.open(self.root, visible)
            return (
                tables
                if tables.documents.scan(["doc"], "edits IS NOT NULL", limit=1).num_rows
                else None
            )
        except IndexFormatError as error:
            logger.warning(
                "%s: what people set in metadata there cannot be kept (%s)", self.place, error
            )
            return None

    def _journal(self) -> ChangeState | None:
        """The state of an interrupted change; None where there is none worth keeping."""
        import msgspec

        try:
            body = json.loads(files.read_bounded(self.index_dir.journal, 64 << 20))
            if not isinstance(body, dict) or not take_checksum(body):
                raise ValueError("its checksum does not fit its contents")
            state = msgspec.convert(body, ChangeState, strict=True)
            if wrong := problem(state.manifest(state.tables, {})):
                raise ValueError(wrong)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            logger.warning(
                "%s: unreadable journal of an interrupted change (%s); starting again",
                self.index_dir.journal,
                error,
            )
            return None
        # of a batch nobody else has the documents: it is made whole or not at all
        return (
            state
            if state.format == FORMAT_VERSION and state.job.get("command") != "batch"
            else None
        )

    def _check_same(self, journal: ChangeState) -> None:
        ours, theirs = self.state.job, journal.job
        free = theirs.get("replaceable", ())
        keys = [
            k
            for k in {**theirs, **ours}
            if k not in free and k != "replaceable" and theirs.get(k) != ours.get(k)
        ]
        if keys:
            keys_shown = (
                ["command"] if "command" in keys else keys
            )  # another one has other arguments
            differences = "; ".join(
                f"{k} was {theirs.get(k)!r} and is {ours.get(k)!r}" for k in keys_shown
            )
            raise ConfigError(
                f"{self.place}: an interrupted change with other arguments is unfinished"
                f" ({differences}); finish it with the same arguments, or discard its work with"
                " --restart (restart=True, which an Index takes from Index.open)"
            )
        if journal.base != (self.base.name if self.base else None):
            raise ConfigError(
                f"{self.place}: an interrupted change of the version {journal.base} is"
                " unfinished, and another version is visible now; discard its work with"
                " --restart (restart=True, which an Index takes from Index.open)"
            )
        journal.job, journal.index = ours, self.state.index

    def _discard_beyond(self, contents: TableFiles | None) -> None:
        """Delete the versions of the dataset that an interrupted change left: Lance opens no
        dataset whose newest manifest is damaged.
        """
        folder = self.root / f"{DOCUMENTS}.lance"
        left = [] if contents is None else newer_versions(folder, contents.documents)
        for path in left:
            path.unlink()
        if left:
            files.fsync_folder(folder / "_versions")

    @property
    def _rejected(self) -> Path:
        return self.root / rejected_name(self.state.name)

    def reject(self, items: Iterable[Rejected]) -> None:
        rows = [
            {"file": i.location.source, "line": i.location.line, "reason": i.reason, "raw": i.raw}
            for i in items
        ]
        if not rows:
            return
        # backslashreplace: what is rejected, and its file's name, may be just what UTF-8 cannot
        # hold
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(
            "utf-8", "backslashreplace"
        )
        self._rejected.parent.mkdir(exist_ok=True)
        with files.open_for_appending(self._rejected) as handle:
            files.write(handle, lines)
            files.fsync(handle)
        self.state.rejected_bytes += len(lines)
        self.state.changes = replace(
            self.state.changes, rejected=self.state.changes.rejected + len(rows)
        )

    def save(self) -> None:
        """Make all that was done so far durable: the same command continues from here."""
        self._flush(self.tables.files())
        self.state.tables = self.tables.contents
        files.write_atomic(self.index_dir.journal, sealed(dataclasses.asdict(self.state)))
        self._journaled = True

    def add(self, rows: Mapping[str, pa.Table], counts: Counts) -> None:
        """Append the rows of documents by dataset, numbered from `state.next_doc`."""
        first = self.state.next_doc
        self.state.next_doc += counts.documents
        if rows:
            self.tables.add(rows, first, self.state.next_doc, self)
        self.state.counts += counts

    def edits_of(self, ids: Iterable[str]) -> dict[str, Edits]:
        """What people set in the metadata of documents by id: of this index, or of the one that a
        build replaces.
        """
        tables = self.tables if self.base is not None else self._replaced
        return {} if tables is None else tables.edits(doc for doc, _ in tables.find(ids).values())

    def set_metadata(self, changed: Mapping[str, Record]) -> int:
        """Replace the metadata and files of documents by id, where they are there; what people set
        in it stays. Returns how many documents had others.
        """
        stored = self.tables.find(changed)
        edits = self.tables.edits(doc for doc, _ in stored.values())
        by_doc = {doc: changed[name].edited(edits.get(name)) for name, (doc, _) in stored.items()}
        return self.rewrite(by_doc, lambda row: metadata_columns(by_doc[row["doc"]]))

    def rewrite(
        self, docs: Iterable[int], change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> int:
        """Change columns of the rows of documents in `documents`: `change` of a row returns those
        that may change. Rows that stay as they are are not written; returns how many others are.

        The words that a document is called by follow its id and metadata.
        """
        rewritten = 0
        numbers = np.array(sorted(docs), dtype=np.int64)
        dataset = self.tables.documents
        for start in range(0, len(numbers), _REWRITTEN_ROWS):
            columns = [name for name in dataset.schema.names if name != dataset.key]
            rows = dataset.take(numbers[start : start + _REWRITTEN_ROWS], columns).to_pylist()
            pairs = [(row, change(row)) for row in rows]
            pairs = [(row, values) for row, values in pairs if _differ(row, values)]
            if pairs:
                changed = self._changed(pairs)
                docs_changed = np.array([row[dataset.key] for row in changed], dtype=np.int64)
                rows_changed = pa.Table.from_pylist(changed, dataset.schema)
                self.tables.replace_documents(docs_changed, rows_changed)
            rewritten += len(pairs)
        return rewritten

    def _changed(
        self, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Rows with values that change, and what these make of the column `NAME_WORDS`."""
        changed = [{**row, **values} for row, values in pairs]
        renamed = [
            now for (row, _), now in zip(pairs, changed, strict=True) if _names(now) != _names(row)
        ]
        if renamed:
            codes = [row["language"] or MAIN for row in renamed]
            names = different_words_by_language(self.state.encoding, codes, [*map(_names, renamed)])
            for row, words in zip(renamed, names.to_pylist(), strict=True):
                row[NAME_WORDS] = words
        return changed

    def remove(self, docs: IntArray) -> None:
        """Delete documents from the datasets, and what is counted of them; those that are not there
        are fine.
        """
        stored_docs, counts = self.tables.counted(np.unique(docs)) if len(docs) else (docs, {})
        if not len(stored_docs):
            return
        self.tables.delete(stored_docs)
        self.state.counts += -Counts(
            documents=len(stored_docs),
            cut_documents=int((counts["cut_tokens"] > 0).sum()),
            **{name: int(counts[name].sum()) for name in counts},
        )
        owners = {"document": stored_docs, "passage": np.repeat(stored_docs, counts["passages"])}
        self.state.tiers = [
            replace(
                tier,
                dead=tier.dead
                + int(((owners[tier.kind] >= tier.first) & (owners[tier.kind] < tier.stop)).sum()),
            )
            for tier in self.state.tiers
        ]

    def count(self, **more: int) -> None:
        """Count documents that the change concerned: `added=1`."""
        changes = self.state.changes
        self.state.changes = replace(
            changes, **{name: getattr(changes, name) + n for name, n in more.items()}
        )

    def new_name(self, folder: str) -> str:
        """The name of a new file of rows or of lists of words, relative to the index directory."""
        self.state.serial += 1
        return f"{folder}/{self.state.name}-{self.state.serial:05}.arrow"

    def wrote(self, name: str, info: FileInfo) -> None:
        """Note a file that is complete and durable."""
        self._synced[name] = info

    def publish(self) -> Manifest:
        """Flush everything, write the manifest, and make the new version the visible one."""
        state = self.state
        made_of = self.tables.files() | {tier.file for tier in state.tiers}
        if self._rejected.exists():
            made_of.add(rejected_name(state.name))
        self._flush(made_of)
        listed = {
            name: self._synced[name] or files.hash_file(self.root / name)
            for name in sorted(made_of)
        }
        manifest = state.manifest(self.tables.contents, listed)
        path = self.index_dir.manifest(manifest.name)
        path.parent.mkdir(exist_ok=True)
        manifest.write(path)
        base_files = {} if self.base is None else self.base.files
        note_checked(self.root, manifest.files, listed.keys() - base_files.keys())
        files.fsync_folder(self.root)
        self.index_dir.publish(manifest.name)
        self.index_dir.journal.unlink(missing_ok=True)
        self._journaled = False
        return manifest

    def _flush(self, names: set[str]) -> None:
        """Flush the files that were not flushed yet, and the folders that name them."""
        new = [name for name in names if name not in self._synced]
        files.fsync_all(self.root, new)
        self._synced.update(dict.fromkeys(new))

    def abandon_if_empty(self, existed: bool) -> None:
        """Leave no trace of a change that failed before its first commit."""
        if self._journaled or self.done is not None:
            return
        visible = self.index_dir.current()
        if visible is None and not existed:
            files.remove_tree(self.root)
        elif visible is not None:
            self._discard_beyond(Manifest.read(self.index_dir.manifest(visible)).tables)
            clean_up(self.index_dir)

    def abandon(self) -> None:
        """Throw away what an interrupted run did: it turned out that nothing is to be changed."""
        assert self.base is not None  # else there is something to make
        self.index_dir.journal.unlink(missing_ok=True)
        self._rejected.unlink(missing_ok=True)
        self._discard_beyond(self.base.tables)


@contextlib.contextmanager
def open_transaction(
    place: IndexDirectory,
    job: Job,
    state: ChangeState | None,
    *,
    restart: bool = False,
    wait: float = 0,
    before: Tables | None = None,
) -> Iterator[Transaction]:
    """Take the writer lock and begin or continue a change of the index at `place`; see
    `run_change`.
    """
    existed = place.root.exists()
    with (
        unmarked(),
        disk_errors(place),
        _one_thread(place),
        place.writing(wait) as index_dir,
    ):
        current = index_dir.current()
        visible = _visible(index_dir, current, replaced=state is not None) if current else None
        if state is None and visible is None:
            raise index_dir.missing()
        base = visible if state is None else None
        if base is not None:
            state = ChangeState(
                job=job,
                base=base.name,
                number=base.number + 1,
                build=base.build,
                encoding=base.encoding,
                index=base.index,
                first_doc=base.next_doc,
                next_doc=base.next_doc,
                counts=base.counts,
                tiers=base.tiers,
                left_out=base.left_out,
                ocr_tries=base.ocr_tries,
                reading=base.reading,
            )
        assert state is not None  # one of the two
        if base is None and visible is not None:
            state.number = visible.number + 1
        state.number = max(state.number, index_dir.least_number)
        transaction = Transaction(index_dir, base, state, before)
        transaction.start(restart=restart, visible=visible)
        try:
            yield transaction
        except AveyBError:
            transaction.abandon_if_empty(existed)
            raise
        if state.number % CLEAN_EVERY_VERSIONS == 0 or base is None or transaction.whole:
            clean_up(index_dir)


def _visible(index_dir: IndexDirectory, current: str, *, replaced: bool) -> Manifest | None:
    """The manifest of the visible version; None where it is `replaced`, and of another format or
    damaged.
    """
    try:
        return Manifest.read(index_dir.manifest(current))
    except IndexFormatError as error:
        if not replaced:
            raise
        logger.warning(
            "%s: the index there cannot be read (%s), and is replaced", index_dir.place, error
        )
        return None


def clean_up(index_dir: IndexDirectory) -> None:
    """Delete what no version needs; where that fails, the change has been made all the same, and
    the next one tries.
    """
    try:
        current = index_dir.current()
        # what is unfinished needs its own
        if current is not None and not index_dir.journal.exists():
            delete_unused(index_dir, current)
    except (OSError, AveyBError) as error:
        logger.warning(
            "%s: files that are not needed any more could not be deleted (%s)",
            index_dir.place,
            error,
        )


def _differ(row: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether values are others than those of a row."""
    return any(
        row[name] != value and (name not in _UNORDERED or _in_order(row[name]) != _in_order(value))
        for name, value in values.items()
    )


# columns of JSON, whose fields have no order: the store gives those of metadata back in another one
_UNORDERED = ("metadata", "edits")


def _names(row: Mapping[str, Any]) -> str:
    """The text whose words a row's document is called by, in the order of its fields' names."""
    metadata = json.loads(row["metadata"], object_pairs_hook=lambda pairs: dict(sorted(pairs)))
    return name_text(row["id"], row["title"], metadata)


def _in_order(fields: str | None) -> str | None:
    return None if fields is None else json.dumps(json.loads(fields), sort_keys=True)


_writers_guard = threading.Lock()
_writers = WeakValueDictionary[str, Any]()  # locks by location, while a thread holds one
if hasattr(os, "register_at_fork"):  # threads that hold locks are not in the new process
    os.register_at_fork(after_in_child=_writers.clear)


@contextlib.contextmanager
def _one_thread(place: IndexDirectory) -> Iterator[None]:
    """Wait until no other thread of this process changes the index.

    The writer lock is a file's, which belongs to the process. A thread that changes the index
    already passes here, and is refused there.
    """
    location = str(place.location) if place.is_copy else os.path.realpath(place.root)
    with _writers_guard:
        lock = _writers.setdefault(location, threading.RLock())
    with lock:
        yield
