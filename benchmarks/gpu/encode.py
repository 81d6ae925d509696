"""Encoding speed by length: ours, the authors' code, ModernBERT-base, BERT-base; bf16, batch of 8.

    python benchmarks/gpu/encode.py --authors peers/avey_b          # a folder brought for the run
    python benchmarks/gpu/encode.py --device cpu --toy              # a dry run

Three kinds of batches: ids drawn uniformly (the worst case of our ranker, which meets every id once), ids drawn like
words in text ("zipf"), and texts of different lengths ("ragged": from one token to all, so that half the tokens of a
padded batch are padding; tokens/s counts real ones). Weights are random. Each model runs in a process of its own, which
compiles and warms up each length before it is timed; only timing counts into the model's share.
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import (
    Ceilings,
    Clock,
    Journal,
    Row,
    about,
    attempt,
    ceilings,
    draw_ids,
    front_flops,
    layer_flops,
    options,
    show,
)
from lineup import Entry, chosen_names, entries, our_config
from workers import print_row, run_worker

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 98_304)
KINDS = ("uniform", "zipf", "ragged")


def batch_of(kind: str, batch: int, tokens: int, vocabulary: int, device: torch.device) -> dict[str, torch.Tensor]:
    """`input_ids` `[batch, tokens]`, and for "ragged" an `attention_mask` with half of it zero."""
    ids = draw_ids("uniform" if kind == "uniform" else "zipf", batch, tokens, vocabulary, device)
    if kind != "ragged":
        return {"input_ids": ids}
    lengths = torch.linspace(1, tokens, batch, device=device).long()
    return {"input_ids": ids, "attention_mask": (torch.arange(tokens, device=device) < lengths[:, None]).long()}


def measure(entry: Entry, chosen: argparse.Namespace, lengths: list[int], clock: Clock) -> None:
    """Print a row for each kind of batch and length until the model's time is used up; a failure is a row, too."""
    built: Row = attempt({}, lambda: {"model": entry.build().to(clock.device, torch.bfloat16).eval()})
    if "model" not in built:
        return print_row({"model": entry.name, "tokens": None} | built)
    model: Any = built["model"]
    entry.ready(model)
    vocabulary = 500 if chosen.toy else 30_000  # ids that every vocabulary has
    ceiling = ceilings(clock, chosen.toy, chosen.out)
    spent, last = 0.0, dict.fromkeys(KINDS, 0.0)
    for position, tokens in enumerate(lengths):
        grown = (tokens / lengths[position - 1]) ** 2 if position else 1.0
        for kind in KINDS:
            row: Row = {"model": entry.name, "ids": kind, "tokens": tokens, "ms": None, "note": entry.note}
            expected = 1e-3 * 8 * last[kind] * grown
            if spent + expected > chosen.share or clock.left() < expected:
                print_row(row | {"note": "left out: would take too long"})
                continue
            inputs = batch_of(kind, chosen.batch, tokens, vocabulary, clock.device)
            with torch.inference_mode(), entry.context():
                forward = partial(model, **inputs)
                row = attempt(row, lambda forward=forward: {"first_ms": clock.once(forward)})
                before = clock.left()
                if row.get("first_ms"):
                    row = attempt(row, lambda forward=forward: timed(forward, clock))
            spent += before - clock.left()
            if row["ms"]:
                last[kind] = row["ms"]
                real = int(inputs["attention_mask"].sum()) if kind == "ragged" else inputs["input_ids"].numel()
                row["tokens_per_s"] = 1e3 * real / row["ms"]
                if entry.name.startswith("ours") and kind != "ragged":
                    row["of_floor"] = floor_ms(chosen.preset, chosen.toy, inputs["input_ids"], ceiling) / row["ms"]
            print_row(row)


def timed(forward: Any, clock: Clock) -> Row:
    """Milliseconds and memory of a forward that has run before."""
    return {"ms": clock.median(forward, seconds=1.5), "memory_gib": clock.peak_memory(forward)}


def floor_ms(preset: str, toy: bool, ids: torch.Tensor, ceiling: Ceilings) -> float:
    """Milliseconds of the matrix products that a forward on `ids` `[B, T]` cannot do without."""
    config = our_config(preset, toy)
    return 1e3 * ids.shape[0] * (ids.shape[1] * layer_flops(config) + front_flops(config, ids[0])) / ceiling.flops


def exponent(rows: list[Row], shortest: int) -> float | None:
    """b of `tokens/s ~ N^-b`, least squares over logarithms of the lengths from `shortest` on."""
    points = [
        (math.log(r["tokens"]), math.log(r["tokens_per_s"]))
        for r in rows
        if r.get("tokens_per_s") and r["tokens"] >= shortest
    ]
    if len(points) < 2:
        return None
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return -sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--authors", type=Path, help="the authors' package folder")
    parser.add_argument(
        "--only", help="comma-separated names of the models to run, 'all ours' or 'peers'; all by default"
    )
    parser.add_argument("--preset", choices=("released", "paper"), default="released")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--longest", type=int, default=max(LENGTHS))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--name", default="encode", help="of the files of results")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    clock = Clock(device, chosen.minutes)
    torch.manual_seed(0)
    lengths = [16, 32, 64] if chosen.toy else [n for n in LENGTHS if n <= chosen.longest]
    found = entries(
        masked_lm=False,
        preset=chosen.preset,
        toy=chosen.toy,
        longest=max(lengths),
        authors=chosen.authors,
        on_gpu=device.type == "cuda",
    )
    if chosen.worker:
        return measure(found[chosen.worker], chosen, lengths, clock)
    names = chosen_names(found, chosen.only)
    facts = ceilings(clock, chosen.toy, chosen.out).facts()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    journal = Journal(
        chosen.out, chosen.name, about(device, toy=chosen.toy, preset=chosen.preset, batch=chosen.batch, **facts)
    )
    for position, name in enumerate(names):
        left = clock.left() - 10
        share = left / (len(names) - position)
        more = ["--worker", name, "--share", f"{0.6 * share:.0f}", "--minutes", f"{1.4 * share / 60:.2f}"]
        # A model may use what those before it have left; none may use more than twice its share.
        run_worker([sys.executable, *sys.argv, *more], min(left, 2 * share), journal.add, {"model": name})
    decay = {
        f"{name} {kind}": exponent(
            [r for r in journal.rows if r["model"] == name and r.get("ids") == kind], 16 if chosen.toy else 2048
        )
        for name in names
        for kind in KINDS
    }
    journal.close(
        decay=decay, ours_is_faster_by=ratios(journal.rows, "ours" if device.type == "cuda" else "ours eager")
    )
    print("\nthroughput ~ N^-b from 2,048 tokens on:")
    show([{"model": name, "b": b} for name, b in decay.items()])


def ratios(rows: list[Row], ours: str) -> dict[str, float]:
    """ "model ids tokens" -> milliseconds of that model over ours."""
    reference = {(r["ids"], r["tokens"]): r["ms"] for r in rows if r["model"] == ours and r.get("ms")}
    return {
        f"{r['model']} {r['ids']} {r['tokens']}": r["ms"] / reference[r["ids"], r["tokens"]]
        for r in rows
        if r.get("ms") and (r["ids"], r["tokens"]) in reference
    }


if __name__ == "__main__":
    main()
