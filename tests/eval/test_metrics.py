"""Metrics against trec_eval's C code and against its definition computed independently in numpy."""

from __future__ import annotations

import csv
import math
import sys
from functools import partial

import numpy as np
import pytest
import pytrec_eval
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aveyb_retrieval.errors import ConfigError, InputError, OptionalDependencyError
from aveyb_retrieval.eval.base import read_run, write_run
from aveyb_retrieval.eval.data import read_qrels
from aveyb_retrieval.eval.metrics import evaluate, parse_metric, retrieved_ndcg
from tests.refusals import Refusal, refusals

K = 10
METRICS = ("ndcg@10", "recall@5", "map", "success@1", "success@5", "mrr@10")


def ndcg_by_definition(judged: dict[str, int], scores: dict[str, float], k: int) -> float:
    """Linear gain, ideal over all judged documents, ties by id descending: written from the
    definition alone.
    """
    docs = np.array(sorted(scores, reverse=True))  # id descending, then a stable sort by score
    order = np.argsort([-scores[d] for d in docs], kind="stable")[:k]
    gains = (
        np.array([max(judged.get(d, 0), 0) for d in docs[order]], dtype=float)
        if len(docs)
        else np.zeros(0)
    )
    ideal = np.sort([max(g, 0) for g in judged.values()])[::-1][:k].astype(float)
    discount = lambda n: np.log2(np.arange(n) + 2.0)
    best = float(np.sum(ideal / discount(len(ideal))))
    return float(np.sum(gains / discount(len(gains)))) / best if best else 0.0


def map_by_definition(judged: dict[str, int], scores: dict[str, float]) -> float:
    order = sorted(sorted(scores, reverse=True), key=lambda d: -scores[d])
    relevant = [d for d, g in judged.items() if g > 0]
    found, total = 0, 0.0
    for i, doc in enumerate(order, start=1):
        if doc in relevant:
            found += 1
            total += found / i
    return total / len(relevant) if relevant else 0.0


doc_ids = st.integers(0, 30).map(lambda i: f"d{i}")
coarse = st.integers(-8, 8).map(lambda i: i / 4)  # few values: ties are the rule
queries = st.integers(0, 6).map(lambda i: f"q{i}")


runs = given(
    judgements=st.dictionaries(
        queries, st.dictionaries(doc_ids, st.integers(0, 4), min_size=1, max_size=15), min_size=1
    ),
    run=st.dictionaries(queries, st.dictionaries(doc_ids, coarse, max_size=25)),
)


def equals_trec_eval(judgements, run):
    """On a run with ties, grades and missing queries: the C code on the raw scores, and the
    definition.
    """
    scores = evaluate(judgements, run, METRICS)
    measures = {"ndcg_cut.10", "recall.5", "map", "success.1,5"}
    theirs = pytrec_eval.RelevanceEvaluator(judgements, measures).evaluate(run)
    names = {
        "ndcg@10": "ndcg_cut_10",
        "recall@5": "recall_5",
        "map": "map",
        "success@1": "success_1",
        "success@5": "success_5",
    }
    for query, judged in judgements.items():
        assert scores.per_query["ndcg@10"][query] == pytest.approx(
            ndcg_by_definition(judged, run.get(query, {}), K), abs=1e-9
        )
        assert scores.per_query["map"][query] == pytest.approx(
            map_by_definition(judged, run.get(query, {})), abs=1e-9
        )
        for ours, name in names.items():
            assert scores.per_query[ours][query] == pytest.approx(
                theirs.get(query, {}).get(name, 0.0), abs=1e-9
            )
    assert set(scores.missing) == {query for query in judgements if not run.get(query)}
    assert scores.unjudged == len(run.keys() - judgements.keys())
    for metric in METRICS:  # every judged query counts in the mean, a missing one as 0
        assert scores.mean[metric] == pytest.approx(
            sum(scores.per_query[metric].values()) / len(judgements), abs=1e-12
        )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@runs
def test_equals_trec_eval_on_random_runs(judgements, run):
    equals_trec_eval(judgements, run)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@runs
def test_equals_trec_eval_on_many_random_runs(judgements, run):
    equals_trec_eval(judgements, run)


hostile = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\t\r\n"), min_size=1, max_size=4
)
hostile = st.one_of(
    hostile,
    st.sampled_from(["a ", " a", '"a"', '"', "\u2028", "\x85b", "\u3000c", "NaN", "1", "01"]),
)
hostile = hostile.filter(str.strip)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    judgements=st.dictionaries(
        hostile,
        st.dictionaries(hostile, st.integers(-1, 3), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    ),
    run=st.dictionaries(
        hostile, st.dictionaries(hostile, coarse, min_size=1, max_size=8), min_size=1, max_size=4
    ),
)
def test_files_with_hostile_ids_score_as_in_trec_eval(tmp_path_factory, judgements, run):
    """Judgements as `csv` writes them, runs as we do; trec_eval gets the dictionaries
    themselves.
    """
    folder = tmp_path_factory.mktemp("files")
    with (folder / "qrels.tsv").open("w", newline="", encoding="utf-8") as out:
        rows = [
            ("query-id", "corpus-id", "score"),
            *((q, d, g) for q, own in judgements.items() for d, g in own.items()),
        ]
        csv.writer(out, delimiter="\t", lineterminator="\n").writerows(rows)
    write_run(folder / "run", run)
    scores = evaluate(
        read_qrels(folder / "qrels.tsv").judgements, read_run(folder / "run"), ["ndcg@10", "map"]
    )
    theirs = pytrec_eval.RelevanceEvaluator(judgements, {"ndcg_cut.10", "map"}).evaluate(run)
    for query in judgements:
        for ours, name in (("ndcg@10", "ndcg_cut_10"), ("map", "map")):
            assert scores.per_query[ours][query] == pytest.approx(
                theirs.get(query, {}).get(name, 0.0), abs=1e-9
            )


def test_ids_that_c_would_cut_stay_apart():
    scores = evaluate(
        {"q\0a": {"d\0a": 1}, "q\0b": {"\ud800": 1}},
        {"q\0a": {"d\0b": 1.0}, "q\0b": {"\ud800": 1.0}},
        ["map"],
    )
    assert scores.per_query["map"] == {"q\0a": 0.0, "q\0b": 1.0}


def test_the_largest_cut_off_is_taken():
    assert evaluate({"q": {"a": 1}}, {"q": {"a": 1.0}}, ["ndcg@16777216"]).mean == {
        "ndcg@16777216": 1.0
    }


def test_worked_example():
    """Grades 3, 0, 1, 2 retrieved in this order, another 3 missed."""
    judgements = {"q": {"a": 3, "b": 0, "c": 1, "d": 2, "missed": 3}}
    run = {"q": {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}}
    assert round(evaluate(judgements, run).mean["ndcg@10"], 4) == 0.6897


def test_linear_and_not_exponential_gain():
    judgements = {"q": {"a": 3, "b": 0, "c": 1, "d": 2, "missed": 3}}
    gains = [7, 0, 1, 3]
    ideal = [7, 7, 3, 1]
    dcg = lambda values: sum(v / math.log2(i + 2) for i, v in enumerate(values))
    exponential = dcg(gains) / dcg(ideal)
    assert round(exponential, 4) == 0.6587  # what a tool with 2^rel - 1 would say
    assert evaluate(judgements, {"q": {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}}).mean[
        "ndcg@10"
    ] != pytest.approx(exponential)


def test_ties_go_to_the_larger_id():
    """trec_eval orders equal scores by id descending, and ids compare as strings: "9"
    after "10".
    """
    assert evaluate({"q": {"9": 1}}, {"q": {"10": 1.0, "9": 1.0}}, ["mrr@10"]).mean["mrr@10"] == 1.0
    assert (
        evaluate({"q": {"10": 1}}, {"q": {"10": 1.0, "9": 1.0}}, ["mrr@10"]).mean["mrr@10"] == 0.5
    )


def test_scores_are_compared_as_doubles():
    """pytrec_eval rounds scores to float32 and then sees a tie; the order of the
    doubles must win.
    """
    run = {"q": {"a": 1.0 + 1e-10, "b": 1.0}}
    raw = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"recip_rank"}).evaluate(run)
    assert raw["q"]["recip_rank"] == 0.5
    assert evaluate({"q": {"a": 1}}, run, ["mrr@10"]).mean["mrr@10"] == 1.0


def test_mrr_is_cut_and_map_is_not():
    run = {"q": {f"x{i:02}": float(-i) for i in range(12)}}
    judgements = {"q": {"x11": 1}}
    scores = evaluate(judgements, run, ["mrr@10", "mrr@12", "map"]).mean
    assert scores == {"mrr@10": 0.0, "mrr@12": pytest.approx(1 / 12), "map": pytest.approx(1 / 12)}


def test_query_without_relevant_documents_counts_as_zero():
    scores = evaluate({"q": {"a": 1}, "empty": {"a": 0}}, {"q": {"a": 1.0}, "empty": {"a": 1.0}})
    assert scores.mean["ndcg@10"] == 0.5


@refusals(
    {
        ConfigError: {
            "unknown metric": [
                partial(parse_metric, name)
                for name in ("ndcg", "ndcg@0", "ndcg@-1", "p@10", "map@5", "")
            ],
            "K is at most 16,777,216": [
                partial(evaluate, {"q": {"a": 1}}, {"q": {"a": 1.0}}, [metric])
                for metric in ("ndcg@16777217", "mrr@99999999999999999999")
            ],
        },
        InputError: {
            "'d'": [
                partial(evaluate, {"q": {"d": 1}}, {"q": {"d": score}})
                for score in (math.nan, math.inf)
            ],
            "no judgements": partial(evaluate, {}, {"q": {"d": 1.0}}),
            "query 'q' has the grade 1000000000000": partial(
                evaluate, {"q": {"a": 10**12}}, {"q": {"a": 1.0}}
            ),
        },
    }
)
def test_what_cannot_be_measured_is_refused(refused: Refusal):
    refused()


@settings(max_examples=200, deadline=None)
@given(
    judged=st.dictionaries(doc_ids, st.integers(0, 2), min_size=1, max_size=15),
    scores=st.dictionaries(doc_ids, coarse, min_size=2, max_size=25),
)
def test_retrieved_ndcg_equals_scikit_learn(judged, scores):
    """The paper's code calls scikit-learn's `ndcg_score` on the ten retrieved documents."""
    ndcg_score = pytest.importorskip("sklearn.metrics").ndcg_score
    top = sorted(scores, key=lambda d: (scores[d], d), reverse=True)[:K]
    true = [int(judged.get(d, 0) >= 1) for d in top]
    ours = retrieved_ndcg({"q": judged}, {"q": scores})
    if not any(grade >= 1 for grade in judged.values()):
        assert ours == {}
    else:
        assert ours["q"] == pytest.approx(ndcg_score([true], [[scores[d] for d in top]]), abs=1e-9)


def test_retrieved_ndcg_forgives_what_was_missed():
    judgements = {"q": {"a": 1, "b": 1, "c": 1}}
    run = {"q": {"a": 1.0}}
    assert retrieved_ndcg(judgements, run)["q"] == 1.0
    assert evaluate(judgements, run).mean["ndcg@10"] == pytest.approx(
        1 / (1 + 1 / math.log2(3) + 0.5)
    )


def test_a_missing_trec_eval_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    with pytest.raises(OptionalDependencyError, match=r"pip install .*\[eval\]'"):
        evaluate({"q": {"a": 1}}, {"q": {"a": 1.0}})
