"""Search long documents with Avey-B, an attention-free bidirectional encoder."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aveyb_retrieval._registration import register_when_imported

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.builder import build_index
    from aveyb_retrieval.retriever import Hit, Retriever

__all__ = ["Hit", "Retriever", "build_index"]

_HOME = {
    "Hit": "aveyb_retrieval.retriever",
    "Retriever": "aveyb_retrieval.retriever",
    "build_index": "aveyb_retrieval.indexes.builder",
}


register_when_imported()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562): `import aveyb_retrieval` itself loads nothing heavy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
