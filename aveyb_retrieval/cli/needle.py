"""`aveyb-eval needle`: what search makes of long texts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from aveyb_retrieval.cli.common import make_console

TEXT_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option(
    "--model",
    default="default",
    help="default, an Avey-B folder, or any sentence-transformers model.",
)
@click.option(
    "--length",
    "lengths",
    multiple=True,
    type=click.IntRange(min=1),
    default=(2048, 4096, 8192, 16384, 32768, 65536),
    help="Tokens of a document. Repeatable.",
)
@click.option(
    "--depth",
    "depths",
    multiple=True,
    type=click.IntRange(0, 100),
    default=(0, 25, 50, 75, 100),
    help="Where the needle is, in percent. Repeatable.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=2, help="Needles of each cell.")
@click.option(
    "--distractors",
    type=click.IntRange(min=0),
    default=5,
    help="Documents of each length that hide nothing; those of other needles come on top.",
)
@click.option("--form", type=click.Choice(["number", "word"]), default="number", help="What is asked for.")
@click.option(
    "--haystack",
    multiple=True,
    type=TEXT_FILE,
    help="Texts (.jsonl, .txt) to hide in.  [default: made-up sentences] Repeatable.",
)
@click.option("--device", default="cpu", help="Torch device of the model.")
@click.option("--html", type=TEXT_FILE, help="Write heat maps into one HTML file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
