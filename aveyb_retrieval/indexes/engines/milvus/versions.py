"""The versions of a collection, and which of them readers see.

Each publication fills a Milvus collection of its own, `aveyb_NAME_V1`, `aveyb_NAME_V2` and so on. The alias
`aveyb_NAME` leads to the one that readers see; moving it is the switch. The version before stays until the next switch,
for readers that are open.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError, EngineError, IndexFormatError
from aveyb_retrieval.indexes.engines.milvus.connection import READ_WAIT
from aveyb_retrieval.indexes.engines.milvus.rows import MOST_BYTES, PARTITIONS, STATE, Table

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.milvus.connection import Server

MOST_DIMENSIONS = 32_768
LOAD_WAIT = 600.0  # seconds for the server to make a collection ready
GRAPH_WAIT = 24 * 3600.0  # seconds for the server to build the graph of what was published
GRAPH = {"M": 16, "efConstruction": 128}
_COLUMNS = {  # besides the primary key and the vector
    "kind": "INT64", "born": "INT64", "doc": "INT64", "key": "INT64", "n": "INT64", "first": "INT64",
    "pieces": "INT64", "name": "VARCHAR", "fields": "VARCHAR", "spans": "VARCHAR", "counts": "VARCHAR",
    "body": "VARCHAR",
}  # fmt: skip

logger = logging.getLogger(__name__)


def alias(server: Server) -> str:
    """The name by which readers find the visible version."""
    return f"aveyb_{server.address.collection}"


def versions(server: Server) -> dict[int, str]:
    """The Milvus collections of a collection by their numbers, the newest last."""
    with server.translated():
        names = server.client.list_collections(timeout=READ_WAIT)
    pattern = re.compile(rf"{alias(server)}_V([0-9]+)")
    found = {int(match[1]): name for name in names if (match := pattern.fullmatch(name))}
    return dict(sorted(found.items()))


def find_visible(server: Server, *, load: bool = False) -> dict[str, Any] | None:
    """The state of the version that readers see; None where there is none. `load` makes it ready to be searched."""
    name = alias(server)
    with server.translated():
        if not server.client.has_collection(name, timeout=READ_WAIT):
            return None
        if load:
            server.client.load_collection(name, timeout=LOAD_WAIT)
    rows = server.read(
        name,
        lambda: server.client.query(
            name,
            filter=f"kind == {STATE}",
            output_fields=["body"],
            partition_names=["state"],
            timeout=READ_WAIT,
            consistency_level="Strong",
        ),
    )
    return newest_state(rows, server.name)


def visible(server: Server, *, load: bool = False) -> dict[str, Any]:
    """The state of the version that readers see.

    Raises:
        IndexFormatError: nothing was published under this name, or not yet completely.
    """
    state = find_visible(server, load=load)
    if state is None:
        what = "is published only in part; run the same `aveyb-index publish` again to continue"
        missing = "is not there; publish it with `aveyb-index publish`"
        raise IndexFormatError(f"{server.name}: the collection {what if versions(server) else missing}")
    return state


def newest_state(rows: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """The newest of some rows with states.

    Raises:
        IndexFormatError: there is none, or it is damaged.
    """
    try:
        states = [json.loads(row["body"]) for row in rows]
        state: dict[str, Any] = max(states, key=lambda state: state["generation"])
    except (ValueError, KeyError, TypeError) as error:
        raise IndexFormatError(f"{where}: damaged: no state of the collection ({error}); publish it again") from error
    return state


def create(server: Server, number: int, dim: int) -> Table:
    """Make an empty version.

    Raises:
        ConfigError: the vectors are too wide.
    """
    from pymilvus import DataType

    if dim > MOST_DIMENSIONS:
        raise ConfigError(f"{server.name}: vectors of dimension {dim}; Milvus takes {MOST_DIMENSIONS:,}")
    name = f"{alias(server)}_V{number}"
    client = server.client
    schema = client.create_schema(auto_id=False, description="aveyb-retrieval")
    schema.add_field("number", DataType.INT64, is_primary=True)
    for column, kind in _COLUMNS.items():
        schema.add_field(column, DataType[kind], **({"max_length": MOST_BYTES} if kind == "VARCHAR" else {}))
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    index = client.prepare_index_params()
    index.add_index("vector", index_type="HNSW", index_name="vector", metric_type="IP", params=GRAPH)
    with server.translated():
        client.create_collection(name, schema=schema, num_shards=1, consistency_level="Strong", timeout=READ_WAIT)
        for partition in PARTITIONS:
            client.create_partition(name, partition, timeout=READ_WAIT)
        client.create_index(name, index, timeout=READ_WAIT)
        client.load_collection(name, timeout=LOAD_WAIT)
    return Table(server, name, dim)


def build_graph(server: Server, name: str) -> None:
    """Have the server write what was published to disk and build the graph of its vectors."""
    client = server.client
    with server.translated():
        client.flush(name, timeout=GRAPH_WAIT)
        until = time.monotonic() + GRAPH_WAIT
        while True:
            found = client.describe_index(name, "vector", timeout=READ_WAIT)
            if not int(found.get("pending_index_rows", 0)) and found.get("state", "Finished") == "Finished":
                break
            if time.monotonic() > until:
                raise EngineError(f"{server.name}: the graph of {name} is not built yet; run this again to continue")
            time.sleep(0.5)
        client.load_collection(name, timeout=LOAD_WAIT)


def show(server: Server, name: str) -> None:
    """Let readers see a version, and remove those before the one that they saw until now."""
    seen = find_visible(server)
    with server.translated():
        if seen is None:
            server.client.create_alias(name, alias(server), timeout=READ_WAIT)
        else:
            server.client.alter_alias(name, alias(server), timeout=READ_WAIT)
    kept = (name, None if seen is None else seen["collection"])
    for other in versions(server).values():
        if other not in kept:
            drop(server, other)


def drop(server: Server, name: str) -> None:
    """Remove a version that nobody sees."""
    with server.translated():
        server.client.drop_collection(name, timeout=READ_WAIT)
