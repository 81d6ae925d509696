"""What is attacked. A try makes one damaged input from a random generator and uses it as a user
would.

It may end well, or with an error of ours. Anything else is a finding: another exception, a crash, a
hang, a false answer.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random

Attack = Callable[[Random, Path], None]

KINDS = {
    "corpus": "tests.fuzz.inputs.corpus",
    "query": "tests.fuzz.indexes.query",
    "filter": "tests.fuzz.indexes.filter_",
    "manifest": "tests.fuzz.indexes.manifest",
    "pointer": "tests.fuzz.indexes.pointer",
    "journal": "tests.fuzz.indexes.journal",
    "lance": "tests.fuzz.indexes.lance_file",
    "vectors": "tests.fuzz.inputs.vectors",
    "faiss": "tests.fuzz.indexes.faiss_file",
    "tokenizer": "tests.fuzz.models.tokenizer",
    "model": "tests.fuzz.models.model",
    "qrels": "tests.fuzz.inputs.qrels",
    "run": "tests.fuzz.inputs.run",
}


def attack(kind: str) -> Attack:
    """The function of a kind, or the one with a dotted name; what it needs is imported only now."""
    module, _, name = KINDS.get(kind, kind).rpartition(".")
    found: Attack = getattr(import_module(module), name)
    return found
