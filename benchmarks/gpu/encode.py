"""Encoding speed by length: ours, the authors' code, ModernBERT-base, BERT-base; bf16, random ids, batch of 8.

    python benchmarks/gpu/encode.py --authors ../avey-b/avey_b      # a folder brought for the run
    python benchmarks/gpu/encode.py --device cpu --toy              # a dry run of a few seconds

Prints milliseconds, tokens/s, memory and the fraction of the matrix-product floor, then the exponent with which each
model's throughput decays from 2,048 tokens on, and the ratios to ours. Weights are random.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import PEAK_FLOPS, RUN_ERRORS, Clock, about, flops_per_token, options, show, write
from lineup import Entry, entries, our_config

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 98_304)


def measure(
    entry: Entry, lengths: list[int], batch: int, vocabulary: int, clock: Clock, share: float
) -> list[dict[str, Any]]:
    """One row a length, until this model's share of the time is used up; a failure is a row, too."""
    until = clock.left() - share
    try:
        model = entry.build().to(clock.device, torch.bfloat16).eval()
        entry.ready(model)
    except RUN_ERRORS as error:
        return [
            {
                "model": entry.name,
                "tokens": None,
                "ms": None,
                "note": f"not built: {type(error).__name__}: {error}"[:120],
            }
        ]
    rows: list[dict[str, Any]] = []
    last = 0.0
    for position, tokens in enumerate(lengths):
        row: dict[str, Any] = {"model": entry.name, "tokens": tokens, "ms": None, "note": entry.note}
        grown = (tokens / lengths[position - 1]) ** 2 if position else 1.0
        if (clock.left() - until) * 1e3 < 6 * last * grown:
            row["note"] = "left out: would take too long"
        else:
            ids = torch.randint(0, vocabulary, (batch, tokens), device=clock.device)
            try:
                with torch.inference_mode(), entry.context():
                    forward = partial(model, input_ids=ids)
                    row["ms"] = last = clock.median(forward, seconds=1.5)
                    row["memory_gib"] = clock.peak_memory(forward)
                row["tokens_per_s"] = 1e3 * batch * tokens / last
            except RUN_ERRORS as error:
                row["note"] = f"{type(error).__name__}: {error}"[:120]
        rows.append(row)
    return rows


def exponent(rows: list[dict[str, Any]], shortest: int) -> float | None:
    """b of `tokens/s ~ N^-b`, least squares over logarithms of the lengths from `shortest` on."""
    points = [(math.log(r["tokens"]), math.log(r["tokens_per_s"])) for r in rows if r["ms"] and r["tokens"] >= shortest]
    if len(points) < 2:
        return None
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return -sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--authors", type=Path, help="the authors' package folder")
    parser.add_argument("--only", help="comma-separated names of the models to run; all by default")
    parser.add_argument("--preset", choices=("released", "paper"), default="released")
    parser.add_argument("--batch", type=int, default=8)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    clock = Clock(device, chosen.minutes)
    torch.manual_seed(0)
    lengths = [16, 32, 64] if chosen.toy else list(LENGTHS)
    config = our_config(chosen.preset, chosen.toy)
    models = entries(
        masked_lm=False,
        preset=chosen.preset,
        toy=chosen.toy,
        longest=max(lengths),
        authors=chosen.authors,
        only=chosen.only,
        clock=clock,
    )
    vocabulary = 500 if chosen.toy else 30_000  # ids that every vocabulary has
    rows: list[dict[str, Any]] = []
    for position, entry in enumerate(models):
        share = max(0.0, clock.left() - 15) / (len(models) - position)
        rows += measure(entry, lengths, chosen.batch, vocabulary, clock, share)
    ours = "ours" if device.type == "cuda" else "ours eager"
    reference = {r["tokens"]: r["ms"] for r in rows if r["model"] == ours}
    for row in rows:
        tokens, ms = row["tokens"], row["ms"]
        if ms and row["model"].startswith("ours"):
            floor = 1e3 * chosen.batch * tokens * flops_per_token(config, tokens) / PEAK_FLOPS
            row["of_floor"] = floor / ms
        if ms and reference.get(tokens):
            row["ours_is_faster_by"] = ms / reference[tokens]
    columns = ("model", "tokens", "ms", "tokens_per_s", "memory_gib", "of_floor", "ours_is_faster_by", "note")
    rows = [{c: row.get(c) for c in columns} for row in rows]
    show(rows)
    decay = {e.name: exponent([r for r in rows if r["model"] == e.name], 16 if chosen.toy else 2048) for e in models}
    print("\nthroughput ~ N^-b from 2,048 tokens on:")
    show([{"model": name, "b": b} for name, b in decay.items()])
    facts = about(device, toy=chosen.toy, preset=chosen.preset, batch=chosen.batch, peak_flops=PEAK_FLOPS, decay=decay)
    write(chosen.out, "encode", facts, rows)


if __name__ == "__main__":
    main()
