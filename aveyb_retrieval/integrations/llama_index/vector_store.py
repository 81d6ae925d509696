"""An index directory as a LlamaIndex vector store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from aveyb_retrieval import ConfigError, Index, Retriever
from aveyb_retrieval.integrations.llama_index.filters import translate
from aveyb_retrieval.integrations.rows import row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MODES = {
    VectorStoreQueryMode.DEFAULT: "dense",
    VectorStoreQueryMode.TEXT_SEARCH: "lexical",
    VectorStoreQueryMode.SPARSE: "lexical",
    VectorStoreQueryMode.HYBRID: "hybrid",
    VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid",
}
_NODE_ID = "_node_id"  # a field of its own, so that a filter can name nodes


class AveyBVectorStore(BasePydanticVectorStore):
    """An index directory as a vector store; made empty where there is none.

    Nodes and queries are encoded by the index's own model, from their text: vectors that LlamaIndex made for them are
    not used, so `embed_model=MockEmbedding(embed_dim=1)` saves the work of making any. A node may be a whole document.

    Args:
        path: The index directory.
        **options: Of `build_index`, where the index is made; `model=` also opens it.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    path: str
    _index: Index = PrivateAttr()

    def __init__(self, path: str | Path, **options: Any) -> None:
        super().__init__(path=str(path))
        self._index = Index.open(path, create=True, **options)

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex stores."""
        return "AveyBVectorStore"

    @property
    def client(self) -> Retriever:
        """The index, open at its newest version."""
        return self._index

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes, replacing those whose ids are there; return the ids. All of one call become one new version."""
        self._index.upsert([_row(node) for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of one document."""
        self._index.delete(where={"ref_doc_id": ref_doc_id})

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return nodes by id, by filter, or (with neither) all; ids that are not there are left out."""
        found = self._index.documents(_filter(node_ids, None, filters))
        return [_node(document.text, document.metadata) for document in found]

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete nodes by id, by filter, or by both together; with neither, none."""
        where = _filter(node_ids, None, filters)
        if where is not None:
            self._index.delete(where=where)

    def clear(self) -> None:
        """Delete all nodes."""
        self._index.delete(where={})

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Search by vectors (`default`), words (`text_search`, `sparse`) or both (`hybrid`; `alpha` weighs vectors).

        Raises:
            ConfigError: the query has no text, or its mode has no equal.
        """
        if query.query_str is None:
            raise ConfigError("the query has a vector only; this store needs its text")
        if query.mode not in _MODES:
            raise ConfigError(
                f"the query mode {query.mode.value!r} has no equal; use {', '.join(m.value for m in _MODES)}"
            )
        options: Any = {"mode": _MODES[query.mode], **kwargs}
        if query.alpha is not None and options["mode"] == "hybrid":
            options["weight"] = query.alpha
        where = _filter(query.node_ids or None, query.doc_ids or None, query.filters)  # an index gives [] for all
        count = query.hybrid_top_k if options["mode"] == "hybrid" and query.hybrid_top_k else query.similarity_top_k
        hits = self._index.search(query.query_str, count, filter=where, **options)
        return VectorStoreQueryResult(
            nodes=[_node(hit.text, hit.metadata) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.id for hit in hits],
        )

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Run `add` in a thread."""
        return await asyncio.to_thread(self.add, nodes, **kwargs)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Run `delete` in a thread."""
        await asyncio.to_thread(self.delete, ref_doc_id, **delete_kwargs)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Run `query` in a thread."""
        return await asyncio.to_thread(self.query, query, **kwargs)


def _row(node: BaseNode) -> dict[str, Any]:
    metadata = {**node_to_metadata_dict(node, remove_text=True), _NODE_ID: node.node_id}
    return row(node.node_id, node.get_content(metadata_mode=MetadataMode.NONE), metadata)


def _node(text: str, metadata: dict[str, Any]) -> BaseNode:
    return metadata_dict_to_node(metadata, text=text)


def _filter(
    node_ids: list[str] | None, doc_ids: list[str] | None, filters: MetadataFilters | None
) -> dict[str, Any] | None:
    """Build the filter for all that is given; None where nothing is."""
    parts: list[Any] = [] if filters is None else [translate(filters)]
    parts += [] if node_ids is None else [{_NODE_ID: {"$in": node_ids}}]
    parts += [] if doc_ids is None else [{"ref_doc_id": {"$in": doc_ids}}]
    found = [part for part in parts if part is not None]
    return {"$and": found} if found else None
