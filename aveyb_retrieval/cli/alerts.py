"""`aveyb-index alerts`: saved questions, and the options by which changes tell what is new for
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import INDEX, PATH, Commands, filter_option, gather
from aveyb_retrieval.errors import AveyBError, printable

if TYPE_CHECKING:
    from pathlib import Path

ALERTS = gather(
    "receivers",
    dict,
    click.option(
        "--alerts",
        "file",
        type=PATH,
        metavar="FILE",
        help="Append what is new for saved questions, as JSON lines.",
    ),
    click.option(
        "--alert-command",
        "command",
        metavar="COMMAND",
        help="Run this with these lines on its input.",
    ),
    click.option("--alert-webhook", "webhook", metavar="URL", help="Send them there by POST."),
)


def tell_alerts(directory: str | Path, receivers: dict[str, Any]) -> None:
    """Ask the saved questions after a change, and print what is new; a failure is a line, and stops
    nothing.
    """
    from aveyb_retrieval.indexes.search.alerts import run_alerts

    # an address, where no questions are saved
    if isinstance(directory, str) and not any(receivers.values()):
        return
    try:
        new, failed = run_alerts(directory, **receivers)
    except (AveyBError, OSError) as error:
        click.echo(printable(f"alerts: {error}"), err=True)
        return
    for row in new:
        click.echo(printable(f"alert {row['name']}: {row['id']} {row['span'][0]}-{row['span'][1]}"))
    for line in failed:
        click.echo(printable(f"alerts: {line}"), err=True)


@click.group(cls=Commands)
def alerts() -> None:
    """Save questions: each sync, add and upsert says which new or changed passages answer them."""


@alerts.command()
@click.argument("directory", type=INDEX)
@click.argument("query")
@click.option("--name", required=True, help="What it is called.")
@filter_option("Only in documents that match this condition on the metadata.")
@click.option("--at-least", type=float, default=0.5, help="Least confidence, 0 to 1.")
def add(directory: str | Path, where: Any, **given: Any) -> None:
    """Save the question QUERY in the index in DIRECTORY. What is there already is not told."""
    from aveyb_retrieval.indexes.search.alerts import Alert, add_alert

    add_alert(directory, Alert(filter=where, **given))


@alerts.command("list")
@click.argument("directory", type=INDEX)
def list_saved(directory: str | Path) -> None:
    """Print the saved questions of the index in DIRECTORY."""
    from aveyb_retrieval.indexes.search.alerts import list_alerts

    for alert in list_alerts(directory):
        click.echo(printable(f"{alert.name}  at least {alert.at_least:g}  {alert.query}"))


@alerts.command()
@click.argument("directory", type=INDEX)
@click.argument("name")
def remove(directory: str | Path, name: str) -> None:
    """Forget the saved question NAME of the index in DIRECTORY."""
    from aveyb_retrieval.indexes.search.alerts import remove_alert

    remove_alert(directory, name)
