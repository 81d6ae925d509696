"""A search loads nothing of the family, and no transformers, with torch or without."""

from __future__ import annotations

import subprocess
import sys

import pytest

SEARCH = """
import sys, tempfile
from aveyb_retrieval import Embedder, Retriever, build_index

precision = sys.argv[1]
model = Embedder.load(precision=precision) if precision != "auto" else None
folder = tempfile.mkdtemp() + "/index"
build_index([{"_id": "a", "text": "The pump is closed."}], folder, model=model)
assert Retriever.load(folder, model=model).search("pump")[0].id == "a"
print([name for name in sys.modules if name.startswith(("aveyb_retrieval.family", "transformers"))])
"""


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_a_search_loads_nothing_of_the_family(precision: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SEARCH, precision], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


def test_names_are_loaded_when_they_are_asked_for() -> None:
    code = (
        "import sys, aveyb_retrieval.family as family\n"
        "print('torch' in sys.modules, dir(family), family.AveyConfig)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("False")
    assert "ReferenceAveyB" in run.stdout
    assert "family.config.AveyConfig" in run.stdout
