"""Characters of the true answer that the first passages hold: ours beside BM25 and MiniLM on fixed
chunks.

    python benchmarks/cpu/passages.py --data ../shared/data --cache
    ~/.cache/aveyb-retrieval/passages

For every set with `spans.jsonl`: recall, precision and IoU in characters of the best 1, 5 and 10
passages, within the document that holds the answer and over the whole corpus. A peer's title is
read with its first chunk. Two sets are large: 120 of their documents are drawn (`--documents`) by
numpy's `default_rng(0).permutation`, with all of their questions.

Vectors, indexes and results are kept in --cache by fingerprints of model, data and settings, so an
interrupted run continues and a new column costs only itself. Writes passages.json and passages.md
into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passage_peers import ExactPassages, FusedPassages, VectorScorer, WordScorer
from quality import RESULTS, built, minilm_folder, with_documents
from span_scores import (
    SCOPES,
    IndexPassages,
    PassageScores,
    PassageSystem,
    chunks_of,
    evaluate_passages,
)

from aveyb_retrieval import Embedder
from aveyb_retrieval.encoder.text.passages import DEFAULT_SIZE, PassageSize
from aveyb_retrieval.eval.base import fingerprint_of, info_fingerprint
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import (
    AsMeasured,
    ChunkedModel,
    Chunker,
    load_measured,
    word_chunks,
)
from aveyb_retrieval.eval.named_systems import indexed
from aveyb_retrieval.eval.runner import write_text
from aveyb_retrieval.eval.tasks import Task, make_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SETS = ("chunking-eval", "qmsum-long", "cuad-long")
# of 232 and 491: MiniLM reads 120 in a quarter of an hour
DOCUMENTS = {"qmsum-long": 120, "cuad-long": 120}
SMALL = 128  # tokens of a passage: half of the default
OVERLAP = 64
MODES = {"hybrid": "words and vectors", "dense": "vectors", "lexical": "words"}
SEED = 0
MEASURES = (
    "recall@1",
    "recall@5",
    "recall@10",
    "precision@1",
    "precision@5",
    "iou@1",
    "iou@5",
    "iou@10",
)


def drawn(task: Task, documents: int | None) -> Task:
    """Return the task on some of its documents; None: on all of them."""
    return task if documents is None else with_documents(task, documents, seed=SEED)


def peers(task: Task, folder: Path, minilm: str) -> Iterator[PassageSystem]:
    """Yield BM25 on three chunkings, MiniLM on 110-word chunks, and its fusions with BM25."""
    bm25 = WordScorer(task.corpus, word_chunks(110), "110 words")
    yield ExactPassages(bm25)
    yield ExactPassages(WordScorer(task.corpus, word_chunks(200), "200 words"))
    yield ExactPassages(WordScorer(task.corpus, word_chunks(200, 50), "200 words, 50 shared"))
    chunks = load_measured(minilm, chunk_words=110)
    dense = VectorScorer(chunks, task.corpus, folder, name="MiniLM, 110 words")
    yield ExactPassages(dense)
    yield FusedPassages(bm25, dense, name="RRF of BM25 and MiniLM, 110 words")
    yield FusedPassages(bm25, dense, weight=0.4, name="0.4 MiniLM + 0.6 BM25, 110 words")


def ours(task: Task, folder: Path, minilm: str) -> Iterator[PassageSystem]:
    """Yield the default index, searched end to end with `unit="passage"`: by words and vectors, by
    either, reranked.
    """
    path = built(task, folder, passage_tokens=DEFAULT_SIZE.tokens, token_vectors="int8")
    for mode, what in MODES.items():
        chosen = " (default)" if mode == "hybrid" else ""
        yield IndexPassages(
            path, mode=mode, name=f"ours, {what}, {DEFAULT_SIZE.tokens} tokens{chosen}"
        )
    yield IndexPassages(
        path, rerank="token-vectors", name="ours, default, reranked by int8 token vectors"
    )


def sizes(task: Task, folder: Path, minilm: str) -> Iterator[PassageSystem]:
    """Yield indexes of ours with smaller passages, and with overlap."""
    path = built(task, folder, passage_tokens=SMALL)
    yield IndexPassages(path, name=f"ours, words and vectors, {SMALL} tokens")
    path = built(task, folder, passage_tokens=DEFAULT_SIZE.tokens, passage_overlap=OVERLAP)
    yield IndexPassages(
        path, name=f"ours, words and vectors, {DEFAULT_SIZE.tokens} tokens, {OVERLAP} shared"
    )


def minilm_in_ours(task: Task, folder: Path, minilm: str) -> Iterator[PassageSystem]:
    """Yield indexes of ours made by MiniLM, whose window holds about two passages of 128 tokens."""
    for late in (False, True):
        path = built(task, folder, model=minilm, passage_tokens=128, late=late)
        for mode in ("hybrid", "dense"):
            how = "late" if late else "one by one"
            yield IndexPassages(
                path, mode=mode, name=f"MiniLM in our index, {MODES[mode]}, {how}, 128 tokens"
            )


def late_and_alone(
    task: Task, folder: Path, size: PassageSize | None, what: str
) -> tuple[VectorScorer, VectorScorer, Chunker]:
    """Return ours on passages that have seen their document, on the same ones one by one, and what
    cuts them.
    """
    late = AsMeasured(Embedder.load(passage_size=size))
    chunker = chunks_of(indexed(late, task.corpus, folder / "vectors"))
    alone = ChunkedModel(AsMeasured(Embedder.load(precision="float32")), chunker, what)
    return (
        VectorScorer(late, task.corpus, folder),
        VectorScorer(alone, task.corpus, folder),
        chunker,
    )


def splits(task: Task, folder: Path, minilm: str) -> Iterator[PassageSystem]:
    """Yield the embedded model's 256-token splits, scored exactly: by vectors, by words, and by
    both.
    """
    what = "splits of 256 tokens"
    late, alone, chunker = late_and_alone(task, folder, None, what)
    words = WordScorer(task.corpus, chunker, what)
    yield ExactPassages(late, name=f"ours, {what}, late")
    yield ExactPassages(alone, name=f"ours, {what}, one by one")
    yield ExactPassages(words)
    yield FusedPassages(words, late, weight=0.4, name=f"0.4 ours, late + 0.6 BM25, {what}")


def sentences(task: Task, folder: Path, minilm: str) -> Iterator[PassageSystem]:
    """Yield whole sentences as an index cuts them, scored exactly by vectors: with their document,
    or one by one.
    """
    for tokens in (DEFAULT_SIZE.tokens, 128):
        what = f"sentences of {tokens} tokens"
        late, alone, _ = late_and_alone(task, folder, PassageSize(tokens), what)
        yield ExactPassages(late, name=f"ours, {what}, late")
        yield ExactPassages(alone, name=f"ours, {what}, one by one")


GROUPS: dict[str, Callable[[Task, Path, str], Iterator[PassageSystem]]] = {
    "peers": peers,
    "splits": splits,
    "sentences": sentences,
    "ours": ours,
    "sizes": sizes,
    "minilm": minilm_in_ours,
}


def scored(system: PassageSystem, task: Task, scope: str, folder: Path) -> PassageScores:
    """Score a system, or read its result from `folder`."""
    key = fingerprint_of([info_fingerprint(system.info), task.fingerprint, task.spans, scope])[:32]
    path = folder / "scores" / f"{key}.json"
    if path.is_file():
        return replace(PassageScores(**json.loads(path.read_text())), name=system.info.name)
    scores = evaluate_passages(system, task, scope=scope)
    write_text(path, json.dumps(asdict(scores)))
    return scores


def markdown(document: dict[str, Any]) -> str:
    """Return one table per set and scope: a row per system, a column per measure."""
    facts = ", ".join(f"{key} {value}" for key, value in document["machine"].items())
    lines = [
        "# Passages against true spans, in characters",
        "",
        f"`{document['command']}`",
        "",
        facts,
        "",
    ]
    for facts_of_set in document["sets"]:
        for scope in SCOPES:
            rows = [
                r
                for r in document["rows"]
                if (r["set"], r["scope"]) == (facts_of_set["set"], scope)
            ]
            where = (
                "within the document that answers"
                if scope == "document"
                else "over the whole corpus"
            )
            lines += [
                f"## {facts_of_set['set']}, {where}",
                "",
                (
                    f"{facts_of_set['documents']} of {facts_of_set['all_documents']} documents, "
                    f"{facts_of_set['queries']} questions with spans"
                ),
                "",
                "| | characters | " + " | ".join(MEASURES) + " |",
                "|---|" + "---|" * (len(MEASURES) + 1),
            ]
            for row in rows:
                values = " | ".join(f"{row['mean'][measure]:.4f}" for measure in MEASURES)
                lines.append(
                    f"| {row['system']} | {row['mean_passage_characters']:,.0f} | {values} |"
                )
            lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of the BEIR-layout sets"
    )
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument(
        "--documents",
        type=int,
        help="take this many of each set; default: 120 of the two large ones",
    )
    parser.add_argument("--minilm", help="folder of all-MiniLM-L6-v2; default: the PyPI package's")
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for vectors, indexes and results"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="where passages.json and passages.md go"
    )
    args = parser.parse_args()
    minilm = args.minilm or minilm_folder()
    for name in args.sets:
        whole = make_task(load_dataset(str(args.data / name)))
        task = drawn(whole, args.documents or DOCUMENTS.get(name))
        for group in args.groups:
            rows = []
            for system in GROUPS[group](task, args.cache, minilm):
                for scope in SCOPES:
                    scores = scored(system, task, scope, args.cache)
                    rows.append(
                        {
                            "set": name,
                            "group": group,
                            "scope": scope,
                            "system": scores.name,
                            **summary(scores),
                        }
                    )
                    values = " ".join(f"{scores.mean[m]:.4f}" for m in MEASURES)
                    print(f"{name:<14} {scope:<9} {scores.name:<36} {values}", flush=True)
            asked = sum(bool(task.spans.get(query)) for query in task.queries)
            counts = {
                "documents": len(task.corpus),
                "all_documents": len(whole.corpus),
                "queries": asked,
            }
            write(args.out, {"set": name, **counts}, rows)


def write(folder: Path, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Put the rows of one set into passages.json and passages.md, in place of those of the same
    groups.
    """
    path = folder / "passages.json"
    old = json.loads(path.read_text()) if path.is_file() else {"sets": [], "rows": []}
    measured = {(row["set"], row["group"]) for row in rows}
    kept = [row for row in old["rows"] if (row["set"], row["group"]) not in measured]
    sets = [*(other for other in old["sets"] if other["set"] != facts["set"]), facts]
    order = [*SETS, *(other["set"] for other in sets)]
    groups = list(GROUPS)
    document = {
        "command": "python benchmarks/cpu/passages.py",
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
            **{
                package: version(package) for package in ("torch", "sentence-transformers", "bm25s")
            },
        },
        "sets": sorted(sets, key=lambda item: order.index(item["set"])),
        "rows": sorted(
            [*kept, *rows], key=lambda row: (order.index(row["set"]), groups.index(row["group"]))
        ),
    }
    write_text(path, json.dumps(document, indent=1) + "\n")
    write_text(folder / "passages.md", markdown(document))


def summary(scores: PassageScores) -> dict[str, Any]:
    """Return what the committed file keeps of a result: everything but the values of single
    queries.
    """
    mean = {measure: round(value, 6) for measure, value in scores.mean.items()}
    length = round(scores.mean_passage_characters, 1)
    return {"queries": scores.queries, "mean_passage_characters": length, "mean": mean}


if __name__ == "__main__":
    main()
