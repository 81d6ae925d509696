"""Several writers, readers through many versions, a crowd: shortly here, longer in slow tests, for
hours by `load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexLockedError
from aveyb_retrieval.indexes.store.manifest import IndexDirectory
from aveyb_retrieval.indexes.store.place import CLEAN_EVERY_VERSIONS
from rigs.faults import alone, load
from rigs.faults.campaign import read
from rigs.faults.processes import Child, child, quiet
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path


def add(connection: Connection, root: Path, part: int) -> None:
    """Add documents of a part, however often another writer is in the way; say how
    often that was.
    """
    quiet()
    connection.send("ready")
    connection.recv()
    refused = 0
    while True:
        try:
            one_change.add(
                make_documents(5, seed=part, first=100 * part), root, model=FakeEmbedder()
            )
        except IndexLockedError:
            refused += 1
        else:
            connection.send(refused)
            return


def test_of_several_writers_one_writes_and_nothing_is_lost(tmp_path: Path) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(20), root, model=FakeEmbedder())
    writers = [Child(add, root, part) for part in range(1, 5)]
    for each in writers:
        assert each.answer() == "ready"
    for each in writers:
        each.connection.send("go")
    refused = [each.answer() for each in writers]
    assert sum(refused) > 0, "they came one after the other"
    with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
        assert len(retriever) == 40
    assert problems_of(root) == []


def build(connection: Connection, root: Path, count: int) -> None:
    quiet()
    connection.send("ready")
    connection.recv()
    try:
        connection.send(build_index(make_documents(count), root, model=FakeEmbedder()).documents)
    except AveyBError as error:
        connection.send(type(error).__name__)


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_of_two_builds_that_race_one_is_refused(rounds: int, tmp_path: Path) -> None:
    for number in range(rounds):
        root = tmp_path / f"{number}"
        racers = [Child(build, root, count) for count in (20, 30)]
        for each in racers:
            assert each.answer() == "ready"
        for each in racers:
            each.connection.send("go")
        outcomes = {each.answer() for each in racers}
        (built,) = outcomes - {"ConfigError", "IndexLockedError"}
        with Retriever.load(root, model=FakeEmbedder(), verify=True) as retriever:
            assert len(retriever) == built


def test_a_build_that_comes_second_is_told_that_there_is_one(tmp_path: Path) -> None:
    build_index(make_documents(20), tmp_path / "ix", model=FakeEmbedder())
    with pytest.raises(ConfigError, match="already"):
        build_index(make_documents(30), tmp_path / "ix", model=FakeEmbedder())


@pytest.mark.parametrize("versions", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_a_reader_keeps_its_version_through_many_and_its_files_go_with_it(
    versions: int, tmp_path: Path
) -> None:
    root = tmp_path / "ix"
    build_index(make_documents(40), root, model=FakeEmbedder())
    first = IndexDirectory(root).visible()
    with child(read, root) as reader:
        assert reader.answer() == 40
        for number in range(versions):
            one_change.upsert(
                make_documents(2, seed=number, first=number % 50), root, model=FakeEmbedder()
            )
            if number % 10 == 5:
                one_change.compact(root)
            assert number % 10 or reader.ask("again") == ""
        assert reader.ask("again") == ""
        names = IndexDirectory(root).versions()
        assert names[0] == first, "the version that is read is kept"
        assert len(names) <= 1 + CLEAN_EVERY_VERSIONS, "those between are not"
        one_change.compact(root)
        assert IndexDirectory(root).versions() == [first, IndexDirectory(root).visible()]
    one_change.compact(root)
    assert IndexDirectory(root).versions() == [IndexDirectory(root).visible()]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [40.0])
def test_nothing_grows_beside_a_writer_that_merges(seconds: float, tmp_path: Path) -> None:
    for usage in load.crowd(tmp_path / "ix", seconds, readers=3, threads=4):
        print(f"\n{usage}")
        assert usage.growth("memory") < 48, usage
        assert usage.growth("descriptors") < 40, usage
        assert not usage.disk or usage.growth("disk") < 4, usage
    assert problems_of(tmp_path / "ix") == []


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_threads_find_under_new_filters_what_a_search_alone_finds(
    seconds: float, tmp_path: Path
) -> None:
    compared = alone.compare(tmp_path / "ix", seconds)
    assert compared.lists > 0
    assert not compared.different, str(compared)
