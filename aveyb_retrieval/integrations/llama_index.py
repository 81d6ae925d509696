"""LlamaIndex: a retriever over an index, a vector store that is an index, and our embedding (extra
`llama-index`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval import ConfigError, Embedder, Index, Retriever
from aveyb_retrieval.errors import extra_for
from aveyb_retrieval.integrations.adapting import OURS, in_thread, passage, row, with_place

with extra_for("the adapter of LlamaIndex", "llama-index"):
    from llama_index.core import schema
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.vector_stores import types as stores
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aveyb_retrieval import Hit
    from aveyb_retrieval.indexes.model import Model

_SAME_NAME = ("EQ", "NE", "GT", "GTE", "LT", "LTE", "IN", "NIN", "ANY", "ALL", "CONTAINS")
_OPERATORS = {stores.FilterOperator[name]: f"${name.lower()}" for name in _SAME_NAME}
_OPERATORS[stores.FilterOperator.TEXT_MATCH] = "$contains"
_MODES = {
    stores.VectorStoreQueryMode.DEFAULT: "dense",
    stores.VectorStoreQueryMode.TEXT_SEARCH: "lexical",
    stores.VectorStoreQueryMode.SPARSE: "lexical",
    stores.VectorStoreQueryMode.HYBRID: "hybrid",
    stores.VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid",
}
_NODE_ID = "_node_id"  # a field of its own, so that a filter can name nodes


class AveyBEmbedding(BaseEmbedding):
    """Our model as a LlamaIndex embedding: it reads texts of any length whole, into unit vectors.

    Queries and documents get the model's own prompts, which the stock `HuggingFaceEmbedding` drops.
    `model` is a folder or name, opened with these options of `Embedder.load`, or a loaded model;
    None is the embedded one.
    """

    _embedder: Embedder = PrivateAttr()

    def __init__(
        self,
        model: str | Path | Embedder | None = None,
        *,
        embed_batch_size: int = 64,
        **options: Any,
    ) -> None:
        embedder = model if isinstance(model, Embedder) else Embedder.load(model, **options)
        super().__init__(model_name=embedder.model_name, embed_batch_size=embed_batch_size)
        self._embedder = embedder

    @classmethod
    def class_name(cls) -> str:
        return "AveyBEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embedder.encode_queries([query])[0].tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [
            encoded.vector.tolist()
            for encoded in self._embedder.encode_documents(("", text) for text in texts)
        ]

    _aget_query_embedding = in_thread(_get_query_embedding)
    _aget_text_embedding = in_thread(_get_text_embedding)
    _aget_text_embeddings = in_thread(_get_text_embeddings)


class AveyBRetriever(BaseRetriever):
    """Finds the best passages of an index, always in its newest version.

    Each hit is a `TextNode` of the passage: `start_char_idx` and `end_char_idx` are its characters
    in the document, the source relationship names the document, the metadata are the document's
    as they are, and `aveyb`: `title`, `heading`, `headings`, `duplicates` (the documents that have
    the same passage), `score` and, of a PDF, `page` and `page_label`. Title, heading and page go
    into a prompt, as fields of their own if the document has none of these names.

    `path` and `model` are as in `Retriever.load`, `search_options` those of `Retriever.search`,
    such as `{"per_document": 2}` or `{"unit": "document"}`, other options those of LlamaIndex's
    `BaseRetriever`.
    """

    def __init__(
        self,
        path: str | Path,
        similarity_top_k: int = 4,
        *,
        filters: stores.MetadataFilters | None = None,
        search_options: dict[str, Any] | None = None,
        model: Model = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.similarity_top_k = similarity_top_k
        self._index = Index.open(path, model=model)
        self._options: Any = {
            "unit": "passage",
            "filter": translate(filters),
            **(search_options or {}),
        }

    def _retrieve(self, query_bundle: schema.QueryBundle) -> list[schema.NodeWithScore]:
        hits = self._index.search(
            query_bundle.query_str, **{"k": self.similarity_top_k, **self._options}
        )
        return [_passage(hit) for hit in hits]

    _aretrieve = in_thread(_retrieve)


_CITED = ("title", "heading", "page_label")


def _passage(hit: Hit) -> schema.NodeWithScore:
    text, start, stop = passage(hit)
    metadata = with_place(hit, hit.metadata, (start, stop))
    cited = {name: metadata[OURS].get(name) for name in _CITED}
    added = [name for name, value in cited.items() if value and name not in hit.metadata]
    metadata |= {name: cited[name] for name in added}
    node = schema.TextNode(
        id_=f"{hit.id}#{start}-{stop}",
        text=text,
        metadata=metadata,
        excluded_llm_metadata_keys=[name for name in metadata if name not in added],
        start_char_idx=start,
        end_char_idx=stop,
        relationships={schema.NodeRelationship.SOURCE: schema.RelatedNodeInfo(node_id=hit.id)},
    )
    return schema.NodeWithScore(node=node, score=hit.score)


class AveyBVectorStore(stores.BasePydanticVectorStore):
    """An index directory as a vector store; if there is none, it is made empty with these options
    of `build_index`.

    Nodes and queries are encoded by the index's own model, from their text: vectors that LlamaIndex
    made for them are not used, so `embed_model=MockEmbedding(embed_dim=1)` saves the work of making
    any. A node may be a whole document.
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
        return "AveyBVectorStore"

    @property
    def client(self) -> Retriever:
        """The index, open at its newest version."""
        return self._index

    def add(self, nodes: Sequence[schema.BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes, replacing those whose ids are there; return the ids.

        All of one call become one new version.
        """
        self._index.upsert([_row(node) for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        self._index.delete(where={"ref_doc_id": ref_doc_id})

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: stores.MetadataFilters | None = None
    ) -> list[schema.BaseNode]:
        """Return nodes by id, by filter, or (with neither) all; ids that are not there are left
        out.
        """
        stored = self._index.documents(_filter(node_ids, None, filters))
        return [metadata_dict_to_node(node.metadata, text=node.text) for node in stored]

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: stores.MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete nodes by id, by filter, or by both together; with neither, none."""
        where = _filter(node_ids, None, filters)
        if where is not None:
            self._index.delete(where=where)

    def clear(self) -> None:
        self._index.delete(where={})

    def query(self, query: stores.VectorStoreQuery, **kwargs: Any) -> stores.VectorStoreQueryResult:
        """Search by vectors (`default`), words (`text_search`, `sparse`) or both (`hybrid`; `alpha`
        weighs vectors).

        Raises ConfigError if the query has no text, or if there is nothing like its mode.
        """
        if query.query_str is None:
            raise ConfigError("the query has a vector only; this store needs its text")
        if query.mode not in _MODES:
            raise ConfigError(
                f"the query mode {query.mode.value!r} has no equal; use"
                f" {', '.join(m.value for m in _MODES)}"
            )
        options: Any = {"mode": _MODES[query.mode], "fold": False, **kwargs}
        if query.alpha is not None and options["mode"] == "hybrid":
            options["weight"] = query.alpha
        # LlamaIndex's own index gives [] for all
        where = _filter(query.node_ids or None, query.doc_ids or None, query.filters)
        count = (
            query.hybrid_top_k
            if options["mode"] == "hybrid" and query.hybrid_top_k
            else query.similarity_top_k
        )
        hits = self._index.search(query.query_str, count, filter=where, **options)
        return stores.VectorStoreQueryResult(
            nodes=[metadata_dict_to_node(hit.metadata, text=hit.text) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.id for hit in hits],
        )

    async_add = in_thread(add)
    adelete = in_thread(delete)
    aquery = in_thread(query)


def _row(node: schema.BaseNode) -> dict[str, Any]:
    metadata = {**node_to_metadata_dict(node, remove_text=True), _NODE_ID: node.node_id}
    return row(node.node_id, node.get_content(metadata_mode=schema.MetadataMode.NONE), metadata)


def _filter(
    node_ids: list[str] | None, doc_ids: list[str] | None, filters: stores.MetadataFilters | None
) -> dict[str, Any] | None:
    """Join conditions on nodes, on their documents and on metadata; None if there are none."""
    conditions = []
    if (where := translate(filters)) is not None:
        conditions.append(where)
    if node_ids is not None:
        conditions.append({_NODE_ID: {"$in": node_ids}})
    if doc_ids is not None:
        conditions.append({"ref_doc_id": {"$in": doc_ids}})
    return {"$and": conditions} if conditions else None


def translate(filters: stores.MetadataFilters | None) -> dict[str, Any] | None:
    """Translate filters, or raise ConfigError; None if there are none."""
    if filters is None or not filters.filters:
        return None
    parts = [
        translate(part) if isinstance(part, stores.MetadataFilters) else _condition(part)
        for part in filters.filters
    ]
    conditions = [part for part in parts if part is not None]
    if filters.condition in (None, stores.FilterCondition.AND):
        return {"$and": conditions}
    if filters.condition == stores.FilterCondition.OR:
        return {"$or": conditions}
    return {"$not": {"$or": conditions}}


def _condition(condition: stores.MetadataFilter) -> dict[str, Any]:
    field = condition.key.replace(".", "\\.")  # LlamaIndex's keys are not paths
    if condition.operator == stores.FilterOperator.IS_EMPTY:
        return {field: {"$is_empty": True}}
    if condition.operator not in _OPERATORS:
        raise ConfigError(
            f"filter: the operator {condition.operator.value!r} on {condition.key!r} has no equal"
            " here"
        )
    return {field: {_OPERATORS[condition.operator]: condition.value}}
