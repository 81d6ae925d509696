"""The collections that one version is made of, and which version readers see.

A version has two: `aveyb_NAME_N_documents` and `aveyb_NAME_N_passages`. The alias `aveyb_NAME` is of the first one of
the version that readers see; moving it is the switch. Both keep the settings as a property of theirs.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.engines.milvus.connection import WAIT
from aveyb_retrieval.indexes.engines.versions import Versions
from aveyb_retrieval.indexes.engines.words import K1, B

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.engines.milvus.connection import Server
    from aveyb_retrieval.indexes.types import Kind

KINDS: tuple[Kind, ...] = ("passage", "document")
LONGEST = 65_535  # bytes of a VARCHAR
MOST_FACTS = PIECES = 4096  # the most elements of an ARRAY
_SETTINGS = "aveyb.settings"
_PARAMETERS: dict[str, dict[str, Any]] = {  # of indexes that need some; others have Milvus's own
    "HNSW": {"M": 16, "efConstruction": 128},
    "HNSW_SQ": {"M": 16, "efConstruction": 128, "sq_type": "SQ8"},
    "IVF_FLAT": {"nlist": 1024},
    "IVF_SQ8": {"nlist": 1024},
    "IVF_RABITQ": {"nlist": 1024, "refine": True, "refine_type": "SQ8"},
}


class MilvusVersions(Versions):
    """The versions of a collection on a server."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.address)
        self._server = server

    def collection(self, number: int, kind: str) -> str:
        """The collection of the documents or passages of a version."""
        return f"{self.label(number)}_{kind}s"

    def translated(self) -> AbstractContextManager[None]:
        """Turn errors of the server within into ours."""
        return self._server.translated()

    def all(self) -> list[int]:
        """Every version that is there, ascending.

        Raises:
            IndexFormatError: a collection of such a name was made by somebody else.
        """
        found = set()
        for name in self._server.client.list_collections(timeout=WAIT):
            if re.fullmatch(rf"{self.prefix}_[0-9]+_(documents|passages)", name):
                if self._properties(name).get(_SETTINGS) is None:
                    raise IndexFormatError(
                        f"{self.name}: the collection {name} was made by somebody else; rename it, or choose another "
                        "name"
                    )
                found.add(self.number(name.rpartition("_")[0]))
        return sorted(found)

    def shown(self) -> int | None:
        """The version that readers see."""
        from pymilvus.exceptions import MilvusException

        try:
            found = self._server.client.describe_alias(self.prefix, timeout=WAIT)
        except MilvusException as error:
            if "not found" in error.message.lower() or "not exist" in error.message.lower():
                return None
            raise
        return self.number(str(found["collection_name"]).removesuffix("_documents"))

    def settings(self, number: int) -> Mapping[str, Any] | None:
        """The settings of a version, whose collections are loaded; None where one of them is missing."""
        names = [self.collection(number, kind) for kind in KINDS]
        if not all(self._server.client.has_collection(name, timeout=WAIT) for name in names):
            return None
        for name in names:
            self._server.client.load_collection(name, timeout=WAIT)
        found: dict[str, Any] = json.loads(self._properties(names[0]).get(_SETTINGS, "null"))
        return found

    def create(self, number: int, settings: CollectionSettings) -> None:
        """Make the empty collections of a version."""
        from pymilvus import DataType

        pieces = {"element_type": DataType.VARCHAR, "max_capacity": PIECES, "max_length": LONGEST}
        own: dict[str, list[tuple[str, Any, dict[str, Any]]]] = {
            "document": [
                ("id", DataType.VARCHAR, {"max_length": LONGEST}),
                *((name, DataType.INT64, {}) for name in ("rank", "passages")),
                ("stored", DataType.ARRAY, pieces),
            ],
            "passage": [
                *((name, DataType.INT64, {}) for name in ("start", "stop")),
                ("heading", DataType.VARCHAR, {"max_length": LONGEST}),
            ],
        }
        about = {_SETTINGS: json.dumps(settings.to_json())}
        for kind in KINDS:
            schema, index = self._rows(own[kind], settings.encoding.dim)
            self._server.client.create_collection(
                self.collection(number, kind), schema=schema, index_params=index, properties=about, timeout=WAIT
            )

    def show(self, number: int) -> None:
        """Let readers see a version."""
        client = self._server.client
        move = client.create_alias if self.shown() is None else client.alter_alias
        move(self.collection(number, "document"), self.prefix, timeout=WAIT)

    def drop(self, number: int) -> None:
        """Remove a version."""
        for kind in KINDS:
            self._server.client.drop_collection(self.collection(number, kind), timeout=WAIT)

    def _properties(self, name: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self._server.client.describe_collection(name, timeout=WAIT)["properties"]
        return found

    def _rows(self, fields: list[tuple[str, Any, dict[str, Any]]], dim: int) -> tuple[Any, Any]:
        """The schema of a collection, and its indexes."""
        from pymilvus import DataType, Function, FunctionType

        client, kind, bm25 = self._server.client, self._server.index, {"bm25_k1": K1, "bm25_b": B}
        words = {"enable_analyzer": True, "enable_match": True, "analyzer_params": {"tokenizer": "standard"}}
        schema = client.create_schema(auto_id=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        for field, data_type, options in (
            *fields,
            ("facts", DataType.ARRAY, {"element_type": DataType.INT64, "max_capacity": MOST_FACTS}),
            ("bounds", DataType.JSON, {}),
            ("words", DataType.VARCHAR, {"max_length": LONGEST, **words}),
            ("bm25", DataType.SPARSE_FLOAT_VECTOR, {}),
            ("vector", DataType.FLOAT_VECTOR, {"dim": dim}),
        ):
            schema.add_field(field, data_type, **options)
        schema.add_function(
            Function("bm25", FunctionType.BM25, input_field_names=["words"], output_field_names=["bm25"])
        )
        index = client.prepare_index_params()
        index.add_index("vector", index_type=kind, metric_type="IP", params=_PARAMETERS.get(kind, {}))
        index.add_index("bm25", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params=bm25)
        return schema, index
