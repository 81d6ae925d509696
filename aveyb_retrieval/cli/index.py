"""`aveyb-index`: build, search and maintain an index.

All logic lives in `aveyb_retrieval.indexes`.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from aveyb_retrieval.cli import common, proof
from aveyb_retrieval.cli.alerts import ALERTS, alerts, report_alerts
from aveyb_retrieval.cli.ask import ask
from aveyb_retrieval.cli.help import examples
from aveyb_retrieval.errors import ConfigError, InputError, no_option, plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aveyb_retrieval.indexes.changes.change import Report
    from aveyb_retrieval.indexes.changes.verify import Verdict
    from aveyb_retrieval.indexes.search.hit import Hit
    from aveyb_retrieval.indexes.search.stored_documents import Document

_OUT: Any = {
    "required": True,
    "type": common.INDEX,
    "help": "Directory of the index, or its address in a store.",
}
_NAMED_LINES = 20  # lines or files that a summary names
SHOWN_CHARACTERS = 300  # characters that are shown of a passage, or of a document without passages
RESUMABLE = ("build", "copy", "add", "upsert", "delete", "sync", "compact", "publish")


@click.group(cls=common.Commands, resumable=RESUMABLE, context_settings=common.CONTEXT)
@click.version_option(package_name="aveyb-retrieval")
def main() -> None:
    """Build an index directory from documents and search it."""


def _share(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text)
    if match is None:
        raise click.BadParameter(f"{text!r}: write it as I/N, such as 2/8")
    return int(match[1]), int(match[2])


@main.command(
    epilog=examples(
        "aveyb-index build handbook/ -o handbook-index",
        "aveyb-index build corpus.jsonl -o my-index --text-field body",
        "aveyb-index build contracts/ -o contracts --exclude 'old/' --path-fields '{client}/*'",
    )
)
@click.argument("corpus", nargs=-1)
@click.option("-o", "--out", **_OUT)
@click.option(
    "--from",
    "from_index",
    metavar="INDEX",
    help="Encode the documents of an index again, without parsing files.",
)
@common.VECTORS
@common.MAKING
@click.option(
    "--allow-empty", is_flag=True, help="Make an index even if CORPUS holds no documents."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing index.")
@click.option(
    "--share", metavar="I/N", callback=_share, help="Take only share I of N of CORPUS: a shard."
)
@click.option(
    "--ray",
    "address",
    metavar="ADDRESS",
    help=(
        "Build by tasks of Ray: local (this machine), auto (the cluster that runs here), or"
        " HOST:PORT of a head."
    ),
)
@click.option(
    "--of",
    type=int,
    metavar="N",
    help="With --ray: how many shards, several for each task at once.",
)
@click.option(
    "--cpus", type=float, metavar="N", help="With --ray: processors of a task.  [default: 1]"
)
@click.option("--gpus", type=float, metavar="N", help="With --ray: GPUs of a task.  [default: 0]")
@common.READING
@common.VERBOSE
@common.WRITING
@common.WAIT
def build(out: str | Path, address: str | None, **arguments: Any) -> None:
    """Build an index from CORPUS.

    CORPUS is folders of files (PDF, DOCX, HTML, EPUB, Markdown, text), single files of these, files
    of many documents (.jsonl .json .csv .tsv .parquet; those of text also with .gz or .zst), globs,
    hf:OWNER/NAME for a data set of the Hugging Face hub, or - for JSON on standard input. If it is
    interrupted, run the same command again to continue.
    """
    from aveyb_retrieval.indexes.changes.update import build_index
    from aveyb_retrieval.indexes.cluster import build_on_ray

    task = {
        name: value for name in ("of", "cpus", "gpus") if (value := arguments.pop(name)) is not None
    }
    if address is None:
        if task:
            raise click.UsageError(
                f"--{next(iter(task))} is for tasks of Ray: give --ray ADDRESS too"
            )
        _insert(build_index, out, **arguments)
        return
    if arguments.pop("share") is not None:
        raise click.UsageError("give --share I/N or --ray, whose tasks build all shards, not both")
    if "of" not in task:
        raise click.UsageError(
            "with --ray give --of N, the number of shards: several for each task at once"
        )
    _insert(partial(build_on_ray, address=address, **task), out, **arguments)


@main.command(epilog=examples("aveyb-index init notes-index"))
@click.argument("directory", type=common.INDEX)
@common.MAKING
@common.WRITING
@common.WAIT
def init(directory: str | Path, quiet: bool, **arguments: Any) -> None:
    """Make an index without documents in DIRECTORY, for `aveyb-index add` and `upsert`."""
    from aveyb_retrieval.indexes.changes.update import build_index

    with common.progress_bar(not quiet) as progress:
        print_report(build_index([], directory, allow_empty=True, progress=progress, **arguments))


@main.command(epilog=examples("aveyb-index add my-index new.jsonl"))
@common.INSERTING
@common.VERBOSE
@ALERTS
def add(directory: str | Path, **arguments: Any) -> None:
    """Add the documents of CORPUS to the index in DIRECTORY. Their ids must be new."""
    from aveyb_retrieval.indexes.changes.update import insert_alone

    _insert(partial(insert_alone, "add"), directory, **arguments)


@main.command(epilog=examples("aveyb-index upsert my-index changed.jsonl"))
@common.INSERTING
@common.VERBOSE
@ALERTS
def upsert(directory: str | Path, **arguments: Any) -> None:
    """Add the documents of CORPUS and replace those whose ids exist.

    Only changed text is encoded.
    """
    from aveyb_retrieval.indexes.changes.update import insert_alone

    _insert(partial(insert_alone, "upsert"), directory, **arguments)


def _insert(
    change: Callable[..., Report],
    directory: str | Path,
    *,
    corpus: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    alerts_file: Path | None = None,
    **arguments: Any,
) -> None:
    if not corpus and arguments["vectors"] is None and arguments.get("from_index") is None:
        raise click.UsageError("give a CORPUS, or --vectors")
    with common.progress_bar(not quiet) as progress:
        report = change(
            [Path(c) for c in corpus] or None, directory, progress=progress, **arguments
        )
    print_report(report, verbose=verbose)
    report_alerts(directory, alerts_file)
    exit_if_incomplete(report)


@main.command(
    epilog=examples(
        "aveyb-index delete my-index lease minutes",
        """aveyb-index delete --filter '{"year": {"$lt": 2020}}' my-index""",
    )
)
@click.argument("directory", type=common.INDEX)
@click.argument("ids", nargs=-1)
@click.option(
    "--from", "ids_file", type=click.File("r", encoding="utf-8"), help="File with one id per line."
)
@common.filter_option("Delete the documents that match this condition on the metadata.")
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the index.")
@common.RESTART
@common.WAIT
def delete(
    directory: str | Path,
    ids: tuple[str, ...],
    ids_file: Any,
    restart: bool,
    wait: float,
    **arguments: Any,
) -> None:
    """Delete documents from the index in DIRECTORY by IDS, by a file of ids or by a filter."""
    from aveyb_retrieval.indexes.changes.update import Batch

    try:
        listed = [line.rstrip("\r\n") for line in ids_file] if ids_file else []
    except UnicodeDecodeError as error:
        raise InputError(
            f"--from {ids_file.name}: not UTF-8 text ({error.reason}); save it as UTF-8"
        ) from None
    batch = Batch(directory, restart=restart, wait=wait)
    batch.delete([*ids, *(line for line in listed if line)], **arguments)
    print_report(batch.commit(resumable=True))


@main.command(
    epilog=examples(
        "aveyb-index sync handbook/ -o handbook-index",
        "aveyb-index sync handbook/ -o handbook-index --watch",
    )
)
@click.argument("folder", type=common.PATH)
@click.option("-o", "--out", "directory", **_OUT)
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--watch", is_flag=True, help="Keep running, and sync again whenever files change.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    metavar="SECONDS",
    help="With --watch: seconds between checks of the folder.",
)
@common.repeatable(
    "--only",
    "only",
    "Look only at this folder or file below FOLDER, such as wiki/.",
    metavar="PART",
)
@common.number(
    "--allow-delete",
    "Let the sync delete up to N documents.  [default: a tenth of all, or 5]",
    least=0,
)
@click.option(
    "--moved",
    is_flag=True,
    help="The folder of the index was moved to FOLDER.",
)
@common.choose(
    "--fail-on",
    "new any none",
    "Exit with code 1 if a file is left out: when it is first reported, always, or never.",
)
@common.ON_ERROR
@common.FILES
@common.MAX_LINE
@common.ENCODING
@common.VERBOSE
@common.WRITING
@common.WAIT
@ALERTS
def sync(
    folder: Path,
    directory: str | Path,
    dry_run: bool,
    watch: bool,
    interval: float,
    fail_on: str,
    quiet: bool,
    verbose: bool,
    alerts_file: Path | None,
    **arguments: Any,
) -> None:
    """Bring an index into step with the files of FOLDER: new, changed, renamed and deleted ones.

    Files are compared by content. All changes become visible at once. If there is no index, it is
    built; for other options than these, run `build` first. A file that is left out is reported
    once.
    """
    from aveyb_retrieval.documents.reading import OF_FOLDERS
    from aveyb_retrieval.indexes.changes.sync import check_plan, plan_sync, sync_index, watch_folder
    from aveyb_retrieval.indexes.model import reading_of

    source = click.get_current_context().get_parameter_source
    for name in OF_FOLDERS:
        if source(name) is ParameterSource.DEFAULT:
            del arguments[name]  # the folder is read as before
    if dry_run:
        plan = plan_sync(folder, directory, **arguments)
        click.echo(f"{_in_words(plan.counts())} (a dry run: nothing was changed)")
        named = (("new", plan.new), ("changed", plan.changed), ("deleted", plan.deleted))
        lines = [f"{word}: {name}" for word, names in named for name in names]
        for line in (
            [*lines, *(f"renamed: {old} -> {new}" for old, new in plan.renamed)] if verbose else ()
        ):
            click.echo(printable(line))
        check_plan(plan, directory, arguments["allow_delete"])
        return

    def run() -> Report:
        with common.progress_bar(not quiet) as progress:
            report = sync_index(folder, directory, progress=progress, **arguments)
        if watch:
            click.echo(time.strftime("%Y-%m-%d %H:%M:%S "), nl=False)
        print_report(report, verbose=verbose)
        report_alerts(directory, alerts_file)
        return report

    if watch:
        watch_folder(
            folder,
            interval,
            run,
            reading=reading_of(arguments),
            report=partial(click.echo, err=True),
        )
    report = run()
    if fail_on == "new" or (fail_on == "any" and not report.known):
        exit_if_incomplete(report)
    elif fail_on == "any":
        click.get_current_context().exit(1)


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def print_report(report: Report, *, verbose: bool = False) -> None:
    """Print what a change did, and on stderr what it left out."""
    continued = " (continued an interrupted change)" if report.resumed else ""
    more = "" if verbose else " (--verbose names them)"
    done = _in_words(
        {
            name: getattr(report, name)
            for name in ("added", "replaced", "updated", "renamed", "deleted", "unchanged")
        }
    )
    click.echo(
        f"{report.path}: {done}{'; ' if done else ''}{plural(report.documents, 'document')},"
        f" {plural(report.passages, 'passage')}, {plural(report.tokens, 'token')} in"
        f" {report.seconds:,.1f} s{continued}"
    )
    if report.cut_documents:
        lost = (
            f"{plural(report.cut_documents, 'document')} lost {plural(report.cut_tokens, 'token')}"
        )
        click.echo(f"cut by --max-tokens or the model's window: {lost}", err=True)
    if report.rejected:
        rejected = plural(report.rejected, "line or file", "lines or files")
        click.echo(f"left out: {rejected}, listed with reasons in {report.rejected_file}", err=True)
    if report.rejected and report.rejected_file is not None:
        with report.rejected_file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if number == _NAMED_LINES and not verbose:
                    click.echo("  ... (--verbose names all of them)", err=True)
                    break
                item = json.loads(line)
                place = f"{item['file']}, line {item['line']}" if item["line"] else item["file"]
                click.echo(printable(f"  {place}: {item['reason']}"), err=True)
    if left_out := [notice for notice in report.notices if notice.left_out]:
        from aveyb_retrieval.documents.folders import summary

        count = plural(len(left_out), "file or folder", "files or folders")
        click.echo(printable(f"not read: {count}: {summary(left_out)}{more}"), err=True)
    if report.known:
        click.echo(f"left out as before: {plural(len(report.known), 'file')}{more}", err=True)
    for notice in [*report.notices, *report.known]:
        if verbose or not notice.left_out:
            click.echo(printable(f"{notice.path}: {notice.reason}"), err=True)


def exit_if_incomplete(report: Report) -> None:
    """End the command with exit code 1 where something was left out that a search could
    have found.
    """
    if report.rejected or any(notice.is_loss for notice in report.notices):
        click.get_current_context().exit(1)


DIRECTORY = click.argument("directory", type=common.INDEX)
FILTER = common.filter_option('Only documents that match, such as {"year": {"$gte": 2020}}.')


@main.command(epilog=examples("aveyb-index get my-index lease"))
@DIRECTORY
@click.argument("ids", nargs=-1, required=True)
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the index.")
def get(directory: str | Path, ids: tuple[str, ...], missing_ok: bool) -> None:
    """Print the documents of the index in DIRECTORY with these IDS, one JSON object per line."""
    with common.opened(directory) as retriever:
        _print_documents(retriever.get(ids, missing_ok=missing_ok))


@main.command(
    "list",
    epilog=examples(
        "aveyb-index list my-index --limit 10", "aveyb-index list my-index > corpus.jsonl"
    ),
)
@DIRECTORY
@FILTER
@click.option("--limit", type=int, metavar="N", help="At most N documents.")
@click.option("--offset", default=0, metavar="N", help="Skip the first N.")
@click.option("--ids", "only_ids", is_flag=True, help="Print only the ids, one per line.")
@click.option(
    "--incomplete",
    is_flag=True,
    help="Print the files that were not read, or not all of them, and why.",
)
def list_documents(
    directory: str | Path, where: Any, only_ids: bool, incomplete: bool, **page: Any
) -> None:
    """Print the documents of the index in DIRECTORY, oldest first, one JSON object per line.

    `aveyb-index build` reads what this prints.
    """
    if incomplete:
        if where is not None or only_ids or any(page.values()):
            raise click.UsageError("--incomplete lists files, all of them: give no other option")
        _print_incomplete(directory)
        return
    with common.opened(directory) as retriever:
        documents = retriever.documents(where, **page)
        if only_ids:
            for document in documents:
                click.echo(document.id)
        else:
            _print_documents(documents)


def _print_incomplete(directory: str | Path) -> None:
    from aveyb_retrieval.indexes.store.place import open_directory, read_manifest

    left_out = read_manifest(open_directory(directory)).left_out
    for path in sorted(left_out):
        click.echo(json.dumps({"file": path, "reason": left_out[path]}, ensure_ascii=False))


@main.command(epilog=examples("aveyb-index count my-index", "aveyb-index count my-index --by year"))
@DIRECTORY
@FILTER
@click.option(
    "--by",
    metavar="FIELD",
    help="Print the number of documents for each value of this field, most frequent first.",
)
def count(directory: str | Path, where: Any, by: str | None) -> None:
    """Print how many documents the index in DIRECTORY has."""
    with common.opened(directory) as retriever:
        if by is None:
            click.echo(str(retriever.count(where)))
            return
        for value, number in retriever.values(by, where):
            click.echo(
                f"{number:>9,}  {printable(value) if isinstance(value, str) else json.dumps(value)}"
            )


@main.command(
    epilog=examples("""aveyb-index update-metadata --set '{"reviewed": true}' my-index lease""")
)
@DIRECTORY
@click.argument("ids", nargs=-1)
@FILTER
@click.option("--set", "changes", metavar="JSON", default="{}", callback=common.parse_json,
              help='Fields and new values, such as {"year": 2021}.')  # fmt: skip
@common.repeatable("--remove", "remove", "Field to remove.", metavar="FIELD")
@click.option("--clear", is_flag=True, help="First undo all that was set or removed before.")
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the index.")
@common.RESTART
@common.WAIT
@common.QUIET
def update_metadata(
    directory: str | Path,
    changes: Any,
    ids: tuple[str, ...],
    quiet: bool,
    restart: bool,
    wait: float,
    **arguments: Any,
) -> None:
    """Change metadata of documents in DIRECTORY, chosen by IDS or by a filter. Nothing is encoded.

    What is set stays when files change, are renamed or are indexed again; --clear undoes it. Ids,
    titles and texts are no metadata: `aveyb-index upsert` changes them.
    """
    from aveyb_retrieval.indexes.changes.update import Batch

    if not isinstance(changes, dict):
        written = json.dumps(changes, ensure_ascii=False)
        raise ConfigError(f"--set {written!r}: not an object; write it as '{{\"field\": value}}'")
    with common.progress_bar(not quiet) as progress:
        batch = Batch(directory, progress=progress, restart=restart, wait=wait)
        batch.update_metadata(changes, ids, **arguments)
        report = batch.commit(resumable=True)
    click.echo(f"{report.path}: version {report.version}, {report.documents:,} documents")


def _print_documents(documents: Iterable[Document]) -> None:
    for document in documents:
        click.echo(json.dumps(document.to_dict(), ensure_ascii=False))


@main.command(epilog=examples("aveyb-index publish my-index --to postgresql://localhost/search"))
@click.argument("source")
@click.option(
    "--to",
    required=True,
    metavar="URL",
    help="Collection, such as postgresql://USER@HOST:PORT/DATABASE/NAME.",
)
@click.option(
    "--update",
    is_flag=True,
    help="Upsert the documents into the collection, instead of replacing it.",
)
@click.option(
    "--restart", is_flag=True, help="Discard what an interrupted run has written, and start again."
)
@common.QUIET
def publish(source: str, to: str, quiet: bool, **arguments: Any) -> None:
    """Put the documents of SOURCE, an index or shards, with their vectors into a database server.

    Readers see them all at once when they are complete. If it is interrupted, run the same command
    again to continue.
    """
    from aveyb_retrieval.engines.publish import publish_index

    with common.progress_bar(not quiet) as progress:
        report = publish_index(source, to, progress=progress, **arguments)
    click.echo(
        f"{report.name}: {report.documents:,} documents ({report.written:,} written now), "
        f"{report.passages:,} passages in {report.seconds:,.1f} s"
    )


@main.command(epilog=examples("aveyb-index unpublish lease --to postgresql://localhost/search"))
@click.argument("ids", nargs=-1)
@click.option("--to", required=True, metavar="URL", help="Collection.")
@common.filter_option("Remove the documents that match this condition on the metadata.")
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the collection.")
def unpublish(ids: tuple[str, ...], to: str, **options: Any) -> None:
    """Remove documents from a collection by IDS or by a filter."""
    from aveyb_retrieval.engines.publish import unpublish_documents

    removed = unpublish_documents(to, ids, **options)
    click.echo(f"removed: {removed:,} documents")


@main.command(
    epilog=examples(
        'aveyb-index search my-index "which notice period applies?" -k 5',
        """aveyb-index search my-index "notice period" --filter '{"year": 2020}' --json""",
        """aveyb-index search my-index '"notice period" +lease' --operators""",
    )
)
@click.argument("directory", type=common.INDEX)
@click.argument("query")
@click.option("-k", default=10, help="Number of documents or passages to return.")
@click.option("--offset", default=0, help="Skip the best N: the next page.", metavar="N")
@common.choose(
    "--unit", "document passage", "Find documents, or the best passages of all documents."
)
@common.MODE
@common.granularity("Vectors that rank the documents.")
@common.filter_option('Condition on metadata, _id or title, such as {"year": {"$gte": 2020}}.')
@common.repeatable("--id", "ids", "Search only the document of this id.", metavar="ID")
@common.repeatable(
    "--with",
    "others",
    "Search this index, too, in one ranking.",
    type=common.INDEX,
    metavar="OTHER",
)
@common.choose("--fusion", "weighted rrf", "How a hybrid search combines the two rankings.")
@click.option(
    "--weight", type=float, help="Weight of the vectors in weighted fusion, 0 to 1.  [default: 0.5]"
)
@click.option(
    "--rerank",
    metavar="MODEL",
    help=(
        "Rerank the best candidates: maxsim (late interaction), token-vectors (the same, with"
        " stored vectors or not at all), or a cross-encoder's folder or name."
    ),
)
@click.option(
    "--min-score", type=float, help="Leave out hits below this confidence (hybrid) or score."
)
@click.option(
    "--per-document", type=int, help="With passages: at most N of one document.", metavar="N"
)
@click.option(
    "--diversity", type=float, help="With passages: lower those that resemble better hits, 0 to 1."
)
@click.option(
    "--fold/--no-fold",
    default=True,
    help="Fold copies into the best of them, or show each as a hit.",
)
@click.option("--passages", default=1, help="Passages to show per document.")
@click.option(
    "--context", type=int, help="Also show N passages before and after the best one.", metavar="N"
)
@click.option(
    "--boost",
    metavar="JSON",
    callback=common.parse_json,
    help='Weights of fields, such as {"stars": 0.1}.',
)
@click.option(
    "--sort",
    metavar="FIELD",
    help="Order the hits that match by this field: date, or -date for the newest first.",
)
@click.option(
    "--operators",
    is_flag=True,
    help='Signs are conditions: "a phrase", +must, -mustnot, begin*, typo~.',
)
@click.option("--exact", is_flag=True, help="Score every vector instead of using the FAISS index.")
@click.option("--model", help="Folder of the index's model, if it has moved.")
@click.option("--device", default="cpu", help="Device of the model and of the search.")
@common.PRECISION
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per hit, without the document's text.",
)
@click.option("--fields", help="With --json: only these fields, as id,score,passage,text.")
def search(
    directory: str | Path,
    query: str,
    k: int,
    where: Any,
    others: tuple[str | Path, ...],
    as_json: bool,
    fields: str | None,
    **arguments: Any,
) -> None:
    """Search the index in DIRECTORY for QUERY, or the collection at an address
    (postgresql://...).
    """
    if fields is not None and not as_json:
        raise click.UsageError("--fields: only with --json")
    how = {name: arguments.pop(name) for name in ("model", "device", "precision")}
    with common.opened([directory, *others] if others else directory, **how) as retriever:
        set_options = {name: value for name, value in arguments.items() if value not in (None, ())}
        hits = retriever.search(query, k, filter=where, **set_options)
        for number, hit in enumerate(hits, start=1 + arguments["offset"]):
            if as_json:
                click.echo(json.dumps(_chosen(hit, fields), ensure_ascii=False))
            else:
                _print_hit(number, hit)
        for word, meant in () if as_json else hits.suggestions.items():
            click.echo(
                f"no document has {word!r}; did you mean {' or '.join(map(repr, meant))}?", err=True
            )
    if not hits and not as_json:
        click.echo(
            f"nothing found{'; nothing has ' + ' or '.join(hits.unmet) if hits.unmet else ''}",
            err=True,
        )


@main.command(epilog=examples("aveyb-index info my-index"))
@click.argument("directory", type=common.INDEX)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(directory: str | Path, as_json: bool) -> None:
    """Describe the index in DIRECTORY: model, counts and files."""
    from aveyb_retrieval.indexes.store.place import describe

    description = describe(directory)
    if as_json:
        click.echo(json.dumps(description, ensure_ascii=False, indent=2))
        return
    for key, value in description.items():
        click.echo(f"{key:<12} {common.plain(value)}")


@main.command(epilog=examples("aveyb-index copy my-index s3://bucket/my-index"))
@click.argument("source", type=common.INDEX)
@click.argument("target", type=common.INDEX)
@click.option("--overwrite", is_flag=True, help="Also replace another index, or a newer version.")
@common.WAIT
def copy(source: str | Path, target: str | Path, **arguments: Any) -> None:
    """Copy the index SOURCE to TARGET: folders, or addresses such as s3://BUCKET/PATH.

    Only missing files are copied. If it is interrupted, run the same command again to
    continue.
    """
    from aveyb_retrieval.indexes.changes.copy import copy_index

    report = copy_index(source, target, **arguments)
    click.echo(
        f"{report.path}: version {report.version}, {plural(report.files, 'file')} of"
        f" {report.bytes:,} bytes, {report.copied:,} of them copied in {report.seconds:,.1f} s"
    )


@main.command(
    epilog=examples(
        "aveyb-index export my-index -o vectors.parquet",
        "aveyb-index export my-index -o passages.faiss --unit passage",
    )
)
@DIRECTORY
@click.option(
    "-o",
    "--out",
    type=common.PATH,
    required=True,
    help="File to write: .parquet, .npy or .faiss.",
)
@common.choose("--unit", "document passage", "Vectors of documents, or of passages.")
@FILTER
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
def export(
    directory: str | Path,
    out: Path,
    unit: Literal["document", "passage"],
    where: Any,
    overwrite: bool,
) -> None:
    """Write the vectors of the index in DIRECTORY to a file, for other programs.

    A Parquet file has the columns _id and vector, and of passages start and stop, their characters
    in the document. The rows of .npy (a float32 matrix) and .faiss (an exact index, IndexFlatIP)
    are named by a second file, FILE.ids.jsonl.
    """
    with common.opened(directory) as retriever:
        rows = retriever.export_vectors(out, unit, filter=where, overwrite=overwrite)
    click.echo(f"{out}: {plural(rows, 'vector')}")


@main.command(epilog=examples("aveyb-index compact my-index"))
@click.argument("directory", type=common.INDEX)
@common.RESTART
@common.WAIT
@common.QUIET
def compact(directory: str | Path, quiet: bool, **arguments: Any) -> None:
    """Merge the pieces that changes of DIRECTORY have left, and free the space of deleted
    documents.
    """
    from aveyb_retrieval.indexes.changes.change import compact as merge
    from aveyb_retrieval.indexes.store.place import open_directory

    with common.progress_bar(not quiet) as progress:
        print_report(merge(open_directory(directory), progress=progress, **arguments))


@main.command(
    epilog=examples("aveyb-index verify my-index", "aveyb-index verify my-index --repair")
)
@click.argument("directory", type=common.INDEX)
@click.option("--repair", is_flag=True, help="Rebuild what can be rebuilt from the stored vectors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify(context: click.Context, directory: str | Path, repair: bool, as_json: bool) -> None:
    """Check every hash and count of the index in DIRECTORY. Exit code 1 if damage remains."""
    from aveyb_retrieval.indexes.changes.verify import verify_apart

    verdict = verify_apart(directory, repair=repair)
    if as_json:
        click.echo(json.dumps(asdict(verdict), ensure_ascii=False))
    else:
        for problem in verdict.problems:
            click.echo(problem)
        click.echo(_state(verdict))
    if verdict.problems and not verdict.repaired:
        context.exit(1)


def _state(verdict: Verdict) -> str:
    if not verdict.problems:
        return "sound"
    return "repaired" if verdict.repaired else "damaged"


def _print_hit(number: int, hit: Hit) -> None:
    confidence = "" if hit.confidence is None else f"  confidence {hit.confidence:.2f}"
    name, where = (
        click.style(printable(hit.title or hit.id), bold=True),
        f"{hit.index}: " if hit.index else "",
    )
    click.echo(f"{number:>3}. {name}  [{printable(where + hit.id)}]  {hit.score:.4f}{confidence}")
    if written := ", ".join(filter(None, [hit.date, hit.author])):
        click.echo(f"     {printable(written)}")
    for passage in hit.passages:
        page = f", {printable(passage.place)}" if passage.place else ""
        if passage.pages is not None and passage.pages[0] < passage.pages[1]:
            page += f" ({passage.page_unit}s {passage.pages[0]}-{passage.pages[1]})"
        text = _marked(hit, passage.span)
        heading = (
            f" {printable(passage.heading)}:"
            if passage.heading and passage.heading not in text
            else ""
        )
        click.echo(f"     {passage.span[0]}-{passage.span[1]}{page}:{heading} {text}")
    if not hit.passages:
        click.echo(f"     {_marked(hit, (0, len(hit.text)))}")
    if hit.context_span is not None:
        click.echo(
            f"     around it, {hit.context_span[0]}-{hit.context_span[1]}:"
            f" {_marked(hit, hit.context_span)}"
        )
    if hit.duplicates:
        click.echo(f"     the same in {printable(', '.join(hit.duplicates))}")
    if hit.earlier:
        click.echo(f"     older in {printable(', '.join(hit.earlier))}")


def _marked(hit: Hit, span: tuple[int, int]) -> str:
    """Some characters of a hit's text on one line, the query's words in bold; of many, from its
    best sentence.
    """
    (first, last), start = span, span[0]
    marks = [mark for mark in hit.highlights if first <= mark[0] and mark[1] <= last]
    places = [
        place[0] for place in (hit.best_sentence, *marks) if place and first <= place[0] < last
    ]
    if last - first > SHOWN_CHARACTERS and places:
        start = min(places[0], last - SHOWN_CHARACTERS)
    stop = min(start + SHOWN_CHARACTERS, last)
    parts, end = ["… "] if start > first else [], start
    for begin, over in (mark for mark in marks if start <= mark[0] and mark[1] <= stop):
        parts += [
            _one_line(hit.text[end:begin]),
            click.style(_one_line(hit.text[begin:over]), bold=True),
        ]
        end = over
    return "".join([*parts, _one_line(hit.text[end:stop]), " …" if stop < last else ""]).strip()


def _chosen(hit: Hit, fields: str | None) -> dict[str, Any]:
    if fields is None:
        return hit.to_dict()
    fields_of_hit = hit.to_dict(text=True) | {"place": hit.place}
    names = [name.strip() for name in fields.split(",") if name.strip()]
    if unknown := [name for name in names if name not in fields_of_hit]:
        reason = no_option("a hit", unknown[0], list(fields_of_hit), kind="field")
        raise ConfigError(f"--fields {fields!r}: {reason}")
    return {name: fields_of_hit[name] for name in names}


def _one_line(text: str) -> str:
    return printable(re.sub(r"\s+", " ", text))


for command in (proof.check, proof.grep, proof.outline, ask, alerts):
    main.add_command(command)
for named, added in main.commands.items():
    if any(option.type is common.INDEX for option in added.params):
        common.cache_options(added, 3 if named == "search" else 1)


if __name__ == "__main__":
    main()
