"""The rest of the papers' family: Avey, Funnel pooling, a readable reference, answers.

A search uses nothing of it, so every name is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "AveyBForQuestionAnswering": "answers",
    "AveyConfig": "config",
    "AveyForCausalLM": "avey",
    "FunnelAveyBConfig": "config",
    "FunnelAveyBModel": "funnel",
    "PaperChoices": "reference",
    "ReferenceAveyB": "reference",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
