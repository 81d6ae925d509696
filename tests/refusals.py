"""Tables of refusals: inputs that raise one error with one message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Refusal:
    """A call that raises `error`, or after which another call does. `message` is a regular
    expression that the text of the error holds.
    """

    error: type[Exception]
    message: str
    call: Callable[..., object]

    def __call__(self, *arguments: Any, **options: Any) -> None:
        """Make the call and check how it fails."""
        with pytest.raises(self.error, match=self.message):
            self.call(*arguments, **options)

    def then(self, use: Callable[..., object], *arguments: Any) -> None:
        """Make the call, which damages or changes something, and check how `use` fails then."""
        self.call(*arguments)
        with pytest.raises(self.error, match=self.message):
            use(*arguments)


def refusals(
    table: Mapping[type[Exception], Mapping[str, Callable[..., object] | Sequence[Callable]]],
) -> pytest.MarkDecorator:
    """Parametrize a test by `refused`, one for each call of {error: {message: call or calls}}.

    The test calls `refused` with what all calls take, such as a folder.
    """
    params = []
    for error, calls_of in table.items():
        for message, calls in calls_of.items():
            name = re.sub(r"\\(?!\w)", "", message)
            several = calls if isinstance(calls, Sequence) else [calls]
            params += [pytest.param(Refusal(error, message, call), id=name) for call in several]
    return pytest.mark.parametrize("refused", params)
