"""One step of masked-language-model training: forward, backward, AdamW; tokens/s and memory of the same line-up.

    python benchmarks/gpu/train.py --authors peers/avey_b
    python benchmarks/gpu/train.py --device cpu --toy

bf16 autocast over float32 weights, 20 % of the tokens are asked for, fused AdamW for everyone. Our head computes logits
only where a token is asked for; the others compute all of them, which is how they are written. Each model runs in a
process of its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from common import Clock, Journal, Row, about, attempt, ceilings, draw_ids, front_flops, layer_flops, options
from lineup import Entry, chosen_names, entries, our_config
from workers import print_row, run_worker

MASKED = 0.2


def measure(entry: Entry, chosen: argparse.Namespace, shapes: list[tuple[int, int]], clock: Clock) -> None:
    """Print a row for each (batch, length) until the model's time is used up; a failure is a row, too."""
    built: Row = attempt({}, lambda: {"model": entry.build().to(clock.device).train()})
    if "model" not in built:
        return print_row({"model": entry.name, "tokens": None} | built)
    model: Any = built["model"]
    entry.ready(model)
    ceiling = ceilings(clock, chosen.toy, chosen.out)
    config = our_config(chosen.preset, chosen.toy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=clock.device.type == "cuda")
    for batch, tokens in shapes:
        row: Row = {"model": entry.name, "batch": batch, "tokens": tokens, "ms": None, "note": entry.note}
        ids = draw_ids("zipf", batch, tokens, 500 if chosen.toy else 30_000, clock.device)
        labels = ids.masked_fill(torch.rand(ids.shape, device=ids.device) > MASKED, -100)

        def step(ids: torch.Tensor = ids, labels: torch.Tensor = labels) -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(clock.device.type, torch.bfloat16):
                loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            optimizer.step()

        def timed(step: Any = step) -> Row:
            first = clock.once(step)  # compiles
            median = clock.median(step, seconds=3.0, most=10)
            return {"first_ms": first, "ms": median, "memory_gib": clock.peak_memory(step)}

        if clock.left() < 5:
            row["note"] = "left out: no time"
        else:
            with entry.context():
                row = attempt(row, timed)
        if row["ms"]:
            row["tokens_per_s"] = 1e3 * batch * tokens / row["ms"]
            if entry.name.startswith("ours"):
                head = 2 * MASKED * config.hidden_size * config.vocab_size
                forward = tokens * (layer_flops(config) + head) + front_flops(config, ids[0])
                row["of_floor"] = 1e3 * 3 * batch * forward / ceiling.flops / row["ms"]
        print_row(row)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--authors", type=Path, help="the authors' package folder")
    parser.add_argument(
        "--only", help="comma-separated names of the models to run, 'all ours' or 'peers'; all by default"
    )
    parser.add_argument("--preset", choices=("released", "paper"), default="released")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    clock = Clock(device, chosen.minutes)
    torch.manual_seed(0)
    shapes = [(2, 16), (2, 48)] if chosen.toy else [(64, 512), (16, 2048), (4, 8192)]
    found = entries(
        masked_lm=True,
        preset=chosen.preset,
        toy=chosen.toy,
        longest=shapes[-1][1],
        authors=chosen.authors,
        on_gpu=device.type == "cuda",
    )
    if chosen.worker:
        return measure(found[chosen.worker], chosen, shapes, clock)
    names = chosen_names(found, chosen.only)
    facts = ceilings(clock, chosen.toy, chosen.out).facts()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    journal = Journal(chosen.out, "train", about(device, toy=chosen.toy, preset=chosen.preset, **facts))
    for position, name in enumerate(names):
        left = clock.left() - 10
        share = left / (len(names) - position)
        more = ["--worker", name, "--minutes", f"{1.4 * share / 60:.2f}"]
        run_worker([sys.executable, *sys.argv, *more], min(left, 2 * share), journal.add, {"model": name})
    journal.close()


if __name__ == "__main__":
    main()
