"""What the command line does with a collection of any engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from aveyb_retrieval.cli.index import main

if TYPE_CHECKING:
    from pathlib import Path


def check_commands(url: str, folder: Path) -> str:
    """Publish, search, read, remove and count by the command line; return what `publish` said."""
    (folder / "corpus.jsonl").write_text(
        '{"_id": "lease", "text": "The notice period is three months."}\n{"_id": "loan", "text":'
        ' "Repay in rates."}\n'
    )

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, [*arguments])
        assert result.exit_code == code, result.output
        return result.output

    corpus, shards = str(folder / "corpus.jsonl"), str(folder / "shards")
    run("build", corpus, "-o", shards, "--index", "none", "--quiet")
    published = run("publish", shards, "--to", url, "--quiet")
    assert "2 documents (2 written now)" in published
    assert "[lease]" in run("search", url, "how long is the notice period?", "-k", "1")
    assert json.loads(run("get", url, "loan"))["text"] == "Repay in rates."
    assert run("unpublish", "lease", "--to", url) == "removed: 1 documents\n"
    assert run("count", url) == "1\n"
    assert "no document has the id 'lease'" in run("unpublish", "lease", "--to", url, code=2)
    return published
