"""Reports in JSON: every value is read back, and a damaged one is an error that names its place."""

from __future__ import annotations

import pytest

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval.base import SystemInfo
from aveyb_retrieval.eval.runner import Result, write_json
from tests.eval.toys import read_report


def made_up_results() -> list[Result]:
    """A system of each kind on one set, and one under the paper protocol."""
    results = []
    for name, kind, protocol in (
        ("BM25", "lexical", "standard"),
        ("A", "dense", "standard"),
        ("A", "dense", "paper"),
    ):
        metric = "ndcg@10" if protocol == "standard" else "retrieved-ndcg@10"
        per_query = {metric: {"q1": 0.5, "q2": 1.0}, "mrr@10": {"q1": 0.25, "q2": 1.0}}
        info = SystemInfo(
            name, kind, name, "ab" * 32, 256, {"query": "", "document": ""}, "float32"
        )
        results.append(
            Result(
                system=info,
                dataset="toy",
                source="made/up@1",
                split="test",
                protocol=protocol,
                main_metric=metric,
                corpus_size=40,
                full_corpus_size=5000,
                queries=2,
                missing=1,
                unjudged=0,
                depth=100,
                mean={m: sum(v.values()) / 2 for m, v in per_query.items()},
                per_query=per_query,
                task_fingerprint="f" * 64,
                notices=("1 judged query without a hit: scored 0",),
                seconds=1.5,
            )
        )
    return results


def test_a_report_holds_every_value(tmp_path):
    write_json(tmp_path / "report.json", made_up_results())
    assert read_report(tmp_path / "report.json") == made_up_results()


DAMAGE = {
    "notices are a number": lambda row: row.update(notices=5),
    "a field is missing": lambda row: row.pop("queries"),
    "a field of another type": lambda row: row.update(corpus_size="many"),
    "an unknown field": lambda row: row.update(other=1),
    "a notice is no text": lambda row: row.update(notices=[{}]),
    "a mean is null": lambda row: row["mean"].update({"mrr@10": None}),
    "a metric without queries": lambda row: row["mean"].update({"map": 0.5}),
    "a system of text": lambda row: row.update(system="BM25"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_result_is_an_error_that_names_its_place(what):
    row = made_up_results()[0].to_json()
    DAMAGE[what](row)
    with pytest.raises(InputError, match=r"^there: "):
        Result.from_json(row, "there")
