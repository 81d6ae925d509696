"""From the address of an engine to what reads or writes it.

Engines of other packages join by an entry point of the group `aveyb_retrieval.engines`: its name is the scheme of their
addresses, its object (a subclass of `Collection`, or a module) has `open_engine` and `open_writer` of an address.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.base import VectorEngine
    from aveyb_retrieval.indexes.engines.collection import Collection

GROUP = "aveyb_retrieval.engines"
_OURS = dict.fromkeys(("postgresql", "postgres"), "postgres:PostgresCollection")
_OURS["milvus"] = "milvus:MilvusCollection"


def register_engine(scheme: str, engine: Any) -> None:
    """Add an engine for this process, as an entry point does for all."""
    _kinds()[scheme] = engine


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
    return _module(address).open_engine(address)


def open_writer(address: str) -> Collection:
    """Connect to a server to write a collection, or raise what `open_engine` does."""
    return _module(address).open_writer(address)


def _module(address: str) -> Any:
    scheme = address.partition("://")[0]
    if scheme not in _kinds():
        raise ConfigError(f"{scheme}://: an engine of this kind is not known; known are {', '.join(_kinds())}")
    found = _kinds()[scheme]
    return found.load() if isinstance(found, EntryPoint) else found


@cache
def _kinds() -> dict[str, Any]:
    """The engines by scheme: entry points, loaded when they are needed, and what was added."""
    ours = {scheme: EntryPoint(scheme, f"{__package__}.{where}", GROUP) for scheme, where in _OURS.items()}
    return {point.name: point for point in entry_points(group=GROUP)} | ours
