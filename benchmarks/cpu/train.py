"""Training speed on a CPU: masked-language modelling with ours beside a BERT of the same width, depth and vocabulary.

    python benchmarks/cpu/train.py                       # about four minutes on two cores
    python benchmarks/cpu/train.py --lengths 512 --dtypes bfloat16

Random weights and token ids, 20 % of the tokens masked, forward, backward and an AdamW step; attention by SDPA. "all
logits" is our model with the head on every token, to show what computing it on masked tokens only is worth. Every
figure is the best of several steps taken in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from torch import nn

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.model import IGNORED_LABEL, AveyBForMaskedLM
from aveyb_retrieval.encoder.training.optimizers import build_optimizer

RESULTS = Path(__file__).parents[1] / "results"
MASK_RATE = 0.2


def models(args: argparse.Namespace) -> dict[str, transformers.PreTrainedModel]:
    """Both models, of one width, depth and vocabulary."""
    sizes = {"vocab_size": args.vocab, "hidden_size": args.width, "num_hidden_layers": args.depth}
    bert = transformers.BertConfig(
        **sizes,
        num_attention_heads=max(1, args.width // 64),
        intermediate_size=4 * args.width,
        max_position_embeddings=max(args.lengths),
    )
    return {"ours": AveyBForMaskedLM(AveyBConfig.mini(**sizes)), "BERT": transformers.BertForMaskedLM(bert)}


def batch(args: argparse.Namespace, length: int) -> dict[str, torch.Tensor]:
    """`args.tokens` tokens in sequences of `length`, a fifth of them asked for."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, args.vocab, (max(1, args.tokens // length), length), generator=generator)
    asked = torch.rand(ids.shape, generator=generator) < MASK_RATE
    return {"input_ids": ids, "labels": ids.masked_fill(~asked, IGNORED_LABEL)}


def all_logits(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Our loss with the head on every token."""
    logits = model(input_ids=inputs["input_ids"]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), inputs["labels"].flatten())


def masked_logits(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss as the model computes it by itself."""
    return model(**inputs).loss


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor],
    inputs: dict[str, torch.Tensor],
    bf16: bool,
) -> None:
    """One training step."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        value = loss(model, inputs)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()


def best_times(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The shortest time of each call in seconds, the calls taken in turn; the first round warms up."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + 1):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            if turn:
                best[name] = min(best[name], time.perf_counter() - begun)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in a batch")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu_train.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    both = models(args)
    optimizers = {
        name: build_optimizer(model, "adamw", lr=1e-4, betas=(0.95, 0.95), eps=1e-8, weight_decay=0.01)
        for name, model in both.items()
    }
    sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in both.items()}
    threads = torch.get_num_threads()
    print(", ".join(f"{name} {size:,} parameters" for name, size in sizes.items()), f"| {threads} threads")
    print(f"{'dtype':<10}{'length':>7}{'ours':>12}{'all logits':>12}{'BERT':>12}   tokens/s")
    rows = []
    for dtype in args.dtypes:
        for length in args.lengths:
            inputs = batch(args, length)
            ours, bert = both["ours"].train(), both["BERT"].train()
            bf16 = dtype == "bfloat16"
            times = best_times(
                {
                    "ours": partial(step, ours, optimizers["ours"], masked_logits, inputs, bf16),
                    "all logits": partial(step, ours, optimizers["ours"], all_logits, inputs, bf16),
                    "BERT": partial(step, bert, optimizers["BERT"], masked_logits, inputs, bf16),
                },
                args.rounds,
            )
            speeds = {name: round(inputs["input_ids"].numel() / seconds) for name, seconds in times.items()}
            print(f"{dtype:<10}{length:>7}" + "".join(f"{speed:>12,}" for speed in speeds.values()), flush=True)
            rows.append({"dtype": dtype, "length": length, "tokens_per_second": speeds})
    machine = {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine(), "threads": threads}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"machine": machine, "parameters": sizes, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
