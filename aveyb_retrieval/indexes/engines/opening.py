"""From the address of an engine to what reads or writes it.

Engines of other packages join by an entry point of the group `aveyb_retrieval.engines`: its name is the scheme of their
addresses, its object (a module, say) has the two functions of `EngineKind`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.base import VectorEngine
    from aveyb_retrieval.indexes.engines.collection import CollectionWriter

GROUP = "aveyb_retrieval.engines"
_POSTGRES = "aveyb_retrieval.indexes.engines.postgres.engine"
_OURS = {
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "milvus": "aveyb_retrieval.indexes.engines.milvus.engine",
}


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
    _others()[scheme] = kind


def is_address(path: object) -> bool:
    """Whether a name is the address of an engine, not of a directory."""
    if not isinstance(path, str) or "://" not in path:
        return False
    scheme = path.partition("://")[0]
    return scheme in _OURS or scheme in _others()


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
    found: Any
    if scheme in _OURS:
        found = import_module(_OURS[scheme])
    elif scheme in _others():
        found = _others()[scheme]
        found = found.load() if isinstance(found, EntryPoint) else found
    else:
        known = ", ".join([*_OURS, *_others()])
        raise ConfigError(f"{scheme}://: an engine of this kind is not known; known are {known}")
    kind: EngineKind = found
    return kind


@cache
def _others() -> dict[str, Any]:
    """The engines of other packages, by scheme: entry points, loaded when they are needed, or what was added."""
    return {point.name: point for point in entry_points(group=GROUP)}
