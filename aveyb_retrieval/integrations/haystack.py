"""Haystack: a document store that is an index, and a retriever component over it (extra
`haystack`).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import ConfigError, Index
from aveyb_retrieval.errors import extra_for
from aveyb_retrieval.integrations.adapting import in_thread, passage, row, with_place

with extra_for("the adapter of Haystack", "haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aveyb_retrieval import Document as Stored
    from aveyb_retrieval import Hit

# the metadata field for what a Document has besides id, content and meta
_OTHER_FIELDS = "_haystack"
_ORDER = {">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
_NOTHING: dict[str, Any] = {"$not": {}}


class AveyBDocumentStore:
    """An index directory; if there is none, it is made empty with these options of `build_index`.

    An index that is there is opened with `model=`, if that is given.

    Documents are encoded by the index's own model, whole and of any length: a pipeline needs no
    embedder and no splitter. Embeddings that documents bring are kept and given back, but not
    searched.
    """

    def __init__(self, path: str, **options: Any) -> None:
        self.path, self._options = path, options
        self._index = Index.open(path, create=True, **options)

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, path=str(self.path), **self._options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AveyBDocumentStore:
        return default_from_dict(cls, data)

    def search(
        self, query: str, top_k: int, filters: dict[str, Any] | None = None, **options: Any
    ) -> list[Document]:
        """Find documents, or passages with `unit="passage"`.

        `options` are those of `Retriever.search`. Documents with the same words are all given,
        unless `fold=True` asks for one of them. Of passages with the same words the best one is
        given, and its meta names the documents of the others as `duplicates`.
        """
        if top_k == 0:
            return []
        options = {"fold": options.get("unit") == "passage", **options}
        hits = self._index.search(query, top_k, filter=translate(filters), **options)
        return [
            _passage(hit) if options.get("unit") == "passage" else _document(hit, score=hit.score)
            for hit in hits
        ]

    def _metas(self, filters: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        return map(_metadata, self._index.documents(translate(filters)))

    def count_documents(self) -> int:
        return self._index.count()

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        return self._index.count(translate(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        return [_document(stored) for stored in self._index.documents(translate(filters))]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents and return how many; by default ids that are there already are refused
        (FAIL).

        Raises ValueError if this is no list of documents, DuplicateDocumentError if an id is there
        already, InputError if the meta field `title` is no text, or if `_id` is not the document's
        id.
        """
        if not isinstance(documents, list) or not all(
            isinstance(document, Document) for document in documents
        ):
            raise ValueError("write_documents needs a list of Documents")
        ids = [document.id for document in documents]
        stored_ids = {stored.id for stored in self._index.get(ids, missing_ok=True)}
        chosen: dict[str, Document] = {}
        for document in documents:
            is_new = document.id not in stored_ids and document.id not in chosen
            if is_new or policy == DuplicatePolicy.OVERWRITE:
                chosen[document.id] = document
            elif policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(
                    f"{self.path}: the id {document.id!r} is there already; nothing was written"
                )
        self._index.upsert([_row(document) for document in chosen.values()])
        return len(chosen)

    def delete_documents(self, document_ids: list[str]) -> None:
        if document_ids:
            self._index.delete(document_ids, missing_ok=True)

    def delete_all_documents(self) -> None:
        self._index.delete(where={})

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        return self._index.delete(where=translate(filters) or {}).deleted

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set meta fields of the documents that satisfy a filter, without encoding; return their
        number.
        """
        report = self._index.update_metadata(meta, where=translate(filters) or {})
        return report.updated + report.unchanged

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the fields of all metadata, each with the type of its first value."""
        fields: dict[str, dict[str, str]] = {}
        for meta in self._metas():
            for name, value in meta.items():
                fields.setdefault(name, {"type": type(value).__name__})
        return fields

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field; None if no document has one."""
        values = self._values(metadata_field)
        return {"min": min(values, default=None), "max": max(values, default=None)}

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Count the different values of fields in the documents that satisfy a filter."""
        return {
            name.removeprefix("meta."): len(_unique(self._values(name, filters)))
            for name in metadata_fields
        }

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int | None = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of a field's different values, ordered by their texts, and the number of
        all.
        """
        term = "" if search_term is None else search_term.lower()
        values = [
            value
            for value in _unique(self._values(metadata_field, filters))
            if term in str(value).lower()
        ]
        return values[from_ : None if size is None else from_ + size], len(values)

    def _values(self, field: str, filters: dict[str, Any] | None = None) -> list[Any]:
        name = field.removeprefix("meta.")  # callers may leave it out
        return [meta[name] for meta in self._metas(filters) if meta.get(name) is not None]

    count_documents_async = in_thread(count_documents)
    count_documents_by_filter_async = in_thread(count_documents_by_filter)
    filter_documents_async = in_thread(filter_documents)
    write_documents_async = in_thread(write_documents)
    delete_documents_async = in_thread(delete_documents)
    delete_all_documents_async = in_thread(delete_all_documents)
    delete_by_filter_async = in_thread(delete_by_filter)
    update_by_filter_async = in_thread(update_by_filter)
    get_metadata_fields_info_async = in_thread(get_metadata_fields_info)
    get_metadata_field_min_max_async = in_thread(get_metadata_field_min_max)
    count_unique_metadata_by_filter_async = in_thread(count_unique_metadata_by_filter)
    get_metadata_field_unique_values_async = in_thread(get_metadata_field_unique_values)


def _row(document: Document) -> dict[str, Any]:
    fields = document.to_dict(flatten=False)
    other_fields = {
        name: fields[name]
        for name in fields.keys() - {"id", "content", "meta", "score"}
        if fields[name] is not None
    }
    if document.content is None:
        other_fields["content"] = None
    metadata = {**document.meta, _OTHER_FIELDS: other_fields} if other_fields else document.meta
    return row(document.id, document.content or "", metadata)


def _document(source: Hit | Stored, score: float | None = None) -> Document:
    fields = {"id": source.id, "content": source.text, "meta": _metadata(source), "score": score}
    return Document.from_dict({**fields, **source.metadata.get(_OTHER_FIELDS, {})})


def _metadata(source: Hit | Stored) -> dict[str, Any]:
    return {name: value for name, value in source.metadata.items() if name != _OTHER_FIELDS}


def _passage(hit: Hit) -> Document:
    text, start, stop = passage(hit)
    meta = with_place(hit, _metadata(hit), (start, stop), source_id=hit.id)
    return Document(f"{hit.id}#{start}-{stop}", text, meta=meta, score=hit.score)


@component
class AveyBRetriever:
    """Finds the best documents, or with `search_options={"unit": "passage"}` the best passages, by
    words and vectors.

    A passage is a `Document` with the passage as content; its meta are the document's as they are,
    and `aveyb`: `source_id`, `title`, `heading`, `span` and, of a PDF, `page` and `page_label`.
    `filter_policy` says how `filters` of a run and of the component are joined; `search_options`
    are those of `Retriever.search`.

    Raises ConfigError if `document_store` is no such store.
    """

    def __init__(
        self,
        document_store: AveyBDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: FilterPolicy | str = FilterPolicy.REPLACE,
        search_options: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(document_store, AveyBDocumentStore):
            raise ConfigError(
                f"document_store={document_store!r}: give an AveyBDocumentStore, which opens an"
                " index"
            )
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        if isinstance(filter_policy, str):
            filter_policy = FilterPolicy.from_str(filter_policy)
        self.filter_policy = filter_policy
        self.search_options = search_options or {}

    def to_dict(self) -> dict[str, Any]:
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
        parameters = dict(data["init_parameters"])
        parameters["document_store"] = AveyBDocumentStore.from_dict(parameters["document_store"])
        return default_from_dict(cls, {**data, "init_parameters": parameters})

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        """Search; `filters` and `top_k` override or join those of the component."""
        where = apply_filter_policy(self.filter_policy, self.filters, filters)
        count = self.top_k if top_k is None else top_k
        documents = self.document_store.search(query, count, where, **self.search_options)
        return {"documents": documents}

    run_async = component.output_types(documents=list[Document])(in_thread(run))


def translate(filters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Translate filters, or raise FilterError; None if there are none."""
    if not filters:
        return None
    if "field" in filters:
        return _comparison(filters)
    operator, conditions = _part(filters, "operator"), _part(filters, "conditions")
    parts = [translate(condition) or {} for condition in conditions]
    if operator not in ("AND", "OR", "NOT"):
        raise FilterError(f"the operator {operator!r} joins no conditions; known are AND, OR, NOT")
    if not parts:
        raise FilterError(f"{operator} has no conditions")
    return {"$not": {"$and": parts}} if operator == "NOT" else {f"${operator.lower()}": parts}


def _comparison(filters: Mapping[str, Any]) -> dict[str, Any]:
    operator, value = _part(filters, "operator"), _part(filters, "value")
    name = filters["field"]
    if name in ("id", "content", "score", "embedding", "blob"):
        raise FilterError(
            f"the field {name!r} cannot be filtered on; metadata can, as 'meta.{name}'"
        )
    field = name.removeprefix("meta.")
    if operator in _ORDER:
        return _ordered(field, operator, value)
    if operator in ("==", "!="):
        equal = _equal(field, value)
        return equal if operator == "==" else {"$not": equal}
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"{operator!r} on {name!r} needs a list, not {value!r}")
        among = {"$or": [_equal(field, element) for element in value]} if value else _NOTHING
        return among if operator == "in" else {"$not": among}
    raise FilterError(
        f"the operator {operator!r} is not known; known are ==, !=, {', '.join(_ORDER)}, in, not in"
    )


def _equal(field: str, value: Any) -> dict[str, Any]:
    if value is None and field == "title":  # of a document without a title it is empty
        return {field: ""}
    if value is None:  # a missing field is None, too
        return {"$or": [{field: {"$exists": False}}, {field: None}]}
    if isinstance(value, (list, dict)):
        raise FilterError(
            f"{field!r} cannot be compared with {value!r}; a list meets a condition if an element"
            " does"
        )
    return {field: value.isoformat() if isinstance(value, datetime) else value}


def _ordered(field: str, operator: str, value: Any) -> dict[str, Any]:
    if value is None:  # nothing is above or below nothing
        return _NOTHING
    if isinstance(value, datetime):
        value = value.isoformat()
    elif isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError as error:
            raise FilterError(
                f"{operator} on {field!r}: {value!r} is not an ISO date; other strings have no"
                " order"
            ) from error
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FilterError(f"{operator} on {field!r} needs a number or an ISO date, not {value!r}")
    return {field: {_ORDER[operator]: value}}


def _part(filters: Mapping[str, Any], key: str) -> Any:
    if key not in filters:
        raise FilterError(f"the filter {dict(filters)!r} has no {key!r}")
    return filters[key]


def _unique(values: Iterable[Any]) -> list[Any]:
    """Different values, ordered by their texts; 1, 1.0, "1" and True differ."""
    by_text = {(str(value), type(value).__name__): value for value in values}
    return [by_text[key] for key in sorted(by_text)]
