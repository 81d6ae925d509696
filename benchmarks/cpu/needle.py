"""Needles in an index: how often each way to search finds a sentence, by the document's length and the needle's depth.

    python benchmarks/cpu/needle.py                       # the embedded model, 2K to 64K tokens, about ten minutes
    python benchmarks/cpu/needle.py --lengths 2048 8192   # a quick look

What `aveyb-eval needle` does, with its defaults; needle.json holds every cell and needle.png the heat maps, in
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from aveyb_retrieval.encoder.embedder import Embedder
from aveyb_retrieval.eval.needle import DEPTHS, LENGTHS, SYSTEMS, Cell, run_needles
from aveyb_retrieval.eval.report import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).parents[1] / "results"
MEASURES = {"document_first": "right document first", "passage_first": "needle in its first passage"}


def draw(cells: Sequence[Cell], lengths: Sequence[int], path: Path) -> None:
    """Draw a map for each way to search (across) and measure (down)."""
    figure = Figure(figsize=(2.4 * len(SYSTEMS), 5.2), layout="constrained")
    axes = figure.subplots(len(MEASURES), len(SYSTEMS), sharex=True, sharey=True)
    shown = None
    for row, (measure, name) in enumerate(MEASURES.items()):
        for column, system in enumerate(SYSTEMS):
            here = axes[row, column]
            found = {(cell.depth, cell.length): getattr(cell, measure) for cell in cells if cell.system == system}
            values = [[found[depth, length] for length in lengths] for depth in DEPTHS]
            if None in values[0]:
                here.set_axis_off()  # document vectors have no passages
                continue
            shown = here.imshow(np.array(values), vmin=0, vmax=1, cmap="viridis", aspect="auto")
            here.set_xticks(range(len(lengths)), [f"{length // 1024}K" for length in lengths])
            here.set_yticks(range(len(DEPTHS)), [f"{depth} %" for depth in DEPTHS])
            here.set_title(f"{system}\n{name}", fontsize=8)
    figure.supxlabel("tokens of a document")
    figure.supylabel("depth of the needle")
    assert shown is not None
    figure.colorbar(shown, ax=axes, label="share of the needles")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Parse the arguments, search, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--distractors", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "needle.json", help="the maps go beside it")
    args = parser.parse_args()
    cells = run_needles(
        lengths=args.lengths,
        seeds=args.seeds,
        distractors=args.distractors,
        progress=lambda cell: print(cell, flush=True),
    )
    found = {
        "command": "python benchmarks/cpu/needle.py",
        "model": Embedder.load().model_name,
        "seeds": args.seeds,
        "distractors": args.distractors,
        "cells": [asdict(cell) for cell in cells],
    }
    write_text(args.json, json.dumps(found, indent=1) + "\n")
    draw(cells, args.lengths, args.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
