"""Saved questions: what a change of an index added that answers them, reported once.

They lie in the index, in `alerts.json`, with the number of the next document up to which each was
asked, hashes of the passages that it has reported, and the rows that nobody has taken yet. That is
written before anything is reported: the next run makes good what a run that was killed, or could
not deliver its rows, has left.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from aveyb_retrieval import files
from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.search.confidence import MIN_COMPARED_DOCUMENTS
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store.filters import compile_filter
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, is_stored, writer_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.search.hit import Hit

Row = dict[str, Any]
_MAX_FILE_BYTES = 256 << 20
_PASSAGES_PER_SEARCH = 1000  # of `_DOCUMENTS_PER_SEARCH` documents; more if so many match
_DOCUMENTS_PER_SEARCH = 10_000
_WAIT_SECONDS = 5.0  # for another run to end


class Alert(msgspec.Struct):
    """A saved question: it reports passages of at least this confidence, of documents numbered
    from `upto` on.
    """

    name: str
    query: str
    at_least: float
    filter: dict[str, Any] | None = None
    build: str = ""
    upto: int = 1
    reported: list[str] = []  # msgspec makes a new one for each


class _State(msgspec.Struct):
    """All of an index, and the rows that nobody has taken yet."""

    alerts: list[Alert] = []
    waiting: list[Row] = []


def add_alert(root: str | Path, alert: Alert) -> None:
    """Save a question, or raise ConfigError where its name is taken.

    What the index holds already is not reported.
    """
    if not alert.name or not alert.query.strip() or not 0 <= alert.at_least <= 1:
        raise ConfigError("an alert needs a name, a question, and a minimum confidence from 0 to 1")
    compile_filter(alert.filter or {})  # only for its errors
    directory = _folder(root)
    with _open(directory) as state:
        if any(saved.name == alert.name for saved in state.alerts):
            raise ConfigError(
                f"{root}: the alert {alert.name!r} exists already; remove it first, or choose"
                " another name"
            )
        with (
            closing(Snapshot.open(directory)) as snapshot,
            Retriever.load(directory.root) as retriever,
        ):
            _ask(alert, snapshot, retriever)
            alert.build, alert.upto = snapshot.manifest.build, snapshot.manifest.next_doc
        state.alerts.append(alert)


def list_alerts(root: str | Path) -> list[Alert]:
    """Return the saved questions of an index."""
    return _read(_folder(root)).alerts


def remove_alert(root: str | Path, name: str) -> None:
    """Forget a saved question, or raise InputError where there is none of this name."""
    with _open(_folder(root)) as state:
        others = [alert for alert in state.alerts if alert.name != name]
        if len(others) == len(state.alerts):
            raise InputError(f"{root}: no alert {name!r}")
        state.alerts = others


def run_alerts(root: str | Path, deliver: Callable[[Sequence[Row]], None]) -> list[Row]:
    """Ask the saved questions of what was added or changed since they were asked, and deliver and
    return what is new: rows of name, id, span, text, confidence and version.

    Where `deliver` raises an error, the next run delivers the rows again.
    """
    directory = _folder(root)
    if not _read(directory).alerts:
        return []
    with _open(directory) as state:
        state.waiting += _new_rows(directory, state.alerts)
        _write(directory, state)
        rows = state.waiting
        if rows:
            deliver(rows)
        state.waiting = []
    return rows


def _new_rows(directory: IndexDirectory, alerts: list[Alert]) -> list[Row]:
    with closing(Snapshot.open(directory)) as snapshot:
        newest = (snapshot.manifest.build, snapshot.manifest.next_doc)
        if all((alert.build, alert.upto) == newest for alert in alerts):
            return []
        with Retriever.load(directory.root) as retriever:
            return [row for alert in alerts for row in _ask(alert, snapshot, retriever)]


def _ask(alert: Alert, snapshot: Snapshot, retriever: Retriever) -> list[Row]:
    """What a question finds in documents it was not asked of; it then counts as reported.

    Among so few documents that confidences are not known it reports nothing, and is asked again
    when there are more.
    """
    manifest, reported = snapshot.manifest, set(alert.reported)
    if manifest.counts.documents < MIN_COMPARED_DOCUMENTS:
        return []
    first = alert.upto if alert.build == manifest.build else 1
    ids = snapshot.tables.documents.scan(["id"], f"doc >= {first}")["id"].to_pylist()
    rows = list[Row]()
    for start in range(0, len(ids), _DOCUMENTS_PER_SEARCH):
        for hit in _answers(alert, retriever, ids[start : start + _DOCUMENTS_PER_SEARCH]):
            key = hashlib.sha256(f"{hit.id}\0{hit.passage}".encode()).hexdigest()[:24]
            if hit.span is not None and key not in reported:
                reported.add(key)
                row = {
                    "name": alert.name,
                    "id": hit.id,
                    "span": list(hit.span),
                    "text": hit.passage,
                }
                rows.append({**row, "confidence": hit.confidence, "version": retriever.version})
    alert.build, alert.upto, alert.reported = manifest.build, manifest.next_doc, sorted(reported)
    return rows


def _answers(alert: Alert, retriever: Retriever, ids: list[str]) -> list[Hit]:
    """All passages of some documents that answer a question as surely as it asks for."""
    k = _PASSAGES_PER_SEARCH
    while True:
        hits = retriever.search(
            alert.query,
            k,
            unit="passage",
            fold=False,
            filter=alert.filter,
            ids=ids,
            min_score=alert.at_least,
        )
        if len(hits) < k:
            return hits
        k *= 4


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a file as lines of JSON; lines that a killed run has appended stay single."""
    present = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set[str]()
    lines = [json.dumps(row, ensure_ascii=True) for row in rows]
    with path.open("ab") as out:
        out.writelines(f"{line}\n".encode() for line in lines if line not in present)
        files.fsync(out)


@contextmanager
def _open(index_dir: IndexDirectory) -> Iterator[_State]:
    """Give the state, which is written when the block ends."""
    index_dir.visible()
    with writer_lock(index_dir.root / "alerts.lock", _WAIT_SECONDS):
        state = _read(index_dir)
        yield state
        _write(index_dir, state)


def _folder(root: str | Path) -> IndexDirectory:
    if is_stored(root):
        raise ConfigError(
            f"{root}: saved questions are kept in folders; save them in a copy of it (`aveyb-index"
            " copy`)"
        )
    return IndexDirectory(root)


def _read(index_dir: IndexDirectory) -> _State:
    index_dir.visible()
    path = index_dir.root / "alerts.json"
    try:
        return msgspec.json.decode(files.read_bounded(path, _MAX_FILE_BYTES), type=_State)
    except FileNotFoundError:
        return _State()
    except msgspec.MsgspecError as error:
        raise IndexFormatError(
            f"{path}: damaged ({error}); remove it and add the alerts again"
        ) from error


def _write(index_dir: IndexDirectory, state: _State) -> None:
    files.write_atomic(index_dir.root / "alerts.json", msgspec.json.encode(state))
