"""A model that encodes the queries of several requests together."""

from __future__ import annotations

import itertools
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.types import WordVectors, token_width
from aveyb_retrieval.server.tickets import CURRENT, check_current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aveyb_retrieval.encoder.embedders.embedder import Embedder
    from aveyb_retrieval.encoder.embedders.windows import WindowEncoder
    from aveyb_retrieval.indexes.types import Encoded, FloatArray
    from aveyb_retrieval.server.tickets import Ticket

MAX_BATCH_QUERIES = 64  # queries encoded together
MAX_BATCH_CHARACTERS = 16_384  # of them together, unless a single request has more


@dataclass(order=True)
class _Call:
    """Queries of one call.

    Short ones go first: whoever asks many or long ones waits anyhow.
    """

    characters: int
    number: int
    queries: list[str] = field(compare=False)
    ticket: Ticket | None = field(compare=False)
    vectors: Future[FloatArray] = field(compare=False, default_factory=Future)


class BatchedModel:
    """A model whose `encode_queries` may be called from many threads, and encodes their queries in
    batches.

    One thread at a time encodes, for all who wait. It takes the queries that wait, up to
    `MAX_BATCH_QUERIES`, and never waits for more: a lone query is encoded at once, and batches grow
    only as fast as queries arrive. Vectors do not depend on the batch. Queries of a request that
    nobody waits for any more are not encoded. `observe` is called with the number of queries of
    each batch.
    """

    def __init__(
        self, model: Embedder | WindowEncoder, observe: Callable[[int], None] = lambda size: None
    ) -> None:
        self.model = model
        self.dim, self.model_name, self.fingerprint = model.dim, model.model_name, model.fingerprint
        self.token_dim = token_width(model)
        if isinstance(model, WordVectors):
            self.word_vectors = model.word_vectors
        self._observe = observe
        self._waiting: queue.PriorityQueue[_Call] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed = False
        self._encoding = threading.Lock()

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[Encoded]:
        """Encode (prefix, text) pairs, in the calling thread."""
        for encoded in self.model.encode_documents(documents):
            check_current()
            yield encoded

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[FloatArray]:
        """Encode texts into token vectors, in the calling thread."""
        check_current()
        return self.model.token_vectors(texts, prompt=prompt)

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Encode queries into `[n, d]` float32 unit rows, together with those of other threads."""
        check_current()
        if self._closed:
            raise AveyBError(f"{self.model_name}: closed; it encodes no more queries")
        characters = sum(map(len, queries))
        call = _Call(characters, next(self._numbers), list(queries), CURRENT.get())
        self._waiting.put(call)
        with self._encoding:
            while not call.vectors.done():  # another thread may have encoded it
                self._encode(self._gather())
        return call.vectors.result()

    def close(self) -> None:
        """Take no more queries; those that wait are encoded."""
        self._closed = True

    def _gather(self) -> list[_Call]:
        """Take calls from the queue, until they fill a batch or none is left."""
        calls, size, characters = [self._waiting.get_nowait()], 0, 0
        while True:
            size += len(calls[-1].queries)
            characters += calls[-1].characters
            is_full = size >= MAX_BATCH_QUERIES or characters >= MAX_BATCH_CHARACTERS
            if is_full or self._waiting.empty():
                return calls
            calls.append(self._waiting.get_nowait())

    def _encode(self, gathered: list[_Call]) -> None:
        calls = []
        for call in gathered:
            if call.ticket is None or (over := call.ticket.over) is None:
                calls.append(call)
            else:
                call.vectors.set_exception(over)
        if not calls:
            return
        try:
            vectors = self.model.encode_queries([query for call in calls for query in call.queries])
        except Exception as error:  # whoever asked gets it, whatever it is
            if len(calls) == 1:
                calls[0].vectors.set_exception(error)
                return
            for call in calls:  # one bad query is no reason to fail the others
                self._encode([call])
            return
        self._observe(len(vectors))
        start = 0
        for call in calls:
            stop = start + len(call.queries)
            call.vectors.set_result(vectors[start:stop])
            start = stop
