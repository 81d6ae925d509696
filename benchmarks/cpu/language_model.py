"""What an Avey language model makes of long texts: a number hidden in them, and perplexity by length.

python benchmarks/cpu/language_model.py needles MODEL --task passkey --length 1024 --length 65536
python benchmarks/cpu/language_model.py perplexity MODEL --texts held-out.jsonl --length 512 --length 2048
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from needle_lm import DEPTHS, LENGTHS, TASKS, run_needles
from perplexity import perplexities, token_stream
from rich.console import Console
from rich.table import Table

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.embedders.embedder import check_device
from aveyb_retrieval.encoder.folders import model_folder
from aveyb_retrieval.encoder.network.avey import AveyForCausalLM
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.text.wordpiece import load_tokenizer
from aveyb_retrieval.errors import ModelError
from aveyb_retrieval.training.pretraining import end_of_text
from aveyb_retrieval.training.texts import read_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from needle_lm import Cell

TEXT_FILE = click.Path(path_type=Path, dir_okay=False)
DEVICE = click.option("--device", default="cpu", help="Torch device of the model.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def main() -> None:
    """Measure a language model that `aveyb-train clm` made."""


@main.command(cls=Command)
@click.argument("model")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice(TASKS),
    default=("passkey", "niah-1"),
    help="passkey and niah-1 hide a number in sentences that repeat, niah-2 in the texts of --haystack. Repeatable.",
)
@click.option("--length", "lengths", multiple=True, type=click.IntRange(min=1), default=LENGTHS, help="Of a prompt.")
@click.option("--depth", "depths", multiple=True, type=click.IntRange(0, 100), default=DEPTHS, help="In percent.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, help="Prompts of each cell.")
@click.option(
    "--haystack", multiple=True, type=TEXT_FILE, help="Texts (.jsonl, .txt) to hide in, for niah-2. Repeatable."
)
@DEVICE
@JSON
def needles(model: str, seeds: int, haystack: tuple[Path, ...], device: str, as_json: bool, **options: Any) -> None:
    """Hide a number in long texts and have MODEL, an Avey language model, say it; also times the first token."""
    loaded, tokenizer = _language_model(model, device)
    cells = run_needles(loaded, tokenizer, seeds=seeds, haystack=list(read_texts(haystack)), **options)
    if as_json:
        click.echo(json.dumps({"model": model, "seeds": seeds, "cells": [asdict(cell) for cell in cells]}, indent=1))
    else:
        print_needles(cells, seeds)


@main.command(cls=Command)
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
    folder = model_folder(model)
    check_device(device)
    loaded = AveyForCausalLM.from_pretrained(folder).eval().to(device)
    tokenizer = load_tokenizer(folder, loaded.config.vocab_size)
    if not isinstance(tokenizer, AveyBTokenizer):
        raise ModelError(
            f"{folder}: its WordPiece vocabulary cannot give texts back; name a model with a byte-level one"
        )
    return loaded, tokenizer


def print_needles(cells: Sequence[Cell], seeds: int) -> None:
    """Print a table of each task, lengths by depths: the share found, and the time to the first token."""
    depths = sorted({cell.depth for cell in cells})
    for task in dict.fromkeys(cell.task for cell in cells):
        own = [cell for cell in cells if cell.task == task]
        table = Table(title=f"{task}: share found of {seeds}, by depth")
        for name in ("tokens", *(f"{depth} %" for depth in depths), "first token"):
            table.add_column(name, justify="right")
        for length in sorted({cell.length for cell in own}):
            row = {cell.depth: cell for cell in own if cell.length == length}
            shares = [f"{row[depth].found:.2f}" for depth in depths]
            seconds = sorted(cell.first_token_seconds for cell in row.values())[len(row) // 2]
            table.add_row(f"{length:,}", *shares, f"{seconds:.3f} s")
        Console().print(table)


if __name__ == "__main__":
    main()
