"""`aveyb-eval needle`, `needle-lm` and `perplexity`: what search, and what a language model, makes of long texts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import make_console, together

if TYPE_CHECKING:
    from aveyb_retrieval.cli.common import Decorator
    from aveyb_retrieval.encoder.avey_model import AveyForCausalLM
    from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer

TEXT_FILE = click.Path(path_type=Path, dir_okay=False)
DEVICE = click.option("--device", default="cpu", help="Torch device of the model.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
HAYSTACK = "Texts (.jsonl, .txt) to hide in"


def grid(of_length: str, lengths: tuple[int, ...], of_depth: str, depths: tuple[int, ...]) -> Decorator:
    """Make the options `--length` and `--depth`, with their help texts and defaults."""
    return together(
        click.option(
            "--length",
            "lengths",
            multiple=True,
            type=click.IntRange(min=1),
            default=lengths,
            help=f"{of_length} Repeatable.",
        ),
        click.option(
            "--depth",
            "depths",
            multiple=True,
            type=click.IntRange(0, 100),
            default=depths,
            help=f"{of_depth}, in percent. Repeatable.",
        ),
    )


@click.command()
@click.option(
    "--model",
    default="default",
    help="default, an Avey-B folder, or any sentence-transformers model.",
)
@grid("Tokens of a document.", (2048, 4096, 8192, 16384, 32768, 65536), "Where the needle is", (0, 25, 50, 75, 100))
@click.option("--seeds", type=click.IntRange(min=1), default=2, help="Needles of each cell.")
@click.option(
    "--distractors",
    type=click.IntRange(min=0),
    default=5,
    help="Documents of each length that hide nothing; those of other needles come on top.",
)
@click.option("--form", type=click.Choice(["number", "word"]), default="number", help="What is asked for.")
@click.option(
    "--haystack", multiple=True, type=TEXT_FILE, help=f"{HAYSTACK}.  [default: made-up sentences] Repeatable."
)
@DEVICE
@click.option("--html", type=TEXT_FILE, help="Write heat maps into one HTML file.")
@JSON
def needle(
    model: str, seeds: int, haystack: tuple[Path, ...], device: str, html: Path | None, as_json: bool, **options: Any
) -> None:
    """Hide a sentence in long documents, and search for it: by document vectors, passages, words, both, reranked."""
    from aveyb_retrieval.eval.needle import run_needles
    from aveyb_retrieval.indexes.model import load_model
    from aveyb_retrieval.training.texts import read_texts

    loaded = load_model(None if model == "default" else model, device=device)
    cells = run_needles(loaded, seeds=seeds, texts=list(read_texts(haystack)), **options)
    if html is not None:
        from aveyb_retrieval.eval.html import write_needles

        write_needles(html, cells, seeds, model)
    if as_json:
        click.echo(json.dumps({"model": model, "seeds": seeds, "cells": [asdict(cell) for cell in cells]}, indent=1))
    else:
        from aveyb_retrieval.eval.report import print_found_needles

        print_found_needles(cells, seeds, make_console())


@click.command("needle-lm")
@click.argument("model")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice(["passkey", "niah-1", "niah-2"]),
    default=("passkey", "niah-1"),
    help="passkey and niah-1 hide a number in sentences that repeat, niah-2 in the texts of --haystack. Repeatable.",
)
@grid("Tokens of a prompt.", (1024, 2048, 4096, 8192, 16384, 32768, 65536), "Where the number is", (10, 30, 50, 70, 90))
@click.option("--seeds", type=click.IntRange(min=1), default=5, help="Prompts of each cell.")
@click.option("--haystack", multiple=True, type=TEXT_FILE, help=f"{HAYSTACK}, for niah-2. Repeatable.")
@DEVICE
@JSON
def needle_lm(model: str, seeds: int, haystack: tuple[Path, ...], device: str, as_json: bool, **options: Any) -> None:
    """Hide a number in long texts and have MODEL, an Avey language model, say it; also times the first token."""
    from aveyb_retrieval.eval.needle_lm import run_needles
    from aveyb_retrieval.training.texts import read_texts

    loaded, tokenizer = _language_model(model, device)
    cells = run_needles(loaded, tokenizer, seeds=seeds, haystack=list(read_texts(haystack)), **options)
    if as_json:
        click.echo(json.dumps({"model": model, "seeds": seeds, "cells": [asdict(cell) for cell in cells]}, indent=1))
    else:
        from aveyb_retrieval.eval.report import print_needles

        print_needles(cells, seeds, make_console())


@click.command()
@click.argument("model")
@click.option(
    "--texts", "files", required=True, multiple=True, type=TEXT_FILE, help="Texts (.jsonl, .txt). Repeatable."
)
@click.option("--field", default="text", help="Field of a JSON line with the text.")
@click.option(
    "--length",
    "lengths",
    multiple=True,
    type=click.IntRange(min=1),
    default=(512, 1024, 2048, 4096),
    help="Tokens of a window. Repeatable.",
)
@click.option("--windows", type=click.IntRange(min=1), default=4, help="Windows of each length.")
@click.option("--positions", type=click.IntRange(min=1), default=64, help="Positions of a window, for strict.")
@click.option("--seed", type=int, default=0, help="Seed of those positions.")
@DEVICE
@JSON
def perplexity(
    model: str,
    files: tuple[Path, ...],
    field: str,
    lengths: tuple[int, ...],
    windows: int,
    device: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Perplexity of MODEL, an Avey language model, by length: as trained, and strict as in generation."""
    from aveyb_retrieval.eval.perplexity import perplexities, token_stream
    from aveyb_retrieval.training.packing import end_of_text
    from aveyb_retrieval.training.texts import read_texts

    loaded, tokenizer = _language_model(model, device)
    stream = read_texts(files, field=field)
    tokens = token_stream(stream, tokenizer, end_of_text(tokenizer), max(lengths) * windows + 1)
    rows = perplexities(loaded, tokens, lengths, windows=windows, **options)
    if as_json:
        click.echo(json.dumps({"model": model, "rows": [asdict(row) for row in rows]}, indent=1))
        return
    click.echo("length  windows  as trained  as trained, sampled  strict, sampled")
    for row in rows:
        click.echo(
            f"{row.length:>6}  {row.windows:>7}  {row.as_trained:>10.3f}  {row.as_trained_sampled:>19.3f}  "
            f"{row.strict:>15.3f}"
        )


def _language_model(model: str, device: str) -> tuple[AveyForCausalLM, AveyBTokenizer]:
    """Open an Avey language model and its tokenizer."""
    from aveyb_retrieval.encoder.avey_model import AveyForCausalLM
    from aveyb_retrieval.encoder.device import check_device
    from aveyb_retrieval.encoder.folders import model_folder
    from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
    from aveyb_retrieval.encoder.wordpiece import load_tokenizer
    from aveyb_retrieval.errors import ModelError

    folder = model_folder(model)
    check_device(device)
    loaded = AveyForCausalLM.from_pretrained(folder).eval().to(device)
    tokenizer = load_tokenizer(folder, loaded.config.vocab_size)
    if not isinstance(tokenizer, AveyBTokenizer):
        raise ModelError(
            f"{folder}: its WordPiece vocabulary cannot give texts back; name a model with a byte-level one"
        )
    return loaded, tokenizer
