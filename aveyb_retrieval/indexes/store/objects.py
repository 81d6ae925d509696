"""The objects of one index in an object store: read, written on conditions, fetched and sent with
their hashes.

The package `obstore` is the same library as in Lance, so the same variables (AWS_ENDPOINT_URL,
GOOGLE_..., AZURE_...) say where a store is and who asks. Objects say their sha256 in their
metadata: it is known without reading them.

One of the objects is the lease of the index's one writer. Its holder writes it anew every 5
seconds. Whoever finds it unchanged for 20 seconds, by a clock of its own, takes it over. A writer
that wakes up later finds another mark and stops; its writes on conditions fail. Each holder gets a
number that no other gets: that of the version that it may write. Names of files hold it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aveyb_retrieval.errors import (
    AveyBError,
    ConfigError,
    EngineError,
    IndexFormatError,
    IndexLockedError,
    extra_for,
    first_line,
)
from aveyb_retrieval.files import FileInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

_THREADS = 8  # requests at once
_READ_BYTES = 16 << 20  # bytes of one request that reads
_MULTIPART_BYTES = 16 << 20  # a larger file is sent in parts; its name is nobody else's
_TRIES = 3  # where an answer ends early, or an object holds other bytes than its hash says
_HASH = "sha256"
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")  # codes of S3 and of Azure
_RETRIES: Any = {  # of a request that the store could not serve just now
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {
        "init_backoff": timedelta(milliseconds=50),
        "max_backoff": timedelta(seconds=1),
        "base": 2,
    },
}


@dataclass(frozen=True)
class StoredObject:
    """The bytes of an object, and what tells it from the object that may take its place."""

    data: bytes
    mark: Mapping[str, str]


class ObjectStore:
    """What lies below one address of an object store, by names relative to it; `name` and `remedy`
    are for messages.
    """

    def __init__(self, address: str) -> None:
        """Take an address such as `s3://BUCKET/PATH`, or raise ConfigError; nothing is
        asked yet.
        """
        try:
            parts = urlsplit(address)
        except ValueError as error:
            scheme = address.partition("://")[0]
            raise ConfigError(
                f"{scheme}://{address.rpartition('@')[2].removeprefix(f'{scheme}://')}: not an"
                f" address ({error}); write it as {scheme}://BUCKET/PATH"
            ) from None
        if "@" in parts.netloc:
            raise ConfigError(
                f"{parts.scheme}://...@...: an address with credentials in it; put them where the"
                " store's own programs look for them, such as AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, and leave them out here"
            )
        if not parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
            address_shown = f"{parts.scheme}://{parts.netloc}{parts.path}" + "?..." * bool(
                parts.query or parts.fragment
            )
            raise ConfigError(
                f"{address_shown}: not the address of an index; write it as {parts.scheme}://BUCKET/PATH"
            )
        self.name = f"{parts.scheme}://{parts.netloc}/{parts.path.strip('/')}"
        self.remedy = f"copy a sound index there again (`aveyb-index copy GOOD {self.name}`)"
        with extra_for(f"{parts.scheme}:// addresses", "store"):
            import obstore
            from obstore.store import from_url
        self._obstore = obstore
        with self._errors_of(""):
            self._store = from_url(self.name, retry_config=_RETRIES)

    @classmethod
    def at(cls, address: str) -> ObjectStore:
        """Return the store of an address, with the connections that are open to it."""
        settings = {
            key: value
            for key, value in os.environ.items()
            if key.startswith(("AWS_", "GOOGLE_", "AZURE_"))
        }
        return _opened(address, frozenset(settings.items()))

    def read(self, name: str, known: StoredObject | None = None) -> StoredObject | None:
        """Read a small object; `known` itself where it is still the same, None where
        there is none.
        """
        options: Any = (
            {"if_none_match": known.mark["e_tag"]}
            if known is not None and "e_tag" in known.mark
            else {}
        )

        def read() -> StoredObject | None:
            try:
                got = self._obstore.get(self._store, name, options=options)
                return StoredObject(bytes(got.bytes()), _mark(got.meta))
            except self._obstore.exceptions.NotModifiedError:
                return known
            except FileNotFoundError as error:
                if any(code in str(error) for code in _NO_BUCKET):
                    raise self._no_bucket() from None
                return None

        return self._tried(name, read)

    def create(self, name: str, data: bytes) -> StoredObject | None:
        """Write an object that is not there yet; None where it is."""
        return self._put(name, data, "create")

    def replace(self, name: str, data: bytes, old: Mapping[str, str]) -> StoredObject | None:
        """Write an object in the place of one with this mark; None where another is
        there, or none.
        """
        return self._put(name, data, dict(old))

    def _put(self, name: str, data: bytes, mode: Any) -> StoredObject | None:
        errors, attributes = self._obstore.exceptions, {_HASH: hashlib.sha256(data).hexdigest()}

        def put() -> StoredObject | None:
            try:
                return StoredObject(
                    data,
                    _mark(
                        self._obstore.put(self._store, name, data, mode=mode, attributes=attributes)
                    ),
                )
            except (errors.AlreadyExistsError, errors.PreconditionError):
                # the answer to a first try may have been lost, and this one found what that had
                # written
                stored = self.read(name)
                return stored if stored is not None and stored.data == data else None
            except (NotImplementedError, errors.NotSupportedError):
                raise self.unconditional() from None

        return self._tried(name, put)

    def unconditional(self) -> EngineError:
        """Return the error that says that the store cannot keep two writers apart."""
        return EngineError(
            f"{self.name}: this store has no conditional writes (If-Match, If-None-Match), so"
            " two writers cannot exclude each other; build the index in a folder and serve"
            " that, or use a store that has them"
        )

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects; those that are not there are fine."""
        listed = list(names)
        for start in range(0, len(listed), 1000):
            self._tried(
                "", partial(self._obstore.delete, self._store, listed[start : start + 1000])
            )

    def listed(self) -> dict[str, tuple[int, float]]:
        """All objects: their bytes, and when they were written by the store's clock.

        A store may be late with it.
        """
        objects = self._tried(
            "", lambda: [listed for batch in self._obstore.list(self._store) for listed in batch]
        )
        return {
            listed["path"]: (listed["size"], listed["last_modified"].timestamp())
            for listed in objects
        }

    def about(self, name: str) -> tuple[FileInfo, Mapping[str, str]] | None:
        """What is known of an object without reading it: its size, its hash where it says that, and
        its mark.
        """

        def ask() -> tuple[FileInfo, Mapping[str, str]] | None:
            try:
                got = self._obstore.get(self._store, name, options={"head": True})
            except FileNotFoundError:
                return None
            return FileInfo(got.meta["size"], str(got.attributes.get(_HASH, ""))), _mark(got.meta)

        return self._tried(name, ask)

    def fetch(self, listing: Mapping[str, FileInfo], root: Path) -> None:
        """Bring files below `root`, each whole, with the hash that is asked for, or not at all."""
        tag = f".{os.getpid()}-{threading.get_ident()}"
        for folder in {(root / name).parent for name in listing}:
            folder.mkdir(parents=True, exist_ok=True)
        self._all(lambda name: self._fetch(name, listing[name], root / name, tag), listing)

    def _fetch(self, name: str, info: FileInfo, path: Path, tag: str) -> None:
        temporary = path.with_name(f"{path.name}{tag}.tmp")
        try:
            for attempt in range(1, _TRIES + 1):
                temporary.unlink(missing_ok=True)
                digest = hashlib.sha256()
                with temporary.open("wb") as handle:
                    for start in range(0, info.bytes, _READ_BYTES):
                        piece = self._piece(name, start, min(start + _READ_BYTES, info.bytes))
                        digest.update(piece)
                        handle.write(piece)
                if digest.hexdigest() == info.sha256:
                    temporary.replace(path)
                    return
                logger.warning(
                    "%s/%s: other bytes than its hash says (try %d)", self.name, name, attempt
                )
        finally:
            temporary.unlink(missing_ok=True)
        raise IndexFormatError(
            f"{self.name}/{name}: its contents do not fit the sha256 in the manifest; {self.remedy}"
        )

    def _piece(self, name: str, start: int, stop: int) -> bytes:
        def read() -> bytes:
            try:
                return bytes(self._obstore.get_range(self._store, name, start=start, end=stop))
            except FileNotFoundError:
                raise IndexFormatError(f"{self.name}/{name}: missing; {self.remedy}") from None

        return self._tried(name, read)

    def ranges(self, name: str, edges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read bytes `[start, stop)` of an object, several at once, each in a request
        of its own.
        """
        starts, ends = zip(*edges, strict=True)
        options: Any = {"starts": starts, "ends": ends, "coalesce": 0}
        return self._tried(
            name, lambda: [bytes(b) for b in self._obstore.get_ranges(self._store, name, **options)]
        )

    def send(self, root: Path, listing: Mapping[str, FileInfo], check: Callable[..., None]) -> int:
        """Write files of `root` as objects, but those that are there with the same hash; return the
        bytes written.

        `check` raises an error where this process may not write any more; `check(True)` asks the
        store for that.
        """
        return sum(
            self._all(lambda name: self._send(name, listing[name], root / name, check), listing)
        )

    def _send(self, name: str, info: FileInfo, path: Path, check: Callable[..., None]) -> int:
        large, present = info.bytes > _MULTIPART_BYTES, None
        if large or not self._tried(name, lambda: self._put_new(name, path, info, check)):
            present = self.about(name)
            if present is not None and present[0] == info:
                return 0
            check(True)  # after the mark was read: whoever takes the lease from now on changes it
            if large:
                self._tried(
                    name,
                    lambda: self._obstore.put(
                        self._store, name, path, attributes={_HASH: info.sha256}
                    ),
                )
            elif present is None or self.replace(name, path.read_bytes(), present[1]) is None:
                raise EngineError(
                    f"{self.name}/{name}: was changed meanwhile; run the same command again"
                )
        return info.bytes

    def _put_new(self, name: str, path: Path, info: FileInfo, check: Callable[..., None]) -> bool:
        check()
        try:
            self._obstore.put(
                self._store, name, path.read_bytes(), mode="create", attributes={_HASH: info.sha256}
            )
        except self._obstore.exceptions.AlreadyExistsError:
            return False
        return True

    def _all(self, do: Callable[[str], Any], names: Iterable[str]) -> list[Any]:
        """Do something for each name, some at once; the first error ends it."""
        with ThreadPoolExecutor(_THREADS) as threads:
            try:
                return list(threads.map(do, names))
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _tried(self, name: str, ask: Callable[[], Any]) -> Any:
        """Ask for something, and again where the answer ended early, which the store's client does
        not see to.
        """
        for attempt in range(1, _TRIES):
            try:
                with self._errors_of(name):
                    return ask()
            except EngineError as error:
                cause = error.__cause__
                if not isinstance(
                    cause, self._obstore.exceptions.GenericError
                ) or "status code" in str(cause):
                    raise  # the client has tried again by itself where that may help
                time.sleep(0.1 * attempt)
        with self._errors_of(name):
            return ask()

    @contextmanager
    def _errors_of(self, name: str) -> Iterator[None]:
        """Turn an error of the store into one line of ours."""
        try:
            yield
        except AveyBError:
            raise
        except self._obstore.exceptions.BaseError as error:
            raise self._error(name, error) from error
        except (FileNotFoundError, PermissionError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of a file here
                raise
            raise self._error(name, error) from error

    def _no_bucket(self) -> EngineError:
        return EngineError(
            f"{self.name}: there is no such bucket; make it first, or correct the name"
        )

    def _error(self, name: str, error: Exception) -> EngineError:
        said = str(error)
        code = re.search(r"<Code>(\w+)</Code>", said)
        status = re.search(r"status code: (\d{3} [A-Za-z ]+)", said)
        where = f"{self.name}/{name}" if name else self.name
        if code is not None and code[1] in _NO_BUCKET:
            return self._no_bucket()
        if (status and status[1][:3] in ("401", "403")) or "credential" in said.lower():
            said_by = code or status
            why = "no credentials were found" if said_by is None else said_by[1]
            return EngineError(
                f"{where}: no right to do this ({why}); check the credentials in the"
                " environment and their rights on this path"
            )
        malformed = code is not None and code[1] in (
            "AuthorizationHeaderMalformed",
            "PermanentRedirect",
        )
        if malformed or (status and status[1][:1] == "3") or "redirect without LOCATION" in said:
            return EngineError(
                f"{where}: the bucket is in another region; set AWS_REGION to that one"
            )
        reason = " ".join(filter(None, (status and status[1], code and code[1])))
        # the end of what the client said
        reason = reason or first_line(error, said).rpartition(": ")[2][:200]
        return EngineError(f"{where}: the store failed ({reason}); run the same command again")


def _mark(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: value for key in ("e_tag", "version") if (value := attributes.get(key)) is not None
    }


@lru_cache(maxsize=16)
def _opened(address: str, settings: frozenset[tuple[str, str]]) -> ObjectStore:
    return ObjectStore(address)


LEASE = "lease"
LEASE_SECONDS = 20.0  # that a lease lasts which is not renewed: its holder writes no longer
# seconds after which others take over a lease that has not changed
LEASE_TAKEN_SECONDS = LEASE_SECONDS
RENEWAL_SECONDS = 5.0  # seconds between two renewals
WAIT_SECONDS = 60.0  # that a writer waits for another, unless it is told otherwise
_LOOK_SECONDS = 0.5  # seconds between two looks at the lease of another

# what was seen of others' leases, and since when: also by earlier calls
_watched: dict[str, tuple[bytes, float]] = {}


@dataclass(frozen=True)
class _Note:
    """What the object says: who holds the lease, in which copy on which machine, how often it was
    renewed.
    """

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

    def __init__(
        self, store: ObjectStore, note: _Note, stored_note: StoredObject, *, left_behind: bool
    ) -> None:
        self.number = note.number  # of the version that the holder may write
        self.left_behind = (
            left_behind  # whether the holder before did not end in order, and may have left objects
        )
        self.written = False  # whether this holder may have written something
        self._store, self._note, self._stored_note = store, note, stored_note
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
        """Raise IndexLockedError where the lease is lost; `sure` asks the store, for a machine that
        slept.
        """
        if not self._lost and (
            sure or time.monotonic() - self._renewed > LEASE_SECONDS - 2 * RENEWAL_SECONDS
        ):
            self._renew()
        if self._lost or time.monotonic() - self._renewed > LEASE_SECONDS - RENEWAL_SECONDS / 2:
            raise IndexLockedError(
                f"{self._store.name}: this writer could not renew its lease in time, and"
                " another may have begun; nothing was published: run the same command again"
            )

    def _renew_all(self) -> None:
        while not self._ended.wait(RENEWAL_SECONDS) and not self._lost:
            try:
                self._renew()
            except EngineError as error:
                logger.warning(
                    "%s: the lease could not be renewed (%s); trying again", self._store.name, error
                )

    def _renew(self) -> None:
        with self._lock:
            began, note = time.monotonic(), replace(self._note, renewed=self._note.renewed + 1)
            renewed_note = self._store.replace(LEASE, note.to_bytes(), self._stored_note.mark)
            if renewed_note is None:
                self._lost = True
            else:
                self._note, self._stored_note, self._renewed = note, renewed_note, began

    def _release(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._lost:
            return
        number = self._note.number if self.written else self._note.number - 1
        note = replace(self._note, renewed=self._note.renewed + 1, number=number, held=False)
        try:
            self._store.replace(LEASE, note.to_bytes(), self._stored_note.mark)
        except EngineError as error:
            logger.warning(
                "%s: the lease could not be given back (%s); it ends by itself",
                self._store.name,
                error,
            )


@contextmanager
def held_lease(store: ObjectStore, copy: str, wait: float) -> Iterator[Lease]:
    """Hold the lease of an index while the block runs; another writer may take `wait` seconds to
    end.

    `copy` identifies the folder that this writer works in, and has locked: whoever held the lease
    from there is gone.
    """
    lease = _take(store, copy, wait)
    try:
        yield lease
    finally:
        lease._release()


def _take(store: ObjectStore, copy: str, wait: float) -> Lease:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    host, until = socket.gethostname(), time.monotonic() + wait
    holder = f"pid {os.getpid()} on {host} since {now}: {' '.join(sys.argv)[:200]}"
    mine = _Note(holder, host, copy, secrets.token_hex(16), 1)
    while True:
        stored_note = store.read(LEASE)
        if stored_note is None:
            if (made := store.create(LEASE, mine.to_bytes())) is not None:
                other = {
                    key: '"0123456789abcdef0123456789abcdef"' if key == "e_tag" else "1"
                    for key in made.mark
                }
                # a store may take the conditions of writes and not keep them
                if (
                    store.create(LEASE, b"{}") is not None
                    or store.replace(LEASE, b"{}", other) is not None
                ):
                    store.remove([LEASE])
                    raise store.unconditional()
                return Lease(store, mine, made, left_behind=False)
            continue
        other_note = _parse(store, stored_note)
        is_ours = other_note.held and (other_note.copy, other_note.host) == (copy, host)
        since = _watched.get(store.name)
        if since is None or since[0] != stored_note.data:
            since = _watched[store.name] = stored_note.data, time.monotonic()
        if not other_note.held or is_ours or time.monotonic() - since[1] > LEASE_TAKEN_SECONDS:
            note = replace(mine, number=other_note.number + 1)
            if (made := store.replace(LEASE, note.to_bytes(), stored_note.mark)) is not None:
                _watched.pop(store.name, None)
                if other_note.held:
                    logger.warning(
                        "%s: the previous writer did not end in order (%s)",
                        store.name,
                        other_note.holder,
                    )
                return Lease(store, note, made, left_behind=other_note.held)
            continue
        if (left := until - time.monotonic()) <= 0:
            raise IndexLockedError(
                f"{store.name}: another writer is at work ({other_note.holder}), still after"
                f" {wait:g} seconds; wait longer (wait=, --wait), or stop it and try again"
            )
        time.sleep(min(_LOOK_SECONDS, left))


def _parse(store: ObjectStore, stored_note: StoredObject) -> _Note:
    import msgspec

    try:
        return msgspec.json.decode(stored_note.data, type=_Note)
    except msgspec.DecodeError as error:
        raise IndexFormatError(
            f"{store.name}/{LEASE}: not a lease of this package ({error}); choose another"
            " place, or delete the object if no writer is at work"
        ) from error
