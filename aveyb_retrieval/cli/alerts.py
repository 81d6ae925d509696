"""`aveyb-index alerts`: saved questions, and the option by which changes report what is new for
them.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import INDEX, PATH, Commands, filter_option
from aveyb_retrieval.cli.help import examples
from aveyb_retrieval.errors import AveyBError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ALERTS = click.option(
    "--alerts",
    "alerts_file",
    type=PATH,
    metavar="FILE",
    help="Append new answers to saved questions, as JSON lines.",
)


def report_alerts(directory: str | Path, alerts_file: Path | None) -> None:
    """Ask the saved questions after a change, append what is new to the file, and print it; a
    failure is a line, and stops nothing.
    """
    from aveyb_retrieval.indexes.search.alerts import append_rows, run_alerts

    if alerts_file is None:
        return
    try:
        rows = run_alerts(directory, partial(append_rows, alerts_file))
    except (AveyBError, OSError) as error:
        click.echo(printable(f"alerts: {error}"), err=True)
        return
    for row in rows:
        click.echo(printable(f"alert {row['name']}: {row['id']} {row['span'][0]}-{row['span'][1]}"))


@click.group(cls=Commands)
def alerts() -> None:
    """Save questions, and learn which new or changed passages answer them."""


@alerts.command(
    epilog=examples('aveyb-index alerts add my-index "changes of the notice period" --name notice')
)
@click.argument("directory", type=INDEX)
@click.argument("query")
@click.option("--name", required=True, help="Name of the saved question.")
@filter_option("Only in documents that match this condition on the metadata.")
@click.option("--at-least", type=float, default=0.5, help="Least confidence, 0 to 1.")
def add(directory: str | Path, where: Any, **given: Any) -> None:
    """Save the question QUERY in the index in DIRECTORY. Present documents are not reported."""
    from aveyb_retrieval.indexes.search.alerts import Alert, add_alert

    add_alert(directory, Alert(filter=where, **given))


@alerts.command("list", epilog=examples("aveyb-index alerts list my-index"))
@click.argument("directory", type=INDEX)
def list_saved(directory: str | Path) -> None:
    """Print the saved questions of the index in DIRECTORY."""
    from aveyb_retrieval.indexes.search.alerts import list_alerts

    for alert in list_alerts(directory):
        click.echo(printable(f"{alert.name}  at least {alert.at_least:g}  {alert.query}"))


@alerts.command(epilog=examples("aveyb-index alerts run my-index"))
@click.argument("directory", type=INDEX)
def run(directory: str | Path) -> None:
    """Print new and changed passages of the index in DIRECTORY that answer a saved question.

    Each passage is a line of JSON (name, id, span, text, confidence, version), printed once:
    `aveyb-index alerts run my-index | PROGRAM`.
    """
    from aveyb_retrieval.indexes.search.alerts import run_alerts

    run_alerts(directory, _print_rows)


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        click.echo(json.dumps(row))


@alerts.command(epilog=examples("aveyb-index alerts remove my-index notice"))
@click.argument("directory", type=INDEX)
@click.argument("name")
def remove(directory: str | Path, name: str) -> None:
    """Forget the saved question NAME of the index in DIRECTORY."""
    from aveyb_retrieval.indexes.search.alerts import remove_alert

    remove_alert(directory, name)
