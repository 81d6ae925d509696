"""A collection of Milvus, open for searching."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.engines.milvus import schema
from aveyb_retrieval.indexes.engines.milvus.connection import Address, Server
from aveyb_retrieval.indexes.engines.milvus.view import MilvusView
from aveyb_retrieval.indexes.engines.milvus.writer import MilvusWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aveyb_retrieval.indexes.engines.base import EngineInfo

KEPT = 10_000  # counts that are remembered between two changes


def open_engine(address: str) -> MilvusEngine:
    """Open the collection at an address for searching."""
    return MilvusEngine(Address.parse(address))


def open_writer(address: str) -> MilvusWriter:
    """Connect to write the collection at an address."""
    return MilvusWriter(Address.parse(address))


class MilvusEngine:
    """One collection, at the publication that readers saw when it was opened; changes to it are seen."""

    def __init__(self, address: Address) -> None:
        """Open what is published.

        Raises:
            EngineError: no server answers there, or it refuses the user.
            IndexFormatError: nothing is published under this name.
        """
        self._server = Server(address)
        try:
            self._publication = schema.load(self._server)
            state = schema.state_of(self._server, self._publication)
            self._settings = CollectionSettings.from_json(state["settings"], self._server.name)
        except BaseException:
            self._server.close()
            raise
        self._known: tuple[tuple[str, int], dict[str, Any]] | None = None

    @contextmanager
    def view(self) -> Iterator[MilvusView]:
        """Look at what is there now."""
        yield self._view()

    @property
    def is_stale(self) -> bool:
        """Whether other documents were published under this name."""
        return schema.visible(self._server) != self._publication

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to what is published now, unless `check` of it raises an error."""
        other = MilvusEngine(self._server.address)
        try:
            check(other._view().info)
            self._publication, self._settings = other._publication, other._settings
        finally:
            other.close()

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _view(self) -> MilvusView:
        publication = self._publication
        state = schema.state_of(self._server, publication)
        version = publication.about, int(state["changes"])
        if self._known is None or self._known[0] != version:
            self._known = version, {}
        known = self._known[1]

        def remember(name: str, compute: Callable[[], Any]) -> Any:
            if name not in known:
                if len(known) >= KEPT:
                    known.clear()
                known[name] = compute()
            return known[name]

        return MilvusView(self._server, publication, self._settings, state, remember)
