"""Passages of an index as a LangChain retriever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PrivateAttr

from aveyb_retrieval import Index
from aveyb_retrieval.integrations.places import place

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun

    from aveyb_retrieval import Hit


class AveyBRetriever(BaseRetriever):
    """Finds the best passages of an index, always in its newest version.

    Each hit is a `Document` whose content is the passage; its metadata are the document's, with `title`, `heading`,
    `span` (characters of the passage in the document), `score`, of a PDF `page` and `page_label`, and in a hybrid
    search `confidence`.

    Attributes:
        path: The index directory.
        k: How many passages; `invoke(query, k=...)` overrides it.
        search_options: Options of `Retriever.search`, such as `{"filter": ..., "unit": "document"}`.
        model: The model, as in `Retriever.load`.
    """

    path: str
    k: int = 4
    search_options: dict[str, Any] = Field(default_factory=dict)
    model: Any = None
    _index: Index = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Open the index."""
        self._index = Index.open(self.path, model=self.model)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        return [_passage(hit) for hit in self._index.search(query, k or self.k, **self._options(options))]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        hits = await self._index.asearch(query, k or self.k, **self._options(options))
        return [_passage(hit) for hit in hits]

    def _options(self, given: dict[str, Any]) -> Any:
        return {"unit": "passage", **self.search_options, **given}


def _passage(hit: Hit) -> Document:
    more = {**place(hit), "span": hit.span, "score": hit.score}
    if hit.confidence is not None:
        more["confidence"] = hit.confidence
    return Document(id=hit.id, page_content=hit.passage or hit.text, metadata={**hit.metadata, **more})
