"""From the address of an engine to what reads or writes it.

Engines of other packages join by an entry point of the group `aveyb_retrieval.engines`: its name is the scheme of their
addresses, its object (a module, say) has the two functions of `EngineKind`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.base import VectorEngine
    from aveyb_retrieval.indexes.engines.writer import CollectionWriter

GROUP = "aveyb_retrieval.engines"
_OURS = {"postgresql": "postgres", "postgres": "postgres", "milvus": "milvus"}


class EngineKind(Protocol):
    """What the modules of engines offer."""

    def open_engine(self, address: str) -> VectorEngine:
        """Open the collection at an address for searching."""
        ...

    def open_writer(self, address: str) -> CollectionWriter:
        """Connect to write the collection at an address."""
        ...


def register_engine(scheme: str, kind: EngineKind) -> None:
    """Add an engine for this process, as an entry point does for all."""
    _kinds()[scheme] = kind


def is_address(path: object) -> bool:
    """Whether a name is the address of an engine, not of a directory."""
    return isinstance(path, str) and "://" in path and path.partition("://")[0] in _kinds()


def open_engine(address: str) -> VectorEngine:
    """Open a collection for searching.

    Raises:
        EngineError: the server does not answer, or refuses.
        IndexFormatError: nothing is published there.
        ConfigError: this is not the address of a collection.
    """
    return _kind(address).open_engine(address)


def open_writer(address: str) -> CollectionWriter:
    """Connect to a server to write a collection.

    Raises:
        EngineError: it does not answer.
        ConfigError: this is not the address of a collection.
    """
    return _kind(address).open_writer(address)


def _kind(address: str) -> EngineKind:
    scheme = address.partition("://")[0]
    if scheme not in _kinds():
        raise ConfigError(f"{scheme}://: an engine of this kind is not known; known are {', '.join(_kinds())}")
    found = _kinds()[scheme]
    kind: EngineKind = found.load() if isinstance(found, EntryPoint) else found
    return kind


@cache
def _kinds() -> dict[str, Any]:
    """The engines by scheme: entry points, loaded when they are needed, and what was added."""
    ours = {scheme: EntryPoint(scheme, f"{__package__}.{module}.engine", GROUP) for scheme, module in _OURS.items()}
    return {point.name: point for point in entry_points(group=GROUP)} | ours
