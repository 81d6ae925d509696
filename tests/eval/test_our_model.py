"""A real (small, random) Avey-B model through the command line: exact search, an index,
passages.
"""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from aveyb_retrieval import Embedder
from aveyb_retrieval.cli.eval import main
from aveyb_retrieval.eval.base import read_run
from aveyb_retrieval.eval.data import Document
from aveyb_retrieval.eval.encoders import LoadOptions, load_measured
from aveyb_retrieval.eval.tasks import PAPER, STANDARD
from tests.eval.toys import read_report, write_folder


@pytest.fixture
def run(tmp_path, model_folder):
    """Run `aveyb-eval run` with the model; gives the results and the run."""
    folder = write_folder(tmp_path / "toy", spans=True)
    files = (
        "--report",
        tmp_path / "r.json",
        "--run",
        tmp_path / "o.trec",
        "--cache",
        tmp_path / "cache",
        "--quiet",
    )

    def invoke(*arguments):
        words = ["run", "--data", folder, "--model", model_folder, *files, *arguments]
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        [evaluated] = read_report(tmp_path / "r.json")
        return evaluated, read_run(tmp_path / "o.trec")

    return invoke


def test_report_names_what_the_scores_depend_on(run):
    result, _ = run("--index-type", "none")
    assert (result.system.precision, result.system.storage_dtype) == ("float32", "float32")
    assert result.system.model.endswith("random-avey")
    assert result.system.prompts == {"query": "find: ", "document": "text: "}
    assert result.system.max_tokens is None
    limited, _ = run("--max-tokens", 20, "--index-type", "none")
    assert limited.system.max_tokens == 20
    assert any("5 of 5 texts cut at 20 tokens" in notice for notice in limited.notices)
    paper, _ = run("--max-tokens", 20, "--protocol", "paper")
    assert paper.system.max_tokens == 20
    assert paper.system.prompts == {"query": "Query: ", "document": "Document: "}


def test_the_embedded_model_is_measured_as_it_is_searched():
    assert load_measured("default").precision == "int8"
    assert load_measured("default", options=LoadOptions(precision="float32")).precision == "float32"


def test_the_paper_protocol_reads_a_title_once(model_folder):
    """As one text with the document; an index reads it again where the text goes on."""
    document = Document("a", "A title of the text", "The pump runs. " * 60)
    for protocol, separator in ((STANDARD, "\n"), (PAPER, ". ")):
        [encoded] = load_measured(str(model_folder), protocol).encode_documents(
            [(document.title + "\n", document.text)]
        )
        whole = Embedder.load(model_folder)
        if protocol is PAPER:
            whole.prompts = {"query": "Query: ", "document": "Document: "}
        [as_one_text] = whole.encode_documents([("", document.title + separator + document.text)])
        assert np.allclose(encoded.vector, as_one_text.vector, atol=1e-5) == (protocol is PAPER)


def test_an_index_ranks_as_exact_search_does(run):
    pytest.importorskip("faiss")
    _, exact = run("--index-type", "none")
    result, built = run("--index-type", "flat", "--mode", "dense")
    assert result.system.prompts == {"query": "find: ", "document": "text: "}
    assert {q: list(docs) for q, docs in built.items()} == {
        q: list(docs) for q, docs in exact.items()
    }
    for query, documents in exact.items():
        assert built[query] == pytest.approx(documents, abs=1e-5)


def test_options_reach_the_index(run):
    """Precision, length limit and granularity are honored where an index is built, and reported."""
    pytest.importorskip("faiss")
    result, _ = run(
        "--precision", "bfloat16", "--max-tokens", 20, "--granularity", "passage", "--mode", "dense"
    )
    assert (result.system.precision, result.system.storage_dtype) == ("bfloat16", "float32")
    assert result.system.max_tokens == 20
    assert result.system.settings["granularity"] == "passage"
    full_result, full = run("--mode", "dense")
    # what "auto" is where a model has no int8 form
    assert full_result.system.precision == "float32"
    _, limited = run("--max-tokens", 20, "--mode", "dense")
    assert full != limited
