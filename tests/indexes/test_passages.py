"""Passages: chosen by words and vectors, found in the whole corpus, capped, folded, and put into a
prompt.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Hit, Passage, Retriever, build_index, hits_to_prompt
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search import confidence as confidences
from aveyb_retrieval.indexes.search.hit import Content, KnownCitation
from aveyb_retrieval.indexes.search.passage_scores import (
    COSINE_WEIGHT,
    NEIGHBOR_WEIGHT,
    PassageScores,
)
from aveyb_retrieval.indexes.search.prompts import estimate_tokens
from aveyb_retrieval.indexes.search.ranking import PASSAGE_MAXSIM_WEIGHT
from aveyb_retrieval.indexes.search.sentences import Citation
from aveyb_retrieval.indexes.types import PASSAGE_BITS
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.search.options import Mode

RUST = (
    "Ships corrode at sea quickly every single year. "
    + "Zinc anodes protect the hull from all rust. "
    + "word1 " * 30
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
    hits = retriever.search(
        "zinc anodes protect the hull", k=12, unit="passage", mode=mode, fold=False
    )
    zinc = [hit for hit in hits if "Zinc" in (hit.passage or "")]
    assert {hit.id for hit in zinc} == {"rust", "copy"}
    assert zinc[0].score == zinc[1].score
    # the fake model's vectors are few numbers, others may be near by chance
    assert mode == "dense" or zinc == hits[:2]
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
    assert len({(h.id, h.span) for h in hits}) == len(hits)
    for hit in hits:
        assert hit.span is not None
        assert hit.passage == hit.text[slice(*hit.span)]
        assert hit.passages == (Passage(hit.passage, hit.span, hit.score, hit.scores),)
    assert (hits[0].confidence is None) == (mode != "hybrid")


def by_their_equation(
    retriever: Retriever, query: str, words: list[str]
) -> tuple[dict[Any, float], dict[Any, float]]:
    """The scores s(p) of all passages, and their confidence, by id and span."""
    (vector,) = FakeEmbedder().encode_queries([query])
    snapshot = retriever._engine.snapshot
    ids = snapshot.tables.passage_numbers(snapshot.tables.numbers("document").tolist())
    spans = dict(zip(ids.tolist(), map(tuple, snapshot.passages(ids).spans.tolist()), strict=True))
    named = snapshot.documents(np.unique(ids >> PASSAGE_BITS).tolist())
    texts = [named[i >> PASSAGE_BITS].text[slice(*spans[i])].lower().split() for i in ids.tolist()]
    holding = {w: [any(t.strip(".") == w for t in text) for text in texts] for w in words}
    weights = {
        w: np.log(1 + (len(ids) - sum(h) + 0.5) / (sum(h) + 0.5)) for w, h in holding.items()
    }
    coverage = sum(weights[w] * np.array(h) for w, h in holding.items()) / sum(weights.values())
    cosine = snapshot.vectors("passage", ids) @ vector
    own = COSINE_WEIGHT * (cosine - float(snapshot.mean_vector @ vector)) + coverage
    s = []
    for row, i in enumerate(ids.tolist()):
        beside = [
            own[r] for r in (row - 1, row + 1) if 0 <= r < len(ids) and abs(int(ids[r]) - i) == 1
        ]
        s.append(float(own[row] + NEIGHBOR_WEIGHT * max(beside, default=0)))
    best = int(np.argmax(s))
    near = [
        t == texts[best] and abs(c - cosine[best]) < confidences.SAME_COSINE
        for t, c in zip(texts, cosine, strict=True)
    ]
    beside_them = {i + step for i in ids[near].tolist() for step in (-1, 0, 1)}
    following = max(0.0, *(x for i, x in zip(ids.tolist(), s, strict=True) if i not in beside_them))
    margins = [
        x - (following if near[row] and x > following else max(0.0, s[best]))
        for row, x in enumerate(s)
    ]
    z = confidences.NEAR * cosine[best] + confidences.MARGIN * np.array(margins)
    z += confidences.CHANCE * np.log(len(ids)) + confidences.OFFSET
    keys = [(named[i >> PASSAGE_BITS].id, spans[i]) for i in ids.tolist()]
    return dict(zip(keys, s, strict=True)), dict(
        zip(keys, (1 / (1 + np.exp(-z))).tolist(), strict=True)
    )


def test_hybrid_passages_are_scored_by_their_equation(retriever: Retriever) -> None:
    query = "zinc hull word1"
    hits = retriever.search(query, k=5000, unit="passage", fold=False, candidates=5000, exact=True)
    s, expected = by_their_equation(retriever, query, query.split())
    assert len(hits) == len(expected)
    for hit in hits:
        assert hit.score == hit.confidence == pytest.approx(expected[hit.id, hit.span], abs=1e-4)
    assert [s[hit.id, hit.span] for hit in hits] == pytest.approx(
        sorted(s.values(), reverse=True), abs=1e-5
    )


def test_a_document_shows_the_passage_that_is_best_for_its_document(retriever: Retriever) -> None:
    for query in ("zinc protects the hull", "ships at sea", "word1"):
        found = {
            h.id: h
            for h in reversed(
                retriever.search(query, k=500, unit="passage", fold=False, candidates=500)
            )
        }
        for hit in retriever.search(query, k=5, passages=3):
            if hit.id in found:
                assert (hit.span, hit.confidence) == (
                    found[hit.id].span,
                    pytest.approx(found[hit.id].confidence, abs=1e-5),
                )
            assert [p.score for p in hit.passages] == sorted(
                (p.score for p in hit.passages), reverse=True
            )


def test_nothing_ties_at_zero(retriever: Retriever) -> None:
    hits = retriever.search("quantum chromodynamics", k=40, filter={"year": {"$gte": 2000}})
    assert len({round(h.score, 9) for h in hits}) > 30


def test_copies_are_folded(retriever: Retriever) -> None:
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
        rows = [
            next(iter(FakeEmbedder().encode_documents([("", h.passage or "")]))).vector
            for h in hits
        ]
        return float(np.triu(np.stack(rows) @ np.stack(rows).T, 1).sum())

    assert likeness(varied) < likeness(plain)


def test_what_is_below_the_least_score_is_left_out(retriever: Retriever) -> None:
    choices: list[dict[str, Any]] = [
        {"unit": "passage"},
        {},
        {"unit": "passage", "mode": "dense"},
        {"mode": "lexical"},
    ]
    for options in choices:
        everything = retriever.search("zinc hull", k=20, **options)
        scale = [h.score if "mode" in options else h.confidence or 0.0 for h in everything]
        least = sorted(scale)[-min(3, len(scale))]
        some = retriever.search("zinc hull", k=20, min_score=least, **options)
        assert [h.id for h in some] == [
            h.id for h, s in zip(everything, scale, strict=True) if s >= least
        ]
    assert retriever.search("zinc hull", min_score=1.0) == []
    with pytest.raises(ConfigError, match="min_score=nan: must be a number"):
        retriever.search("zinc hull", min_score=float("nan"))
    with pytest.raises(ConfigError, match=r"min_score=1\.1: a confidence is at most 1"):
        retriever.search("zinc hull", min_score=1.1)


def test_filters_hold_for_passages(retriever: Retriever) -> None:
    modes: tuple[Mode, ...] = ("dense", "lexical", "hybrid")
    for mode in modes:
        hits = retriever.search(
            "zinc word1", k=50, unit="passage", mode=mode, filter={"year": {"$lt": 1901}}
        )
        assert {h.id for h in hits} == {"rust"}


def test_vectors_find_passages(retriever: Retriever) -> None:
    query = "zinc anodes protect the hull"
    (found,) = retriever.search_vectors(FakeEmbedder().encode_queries([query]), k=4, unit="passage")
    by_text = retriever.search(query, k=4, unit="passage", mode="dense", fold=False)
    unread = {"highlights": (), "best_sentence": None}
    assert [hit.to_dict(text=True) for hit in found] == [
        {**hit.to_dict(text=True), **unread} for hit in by_text
    ]


def test_an_index_of_documents_has_no_passages(tmp_path: Path) -> None:
    build_index(ROWS, tmp_path / "ix", model=FakeEmbedder(), granularity="document")
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever:
        with pytest.raises(
            ConfigError, match="unit='passage': this index was built with granularity 'document'"
        ):
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
    best, *_ = retriever.search("zinc hull", k=3, unit="passage", rerank="maxsim")
    s, _ = by_their_equation(retriever, "zinc hull", ["zinc", "hull"])
    assert best.score == pytest.approx(
        s[best.id, best.span] + PASSAGE_MAXSIM_WEIGHT * best.scores["maxsim"], abs=1e-4
    )


def test_among_one_or_two_documents_nothing_is_known(tmp_path: Path) -> None:
    texts = [
        "zinc protects the hull of a ship",
        "close the valve",
        "everybody has thirty days of leave",
    ]
    for count in (1, 2, 3):
        rows = [{"_id": str(i), "text": text} for i, text in enumerate(texts[:count])]
        build_index(rows, tmp_path / str(count), model=FakeEmbedder())
        with Retriever.load(tmp_path / str(count), model=FakeEmbedder()) as few:
            units: list[dict[str, Any]] = [{}, {"unit": "passage"}, {"fusion": "rrf"}]
            for options in units[:2] if count < 3 else units:
                best, *others = few.search("zinc of a hull", **options)
                assert (best.confidence is None) == (count < 3)
                kept = few.search("zinc of a hull", min_score=0.99, **options)
                assert (len(kept) == 1 + len(others)) == (count < 3), (
                    "what is not known leaves nothing out"
                )


def test_confidence_does_not_grow_with_the_collection() -> None:
    ids, cosine = np.array([1, 5, 9]) << PASSAGE_BITS, np.array([0.8, 0.3, 0.2], np.float32)
    score = np.array([1.5, 0.2, 0.1], np.float32)

    def confidence(ids: Any, score: Any, cosine: Any, passages: int) -> Any:
        best = confidences.find_best_passage(PassageScores(ids, score, score, cosine))
        assert best is not None
        return confidences.confidence(ids, score, best, passages)

    few = confidence(ids, score, cosine, 3)
    more = np.concatenate([ids, np.arange(100, 1100) << PASSAGE_BITS])
    more_score, more_cosine = (
        np.append(score, np.full(1000, -0.2)),
        np.append(cosine, np.full(1000, 0.1)),
    )
    many = confidence(more, more_score, more_cosine, 1003)
    assert few[0] - 0.05 < many[0] < few[0]
    assert few[0] > 0.9
    assert confidence(ids, np.array([1.5, 1.45, 0]), cosine, 3)[0] < few[0], (
        "another one is as good"
    )
    assert confidence(ids, score, cosine / 4, 3)[0] < few[0], "the best one is far away"
    assert (np.diff(confidence(ids, score - 2, cosine, 3)) < 0).all()
    twice = np.array([0.8, 0.8, 0.2], np.float32)
    copies = confidence(ids, np.array([1.5, 1.45, 0]), twice, 3)
    assert few[0] < copies[0] and few[0] - 0.05 < copies[1] < copies[0], "copies are no others"
    behind = confidence(ids, np.array([1.5, 1.3, 1.4]), twice, 3)
    assert behind[0] > behind[2] > behind[1], "it orders passages as their scores do"


def test_a_hit_prints_in_a_few_lines(tmp_path: Path) -> None:
    build_index(
        [{"_id": "a", "text": "zinc " * 50_000, "note": "word " * 999}],
        tmp_path / "ix",
        model=FakeEmbedder(),
    )
    with Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as long:
        (hit,) = long.search("zinc", passages=20)
    assert repr(hit).startswith("Hit(id='a', score=")
    assert len(repr(hit)) < 1500
    assert "context" not in repr(hit)


def test_a_hit_is_json_without_its_text(retriever: Retriever) -> None:
    (hit,) = retriever.search("zinc", k=1, unit="passage")
    assert "text" not in json.loads(json.dumps(hit.to_dict()))
    assert hit.to_dict(text=True)["text"] == hit.text


def test_a_prompt_keeps_to_its_budget(retriever: Retriever) -> None:
    hits = retriever.search("zinc hull word1", k=8, unit="passage")
    whole = hits_to_prompt(hits, max_tokens=100_000)
    assert all(
        f"[{n}] " in whole and (h.passage or "").strip() in whole
        for n, h in enumerate(hits, start=1)
    )
    assert f"characters {hits[0].span[0]}-{hits[0].span[1]}" in whole  # type: ignore[index]
    for budget in (60, 120, 200):
        assert 0 < estimate_tokens(hits_to_prompt(hits, max_tokens=budget)) <= budget
    assert hits_to_prompt([], max_tokens=10) == ""
    with pytest.raises(
        ConfigError, match=r"none of the 8 hits fits, nor a .*; the smallest hit has \d+ tokens$"
    ):
        hits_to_prompt(hits, max_tokens=3)


@pytest.mark.parametrize("words", [range(0), range(40), range(200, 240)])
def test_a_prompt_keeps_the_best_hit_trimmed(words: range) -> None:
    text = "First of all. " + " ".join(f"Sentence {n} says so much." for n in range(60))
    best = (text.index("Sentence 30"), text.index("Sentence 31") - 1) if words else (0, 13)
    if words.start:  # a sentence that does not fit
        text, best = " ".join(f"word{n}" for n in words), (0, 300)
    best = (best[0] + 2, best[1] + 2)
    cited = KnownCitation(Citation(best))
    hit = Hit(
        "a",
        1.0,
        passages=(Passage(text, (2, 2 + len(text)), 1.0, _citations=cited),),
        _content=Content("xy" + text),
    )
    other = Hit("b", 0.5, passages=(Passage("Small.", (0, 6), 0.5),))
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
        assert kept.startswith(
            "Sentence 30" if words else "First of all. Sentence 0"
        ) and kept.endswith("so much.")
