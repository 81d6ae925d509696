"""The Retriever: what a hit holds, every option, and every question that has no answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import unicodedata
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Hit, Retriever, build_index
from aveyb_retrieval.errors import (
    AveyBError,
    BackendError,
    ConfigError,
    InputError,
)
from aveyb_retrieval.indexes.search import scores
from aveyb_retrieval.indexes.search.passage_scores import COSINE_WEIGHT
from aveyb_retrieval.indexes.search.ranking import MAXSIM_WEIGHT
from tests.indexes.conftest import assert_best, make_documents, true_scores
from tests.indexes.fake import FakeEmbedder
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

ROWS: list[dict[str, Any]] = [
    *make_documents(80),
    {
        "_id": "rust",
        "title": "Iron",
        "text": "Corrosion of ships. " * 13 + "Zinc protects the hull.",
        "year": 1900,
    },
    {
        "_id": "weird",
        "title": "",
        "text": 'NEAR(a b) AND "quoted" * : ^ - NOT',
        "year": 1901,
        "n": {"a": [1]},
    },
    {"_id": "日本 id\u0000", "title": "π", "text": "ünïcødé wörds", "year": 1902},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("retriever") / "ix"
    build_index(ROWS, path, model=FakeEmbedder())
    return path


@pytest.fixture(scope="module")
def retriever(root: Path) -> Retriever:
    return Retriever.load(root, model=FakeEmbedder())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = (
        "torch",
        "faiss",
        "transformers",
        "numpy",
        "datasets",
        "lance",
        "pyarrow",
        "aveyb_retrieval.indexes.index",
    )
    code = (
        f"import sys, aveyb_retrieval, aveyb_retrieval.cli.index; print([m for m in {heavy} if m in"
        " sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_string_gives_a_list_and_a_list_gives_lists(retriever: Retriever) -> None:
    one = retriever.search("word1 word2", k=3)
    many = retriever.search(["word1 word2", "word3"], k=3)
    assert isinstance(one[0], Hit)
    assert [(hit.id, hit.span, hit.score) for hit in many[0]] == [
        (hit.id, hit.span, pytest.approx(hit.score, abs=1e-6)) for hit in one
    ]
    assert [len(hits) for hits in many] == [3, 3]
    assert retriever.search([], k=3) == []
    assert asyncio.run(retriever.asearch("word1 word2", k=3)) == one
    assert retriever.rank(["word1 word2"], k=3) == [[(h.id, h.score) for h in one]]


def test_a_hit_holds_the_document_and_its_passage_with_neighbours(retriever: Retriever) -> None:
    (hit,) = retriever.search("zinc protects the hull", k=1, context=1, passages=3)
    assert (hit.id, hit.title, hit.metadata) == ("rust", "Iron", {"year": 1900})
    assert hit.span is not None
    assert hit.passage == hit.text[slice(*hit.span)]
    assert "Zinc" in hit.passage
    assert hit.context is not None
    assert hit.context_span is not None
    assert hit.context == hit.text[slice(*hit.context_span)]
    assert hit.context_span[0] < hit.span[0]
    assert hit.context_span[1] == hit.span[1], "it is the last passage"
    assert [p.score for p in hit.passages] == sorted(
        (p.score or 0.0 for p in hit.passages), reverse=True
    )
    assert len(hit.passages) == 3
    assert hit.passages[0].span == hit.span
    assert all(p.text == hit.text[slice(*p.span)] for p in hit.passages)


@pytest.mark.parametrize("granularity", ["document", "passage", "both"])
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_scores_are_true_cosines(retriever: Retriever, granularity: str, k: int) -> None:
    query = ROWS[7]["text"]
    truth = true_scores(ROWS, FakeEmbedder(), query, granularity)
    assert_best(retriever.search(query, k=k, mode="dense", granularity=granularity), truth, k)


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
@pytest.mark.parametrize(
    "query",
    [
        "NEAR(a b)",
        '"quoted',
        "a* OR b",
        "title:zinc",
        "-zinc",
        "^ : *",
        "'; DROP TABLE documents; --",
        "{}[]()",
        "\x00zinc",
        "zinc AND",
        "(",
        "NOT NOT NOT",
        "x" * 5000,
        "zinc " * 3000,
    ],
    ids=range(14),
)
def test_user_text_is_never_syntax(retriever: Retriever, mode: str, query: str) -> None:
    assert isinstance(retriever.search(query, k=3, mode=mode), list)


def test_lexical_search_stems_and_orders_by_bm25(retriever: Retriever) -> None:
    hits = retriever.search("protecting hulls", k=3, mode="lexical")
    assert hits[0].id == "rust"
    assert hits[0].passage is not None
    assert "hull" in hits[0].passage
    assert retriever.search("nowhere", mode="lexical") == []
    assert retriever.search("?!", mode="lexical") == []
    assert [h.id for h in retriever.search("wörds", mode="lexical")] == ["日本 id\x00"]


@pytest.mark.parametrize("fusion", ["rrf", "weighted"])
def test_hybrid_search_finds_what_either_finds(retriever: Retriever, fusion: str) -> None:
    hits = retriever.search("zinc hull", k=5, mode="hybrid", fusion=fusion)
    assert hits[0].id == "rust"
    assert set(hits[0].scores) == {"dense", "lexical"} | (
        {"passage"} if fusion == "weighted" else set()
    )
    assert len(hits) == 5
    by_passage: dict[str, Any] = {"k": 5, "granularity": "passage"}
    dense = retriever.search(
        "zinc hull", mode="hybrid", fusion="weighted", weight=1.0, **by_passage
    )
    assert [h.id for h in dense] == [
        h.id for h in retriever.search("zinc hull", mode="dense", **by_passage)
    ]
    words = retriever.search(
        "zinc hull", mode="hybrid", fusion="weighted", weight=0.0, **by_passage
    )
    assert words[0].scores["passage"] == pytest.approx(2, abs=1e-6), (
        "all words, which count twice, and no vectors"
    )


def best_passages(retriever: Retriever, query: str, weight: float) -> dict[str, float]:
    """By their definition, from what hits show: the scores of the best passages of documents, by
    id.
    """
    (vector,) = retriever._model().encode_queries([query])
    background = float(retriever._engine.snapshot.mean_vector @ vector)
    hits = retriever.search(query, k=5000, unit="passage", fold=False, candidates=5000, exact=True)
    words = [{word.strip(".").lower() for word in (hit.passage or "").split()} for hit in hits]
    holding = {word: np.array([word in each for each in words]) for word in query.split()}
    weights = {
        w: np.log(1 + (len(hits) - h.sum() + 0.5) / (h.sum() + 0.5)) for w, h in holding.items()
    }
    coverage = sum(weights[word] * held for word, held in holding.items()) / sum(weights.values())
    best: dict[str, float] = {}
    for hit, covered in zip(hits, coverage.tolist(), strict=True):
        near = COSINE_WEIGHT * (hit.scores["dense"] - background)
        best[hit.id] = max(best.get(hit.id, -9.0), 2 * (weight * near + (1 - weight) * covered))
    return best


@pytest.mark.parametrize("granularity", ["document", "passage", "both"])
def test_weighted_fusion_is_its_equation(retriever: Retriever, granularity: str) -> None:
    """Every candidate has both scores, as shares of the way from a document at random to the best
    one.
    """
    query, weight = "word1 zinc hull", 0.3
    everything = retriever.search(
        query, k=len(ROWS), mode="dense", granularity=granularity, exact=True
    )
    cosine = {h.id: h.score for h in everything}
    words = {h.id: h.score for h in retriever.search(query, k=len(ROWS), mode="lexical")}
    vector = retriever._model().encode_queries([query])[0]
    background = float(retriever._engine.snapshot.mean_vector @ vector)
    best = best_passages(retriever, query, weight)
    not_alone = 1 - len(ROWS) / retriever._engine.snapshot.info.passages
    assert 0.1 < not_alone < 0.9, "else this tests less than it says"
    hits = retriever.search(
        query, k=20, fusion="weighted", weight=weight, granularity=granularity, candidates=20
    )
    for hit in hits:
        near = (cosine[hit.id] - background) / (max(cosine.values()) - background)
        share = words[hit.id] / max(words.values()) if "lexical" in hit.scores else 0
        fused = weight * near + (1 - weight) * share
        passage = 0.0 if granularity == "document" else best[hit.id]
        assert hit.score == pytest.approx(fused + not_alone * passage, abs=1e-5), hit.id
        assert hit.scores["dense"] == pytest.approx(cosine[hit.id], abs=1e-6)
        assert hit.scores.get("passage", 0.0) == pytest.approx(passage, abs=1e-5)


def test_passages_that_are_alone_add_nothing(tmp_path: Path) -> None:
    rows = [row for row in make_documents(30, longest=4) if row["text"]]
    build_index(rows, tmp_path / "ix", model=FakeEmbedder())
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as short:
        assert short._engine.snapshot.info.passages == len(rows)
        hits = short.search("word1 word2", k=30)
        assert max(hit.scores["passage"] for hit in hits) > 0.5
        assert hits[0].score <= 1, "a weighted mean of two shares"


def test_passages_of_the_first_documents_are_read(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    every: dict[str, Any] = {"k": 3, "candidates": len(ROWS)}
    found = retriever.search("zinc hull word1", **every)
    assert retriever.search("zinc hull word1", **every, min_score=0.0) == found, "50 are enough"
    monkeypatch.setattr(scores, "DOCUMENTS_SCORED_TOGETHER", 2)
    assert len(retriever.search("zinc hull word1", **every)) == 3
    assert len(retriever.search("zinc hull word1", **every, rerank="maxsim")) == 3


def test_hybrid_is_the_default(retriever: Retriever) -> None:
    query = "zinc hull"
    assert retriever.search(query, k=5) == retriever.search(
        query, k=5, mode="hybrid", fusion="weighted", weight=0.5
    )


def test_maxsim_orders_the_candidates(retriever: Retriever) -> None:
    query = "zinc protects the hull"
    for mode in ("dense", "lexical", "hybrid"):
        before = {
            hit.id: hit.score if mode == "hybrid" else 0
            for hit in retriever.search(query, k=100, mode=mode)
        }
        hits = retriever.search(query, k=5, mode=mode, rerank="maxsim")
        assert hits[0].id == "rust"
        assert hits[0].scores["maxsim"] == pytest.approx(1.0, abs=1e-5), (
            "every word of the query is in the passage"
        )
        weight = MAXSIM_WEIGHT if mode == "hybrid" else 1
        wanted = [before[h.id] + weight * h.scores["maxsim"] for h in hits]
        assert [h.score for h in hits] == pytest.approx(wanted)
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


def test_filters_come_before_the_search(retriever: Retriever) -> None:
    for mode in ("dense", "lexical", "hybrid"):
        hits = retriever.search("word1 word2 zinc", k=50, mode=mode, filter={"year": {"$lt": 1902}})
        assert {h.id for h in hits} <= {"rust", "weird"}
    assert (
        len(
            retriever.search("word1", k=50, filter={"tags": {"$in": ["a"]}, "year": {"$gte": 2010}})
        )
        > 3
    )
    assert retriever.search("word1", filter={"year": 3000}) == []
    assert len(retriever.search("word1", k=500, filter={}, granularity="document")) == len(ROWS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_k": 3}, "no option 'top_k'; did you mean 'k'\\? Known are k, filter, ids"),
        ({"granularty": "both"}, "no option 'granularty'; did you mean 'granularity'"),
        ({"xyzzy": 1}, "no option 'xyzzy'; known are k, filter"),
        ({"k": 0}, "k=0"),
        ({"k": -1}, "k=-1"),
        ({"k": 1.5}, "k=1.5"),
        ({"k": True}, "k=True"),
        ({"mode": "sparse"}, "mode='sparse'"),
        ({"granularity": "word"}, "granularity='word'"),
        ({"fusion": "max"}, "fusion='max'"),
        ({"rerank": "cross"}, "rerank='cross'"),
        ({"rerank": ""}, "rerank='': must be 'maxsim', a CrossEncoder, or the name of one"),
        ({"weight": 2}, "weight=2"),
        ({"passages": 0}, "passages=0"),
        ({"context": -1}, "context=-1"),
        ({"candidates": 0}, "candidates=0"),
        ({"filter": {"$bad": 1}}, r"\$bad"),
        ({"per_document": 1}, "per_document=1: only with unit='passage'"),
        ({"diversity": 0.5}, "diversity=0.5: only with unit='passage'"),
        ({"unit": "word"}, "unit='word'"),
        (
            {"unit": "passage", "granularity": "both"},
            "granularity='both': only with unit='document'",
        ),
        ({"unit": "passage", "weight": 0.3}, "only with unit='document'"),
        ({"unit": "passage", "diversity": 2}, "diversity=2"),
        ({"unit": "passage", "per_document": 0}, "per_document=0"),
        ({"min_score": "high"}, "min_score='high'"),
        ({"rerank": 3}, "rerank=3"),
    ],
)
def test_an_option_out_of_range_is_told(
    retriever: Retriever, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        retriever.search("word1", **options)


@refusals(
    {
        InputError: {
            r"shape|NaN": [
                partial(Retriever.search_vectors, vectors=vectors)
                for vectors in (np.ones((1, 5)), np.ones(16), np.full((1, 16), np.nan))
            ],
            "not an array of numbers": lambda retriever: retriever.search_vectors([["a"] * 16]),
            "the query is of type NoneType": lambda retriever: retriever.search(None),
            r"the query is empty|query 2 of 2": [
                partial(Retriever.search, query=query)
                for query in ("", "  \n", ["fine", ""], ["fine", 3])
            ],
        },
        ConfigError: {
            "text": lambda retriever: retriever.search_vectors(np.ones((1, 16)), mode="hybrid"),
            "weight='a': must be a number": lambda retriever: retriever.search("word1", weight="a"),
        },
    }
)
def test_values_of_another_type_or_shape_are_refused(
    retriever: Retriever, refused: Refusal
) -> None:
    refused(retriever)


def test_an_index_without_passages_says_so(tmp_path: Path) -> None:
    build_index(ROWS, tmp_path / "ix", model=FakeEmbedder(), granularity="document")
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        with pytest.raises(ConfigError, match="built with granularity 'document'"):
            retriever.search("word1", granularity="passage")
        (hit,) = retriever.search("zinc hull", k=1, mode="hybrid", rerank="maxsim", context=1)
        assert (hit.id, hit.passage, hit.context) == ("rust", None, None)


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    root = tmp_path / "a b?c=1&d#e%20é'\"" / "ix"
    build_index(ROWS[:5], root, model=FakeEmbedder())
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        assert len(retriever.search("word1", k=5, mode="hybrid")) > 0


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "message"), [("cuda", r"there is no GPU|built without CUDA"), ("tpu", "'tpu'")]
)
def test_a_gpu_that_is_not_there_is_an_error(root: Path, device: str, message: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    with pytest.raises(BackendError, match=message):
        Retriever.load(root, model=FakeEmbedder(), device=device)


@pytest.mark.parametrize(
    "options", [{"mode": "hybrid"}, {"rerank": "maxsim"}, {"mode": "hybrid", "rerank": "maxsim"}]
)
def test_a_passage_keeps_its_cosine_whatever_orders_the_documents(
    retriever: Retriever, options: dict[str, Any]
) -> None:
    (vector,) = FakeEmbedder().encode_queries(["zinc protects"])
    hits = retriever.search("zinc protects", k=5, granularity="passage", **options)
    several = retriever.search("zinc protects", k=5, granularity="passage", passages=2, **options)
    for hit, more in zip(hits, several, strict=True):
        assert hit.passages[0].span == more.passages[0].span
        assert hit.passages[0].score == pytest.approx(more.passages[0].score, abs=1e-5)
        if hit.id == "rust":
            texts = FakeEmbedder().encode_documents([("Iron\n", hit.text)])
            cosine = max(next(iter(texts)).passages @ vector)
            assert hit.passages[0].scores["dense"] == pytest.approx(cosine, abs=1e-5)


def test_more_documents_than_any_database_counts_to_are_all_there_are(retriever: Retriever) -> None:
    assert [h.id for h in retriever.search("zinc", k=10**30, mode="lexical")] == ["rust"]
    assert len(retriever.search("zinc", k=10**30, mode="hybrid")) == len(retriever)
    assert len(retriever.search("zinc", k=3, mode="hybrid", candidates=10**30)) == 3


def test_words_are_found_however_their_accents_are_written(retriever: Retriever) -> None:
    for form in ("NFC", "NFD"):
        query = unicodedata.normalize(form, "ünïcødé")
        assert [h.id for h in retriever.search(query, mode="lexical")] == ["日本 id\0"], form


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_closed_retriever_says_so(root: Path, mode: Any) -> None:
    retriever = Retriever.load(root, model=FakeEmbedder())
    retriever.search("word1")
    retriever.close()
    with pytest.raises(AveyBError, match="was closed; load it again"):
        retriever.search("word1", mode=mode)
