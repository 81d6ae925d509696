"""An index directory as a Haystack document store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haystack import Document, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy

from aveyb_retrieval import Index
from aveyb_retrieval.integrations.haystack.filters import translate
from aveyb_retrieval.integrations.haystack.metadata_queries import MetadataQueries, in_thread
from aveyb_retrieval.integrations.places import place
from aveyb_retrieval.integrations.rows import row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval import Document as Stored
    from aveyb_retrieval import Hit

_REST = "_haystack"  # metadata field for what a Document has beside id, content and meta


class AveyBDocumentStore(MetadataQueries):
    """An index directory; made empty where there is none.

    Documents are encoded by the index's own model, whole and of any length: a pipeline needs no embedder and no
    splitter. Embeddings that documents bring are kept and given back, but not searched.

    Args:
        path: The index directory.
        **options: Of `build_index`, where the index is made; `model=` also opens it.
    """

    def __init__(self, path: str, **options: Any) -> None:
        self.path = path
        self._options = options
        self._index = Index.open(path, create=True, **options)

    def to_dict(self) -> dict[str, Any]:
        """Describe the store, so that `from_dict` opens it again."""
        return default_to_dict(self, path=str(self.path), **self._options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AveyBDocumentStore:
        """Open a store from its description."""
        store: AveyBDocumentStore = default_from_dict(cls, data)
        return store

    def search(self, query: str, top_k: int, filters: dict[str, Any] | None = None, **options: Any) -> list[Document]:
        """Find documents, or passages with `unit="passage"`; options are those of `Retriever.search`."""
        if top_k == 0:
            return []
        hits = self._index.search(query, top_k, filter=translate(filters), **options)
        return [_passage(hit) if options.get("unit") == "passage" else _document(hit, score=hit.score) for hit in hits]

    def _stored(self, filters: dict[str, Any] | None = None) -> Iterator[Stored]:
        return self._index.documents(translate(filters))

    def _metas(self, filters: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        for each in self._stored(filters):
            yield {name: value for name, value in each.metadata.items() if name != _REST}

    def count_documents(self) -> int:
        """Count all documents."""
        return self._index.count()

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Count the documents that satisfy a filter."""
        return self._index.count(translate(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that satisfy a filter, oldest first."""
        return [_document(each) for each in self._stored(filters)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents and return how many; the default policy is to refuse ids that are there already (FAIL).

        Raises:
            ValueError: `documents` is not a list of documents.
            DuplicateDocumentError: an id is there already.
        """
        if not isinstance(documents, list) or not all(isinstance(each, Document) for each in documents):
            raise ValueError("write_documents needs a list of Documents")
        known = {each.id for each in self._index.get([each.id for each in documents], missing_ok=True)}
        chosen: dict[str, Document] = {}
        for each in documents:
            if policy == DuplicatePolicy.OVERWRITE or (each.id not in known and each.id not in chosen):
                chosen[each.id] = each
            elif policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(f"{self.path}: the id {each.id!r} is there already; nothing was written")
        self._index.upsert([_row(each) for each in chosen.values()])
        return len(chosen)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id; ids that are not there are ignored."""
        if document_ids:
            self._index.delete(document_ids, missing_ok=True)

    def delete_all_documents(self) -> None:
        """Delete all documents."""
        self._index.delete(where={})

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that satisfy a filter; return how many."""
        return self._index.delete(where=translate(filters) or {}).deleted

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set meta fields of the documents that satisfy a filter, without encoding; return how many these are."""
        return self._index.update_metadata(meta, where=translate(filters) or {}).replaced

    count_documents_async = in_thread(count_documents)
    count_documents_by_filter_async = in_thread(count_documents_by_filter)
    filter_documents_async = in_thread(filter_documents)
    write_documents_async = in_thread(write_documents)
    delete_documents_async = in_thread(delete_documents)
    delete_all_documents_async = in_thread(delete_all_documents)
    delete_by_filter_async = in_thread(delete_by_filter)
    update_by_filter_async = in_thread(update_by_filter)


def _row(document: Document) -> dict[str, Any]:
    fields = document.to_dict(flatten=False)
    rest = {
        name: fields[name] for name in fields.keys() - {"id", "content", "meta", "score"} if fields[name] is not None
    }
    if document.content is None:
        rest["content"] = None
    return row(document.id, document.content or "", {**document.meta, _REST: rest} if rest else document.meta)


def _document(found: Hit | Stored, score: float | None = None) -> Document:
    rest = found.metadata.get(_REST, {})
    metadata = {name: value for name, value in found.metadata.items() if name != _REST}
    fields = {"id": found.id, "content": found.text, "meta": metadata, "score": score}
    return Document.from_dict({**fields, **rest})


def _passage(hit: Hit) -> Document:
    start, stop = hit.span or (0, len(hit.text))
    more = {"source_id": hit.id, **place(hit), "span": [start, stop]}
    whole = _document(hit)
    return Document(f"{hit.id}#{start}-{stop}", hit.text[start:stop], meta={**whole.meta, **more}, score=hit.score)
