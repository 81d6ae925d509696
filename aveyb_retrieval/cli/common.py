"""Shared by all commands: groups of options, errors as messages, progress bars."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.processors import respect_processors
from aveyb_retrieval.errors import AveyBError, ConfigError, extra_for
from aveyb_retrieval.wording import printable

if TYPE_CHECKING:
    from rich.console import Console

    from aveyb_retrieval.indexes.types import Progress


CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
LINE_SECONDS = 30.0

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*decorators: Decorator) -> Decorator:
    """Combine several options into one decorator, in the order given."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def make_console() -> Console:
    """Return where tables are printed."""
    from rich.console import Console

    return Console()


PRECISION = click.option(
    "--precision",
    type=click.Choice(["auto", "int8", "float32", "bfloat16", "float16", "float8"]),
    default="auto",
    help="Precision of the model's arithmetic: int8 on CPUs (auto, where the model has that form), float8 on GPUs.",
)
MODE = click.option(
    "--mode",
    type=click.Choice(["dense", "lexical", "hybrid"]),
    default="hybrid",
    help="Search by vectors, by words (BM25), or by both.",
)


class Command(click.Command):
    """A command that prints the package's own errors, and what the system says of a file, and exits with code 2.

    Before it loads torch, it settles how threads are used (see `processors.py`).
    """

    resumable: Collection[str] = ()

    def invoke(self, context: click.Context) -> Any:
        """Run the command; end with a message and exit code 2 on an error of the package or of a file."""
        respect_processors()
        try:
            with extra_for(_typed(context)):
                return super().invoke(context)
        except AveyBError as error:
            click.echo(f"{_typed(context)}: {printable(str(error))}", err=True)
            context.exit(2)
        except OSError as error:
            if error.filename is None:  # of a pipe that was closed, say, which click knows
                raise
            click.echo(f"{_typed(context)}: {printable(str(error.filename))}: {error.strerror}", err=True)
            context.exit(2)
        except KeyboardInterrupt:
            if context.invoked_subcommand not in self.resumable:
                raise
            click.echo(f"{_typed(context)}: interrupted; the same command continues where this one stopped", err=True)
            context.exit(130)


def _typed(context: click.Context) -> str:
    """The command as it was typed: "aveyb-index build"."""
    return " ".join(filter(None, (context.info_name, context.invoked_subcommand)))


class Commands(Command, click.Group):
    """A group of such commands; `resumable` names those that continue what an interrupted run of them has done."""

    def __init__(self, *arguments: Any, resumable: Collection[str] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.resumable = resumable


def parse_json(context: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Read the JSON of an option, as click's callback; None where it is not given.

    Raises:
        ConfigError: it is not JSON.
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        what = f"{option.opts[0]} {text!r}: not JSON ({error})"
        raise ConfigError(f"{what}; write it as '{{\"field\": value}}'") from error


def filter_option(meaning: str) -> Decorator:
    """Make the option `--filter` with this help; the command gets its condition as `where`."""
    return click.option("--filter", "where", metavar="JSON", callback=parse_json, help=meaning)


def _progress_lines() -> Progress:
    began = last = time.monotonic()

    def show(stage: str, done: int, total: int | None, tokens: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_SECONDS:
            return
        last = now
        of = "" if total is None else f" of {total:,}"
        click.echo(f"{stage}: {done:,}{of}, {tokens:,} tokens, {now - began:,.0f} s", err=True)

    return show


@contextmanager
def progress_bar(shown: bool) -> Iterator[Progress]:
    """Show the progress of a change on stderr, one line per stage with rates; gives the function to call.

    Where stderr is no terminal, a line is written every `LINE_SECONDS`, for whoever reads the log.
    """
    if not shown:
        yield lambda stage, done, total, tokens: None
        return
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rates]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *times, console=Console(stderr=True)) as bar:
        began: dict[str, tuple[Any, int]] = {}  # a continued change does not begin at 0

        def show(stage: str, done: int, total: int | None, tokens: int) -> None:
            if stage not in began:
                began[stage] = bar.add_task(stage, total=total, rates=""), done
            task, first = began[stage]
            seconds = bar.tasks[task].elapsed or 0.0
            rates = ""
            if seconds > 0.1:
                rates = f"{(done - first) / seconds:,.0f}/s" + (f"  {tokens / seconds:,.0f} tokens/s" if tokens else "")
            bar.update(task, completed=done, total=total, rates=rates)

        yield show
