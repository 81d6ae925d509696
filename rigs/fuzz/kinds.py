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
    "corpus": "rigs.fuzz.inputs.corpus",
    "file": "rigs.fuzz.files.damaged_file",
    "query": "rigs.fuzz.indexes.query",
    "filter": "rigs.fuzz.indexes.filter_",
    "manifest": "rigs.fuzz.indexes.manifest",
    "pointer": "rigs.fuzz.indexes.pointer",
    "journal": "rigs.fuzz.indexes.journal",
    "lance": "rigs.fuzz.indexes.lance_file",
    "vectors": "rigs.fuzz.inputs.vectors",
    "faiss": "rigs.fuzz.indexes.faiss_file",
    "tokenizer": "rigs.fuzz.models.tokenizer",
    "model": "rigs.fuzz.models.model",
    "qrels": "rigs.fuzz.inputs.qrels",
    "run": "rigs.fuzz.inputs.run",
}


def attack(kind: str) -> Attack:
    """The function of a kind, or the one with a dotted name; what it needs is imported only now."""
    module, _, name = KINDS.get(kind, kind).rpartition(".")
    found: Attack = getattr(import_module(module), name)
    return found
