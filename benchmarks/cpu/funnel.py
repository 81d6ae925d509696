"""Funnel: retrieval quality and processor seconds with and without, the six recoveries, and a base shape's time.

    python benchmarks/cpu/funnel.py quality --data ../shared/data      # the embedded model on six sets
    python benchmarks/cpu/funnel.py recoveries --data ../shared/data   # MaxSim over token vectors
    python benchmarks/cpu/funnel.py masked --work FOLDER               # held-out loss of models of ablations.py
    python benchmarks/cpu/funnel.py base                               # 30 layers, random weights

`quality` takes sets and queries as `quality.py` does. Models get their funnel without training; on each set they are
measured one after another, in one run. Seconds are those of the processor while the corpus is encoded, on one thread.
`recoveries` orders the 50 best documents of the model without a funnel by MaxSim over token vectors, queries unpooled;
sum_last and average_last differ in length only, which neither cosines nor a final norm see.
Every row is written to benchmarks/results/funnel.json at once, and rows that are there are not made again: an
interrupted run continues, and to measure anew the row (or the file) is deleted. funnel.md holds the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from quality import MAX_QUERIES, SETS

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.network.funnel import Funnel
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import EmbedderEncoder
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.report import write_text
from aveyb_retrieval.eval.runner import run_system
from aveyb_retrieval.eval.systems import DenseSystem, VectorCache
from aveyb_retrieval.eval.tasks import Task, make_task
from aveyb_retrieval.eval.vectors import GRANULARITIES
from aveyb_retrieval.kernels.late_interaction_numpy import late_interaction_numpy
from aveyb_retrieval.training.pretraining import evaluate_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aveyb_retrieval.training.packing import MaskedSequences

RESULTS = Path(__file__).parents[1] / "results"
NO_FUNNEL = "no funnel"
FORMS = {
    NO_FUNNEL: None,
    "mean after 1": Funnel(1, 2, "mean", "average_last"),
    "max after 1": Funnel(1, 2, "max", "average_last"),
    "4 tokens, mean after 1": Funnel(1, 4, "mean", "average_last"),
}
POOLED_QUERIES = "mean after 1, queries too"
RECOVERED = Funnel(2, 2, "mean", "average_last")  # behind one layer alone four of the recoveries are the same
RECOVERIES = ("sum_first", "sum_last", "sum_max", "sum_mean", "average_last", "max_last")
TILED = "tiled only"
RERANKED = ("cranfield", "nq-gold")
CANDIDATES = 50
BASE_LENGTHS, BASE_AFTER = (2048, 8192), (None, 1, 4, 15)


class PooledQueries(EmbedderEncoder):
    """An encoder that pools queries as it pools documents."""

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Encode queries into unit rows `[n, d]` float32."""
        return np.stack([encoded.vector for encoded in self._embedder.encode_documents(("", q) for q in queries)])


class Rows:
    """The measured rows of one table in the results file; each is written when it is made."""

    def __init__(self, path: Path, table: str) -> None:
        """Open the file, which may not exist yet."""
        self._path, self._table = path, table

    def read(self) -> dict[str, Any]:
        """Return all tables."""
        return json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() else {}

    def add(self, name: dict[str, Any], make: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        """Make the row of this name from the arguments, unless it is there."""
        rows = self.read().get(self._table, [])
        if any(all(row.get(key) == value for key, value in name.items()) for row in rows):
            return
        row = name | make(*arguments)
        print(self._table, row, flush=True)
        document = self.read()
        document.setdefault(self._table, []).append(row)
        document["machine"] = {
            "cores": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        write_text(self._path, json.dumps(document, indent=1) + "\n")


def with_funnel(funnel: Funnel | None) -> Embedder:
    """Return the embedded model with this funnel; its fingerprint says so, for the caches of evaluation."""
    embedder = Embedder.load(precision="float32")
    embedder.model.funnel = funnel
    embedder.fingerprint += repr(funnel)
    return embedder


def quality(args: argparse.Namespace) -> None:
    """Measure NDCG@10 of every form on every set, and the seconds of encoding its corpus."""
    rows = Rows(args.json, "quality")
    for name in args.sets:
        task = make_task(load_dataset(str(args.data / name)), max_queries=MAX_QUERIES)
        cache = VectorCache()  # a temporary one: vectors of an earlier run would cost no seconds
        for form in args.forms:
            rows.add({"set": name, "form": form}, measured, FORMS[form], task, cache)
        rows.add({"set": name, "form": POOLED_QUERIES}, pooled_queries, task, cache)


def measured(funnel: Funnel | None, task: Task, cache: VectorCache) -> dict[str, Any]:
    """Encode the corpus of a task by one form of the model, and search it."""
    encoder = EmbedderEncoder(with_funnel(funnel))
    start = time.process_time()
    encoded = cache.encoded(encoder, task.corpus)
    seconds = time.process_time() - start
    return scores(encoder, task, cache) | {"documents": len(encoded), "seconds": seconds}


def pooled_queries(task: Task, cache: VectorCache) -> dict[str, Any]:
    """Search the corpus of the pooled model by pooled queries."""
    return scores(PooledQueries(with_funnel(FORMS["mean after 1"])), task, cache)


def scores(encoder: EmbedderEncoder, task: Task, cache: VectorCache) -> dict[str, Any]:
    """Return NDCG@10 by every kind of vectors, and the mean cosine of document vectors to those without a funnel."""
    plain = cache.encoded(EmbedderEncoder(with_funnel(None)), task.corpus).documents
    ours = cache.encoded(encoder, task.corpus).documents
    assert plain is not None and ours is not None
    found: dict[str, Any] = {"cosine": float((plain * ours).sum(1).mean()), "queries": len(task.queries)}
    for granularity in GRANULARITIES:
        result, _ = run_system(DenseSystem(encoder, task.corpus, cache, granularity=granularity), task)
        found[granularity] = result.mean["ndcg@10"]
    return found


def recoveries(args: argparse.Namespace) -> None:
    """Rerank by MaxSim with the token vectors of every recovery."""
    rows = Rows(args.json, "recoveries")
    for name in RERANKED:
        task = make_task(load_dataset(str(args.data / name)), max_queries=200)
        plain = with_funnel(None)
        run = DenseSystem(EmbedderEncoder(plain), task.corpus, VectorCache()).search(task.queries, CANDIDATES)
        rows.add({"set": name, "form": "not reranked"}, ndcg, task, run)
        for form in (NO_FUNNEL, TILED, *RECOVERIES):
            rows.add({"set": name, "form": form}, reranked, form, plain, task, run)


def ndcg(task: Task, run: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return NDCG@10 of a run."""
    return {"ndcg@10": evaluate(task.judgements, run, ["ndcg@10"]).mean["ndcg@10"]}


def reranked(form: str, plain: Embedder, task: Task, run: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return NDCG@10 of the candidates in `run`, ordered by MaxSim."""
    model = with_funnel(
        None if form == NO_FUNNEL else RECOVERED if form == TILED else replace(RECOVERED, recovery=form)
    )
    tokens = {
        doc: token_vectors(model, task, doc, recover=form != TILED) for doc in {d for r in run.values() for d in r}
    }
    ordered = {}
    asked_tokens = plain.token_vectors(list(task.queries.values()), prompt="query")
    for query, asked in zip(task.queries, asked_tokens, strict=True):
        documents = list(run[query])
        starts = np.cumsum([0, *(len(tokens[doc]) for doc in documents)])
        rows = np.concatenate([tokens[doc] for doc in documents])
        found = late_interaction_numpy(asked, rows, starts[:-1], starts[1:])
        ordered[query] = dict(zip(documents, found.tolist(), strict=True))
    return ndcg(task, ordered)


def token_vectors(embedder: Embedder, task: Task, name: str, *, recover: bool) -> np.ndarray:
    """Return the unit token vectors of a document, float32 `[T, d]`."""
    document = task.corpus.get(name)
    text = embedder.prompts["document"] + (document.title + "\n" if document.title else "") + document.text
    ids = torch.from_numpy(embedder.tokenizer.encode_ids(text).astype(np.int64))[None]
    with torch.inference_mode():
        return torch.nn.functional.normalize(embedder.model.encode_batch(ids, recover=recover)[0], dim=-1).numpy()


def base(args: argparse.Namespace) -> None:
    """Time one text of 2K and 8K tokens through the paper's base shape, with random weights."""
    rows = Rows(args.json, "base")
    torch.manual_seed(0)
    model = AveyBModel(AveyBConfig.paper_base()).eval()
    ids = torch.randint(0, model.config.vocab_size, (1, max(BASE_LENGTHS)))
    with torch.inference_mode():
        model.encode_batch(ids[:, :300])  # weights are packed once
        for tokens in BASE_LENGTHS:
            for after in BASE_AFTER:
                model.funnel = None if after is None else Funnel(after, 2, "mean", "average_last")
                rows.add({"tokens": tokens, "after": after}, timed, model, ids[:, :tokens], after, args.repeats)


def timed(model: AveyBModel, ids: torch.Tensor, after: int | None, repeats: int) -> dict[str, Any]:
    """Return the median processor seconds of encoding a text, and its multiply-adds."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        model.encode_batch(ids)
        seconds.append(time.process_time() - start)
    return {"seconds": statistics.median(seconds), "multiply_adds": count(model.config, ids.shape[1], after)}


def count(config: AveyBConfig, tokens: int, after: int | None) -> int:
    """Return the multiply-adds of one text: layers, compressor, and MaxSim by tokens without the shortcut by ids."""
    size, d, m = config.split_size, config.hidden_size, config.mixed_size
    splits = -(-tokens // size)
    total = 0
    for number, kind in enumerate(config.layer_pattern or []):
        factor = 1 if after is None or number < after else 2
        mixing = (1 if kind == "static" else 2) * (size // factor) * m
        total += tokens // factor * (7 * m * d + mixing)
    blocks = sum(1 + min(i, config.num_retrieved) for i in range(splits))
    return total + (blocks + splits * (splits - 1) // 2) * size * size * d


def masked(args: argparse.Namespace) -> None:
    """Evaluate the models that ablations.py trained: without a funnel, given one untrained, and trained with one."""
    from ablations import BASELINE, BATCH, SEEDS, VARIANTS, held_out, run_folder

    rows = Rows(args.json, "masked")
    for seed in SEEDS:
        for name in (BASELINE, *(name for name in VARIANTS if name.startswith("funnel"))):
            folder = run_folder(args.work, name, seed)
            model = AveyBForMaskedLM.from_pretrained(folder)
            own = model.model.funnel
            forms: dict[str, Funnel | None] = {"as trained": own}
            if own is None:
                forms |= {name: funnel for name, funnel in FORMS.items() if funnel is not None}
                forms |= {f"mean after 2, {how}": replace(RECOVERED, recovery=how) for how in RECOVERIES}
            else:
                forms |= {"without its funnel": None}
            sequences = held_out(args.work, AveyBTokenizer.load(folder))
            for form, funnel in forms.items():
                model.model.funnel = funnel
                rows.add({"model": name, "seed": seed, "form": form}, evaluate_labels_of, model, sequences, BATCH)


def evaluate_labels_of(model: AveyBForMaskedLM, sequences: MaskedSequences, batch: int) -> dict[str, float]:
    """Return held-out loss and accuracy."""
    return evaluate_labels(model, sequences, batch_size=batch)


def quality_tables(measured: list[dict[str, Any]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the table of NDCG@10 and that of seconds."""
    found = {(row["set"], row["form"]): row for row in measured}
    sets = [name for name in SETS if (name, NO_FUNNEL) in found]
    forms = [form for form in (*FORMS, POOLED_QUERIES) if any((name, form) in found for name in sets)]
    rows = [["set", "", *forms]]
    for name in sets:
        rows += [
            [name, what, *(cell(found.get((name, form)), what) for form in forms)] for what in ("document", "both")
        ]
    for what in ("document", "both"):
        means = [[found[name, form][what] for name in sets if (name, form) in found] for form in forms]
        rows.append(["mean", what, *(f"{np.mean(m):.4f}" if len(m) == len(sets) else "-" for m in means)])
    yield "NDCG@10 of the model, by document vectors and by both kinds", rows
    forms = [form for form in forms if form in FORMS]
    rows = [["set", *forms]]
    rows += [[name, *(cell(found.get((name, form)), "seconds", ".1f") for form in forms)] for name in sets]
    yield "Processor seconds for the corpus, one thread", rows


def recovery_table(measured: list[dict[str, Any]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the table of reranking."""
    found = {(row["set"], row["form"]): row for row in measured}
    forms = ("not reranked", NO_FUNNEL, TILED, *RECOVERIES)
    rows = [["tokens of documents", *RERANKED]]
    rows += [[form, *(cell(found.get((name, form)), "ndcg@10") for name in RERANKED)] for form in forms]
    yield f"NDCG@10 after MaxSim over the best {CANDIDATES}, mean pooling after layer 2", rows


def masked_table(measured: list[dict[str, Any]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the table of held-out losses."""
    rows = [["trained", "measured", "held-out loss, nats, by seed"]]
    for model, form in dict.fromkeys((row["model"], row["form"]) for row in measured):
        losses = [row["loss"] for row in measured if (row["model"], row["form"]) == (model, form)]
        rows.append([model, form, "  ".join(f"{loss:.4f}" for loss in losses)])
    yield "Masked-language modeling of small models", rows


def base_table(measured: list[dict[str, Any]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the table of the base shape."""
    plain = {row["tokens"]: row for row in measured if row["after"] is None}
    rows = [["tokens", "funnel", "seconds", "less", "less by count"]]
    for row in measured:
        less = [f"{1 - row[key] / plain[row['tokens']][key]:.1%}" for key in ("seconds", "multiply_adds")]
        form = NO_FUNNEL if row["after"] is None else f"after layer {row['after']} of 30"
        rows.append([f"{row['tokens']:,}", form, f"{row['seconds']:.1f}", *less])
    yield "The base shape, random weights, one thread", rows


TABLES = {"quality": quality_tables, "recoveries": recovery_table, "masked": masked_table, "base": base_table}


def cell(row: dict[str, Any] | None, key: str, form: str = ".4f") -> str:
    """Return a number of a row as text, "-" where there is none."""
    return "-" if row is None or key not in row else format(row[key], form)


def markdown(document: dict[str, Any]) -> str:
    """Return all tables as a page."""
    lines = ["# Funnel", "", "`python benchmarks/cpu/funnel.py quality | recoveries | masked | base`"]
    tables = [table for name, make in TABLES.items() if name in document for table in make(document[name])]
    for title, rows in tables:
        lines += ["", f"## {title}", ""]
        lines += ["| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the arguments and measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["quality", "recoveries", "masked", "base", "tables"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the BEIR-layout sets")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--work", type=Path, help="the folder of ablations.py, for `masked`")
    parser.add_argument("--repeats", type=int, default=2, help="of each time in `base`")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "funnel.json", help="the tables go beside it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    parts = {"quality": quality, "recoveries": recoveries, "masked": masked, "base": base, "tables": lambda _: None}
    parts[args.part](args)
    document = json.loads(args.json.read_text(encoding="utf-8"))
    write_text(args.json.with_suffix(".md"), markdown(document))


if __name__ == "__main__":
    main()
