"""The collections that one publication is made of, and which publication readers see.

A publication has three: `aveyb_NAME_N` with one row that describes it, `aveyb_NAME_N_documents` and
`aveyb_NAME_N_passages`. The alias `aveyb_NAME` is of the first one of those that readers see; moving it is the switch.
The publication before stays until the next one, for readers that are open.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.errors import EngineError, IndexFormatError
from aveyb_retrieval.indexes.engines.words import K1, B

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.engines.milvus.connection import Server

LONGEST = 65_535  # bytes of a VARCHAR
MOST_FACTS = PIECES = 4096  # the most elements of an ARRAY
WAIT = 600.0  # seconds for a server to write, flush or load
_PARAMETERS: dict[str, dict[str, Any]] = {  # of indexes that need some; others have Milvus's own
    "HNSW": {"M": 16, "efConstruction": 128},
    "HNSW_SQ": {"M": 16, "efConstruction": 128, "sq_type": "SQ8"},
    "IVF_FLAT": {"nlist": 1024},
    "IVF_SQ8": {"nlist": 1024},
    "IVF_RABITQ": {"nlist": 1024, "refine": True, "refine_type": "SQ8"},
}


class Publication(NamedTuple):
    """The collections of one publication."""

    about: str

    @property
    def number(self) -> int:
        """Which publication it is of its name."""
        return int(self.about.rpartition("_")[2])

    def of(self, kind: str) -> str:
        """The collection of "document" or "passage"."""
        return f"{self.about}_{kind}s"


def alias_of(server: Server) -> str:
    """The alias that readers follow."""
    return f"aveyb_{server.address.collection}"


def publications(server: Server) -> list[Publication]:
    """All publications under a name, oldest first.

    Raises:
        IndexFormatError: a collection of such a name was made by somebody else.
    """
    pattern = re.compile(rf"{alias_of(server)}_[0-9]+")
    with server.translated():
        names = [name for name in server.client.list_collections(timeout=WAIT) if pattern.fullmatch(name)]
        for name in names:
            fields = server.client.describe_collection(name, timeout=WAIT)["fields"]
            if [field["name"] for field in fields] != ["number", "state", "vector"]:
                raise IndexFormatError(
                    f"{server.name}: the collection {name} was made by somebody else; rename it, or choose another name"
                )
    return sorted(map(Publication, names), key=lambda publication: publication.number)


def visible(server: Server) -> Publication | None:
    """The publication that readers see."""
    from pymilvus.exceptions import MilvusException

    alias = alias_of(server)
    with server.translated():
        try:
            found = server.client.describe_alias(alias, timeout=WAIT)
        except MilvusException as error:
            if "not found" in error.message.lower() or "not exist" in error.message.lower():
                return None
            raise
    name = str(found["collection_name"])
    if not re.fullmatch(rf"{alias}_[0-9]+", name):
        raise IndexFormatError(f"{server.name}: the alias {alias} is of {name}, none of ours; choose another name")
    return Publication(name)


def load(server: Server) -> Publication:
    """The publication that readers see, loaded for searching.

    Raises:
        IndexFormatError: nothing was published under this name, or not yet completely.
    """
    found = visible(server)
    if found is None:
        what = "is not there; publish it with `aveyb-index publish`"
        if publications(server):
            what = "is published only in part; run the same `aveyb-index publish` again to continue"
        raise IndexFormatError(f"{server.name}: the collection {what}")
    load_all(server, found)
    return found


def load_all(server: Server, publication: Publication) -> None:
    """Have the server load the collections of a publication, where it has not."""
    with server.translated():
        for name in (publication.about, publication.of("document"), publication.of("passage")):
            server.client.load_collection(name, timeout=WAIT)


def create(server: Server, publication: Publication, dim: int) -> None:
    """Make the empty collections of a publication."""
    from pymilvus import DataType

    client = server.client
    own = {
        "document": [
            ("id", DataType.VARCHAR, {"max_length": LONGEST}),
            ("rank", DataType.INT64, {}),
            (
                "stored",
                DataType.ARRAY,
                {"element_type": DataType.VARCHAR, "max_capacity": PIECES, "max_length": LONGEST},
            ),
        ],
        "passage": [
            ("doc", DataType.INT64, {}),
            ("start", DataType.INT64, {}),
            ("stop", DataType.INT64, {}),
            ("heading", DataType.VARCHAR, {"max_length": LONGEST}),
        ],
    }
    with server.translated():
        for kind, fields in own.items():
            _create_rows(server, publication.of(kind), fields, dim)
        schema = client.create_schema(auto_id=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("state", DataType.JSON)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)  # a collection needs one
        index = client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        client.create_collection(publication.about, schema=schema, index_params=index, timeout=WAIT)


def _create_rows(server: Server, name: str, fields: Sequence[tuple[str, Any, dict[str, Any]]], dim: int) -> None:
    from pymilvus import DataType, Function, FunctionType

    client, kind = server.client, server.address.index
    schema = client.create_schema(auto_id=False)
    schema.add_field("number", DataType.INT64, is_primary=True)
    for field, data_type, options in fields:
        schema.add_field(field, data_type, **options)
    schema.add_field("facts", DataType.ARRAY, element_type=DataType.INT64, max_capacity=MOST_FACTS)
    schema.add_field("bounds", DataType.JSON)
    schema.add_field(
        "words",
        DataType.VARCHAR,
        max_length=LONGEST,
        enable_analyzer=True,
        enable_match=True,
        analyzer_params={"tokenizer": "standard"},
    )
    schema.add_field("bm25", DataType.SPARSE_FLOAT_VECTOR)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    schema.add_function(
        Function(name="bm25", input_field_names=["words"], output_field_names=["bm25"], function_type=FunctionType.BM25)
    )
    index = client.prepare_index_params()
    index.add_index("vector", index_type=kind, metric_type="IP", params=_PARAMETERS.get(kind, {}))
    index.add_index("bm25", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params={"bm25_k1": K1, "bm25_b": B})
    client.create_collection(name, schema=schema, index_params=index, timeout=WAIT)


def drop(server: Server, publication: Publication) -> None:
    """Remove a publication; its first collection last, so that what is left can be found."""
    with server.translated():
        for name in (publication.of("document"), publication.of("passage"), publication.about):
            if server.client.has_collection(name, timeout=WAIT):
                server.client.drop_collection(name, timeout=WAIT)


def show(server: Server, publication: Publication) -> None:
    """Let readers see a publication, atomically, and remove those before the one that they saw until now.

    Raises:
        EngineError: a later one is there already.
    """
    before, alias = visible(server), alias_of(server)
    if before is not None and before.number > publication.number:
        raise EngineError(f"{server.name}: another process has published meanwhile; publish again")
    with server.translated():
        if before is None:
            server.client.create_alias(publication.about, alias, timeout=WAIT)
        else:
            server.client.alter_alias(publication.about, alias, timeout=WAIT)
    for old in publications(server):
        if old.number < publication.number and old != before:
            drop(server, old)


def read_state(server: Server, publication: Publication) -> dict[str, Any] | None:
    """What a publication, which is loaded, says about itself; None where it says nothing yet."""
    with server.translated():
        rows = server.client.query(
            publication.about, filter="number == 0", output_fields=["state"], consistency_level="Strong", timeout=WAIT
        )
    return dict(rows[0]["state"]) if rows else None


def state_of(server: Server, publication: Publication) -> dict[str, Any]:
    """What a publication that readers see says about itself.

    Raises:
        IndexFormatError: it says nothing.
    """
    state = read_state(server, publication)
    if state is None:
        raise IndexFormatError(f"{server.name}: damaged: {publication.about} is empty; publish it again")
    return state


def write_state(server: Server, publication: Publication, state: dict[str, Any]) -> None:
    """Replace what a publication says about itself."""
    with server.translated():
        server.client.upsert(publication.about, [{"number": 0, "state": state, "vector": [0.0, 1.0]}], timeout=WAIT)
