"""A process that was forked from one with an open index says so, instead of waiting for threads
that are not there.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import AveyBError, Index, Retriever, build_index
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path


def _try(send: Any, actions: list[Any]) -> None:
    for act in actions:
        try:
            send.send(f"done: {act()}")
        except AveyBError as error:
            send.send(str(error))


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
def test_a_forked_process_says_what_to_do(tmp_path: Path) -> None:
    build_index([{"_id": "a", "text": "hello world"}], tmp_path / "ix", model=FakeEmbedder())
    retriever, index = (
        kind.load(tmp_path / "ix", model=FakeEmbedder()) for kind in (Retriever, Index)
    )
    retriever.search("hello")
    actions = [
        lambda: retriever.search("hello"),
        lambda: len(list(retriever.documents())),
        lambda: Retriever.load(tmp_path / "ix"),
        lambda: index.upsert([{"_id": "b", "text": "new"}]),
        lambda: build_index([{"_id": "b", "text": "new"}], tmp_path / "new", model=FakeEmbedder()),
    ]
    receive, send = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lance and of Python: just that is meant
        child = multiprocessing.get_context("fork").Process(target=_try, args=(send, actions))
        child.start()
    for _ in actions:
        assert receive.poll(30), "the child waits"
        assert "start workers by 'spawn' or 'forkserver'" in receive.recv()
    child.join(30)
    assert retriever.search("hello")[0].id == "a"  # here it goes on
