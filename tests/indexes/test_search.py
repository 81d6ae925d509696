"""What a search promises: the least score, one scale for passages, errors for damage, diversity
among what is shown.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Hit, Retriever, build_index
from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.search import background, by_vector
from aveyb_retrieval.indexes.search import retriever as retriever_module
from aveyb_retrieval.indexes.search import snapshot as snapshot_module
from aveyb_retrieval.indexes.search.options import Options
from aveyb_retrieval.indexes.search.selections import Allowed
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.types import EmbedderLike

# without titles, a passage's text gives its vector
ROWS = [{**row, "title": ""} for row in make_documents(80)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search") / "ix"
    build_index(ROWS, path, model=FakeEmbedder())
    return path


@pytest.fixture(scope="module")
def retriever(root: Path) -> Retriever:
    return Retriever.load(root, model=FakeEmbedder())


def test_the_least_score_leaves_out_hits_before_the_best_are_taken(retriever: Retriever) -> None:
    everything = retriever.search("word1 word2 word3", k=60)
    confidence = [hit.confidence or 0.0 for hit in everything]
    assert confidence != sorted(confidence, reverse=True), "the fused order is another one"
    least = sorted(confidence)[-3]
    expected = [hit.id for hit in everything if (hit.confidence or 0.0) >= least]
    assert [hit.id for hit in everything[:2]] != expected[:2]
    assert [
        hit.id for hit in retriever.search("word1 word2 word3", k=2, min_score=least)
    ] == expected[:2]


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_passages_have_one_scale_in_both_units(retriever: Retriever, mode: Any) -> None:
    query, options = "word1 word2", {"mode": mode, "granularity": "passage"}
    found = retriever.search(query, k=500, unit="passage", mode=mode, fold=False, candidates=500)
    scores = {(hit.id, passage.span): passage.score for hit in found for passage in hit.passages}
    hits = retriever.search(query, k=5, passages=3, **options)
    compared = [
        (p.score, scores[h.id, p.span])
        for h in hits
        for p in h.passages
        if (h.id, p.span) in scores
    ]
    assert len(compared) >= 5
    assert all(ours == pytest.approx(theirs, abs=1e-5) for ours, theirs in compared)
    if mode == "hybrid":
        assert all(hit.passages[0].score == hit.confidence for hit in hits if hit.passages)


def test_a_model_given_by_its_path_searches_precomputed_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnamed = _without_its_model(ROWS, tmp_path)
    asked: list[Any] = []

    def load(source: Any, **_: Any) -> EmbedderLike:
        asked.append(source)
        return FakeEmbedder()

    monkeypatch.setattr(retriever_module, "load_model", load)
    with Retriever.load(unnamed) as without, pytest.raises(ConfigError, match="or give the model"):
        without.search("word1")
    with Retriever.load(unnamed, model=tmp_path / "model") as given:
        assert given.search("word1", k=3)
    assert asked == [tmp_path / "model"]


def _without_its_model(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Build an index of vectors that are there already, of a model that nobody names."""
    np.save(
        folder / "vectors.npy",
        np.random.default_rng(0).normal(size=(len(rows), 16)).astype(np.float32),
    )
    build_index(rows, folder / "ix", vectors=folder / "vectors.npy", granularity="document")
    return folder / "ix"


# --- damage --------------------------------------------------------------------------------------


@pytest.fixture
def unchecked(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the index, of whose files no hash is compared when it is opened, as of
    a large one.
    """
    monkeypatch.setattr(snapshot_module, "check_files", lambda *_, **__: None)
    return shutil.copytree(root, tmp_path / "copy")


@pytest.mark.parametrize(
    ("lost", "unit", "mode"),
    [
        *(
            (lost, "document", mode)
            for lost in ("documents", "passages", "vectors")
            for mode in ("dense", "hybrid")
        ),
        *(
            (lost, "passage", mode)
            for lost in ("documents", "passages")
            for mode in ("dense", "hybrid")
        ),
        ("texts", "document", "hybrid"),
    ],
)
def test_files_that_are_lost_under_a_reader_are_one_error(
    unchecked: Path, lost: str, unit: Any, mode: Any
) -> None:
    folder = "documents.lance/data" if lost == "documents" else lost
    for path in (unchecked / folder).iterdir():
        path.write_bytes(b"nothing")
    one_error = pytest.raises(
        IndexFormatError,
        match=rf"copy/{lost}(\.lance)?: files of the version that is open are missing or",
    )
    with one_error, Retriever.load(unchecked, model=FakeEmbedder()) as retriever:
        retriever.search("word1", k=3, unit=unit, mode=mode)


# --- choosing ------------------------------------------------------------------------------------


def test_diversity_counts_likeness_with_chosen_passages_only(retriever: Retriever) -> None:
    """Maximal marginal relevance by its definition, over all candidates, with one passage of each
    document.
    """
    query, weight, k = "word1 word2 word3", 0.6, 12
    plain = retriever.search(query, k=5000, unit="passage", fold=False, candidates=5000)
    vectors = [
        next(iter(FakeEmbedder().encode_documents([("", hit.passage or "")]))).vector
        for hit in plain
    ]
    highest = max(hit.score for hit in plain)
    expected: list[int] = []
    while len(expected) < k:
        documents = {plain[i].id for i in expected}
        rest = [i for i, hit in enumerate(plain) if hit.id not in documents]

        def value(i: int) -> float:
            likeness = max((float(vectors[i] @ vectors[j]) for j in expected), default=0.0)
            return (1 - weight) * plain[i].score / highest - weight * max(likeness, 0.0)

        expected.append(max(rest, key=value))
    hits = retriever.search(
        query, k=k, unit="passage", fold=False, per_document=1, diversity=weight, candidates=5000
    )
    assert [_place(hit) for hit in hits] == [_place(plain[i]) for i in expected]


def _place(hit: Hit) -> tuple[str, Any]:
    return hit.id, hit.span


@pytest.mark.parametrize("wrong", ["false", "no", 0, 1, None, [], "True"], ids=repr)
@pytest.mark.parametrize("flag", ["fold", "exact", "operators"])
def test_an_option_that_is_no_flag_is_refused(retriever: Retriever, flag: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"{flag}=.*: must be True or False"):
        retriever.search("word1", **{flag: wrong})


@pytest.mark.parametrize("flag", ["fold", "exact", "operators"])
def test_a_flag_of_numpy_is_one(retriever: Retriever, flag: str) -> None:
    options: dict[str, Any] = {flag: np.bool_(False)}
    retriever.search("word1", **options)


def test_options_may_be_given_their_default_values(retriever: Retriever) -> None:
    given = Options(k=10)
    assert retriever.search(
        "word1", fold=True, per_document=None, diversity=0.0
    ) == retriever.search("word1")
    defaults: dict[str, Any] = {"weight": given.weight, "fusion": given.fusion, "granularity": None}
    assert retriever.search("word1", unit="passage", **defaults) == retriever.search(
        "word1", unit="passage"
    )


@pytest.mark.parametrize("unit", ["document", "passage"])
def test_a_hybrid_search_finds_the_same_whoever_does_its_parts(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, unit: Any
) -> None:
    def ask() -> list[tuple[str, float, dict[str, float]]]:
        return [
            (hit.id, hit.score, hit.scores)
            for hit in retriever.search("word1 word2 word3", unit=unit)
        ]

    expected, free = ask(), threading.Event()
    assert len(expected) == 10
    monkeypatch.setattr(by_vector, "MIN_THREADED_DOCUMENTS", 0)  # documents are few
    assert ask() == expected
    with ThreadPoolExecutor(1) as busy, ThreadPoolExecutor(1) as ended:
        ended.shutdown()
        busy.submit(free.wait, 60)
        try:
            for pool in (busy, ended):
                monkeypatch.setattr(background, "_pool", pool)
                assert ask() == expected
        finally:
            free.set()


def test_a_selection_that_threads_share_lets_all_through_to_each() -> None:
    """A thread never sees what another one has only begun to fill in."""
    docs = np.arange(0, 4_000_000, 2)
    for _ in range(10):
        selection, start = Allowed(docs), threading.Barrier(4)

        def ask(selection: Allowed = selection, start: threading.Barrier = start) -> bool:
            start.wait()
            return bool(selection.holds("document", docs[-100:]).all())

        with ThreadPoolExecutor(4) as workers:
            assert all(future.result() for future in [workers.submit(ask) for _ in range(4)])
