"""`aveyb-index build --share I/N` and `build --vectors SHARDS`, as commands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from aveyb_retrieval.cli.index import main
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.indexes.store.place import read_manifest

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_two_shards_become_an_index(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    rows = [
        {"_id": f"d{i}", "text": f"The notice period is {i} months. Rent is due on day {i}."}
        for i in range(6)
    ]
    corpus.write_text("\n".join(map(json.dumps, rows)))
    shards, root = tmp_path / "shards", tmp_path / "ix"
    run("build", corpus, "-o", shards / "2", "--share", "2/2", "--index", "none", "--quiet")
    assert "1 of 2 shards are missing" in run(
        "build", "--vectors", shards, "-o", root, "--quiet", code=2
    )
    run("build", corpus, "-o", shards / "1", "--share", "1/2", "--index", "none", "--quiet")
    assert "6 documents" in run("build", "--vectors", shards, "-o", root, "--quiet")
    assert "d4" in run("search", root, "notice period 4 months", "-k", 1)


def test_an_index_of_shards_is_as_they_are_where_nothing_else_is_asked_for(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(
        '{"_id": "a", "text": "Der Vertrag endet. Die Pumpen stehen still. Niemand kommt."}'
    )
    options = (
        "--granularity",
        "passage",
        "--passage-tokens",
        32,
        "--passage-overlap",
        16,
        "--language",
        "german",
    )
    run("build", corpus, "-o", tmp_path / "ix", *options, "--storage-dtype", "float16", "--quiet")
    for name, more in (("plain", ()), ("named", ("--model", DEFAULT_MODEL))):
        run("build", "--vectors", tmp_path / "ix", "-o", tmp_path / name, *more, "--quiet")
        ours, theirs = (read_manifest(tmp_path / each).encoding for each in (name, "ix"))
        assert ours.differences(theirs) == {}
    output = run(
        "build", "--vectors", tmp_path / "ix", "-o", tmp_path / "x", "--passage-overlap", 0, code=2
    )
    assert "encoded with 16; leave it out" in output


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"_id": "a", "text": "b"}')
    command = ("build", corpus, "-o", tmp_path / "out")
    assert "write it as I/N" in run(*command, "--share", "two", code=2)
    assert "share 3/2" in run(*command, "--share", "3/2", code=2)
    assert "give a CORPUS, or --vectors" in run("add", tmp_path, code=2)
    assert "--cpus is for tasks of Ray" in run(*command, "--cpus", 2, code=2)
    assert "--ray, whose tasks build all shards, not both" in run(
        *command, "--ray", "local", "--share", "1/2", code=2
    )
    assert "--of N, the number of shards" in run(*command, "--ray", "local", code=2)
    assert "leave them idle" in run(*command, "--ray", "local", "--of", 2, "--gpus", 1, code=2)
