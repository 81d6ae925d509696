"""What Haystack asks of the metadata of a document store: fields, values, extremes."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.integrations.haystack.filters import field_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make the asynchronous twin of a method: it runs in a thread."""

    @functools.wraps(method)
    async def run(*arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *arguments, **options)

    return run


class MetadataQueries(ABC):
    """Answers from the metadata of all documents, or of those that satisfy a filter; each reads them all."""

    @abstractmethod
    def _metas(self, filters: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the metadata of the documents that satisfy a filter."""

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the fields of all metadata, each with the type of its first value."""
        found: dict[str, dict[str, str]] = {}
        for meta in self._metas():
            for name, value in meta.items():
                found.setdefault(name, {"type": type(value).__name__})
        return found

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field; None where no document has one."""
        values = self._values(metadata_field)
        return {"min": min(values, default=None), "max": max(values, default=None)}

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """Count the different values of fields in the documents that satisfy a filter."""
        return {field_name(name): len(_unique(self._values(name, filters))) for name in metadata_fields}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int | None = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of a field's different values, ordered by their texts, and how many there are."""
        found = _unique(self._values(metadata_field, filters))
        wanted = [value for value in found if search_term is None or search_term.lower() in str(value).lower()]
        return wanted[from_ : None if size is None else from_ + size], len(wanted)

    def _values(self, field: str, filters: dict[str, Any] | None = None) -> list[Any]:
        name = field_name(field)
        return [meta[name] for meta in self._metas(filters) if meta.get(name) is not None]

    get_metadata_fields_info_async = in_thread(get_metadata_fields_info)
    get_metadata_field_min_max_async = in_thread(get_metadata_field_min_max)
    count_unique_metadata_by_filter_async = in_thread(count_unique_metadata_by_filter)
    get_metadata_field_unique_values_async = in_thread(get_metadata_field_unique_values)


def _unique(values: Iterable[Any]) -> list[Any]:
    """Different values, ordered by their texts; 1, 1.0, "1" and True differ."""
    found = {(type(value).__name__, str(value)): value for value in values}
    return [found[key] for key in sorted(found, key=lambda key: (key[1], key[0]))]
