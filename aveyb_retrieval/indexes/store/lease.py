"""The lease of the one writer of an index in an object store: an object that is written on conditions.

Its holder writes it anew every 5 seconds. Whoever finds it unchanged for 20 seconds, by a clock of its own, takes it
over. A writer that wakes up later finds another mark and stops; its writes on conditions fail.

Each holder gets a number that no other gets: that of the version that it may write. Names of files hold it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import EngineError, IndexFormatError, IndexLockedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.store.objects import Found, ObjectStore

logger = logging.getLogger(__name__)

LEASE = "lease"
SECONDS = 20.0  # that a lease lasts which is not renewed: its holder writes no longer
TAKEN = SECONDS  # seconds after which others take over a lease that has not changed
RENEWED = 5.0  # seconds between two renewals
WAIT = 60.0  # that a writer waits for another, unless it is told otherwise
_LOOK = 0.5  # seconds between two looks at the lease of another

_watched: dict[str, tuple[bytes, float]] = {}  # what was seen of others' leases, and since when: also by earlier calls


@dataclass(frozen=True)
class _Note:
    """What the object says: who holds the lease, in which copy on which machine, how often it was renewed."""

    holder: str
    host: str
    copy: str
    token: str
    number: int
    renewed: int = 0
    held: bool = True

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Lease:
    """A lease that this process holds."""

    def __init__(self, store: ObjectStore, note: _Note, found: Found, *, left_behind: bool) -> None:
        self.number = note.number  # of the version that the holder may write
        self.left_behind = left_behind  # whether the holder before did not end in order, and may have left objects
        self.written = False  # whether this holder may have written something
        self._store, self._note, self._found = store, note, found
        self._renewed, self._lost = time.monotonic(), False
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renew_all, name="renew-lease", daemon=True)
        self._thread.start()

    def claim(self, number: int) -> None:
        """Let no other holder get a number up to this one."""
        if number > self.number:
            self.number = number
            self._note = replace(self._note, number=number)
            self._renew()
        self.check()

    def check(self, sure: bool = False) -> None:
        """Raise IndexLockedError where the lease is lost; `sure` asks the store, for a machine that slept."""
        if not self._lost and (sure or time.monotonic() - self._renewed > SECONDS - 2 * RENEWED):
            self._renew()
        if self._lost or time.monotonic() - self._renewed > SECONDS - RENEWED / 2:
            raise IndexLockedError(
                f"{self._store.name}: this writer could not renew its lease in time, and another may have begun; "
                "nothing was published: give the same command again"
            )

    def _renew_all(self) -> None:
        while not self._ended.wait(RENEWED) and not self._lost:
            try:
                self._renew()
            except EngineError as error:
                logger.warning("%s: the lease could not be renewed (%s); trying again", self._store.name, error)

    def _renew(self) -> None:
        with self._lock:
            began, note = time.monotonic(), replace(self._note, renewed=self._note.renewed + 1)
            found = self._store.replace(LEASE, note.to_bytes(), self._found.mark)
            if found is None:
                self._lost = True
            else:
                self._note, self._found, self._renewed = note, found, began

    def _release(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._lost:
            return
        number = self._note.number if self.written else self._note.number - 1
        note = replace(self._note, renewed=self._note.renewed + 1, number=number, held=False)
        try:
            self._store.replace(LEASE, note.to_bytes(), self._found.mark)
        except EngineError as error:
            logger.warning("%s: the lease could not be given back (%s); it ends by itself", self._store.name, error)


@contextmanager
def held_lease(store: ObjectStore, copy: str, wait: float) -> Iterator[Lease]:
    """Hold the lease of an index while the block runs; another writer may take `wait` seconds to end.

    `copy` identifies the folder that this writer works in, and has locked: whoever held the lease from there is gone.
    """
    lease = _take(store, copy, wait)
    try:
        yield lease
    finally:
        lease._release()


def _take(store: ObjectStore, copy: str, wait: float) -> Lease:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    host, until = socket.gethostname(), time.monotonic() + wait
    holder = f"pid {os.getpid()} on {host} since {now}: {' '.join(sys.argv)[:200]}"
    mine = _Note(holder, host, copy, secrets.token_hex(16), 1)
    while True:
        found = store.read(LEASE)
        if found is None:
            if (made := store.create(LEASE, mine.to_bytes())) is not None:
                _check_conditions(store, made)
                return Lease(store, mine, made, left_behind=False)
            continue
        there = _parse(store, found)
        gone = there.held and (there.copy, there.host) == (copy, host)
        since = _watched.get(store.name)
        if since is None or since[0] != found.data:
            since = _watched[store.name] = found.data, time.monotonic()
        if not there.held or gone or time.monotonic() - since[1] > TAKEN:
            note = replace(mine, number=there.number + 1)
            if (made := store.replace(LEASE, note.to_bytes(), found.mark)) is not None:
                _watched.pop(store.name, None)
                if there.held:
                    logger.warning("%s: the previous writer did not end in order (%s)", store.name, there.holder)
                return Lease(store, note, made, left_behind=there.held)
            continue
        if (left := until - time.monotonic()) <= 0:
            raise IndexLockedError(
                f"{store.name}: another writer is at work ({there.holder}), also after {wait:g} seconds; wait longer "
                "(wait=, --wait), or stop it and try again"
            )
        time.sleep(min(_LOOK, left))


def _parse(store: ObjectStore, found: Found) -> _Note:
    import msgspec

    try:
        return msgspec.json.decode(found.data, type=_Note)
    except msgspec.DecodeError as error:
        raise IndexFormatError(
            f"{store.name}/{LEASE}: not a lease of this package ({error}); choose another place, or delete the object "
            "where no writer is at work"
        ) from error


def _check_conditions(store: ObjectStore, made: Found) -> None:
    """Raise EngineError where a store takes the conditions of writes and does not keep them."""
    other = {key: '"0123456789abcdef0123456789abcdef"' if key == "e_tag" else "1" for key in made.mark}
    if store.create(LEASE, b"{}") is not None or store.replace(LEASE, b"{}", other) is not None:
        store.remove([LEASE])
        raise store.unconditional()
