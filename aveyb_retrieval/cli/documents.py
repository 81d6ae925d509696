"""Commands of `aveyb-index` that read documents or change their metadata, without a search and without a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import parse_filter, progress_bar
from aveyb_retrieval.cli.options import INDEX
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aveyb_retrieval.indexes.search.lookup import Document

DIRECTORY = click.argument("directory", type=INDEX)
FILTER = click.option(
    "--filter", "filter_text", metavar="JSON", help='Only documents that match, such as {"year": {"$gte": 2020}}.'
)


@click.command()
@DIRECTORY
@click.argument("ids", nargs=-1, required=True)
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the index.")
def get(directory: str | Path, ids: tuple[str, ...], missing_ok: bool) -> None:
    """Print the documents of the index in DIRECTORY with these IDS, one JSON object per line."""
    from aveyb_retrieval.indexes.search.retriever import Retriever

    with Retriever.load(directory) as retriever:
        _print_documents(retriever.get(ids, missing_ok=missing_ok))


@click.command("list")
@DIRECTORY
@FILTER
@click.option("--limit", type=int, metavar="N", help="At most N documents.")
@click.option("--offset", default=0, show_default=True, metavar="N", help="Leave out the first N.")
@click.option("--ids", "only_ids", is_flag=True, help="Print only the ids, one per line.")
def list_documents(
    directory: str | Path, filter_text: str | None, limit: int | None, offset: int, only_ids: bool
) -> None:
    """Print the documents of the index in DIRECTORY, oldest first, one JSON object per line.

    `aveyb-index build` reads what this prints.
    """
    from aveyb_retrieval.indexes.search.retriever import Retriever

    with Retriever.load(directory) as retriever:
        found = retriever.documents(parse_filter(filter_text), limit=limit, offset=offset)
        if only_ids:
            for document in found:
                click.echo(document.id)
        else:
            _print_documents(found)


@click.command()
@DIRECTORY
@FILTER
def count(directory: str | Path, filter_text: str | None) -> None:
    """Print how many documents the index in DIRECTORY has."""
    from aveyb_retrieval.indexes.search.retriever import Retriever

    with Retriever.load(directory) as retriever:
        click.echo(str(retriever.count(parse_filter(filter_text))))


@click.command()
@DIRECTORY
@click.argument("ids", nargs=-1)
@FILTER
@click.option("--set", "changes", metavar="JSON", default="{}", help='Fields and new values, such as {"year": 2021}.')
@click.option("--remove", multiple=True, metavar="FIELD", help="Field to take away. Repeatable.")
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the index.")
@click.option("--restart", is_flag=True, help="Discard an interrupted change and start again.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def update_metadata(
    directory: str | Path, ids: tuple[str, ...], filter_text: str | None, changes: str, quiet: bool, **arguments: Any
) -> None:
    """Change metadata of documents in DIRECTORY, chosen by IDS or by a filter. Nothing is encoded."""
    from aveyb_retrieval.indexes.changes.metadata import update_metadata as update

    with progress_bar(not quiet) as progress:
        report = update(
            directory, _parse_changes(changes), ids, where=parse_filter(filter_text), progress=progress, **arguments
        )
    click.echo(f"{report.path}: version {report.version}, {report.documents:,} documents")


def _print_documents(documents: Iterable[Document]) -> None:
    for document in documents:
        click.echo(json.dumps(document.to_dict(), ensure_ascii=False))


def _parse_changes(text: str) -> dict[str, Any]:
    try:
        changes = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--set {text!r}: not JSON ({error}); write it as '{{\"field\": value}}'") from error
    if not isinstance(changes, dict):
        raise ConfigError(f"--set {text!r}: not an object; write it as '{{\"field\": value}}'")
    return changes
