"""One step of masked-language-model training: forward, backward, AdamW; tokens/s and memory of the same line-up.

    python benchmarks/gpu/train.py --authors ../avey-b/avey_b
    python benchmarks/gpu/train.py --device cpu --toy

bf16 autocast over float32 weights, 20 % of the tokens are asked for, fused AdamW for everyone. Our head computes logits
only where a token is asked for; the others compute all of them, which is how they are written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from common import PEAK_FLOPS, RUN_ERRORS, Clock, about, flops_per_token, options, show, write
from lineup import Entry, entries, our_config

MASKED = 0.2


def measure(
    entry: Entry, shapes: list[tuple[int, int]], vocabulary: int, clock: Clock, share: float
) -> list[dict[str, Any]]:
    """One row a (batch, length), until this model's share of the time is used up; a failure is a row, too."""
    until = clock.left() - share
    try:
        model = entry.build().to(clock.device).train()
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=clock.device.type == "cuda")
    rows: list[dict[str, Any]] = []
    for batch, tokens in shapes:
        row: dict[str, Any] = {"model": entry.name, "batch": batch, "tokens": tokens, "ms": None, "note": entry.note}
        ids = torch.randint(5, vocabulary, (batch, tokens), device=clock.device)
        labels = ids.masked_fill(torch.rand(ids.shape, device=ids.device) > MASKED, -100)

        def step(ids: torch.Tensor = ids, labels: torch.Tensor = labels) -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(clock.device.type, torch.bfloat16):
                loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            optimizer.step()

        if clock.left() < until + 5:
            row["note"] = "left out: no time"
        else:
            try:
                with entry.context():
                    row["ms"] = clock.median(step, seconds=3.0, most=10)
                    row["memory_gib"] = clock.peak_memory(step)
                row["tokens_per_s"] = 1e3 * batch * tokens / row["ms"]
            except RUN_ERRORS as error:
                row["note"] = f"{type(error).__name__}: {error}"[:120]
        rows.append(row)
    return rows


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--authors", type=Path, help="the authors' package folder")
    parser.add_argument("--only", help="comma-separated names of the models to run; all by default")
    parser.add_argument("--preset", choices=("released", "paper"), default="released")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    clock = Clock(device, chosen.minutes)
    torch.manual_seed(0)
    shapes = [(2, 16), (2, 48)] if chosen.toy else [(64, 512), (16, 2048), (4, 8192)]
    models = entries(
        masked_lm=True,
        preset=chosen.preset,
        toy=chosen.toy,
        longest=shapes[-1][1],
        authors=chosen.authors,
        only=chosen.only,
        clock=clock,
    )
    vocabulary = 500 if chosen.toy else 30_000
    config = our_config(chosen.preset, chosen.toy)
    rows: list[dict[str, Any]] = []
    for position, entry in enumerate(models):
        share = max(0.0, clock.left() - 15) / (len(models) - position)
        for row in measure(entry, shapes, vocabulary, clock, share):
            if row["ms"] and entry.name.startswith("ours"):
                head = 2 * MASKED * config.hidden_size * config.vocab_size
                operations = 3 * (flops_per_token(config, row["tokens"]) + head) * row["batch"] * row["tokens"]
                row["of_floor"] = 1e3 * operations / PEAK_FLOPS / row["ms"]
            rows.append(row)
    columns = ("model", "batch", "tokens", "ms", "tokens_per_s", "memory_gib", "of_floor", "note")
    rows = [{c: row.get(c) for c in columns} for row in rows]
    show(rows)
    write(chosen.out, "train", about(device, toy=chosen.toy, preset=chosen.preset, peak_flops=PEAK_FLOPS), rows)


if __name__ == "__main__":
    main()
