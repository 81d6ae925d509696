"""What is called while a test runs, and with which arguments."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def record_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[dict[str, Any]]:
    """Record the calls of a function of a module or class, which does what it did before.

    A call is its arguments by the names of the parameters, those with a default included.
    """
    calls, original = list[dict[str, Any]](), getattr(owner, name)
    parameters = signature(original)

    @wraps(original)
    def record(*arguments: Any, **options: Any) -> Any:
        bound = parameters.bind(*arguments, **options)
        bound.apply_defaults()
        calls.append(dict(bound.arguments))
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, record)
    return calls
