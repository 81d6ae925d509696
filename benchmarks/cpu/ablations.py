"""Every design choice of the paper, in small: held-out loss, retrieval and speed of models that differ in one of them.

    python benchmarks/cpu/ablations.py --data ../shared/data --work ablations
    python benchmarks/cpu/ablations.py --data ... --work ablations --only softmax   # this and the default

Each variant is trained with two seeds, twice: by masked-language modeling, and by contrastive training on pairs, on the
same tokens as all others. The paper does one after the other, with five orders of magnitude more text; after the minute
that a model has here, masked-language modeling has learned how often words are, all vectors point one way, and the
pairs that follow no longer move them (0.01 to 0.02 on both sets where a fresh model comes to 0.07). So each training
starts fresh. Loss is of the same masked tokens of held-out documents, 20 % of them masked, whatever rate a variant was
trained with. NDCG@10 is the mean over the sets in SETS, by vectors of the first TEXT_TOKENS of each document; a variant
that differs in the mask rate alone has none. Speed is of the processor while full texts are encoded, on one thread.

A variant's row is written to results.json in --work when it is made, and rows that are there are not made again, so an
interrupted run continues. The last step writes ablations.json and ablations.md into benchmarks/results/, beside the
paper's retrieval averages (its tables 4 to 8 and 10) and the differences to the default of the same table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mlm_curve import HELD_OUT_EVERY, sample, vocabulary

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.report import write_text
from aveyb_retrieval.eval.tasks import Task, make_task
from aveyb_retrieval.training.pretraining import MaskedSequences, evaluate_labels, pack_texts
from aveyb_retrieval.training.settings import ContrastiveSettings, MLMSettings, RunSettings
from aveyb_retrieval.training.texts import read_records
from aveyb_retrieval.training.trainer import optimizer_and_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESULTS = Path(__file__).parents[1] / "results"
SETS = {"cranfield": 225, "nq-gold": 300}  # and how many of their queries
PAIRS = "train/qa.pairs.jsonl.zst"
SEEDS = (0, 1)
EVERY, VOCAB = 48, 4096  # of the documents; rows of the vocabulary
LENGTH, BATCH = 256, 4
SHAPE: dict[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 4, "split_size": 32, "num_retrieved": 3, "final_norm": True,
}  # fmt: skip
MASKED = MLMSettings(
    steps=400, length=LENGTH, batch_size=BATCH, learning_rate=2e-3, betas=(0.9, 0.98), eps=1e-8
)  # the paper's betas are for steps of 512K tokens
CONTRASTIVE = ContrastiveSettings(steps=120, batch_size=32, learning_rate=2e-3)
PAIR_TOKENS = 16, 64  # of a query and its text
TEXT_TOKENS = 128  # of a document that is searched
SPEED_TEXTS, SPEED_TOKENS = 8, 1024


@dataclass(frozen=True)
class Variant:
    """Fields of the configuration, or a mask rate, in place of the default's; and the paper's figure.

    table: of the paper; "" where it has none. paper: its average over retrieval sets. default: that of its default.
    """

    table: str = ""
    paper: float | None = None
    default: float | None = None
    mask_rate: float = 0.2
    fields: dict[str, Any] = field(default_factory=dict)


def _pattern(letters: str) -> dict[str, Any]:
    return {"layer_pattern": [{"S": "static", "D": "dynamic", "C": "coupled"}[letter] for letter in letters]}


BASELINE = "default"
VARIANTS = {
    BASELINE: Variant(),
    "ranker in both directions": Variant("4", 66.20, 74.82, fields={"ranker_direction": "both"}),
    "layers DSDS": Variant("5", 69.92, 74.82, fields=_pattern("DSDS")),
    "layers DSSS": Variant("5", 74.41, 74.82, fields=_pattern("DSSS")),
    "layers SSSD": Variant("5", 74.53, 74.82, fields=_pattern("SSSD")),
    "layers SSDD": Variant("5", 69.48, 74.82, fields=_pattern("SSDD")),
    "layers DDSS": Variant("5", 75.19, 74.82, fields=_pattern("DDSS")),
    "layers SSSS": Variant("5", 74.95, 74.82, fields=_pattern("SSSS")),
    "layers DDDD": Variant("5", 72.18, 74.82, fields=_pattern("DDDD")),
    "rms": Variant("6", 68.76, 74.82, fields={"similarity_norm": "rms"}),
    "softmax": Variant("6", 75.34, 74.82, fields={"similarity_norm": "softmax"}),
    "scaled softmax": Variant("6", 74.75, 74.82, fields={"similarity_norm": "scaled_softmax"}),
    "splits of half, 7 retrieved": Variant("7", 72.51, 75.65, fields={"split_size": 16, "num_retrieved": 7}),
    "1 retrieved": Variant("7", 75.41, 75.65, fields={"num_retrieved": 1}),
    "7 retrieved": Variant("7", 74.71, 75.65, fields={"num_retrieved": 7}),
    "splits of twice, 1 retrieved": Variant("7", 74.46, 75.65, fields={"split_size": 64, "num_retrieved": 1}),
    "splits of twice": Variant("7", 72.95, 75.65, fields={"split_size": 64}),
    "10 % masked": Variant("8", 69.42, 75.65, mask_rate=0.1),
    "30 % masked": Variant("8", 76.02, 75.65, mask_rate=0.3),
    "40 % masked": Variant("8", 74.85, 75.65, mask_rate=0.4),
    "50 % masked": Variant("8", 76.59, 75.65, mask_rate=0.5),
    "no normalization": Variant("10", 63.08, 74.50, fields={"similarity_norm": "none"}),
    "coupled layers": Variant("10", 68.98, 74.50, fields=_pattern("CCCC")),
    "no compressor": Variant("10", 75.66, 74.50, fields={"compressor": "none"}),
    "no ranker": Variant(fields={"num_retrieved": 0}),
    "tail of a quarter": Variant(fields={"tail_share": 0.25}),
    "tail of three quarters": Variant(fields={"tail_share": 0.75}),
    "funnel after 1, mean": Variant(fields={"funnel_after": 1}),
    "funnel after 1, max": Variant(fields={"funnel_after": 1, "funnel_pool": "max"}),
}


def run_folder(work: Path, name: str, seed: int) -> Path:
    """Return where the model of a variant is kept after masked-language modeling."""
    return work / "models" / f"{name.replace(' ', '-').replace(',', '').replace('%', 'percent')}-{seed}"


def prepare(work: Path, data: Path) -> AveyBTokenizer:
    """Pack the text for all variants, unless that is done; return the vocabulary, which is learned from it."""
    if not (work / "train.bin").is_file():
        texts, _ = sample(data / "pretrain", EVERY)
        words = vocabulary(work / "vocabulary", VOCAB, texts)
        pack_texts(
            texts, words, work / "train.bin", work / "held-out.bin", separator=words.sep_id, every=HELD_OUT_EVERY
        )
    return AveyBTokenizer.load(work / "vocabulary")


def held_out(work: Path, words: AveyBTokenizer) -> MaskedSequences:
    """Return the held-out tokens, masked alike for every variant."""
    return MaskedSequences(work / "held-out.bin", length=LENGTH, mask_id=words.mask_id, seed=1)


def train(trained: torch.nn.Module, loss_of: Callable[[int], torch.Tensor], settings: RunSettings) -> float:
    """Take `settings.steps` steps; return the processor seconds."""
    optimizer, schedule = optimizer_and_schedule(trained, settings)
    trained.train()
    start = time.process_time()
    for step in range(settings.steps):
        loss = loss_of(step)
        if not loss.isfinite():
            raise SystemExit(f"step {step}: the loss is {loss.item()}")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), settings.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    trained.eval()
    return time.process_time() - start


def configuration(variant: Variant, words: AveyBTokenizer) -> AveyBConfig:
    """Return the shape of all variants with what is a variant's own."""
    return AveyBConfig.mini(vocab_size=words.vocab_size, **SHAPE | variant.fields)


def masked_model(variant: Variant, seed: int, work: Path, words: AveyBTokenizer) -> tuple[AveyBForMaskedLM, float]:
    """Train a variant by masked-language modeling; return it and the seconds."""
    torch.manual_seed(seed)
    model = AveyBForMaskedLM(configuration(variant, words))
    sequences = MaskedSequences(
        work / "train.bin",
        length=LENGTH,
        mask_id=words.mask_id,
        mask_rate=variant.mask_rate,
        seed=seed,
        samples=MASKED.steps * BATCH,
    )

    def loss_of(step: int) -> torch.Tensor:
        rows = [sequences[step * BATCH + row] for row in range(BATCH)]
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        loss = model(**batch).loss
        assert loss is not None
        return loss

    return model, train(model, loss_of, MASKED)


def read_pairs(data: Path, words: AveyBTokenizer) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the pairs that all variants are trained on, in order, as token ids."""
    records = islice(read_records(data / PAIRS), CONTRASTIVE.steps * CONTRASTIVE.batch_size)
    return [
        (words.encode_ids(row["query"])[: PAIR_TOKENS[0]], words.encode_ids(row["positive"])[: PAIR_TOKENS[1]])
        for _, row in records
    ]


def vectors(model: AveyBModel, texts: Sequence[np.ndarray], task: str | None = None) -> torch.Tensor:
    """Return the mean token vectors of texts, unit rows `[n, d]`."""
    width = max(map(len, texts))
    ids, mask = torch.zeros(len(texts), width, dtype=torch.int64), torch.zeros(len(texts), width, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = torch.from_numpy(text.astype(np.int64)), 1
    hidden = model(ids, mask, task=task).last_hidden_state
    return torch.nn.functional.normalize(hidden.sum(1) / mask.sum(1, keepdim=True).clamp_min(1), dim=-1)


def contrastive_model(
    variant: Variant, seed: int, words: AveyBTokenizer, pairs: list[tuple[np.ndarray, np.ndarray]]
) -> AveyBModel:
    """Train a variant by InfoNCE over the batch."""
    torch.manual_seed(seed)
    model = AveyBModel(configuration(variant, words))
    size = CONTRASTIVE.batch_size

    def loss_of(step: int) -> torch.Tensor:
        queries, texts = zip(*pairs[step * size : (step + 1) * size], strict=True)
        scores = CONTRASTIVE.scale * vectors(model, queries, "query") @ vectors(model, texts).T
        return torch.nn.functional.cross_entropy(scores, torch.arange(size))

    train(model, loss_of, CONTRASTIVE)
    return model


@dataclass(frozen=True)
class TokenizedTask:
    """A retrieval set with the token ids of its documents and queries, in order."""

    task: Task
    documents: list[np.ndarray]
    queries: list[np.ndarray]

    @classmethod
    def read(cls, folder: Path, queries: int, words: AveyBTokenizer) -> TokenizedTask:
        """Read a set and draw queries from it."""
        task = make_task(load_dataset(str(folder)), max_queries=queries)
        texts = [words.encode_ids(f"{each.title}\n{each.text}".strip())[:TEXT_TOKENS] for each in task.corpus]
        return cls(task, texts, [words.encode_ids(query) for query in task.queries.values()])


@torch.inference_mode()
def retrieval(model: AveyBModel, tokenized: TokenizedTask) -> float:
    """Return NDCG@10 by document vectors."""
    task = tokenized.task
    scores = in_order(model, tokenized.queries, "query") @ in_order(model, tokenized.documents).T
    best = scores.topk(10, dim=1)
    run = {
        query: {task.corpus.ids[i]: score for i, score in zip(rows, values, strict=True)}
        for query, rows, values in zip(task.queries, best.indices.tolist(), best.values.tolist(), strict=True)
    }
    return evaluate(task.judgements, run, ["ndcg@10"]).mean["ndcg@10"]


def in_order(model: AveyBModel, texts: list[np.ndarray], task: str | None = None) -> torch.Tensor:
    """Return `vectors` of any number of texts, encoded in batches of similar length."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found = [vectors(model, [texts[i] for i in order[start : start + 32]], task) for start in range(0, len(order), 32)]
    out = torch.empty(len(texts), found[0].shape[1])
    out[order] = torch.cat(found)
    return out


@torch.inference_mode()
def speed(model: AveyBModel) -> float:
    """Return how many tokens of long texts are encoded in a second of the processor."""
    ids = torch.randint(
        0, model.config.vocab_size, (SPEED_TEXTS, SPEED_TOKENS), generator=torch.Generator().manual_seed(0)
    )
    model(ids)
    start = time.process_time()
    for _ in range(3):
        model(ids)
    return 3 * ids.numel() / (time.process_time() - start)


def measure(
    name: str,
    seed: int,
    args: argparse.Namespace,
    words: AveyBTokenizer,
    pairs: list[tuple[np.ndarray, np.ndarray]],
    tasks: list[TokenizedTask],
) -> dict[str, Any]:
    """Train and measure one variant with one seed."""
    variant = VARIANTS[name]
    model, seconds = masked_model(variant, seed, args.work, words)
    figures = evaluate_labels(model, held_out(args.work, words), batch_size=BATCH)
    folder = run_folder(args.work, name, seed)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    words.save(folder)
    row: dict[str, Any] = {
        "variant": name, "seed": seed, **figures, "training_seconds": seconds, "tokens_per_second": speed(model.model),
        "parameters": sum(p.numel() for p in model.parameters()),
    }  # fmt: skip
    if variant.mask_rate == VARIANTS[BASELINE].mask_rate:
        searching = contrastive_model(variant, seed, words, pairs)
        row |= {each.task.dataset: retrieval(searching, each) for each in tasks}
    return row


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return the variants that are complete, with differences to the default and to the paper's default."""
    found = {name: [row for row in rows if row["variant"] == name] for name in VARIANTS}
    plain = found[BASELINE]
    out = [
        [
            "variant",
            "held-out loss",
            "difference",
            "NDCG@10",
            "difference",
            "tokens/s",
            "paper's table",
            "paper, difference",
            "same sign",
        ]
    ]
    for name, variant in VARIANTS.items():
        if len(found[name]) < len(SEEDS) or len(plain) < len(SEEDS):
            continue
        loss, change = (spread(found[name], lambda row: row["loss"], minus=other) for other in (None, plain))
        score, gain = (spread(found[name], ndcg, minus=other) for other in (None, plain))
        rate = np.mean([row["tokens_per_second"] for row in found[name]])
        theirs = "" if variant.paper is None or variant.default is None else f"{variant.paper - variant.default:+.2f}"
        out.append(
            [
                name, f"{loss[0]:.3f}", "" if name == BASELINE else f"{change[0]:+.3f} ± {change[1]:.3f}",
                *(["", ""] if math.isnan(score[0]) else
                  [f"{score[0]:.4f}", "" if name == BASELINE else f"{gain[0]:+.4f} ± {gain[1]:.4f}"]),
                f"{rate:,.0f}", variant.table, theirs, verdict(gain, theirs),
            ]
        )  # fmt: skip
    return out


def ndcg(row: dict[str, Any]) -> float:
    """Return the mean over the sets; not a number where there is none."""
    return float(np.mean([row.get(name, math.nan) for name in SETS]))


def spread(
    rows: list[dict[str, Any]], get: Callable[[dict[str, Any]], float], minus: list[dict[str, Any]] | None = None
) -> tuple[float, float]:
    """Return mean and half the range over the seeds, of a figure or of its difference to that of the same seed."""
    other = {row["seed"]: get(row) for row in minus or []}
    values = [get(row) - other.get(row["seed"], 0.0) for row in rows]
    return float(np.mean(values)), (max(values) - min(values)) / 2


def verdict(gain: tuple[float, float], theirs: str) -> str:
    """Say whether our difference has the sign of the paper's; "unclear" where the seeds differ in it."""
    if not theirs or math.isnan(gain[0]):
        return ""
    if abs(gain[0]) <= gain[1]:
        return "unclear"
    return "yes" if (gain[0] > 0) == (float(theirs) > 0) else "no"


def write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write the results of all complete variants, and the table."""
    found = table(rows)
    document = {
        "command": "python benchmarks/cpu/ablations.py",
        "shape": SHAPE | {"vocab_size": VOCAB},
        "masked": {
            "steps": MASKED.steps,
            "tokens": MASKED.steps * BATCH * LENGTH,
            "learning_rate": MASKED.learning_rate,
        },
        "contrastive": {
            "steps": CONTRASTIVE.steps,
            "batch_size": CONTRASTIVE.batch_size,
            "tokens_of_a_pair": PAIR_TOKENS,
            "learning_rate": CONTRASTIVE.learning_rate,
        },
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "table": found,
        "rows": rows,
    }
    lines = ["| " + " | ".join(row) + " |" for row in [found[0], ["---"] * len(found[0]), *found[1:]]]
    write_text(args.json, json.dumps(document, indent=1) + "\n")
    title = "# The paper's design choices, in small\n\n`python benchmarks/cpu/ablations.py`\n\n"
    write_text(args.json.with_suffix(".md"), title + "\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    """Parse the arguments, measure what is missing, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with pretrain/, train/ and the sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for text, models and results")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "ablations.json", help="the table goes beside it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    words = prepare(args.work, args.data)
    pairs = read_pairs(args.data, words)
    tasks = [TokenizedTask.read(args.data / name, queries, words) for name, queries in SETS.items()]
    path = args.work / "results.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    done = {(row["variant"], row["seed"]) for row in rows}
    for name in dict.fromkeys([BASELINE, *args.only]):
        for seed in SEEDS:
            if (name, seed) not in done:
                rows.append(measure(name, seed, args, words, pairs, tasks))
                write_text(path, json.dumps(rows, indent=1) + "\n")
                print(rows[-1], flush=True)
    write(args, rows)


if __name__ == "__main__":
    main()
