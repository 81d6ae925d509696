"""Values of documents that searches share: each is read once, and the last ones stay."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Values of documents of one version, by number, as far as searches needed them.

    It may be used from many threads.
    """

    def __init__(self, most: int) -> None:
        """Keep `most` values; of more, the last half of them."""
        self._most = most
        self._known: dict[int, Value] = {}
        self._lock = threading.Lock()

    def get(
        self, docs: Sequence[int], read: Callable[[Sequence[int]], Mapping[int, Value]]
    ) -> dict[int, Value]:
        """Return the values of some documents; `read` gives those that are not known.

        Documents that `read` does not know either are left out.
        """
        known = self._known
        values = {doc: known[doc] for doc in docs if doc in known}
        new = [doc for doc in docs if doc not in values]
        if new:
            read_values = read(new)
            self.add(read_values)
            values |= read_values
        return {doc: values[doc] for doc in docs if doc in values}

    def add(self, values: Mapping[int, Value]) -> None:
        """Remember values that were read anyway."""
        with self._lock:
            known = {**self._known, **values}
            if len(known) > self._most:
                known = dict(islice(known.items(), len(known) - self._most // 2, None))
            self._known = known
