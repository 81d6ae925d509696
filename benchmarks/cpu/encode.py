"""Encoding speed on a CPU: our encoder beside a BERT and a ModernBERT of the same width, depth and
vocabulary.

    python benchmarks/cpu/encode.py                      # all lengths, both dtypes, about five
    minutes on two cores python benchmarks/cpu/encode.py --lengths 16 128     # a quick look

Random weights, random token ids, batch size 1, attention by SDPA, forward only. Every figure is the
best of several runs taken in turn, so that a slow moment of the machine does not fall on one model
alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from rich.console import Console
from rich.table import Table

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBModel

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTHS = (16, 128, 512, 2048, 8192)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
QUERY_TOKENS = 10


def models(args: argparse.Namespace) -> dict[str, torch.nn.Module]:
    """Three encoders of one width, depth and vocabulary."""
    sizes = {"vocab_size": args.vocab, "hidden_size": args.width, "num_hidden_layers": args.depth}
    heads = {
        "num_attention_heads": max(1, args.width // 64),
        "max_position_embeddings": max(args.lengths),
    }
    special = dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0
    )
    bert = transformers.BertConfig(**sizes, **heads, intermediate_size=4 * args.width)
    modern = transformers.ModernBertConfig(
        **sizes, **heads, intermediate_size=3 * args.width // 2, **special
    )
    return {
        "Avey-B (ours)": AveyBModel(AveyBConfig.mini(**sizes)),
        "BERT": transformers.BertModel(bert, add_pooling_layer=False),
        "ModernBERT": transformers.ModernBertModel(modern),
    }


@torch.inference_mode()
def best_times(calls: dict[str, Callable[[], object]], *, seconds: float) -> dict[str, float]:
    """The shortest time of each call in seconds; calls alternate until the budget of
    each is spent.
    """
    best = {name: float("inf") for name in calls}
    for call in calls.values():
        call()
    spent = 0.0
    rounds = 0
    while rounds < 3 or (spent < seconds * len(calls) and rounds < 200):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            best[name] = min(best[name], elapsed)
            spent += elapsed
        rounds += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="time spent on each figure, at least three runs"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    rows = []
    lineup = {name: model.eval() for name, model in models(args).items()}
    parameters = {
        name: sum(p.numel() for p in model.parameters()) for name, model in lineup.items()
    }
    console = Console()
    for dtype in args.dtypes:
        for model in lineup.values():
            model.to(DTYPES[dtype])
        table = Table(
            title=(
                f"tokens/s, {dtype}, width {args.width}, {args.depth} layers, {args.threads}"
                " threads"
            )
        )
        table.add_column("tokens", justify="right")
        for name in lineup:
            table.add_column(f"{name}\n{parameters[name] / 1e6:.1f} M", justify="right")
        table.add_column("ours / BERT", justify="right")
        table.add_column("ours / ModernBERT", justify="right")
        for length in args.lengths:
            ids = torch.randint(0, args.vocab, (1, length))
            times = best_times(
                {n: partial(model, ids) for n, model in lineup.items()}, seconds=args.seconds
            )
            mine, bert, modern = times.values()
            table.add_row(
                str(length),
                *(f"{length / t:,.0f}" for t in times.values()),
                f"{bert / mine:.2f}",
                f"{modern / mine:.2f}",
            )
            rows.append(
                {
                    "dtype": dtype,
                    "tokens": length,
                    "tokens_per_second": {n: length / t for n, t in times.items()},
                }
            )
        console.print(table)

        query, split = (torch.randint(0, args.vocab, (1, n)) for n in (QUERY_TOKENS, 256))
        ours = lineup["Avey-B (ours)"]
        # Each in a row of its own, as queries come: in turns, a query would pay for caches that the
        # split has emptied.
        costs = {}
        for name, ids in {"query": query, "split": split}.items():
            costs |= best_times({name: partial(ours, ids)}, seconds=args.seconds)
        share = costs["query"] / costs["split"]
        console.print(
            f"{dtype}: a query of {QUERY_TOKENS} tokens takes {costs['query'] * 1e3:.2f} ms, a full"
            f" split of 256 {costs['split'] * 1e3:.2f} ms: 1/{1 / share:.1f}\n"
        )
        rows.append(
            {"dtype": dtype, "query_ms": costs["query"] * 1e3, "split_ms": costs["split"] * 1e3}
        )
    if args.json:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "threads": args.threads,
            "torch": torch.__version__,
        }
        report = {"machine": machine, "parameters": parameters, "rows": rows}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
