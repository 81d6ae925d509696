"""A tiny sentence-transformers model through `aveyb-eval`: its vectors in memory, an index, and one
built before.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from aveyb_retrieval import build_index
from aveyb_retrieval.cli.eval import main
from aveyb_retrieval.eval.base import read_run
from tests.encoder.test_sentence_embedder import SENTENCES, save_bert
from tests.eval.toys import read_report, write_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The toy collection with one document that no window of the model holds."""
    folder = write_folder(tmp_path / "toy")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "long", "title": "Herons", "text": SENTENCES}) + "\n")
    return folder


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Callable[..., Any]:
    def invoke(*arguments: object, code: int = 0) -> Any:
        files = (
            "--report",
            tmp_path / "r.json",
            "--run",
            tmp_path / "o.trec",
            "--cache",
            tmp_path / "cache",
        )
        words = ["run", "--data", data, "--mode", "dense", "--quiet", *files, *arguments]
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == code, result.output
        return (
            result.output
            if code
            else (read_report(tmp_path / "r.json")[0], read_run(tmp_path / "o.trec"))
        )

    return invoke


def test_memory_and_indexes_agree(run: Callable[..., Any], data: Path, tmp_path: Path) -> None:
    model = save_bert(tmp_path, prompts={"query": "query: ", "document": "passage: "})
    in_memory, exact = run("--model", model)
    built, by_index = run("--model", model, "--index-type", "flat")
    build_index(data / "corpus.jsonl", tmp_path / "ix", model=model)
    before, by_old = run("--model", tmp_path / "ix")
    assert (in_memory.system.kind, built.system.kind, before.system.kind) == (
        "dense",
        "index",
        "index",
    )
    assert (
        in_memory.system.prompts
        == built.system.prompts
        == {
            "query": "query: ",
            "document": "passage: ",
        }
    )
    assert built.score == before.score == pytest.approx(in_memory.score, abs=1e-6)
    for query, documents in exact.items():
        assert "long" in documents
        assert by_index[query] == by_old[query] == pytest.approx(documents, abs=1e-6)


def test_what_no_index_takes_is_not_measured_either(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    save_bert(tmp_path)
    message = run("--model", tmp_path / "bert", code=2)
    assert "a plain bert model without modules.json" in message.replace("\n", " ")


def test_chunks_are_cut_at_the_models_limit(run: Callable[..., Any], tmp_path: Path) -> None:
    result, _ = run("--model", save_bert(tmp_path), "--chunk-words", 60)
    assert result.system.max_tokens == 40
    assert any("cut at 40 tokens" in notice for notice in result.notices)
