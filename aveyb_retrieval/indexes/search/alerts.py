"""Saved questions: what a change of an index added that answers them, told once.

They lie in the index, in `alerts.json`, with the number of the next document up to which each was
asked, hashes of the passages that it has told, and what a receiver has not taken yet. That is
written before anything is told: a run that was killed, or whose receiver did not answer, is made
good by the next one.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from aveyb_retrieval import files
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.search.confidence import MIN_COMPARED_DOCUMENTS
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store.filters import compile_filter
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, is_stored, writer_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Row = dict[str, Any]
_LARGEST = 256 << 20  # bytes of the file
_MOST = 1000  # passages that one question tells of 10,000 documents
_IDS = 10_000
_SECONDS = 10.0  # that a receiver may take
_WAIT = 5.0  # for another run to end


class Alert(msgspec.Struct):
    """A saved question: passages of at least this confidence are told, of documents numbered from
    `upto` on.
    """

    name: str
    query: str
    at_least: float
    filter: dict[str, Any] | None = None
    build: str = ""
    upto: int = 1
    told: list[str] = []  # msgspec makes a new one for each


class _State(msgspec.Struct):
    """All of an index, and what receivers have not taken yet, by receiver."""

    alerts: list[Alert] = []
    waiting: dict[str, list[Row]] = {}


def add_alert(root: str | Path, alert: Alert) -> None:
    """Save a question, or raise ConfigError where its name is taken.

    What the index holds already is not told.
    """
    if not alert.name or not alert.query.strip() or not 0 <= alert.at_least <= 1:
        raise ConfigError("an alert needs a name, a question, and a least confidence of 0 to 1")
    compile_filter(alert.filter or {})  # only for its errors
    directory = _folder(root)
    with _open(directory) as state:
        if any(each.name == alert.name for each in state.alerts):
            raise ConfigError(
                f"{root}: there is an alert {alert.name!r}; remove it first, or choose another name"
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
        kept = [each for each in state.alerts if each.name != name]
        if len(kept) == len(state.alerts):
            raise InputError(f"{root}: no alert {name!r}")
        state.alerts = kept


def run_alerts(
    root: str | Path,
    *,
    file: Path | None = None,
    command: str | None = None,
    webhook: str | None = None,
) -> tuple[list[Row], list[str]]:
    """Ask the saved questions of what was added or changed since they were asked, and tell what is
    new.

    `file` gets a line of JSON for each (name, id, span, text, confidence, version), `command` these
    lines on its standard input, `webhook` a JSON array by POST. Returns what is new, and a line for
    each receiver that did not take it: the next run tells it again.
    """
    directory = _folder(root)
    if not _read(directory).alerts:
        return [], []
    named = {"file": file and str(file), "command": command, "webhook": webhook}
    receivers = {f"{kind} {what}": what for kind, what in named.items() if what}
    with _open(directory) as state:
        new = list[Row]()
        with closing(Snapshot.open(directory)) as snapshot:
            manifest = snapshot.manifest
            if any(
                (each.build, each.upto) != (manifest.build, manifest.next_doc)
                for each in state.alerts
            ):
                with Retriever.load(directory.root) as retriever:
                    for alert in state.alerts:
                        new += _ask(alert, snapshot, retriever)
        for receiver in receivers:
            state.waiting[receiver] = [*state.waiting.get(receiver, []), *new]
        _write(directory, state)
        failed = list[str]()
        for receiver, what in receivers.items():
            try:
                if rows := state.waiting[receiver]:
                    _TELL[receiver.partition(" ")[0]](what, rows)
                del state.waiting[receiver]
            except (OSError, ValueError, subprocess.SubprocessError, AveyBError) as error:
                failed.append(
                    f"{receiver}: not told of {len(state.waiting[receiver])}, the next run tries"
                    f" again ({error})"
                )
    return new, failed


def _ask(alert: Alert, snapshot: Snapshot, retriever: Retriever) -> list[Row]:
    """What a question finds in documents it was not asked of; it then counts as told.

    Among so few documents that confidences are not known it tells nothing, and is asked again when
    there are more.
    """
    manifest, told = snapshot.manifest, set(alert.told)
    if manifest.counts.documents < MIN_COMPARED_DOCUMENTS:
        return []
    first = alert.upto if alert.build == manifest.build else 1
    ids = snapshot.tables.documents.scan(["id"], f"doc >= {first}")["id"].to_pylist()
    rows = list[Row]()
    for start in range(0, len(ids), _IDS):
        options: dict[str, Any] = {"unit": "passage", "fold": False, "filter": alert.filter}
        hits = retriever.search(
            alert.query, _MOST, ids=ids[start : start + _IDS], min_score=alert.at_least, **options
        )
        for hit in hits:
            key = hashlib.sha256(f"{hit.id}\0{hit.passage}".encode()).hexdigest()[:24]
            if hit.span is not None and key not in told:
                told.add(key)
                row = {
                    "name": alert.name,
                    "id": hit.id,
                    "span": list(hit.span),
                    "text": hit.passage,
                }
                rows.append({**row, "confidence": hit.confidence, "version": retriever.version})
    alert.build, alert.upto, alert.told = manifest.build, manifest.next_doc, sorted(told)
    return rows


def _append(name: str, rows: Sequence[Row]) -> None:
    """Append lines to a file; those that a run which was killed has appended are there."""
    path = Path(name)
    there = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    lines = [line for row in rows if (line := json.dumps(row, ensure_ascii=True)) not in there]
    with path.open("ab") as out:
        out.writelines(f"{line}\n".encode() for line in lines)
        files.fsync(out)


def _run(command: str, rows: Sequence[Row]) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    words = shlex.split(command)
    subprocess.run(words, input=lines, text=True, check=True, timeout=_SECONDS, stdout=sys.stderr)  # noqa: S603


def _post(url: str, rows: Sequence[Row]) -> None:
    """Send rows; in a thread, as a server that sends a byte now and then would hold us for ever."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("not an address of http or https")
    body = json.dumps(rows).encode()
    # checked above
    request = urllib.request.Request(  # noqa: S310
        url, body, {"Content-Type": "application/json"}
    )
    ended: list[Exception | None] = []

    def send() -> None:
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS):  # noqa: S310
                ended.append(None)
        except Exception as error:  # told by the thread that waits
            ended.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    if not ended:
        raise TimeoutError(f"no answer within {_SECONDS:g} s")
    if ended[0] is not None:
        raise OSError(str(ended[0]))


_TELL: dict[str, Callable[[str, list[Row]], None]] = {
    "file": _append,
    "command": _run,
    "webhook": _post,
}


@contextmanager
def _open(index_dir: IndexDirectory) -> Iterator[_State]:
    """Give the state, which is written when the block ends."""
    index_dir.visible()
    with writer_lock(index_dir.root / "alerts.lock", _WAIT):
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
        return msgspec.json.decode(files.read_bounded(path, _LARGEST), type=_State)
    except FileNotFoundError:
        return _State()
    except msgspec.MsgspecError as error:
        raise IndexFormatError(
            f"{path}: damaged ({error}); remove it and add the alerts again"
        ) from error


def _write(index_dir: IndexDirectory, state: _State) -> None:
    files.write_atomic(index_dir.root / "alerts.json", msgspec.json.encode(state))
