"""A collection of Milvus, open for searching."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.engines.milvus import versions
from aveyb_retrieval.indexes.engines.milvus.connection import Address, Server
from aveyb_retrieval.indexes.engines.milvus.known import Known, read_state
from aveyb_retrieval.indexes.engines.milvus.rows import Table
from aveyb_retrieval.indexes.engines.milvus.view import MilvusView
from aveyb_retrieval.indexes.engines.words import TermCounter
from aveyb_retrieval.indexes.store.words import language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aveyb_retrieval.indexes.engines.base import EngineInfo


class MilvusEngine:
    """One collection, at the version that readers saw when it was opened. Upserts and deletions are seen at once."""

    def __init__(self, address: Address) -> None:
        """Open what is published.

        Raises:
            EngineError: no server answers there, or it refuses the user.
            IndexFormatError: nothing is published under this name.
        """
        self._server = Server(address)
        try:
            self._open = _Open(self._server)
        except BaseException:
            self._server.close()
            raise

    @contextmanager
    def view(self) -> Iterator[MilvusView]:
        """Look at the newest generation: all that one search reads."""
        yield self._open.view()

    @property
    def is_stale(self) -> bool:
        """Whether other documents were published under this name."""
        return str(versions.visible(self._server)["collection"]) != self._open.table.collection

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to what is published now, unless `check` of it raises an error."""
        other = _Open(self._server)
        check(other.view().info)
        self._open, old = other, self._open
        old.known.close()

    def close(self) -> None:
        """Close the connection."""
        self._open.known.close()
        self._server.close()

    @property
    def settings(self) -> CollectionSettings:
        """The settings that the collection was published with."""
        return self._open.settings


class _Open:
    """One version of a collection."""

    def __init__(self, server: Server) -> None:
        state = read_state(versions.visible(server, load=True), server.name)
        self.settings = CollectionSettings.from_json(state.settings, server.name)
        self.table = Table(server, state.collection, self.settings.encoding.dim)
        self.known = Known(self.table)
        self._terms = TermCounter(language(self.settings.encoding.language))
        # what a server shows without waiting is at least what was published
        self._since = state.written if server.address.is_eventual else None

    def view(self) -> MilvusView:
        state, removed = self.known.newest(since=self._since)
        return MilvusView(self.table, self.settings, state, removed, self.known, self._terms)
