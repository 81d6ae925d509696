"""Commands of `aveyb-index` that read documents or change their metadata, without a search and without a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import filter_option, parse_json, progress_bar
from aveyb_retrieval.cli.options import INDEX
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aveyb_retrieval.indexes.search.lookup import Document

DIRECTORY = click.argument("directory", type=INDEX)
FILTER = filter_option('Only documents that match, such as {"year": {"$gte": 2020}}.')


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
@click.option("--offset", default=0, metavar="N", help="Leave out the first N.")
@click.option("--ids", "only_ids", is_flag=True, help="Print only the ids, one per line.")
def list_documents(directory: str | Path, where: Any, only_ids: bool, **page: Any) -> None:
    """Print the documents of the index in DIRECTORY, oldest first, one JSON object per line.

    `aveyb-index build` reads what this prints.
    """
    from aveyb_retrieval.indexes.search.retriever import Retriever

    with Retriever.load(directory) as retriever:
        found = retriever.documents(where, **page)
        if only_ids:
            for document in found:
                click.echo(document.id)
        else:
            _print_documents(found)


@click.command()
@DIRECTORY
@FILTER
def count(directory: str | Path, where: Any) -> None:
    """Print how many documents the index in DIRECTORY has."""
    from aveyb_retrieval.indexes.search.retriever import Retriever

    with Retriever.load(directory) as retriever:
        click.echo(str(retriever.count(where)))


@click.command()
@DIRECTORY
@click.argument("ids", nargs=-1)
@FILTER
@click.option("--set", "changes", metavar="JSON", default="{}", callback=parse_json,
              help='Fields and new values, such as {"year": 2021}.')  # fmt: skip
@click.option("--remove", multiple=True, metavar="FIELD", help="Field to take away. Repeatable.")
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the index.")
@click.option("--restart", is_flag=True, help="Discard an interrupted change and start again.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def update_metadata(directory: str | Path, changes: Any, ids: tuple[str, ...], quiet: bool, **arguments: Any) -> None:
    """Change metadata of documents in DIRECTORY, chosen by IDS or by a filter. Nothing is encoded.

    Ids, titles and texts are no metadata: `aveyb-index upsert` changes them.
    """
    from aveyb_retrieval.indexes.changes.metadata import update_metadata as update

    if not isinstance(changes, dict):
        given = json.dumps(changes, ensure_ascii=False)
        raise ConfigError(f"--set {given!r}: not an object; write it as '{{\"field\": value}}'")
    with progress_bar(not quiet) as progress:
        report = update(directory, changes, ids, progress=progress, **arguments)
    click.echo(f"{report.path}: version {report.version}, {report.documents:,} documents")


def _print_documents(documents: Iterable[Document]) -> None:
    for document in documents:
        click.echo(json.dumps(document.to_dict(), ensure_ascii=False))
