"""Passages: chosen by words and vectors, found in the whole corpus, capped, folded, and put into a prompt."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Hit, Passage, Retriever, build_index, hits_to_prompt
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search import scoring
from aveyb_retrieval.indexes.search.hits import estimate_tokens
from aveyb_retrieval.indexes.search.scoring import MAXSIM_CONFIDENCE, OFFSET, SLOPE
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.search.options import Mode

RUST = (
    "Ships corrode at sea quickly every single year. " + "Zinc anodes protect the hull from all rust. " + "word1 " * 30
)
ROWS: list[dict[str, Any]] = [
    *make_documents(60),
    {"_id": "rust", "title": "", "text": RUST, "year": 1900},
    {"_id": "copy", "title": "", "text": RUST, "year": 1901},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("passages") / "ix"
    build_index(ROWS, path, model=FakeEmbedder())
    return path


@pytest.fixture(scope="module")
def retriever(root: Path) -> Retriever:
    return Retriever.load(root, model=FakeEmbedder())


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_passages_of_all_documents_are_found(retriever: Retriever, mode: Any) -> None:
    hits = retriever.search("zinc anodes protect the hull", k=12, unit="passage", mode=mode, fold=False)
    zinc = [hit for hit in hits if "Zinc" in (hit.passage or "")]
    assert {hit.id for hit in zinc} == {"rust", "copy"}
    assert zinc[0].score == zinc[1].score
    assert mode == "dense" or zinc == hits[:2]  # the fake model's vectors are few numbers, others may be near by chance
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
    assert len({(h.id, h.span) for h in hits}) == len(hits)
    for hit in hits:
        assert hit.span is not None
        assert hit.passage == hit.text[slice(*hit.span)]
        assert hit.passages == (Passage(hit.passage, hit.span, hit.score, hit.heading, hit.scores),)
    assert (hits[0].confidence is None) == (mode != "hybrid")


def test_hybrid_passages_are_scored_by_their_equation(retriever: Retriever) -> None:
    query = "zinc hull word1"
    (vector,) = FakeEmbedder().encode_queries([query])
    snapshot = retriever._engine.snapshot
    hits = retriever.search(query, k=5000, unit="passage", fold=False, candidates=5000, exact=True)
    ids = snapshot.passage_numbers(snapshot.tables.numbers("document").tolist())
    spans = dict(zip(ids.tolist(), map(tuple, snapshot.passages(ids).spans.tolist()), strict=True))
    names = snapshot.documents(np.unique(ids >> PASSAGE_BITS).tolist())
    texts = [names[i >> PASSAGE_BITS].text[slice(*spans[i])].lower().split() for i in ids.tolist()]
    holding = {w: [any(t.strip(".") == w for t in text) for text in texts] for w in ("zinc", "hull", "word1")}
    weights = {w: np.log(1 + (len(ids) - sum(h) + 0.5) / (sum(h) + 0.5)) for w, h in holding.items()}
    coverage = sum(weights[w] * np.array(h) for w, h in holding.items()) / sum(weights.values())
    cosine = snapshot.vectors("passage", ids) @ vector
    own = scoring.COSINE * (cosine - float(snapshot.mean_vector @ vector)) + coverage
    expected = {}
    for row, i in enumerate(ids.tolist()):
        beside = [own[r] for r in (row - 1, row + 1) if 0 <= r < len(ids) and abs(int(ids[r]) - i) == 1]
        score = own[row] + scoring.NEIGHBOR * max(beside, default=0)
        expected[names[i >> PASSAGE_BITS].id, spans[i]] = 1 / (1 + np.exp(-(scoring.SLOPE * score + scoring.OFFSET)))
    assert len(hits) == len(ids)
    for hit in hits:
        assert hit.span is not None
        assert hit.score == hit.confidence == pytest.approx(expected[hit.id, hit.span], abs=1e-4)


def test_a_document_shows_the_passage_that_is_best_for_its_document(retriever: Retriever) -> None:
    for query in ("zinc protects the hull", "ships at sea", "word1"):
        found = {h.id: h for h in reversed(retriever.search(query, k=500, unit="passage", fold=False, candidates=500))}
        for hit in retriever.search(query, k=5, passages=3):
            if hit.id in found:
                assert (hit.span, hit.confidence) == (
                    found[hit.id].span,
                    pytest.approx(found[hit.id].confidence, abs=1e-5),
                )
            assert [p.score for p in hit.passages] == sorted((p.score for p in hit.passages), reverse=True)


def test_nothing_ties_at_zero(retriever: Retriever) -> None:
    hits = retriever.search("quantum chromodynamics", k=40, filter={"year": {"$gte": 2000}})
    assert len({round(h.score, 9) for h in hits}) > 30


def test_near_copies_are_folded(retriever: Retriever) -> None:
    hits = retriever.search("zinc anodes protect", k=5, unit="passage")
    assert {hits[0].id, *hits[0].duplicates} == {"rust", "copy"}
    assert len(hits) == 5
    assert len({h.passage for h in hits}) == 5


def test_one_document_gives_no_more_than_its_share(retriever: Retriever) -> None:
    hits = retriever.search("word1 word2 word3", k=30, unit="passage", per_document=1, candidates=3)
    assert len(hits) == 30, "candidates are fetched until there are enough"
    assert len({h.id for h in hits}) == 30


def test_diversity_puts_likeness_back(retriever: Retriever) -> None:
    plain = retriever.search("zinc hull", k=8, unit="passage", fold=False)
    varied = retriever.search("zinc hull", k=8, unit="passage", fold=False, diversity=0.7)
    assert varied[0] == plain[0]

    def likeness(hits: list[Hit]) -> float:
        rows = [next(iter(FakeEmbedder().encode_documents([("", h.passage or "")]))).vector for h in hits]
        return float(np.triu(np.stack(rows) @ np.stack(rows).T, 1).sum())

    assert likeness(varied) < likeness(plain)


def test_what_is_below_the_least_score_is_left_out(retriever: Retriever) -> None:
    choices: list[dict[str, Any]] = [{"unit": "passage"}, {}, {"unit": "passage", "mode": "dense"}, {"mode": "lexical"}]
    for options in choices:
        everything = retriever.search("zinc hull", k=20, **options)
        scale = [h.score if "mode" in options else h.confidence or 0.0 for h in everything]
        least = sorted(scale)[-min(3, len(scale))]
        some = retriever.search("zinc hull", k=20, min_score=least, **options)
        assert [h.id for h in some] == [h.id for h, s in zip(everything, scale, strict=True) if s >= least]
    assert retriever.search("zinc hull", min_score=1.0) == []


def test_filters_hold_for_passages(retriever: Retriever) -> None:
    modes: tuple[Mode, ...] = ("dense", "lexical", "hybrid")
    for mode in modes:
        hits = retriever.search("zinc word1", k=50, unit="passage", mode=mode, filter={"year": {"$lt": 1901}})
        assert {h.id for h in hits} == {"rust"}


def test_vectors_find_passages(retriever: Retriever) -> None:
    query = "zinc anodes protect the hull"
    (found,) = retriever.search_vectors(FakeEmbedder().encode_queries([query]), k=4, unit="passage")
    by_text = retriever.search(query, k=4, unit="passage", mode="dense")
    assert found == [replace(hit, highlights=(), best_sentence=None) for hit in by_text]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_document": 1}, "per_document=1: only with unit='passage'"),
        ({"diversity": 0.5}, "diversity=0.5: only with unit='passage'"),
        ({"unit": "word"}, "unit='word'"),
        ({"unit": "passage", "granularity": "both"}, "granularity='both': only with unit='document'"),
        ({"unit": "passage", "weight": 0.3}, "only with unit='document'"),
        ({"unit": "passage", "diversity": 2}, "diversity=2"),
        ({"unit": "passage", "per_document": 0}, "per_document=0"),
        ({"min_score": "high"}, "min_score='high'"),
        ({"rerank": 3}, "rerank=3"),
    ],
)
def test_options_of_passages_are_checked(retriever: Retriever, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        retriever.search("word1", **options)


def test_an_index_of_documents_has_no_passages(tmp_path: Path) -> None:
    build_index(ROWS, tmp_path / "ix", model=FakeEmbedder(), granularity="document")
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        with pytest.raises(ConfigError, match="unit='passage': this index was built with granularity 'document'"):
            retriever.search("zinc", unit="passage")
        with pytest.raises(ConfigError, match="min_score"):
            retriever.search("zinc", min_score=0.5)
        assert retriever.search("zinc", mode="lexical", min_score=0.1)[0].id in ("rust", "copy")


class Longest:
    """A cross-encoder that likes long texts."""

    def predict(self, sentences: list[tuple[str, str]]) -> np.ndarray:
        return np.array([float(len(text)) for _, text in sentences])


@pytest.mark.parametrize("unit", ["document", "passage"])
def test_a_cross_encoder_orders_candidates(retriever: Retriever, unit: Any) -> None:
    hits = retriever.search("zinc hull", k=5, unit=unit, rerank=Longest())
    assert [h.score for h in hits] == [float(len(h.passage or "")) for h in hits]
    assert hits[0].score == max(h.scores["cross-encoder"] for h in hits)
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


def test_maxsim_orders_passages(retriever: Retriever) -> None:
    query = "zinc anodes protect the hull"
    hits = retriever.search(query, k=3, unit="passage", mode="dense", rerank="maxsim")
    assert hits[0].scores["maxsim"] == hits[0].score == pytest.approx(1.0, abs=1e-5)
    (best, *_) = retriever.search(query, k=3, unit="passage", rerank="maxsim")
    (before,) = [hit.score for hit in retriever.search(query, k=50, unit="passage") if hit.span == best.span]
    s = (np.log(before / (1 - before)) - OFFSET) / SLOPE
    assert best.score == pytest.approx(s + MAXSIM_CONFIDENCE * best.scores["maxsim"], abs=1e-4)


def test_a_hit_is_json_without_its_text(retriever: Retriever) -> None:
    (hit,) = retriever.search("zinc", k=1, unit="passage")
    assert "text" not in json.loads(json.dumps(hit.to_dict()))
    assert hit.to_dict(text=True)["text"] == hit.text


def test_a_prompt_keeps_to_its_budget(retriever: Retriever) -> None:
    hits = retriever.search("zinc hull word1", k=8, unit="passage")
    whole = hits_to_prompt(hits, max_tokens=100_000)
    assert all(f"[{n}] " in whole and (h.passage or "").strip() in whole for n, h in enumerate(hits, start=1))
    assert f"characters {hits[0].span[0]}-{hits[0].span[1]}" in whole  # type: ignore[index]
    for budget in (60, 120, 200):
        assert 0 < estimate_tokens(hits_to_prompt(hits, max_tokens=budget)) <= budget
    assert hits_to_prompt([], max_tokens=10) == ""
    with pytest.raises(ConfigError, match="none of the 8 hits fits; the smallest has"):
        hits_to_prompt(hits, max_tokens=3)


@pytest.mark.parametrize("words", [range(0), range(40), range(200, 240)])
def test_a_prompt_keeps_the_best_hit_trimmed(words: range) -> None:
    text = "First of all. " + " ".join(f"Sentence {n} says so much." for n in range(60))
    best = (text.index("Sentence 30"), text.index("Sentence 31") - 1) if words else (0, 13)
    if words.start:  # a sentence that does not fit
        text, best = " ".join(f"word{n}" for n in words), (0, 300)
    hit = Hit("a", 1.0, "xy" + text, "", {}, text, span=(2, 2 + len(text)), best_sentence=(best[0] + 2, best[1] + 2))
    other = Hit("b", 0.5, "Small.", "", {}, "Small.", span=(0, 6))
    prompt = hits_to_prompt([hit, other], max_tokens=60)
    assert estimate_tokens(prompt) <= 60
    found = re.match(r"\[1\] \(a, characters (\d+)-(\d+)\)\n(.+)\n\n", prompt)
    assert found
    kept = found[3]
    assert kept == hit.text[int(found[1]) : int(found[2])]
    assert len(kept) > 100
    if words.start:
        assert text.startswith(kept + " ")
    else:
        assert kept.startswith("Sentence 30" if words else "First of all. Sentence 0") and kept.endswith("so much.")
