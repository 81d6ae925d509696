"""Passages of an index as a LlamaIndex retriever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode

from aveyb_retrieval import Index
from aveyb_retrieval.integrations.llama_index.filters import translate
from aveyb_retrieval.integrations.places import place

if TYPE_CHECKING:
    from pathlib import Path

    from llama_index.core.vector_stores import MetadataFilters

    from aveyb_retrieval import Hit
    from aveyb_retrieval.indexes.model import Model


class AveyBRetriever(BaseRetriever):
    """Finds the best passages of an index, always in its newest version.

    Each hit is a `TextNode` of the passage: `start_char_idx` and `end_char_idx` are its characters in the document, the
    source relationship names the document, the metadata are the document's with its `title` and `heading` and, of a
    PDF, `page` and `page_label`.

    Args:
        path: The index directory.
        similarity_top_k: How many passages.
        filters: Only documents whose metadata satisfy these.
        search_options: More options of `Retriever.search`, such as `{"per_document": 2}` or `{"unit": "document"}`.
        model: The model, as in `Retriever.load`.
        **options: Of LlamaIndex's `BaseRetriever`.
    """

    def __init__(
        self,
        path: str | Path,
        similarity_top_k: int = 4,
        *,
        filters: MetadataFilters | None = None,
        search_options: dict[str, Any] | None = None,
        model: Model = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.similarity_top_k = similarity_top_k
        self._index = Index.open(path, model=model)
        self._options: Any = {"unit": "passage", "filter": translate(filters), **(search_options or {})}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._index.search(query_bundle.query_str, self.similarity_top_k, **self._options)
        return [_node(hit) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = await self._index.asearch(query_bundle.query_str, self.similarity_top_k, **self._options)
        return [_node(hit) for hit in hits]


def _node(hit: Hit) -> NodeWithScore:
    start, stop = hit.span or (0, len(hit.text))
    node = TextNode(
        id_=f"{hit.id}#{start}-{stop}",
        text=hit.text[start:stop],
        metadata={**hit.metadata, **place(hit)},
        start_char_idx=start,
        end_char_idx=stop,
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=hit.id)},
    )
    return NodeWithScore(node=node, score=hit.score)
