"""`aveyb-index`: build, search and maintain an index. All logic lives in `aveyb_retrieval.indexes`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli import changes, documents, shards
from aveyb_retrieval.cli.changes import print_report
from aveyb_retrieval.cli.common import CONTEXT, MODE, PRECISION, Commands, filter_option, parse_json, progress_bar
from aveyb_retrieval.cli.options import INDEX, PATH
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.wording import printable

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.search.retriever import Hit


WIDTH = 300  # characters that are shown of a document without passages
RESUMABLE = ("build", "add", "upsert", "delete", "sync", "compact", "tune", "publish", "encode")


@click.group(cls=Commands, resumable=RESUMABLE, context_settings=CONTEXT)
@click.version_option(package_name="aveyb-retrieval")
def main() -> None:
    """Build an index directory from documents and search it."""


for command in (
    changes.build, changes.init, changes.add, changes.upsert, changes.delete, changes.sync,
    documents.get, documents.list_documents, documents.count, documents.update_metadata, shards.encode, shards.export,
    shards.publish, shards.unpublish,
):  # fmt: skip
    main.add_command(command)


@main.command()
@click.argument("directory", type=INDEX)
@click.argument("query")
@click.option("-k", default=10, help="Number of documents or passages to return.")
@click.option("--offset", default=0, help="Leave out the best N: the next page.", metavar="N")
@click.option(
    "--unit",
    type=click.Choice(["document", "passage"]),
    default="document",
    help="Find documents, or the best passages of all documents.",
)
@MODE
@click.option(
    "--granularity", type=click.Choice(["document", "passage", "both"]), help="Vectors that rank the documents."
)
@filter_option('Condition on metadata, _id or title, such as {"year": {"$gte": 2020}}.')
@click.option("--id", "ids", multiple=True, help="Search only the document of this id. Repeatable.", metavar="ID")
@click.option(
    "--fusion",
    type=click.Choice(["weighted", "rrf"]),
    default="weighted",
    help="How a hybrid search combines the two rankings.",
)
@click.option("--weight", type=float, help="Weight of the vectors in weighted fusion, 0 to 1.  [default: 0.5]")
@click.option(
    "--rerank",
    metavar="MODEL",
    help="Rerank the best candidates: maxsim (late interaction), token-vectors (the same, with stored vectors or not "
    "at all), or a cross-encoder's folder or name.",
)
@click.option("--min-score", type=float, help="Leave out hits below this confidence (hybrid) or score.")
@click.option("--per-document", type=int, help="With passages: at most N of one document.", metavar="N")
@click.option("--diversity", type=float, help="With passages: put back what resembles better ones, 0 to 1.")
@click.option("--passages", default=1, help="Passages to show per document.")
@click.option("--context", type=int, help="Also show N passages before and after the best one.", metavar="N")
@click.option("--boost", metavar="JSON", callback=parse_json, help='Weights of fields, such as {"stars": 0.1}.')
@click.option("--exact", is_flag=True, help="Score every vector instead of using the FAISS index.")
@click.option("--model", help="Folder of the index's model, if it has moved.")
@click.option("--device", default="cpu", help="Device of the model and of the search.")
@PRECISION
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per hit, without the document's text.")
@click.option("--fields", help="With --json: only these fields, as id,score,passage,text.")
def search(
    directory: str | Path,
    query: str,
    k: int,
    where: Any,
    model: str | None,
    device: str,
    precision: str,
    as_json: bool,
    fields: str | None,
    **arguments: Any,
) -> None:
    """Search the index in DIRECTORY for QUERY, or the collection at an address (postgresql://... or milvus://...)."""
    from aveyb_retrieval.indexes.search.retriever import Retriever

    if fields is not None and not as_json:
        raise click.UsageError("--fields: only with --json")
    with Retriever.load(directory, model=model, device=device, precision=precision) as retriever:
        given = {name: value for name, value in arguments.items() if value not in (None, ())}
        hits = retriever.search(query, k, filter=where, **given)
    for number, hit in enumerate(hits, start=1 + arguments["offset"]):
        if as_json:
            click.echo(json.dumps(_chosen(hit, fields), ensure_ascii=False))
        else:
            _print_hit(number, hit)
    if not hits and not as_json:
        click.echo("nothing found", err=True)


@main.command()
@click.argument("directory", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(directory: Path, as_json: bool) -> None:
    """Describe the index in DIRECTORY: model, counts, files and measured recall."""
    from aveyb_retrieval.indexes.store.info import describe

    description = describe(directory)
    if as_json:
        click.echo(json.dumps(description, ensure_ascii=False, indent=2))
        return
    for key, value in description.items():
        click.echo(f"{key:<12} {_plain(value)}")


@main.command()
@click.argument("directory", type=PATH)
@click.option("--restart", is_flag=True, help="Discard an interrupted change and start again.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def compact(directory: Path, restart: bool, quiet: bool) -> None:
    """Merge the pieces that changes of DIRECTORY have left, and give back the room of deleted documents."""
    from aveyb_retrieval.indexes.changes.maintain import compact_index

    with progress_bar(not quiet) as progress:
        print_report(compact_index(directory, restart=restart, progress=progress))


@main.command()
@click.argument("directory", type=PATH)
@click.option("--recall", type=float, default=0.95, help="Share of the exact results to find.")
@click.option("--restart", is_flag=True, help="Discard an interrupted change and start again.")
def tune(directory: Path, recall: float, restart: bool) -> None:
    """Tune the search settings of DIRECTORY to reach a recall, measured against exact search."""
    from aveyb_retrieval.indexes.changes.maintain import tune_index

    for kind, files in tune_index(directory, recall, restart=restart).indexes.items():
        if not files:
            click.echo(f"{kind}: searched exactly")
        for found in files:
            for point in found.curve:
                click.echo(f"{kind}: " + "  ".join(f"{name} {value:g}" for name, value in point.items()))
            if found.recall is not None and found.recall < recall:
                what = f"{kind}: recall {found.recall:.3f} is the best that this index reaches, not {recall}"
                click.echo(what, err=True)


@main.command()
@click.argument("directory", type=PATH)
@click.option("--repair", is_flag=True, help="Rebuild what can be rebuilt from the stored vectors.")
@click.option("--deep", is_flag=True, help="Also compare texts, passages, words, vectors and FAISS codes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify(context: click.Context, directory: Path, repair: bool, deep: bool, as_json: bool) -> None:
    """Check every hash and count of the index in DIRECTORY. Exit code 1 if damage remains."""
    from aveyb_retrieval.indexes.changes.verify import verify_apart

    verdict = verify_apart(directory, repair=repair, deep=deep)
    if as_json:
        click.echo(json.dumps(asdict(verdict), ensure_ascii=False))
    else:
        for problem in verdict.problems:
            click.echo(problem)
        click.echo("sound" if not verdict.problems else "repaired" if verdict.repaired else "damaged")
    if verdict.problems and not verdict.repaired:
        context.exit(1)


def _print_hit(number: int, hit: Hit) -> None:
    confidence = "" if hit.confidence is None else f"  confidence {hit.confidence:.2f}"
    scores = "".join(f"  {name} {value:.3f}" for name, value in hit.scores.items())
    click.echo(
        f"{number:>3}. {click.style(printable(hit.title or hit.id), bold=True)}  [{printable(hit.id)}]  "
        f"{hit.score:.4f}{confidence}{scores}"
    )
    for passage in hit.passages:
        heading = f" {printable(passage.heading)}:" if passage.heading else ""
        page = f", {printable(passage.place)}" if passage.place else ""
        if passage.pages is not None and passage.pages[0] < passage.pages[1]:
            page += f" ({passage.page_unit}s {passage.pages[0]}-{passage.pages[1]})"
        click.echo(f"     {passage.span[0]}-{passage.span[1]}{page}:{heading} {_marked(hit, passage.span)}")
    if not hit.passages:
        click.echo(f"     {_marked(hit, (0, WIDTH))}{'…' if len(hit.text) > WIDTH else ''}")
    if hit.context_span is not None:
        click.echo(f"     around it, {hit.context_span[0]}-{hit.context_span[1]}: {_marked(hit, hit.context_span)}")
    if hit.duplicates:
        click.echo(f"     nearly the same in {printable(', '.join(hit.duplicates))}")


def _marked(hit: Hit, span: tuple[int, int]) -> str:
    """Some characters of a hit's text on one line, the query's words in bold."""
    parts, end = [], span[0]
    for start, stop in (mark for mark in hit.highlights if span[0] <= mark[0] and mark[1] <= span[1]):
        parts += [_one_line(hit.text[end:start]), click.style(_one_line(hit.text[start:stop]), bold=True)]
        end = stop
    return "".join([*parts, _one_line(hit.text[end : span[1]])]).strip()


def _chosen(hit: Hit, fields: str | None) -> dict[str, Any]:
    """A hit as JSON: the fields asked for, or all but the whole text."""
    if fields is None:
        return hit.to_dict()
    known = hit.to_dict(text=True)
    names = [name.strip() for name in fields.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--fields {fields!r}: a hit has no field {unknown[0]!r}; known are {', '.join(known)}")
    return {name: known[name] for name in names}


def _one_line(text: str) -> str:
    return printable(re.sub(r"\s+", " ", text))


def _plain(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main()
