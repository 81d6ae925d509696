"""`aveyb-index ask`: the answer of a language model, cited, its quotations checked."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import INDEX, filter_option, number, opened
from aveyb_retrieval.cli.help import HelpfulCommand, examples
from aveyb_retrieval.errors import printable

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.search.quotes import QuoteCheck
    from aveyb_retrieval.integrations.asking import Answer


@click.command(
    cls=HelpfulCommand,
    epilog=examples(
        'aveyb-index ask my-index "how long is the notice period?"'
        " --llm http://localhost:8080/v1 --llm-model local"
    ),
)
@click.argument("directory", type=INDEX)
@click.argument("question")
@click.option(
    "--llm",
    required=True,
    metavar="URL",
    help="Server of a language model by OpenAI's protocol, up to /v1.",
)
@click.option(
    "--llm-model", required=True, metavar="NAME", help="Name by which the server knows the model."
)
@number("-k", "Passages to answer from.", default=5)
@filter_option("Answer only from documents that match this condition on the metadata.")
@number("--max-tokens", "Tokens that the passages may have together.", default=2000)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ask(
    directory: str | Path,
    question: str,
    llm: str,
    llm_model: str,
    where: Any,
    as_json: bool,
    **limits: int,
) -> None:
    """Let a language model answer QUESTION from the passages of the index in DIRECTORY.

    The answer is printed with its sources: file, page and date. Its quotations are compared with
    what is stored before it is printed. Exit code 1 if one is altered or absent, or if a passage is
    cited that does not exist. A key is taken from OPENAI_API_KEY. The server gets the question and
    the passages.
    """
    from aveyb_retrieval.integrations import asking

    model = asking.LanguageModel(llm, llm_model, os.environ.get("OPENAI_API_KEY", ""))
    with opened(directory) as retriever:
        answer = asking.ask(retriever, question, model, filter=where, **limits)
    if answer is None:
        click.echo("nothing found", err=True)
        return
    if as_json:
        click.echo(json.dumps(answer.to_dict(), ensure_ascii=False))
    else:
        _print_answer(answer)
    if not answer.holds:
        raise SystemExit(1)


def _print_answer(answer: Answer) -> None:
    for line in answer.text.strip().splitlines():
        click.echo(printable(line))
    click.echo()
    cited = [source for source in answer.sources if source.is_cited]
    for source in cited or answer.sources:
        click.echo(printable(str(source)))
    for check in answer.quotations:
        if check.verdict != "found":
            click.echo(printable(_finding(check)))
    for mark in answer.unknown:
        click.echo(f"[{mark}] is none of the passages that the model was given")


def _finding(check: QuoteCheck) -> str:
    """Say what is wrong with a quotation."""
    where = f" in {check.id}" if check.id else ""
    place = f", {check.place}" if check.place else ""
    stored = f'; stored: "{check.stored}"' if check.verdict == "altered" else ""
    quote, stored = (" ".join(text.split()) for text in (check.quote, stored))
    return f'{check.verdict}{where}{place}: "{quote}"{stored}'
