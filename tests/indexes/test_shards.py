"""Shards: indexes of the shares of a corpus.

Whoever makes them, an index of them is that of one process.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pytest

from aveyb_retrieval import Embedder, Retriever, build_index, build_on_ray, files
from aveyb_retrieval.errors import ConfigError, EngineError, InputError
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.search import scores as search_scores
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.indexes.vectors import StoredShards, encoded_of, shard_of
from tests import one_change
from tests.contents import problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder, InterruptedEmbedder
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.documents.records import Record
    from aveyb_retrieval.indexes.types import EncodedRow

QUERIES = ["word1 word2", "word7 word80 word120", "title 7"]


def build_shards(documents: Any, folder: Path, of: int, **options: Any) -> Path:
    for number in range(of, 0, -1):  # any order
        build_index(
            documents, folder / f"{number}-of-{of}", share=(number, of), index="none", **options
        )
    return folder


def answers(root: Path, embedder: FakeEmbedder) -> list[Any]:
    """Scores of all that is found, by what it is, for each kind of search and query.

    In one part, of one step: at the edge of another the last digits of scores decide which
    documents belong to it.
    """
    found = []
    with (
        Retriever.load(root, model=embedder) as retriever,
        patch.object(search_scores, "DOCUMENTS_SCORED_TOGETHER", 200),
    ):
        for mode in ("dense", "lexical", "hybrid"):
            for unit in ("document", "passage"):
                for hits in retriever.search(QUERIES, k=200, candidates=2000, mode=mode, unit=unit):
                    found.append(
                        {(hit.id, hit.span, hit.passage, hit.title): hit.score for hit in hits}
                    )
    return found


def assert_same_answers(one: Path, other: Path, embedder: FakeEmbedder) -> None:
    """Two indexes answer alike, but for the last digits of scores."""
    expected = [pytest.approx(scores, abs=1e-5) for scores in answers(other, embedder)]
    assert answers(one, embedder) == expected


@pytest.mark.parametrize("of", [1, 3])
def test_an_index_of_shards_answers_as_one_built_here(
    of: int, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    shards = build_shards(documents, tmp_path / "shards", of, model=embedder)
    build_index(None, tmp_path / "of-shards", vectors=shards)
    build_index(documents, tmp_path / "here", model=embedder)
    assert_same_answers(tmp_path / "of-shards", tmp_path / "here", embedder)
    for number in range(1, of + 1):
        with Retriever.load(shards / f"{number}-of-{of}") as retriever:
            ids = [document.id for document in retriever.documents()]
        assert ids
        assert {shard_of(name, of) for name in ids} == {number}


def test_the_tokens_of_documents_are_kept(tmp_path: Path) -> None:
    rows = [{"_id": f"d{i}", "text": f"The valve number {i} is closed. " * 5} for i in range(6)]
    model = Embedder.load()
    shards = build_shards(rows, tmp_path / "shards", 2, model=model, token_vectors="int8")
    build_index(None, tmp_path / "ix", vectors=shards)
    build_index(rows, tmp_path / "here", model=model, token_vectors="int8")
    found = []
    for root in ("ix", "here"):
        with Retriever.load(tmp_path / root, model=model) as retriever:
            hits = retriever.search("valve 3", k=6, rerank="maxsim")
            found.append({hit.id: hit.scores["maxsim"] for hit in hits})
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    with pytest.raises(ConfigError, match="keeps token vectors with granularity 'both'"):
        build_index(None, tmp_path / "other", vectors=shards, granularity="passage")


@pytest.mark.parametrize("granularity", ["document", "passage"])
def test_one_kind_of_vectors(
    granularity: str, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    build_index(documents, tmp_path / "one", model=embedder, granularity=granularity)
    with pytest.raises(
        ConfigError,
        match=f"granularity '{granularity}', .*both has 'both'; choose a granularity of both",
    ):
        build_index(None, tmp_path / "both", vectors=tmp_path / "one", granularity="both")
    build_index(None, tmp_path / "again", vectors=tmp_path / "one")
    found = []
    for root in ("again", "one"):
        with Retriever.load(tmp_path / root, model=embedder) as retriever:
            found.append(
                [
                    (h.id, round(h.score, 5))
                    for h in retriever.search("word1 word2", k=20, mode="dense")
                ]
            )
    assert found[0] == found[1]


def test_an_index_is_given_as_vectors_of_another(
    tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    build_index(documents, tmp_path / "ix", model=embedder)
    one_change.delete(tmp_path / "ix", ["doc-3", "doc-50"])
    one_change.compact(tmp_path / "ix")
    build_index(None, tmp_path / "again", vectors=tmp_path / "ix")
    assert_same_answers(tmp_path / "again", tmp_path / "ix", embedder)
    assert problems_of(tmp_path / "again") == []
    [ours], [theirs] = (
        [r for r in StoredShards(tmp_path / n).documents() if r.id == "doc-7"]
        for n in ("ix", "again")
    )
    for name in ("vector", "passages", "spans"):
        assert np.array_equal(getattr(encoded_of(ours), name), getattr(encoded_of(theirs), name))


def test_an_interrupted_shard_is_continued(
    tmp_path: Path,
    documents: list[dict[str, Any]],
    embedder: FakeEmbedder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 8)
    build_index(documents, tmp_path / "s" / "1", share=(1, 2), model=embedder)
    with pytest.raises(KeyboardInterrupt):
        build_index(documents, tmp_path / "s" / "2", share=(2, 2), model=InterruptedEmbedder(33))
    with pytest.raises(
        InputError,
        match="1 of 2 shards are missing or not complete: 2; build them with --share 2/2",
    ):
        StoredShards(tmp_path / "s")
    with pytest.raises(ConfigError, match="share"):
        build_index(documents, tmp_path / "s" / "2", share=(1, 2), model=embedder)
    counted = InterruptedEmbedder()
    assert build_index(documents, tmp_path / "s" / "2", share=(2, 2), model=counted).resumed
    assert counted.encoded_documents < 40
    build_index(None, tmp_path / "ix", vectors=tmp_path / "s")
    build_index(documents, tmp_path / "here", model=embedder)
    assert_same_answers(tmp_path / "ix", tmp_path / "here", embedder)


def test_a_build_of_shards_is_continued(
    tmp_path: Path,
    documents: list[dict[str, Any]],
    embedder: FakeEmbedder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = build_shards(documents, tmp_path / "shards", 2, model=embedder)
    monkeypatch.setattr(ingest, "BATCH_DOCUMENTS", 8)
    rows = [0]

    def stopping(record: Record) -> EncodedRow:
        rows[0] += 1
        if rows[0] == 40:
            raise KeyboardInterrupt
        return encoded_of(record)

    monkeypatch.setattr(ingest, "encoded_of", stopping)
    with pytest.raises(KeyboardInterrupt):
        build_index(None, tmp_path / "ix", vectors=shards)
    assert build_index(None, tmp_path / "ix", vectors=shards).resumed
    assert rows[0] < len(documents) + 20
    build_index(documents, tmp_path / "here", model=embedder)
    assert_same_answers(tmp_path / "ix", tmp_path / "here", embedder)


def test_shards_are_added_and_upserted(
    tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    build_index(documents[:60], tmp_path / "ix", model=embedder)
    more = build_shards(documents[60:], tmp_path / "more", 2, model=embedder)
    assert one_change.add(None, tmp_path / "ix", vectors=more).documents == len(documents)
    changed = [{**documents[5], "text": "word1 word2 word3"}, documents[6]]
    build_index(changed, tmp_path / "changed", model=embedder)
    one_change.upsert(None, tmp_path / "ix", vectors=tmp_path / "changed")
    one_change.compact(tmp_path / "ix")
    build_index([*documents[:5], *changed, *documents[7:]], tmp_path / "here", model=embedder)
    assert_same_answers(tmp_path / "ix", tmp_path / "here", embedder)


def test_lines_that_are_no_documents_are_counted_once(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    rows: list[Any] = [
        *make_documents(30),
        {"_id": "x"},
        {"_id": "", "text": "y"},
        *make_documents(10, first=50),
    ]
    for number in (1, 2, 3):
        with pytest.raises(InputError, match="no text"):
            build_index(rows, tmp_path / "s" / str(number), share=(number, 3), model=embedder)
    made = [
        build_index(rows, tmp_path / "t" / str(n), share=(n, 3), model=embedder, on_error="skip")
        for n in (1, 2, 3)
    ]
    assert sum(each.documents for each in made) == 40
    assert sum(each.rejected for each in made) == 2


def test_a_share_may_be_empty(tmp_path: Path, embedder: FakeEmbedder) -> None:
    shards = build_shards([{"_id": "a", "text": "word1"}], tmp_path / "s", 5, model=embedder)
    assert build_index(None, tmp_path / "ix", vectors=shards).documents == 1


def test_no_faiss_file_where_none_is_wanted(tmp_path: Path, embedder: FakeEmbedder) -> None:
    rows = make_documents(40)
    assert not build_index(rows, tmp_path / "ix", model=embedder, index="none").indexes["document"]
    assert not one_change.compact(tmp_path / "ix").indexes["document"]
    assert read_manifest(tmp_path / "ix").index == "none"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shards(
        make_documents(120), tmp_path_factory.mktemp("built"), 3, model=FakeEmbedder()
    )


@pytest.fixture
def shards(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "shards")


def empty_folder(shards: Path) -> None:
    shutil.rmtree(shards)
    shards.mkdir()


def share_of_another_division(shards: Path) -> None:
    build_index(make_documents(120), shards / "other", share=(1, 2), model=FakeEmbedder())


def build_again(shards: Path, documents: list[dict[str, Any]], model: FakeEmbedder) -> None:
    build_index(documents, shards / "2-of-3", share=(2, 3), model=model, overwrite=True)


def change_a_shard(shards: Path) -> None:
    one_change.add([{"_id": "new", "text": "word1"}], shards / "2-of-3", model=FakeEmbedder())


@refusals(
    {
        InputError: {
            "1 of 3 shards are missing or not complete: 2; build them with --share 2/3": (
                lambda shards: shutil.rmtree(shards / "2-of-3")
            ),
            "no index here, and no folder of indexes": empty_folder,
            "shards of 2 and shards of 3": share_of_another_division,
            r"2-of-3 were encoded differently: model is 'fake-a \(.*' and 'fake-b \(": partial(
                build_again, documents=make_documents(120), model=FakeEmbedder(seed="b")
            ),
            "2-of-3 are of different corpora": partial(
                build_again, documents=make_documents(120)[1:], model=FakeEmbedder()
            ),
            "2-of-3: not a shard, or changed since": change_a_shard,
        },
    }
)
def test_shards_that_are_not_of_one_index_are_refused(shards: Path, refused: Refusal) -> None:
    refused.then(lambda shards: build_index(None, shards.parent / "ix", vectors=shards), shards)


def add_shards_of_another_model(shards: Path, root: Path) -> None:
    build_index([{"_id": "a", "text": "b"}], root, model=FakeEmbedder(dim=8))
    one_change.add(None, root, vectors=shards)


@refusals(
    {
        ConfigError: {
            "leave the corpus out": lambda shards, root: build_index(
                make_documents(120), root, vectors=shards
            ),
            "passage_tokens=64: the documents of": lambda shards, root: build_index(
                None, root, vectors=shards, passage_tokens=64
            ),
            r"model is 'fake-a \(.*'fake-b \(": lambda shards, root: build_index(
                None, root, vectors=shards, model=FakeEmbedder(seed="b")
            ),
            r"model is 'fake-a \(.*encode the documents with the same settings": (
                add_shards_of_another_model
            ),
        },
    }
)
def test_settings_that_the_shards_do_not_have_are_refused(
    built: Path, tmp_path: Path, refused: Refusal
) -> None:
    refused(built, tmp_path / "ix")


def test_an_id_twice_is_refused_in_its_share(
    tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
) -> None:
    share = (shard_of("doc-4", 2), 2)
    with pytest.raises(InputError, match=r"document 121: the id 'doc-4' is already in use"):
        build_index([*documents, documents[4]], tmp_path / "twice", share=share, model=embedder)


@pytest.mark.parametrize("share", [(0, 3), (4, 3), (1, 10_000), (1.0, 2), "1/2", (1,)])
def test_a_share_that_is_none_is_refused(
    share: Any, tmp_path: Path, embedder: FakeEmbedder
) -> None:
    with pytest.raises(ConfigError, match="share"):
        build_index(make_documents(2), tmp_path / "ix", share=share, model=embedder)


class FakeRay:
    """As much of Ray as a build uses, in this process: a task runs when its answer is asked for."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError):
            @property
            def cause(self) -> BaseException | None:
                return self.__cause__

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.started: Any = None

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        self.started = options

    def shutdown(self) -> None:
        self.started = None

    def remote(self, **options: Any) -> Any:
        self.options = options
        return lambda function: SimpleNamespace(remote=lambda *given: lambda: function(*given))

    def wait(self, tasks: list[Any]) -> tuple[list[Any], list[Any]]:
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> Any:
        try:
            return task()
        except Exception as error:
            raise self.exceptions.RayTaskError(str(error)) from error


class TestOnRay:
    @pytest.fixture
    def ray(self, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
        made = FakeRay()
        monkeypatch.setitem(sys.modules, "ray", made)
        return made

    def test_the_index_is_that_of_one_process(
        self, ray: FakeRay, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
    ) -> None:
        seen: list[tuple[Any, ...]] = []
        progress = lambda *news: seen.append(news)
        report = build_on_ray(
            documents, tmp_path / "ix", of=4, cpus=2, model=embedder, progress=progress
        )
        assert report.documents == len(documents)
        assert ray.started is None
        assert ray.options["num_cpus"] == 2
        assert ray.options["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] == "2"
        assert ("building shards", 3, 4, 0) in seen
        assert not (tmp_path / "ix.shards").exists()
        build_index(documents, tmp_path / "here", model=embedder)
        assert_same_answers(tmp_path / "ix", tmp_path / "here", embedder)

    def test_what_a_task_says_comes_here_and_the_rest_is_kept(
        self, ray: FakeRay, tmp_path: Path, documents: list[dict[str, Any]], embedder: FakeEmbedder
    ) -> None:
        broken = [*documents, {"_id": "x"}]
        with pytest.raises(InputError, match=r"node .*, shard \d/4: .*no text"):
            build_on_ray(broken, tmp_path / "ix", of=4, model=embedder)
        gone = patch.object(files, "make_folder", side_effect=RuntimeError("the disk is gone"))
        with gone, pytest.raises(EngineError, match="a task failed: the disk is gone"):
            build_on_ray(documents, tmp_path / "ix", of=4, model=embedder)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"of": 0}, "share 1/0"),
            ({"cpus": 0}, "more than 0 processors"),
            ({"gpus": 1}, "give device='cuda'"),
            ({"corpus": "-"}, "standard input"),
            ({"corpus": iter([])}, "every task reads the corpus itself"),
            ({"colour": 1}, "colour"),
        ],
    )
    def test_what_it_is_not_for(
        self, change: dict[str, Any], message: str, tmp_path: Path, ray: FakeRay
    ) -> None:
        given = {"corpus": [{"_id": "a", "text": "b"}], "of": 2, **change}
        with pytest.raises(ConfigError, match=message):
            build_on_ray(given.pop("corpus"), tmp_path / "ix", **given)

    def test_no_cluster(
        self, tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def init(**_: Any) -> None:
            raise ConnectionError("Could not find any running Ray instance.\nand more")

        monkeypatch.setattr(ray, "init", init)
        with pytest.raises(EngineError, match=r"no cluster at 'auto' .*running Ray instance"):
            build_on_ray([{"_id": "a", "text": "b"}], tmp_path / "ix", of=2, address="auto")
