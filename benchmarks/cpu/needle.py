"""Needles in an index: how often each way to search finds a sentence, by the document's length and
the needle's depth.

    python benchmarks/cpu/needle.py                       # the embedded model, 2K to 64K tokens,
    about ten minutes python benchmarks/cpu/needle.py --lengths 2048 8192   # a quick look python
    benchmarks/cpu/needle.py --model FOLDER --texts texts.jsonl --form word --json /tmp/words.json

needle.json holds every cell and needle.png the heat maps, in benchmarks/results/ or where --json
says.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from needles import DEPTHS, FORMS, LENGTHS, Cell, heat_maps, run_needles

from aveyb_retrieval.eval.runner import write_text
from aveyb_retrieval.indexes.model import load_model
from aveyb_retrieval.training.texts import read_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).parents[1] / "results"
ACROSS = 3  # maps in a row


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw the heat maps."""
    maps = heat_maps(cells)
    down = -(-len(maps) // ACROSS)
    figure = Figure(figsize=(3.2 * ACROSS, 2.4 * down), layout="constrained")
    axes = figure.subplots(down, ACROSS, squeeze=False)
    for here, (title, depths, rows) in zip(axes.flat, maps, strict=False):
        shown = here.imshow(list(rows.values()), vmin=0, vmax=1, cmap="viridis", aspect="auto")
        here.set_xticks(range(len(depths)), [f"{depth} %" for depth in depths], fontsize=8)
        here.set_yticks(range(len(rows)), [f"{length:,}" for length in rows])
        here.set_title(title.replace(": ", ":\n"), fontsize=9)
    figure.supxlabel("depth of the needle")
    figure.supylabel("tokens of a document")
    figure.colorbar(shown, ax=axes, label="share of the needles")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Parse the arguments, search, write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        help="an Avey-B folder, or any sentence-transformers model (default: the embedded one)",
    )
    parser.add_argument(
        "--texts",
        type=Path,
        nargs="*",
        default=[],
        help="hide in these (.jsonl, .txt), not in made-up sentences",
    )
    parser.add_argument("--form", choices=FORMS, default=FORMS[0], help="what is asked for")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--distractors", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "needle.json", help="the maps go beside it"
    )
    args = parser.parse_args()
    model = load_model(args.model)
    cells = run_needles(
        model,
        lengths=args.lengths,
        depths=args.depths,
        form=args.form,
        texts=list(read_texts(args.texts)),
        seeds=args.seeds,
        distractors=args.distractors,
        progress=lambda cell: print(cell, flush=True),
    )
    found = {
        "command": "python benchmarks/cpu/needle.py",
        "model": model.model_name,
        "seeds": args.seeds,
        "distractors": args.distractors,
        "cells": [asdict(cell) for cell in cells],
    }
    write_text(args.json, json.dumps(found, indent=1) + "\n")
    draw(cells, args.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
