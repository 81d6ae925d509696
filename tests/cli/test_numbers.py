"""Numbers that mean nothing are refused by the options themselves, before anything is read."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING

import click
import pytest

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.settings import (
    AnswerSettings,
    CausalSettings,
    ClassifySettings,
    ContrastiveSettings,
    DistillSettings,
    MiningRules,
    MLMSettings,
    described,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = ("-1", "0", "nan", "inf", "-inf", str(2**64))
SETTINGS = (
    AnswerSettings,
    CausalSettings,
    ClassifySettings,
    ContrastiveSettings,
    DistillSettings,
    MiningRules,
    MLMSettings,
)


def numeric_options(*modules: str) -> Iterator[tuple[click.Command, click.Parameter]]:
    for module in modules:
        main = importlib.import_module(f"aveyb_retrieval.cli.{module}").main
        commands = main.commands.values() if isinstance(main, click.Group) else [main]
        for command in commands:
            for option in command.params:
                if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
                    yield command, option


def accepted(command: click.Command, option: click.Parameter, text: str) -> bool:
    value: object = text
    if option.nargs > 1:
        value = (text,) * option.nargs
    elif getattr(option, "multiple", False):
        value = (text,)
    try:
        option.process_value(click.Context(command), value)
    except click.BadParameter:
        return False
    return True


def test_every_option_of_training_and_evaluation_has_a_range() -> None:
    options = list(numeric_options("train", "eval"))
    assert len(options) > 100
    for command, option in options:
        least, open_ = getattr(option.type, "min", None), getattr(option.type, "min_open", False)
        assert least is not None, f"{command.name} {option.name} has no lower bound"
        taken = {text for text in HOSTILE if accepted(command, option, text)}
        wanted = {"0"} if least <= 0 and not (least == 0 and open_) else set()
        wanted |= {"-1"} if least <= -1 else set()  # cosines
        assert taken == wanted, f"{command.name} {option.name} takes {taken}"


def test_no_command_takes_what_is_no_number() -> None:
    pytest.importorskip("starlette")
    options = list(numeric_options("train", "eval", "index", "serve", "mcp"))
    for command, option in options:
        for text in ("nan", "inf", "-inf", str(2**64)):
            assert not accepted(command, option, text), f"{command.name} {option.name} takes {text}"


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda cls: cls.__name__)
def test_settings_check_what_the_options_do(settings: type) -> None:
    """In Python, too: each number of each settings object, one by one."""
    for name, about in described(settings).items():
        default = getattr(settings(), name)
        if isinstance(default, (bool, str)):
            continue
        assert about["limits"] is not None, name
        for number in (
            -2,
            math.nan,
            math.inf,
            2**64 if about["kind"] is int or isinstance(default, int) else -2,
        ):
            value = (number,) * max(1, len(default)) if isinstance(default, tuple) else number
            with pytest.raises(ConfigError, match=rf"^{name} is .*; it must be (above|at least) "):
                settings(**{name: value}).check()
