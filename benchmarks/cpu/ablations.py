"""The paper's design choices in small: retrieval by models that differ in one of them.

    python benchmarks/cpu/ablations.py --pairs PAIRS.jsonl --set FOLDER

Each variant is a `ReferenceAveyB` on fixed token vectors, the first principal components of the
embedded model's. Its layers start at random, are trained on the same pairs of question and text as
all others (InfoNCE over the batch), and then search a small set by mean vectors. Two seeds each.

Rows are kept as they are made, so that an interrupted run goes on. The paper trains with five
orders of magnitude more text before it searches: what is measured here is that each choice runs and
learns, and whether its effect has the paper's sign.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy, normalize

from aveyb_retrieval import AveyBConfig, AveyBModel
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.tasks import make_task
from aveyb_retrieval.family import ReferenceAveyB
from aveyb_retrieval.files import write_atomic
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.eval.tasks import Task

RESULTS = Path(__file__).parents[1] / "results" / "ablations.json"
SEEDS = (0, 1)
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "split_size": 16,
    "num_retrieved": 3,
}
STEPS, BATCH, LEARNING_RATE, SCALE = 60, 32, 2e-3, 20.0
QUERY_TOKENS, TEXT_TOKENS = 16, 80


@dataclass(frozen=True)
class Variant:
    """One choice, and what the paper says of it.

    Attributes:
        table: the paper's table.
        paper: its average over retrieval sets, in points.
        default: that of the default in the same table.
        choices: of `ReferenceAveyB`.
        fields: of `AveyBConfig`.
    """

    table: int | None = None
    paper: float | None = None
    default: float | None = None
    choices: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


def layers(letters: str) -> dict[str, Any]:
    """Return the fields of layers in this order, S static, D dynamic."""
    return {"layer_pattern": [{"S": "static", "D": "dynamic"}[letter] for letter in letters]}


BASELINE = "default"
VARIANTS = {
    BASELINE: Variant(),
    "ranker in both directions": Variant(4, 66.20, 74.82, {"ranker_direction": "both"}),
    "layers DSDS": Variant(5, 69.92, 74.82, fields=layers("DSDS")),
    "layers DSSS": Variant(5, 74.41, 74.82, fields=layers("DSSS")),
    "layers SSSD": Variant(5, 74.53, 74.82, fields=layers("SSSD")),
    "layers SSDD": Variant(5, 69.48, 74.82, fields=layers("SSDD")),
    "layers DDSS": Variant(5, 75.19, 74.82, fields=layers("DDSS")),
    "layers SSSS": Variant(5, 74.95, 74.82, fields=layers("SSSS")),
    "layers DDDD": Variant(5, 72.18, 74.82, fields=layers("DDDD")),
    "RMS norm": Variant(6, 68.76, 74.82, {"similarity_norm": "rms"}),
    "softmax": Variant(6, 75.34, 74.82, {"similarity_norm": "softmax"}),
    "scaled softmax": Variant(6, 74.75, 74.82, {"similarity_norm": "scaled_softmax"}),
    "1 retrieved": Variant(7, 75.41, 75.65, fields={"num_retrieved": 1}),
    "no normalization": Variant(10, 63.08, 74.50, {"similarity_norm": "none"}),
    "coupled layers": Variant(10, 68.98, 74.50, {"coupled": True}),
    "no compressor": Variant(10, 75.66, 74.50, {"compressor": "none"}),
}


@dataclass(frozen=True)
class Study:
    """What all variants share: token vectors `[V, d]`, and pairs and texts as token ids `[T]`."""

    embedding: torch.Tensor
    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    task: Task
    documents: list[torch.Tensor]
    queries: list[torch.Tensor]

    @classmethod
    def read(cls, pairs: Path, folder: Path) -> Study:
        """Read the first pairs of a file, and a set's folder."""
        words = read_vocabulary(str(DEFAULT_MODEL))

        def ids(text: str, limit: int) -> torch.Tensor:
            tokens = words.encode_ids(text)[:limit]
            return torch.from_numpy(tokens).long() if len(tokens) else torch.tensor([words.sep_id])

        task = make_task(load_dataset(str(folder)))
        records = islice(read_records(pairs), STEPS * BATCH)
        return cls(
            token_vectors(SHAPE["hidden_size"]),
            [
                (ids(row["query"], QUERY_TOKENS), ids(row["positive"], TEXT_TOKENS))
                for _, row in records
            ],
            task,
            [ids(f"{each.title}\n{each.text}", TEXT_TOKENS) for each in task.corpus],
            [ids(query, TEXT_TOKENS) for query in task.queries.values()],
        )

    def measure(self, variant: Variant, seed: int) -> dict[str, float]:
        """Train a variant and search with it."""
        torch.manual_seed(seed)
        config = AveyBConfig(vocab_size=len(self.embedding), **SHAPE | variant.fields)
        start = AveyBModel(config)
        start.embed.weight.data.copy_(self.embedding)
        model = ReferenceAveyB.of(start, seed=seed, **variant.choices)
        model.embedding.requires_grad_(False)
        began = time.process_time()
        loss = self.train(model)
        seconds = time.process_time() - began
        return {"ndcg@10": self.search(model), "loss": loss, "training_seconds": seconds}

    def train(self, model: ReferenceAveyB) -> float:
        """Take all steps; return the mean loss of the last ten."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.01)
        losses = []
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(1, 10 * (step + 1) / STEPS)
            queries, texts = zip(*self.pairs[step * BATCH : (step + 1) * BATCH], strict=True)
            scores = SCALE * vectors(model, queries) @ vectors(model, texts).T
            loss = cross_entropy(scores, torch.arange(BATCH))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            losses.append(loss.item())
        return sum(losses[-10:]) / 10

    @torch.inference_mode()
    def search(self, model: ReferenceAveyB) -> float:
        """Return NDCG@10."""
        scores = vectors(model, self.queries) @ vectors(model, self.documents).T
        best = scores.topk(10, dim=1)
        run = {
            query: {self.task.corpus.ids[i]: score for i, score in zip(row, values, strict=True)}
            for query, row, values in zip(
                self.task.queries, best.indices.tolist(), best.values.tolist(), strict=True
            )
        }
        return evaluate(self.task.judgements, run, ["ndcg@10"]).mean["ndcg@10"]


def token_vectors(width: int) -> torch.Tensor:
    """Return the embedded model's token vectors, their first principal components, `[V, width]`."""
    table = AveyBModel.from_pretrained(DEFAULT_MODEL).embed.weight.detach()
    table = table - table.mean(0)
    _, _, components = torch.linalg.svd(table, full_matrices=False)
    return table @ components[:width].T


def vectors(model: ReferenceAveyB, texts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean token vectors of texts, unit rows `[n, d]`; texts of one length together."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        places[len(text)].append(place)
    order, means = [], []
    for of_length in places.values():
        for start in range(0, len(of_length), BATCH):
            together = of_length[start : start + BATCH]
            means.append(model(torch.stack([texts[place] for place in together])).mean(1))
            order += together
    return normalize(torch.cat(means), dim=-1)[torch.tensor(order).argsort()]


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return each variant's NDCG@10 and its difference to the default, with the paper's."""
    scores = {(row["variant"], row["seed"]): row["ndcg@10"] for row in rows}
    lines = []
    for name, variant in VARIANTS.items():
        seeds = [seed for seed in SEEDS if (name, seed) in scores and (BASELINE, seed) in scores]
        if not seeds:
            continue
        mean = sum(scores[name, seed] for seed in seeds) / len(seeds)
        line = [name, f"{mean:.4f}", "", "", "", ""]
        if variant.paper is not None and variant.default is not None:
            gains = [scores[name, seed] - scores[BASELINE, seed] for seed in seeds]
            change = variant.paper - variant.default
            line[2:] = [
                difference(gains),
                str(variant.table),
                f"{change:+.2f}",
                verdict(gains, change),
            ]
        lines.append(line)
    return lines


def difference(gains: list[float]) -> str:
    """Return the mean of some differences, with half their range if there are several."""
    mean = f"{sum(gains) / len(gains):+.4f}"
    return mean if len(gains) == 1 else f"{mean} ± {(max(gains) - min(gains)) / 2:.4f}"


def verdict(gains: list[float], paper: float) -> str:
    """Say whether differences have the paper's sign; "unclear" if the seeds differ in it."""
    if min(gains) * max(gains) <= 0:
        return "unclear"
    same = "yes" if (gains[0] > 0) == (paper > 0) else "no"
    return same if len(gains) > 1 else f"{same}, one seed"


def main() -> None:
    """Measure what is missing, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=Path, required=True, help="file of query and positive")
    parser.add_argument("--set", type=Path, required=True, dest="folder", help="set to search")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    study = Study.read(args.pairs, args.folder)
    rows: list[dict[str, Any]] = []
    if args.json.is_file():
        rows = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
    made = {(row["variant"], row["seed"]) for row in rows}
    for seed in SEEDS:
        for name, variant in VARIANTS.items():
            if (name, seed) in made:
                continue
            rows.append({"variant": name, "seed": seed, **study.measure(variant, seed)})
            print(rows[-1], flush=True)
            document = {
                "shape": SHAPE,
                "steps": STEPS,
                "batch_size": BATCH,
                "learning_rate": LEARNING_RATE,
                "tokens": {"query": QUERY_TOKENS, "text": TEXT_TOKENS},
                "set": args.folder.name,
                "machine": {
                    "cores": os.cpu_count(),
                    "processor": platform.processor() or platform.machine(),
                    "threads": torch.get_num_threads(),
                    "torch": torch.__version__,
                },
                "table": table(rows),
                "rows": rows,
            }
            write_atomic(args.json, (json.dumps(document, indent=1) + "\n").encode())
    for line in table(rows):
        print(" | ".join(line))


if __name__ == "__main__":
    main()
