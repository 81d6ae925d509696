"""From the address of an engine to what reads or writes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.engines.base import VectorEngine
    from aveyb_retrieval.indexes.engines.collection import CollectionWriter
    from aveyb_retrieval.indexes.engines.several import ServerEngine

_POSTGRES = ("postgresql", "postgres")
_MILVUS = ("milvus",)
_SCHEMES = (*_POSTGRES, *_MILVUS)
_BETWEEN = re.compile(r",(?=[a-z][a-z0-9+.-]*:)")


def engine_addresses(path: str | Path | Sequence[str]) -> list[str]:
    """Return the addresses of the servers that a name stands for, several with commas between; none for a directory."""
    if isinstance(path, (list, tuple)):
        return [address for each in path for address in engine_addresses(each)]
    if not isinstance(path, str) or not path.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES)):
        return []
    return _BETWEEN.split(path)


def open_engine(addresses: Sequence[str], *, partial: bool) -> VectorEngine:
    """Open a collection on one server, or on all the servers that share its documents.

    Raises:
        EngineError: a server does not answer (with `partial`: none does).
        IndexFormatError: nothing is published there, or these are not the shares of one collection.
        ConfigError: an address is not one, or `partial` is given for one server.
    """
    if len(addresses) > 1:
        from aveyb_retrieval.indexes.engines.several import SeveralServers

        return SeveralServers([(address, _open_one) for address in addresses], partial=partial)
    if partial:
        raise ConfigError(
            f"partial=True: {addresses[0].split('://')[0]}: only where several servers share the documents"
        )
    return _open_one(addresses[0])


def open_writer(address: str) -> CollectionWriter:
    """Connect to one server to write a collection.

    Raises:
        EngineError: it does not answer.
        ConfigError: this is not the address of a collection.
    """
    if _scheme(address) in _MILVUS:
        from aveyb_retrieval.indexes.engines.milvus.connection import Address as MilvusAddress
        from aveyb_retrieval.indexes.engines.milvus.writer import MilvusWriter

        return MilvusWriter(MilvusAddress.parse(address))
    from aveyb_retrieval.indexes.engines.postgres.connection import Address
    from aveyb_retrieval.indexes.engines.postgres.writer import PostgresWriter

    return PostgresWriter(Address.parse(address))


def _open_one(address: str) -> ServerEngine:
    if _scheme(address) in _MILVUS:
        from aveyb_retrieval.indexes.engines.milvus.connection import Address as MilvusAddress
        from aveyb_retrieval.indexes.engines.milvus.engine import MilvusEngine

        return MilvusEngine(MilvusAddress.parse(address))
    from aveyb_retrieval.indexes.engines.postgres.connection import Address
    from aveyb_retrieval.indexes.engines.postgres.engine import PostgresEngine

    return PostgresEngine(Address.parse(address))


def _scheme(address: str) -> str:
    scheme = address.partition("://")[0]
    if scheme not in _SCHEMES:
        raise ConfigError(f"{scheme}://: an engine of this kind is not known; known are {', '.join(_SCHEMES)}")
    return scheme
