"""The command line end to end on toy data: what it prints, writes, and answers to mistakes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from aveyb_retrieval.cli.eval import main
from aveyb_retrieval.eval.base import read_run, write_run
from tests.eval.toys import QUERIES, ToyEmbedder, read_report, write_folder
from tests.indexes.fake import forget_models
from tests.recorder import record_calls


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments, code=0):
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == code, result.output
        return result.output

    return run


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "toy", spans=True)


def reported(tmp_path, folder):
    """The options of a run over a folder that writes its report."""
    files = ("--cache", tmp_path / "cache", "--report", tmp_path / "r.json")
    return ("--data", folder, *files, "--quiet")


def _score_file(tmp_path, name, run):
    write_run(tmp_path / name, run)
    return tmp_path / name


def test_run_writes_run_and_report(tmp_path, folder, invoke):
    pytest.importorskip("bm25s")
    files = ("--run", tmp_path / "o.trec", "--report", tmp_path / "r.json")
    out = invoke(
        "run", "--data", folder, "--model", "bm25", *files, "--cache", tmp_path / "cache", "--quiet"
    )
    for fact in ("protocol standard", "5 documents, 3 queries, depth 100", "k1=0.9; b=0.4"):
        assert fact in out
    [result] = read_report(tmp_path / "r.json")
    assert set(read_run(tmp_path / "o.trec")) == {"q1", "q2", "q3"}
    scored = json.loads(
        invoke("score", tmp_path / "o.trec", folder / "qrels" / "test.tsv", "--json")
    )
    assert scored["mean"] == result.mean  # the written run scores exactly as it did


def test_only_missing_searches_once(tmp_path, folder, invoke, monkeypatch):
    pytest.importorskip("bm25s")
    from aveyb_retrieval.eval.systems import BM25System

    calls = record_calls(monkeypatch, BM25System, "search")
    arguments = (
        "run",
        "--data",
        folder,
        "--model",
        "bm25",
        "--cache",
        tmp_path / "cache",
        "--quiet",
    )
    first = invoke(*arguments, "--only-missing")
    assert invoke(*arguments, "--only-missing") == first
    assert len(calls) == 1
    invoke(*arguments)
    assert len(calls) == 2


@pytest.fixture
def toy_model(monkeypatch):
    """`--model default` is the toy embedder."""
    from aveyb_retrieval.encoder.embedders.embedder import Embedder

    monkeypatch.setattr(Embedder, "load", classmethod(lambda cls, model=None, **_: ToyEmbedder()))
    forget_models(monkeypatch)


def test_modes_granularities_and_several_models(tmp_path, folder, invoke, toy_model):
    pytest.importorskip("bm25s")
    common = (*reported(tmp_path, folder), "--index-type", "none")
    invoke("run", *common, "--model", "default", "--model", "bm25", "--run", tmp_path / "runs")
    dense, lexical = read_report(tmp_path / "r.json")
    assert (dense.system.kind, lexical.system.kind) == ("dense", "lexical")
    assert len(list((tmp_path / "runs").glob("toy.test.*.trec"))) == 2
    invoke("run", *common, "--mode", "hybrid", "--granularity", "document")
    [hybrid] = read_report(tmp_path / "r.json")
    assert (hybrid.system.name, hybrid.system.kind) == ("toy, document", "hybrid")
    invoke("run", *common, "--chunk-words", "8")
    [chunks] = read_report(tmp_path / "r.json")
    assert (chunks.system.settings["granularity"], chunks.system.settings["chunks"]) == (
        "passage",
        "8 words",
    )
    out = invoke("run", *common, "--protocol", "paper")
    [paper] = read_report(tmp_path / "r.json")
    assert paper.main_metric == "retrieved-ndcg@10"
    assert "protocol paper" in out and "not comparable with standard scores" in out
    invoke("run", *common, "--model", "bm25", "--protocol", "paper")
    assert read_report(tmp_path / "r.json")[0].system.settings["title_separator"] == ". "


def test_index_end_to_end(tmp_path, folder, invoke, toy_model):
    """A real index built and searched through `Retriever` gives what exact search gives."""
    pytest.importorskip("faiss")
    common = reported(tmp_path, folder)
    invoke("run", *common, "--index-type", "none")
    [exact] = read_report(tmp_path / "r.json")
    invoke("run", *common, "--index-type", "flat", "--mode", "dense", "--run", tmp_path / "o.trec")
    [built] = read_report(tmp_path / "r.json")
    assert built.system.kind == "index"
    assert built.system.settings["factory"] == {"document": ["Flat"], "passage": ["Flat"]}
    assert built.mean == pytest.approx(exact.mean)
    [index] = (tmp_path / "cache" / "indexes").iterdir()
    invoke("run", *common, "--model", index, "--mode", "dense")
    assert read_report(tmp_path / "r.json")[0].mean == pytest.approx(exact.mean)


def test_the_default_is_the_product(tmp_path, folder, invoke, toy_model, monkeypatch):
    """What `run` measures by default is `Retriever.search` by default, without bm25s."""
    pytest.importorskip("faiss")
    from aveyb_retrieval.indexes.search.retriever import Retriever

    monkeypatch.setitem(sys.modules, "bm25s", None)
    files = (
        "--cache",
        tmp_path / "cache",
        "--run",
        tmp_path / "o.trec",
        "--report",
        tmp_path / "r.json",
    )
    out = invoke("run", "--data", folder, *files, "--quiet")
    assert "mode='hybrid'" in out and "stored as float32" in out
    [index] = (tmp_path / "cache" / "indexes").iterdir()
    retriever = Retriever.load(index, model=ToyEmbedder())
    run = read_run(tmp_path / "o.trec")
    for query in run:
        hits = retriever.search(QUERIES[query], k=100)
        assert run[query] == pytest.approx({hit.id: hit.score for hit in hits}, abs=1e-6)
    assert read_report(tmp_path / "r.json")[0].system.settings["mode"] == "hybrid"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--index-type", "flat", "--chunk-words", "5"),
            "index type 'flat': an index makes its own passages",
        ),
        (
            ("--index-type", "flat", "--protocol", "paper"),
            "index type 'flat': the paper protocol has its own prompts",
        ),
        (("--index-type", "none", "--mode", "lexical"), "name bm25 instead"),
    ],
)
def test_options_that_cannot_be_honored_are_refused(
    tmp_path, folder, invoke, toy_model, options, message
):
    assert message in invoke(
        "run", "--data", folder, *options, "--cache", tmp_path / "cache", "--quiet", code=2
    )


def test_an_index_refuses_options_of_its_build(tmp_path, folder, invoke, toy_model):
    pytest.importorskip("faiss")
    common = ("run", "--data", folder, "--cache", tmp_path / "cache", "--quiet")
    invoke(*common)
    [index] = (tmp_path / "cache" / "indexes").iterdir()
    for options, message in (
        (
            ("--index-type", "flat"),
            "index type 'flat' has no effect on an index that is built already",
        ),
        (("--chunk-words", "5"), "chunk words 5 has no effect"),
        (("--max-tokens", "9"), "built with max_tokens None, and 9 is asked for"),
        (("--protocol", "paper"), "an index holds the whole corpus"),
    ):
        assert message in invoke(*common, "--model", index, *options, code=2)


def test_score_prints_decisions(tmp_path, folder, invoke):
    run = _score_file(tmp_path, "a.trec", {"q1": {"d1": 2.0}, "other": {"d1": 1.0}})
    out = invoke("score", run, folder / "qrels" / "test.tsv")
    assert "ndcg@10      0.3333" in out
    assert "2 judged queries without a hit: scored 0" in out
    assert "1 query of the run without judgements: left out" in out


def test_compare(tmp_path, folder, invoke):
    good = _score_file(
        tmp_path, "a.trec", {"q1": {"d1": 2.0}, "q2": {"d2": 1.0}, "q3": {"d3": 1.0}}
    )
    bad = _score_file(tmp_path, "b.trec", {"q1": {"d2": 2.0}, "q2": {"d2": 1.0}, "q3": {"d4": 1.0}})
    out = invoke("compare", good, bad, folder / "qrels" / "test.tsv")
    assert "2 / 1 / 0" in out
    assert "show no significant difference" in out  # three queries can never show one
    assert "A is better on" in out and "q1" in out
    data = json.loads(invoke("compare", good, bad, folder / "qrels" / "test.tsv", "--json"))
    assert data["per_query"]["q1"] == 1.0
    assert data["p_value"] == pytest.approx(0.5, abs=0.03)
    assert data["low"] <= 0 <= data["high"] and not data["significant"]


def test_compare_says_all_that_score_says(tmp_path, folder, invoke):
    good = _score_file(
        tmp_path, "a.trec", {"q1": {"d1": 2.0}, "q2": {"d2": 1.0}, "q3": {"d3": 1.0}}
    )
    short = _score_file(tmp_path, "b.trec", {"q1": {"d2": 2.0}, "other": {"d2": 1.0}})
    qrels = folder / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text() + "q1\td5\t-1\n")
    out = invoke("compare", good, short, qrels)
    assert (
        "1 negative grade read as 0" in out
        and "b.trec: 2 judged queries without a hit: scored 0" in out
    )
    assert "b.trec: 1 query of the run without judgements: left out" in out
    assert "q3  moon and tides" in out  # the text, from the folder's queries.jsonl
    data = json.loads(invoke("compare", good, short, qrels, "--json"))
    assert (
        data["b"] == {"run": str(short), "missing": ["q2", "q3"], "unjudged": 1}
        and data["a"]["missing"] == []
    )
    assert len(data["notices"]) == 3


def test_runs_hold_ids_with_spaces_and_others_are_refused_before_the_search(
    tmp_path, folder, invoke
):
    pytest.importorskip("bm25s")
    for name in ("corpus.jsonl", "qrels/test.tsv", "qrels/dev.tsv"):
        path = folder / name
        path.write_text(path.read_text().replace("d1", "a b.eml"))
    (folder / "spans.jsonl").unlink(missing_ok=True)
    common = ("run", "--data", folder, "--model", "bm25", "--cache", tmp_path / "cache", "--quiet")
    invoke(*common, "--run", tmp_path / "out.trec")
    assert (
        json.loads(invoke("score", tmp_path / "out.trec", folder / "qrels" / "test.tsv", "--json"))[
            "missing"
        ]
        == []
    )
    corpus = folder / "corpus.jsonl"
    corpus.write_text(corpus.read_text() + '{"_id": "a\\tb", "text": "x"}\n')
    said = invoke(
        *common, "--run", tmp_path / "other.trec", "--report", tmp_path / "r.json", code=2
    )
    assert "'a\\tb' cannot be written to a TREC run" in said
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", "{tmp}/none.trec", "{folder}/qrels/test.tsv"), "no such run file"),
        (("score", "{folder}/qrels/test.tsv", "{folder}/qrels/test.tsv"), "expected 6"),
        (("score", "{folder}/qrels/test.tsv", "{folder}"), "is this a qrels file?"),
        (("score", "{folder}", "{folder}/qrels/test.tsv"), "is this a run file?"),
        (("run", "--data", "{tmp}/nowhere", "--quiet"), "neither a folder nor a known data set"),
        (
            ("run", "--data", "{folder}", "--metric", "p@10", "--model", "bm25", "--quiet"),
            "unknown metric 'p@10'",
        ),
        pytest.param(
            ("run", "--data", "{folder}", "--model", "{tmp}/nomodel", "--quiet"),
            "nomodel: no such model folder",
            marks=pytest.mark.needs("transformers"),
        ),
        (
            ("run", "--data", "{folder}", "--split", "train", "--model", "bm25", "--quiet"),
            "no split 'train'",
        ),
        (
            ("run", "--data", "{folder}", "--precision", "int4", "--quiet"),
            "is 'int4'; choose one of",
        ),
        pytest.param(
            (
                "run",
                "--data",
                "{folder}",
                "--model",
                "bm25",
                "--report",
                "{folder}/corpus.jsonl/r.json",
                "--quiet",
            ),
            "/corpus.jsonl: File exists",
            marks=pytest.mark.needs("bm25s"),
        ),
    ],
)
def test_mistakes_are_answered_with_a_message_and_code_2(
    tmp_path, folder, invoke, monkeypatch, arguments, message
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    filled = [a.format(tmp=tmp_path, folder=folder) for a in arguments]
    extra = ["--cache", str(tmp_path / "cache")] if arguments[0] == "run" else []
    out = invoke(*filled, *extra, code=2)
    assert message in out
    assert "Traceback" not in out


def test_help_is_fast_and_imports_no_heavy_module():
    code = (
        "import sys; from click.testing import CliRunner; from aveyb_retrieval.cli.eval import"
        " main;r = CliRunner().invoke(main, ['run', '--help']); assert r.exit_code == 0;print([m"
        " for m in ('torch', 'faiss', 'transformers', 'datasets', 'numpy', 'rich') if m in"
        " sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
