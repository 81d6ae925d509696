"""Queries of many threads are encoded together, each gets its own vectors, and a bad one fails
alone.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aveyb_retrieval import Embedder
from aveyb_retrieval.errors import AveyBError, InputError
from aveyb_retrieval.indexes.types import WordVectors
from aveyb_retrieval.server.batching import MAX_BATCH_QUERIES, BatchedModel
from tests.server.conftest import CountingEmbedder


class Held(CountingEmbedder):
    """Encodes nothing until it is let go; refuses the query "bad"."""

    def __init__(self):
        super().__init__()
        self.gate, self.entered, self.calls = threading.Event(), threading.Event(), []

    def encode_queries(self, queries):
        self.entered.set()
        assert self.gate.wait(30)
        self.calls.append(list(queries))
        if "bad" in queries:
            raise InputError("a bad query")
        return super().encode_queries(queries)


def hold(pool, model, batched, requests):
    """Send requests from threads of their own: the first is being encoded, the others wait."""
    futures = [pool.submit(batched.encode_queries, requests[0])]
    assert model.entered.wait(30)
    futures += [pool.submit(batched.encode_queries, queries) for queries in requests[1:]]
    while batched._waiting.qsize() < len(requests) - 1:
        threading.Event().wait(0.01)
    return futures


def test_waiting_queries_are_encoded_together_and_a_bad_one_fails_alone():
    model, sizes = Held(), []
    batched = BatchedModel(model, sizes.append)
    queries = [f"word{i}" for i in range(20)] + ["bad"]
    with ThreadPoolExecutor(len(queries)) as pool:
        futures = hold(pool, model, batched, [[query] for query in queries])
        model.gate.set()
        for query, future in zip(queries[:-1], futures, strict=False):
            np.testing.assert_allclose(
                future.result(), CountingEmbedder().encode_queries([query]), atol=1e-6
            )
        with pytest.raises(InputError, match="a bad query"):
            futures[-1].result()
    # together, then one by one for the bad one's sake
    assert list(map(len, model.calls)) == [1, 20, *[1] * 20]
    assert sizes == [1] * 20
    batched.close()


def test_batches_have_a_limit_and_requests_stay_whole():
    model = Held()
    batched = BatchedModel(model)
    with ThreadPoolExecutor(8) as pool:
        futures = hold(pool, model, batched, [[f"q{i}-{j}" for j in range(40)] for i in range(8)])
        model.gate.set()
        assert all(future.result().shape == (40, 16) for future in futures)
    assert list(map(len, model.calls)) == [40, 80, 80, 80, 40]  # until MAX_BATCH_QUERIES is reached
    assert MAX_BATCH_QUERIES == 64
    batched.close()


def test_a_closed_model_says_so_and_what_waits_is_still_encoded():
    model = Held()
    batched = BatchedModel(model)
    with ThreadPoolExecutor(2) as pool:
        future = pool.submit(batched.encode_queries, ["word1"])
        assert model.entered.wait(30)
        closing = pool.submit(batched.close)
        model.gate.set()
        closing.result()
        assert future.result().shape == (1, 16)
    with pytest.raises(AveyBError, match="closed"):
        batched.encode_queries(["word1"])


def test_best_sentences_are_chosen_by_the_same_vectors_as_without_a_server():
    embedder = Embedder.load()
    batched = BatchedModel(embedder)
    assert isinstance(batched, WordVectors)
    assert batched.token_dim == embedder.dim
    assert np.array_equal(
        batched.word_vectors(["the gate"])[0], embedder.word_vectors(["the gate"])[0]
    )
    assert not isinstance(BatchedModel(CountingEmbedder()), WordVectors), (
        "its words have to be equal"
    )
