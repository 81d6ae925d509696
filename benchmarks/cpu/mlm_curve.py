"""Masked-language modelling: held-out loss over tokens, ours beside a BERT of as many parameters
and a unigram.

    python benchmarks/cpu/mlm_curve.py --data ../shared/data/pretrain --work mlm_curve     # all of
    it python benchmarks/cpu/mlm_curve.py --data ... --work mlm_curve --only BERT             # one
    model's runs python benchmarks/cpu/mlm_curve.py --data ... --work mlm_curve --steps 60
    --search-steps 20   # a quick look

Both models go through `pretrain`: the same text, vocabulary, packed and masked batches, optimizer,
schedule and number of tokens. Each takes the learning rate that is best for it in short runs (those
given, halved or doubled for as long as the best is the lowest or highest tried), BERT also the
better of two shapes and, in the long run, the better of that rate and one four times as high. A run
that was interrupted goes on where it was. The text is every n-th document of the folder's files,
cut to its first 20,000 characters, without openstax (evaluation sets hold its text); every 60th of
those is held out. BERT trains without dropout, as ours does: no text is seen twice. A third curve
is ours with static matrices that start at random, as in the released code (`static_init="xavier"`),
with the learning rate that was best for ours. Speed is not measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.figure import Figure
from peers import bert_of, parameters
from rich.console import Console
from rich.table import Table
from transformers.trainer_utils import get_last_checkpoint

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import IGNORED_LABEL, AveyBForMaskedLM
from aveyb_retrieval.encoder.text.tokenizer import VOCAB_FILE, AveyBTokenizer
from aveyb_retrieval.training.pretraining import TRAIN, open_held_out, pretrain
from aveyb_retrieval.training.run_folder import (
    CHECKPOINTS,
    METRICS,
    MODEL,
    TrainingRun,
    read_metrics,
)
from aveyb_retrieval.training.settings import MLMSettings
from aveyb_retrieval.training.texts import fingerprint, read_texts, train_vocabulary

if TYPE_CHECKING:
    import transformers

RESULTS = Path(__file__).parents[1] / "results"
CHARACTERS, HELD_OUT_EVERY = 20_000, 60
NAMES = ("ours", "BERT")
RANDOM = "ours, random start"


@dataclass(frozen=True)
class Comparison:
    """Everything that the runs of a comparison share.

    texts: the sample. data: where it comes from. width, depth, split: our model's shape.
    search_steps, rates: of the short runs that look for a learning rate. settings: of the long
    runs.
    """

    work: Path
    texts: list[str]
    data: dict[str, Any]
    tokenizer: AveyBTokenizer
    width: int
    depth: int
    split: int
    search_steps: int
    rates: tuple[float, ...]
    settings: MLMSettings

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step sees."""
        return self.settings.batch_size * self.settings.length


def sample(folder: Path, every: int) -> tuple[list[str], dict[str, Any]]:
    """Read every n-th text of a folder; return the texts and where they come from."""
    files = sorted(path for path in folder.glob("*.jsonl*") if not path.name.startswith("openstax"))
    texts = [text[:CHARACTERS] for i, text in enumerate(read_texts(files)) if i % every == 0]
    return texts, {path.name: fingerprint(path) for path in files} | {
        "every": every,
        "characters": CHARACTERS,
    }


def vocabulary(folder: Path, size: int, texts: list[str]) -> AveyBTokenizer:
    """Learn a vocabulary from the training documents of the sample, or read the one
    learned before.
    """
    if not (folder / VOCAB_FILE).exists():
        training = (text for number, text in enumerate(texts, start=1) if number % HELD_OUT_EVERY)
        train_vocabulary(training, size).save(folder)
    return AveyBTokenizer.load(folder)


def new_model(name: str, depth: int, comparison: Comparison) -> transformers.PreTrainedModel:
    """Make an untrained model; BERT has as many parameters as ours, which ends with a norm, as in
    the paper.
    """
    torch.manual_seed(0)
    vocab, width = comparison.tokenizer.vocab_size, comparison.width
    sizes = {"vocab_size": vocab, "hidden_size": width, "split_size": comparison.split}
    start = {"static_init": "xavier"} if name == RANDOM else {}
    ours = AveyBForMaskedLM(
        AveyBConfig.mini(**sizes, num_hidden_layers=comparison.depth, final_norm=True, **start)
    )
    if name != "BERT":
        return ours
    torch.manual_seed(0)
    positions = comparison.settings.length
    return bert_of(parameters(ours), vocab=vocab, width=width, depth=depth, positions=positions)


def trained(
    name: str, depth: int, folder: Path, settings: MLMSettings, comparison: Comparison
) -> list[dict[str, Any]]:
    """Return the metrics of a run, which is started or continued unless it is finished."""
    if not (folder / MODEL).is_dir():
        resume = (folder / CHECKPOINTS).is_dir() and get_last_checkpoint(
            str(folder / CHECKPOINTS)
        ) is not None
        if folder.is_dir() and not resume:
            shutil.rmtree(folder)
        pretrain(
            new_model(name, depth, comparison),
            comparison.tokenizer,
            comparison.texts,
            TrainingRun(folder, comparison.data, resume=resume, device="cpu"),
            settings=settings,
        )
        if not (folder / MODEL).is_dir():
            raise SystemExit(130)
    return read_metrics(folder / METRICS)


def curve(metrics: list[dict[str, Any]], tokens_per_step: int) -> list[dict[str, float]]:
    """Return held-out loss and accuracy by the number of training tokens."""
    return [
        {
            "tokens": m["step"] * tokens_per_step,
            "loss": m["eval_loss"],
            "accuracy": m["eval_accuracy"],
        }
        for m in metrics
        if "eval_loss" in m
    ]


def unigram(folder: Path, tokenizer: AveyBTokenizer, settings: MLMSettings) -> dict[str, float]:
    """Return cross entropy (nats) and accuracy of the training text's token frequencies, one added
    to each.

    They are measured on the masked held-out tokens that the models are asked for.
    """
    counts = 1.0 + np.bincount(
        np.fromfile(folder / TRAIN, dtype="<i4"), minlength=tokenizer.vocab_size
    )
    log_probability = np.log(counts / counts.sum())
    sequences = open_held_out(folder, tokenizer, settings)
    assert sequences is not None
    labels = torch.cat([sequences[i]["labels"] for i in range(len(sequences))]).numpy()
    asked = labels[labels != IGNORED_LABEL]
    return {
        "loss": float(-log_probability[asked].mean()),
        "accuracy": float((asked == counts.argmax()).mean()),
        "masked_tokens": len(asked),
    }


def compare(name: str, comparison: Comparison) -> dict[str, Any]:
    """Run a model for short, and for long with the shape and learning rate that did best."""
    tried: dict[tuple[int, float], float] = {}

    def attempt(depth: int, rate: float) -> None:
        steps = comparison.search_steps
        short = replace(comparison.settings, steps=steps, evaluate_every=steps, learning_rate=rate)
        metrics = trained(
            name, depth, comparison.work / f"{name}-{depth}-{rate:g}", short, comparison
        )
        tried[depth, rate] = curve(metrics, comparison.tokens_per_step)[-1]["loss"]
        print(
            f"{name}, {depth} layers, learning rate {rate:g}: held-out loss"
            f" {tried[depth, rate]:.4f}",
            flush=True,
        )

    def best() -> tuple[int, float]:
        return min(tried, key=lambda pair: tried[pair])

    for rate in comparison.rates:
        attempt(comparison.depth, rate)
    while True:
        rates, (_, rate) = [rate for _, rate in tried], best()
        if min(rates) < rate < max(rates):
            break
        attempt(comparison.depth, rate / 2 if rate == min(rates) else rate * 2)
    # with a layer less its inner layer comes near the usual four times the width
    if name == "BERT":
        attempt(comparison.depth - 1, best()[1])
    depth, rate = best()
    rates = [rate]
    if (
        name == "BERT"
        # runs that end near the unigram favour low rates: a higher one may do better in the long
        # run
    ):
        rates.append(4 * rate)
    runs = [full_run(name, depth, rate, comparison) for rate in rates]
    return {
        "tried": [
            {"layers": d, "learning_rate": r, "loss": loss} for (d, r), loss in tried.items()
        ],
        "long_runs": [
            {"learning_rate": r["learning_rate"], "loss": r["curve"][-1]["loss"]} for r in runs
        ],
        **min(runs, key=lambda run: run["curve"][-1]["loss"]),
    }


def long_folder(work: Path, name: str, rate: float) -> Path:
    """Return the folder of a model's long run with one learning rate."""
    return work / f"long-{name.replace(', ', '-').replace(' ', '-')}-{rate:g}"


def full_run(name: str, depth: int, rate: float, comparison: Comparison) -> dict[str, Any]:
    """Run one shape for long with one learning rate."""
    settings = replace(comparison.settings, learning_rate=rate)
    metrics = trained(name, depth, long_folder(comparison.work, name, rate), settings, comparison)
    model = new_model(name, depth, comparison)
    return {
        "parameters": parameters(model),
        "config": model.config.to_diff_dict(),
        "learning_rate": rate,
        "curve": curve(metrics, comparison.tokens_per_step),
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the curves and the unigram's line."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name in (*NAMES, RANDOM):
        points = [(p["tokens"] / 1e6, p["loss"]) for p in result[name]["curve"]]
        label = f"{name}, {result[name]['parameters'] / 1e6:.2f} M parameters"
        axes.plot(*zip(*points, strict=True), marker=".", label=label)
    axes.axhline(result["unigram"]["loss"], color="grey", linestyle="--", label="unigram")
    axes.set(xlabel="training tokens, millions", ylabel="held-out loss on masked tokens, nats")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    table = Table("", "parameters", "learning rate", "held-out loss", "accuracy")
    table.add_row(
        "unigram",
        "",
        "",
        f"{result['unigram']['loss']:.4f}",
        f"{result['unigram']['accuracy']:.4f}",
    )
    for name in (*NAMES, RANDOM):
        row, last = result[name], result[name]["curve"][-1]
        table.add_row(
            name, f"{row['parameters']:,}", f"{row['learning_rate']:g}", f"{last['loss']:.4f}",
            f"{last['accuracy']:.4f}",
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    """Parse the arguments, run what is missing, write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of .jsonl(.zst) files with a field text"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument(
        "--only", choices=(*NAMES, RANDOM), help="this model's runs only, no comparison"
    )
    parser.add_argument("--every", type=int, default=16, help="take every n-th document")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--split", type=int, default=64, help="tokens in one of our splits")
    parser.add_argument("--length", type=int, default=256, help="tokens in a packed sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--search-steps", type=int, default=150)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3])
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "mlm_curve.json", help="the curve goes beside it"
    )
    args = parser.parse_args()
    texts, data = sample(args.data, args.every)
    tokenizer = vocabulary(args.work / "vocabulary", args.vocab, texts)
    settings = MLMSettings(
        steps=args.steps,
        length=args.length,
        batch_size=args.batch,
        micro_batch=args.batch,
        betas=(0.9, 0.98),  # the paper's 0.95 and 0.95 are for steps of 512K tokens
        eps=1e-8,
        held_out_every=HELD_OUT_EVERY,
        evaluate_every=max(30, args.steps // 10),
        log_every=10,
        save_every=200,
    )
    shape = {name: getattr(args, name) for name in ("width", "depth", "split")}
    comparison = Comparison(
        args.work,
        texts,
        data,
        tokenizer,
        **shape,
        search_steps=args.search_steps,
        rates=tuple(args.rates),
        settings=settings,
    )
    result: dict[str, Any] = {}
    for name in NAMES if args.only is None else ("ours",) if args.only == RANDOM else (args.only,):
        result[name] = compare(name, comparison)
    if args.only in NAMES:
        return
    rate = result["ours"]["learning_rate"]
    result[RANDOM] = full_run(RANDOM, args.depth, rate, comparison)
    if args.only:
        return
    result["unigram"] = unigram(long_folder(args.work, "ours", rate), tokenizer, settings)
    shared = {name: value for name, value in asdict(settings).items() if name != "learning_rate"}
    result["settings"] = shared | shape | {"vocab": args.vocab}
    result["data"] = data
    result["machine"] = {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result, args.json.with_suffix(".png"))
    show(result)


if __name__ == "__main__":
    main()
