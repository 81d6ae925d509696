"""Judgements and runs as they come: every shape that is accepted, and a clear word on every one
that is not.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval.base import rank, read_run, write_run
from aveyb_retrieval.eval.data import collect_qrels, read_qrels
from tests.refusals import Refusal, refusals

WANTED = {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": 2}}


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\nq2\td1\t2\n",
        "q1\td1\t1\nq1\td2\t0\nq2\td1\t2\n",  # no header: the first judgement must not be lost
        "q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n",  # TREC
        "q1\t0\td1\t1\nq1\t0\td2\t0\nq2\t0\td1\t2",
        "query-id\titer\tcorpus-id\tscore\nq1\t0\td1\t1\nq1\t0\td2\t0\nq2\t0\td1\t2\n",
        # the header decides the order
        "corpus-id\tquery-id\tscore\nd1\tq1\t1\nd2\tq1\t0\nd1\tq2\t2\n",
        "\ufeffquery_id\tdoc_id\trelevance\r\nq1\td1\t1\r\nq1\td2\t0\r\n\r\nq2\td1\t2\r\n",
        "q1 d1 1\nq1 d2 0\nq2 d1 2.0\n",
        "q1 0\td1 1\nq1\t0 d2\t0\nq2 0 d1 2\n",
        '"query-id"\t"corpus-id"\t"score"\n"q1"\t"d1"\t"1"\n"q1"\td2\t0\nq2\td1\t2\n',
    ],
    ids=[
        "beir",
        "headerless",
        "trec",
        "trec-tabs",
        "header-4",
        "swapped",
        "bom-crlf",
        "blanks",
        "mixed",
        "quoted",
    ],
)
def test_every_layout_reads_the_same(tmp_path, text):
    path = tmp_path / "test.tsv"
    path.write_bytes(text.encode())
    assert read_qrels(path).judgements == WANTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no judgements"),
        ("query-id\tcorpus-id\tscore\n", "no judgements"),
        ("q1\td1\t1\nq1\td2\n", "line 2: 2 columns, expected 3"),
        ("q1 d 1 0 1\n", "line 1: 5 columns"),
        ("q1\td1\t1\nq1\td2\t0.5\n", "line 2: the grade '0.5' is not an integer"),
        ("q1\td1\t1\nq1\td2\tnan\n", "line 2: the grade 'nan' is not an integer"),
        ("q1\td1\t1\nq1\td2\thigh\n", "line 2: the grade 'high' is not a number"),
        (
            "q1\td1\t1\nq1\td1\t2\n",
            "line 2: query 'q1', document 'd1' is judged 2 here and 1 in .*, line 1",
        ),
        ("q1\td1\t1_0\n", "neither a judgement"),
        ("q1\td1\t1\nq1\td2\t1_0\n", "line 2: the grade '1_0' is not a number"),
        ("q1\td1\t1700000000\n", "line 1: the grade '1700000000' is above 100,000"),
        (f"q1\td1\t{10**20}\n", "is above 100,000"),
        ("a\tb\tc\nq1\td1\t1\n", "line 1: .* is neither a judgement .* nor a header"),
        ("query-id\tcorpus-id\tscore\tnotes\nq\td\t1\tx\n", "unknown column 'notes'"),
        ("q1\t\t1\n", "line 1: 'corpus-id' must be a non-empty id"),
    ],
)
def test_bad_qrels(tmp_path, text, message):
    path = tmp_path / "bad.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_qrels(path)


@refusals(
    {
        InputError: {
            r"no such qrels file": lambda path: None,
            r"not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x00"),
        },
    }
)
def test_missing_and_binary_qrels_are_refused(tmp_path, refused: Refusal):
    refused.then(read_qrels, tmp_path / "x.tsv")


def test_decisions_are_announced(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("q1\td1\t1\nq1\td1\t1\nq1\td2\t-1\n")
    qrels = read_qrels(path)
    assert qrels.judgements == {"q1": {"d1": 1, "d2": 0}}
    assert any("1 repeated judgement (same grade)" in notice for notice in qrels.notices)
    assert any("1 negative grade read as 0" in notice for notice in qrels.notices)


def test_ids_with_spaces_need_tabs(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("a query\ta document\t1\n")
    assert read_qrels(path).judgements == {"a query": {"a document": 1}}
    path.write_text("q1 d1 1\na query d1 1\n")
    with pytest.raises(InputError, match=r"line 2: 4 columns.*tab-separated"):
        read_qrels(path)


def test_hub_rows_are_checked_alike():
    assert collect_qrels([("1", "q", "d", 1.0), ("2", "q", "e", 0)], "hub").judgements == {
        "q": {"d": 1, "e": 0}
    }
    with pytest.raises(InputError, match=r"row 2: the grade 0.7"):
        collect_qrels([("row 1", "q", "d", 1.0), ("row 2", "q", "e", 0.7)], "hub")


def test_a_line_ends_only_at_a_newline(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text(
        "q1\tlease\u2028part two\t1\r\nq1\ta\x85b\x1cc\t1\nq1\tbad\n", encoding="utf-8", newline=""
    )
    with pytest.raises(InputError, match="line 3: 2 columns"):
        read_qrels(path)
    path.write_text(
        path.read_text(encoding="utf-8").replace("q1\tbad\n", ""), encoding="utf-8", newline=""
    )
    assert read_qrels(path).judgements == {"q1": {"lease\u2028part two": 1, "a\x85b\x1cc": 1}}


hostile = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n"), min_size=1, max_size=8
)
ids = hostile.filter(str.strip)
runs = st.dictionaries(
    ids,
    st.dictionaries(ids, st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(runs)
@example({"\ufeff": {"a": 1.0}})
@example({"\ufeffq 1": {"\ufeff": 1.0}})
def test_a_written_run_reads_back_exactly(tmp_path_factory, run):
    path = tmp_path_factory.mktemp("runs") / "out.trec"
    write_run(path, run)
    again = read_run(path)
    for query, found in again.items():
        with np.errstate(over="ignore"):
            singles = {np.float32(score) for score in run[query].values()}
        if len(singles) == len(found) and np.isfinite([*singles]).all():
            assert found == run[query], "scores that float32 tells apart stay as they are"
    assert [rank(again[q]) for q in run] == [rank(run[q]) for q in run]


def test_a_run_is_for_trec_eval_unless_an_id_holds_blanks(tmp_path):
    write_run(tmp_path / "plain", {"q\u3000": {'"a"': np.float32(0.5), "b\xa0": 2.0}})
    assert (
        tmp_path / "plain"
    ).read_text() == 'q\u3000 Q0 b\xa0 1 2.0 aveyb\nq\u3000 Q0 "a" 2 0.5 aveyb\n'
    write_run(tmp_path / "tabs", {"q": {"0002 Re_ Invoice.eml": 1.0, '"a"': 0.5}})
    assert (
        tmp_path / "tabs"
    ).read_text() == 'q\tQ0\t0002 Re_ Invoice.eml\t1\t1.0\taveyb\nq\tQ0\t"""a"""\t2\t0.5\taveyb\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the run is empty"),
        ("q Q0 d 1 2.0\n", "line 1: 5 columns, expected 6"),
        ("q Q0 a doc 1 2.0 t\n", "line 1: 7 columns"),
        ("q Q0 d 1 nan t\n", "line 1: the score of 'd' is nan"),
        ("q Q0 d 1 -inf t\n", "line 1: the score of 'd' is -inf"),
        ("q Q0 d 1 1_0 t\n", "line 1: the score '1_0' is not a number"),
        ("q Q0 d 1 best t\n", "line 1: the score 'best' is not a number"),
        ("q Q0 d 1 2.0 t\nq Q0 d 2 1.0 t\n", "line 2: document 'd' occurs twice for query 'q'"),
    ],
)
def test_bad_runs(tmp_path, text, message):
    path = tmp_path / "bad.trec"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_run(path)


def test_rank_column_is_ignored(tmp_path):
    path = tmp_path / "run.trec"
    path.write_text("q Q0 low 1 0.5 t\nq Q0 high 2 0.9 t\n")
    assert rank(read_run(path)["q"]) == ["high", "low"]


@pytest.mark.parametrize(
    "run", [{"q": {"a\ndoc": 1.0}}, {"\r": {"d": 1.0}}, {"q": {"": 1.0}}, {"q": {"d\t": 1.0}}]
)
def test_ids_that_the_format_cannot_carry(tmp_path, run):
    with pytest.raises(InputError, match=r"cannot be written to a TREC run"):
        write_run(tmp_path / "out.trec", run)
    assert not (tmp_path / "out.trec").exists()


CLOSE = (0.440937841294238, 0.44093784129423796, 0.4409378412942379)


@pytest.mark.parametrize(
    "scores",
    [
        dict(zip("abc", CLOSE, strict=True)),
        dict(zip("cba", CLOSE, strict=True)),
        {"a": 1.0, "b": 1.0, "c": 1.0},
        {"a": 0.0, "b": -1e-50, "c": -2e-50},
        {"a": 1e300, "b": 2e300, "c": -1e300},
        {"a": -3.4028234e38, "b": -3.4028235e38, "c": -3.4028235e38},
        {f"d{number:03}": 0.5 + number * 1e-12 for number in range(200)},
    ],
)
def test_trec_eval_orders_a_written_run_as_we_do(scores, tmp_path):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    write_run(tmp_path / "run", {"q": scores})
    written = read_run(tmp_path / "run")["q"]
    order = rank(scores)
    assert rank(written) == order
    single = {name: np.float32(score) for name, score in written.items()}
    assert sorted(single, key=lambda name: -single[name]) == order
    assert len({*single.values()}) == len(scores)
    for place, name in enumerate(order, start=1):
        judged = pytrec_eval.RelevanceEvaluator({"q": {name: 1}}, {"map"})
        assert judged.evaluate({"q": written})["q"]["map"] == pytest.approx(1 / place)
