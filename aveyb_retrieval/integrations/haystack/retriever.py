"""Documents or passages of a document store as a Haystack component."""

from __future__ import annotations

import asyncio
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import FilterPolicy, apply_filter_policy

from aveyb_retrieval.integrations.haystack.document_store import AveyBDocumentStore


@component
class AveyBRetriever:
    """Finds the best documents, or with `search_options={"unit": "passage"}` the best passages, by words and vectors.

    A passage is a `Document` with the passage as content and `source_id`, `title`, `heading`, `span` and, of a PDF,
    `page` and `page_label` in its meta.

    Args:
        document_store: The index.
        filters: Only documents whose meta satisfy these.
        top_k: How many.
        filter_policy: How `filters` of a run and of the component go together.
        search_options: Options of `Retriever.search`.
    """

    def __init__(
        self,
        document_store: AveyBDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: FilterPolicy | str = FilterPolicy.REPLACE,
        search_options: dict[str, Any] | None = None,
    ) -> None:
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        self.search_options = search_options or {}

    def to_dict(self) -> dict[str, Any]:
        """Describe the component, so that `from_dict` makes it again."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
            search_options=self.search_options,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AveyBRetriever:
        """Make a component from its description."""
        parameters = dict(data["init_parameters"])
        parameters["document_store"] = AveyBDocumentStore.from_dict(parameters["document_store"])
        made: AveyBRetriever = default_from_dict(cls, {**data, "init_parameters": parameters})
        return made

    @component.output_types(documents=list[Document])
    def run(self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None) -> dict[str, Any]:
        """Search; `filters` and `top_k` override or join those of the component."""
        where = apply_filter_policy(self.filter_policy, self.filters, filters)
        found = self.document_store.search(query, self.top_k if top_k is None else top_k, where, **self.search_options)
        return {"documents": found}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        """Run `run` in a thread."""
        found: dict[str, Any] = await asyncio.to_thread(self.run, query, filters, top_k)
        return found
