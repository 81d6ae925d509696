"""What keeps vectors and documents on disk and finds them again. The functions mirror the commands of `aveyb-index`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "build_index": "builder",
    "add_documents": "update",
    "upsert_documents": "update",
    "delete_documents": "update",
    "compact_index": "update",
    "tune_index": "update",
    "verify_index": "verify",
    "describe": "info",
}
__all__ = [  # imported when used, below
    "add_documents",
    "build_index",
    "compact_index",
    "delete_documents",
    "describe",
    "tune_index",
    "upsert_documents",
    "verify_index",
]


def __getattr__(name: str) -> Any:
    """Import a function when it is first used: FAISS and torch stay out of `import aveyb_retrieval`."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
