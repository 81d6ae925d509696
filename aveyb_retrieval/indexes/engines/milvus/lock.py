"""One writer at a time: Milvus has no locks, so a collection of its own, which cannot be made twice, is one.

Its description names who holds it. A server refuses to make a collection that is there with another description, so of
two writers one fails. A process that was killed leaves it behind, and so does one that lost its server: a writer on the
same machine takes it over. milvus-lite serves one process, so there a lock of this process does.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import IndexLockedError
from aveyb_retrieval.indexes.engines.milvus.connection import READ_WAIT, is_missing

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.milvus.connection import Server

WAIT = 10.0  # seconds for another writer to end
_POLL = 0.2

_held: set[str] = set()
_guard = threading.Lock()


class WriterLock:
    """Held from `take` to `release`.

    Attributes:
        is_held: Whether it is held now.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._name = f"aveyb_{server.address.collection}_LOCK"
        self._key = f"{server.address.uri}/{server.address.database}/{server.address.collection}"
        self.is_held = False

    def take(self) -> None:
        """Wait for other writers.

        Raises:
            IndexLockedError: one is at work for longer.
        """
        if self.is_held:
            return
        until = time.monotonic() + WAIT
        while not self._try():
            if time.monotonic() > until:
                raise IndexLockedError(f"{self._server.name}: {self._holder()} is writing under this name{self._how()}")
            time.sleep(_POLL)
        self.is_held = True

    def release(self) -> None:
        """Let others write."""
        if not self.is_held:
            return
        self.is_held = False
        try:
            if not self._server.address.is_lite:
                with self._server.translated():
                    self._server.client.drop_collection(self._name, timeout=READ_WAIT)
        finally:
            with _guard:
                _held.discard(self._key)

    def _try(self) -> bool:
        with _guard:
            if self._key in _held:
                return False
            if not self._server.address.is_lite and not self._make():
                return False
            _held.add(self._key)
            return True

    def _make(self) -> bool:
        """Make the collection on the server, unless somebody who is alive holds it."""
        from pymilvus import DataType
        from pymilvus.exceptions import MilvusException

        client = self._server.client
        us = {"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        schema = client.create_schema(auto_id=False, description=json.dumps(us))
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
        while True:
            try:
                client.create_collection(self._name, schema=schema, num_shards=1, timeout=READ_WAIT)
                break
            except MilvusException as error:
                if "duplicate" not in error.message.lower():
                    with self._server.translated():
                        raise
                holder = self._read()
                if holder is None:  # it was released just now
                    continue
                if holder.get("host") != us["host"] or _is_alive(int(holder["pid"])):
                    return False
                with self._server.translated():
                    client.drop_collection(self._name, timeout=READ_WAIT)
        holder = self._read()
        return holder is not None and holder.get("token") == us["token"]

    def _read(self) -> dict[str, Any] | None:
        """Who holds the lock on the server; None where nobody does."""
        from pymilvus.exceptions import MilvusException

        with self._server.translated():
            try:
                found = self._server.client.describe_collection(self._name, timeout=READ_WAIT)
            except MilvusException as error:
                if is_missing(error):
                    return None
                raise
        try:
            holder = json.loads(found["description"])
        except ValueError:
            return {"host": "", "pid": 0}
        return holder if isinstance(holder, dict) else {"host": "", "pid": 0}

    def _holder(self) -> str:
        held = None if self._server.address.is_lite else self._read()
        return f"another process (number {held['pid']} on {held['host']})" if held else "another thread"

    def _how(self) -> str:
        if self._server.address.is_lite:
            return "; wait for its end"
        return f"; wait for its end, or where it has ended, drop the Milvus collection {self._name}"


def _is_alive(pid: int) -> bool:
    """Whether a process of this machine may hold a lock; what this one holds is known without it."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
