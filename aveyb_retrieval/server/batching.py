"""One model for all indexes: queries that arrive while others are being encoded are encoded together."""

from __future__ import annotations

import itertools
import math
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.server.ticket import CURRENT, check_current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aveyb_retrieval.encoder.embedders.embedder import Embedder
    from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder
    from aveyb_retrieval.indexes.types import Encoded, FloatArray
    from aveyb_retrieval.server.ticket import Ticket

MAX_BATCH = 64  # queries encoded together
MAX_CHARACTERS = 16_384  # of them together, unless a single request has more


@dataclass(order=True)
class _Request:
    """Queries of one call; what is short goes first, since whoever asks many or long ones waits anyhow."""

    characters: float
    number: int
    queries: list[str] = field(compare=False)
    ticket: Ticket | None = field(compare=False)
    vectors: Future[FloatArray] = field(compare=False, default_factory=Future)


class BatchedModel:
    """A model whose `encode_queries` may be called from many threads and encodes their queries in batches.

    What else a search needs of it, it does as the model does.

    One thread encodes. It takes what waits, up to `MAX_BATCH` queries, and never waits for more: a lone query is
    encoded at once, and batches grow only as fast as queries arrive. Vectors do not depend on the batch. Queries whose
    request nobody waits for any more are not encoded.

    Args:
        model: The model.
        observe: Called with the number of queries of each batch.
    """

    def __init__(self, model: Embedder | SentenceEmbedder, observe: Callable[[int], None] = lambda size: None) -> None:
        self.model = model
        self.dim, self.model_name, self.fingerprint = model.dim, model.model_name, model.fingerprint
        self._observe = observe
        self._waiting: queue.PriorityQueue[_Request] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._encode_all, name="encode-queries", daemon=True)
        self._thread.start()

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
        """Encode queries into `[n, d]` float32 unit rows, together with those of other threads.

        Raises:
            AveyBError: the model was closed.
            Refusal: nobody waits for the answer of this thread's request any more.
        """
        check_current()
        length = sum(map(len, queries))
        request = _Request(length, next(self._numbers), list(queries), CURRENT.get())
        with self._closing:  # nothing is put behind the end
            if self._closed:
                raise AveyBError(f"{self.model_name}: closed; it encodes no more queries")
            self._waiting.put(request)
        return request.vectors.result()

    def close(self) -> None:
        """Encode what waits, and end the thread."""
        with self._closing:
            self._closed = True
            self._waiting.put(_Request(math.inf, next(self._numbers), [], None))  # the last of all
        self._thread.join()

    def _encode_all(self) -> None:
        while (first := self._waiting.get()).queries:
            self._encode(self._gather(first))

    def _gather(self, first: _Request) -> list[_Request]:
        """Take what waits beside a first request and is as short."""
        requests, size, characters = [first], len(first.queries), first.characters
        while size < MAX_BATCH and characters < MAX_CHARACTERS:
            try:
                request = self._waiting.get_nowait()
            except queue.Empty:
                break
            if not request.queries:  # the end: to be seen again
                self._waiting.put(request)
                break
            requests.append(request)
            size += len(request.queries)
            characters += request.characters
        return requests

    def _encode(self, requests: list[_Request]) -> None:
        requests = [request for request in requests if self._is_waited_for(request)]
        if not requests:
            return
        try:
            vectors = self.model.encode_queries([query for request in requests for query in request.queries])
        except Exception as error:  # whoever asked gets it, whatever it is
            if len(requests) == 1:
                requests[0].vectors.set_exception(error)
                return
            for request in requests:  # one bad query is no reason to fail the others
                self._encode([request])
            return
        self._observe(len(vectors))
        start = 0
        for request in requests:
            stop = start + len(request.queries)
            request.vectors.set_result(vectors[start:stop])
            start = stop

    @staticmethod
    def _is_waited_for(request: _Request) -> bool:
        over = request.ticket.over if request.ticket is not None else None
        if over is not None:
            request.vectors.set_exception(over)
        return over is None
