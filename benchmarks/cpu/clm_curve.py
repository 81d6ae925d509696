"""A small Avey trained to predict the next token: held-out loss over tokens, beside token frequencies.

    python benchmarks/cpu/clm_curve.py --data ../shared/data/pretrain --work clm_curve

Text and vocabulary are those of `mlm_curve.py`. Training follows the paper but for the size of a step (2,048 tokens
instead of 524,288) and Adam's epsilon; a run that was interrupted goes on where it was. Afterwards the held-out text is
scored both ways at several lengths: as trained, where all positions of a split share its ranking, and strict, where
each position has the ranking of its own prefix, as in generation. Then the model is asked for pass keys. When the run
is complete, the same command only scores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from mlm_curve import HELD_OUT_EVERY, sample, vocabulary
from needle_lm import run_needles
from perplexity import perplexities
from transformers.trainer_utils import get_last_checkpoint

from aveyb_retrieval.encoder.config import AveyConfig
from aveyb_retrieval.encoder.network.avey import AveyForCausalLM
from aveyb_retrieval.training.pretraining import HELD_OUT, TRAIN, NextTokens, pretrain
from aveyb_retrieval.training.run_folder import CHECKPOINTS, METRICS, MODEL, read_metrics
from aveyb_retrieval.training.settings import CLMSettings

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
RESULTS = Path(__file__).parents[1] / "results"


def unigram(run: Path, rows: int, length: int) -> float:
    """Return the cross entropy (nats) of the training text's token frequencies, one added to each, on held-out text."""
    counts = 1.0 + np.bincount(np.fromfile(run / TRAIN, dtype="<i4"), minlength=rows)
    log_probability = np.log(counts / counts.sum())
    labels = torch.cat([sample["labels"] for sample in NextTokens(run / HELD_OUT, length=length)]).numpy()
    return float(-log_probability[labels].mean())


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the curve and the unigram's line."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    points = [(p["tokens"] / 1e6, p["loss"]) for p in result["curve"]]
    axes.plot(*zip(*points, strict=True), marker=".", label=f"Avey, {result['parameters'] / 1e6:.2f} M parameters")
    axes.axhline(result["unigram"], color="grey", linestyle="--", label="unigram")
    axes.set(xlabel="training tokens, millions", ylabel="held-out loss on next tokens (as trained), nats")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Parse the arguments, train what is missing, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of .jsonl(.zst) files with a field text")
    parser.add_argument("--work", type=Path, required=True, help="folder for vocabulary and run")
    parser.add_argument("--every", type=int, default=16, help="take every n-th document")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--length", type=int, default=256, help="tokens in a packed sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--json", type=Path, default=RESULTS / "clm_curve.json", help="the curve goes beside it")
    args = parser.parse_args()
    texts, data = sample(args.data, args.every)
    tokenizer = vocabulary(args.work / "vocabulary", args.vocab, texts)
    settings = CLMSettings(
        steps=args.steps,
        length=args.length,
        batch_size=args.batch,
        micro_batch=args.batch,
        learning_rate=args.rate,
        precision="float32",
        eps=1e-8,
        held_out_every=HELD_OUT_EVERY,
        evaluate_every=max(30, args.steps // 10),
        save_every=100,
    )
    run = args.work / "run"
    torch.manual_seed(settings.seed)
    model = AveyForCausalLM(AveyConfig.mini(vocab_size=tokenizer.vocab_size))
    if not (run / MODEL).is_dir():
        resume = (run / CHECKPOINTS).is_dir() and get_last_checkpoint(str(run / CHECKPOINTS)) is not None
        pretrain(model, tokenizer, texts, run, data=data, settings=settings, resume=resume, device="cpu")
        if not (run / MODEL).is_dir():
            raise SystemExit(130)
    model = AveyForCausalLM.from_pretrained(run / MODEL)
    held_out = np.fromfile(run / HELD_OUT, dtype="<i4").astype(np.int64)
    scores = perplexities(model, held_out, [n for n in LENGTHS if n < len(held_out)], windows=8)
    needles = run_needles(
        model, tokenizer, tasks=["passkey"], lengths=[1024, 8192, 65536], depths=[10, 50, 90], seeds=3
    )
    step = args.batch * args.length
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "config": model.config.to_diff_dict(),
        "curve": [
            {"tokens": m["step"] * step, "loss": m["eval_loss"], "accuracy": m["eval_accuracy"]}
            for m in read_metrics(run / METRICS)
            if "eval_loss" in m
        ],
        "unigram": unigram(run, tokenizer.vocab_size, args.length),
        "perplexity": [asdict(score) for score in scores],
        "passkey": [asdict(cell) for cell in needles],
        "settings": asdict(settings) | {"vocab": args.vocab},
        "data": data,
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result, args.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
