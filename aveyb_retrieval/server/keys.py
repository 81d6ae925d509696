"""Keys: who may ask for what, and which documents each of them sees."""

from __future__ import annotations

import hashlib
import hmac
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.store.filters import compile_filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.search.retriever import Retriever
    from aveyb_retrieval.indexes.search.stored_documents import Document
    from aveyb_retrieval.indexes.store.filters import Filter


Right = Literal["search", "read", "write", "admin"]
MIN_KEY_CHARACTERS = 16  # of a key in a file of keys with filters

_log = logging.getLogger("aveyb_retrieval.server")


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a file of keys.

    Attributes:
        name: The name of the owner, in logs and messages.
        key: The text that is sent; several while a new one takes the place of an old one.
        filter: The key sees only documents that satisfy it; None: all.
        rights: "search", "read" (whole documents), "write" and "admin" (counters).
        expires: An ISO date or time at which the key ends; UTC if it has no offset.
    """

    name: str
    key: str | list[str] = ""
    filter: dict[str, Any] | None = None
    rights: frozenset[Right] = frozenset({"search", "read"})
    expires: str | None = None

    @property
    def has_expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and datetime.now(UTC) >= _time(self.expires)


class Keys:
    """The keys of a server; without any it is open to everybody.

    `keys` search and read, those of `writing` also write, and `named` are the entries of a file.
    """

    def __init__(
        self, keys: Sequence[str] = (), writing: Sequence[str] = (), named: Iterable[Key] = ()
    ) -> None:
        reader: frozenset[Right] = frozenset({"search", "read", "admin"})
        plain = [Key(f"key {i}", key, rights=reader) for i, key in enumerate(keys)]
        writers = [
            Key(f"writing key {i}", key, rights=reader | {"write"}) for i, key in enumerate(writing)
        ]
        self.entries = [*writers, *plain, *named]
        self._digests = [
            (_digest(text.encode()), entry)
            for entry in self.entries
            for text in ([entry.key] if isinstance(entry.key, str) else entry.key)
        ]
        # Writing keys do not count: with them alone everybody may search.
        self.reading = len(self.entries) - len(writers)
        self.writing = sum("write" in entry.rights for entry in self.entries)

    def current(self) -> Keys:
        """The keys of this moment."""
        return self

    def which(self, authorization: str) -> Key | None:
        """Return the entry whose key a header `Authorization: Bearer KEY` has, None if there is
        none; any wrong key takes equally long.
        """
        scheme, _, key = authorization.partition(" ")
        sent = _digest(key.strip().encode("latin-1"))
        entries = [entry for digest, entry in self._digests if hmac.compare_digest(sent, digest)]
        if scheme.lower() != "bearer" or not entries or entries[0].has_expired:
            return None
        return entries[0]


class KeyFile:
    """The keys of a file and others. The file is read again when it changes; if it is wrong then,
    the keys stay as they were.

    The file is `{"keys": [{"name", "key", "filter", "rights", "expires"}, ...]}`.
    """

    def __init__(self, path: Path, keys: Sequence[str] = (), writing: Sequence[str] = ()) -> None:
        self._path, self._others = path, (keys, writing)
        self._read_at = self._stamp()
        self._keys = Keys(keys, writing, read_key_file(path))

    def current(self) -> Keys:
        """The keys that the file has now."""
        stamp = self._stamp()
        if stamp != self._read_at:
            self._read_at = stamp
            try:
                self._keys = Keys(*self._others, read_key_file(self._path))
                _log.warning("%s: read again, %d keys", self._path, len(self._keys.entries))
            except ConfigError as error:
                _log.error("the keys stay as they were: %s", error)
        return self._keys

    def _stamp(self) -> tuple[int, ...]:
        """Return the time, size and inode of the file; nothing if it cannot be read."""
        try:
            status = self._path.stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[Key]


def read_key_file(path: Path) -> list[Key]:
    """Read the entries of a JSON file of keys, or raise ConfigError."""
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=_File).keys
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as a file of keys ({error})") from None
    if not entries:
        raise ConfigError(
            f'{path}: holds no key; write {{"keys": [{{"name": "...", "key": "..."}}]}}'
        )
    names: set[str] = set()
    texts: set[str] = set()
    for number, entry in enumerate(entries, start=1):
        where = f"{path}: key {number}, {entry.name!r}"
        own = [entry.key] if isinstance(entry.key, str) else entry.key
        if not entry.name or entry.name in names:
            raise ConfigError(f"{where}: each needs a name of its own")
        if not own or any(len(text) < MIN_KEY_CHARACTERS or not _is_key(text) for text in own):
            raise ConfigError(
                f"{where}: keys must be at least {MIN_KEY_CHARACTERS} characters of printable"
                " ASCII without blanks"
            )
        if texts & set(own):
            raise ConfigError(f"{where}: an entry before has the same key")
        if entry.filter is not None and entry.rights & {"write", "admin"}:
            raise ConfigError(
                f"{where}: a filter goes with the rights search and read only; others touch all"
                " documents"
            )
        try:
            compile_filter(entry.filter or {})
            _time(entry.expires or "2000-01-01")
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from None
        names.add(entry.name)
        texts.update(own)
    return entries


def read_keys(path: Path) -> list[str]:
    """Read keys from a file, one on each line; empty lines and those that begin with # do not
    count.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a file of keys ({error})") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{path}: holds no key; write one on each line")
    for number, key in enumerate(keys, start=1):
        if not _is_key(key):
            raise ConfigError(f"{path}: key {number} must be printable ASCII without blanks")
    return keys


def _is_key(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def seen(retriever: Retriever, only: Filter | None) -> Retriever:
    """Return an index as the owner of a key with a filter sees it."""
    return retriever if only is None else retriever.visible(only)


def find(index: Retriever, document_id: str) -> Document | None:
    """Return a document; None if there is none."""
    return next(iter(index.get([document_id], missing_ok=True)), None)


def note_on(index: Retriever, where: Filter | None) -> str:
    """Say why a filter matches no document; "" if it matches some."""
    if not where or index.count(where):
        return ""
    return "; ".join(["no document satisfies the filter", *index.advice(where)])
