"""Tables of refusals: each row is an input that raises one error with one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


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
    *rows: tuple[str, type[Exception], str, Callable[..., object]],
) -> pytest.MarkDecorator:
    """Parametrize a test by `refused`, one for each row: an id, the error, its message, the call.

    The test calls `refused` with what all its calls take, such as a folder.
    """
    params = [pytest.param(Refusal(*row[1:]), id=row[0]) for row in rows]
    return pytest.mark.parametrize("refused", params)
