"""Events of searches: what each says, which steps take the time, and who gets them."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Index, Retriever, SearchEvent, build_index
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.step_times import STEPS
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

WAIT_SECONDS = 0.15
EVENTS: list[SearchEvent] = []


def note(event: SearchEvent) -> None:
    EVENTS.append(event)


class SlowEmbedder(FakeEmbedder):
    def encode_queries(self, queries: Any) -> Any:
        time.sleep(WAIT_SECONDS)
        return super().encode_queries(queries)


class SlowReranker:
    def predict(self, pairs: Any, **options: Any) -> Any:
        time.sleep(WAIT_SECONDS)
        return np.arange(len(pairs), dtype=np.float32)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("events") / "ix"
    build_index(make_documents(60), root, model=FakeEmbedder())
    return root


def events_of(root: Path, **options: Any) -> tuple[Retriever, list[SearchEvent]]:
    events: list[SearchEvent] = []
    options = {"model": FakeEmbedder(), **options}
    return Retriever.load(root, on_search=events.append, **options), events


def test_an_event_says_what_was_searched(root: Path) -> None:
    retriever, events = events_of(root)
    hits = retriever.search("word1 word2", 3, unit="passage")
    assert len(events) == 1
    event = events[0]
    assert (event.index, event.version) == (str(root), retriever.version)
    assert (event.queries, event.k, event.mode, event.unit) == (1, 3, "hybrid", "passage")
    assert event.hits == len(hits) > 0
    assert tuple(event.steps) == STEPS
    assert 0 < sum(event.steps.values()) <= event.seconds
    assert event.steps["rerank"] == 0


def test_each_way_to_search_gives_one_event(root: Path) -> None:
    retriever, events = events_of(root)
    lists = retriever.search(["word1", "word2", "word3"], 2, mode="lexical")
    ranked = retriever.rank(["word1"], 4)
    retriever.search_vectors(np.ones((2, FakeEmbedder().dim)), 1)
    assert [event.queries for event in events] == [3, 1, 2]
    assert [event.hits for event in events] == [sum(map(len, lists)), len(ranked[0]), 2]
    assert [event.mode for event in events] == ["lexical", "hybrid", "dense"]
    lexical, hybrid, dense = [event.steps for event in events]
    assert lexical["encode"] == lexical["nearest"] == 0 < lexical["words"]
    assert min(hybrid["encode"], hybrid["nearest"], hybrid["hits"]) > 0
    assert dense["encode"] == dense["words"] == 0 < dense["nearest"]


@pytest.mark.parametrize(
    ("step", "model", "reranker"),
    [("encode", SlowEmbedder(), None), ("rerank", FakeEmbedder(), SlowReranker())],
    ids=["encode", "rerank"],
)
def test_a_slow_step_is_the_one_that_takes_the_time(
    root: Path, step: str, model: FakeEmbedder, reranker: Any
) -> None:
    retriever, events = events_of(root, model=model)
    retriever.search("word1 word2", 3, rerank=reranker)
    (event,) = events
    assert event.steps[step] >= WAIT_SECONDS
    # the outer step stands still meanwhile
    others = {name: seconds for name, seconds in event.steps.items() if name != step}
    assert event.seconds >= WAIT_SECONDS + sum(others.values())


def test_a_search_that_fails_gives_no_event(root: Path) -> None:
    retriever, events = events_of(root)
    with pytest.raises(ConfigError):
        retriever.search("word1", 0)
    assert events == []


def test_what_a_callback_raises_the_search_raises(root: Path) -> None:
    def fail(event: SearchEvent) -> None:
        raise ZeroDivisionError(event.mode)

    retriever = Retriever.load(root, model=FakeEmbedder(), on_search=fail)
    with pytest.raises(ZeroDivisionError, match="lexical"):
        retriever.search("word1", mode="lexical")


async def wait(event: SearchEvent) -> None:
    EVENTS.append(event)


@pytest.mark.parametrize("callback", [5, "note", wait])
def test_what_takes_no_events_is_refused(root: Path, callback: Any) -> None:
    with pytest.raises(ConfigError, match=r"on_search=.*must be a function"):
        Retriever.load(root, model=FakeEmbedder(), on_search=callback)
    with pytest.raises(ConfigError, match=r"on_search=.*must be a function"):
        Retriever.load({"a": root}, on_search=callback)


def test_a_callback_may_search(root: Path) -> None:
    inner, inner_events = events_of(root)
    steps: list[dict[str, float]] = []

    def search_again(event: SearchEvent) -> None:
        steps.append(dict(event.steps))
        inner.search("word2", mode="lexical")

    outer = Retriever.load(root, model=FakeEmbedder(), on_search=search_again)
    outer.search("word1", mode="lexical")
    assert len(steps) == len(inner_events) == 1


def test_parts_copies_and_several_indexes_report_too(root: Path, tmp_path: Path) -> None:
    EVENTS.clear()
    retriever = Retriever.load(root, model=FakeEmbedder(), on_search=note)
    retriever.visible({"_id": {"$regex": "1"}}).search("word1", mode="lexical")
    copied = pickle.loads(pickle.dumps(Retriever.load(root, on_search=note)))
    copied.search("word1", mode="lexical")
    build_index(make_documents(3), tmp_path / "other", model=FakeEmbedder())
    both = Retriever.load(
        {"a": root, "b": tmp_path / "other"}, model=FakeEmbedder(), on_search=note
    )
    both.search("word1", mode="lexical")
    both.visible({"_id": {"$ne": "none"}}).search("word1", mode="lexical")
    assert [event.index for event in EVENTS] == [str(root), str(root), "a, b", "a, b"]


def test_an_index_reports_the_version_that_it_searched(tmp_path: Path) -> None:
    events: list[SearchEvent] = []
    build_index(make_documents(3), tmp_path / "ix", model=FakeEmbedder())
    with Index.open(tmp_path / "ix", model=FakeEmbedder(), on_search=events.append) as index:
        index.search("word1", mode="lexical")
        version = index.upsert([{"_id": "new", "text": "word1"}]).version
        index.search("word1", mode="lexical")
    assert [event.version for event in events][1] == version != events[0].version
