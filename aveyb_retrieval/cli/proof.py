"""`aveyb-index check`, `grep` and `outline`: what an answer quotes, and what documents say, without
a search.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import INDEX, PATH, filter_option, opened
from aveyb_retrieval.cli.help import HelpfulCommand, examples
from aveyb_retrieval.errors import InputError, plural, printable

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.search.quotes import QuoteCheck

MAX_ANSWER_BYTES = 10 << 20  # bytes
_ONLY = filter_option("Only in documents that match this condition on the metadata.")
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@click.command(cls=HelpfulCommand, epilog=examples("aveyb-index check my-index answer.md"))
@click.argument("directory", type=INDEX)
@click.argument("answer", type=click.File("rb"), required=False)
@click.option(
    "--citation",
    type=PATH,
    metavar="FILE",
    help="Check a stored citation instead, against an index or the original.",
)
@_ONLY
@_AS_JSON
def check(
    directory: str | Path, answer: Any, citation: Path | None, where: Any, as_json: bool
) -> None:
    """Look for every quotation of ANSWER, a file of text or Markdown or -, in the index in
    DIRECTORY.

    Exit code 1 if one is altered or absent.
    """
    from aveyb_retrieval.indexes.search.citations import check_citation, read_citation

    if (answer is None) == (citation is None) or (citation is not None and where is not None):
        raise click.UsageError("give an ANSWER, or --citation FILE without --filter")
    if citation is not None:
        checked = check_citation(read_citation(citation), directory)
        click.echo(
            json.dumps(asdict(checked), ensure_ascii=False) if as_json else printable(str(checked))
        )
        raise SystemExit(0 if checked.holds else 1)

    data = answer.read(MAX_ANSWER_BYTES + 1)
    if len(data) > MAX_ANSWER_BYTES:
        raise InputError(
            f"{answer.name}: more than {MAX_ANSWER_BYTES >> 20} MiB; check it in parts"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{answer.name}: byte {error.start:,} is not UTF-8; save it as UTF-8"
        ) from error
    with opened(directory) as retriever:
        checks = retriever.check_quotes(text, filter=where)
    for check in checks:
        click.echo(json.dumps(check.to_dict(), ensure_ascii=False) if as_json else _line_of(check))
    if not as_json and not checks:
        click.echo("no quotations")
    if not all(check.holds for check in checks):
        raise SystemExit(1)


def _line_of(check: QuoteCheck) -> str:
    place = (
        ""
        if check.id is None or check.span is None
        else f"  {check.id} {check.span[0]}-{check.span[1]}"
    )
    page = f", {printable(check.place)}" if check.place else ""
    lines = [f"{check.verdict:9} {printable(check.quote)}", f"         {place}{page}"]
    if check.verdict == "altered":
        lines.append(f"           stored: {printable(check.stored or '')}")
        lines += [
            f"           {ours or '(nothing)'} -> {theirs or '(nothing)'}"
            for ours, theirs in check.differences
        ]
    return "\n".join(lines if place else lines[:1])


@click.command(
    cls=HelpfulCommand, epilog=examples("aveyb-index grep my-index 'notice (period|term)'")
)
@click.argument("directory", type=INDEX)
@click.argument("pattern")
@_ONLY
@click.option("-i", "--ignore-case", is_flag=True, help="Match capitals and small letters alike.")
@click.option(
    "--limit", type=int, default=100, show_default=True, help="Most matches.", metavar="N"
)
@_AS_JSON
def grep(
    directory: str | Path, pattern: str, where: Any, ignore_case: bool, limit: int, as_json: bool
) -> None:
    """Print where the regular expression PATTERN matches in the stored texts.

    Exit code 1 if nothing matches.
    """
    with opened(directory) as retriever:
        matches = retriever.grep(pattern, filter=where, limit=limit, ignore_case=ignore_case)
    for match in matches:
        place = f"{match.id} {match.span[0]}-{match.span[1]}"
        click.echo(
            json.dumps(asdict(match), ensure_ascii=False)
            if as_json
            else f"{place}  {printable(match.line)}"
        )
    if not matches:
        raise SystemExit(1)


@click.command(
    cls=HelpfulCommand,
    epilog=examples("aveyb-index outline my-index", "aveyb-index outline my-index lease"),
)
@click.argument("directory", type=INDEX)
@click.argument("document", required=False)
@click.option("--offset", type=int, default=0, help="Skip the first N documents.", metavar="N")
def outline(directory: str | Path, document: str | None, offset: int) -> None:
    """Print the headings of a document, given by its id, with their characters.

    Without one, or with a folder such as laws/, list documents; above 200, their folders with
    counts.
    """
    from aveyb_retrieval.indexes.search.stored_documents import sections

    with opened(directory) as retriever:
        named = (
            [] if document is None else retriever.get([document], missing_ok=document.endswith("/"))
        )
        if named:
            for section in sections(named[0]):
                page = f"  {printable(section.place)}" if section.place else ""
                click.echo(
                    f"{section.span[0]}-{section.span[1]}  {printable(section.heading)}{page}"
                )
            return
        listing = retriever.contents(document or "", offset=offset)
    for path, count in listing.folders:
        click.echo(f"{printable(path)}  {plural(count, 'document')}")
    for listed in listing.documents:
        click.echo(printable(f"{listed.id}  {listed.name}"))
    if listing.left:
        click.echo(f"{listing.left:,} more: --offset {offset + listing.entry_count}", err=True)
