"""`aveyb-index encode`, `export` and `publish`: encoded documents, for work on several machines and other engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import (
    CUTTING,
    FIELDS,
    PATH,
    WRITING,
    filter_option,
    gather,
    granularity,
    progress_bar,
    storage_dtype,
)
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.shards.encode import EncodeReport
    from aveyb_retrieval.indexes.shards.ray_cluster import RayCluster

RAY = gather(
    "cluster",
    dict,
    click.option("--ray", "address", metavar="ADDRESS", help="Encode by actors of Ray: local (this machine), auto (the "
                 "cluster that runs here), or HOST:PORT of a cluster's head."),
    click.option("--actors", type=int, metavar="N", help="Actors that encode at once.  [default: as many as fit]"),
    click.option("--cpus", type=float, metavar="N", help="Processors, and threads, of each actor.  [default: 1]"),
    click.option("--gpus", type=float, metavar="N", help="GPUs of each actor, with --device cuda.  [default: 0]"),
)  # fmt: skip


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-o", "--out", required=True, help="Folder or URL of the shards.", metavar="SHARDS")
@click.option("--shard", "share", metavar="I/N", help="Encode only shard I of N.  [default: 1/1]")
@click.option("--of", type=int, help="Divide the corpus into N shards and encode all of them.", metavar="N")
@RAY
@granularity("Vectors to make.")
@storage_dtype("Type of the vectors in the shards.")
@CUTTING
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    help="A malformed line or unreadable file: stop, or leave it out and count it.",
)
@FIELDS
@WRITING
@click.option("--batch-tokens", type=int, help="Tokens that the model encodes at once.  [default: 16384]", metavar="N")
def encode(
    corpus: tuple[str, ...],
    out: str,
    share: str | None,
    of: int | None,
    cluster: dict[str, Any],
    quiet: bool,
    **arguments: Any,
) -> None:
    """Encode CORPUS into shards of Parquet files, from which `build --vectors SHARDS` makes an index.

    Each of N processes, on any machine, runs the same command with its own --shard I/N. If one is interrupted, run its
    command again to continue. With --ray ADDRESS --of N, actors on a Ray cluster make the same N shards.
    """
    from aveyb_retrieval.indexes.shards.encode import encode_corpus

    if share is not None and of is not None:
        raise click.UsageError("give --shard I/N or --of N, not both")
    arguments["ray"] = _ray(share, of, **cluster)
    shard, of = _share(share) if share is not None else (None, 1 if of is None else of)
    with progress_bar(not quiet) as progress:
        _print(
            encode_corpus([Path(c) for c in corpus], out, shard=shard, of=of, progress=progress, **arguments),
            "encoded",
        )


@click.command()
@click.argument("directory", type=PATH)
@click.option("-o", "--out", required=True, help="Folder or URL of the shards.", metavar="SHARDS")
@click.option("--of", default=1, help="Write N shards.", metavar="N")
@click.option("--overwrite", is_flag=True, help="Replace the shards that are there.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def export(directory: Path, out: str, of: int, overwrite: bool, quiet: bool) -> None:
    """Write the documents of the index in DIRECTORY with their vectors as shards. Nothing is encoded."""
    from aveyb_retrieval.indexes.search.export import export_index

    with progress_bar(not quiet) as progress:
        _print(export_index(directory, out, of=of, overwrite=overwrite, progress=progress), "exported")


@click.command()
@click.argument("source")
@click.option(
    "--to",
    required=True,
    metavar="URL",
    help="Collection: postgresql://USER@HOST:PORT/DATABASE/NAME, milvus://USER@HOST:PORT/NAME or "
    "milvus:///FOLDER/FILE.db/NAME.",
)
@click.option("--update", is_flag=True, help="Upsert the documents into what is there, instead of replacing it.")
@click.option("--restart", is_flag=True, help="Discard what an interrupted run has written, and start again.")
@click.option("--language", help="Language of the words of shards.  [default: english]")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def publish(source: str, to: str, quiet: bool, **arguments: Any) -> None:
    """Put the documents of SOURCE, an index or shards, with their vectors into a database server.

    Readers see them all at once when they are complete. If it is interrupted, run the same command again to continue.
    """
    from aveyb_retrieval.indexes.search.publish import publish_index

    with progress_bar(not quiet) as progress:
        report = publish_index(source, to, progress=progress, **arguments)
    click.echo(
        f"{report.name}: {report.documents:,} documents ({report.written:,} written now), "
        f"{report.passages:,} passages in {report.seconds:,.1f} s"
    )


@click.command()
@click.argument("ids", nargs=-1)
@click.option("--to", required=True, metavar="URL", help="Collection.")
@filter_option("Remove the documents that match this condition on the metadata.")
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the collection.")
def unpublish(ids: tuple[str, ...], to: str, **options: Any) -> None:
    """Remove documents from a collection by IDS or by a filter."""
    from aveyb_retrieval.indexes.search.publish import unpublish_documents

    removed = unpublish_documents(to, ids, **options)
    click.echo(f"removed: {removed:,} documents")


def _ray(share: str | None, of: int | None, *, address: str | None, **given: float | None) -> RayCluster | None:
    """Return the cluster that the options name; None: none."""
    from aveyb_retrieval.indexes.shards.ray_cluster import RayCluster

    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if address is None:
        if options:
            raise click.UsageError(f"--{next(iter(options))} is for actors of Ray: give --ray ADDRESS too")
        return None
    if share is not None:
        raise click.UsageError("give --shard I/N or --ray, whose actors make all shards, not both")
    if of is None:
        raise click.UsageError("with --ray give --of N, the number of shards: several for each actor")
    return RayCluster(address, **options)


def _share(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text)
    if match is None:
        raise click.UsageError(f"--shard {text!r}: write it as I/N, such as 2/8")
    return int(match[1]), int(match[2])


def _print(report: EncodeReport, done: str) -> None:
    which = "all" if len(report.shards) == report.of else ", ".join(map(str, report.shards))
    there = "" if done == "exported" else f" ({report.encoded:,} encoded now)"
    click.echo(
        f"{report.place}: shards {which} of {report.of}: {plural(report.documents, 'document')}{there}, "
        f"{plural(report.passages, 'passage')}, {plural(report.tokens, 'token')} in {report.seconds:,.1f} s"
    )
    if report.rejected:
        rejected = plural(report.rejected, "line that is no document", "lines that are no documents")
        click.echo(f"left out: {rejected}", err=True)
