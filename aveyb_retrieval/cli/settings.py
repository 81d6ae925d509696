"""Derive command-line options from settings classes, so that defaults and help texts exist once."""

from __future__ import annotations

import functools
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aveyb_retrieval.cli.common import Decorator


def gather(parameter: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Pass several options to a command as one object, its argument `parameter`.

    Args:
        parameter: name of the argument.
        make: makes the object; called with the options' values by name.
        options: click's decorators, in the order in which help shows them.
    """

    def declared() -> None: ...

    for option in reversed(options):
        option(declared)
    own: list[click.Parameter] = declared.__click_params__  # type: ignore[attr-defined]  # made by click's decorators
    names = [str(option.name) for option in own]

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def gathered(**values: Any) -> Any:
            values[parameter] = make(**{name: values.pop(name) for name in names})
            return function(**values)

        shown = getattr(function, "__click_params__", [])
        gathered.__click_params__ = [*shown, *own]  # type: ignore[attr-defined]  # where click looks for them
        return gathered

    return apply


def settings_options(
    parameter: str, defaults: Any, *more: Decorator, make: Callable[..., Any] | None = None
) -> Decorator:
    """Derive an option from each described field of a settings object; the command gets the settings as `parameter`.

    Args:
        parameter: name of the command's argument.
        defaults: a frozen dataclass whose fields are declared by `training.settings.setting`.
        more: further options, passed to `make`.
        make: makes the argument; None: `defaults` with the given values in their place.
    """
    options = [_option(name, getattr(defaults, name), about) for name, about in _described(type(defaults)).items()]
    return gather(parameter, make or functools.partial(replace, defaults), *options, *more)


def _described(settings: type) -> dict[str, Mapping[str, Any]]:
    """Map each field that has a help text to its metadata; a subclass that changes only a default keeps the text."""
    found: dict[str, Mapping[str, Any]] = {}
    for base in settings.__mro__:
        if is_dataclass(base):
            for name in base.__annotations__:
                metadata = base.__dataclass_fields__[name].metadata
                if metadata:
                    found.setdefault(name, metadata)
    return found


def _option(name: str, default: Any, about: Mapping[str, Any]) -> Decorator:
    flag, text = f"--{name.replace('_', '-')}", about["help"]
    if isinstance(default, bool):
        return click.option(flag, name, is_flag=True, default=default, help=text)
    if isinstance(default, tuple) and about["kind"] is None:
        return click.option(flag, name, nargs=len(default), type=float, default=default, show_default=True, help=text)
    if isinstance(default, tuple):
        return click.option(flag, name, multiple=True, type=about["kind"], default=default, help=text)
    kind = click.Choice(about["choices"]) if about["choices"] else about["kind"] or type(default)
    return click.option(flag, name, type=kind, default=default, show_default=default is not None, help=text)
