"""Training speed on a CPU: masked-language modelling with ours beside a BERT of as many parameters.

    python benchmarks/cpu/train.py                                       # about two minutes on two cores
    python benchmarks/cpu/train.py --lengths 512 --precisions bfloat16       # a quick look

Same width, depth and vocabulary; BERT's inner layers are as wide as its parameters are to be as many as ours. Random
weights and token ids, 20 % of the tokens masked, forward, backward and an AdamW step; attention by SDPA. Each model is
taken with its head on masked tokens only and on all of them: what our head is worth, and how the two compare with the
same head. Every figure is the best of several steps taken in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from peers import bert_of, parameters
from rich.console import Console
from rich.table import Table
from torch import nn

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import IGNORED_LABEL, AveyBForMaskedLM
from aveyb_retrieval.training.settings import PRECISIONS, RunSettings
from aveyb_retrieval.training.trainer import build_optimizer, parameter_groups

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parents[1] / "results"
MASK_RATE = 0.2


def models(vocab: int, width: int, depth: int, positions: int) -> dict[str, transformers.PreTrainedModel]:
    """Make both models, of one width, depth, vocabulary and number of parameters."""
    ours = AveyBForMaskedLM(AveyBConfig.mini(vocab_size=vocab, hidden_size=width, num_hidden_layers=depth))
    bert = bert_of(parameters(ours), vocab=vocab, width=width, depth=depth, positions=positions)
    return {"ours": ours, "BERT": bert}


def batch(vocab: int, tokens: int, length: int) -> dict[str, torch.Tensor]:
    """Make a batch of `tokens` tokens in sequences of `length`, a fifth of them masked."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocab, (max(1, tokens // length), length), generator=generator)
    asked = torch.rand(ids.shape, generator=generator) < MASK_RATE
    return {"input_ids": ids, "labels": ids.masked_fill(~asked, IGNORED_LABEL)}


def all_logits(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss with the head on every token."""
    if isinstance(model, transformers.BertForMaskedLM):
        return transformers.BertForMaskedLM.forward(model, **inputs).loss
    logits = model(input_ids=inputs["input_ids"]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), inputs["labels"].flatten())


def masked_logits(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss with the head on masked tokens, as both models compute it by themselves."""
    return model(**inputs).loss


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor],
    inputs: dict[str, torch.Tensor],
    precision: str,
) -> None:
    """Run one training step."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        value = loss(model, inputs)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()


def best_times(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the shortest time of each call in seconds, the calls taken in turn; the first round warms up."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if turn:
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def main() -> None:
    """Parse the arguments, measure, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in a batch")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "cpu_train.json", help="write the figures here")
    args = parser.parse_args()
    torch.manual_seed(0)
    both = models(args.vocab, args.width, args.depth, max(args.lengths))
    settings = RunSettings(betas=(0.95, 0.95), eps=1e-8)
    optimizers = {name: build_optimizer(parameter_groups(model, 0.01), settings) for name, model in both.items()}
    sizes = {name: parameters(model) for name, model in both.items()}
    threads = torch.get_num_threads()
    counts = ", ".join(f"{name} {size:,} parameters" for name, size in sizes.items())
    table = Table(title=f"training tokens/s; {counts}; {threads} threads")
    for column in (
        "precision",
        "length",
        "ours",
        "BERT",
        "ratio",
        "ours, all logits",
        "BERT, all logits",
        "head's gain",
    ):
        table.add_column(column, justify="right")
    rows = []
    for precision in args.precisions:
        for length in args.lengths:
            inputs = batch(args.vocab, args.tokens, length)
            calls = {
                name + suffix: partial(step, model.train(), optimizers[name], loss, inputs, precision)
                for suffix, loss in (("", masked_logits), (", all logits", all_logits))
                for name, model in both.items()
            }
            times = best_times(calls, args.rounds)
            speeds = {name: inputs["input_ids"].numel() / seconds for name, seconds in times.items()}
            rows.append({"precision": precision, "length": length, "tokens_per_second": speeds})
            ours, bert, ours_all, _ = speeds.values()
            figures = [f"{speed:,.0f}" for speed in speeds.values()]
            figures.insert(2, f"{ours / bert:.2f}")
            table.add_row(precision, f"{length:,}", *figures, f"{ours / ours_all:.2f}")
    Console().print(table)
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
    }
    report = {"machine": machine, "batch_tokens": args.tokens, "parameters": sizes, "rows": rows}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
