"""The commands of `aveyb-index` that change what an index holds: build, add, upsert, delete, sync."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import filter_option, progress_bar
from aveyb_retrieval.cli.options import (
    ENCODING,
    FILES,
    INSERTING,
    MAKING,
    MAX_LINE,
    ON_ERROR,
    PATH,
    READING,
    VECTORS,
    VERBOSE,
    WRITING,
)
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.wording import plural, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aveyb_retrieval.indexes.changes.change import Report
    from aveyb_retrieval.indexes.changes.sync import SyncPlan
    from aveyb_retrieval.indexes.input.documents import Notice

_NAMED = 20  # lines or files that a summary names


@click.command()
@click.argument("corpus", nargs=-1)
@click.option("-o", "--out", required=True, type=PATH, help="Directory of the index.")
@VECTORS
@MAKING
@click.option("--allow-empty", is_flag=True, help="Make an index also where CORPUS holds no documents.")
@click.option(
    "--funnel", type=int, metavar="N", help="Pool tokens of documents in pairs behind the model's first N layers."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing index.")
@READING
@VERBOSE
@WRITING
def build(out: Path, **arguments: Any) -> None:
    """Build an index from CORPUS.

    CORPUS is folders of files (PDF, DOCX, HTML, EPUB, Markdown, text), single files of these, files of many documents
    (.jsonl .json .csv .tsv .parquet; those of text also with .gz or .zst), globs, hf:OWNER/NAME for a data set of the
    Hugging Face hub, or - for JSON on standard input. If it is interrupted, run the same command again to continue.
    """
    from aveyb_retrieval.indexes.changes.build import build_index

    _insert(build_index, out, **arguments)


@click.command()
@click.argument("directory", type=PATH)
@MAKING
@WRITING
def init(directory: Path, quiet: bool, **arguments: Any) -> None:
    """Make an index without documents in DIRECTORY, for `aveyb-index add` and `upsert`."""
    from aveyb_retrieval.indexes.changes.build import build_index

    with progress_bar(not quiet) as progress:
        print_report(build_index([], directory, allow_empty=True, progress=progress, **arguments))


@click.command()
@INSERTING
@VERBOSE
def add(**arguments: Any) -> None:
    """Add the documents of CORPUS to the index in DIRECTORY. Their ids must be new."""
    from aveyb_retrieval.indexes.changes.update import add_documents

    _insert(add_documents, **arguments)


@click.command()
@INSERTING
@VERBOSE
def upsert(**arguments: Any) -> None:
    """Add the documents of CORPUS and replace those whose ids exist. Only changed text is encoded."""
    from aveyb_retrieval.indexes.changes.update import upsert_documents

    _insert(upsert_documents, **arguments)


def _insert(
    change: Callable[..., Report],
    directory: Path,
    *,
    corpus: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    **arguments: Any,
) -> None:
    if not corpus and arguments["vectors"] is None:
        raise click.UsageError("give a CORPUS, or --vectors")
    with progress_bar(not quiet) as progress:
        report = change([Path(c) for c in corpus] or None, directory, progress=progress, **arguments)
    print_report(report, verbose=verbose)
    exit_if_incomplete(report)


@click.command()
@click.argument("directory", type=PATH)
@click.argument("ids", nargs=-1)
@click.option("--from", "ids_file", type=click.File("r", encoding="utf-8"), help="File with one id per line.")
@filter_option("Delete the documents that match this condition on the metadata.")
@click.option("--missing-ok", is_flag=True, help="Ignore ids that are not in the index.")
@click.option("--restart", is_flag=True, help="Discard an interrupted change and start again.")
def delete(directory: Path, ids: tuple[str, ...], ids_file: Any, **arguments: Any) -> None:
    """Delete documents from the index in DIRECTORY by IDS, by a file of ids or by a filter."""
    from aveyb_retrieval.indexes.changes.update import delete_documents

    try:
        listed = [line.rstrip("\r\n") for line in ids_file] if ids_file else []
    except UnicodeDecodeError as error:
        raise InputError(f"--from {ids_file.name}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    wanted = [*ids, *(line for line in listed if line)]
    print_report(delete_documents(directory, wanted, **arguments))


@click.command()
@click.argument("folder", type=PATH)
@click.option("-o", "--out", "directory", required=True, type=PATH, help="Directory of the index.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--watch", is_flag=True, help="Go on, and do it again whenever files change.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    metavar="SECONDS",
    help="With --watch: seconds between two looks at the folder.",
)
@ON_ERROR
@FILES
@MAX_LINE
@ENCODING
@VERBOSE
@WRITING
def sync(
    folder: Path,
    directory: Path,
    dry_run: bool,
    watch: bool,
    interval: float,
    quiet: bool,
    verbose: bool,
    **arguments: Any,
) -> None:
    """Bring an index into step with the files of FOLDER: new, changed, renamed and deleted ones.

    Files are compared by what they hold. All changes become visible at once. Where there is no index, it is built; for
    other options than these, build it by `build` first.
    """
    from aveyb_retrieval.indexes.changes.sync import plan_sync, sync_index
    from aveyb_retrieval.indexes.changes.watch import watch_folder

    if dry_run:
        _print_plan(plan_sync(folder, directory, follow_links=arguments["follow_links"]), verbose=verbose)
        return

    def run() -> Report:
        with progress_bar(not quiet) as progress:
            report = sync_index(folder, directory, progress=progress, **arguments)
        print_report(report, verbose=verbose)
        return report

    if watch:
        watch_folder(folder, interval, run, follow_links=arguments["follow_links"])
    exit_if_incomplete(run())


def _print_plan(plan: SyncPlan, *, verbose: bool) -> None:
    click.echo(f"{_in_words(plan.counts())} (a dry run: nothing was changed)")
    if not verbose:
        return
    for word, names in (("new", plan.new), ("changed", plan.changed), ("deleted", plan.deleted)):
        for name in names:
            click.echo(printable(f"{word}: {name}"))
    for old, new in plan.renamed:
        click.echo(printable(f"renamed: {old} -> {new}"))


def _in_words(counts: Mapping[str, int]) -> str:
    """What a change did, such as "3 added, 1 deleted"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def print_report(report: Report, *, verbose: bool = False) -> None:
    """Print what a change did, and on stderr what it left out."""
    continued = " (continued an interrupted change)" if report.resumed else ""
    done = _in_words({name: getattr(report, name) for name in ("added", "replaced", "renamed", "deleted", "unchanged")})
    click.echo(
        f"{report.path}: {done}{'; ' if done else ''}{plural(report.documents, 'document')}, "
        f"{plural(report.passages, 'passage')}, {plural(report.tokens, 'token')} in {report.seconds:,.1f} s{continued}"
    )
    if report.cut_documents:
        lost = f"{plural(report.cut_documents, 'document')} lost {plural(report.cut_tokens, 'token')}"
        click.echo(f"cut by --max-tokens: {lost}", err=True)
    if report.rejected:
        rejected = plural(report.rejected, "line or file", "lines or files")
        click.echo(f"left out: {rejected}, listed with reasons in {report.rejected_file}", err=True)
        _print_rejected(report.rejected_file, verbose=verbose)
    _print_notices(report.notices, verbose=verbose)


def _print_rejected(listed: Path | None, *, verbose: bool) -> None:
    if listed is None:
        return
    with listed.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number == _NAMED and not verbose:
                click.echo("  ... (--verbose names all of them)", err=True)
                return
            item = json.loads(line)
            place = f"{item['file']}, line {item['line']}" if item["line"] else item["file"]
            click.echo(printable(f"  {place}: {item['reason']}"), err=True)


def exit_if_incomplete(report: Report) -> None:
    """End the command with exit code 1 where something was left out that a search could have found."""
    missing = any(notice.left_out and not notice.harmless for notice in report.notices)
    if report.rejected or missing:
        click.get_current_context().exit(1)


def _print_notices(notices: Sequence[Notice], *, verbose: bool) -> None:
    from aveyb_retrieval.indexes.input.folders import summary

    left_out = [notice for notice in notices if notice.left_out]
    if left_out:
        more = "" if verbose else " (--verbose names them)"
        count = plural(len(left_out), "file or folder", "files or folders")
        click.echo(printable(f"not read: {count}: {summary(left_out)}{more}"), err=True)
    for notice in notices:
        if verbose or not notice.left_out:
            click.echo(printable(f"{notice.path}: {notice.reason}"), err=True)
