"""`aveyb-index encode`, `build --vectors SHARDS` and `export`, as commands."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from aveyb_retrieval.cli.index import main
from aveyb_retrieval.indexes.store.manifest import read_manifest

ROOT = Path(__file__).parents[2]


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_two_shards_become_an_index_and_come_back(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    rows = [{"_id": f"d{i}", "text": f"The notice period is {i} months. Rent is due on day {i}."} for i in range(6)]
    corpus.write_text("\n".join(map(json.dumps, rows)))
    shards, root = tmp_path / "shards", tmp_path / "ix"
    assert "shards 2 of 2" in run("encode", corpus, "-o", shards, "--shard", "2/2", "--quiet")
    assert "1 of 2 shards are missing" in run("build", "--vectors", shards, "-o", root, "--quiet", code=2)
    run("encode", corpus, "-o", shards, "--shard", "1/2", "--quiet")
    assert "shards all of 2: 6 documents (0 encoded now)" in run("encode", corpus, "-o", shards, "--of", 2, "--quiet")
    assert "6 documents" in run("build", "--vectors", shards, "-o", root, "--quiet")
    assert "d4" in run("search", root, "notice period 4 months", "-k", 1)
    assert "shards all of 1: 6 documents," in run("export", root, "-o", tmp_path / "again", "--quiet")


def test_an_index_of_shards_is_as_they_are_where_nothing_else_is_asked_for(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"_id": "a", "text": "Der Vertrag endet. Die Pumpen stehen still. Niemand kommt."}')
    options = (
        "--granularity",
        "passage",
        "--passage-tokens",
        32,
        "--passage-overlap",
        16,
        "--storage-dtype",
        "float16",
    )
    run("build", corpus, "-o", tmp_path / "ix", *options, "--language", "german", "--quiet")
    run("export", tmp_path / "ix", "-o", tmp_path / "shards", "--quiet")
    for name, more in (("plain", ()), ("named", ("--model", ROOT / "aveyb_retrieval" / "models" / "aveyb-base-en-v2"))):
        run("build", "--vectors", tmp_path / "shards", "-o", tmp_path / name, *more, "--quiet")
        ours, theirs = (read_manifest(tmp_path / each).encoding for each in (name, "ix"))
        assert ours.differences(theirs) == {}
    output = run("build", "--vectors", tmp_path / "shards", "-o", tmp_path / "x", "--passage-overlap", 0, code=2)
    assert "encoded with 16; leave it out" in output


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"_id": "a", "text": "b"}')
    assert "write it as I/N" in run("encode", corpus, "-o", tmp_path, "--shard", "two", code=2)
    assert "shard 3/2" in run("encode", corpus, "-o", tmp_path, "--shard", "3/2", code=2)
    assert "not both" in run("encode", corpus, "-o", tmp_path, "--shard", "1/2", "--of", 2, code=2)
    assert "give a CORPUS, or --vectors" in run("add", tmp_path, code=2)


def test_options_of_ray_that_do_not_go_together(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"_id": "a", "text": "b"}')
    command = ("encode", corpus, "-o", tmp_path / "out")
    assert "--actors is for actors of Ray" in run(*command, "--actors", 2, code=2)
    assert "--ray, whose actors make all shards, not both" in run(*command, "--ray", "local", "--shard", "1/2", code=2)
    assert "--of N, the number of shards" in run(*command, "--ray", "local", code=2)
    assert "the address 'x' is none" in run(*command, "--ray", "x", "--of", 2, code=2)
    assert "leaves them idle" in run(*command, "--ray", "local", "--of", 2, "--gpus", 1, code=2)
