"""Collections of Milvus, by address."""

from __future__ import annotations

from aveyb_retrieval.indexes.engines.collection import Address
from aveyb_retrieval.indexes.engines.milvus.connection import Server
from aveyb_retrieval.indexes.engines.milvus.schema import MilvusVersions
from aveyb_retrieval.indexes.engines.milvus.view import MilvusView
from aveyb_retrieval.indexes.engines.milvus.writer import MilvusWriter
from aveyb_retrieval.indexes.engines.reader import CollectionReader


def open_engine(address: str) -> CollectionReader:
    """Open the collection at an address for searching."""
    return CollectionReader(Server(Address.parse(address)), MilvusVersions, MilvusView)


def open_writer(address: str) -> MilvusWriter:
    """Connect to write the collection at an address."""
    return MilvusWriter(Server(Address.parse(address), writes=True))
