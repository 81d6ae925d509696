"""Values of documents that searches share: each is read once, and the last ones stay."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Values of documents of one version, by number, as far as searches needed them.

    It may be used from many threads.
    """

    def __init__(self, most: int) -> None:
        """Keep the last `most` values."""
        self._most = most
        self._known: dict[int, Value] = {}
        self._lock = threading.Lock()

    def get(
        self, docs: Sequence[int], read: Callable[[Sequence[int]], Mapping[int, Value]]
    ) -> dict[int, Value]:
        """Return the values of some documents; `read` gives those that are not known.

        Documents that `read` does not know either are left out.
        """
        values = self._known
        new = [doc for doc in docs if doc not in values]
        if new:
            read_values = read(new)
            values = {**values, **read_values}
            with self._lock:
                self._known = dict([*self._known.items(), *read_values.items()][-self._most :])
        return {doc: values[doc] for doc in docs if doc in values}
