"""`aveyb-eval`: measure retrieval.

All logic lives in `aveyb_retrieval.eval`; this file parses and prints.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli import common
from aveyb_retrieval.cli.help import examples
from aveyb_retrieval.errors import printable
from aveyb_retrieval.eval.base import DEFAULT_METRICS

if TYPE_CHECKING:
    from aveyb_retrieval.eval.metrics import Scores
    from aveyb_retrieval.eval.tasks import Task

METRICS = common.repeatable(
    "--metric", "metrics", "ndcg@K, recall@K, mrr@K, success@K, map.", default=DEFAULT_METRICS
)
DRAW = common.gather(
    "draw",
    dict,
    click.option("--split", help="Judged split; default: test, or the only one, or dev."),
    common.number("--max-queries", "Draw N judged queries."),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, help="Seed of every random draw."
    ),
)


@click.group(cls=common.Commands, context_settings=common.CONTEXT)
@click.version_option(package_name="aveyb-retrieval")
def main() -> None:
    """Measure retrieval with trec_eval's definitions: run, score, compare."""


@main.command(epilog=examples("aveyb-eval run --data scifact/ --report report.json"))
@common.repeatable(
    "--data",
    "data",
    "BEIR folder, known name (mldr, mldr-de, msmarco, nq, ...) or NAME=FOLDER for a local copy.",
    required=True,
)
@common.repeatable(
    "--model",
    "models",
    "default, bm25 (options about vectors do not concern it), an index directory, an Avey-B folder,"
    " or any sentence-transformers model.",
    default=("default",),
)
@DRAW
@common.choose(
    "--protocol",
    "standard paper",
    "Quote scores of standard; paper repeats the paper's own evaluation.",
)
@common.choose(
    "--mode",
    "hybrid dense lexical",
    "How to search. Default: hybrid, as `aveyb-index search`; dense if every vector is scored.",
    default=None,
)
@common.granularity("Which vectors rank documents. Default: all that the model or index has.")
@common.number("--chunk-words", "Encode fixed chunks of N words one by one, without an index.")
@click.option(
    "--index-type",
    help=(
        "Build an index of this type (auto, flat, hnsw or a FAISS factory string) and search it; "
        "none scores every vector instead. Default: auto."
    ),
)
@common.gather(
    "load",
    dict,
    common.number("--max-tokens", "Truncate texts to N tokens."),
    click.option(
        "--precision",
        default="auto",
        help=(
            "Compute in float32, bfloat16 or float16; Avey-B models also in int8 on a CPU, which"
            " auto takes if the model has that form, as searches do."
        ),
    ),
    click.option(
        "--device", default="cpu", help="Torch device of the model and of an index's search."
    ),
)
@common.gather(
    "settings",
    dict,
    click.option(
        "--depth",
        type=click.IntRange(1, 1 << 24),
        default=100,
        help="Documents per query in the run.",
    ),
    METRICS,
    click.option(
        "--ignore-identical-ids",
        is_flag=True,
        help="Drop hits whose id is the query's (ArguAna, Quora).",
    ),
)
@common.path("--run", "Write the TREC run; a folder when there are several.", "run_path")
@common.path("--report", "Write all results as JSON.")
@common.path("--cache", "Folder for vectors and results; default: ~/.cache/aveyb-retrieval/eval.")
@click.option(
    "--only-missing", is_flag=True, help="Use cached vectors and results; compute what is missing."
)
@common.QUIET
def run(
    data: tuple[str, ...],
    models: tuple[str, ...],
    draw: dict[str, Any],
    protocol: str,
    load: dict[str, Any],
    settings: dict[str, Any],
    run_path: Path | None,
    report: Path | None,
    cache: Path | None,
    only_missing: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """Search data sets with models and score the runs."""
    from rich.console import Console

    from aveyb_retrieval.eval.base import check_run_ids, write_run
    from aveyb_retrieval.eval.encoders import LoadOptions
    from aveyb_retrieval.eval.metrics import load_trec_eval
    from aveyb_retrieval.eval.named_systems import EvalModelOptions, make_systems
    from aveyb_retrieval.eval.runner import (
        EvalSettings,
        ResultCache,
        print_results,
        run_system,
        write_json,
    )

    load_trec_eval()  # not found missing only after hours of encoding
    console = Console()
    folder = cache or Path.home() / ".cache" / "aveyb-retrieval" / "eval"
    conditions, options = (
        EvalSettings(**settings),
        EvalModelOptions(load=LoadOptions(**load), **how),
    )
    results, runs = [], []
    with common.progress_bar(not quiet) as progress:
        for name in data:
            task = _open_task(name, protocol, **draw)
            if run_path:
                # not after hours of encoding
                check_run_ids(run_path, (*task.queries, *task.corpus.ids))
            for system in make_systems(
                models, task, options, folder, reuse=only_missing, progress=progress
            ):
                result, run = run_system(
                    system, task, conditions, cache=ResultCache(folder), only_missing=only_missing
                )
                results.append(result)
                runs.append(run)
    print_results(results, console)
    if run_path:
        for number, (result, run) in enumerate(zip(results, runs, strict=True)):
            tag = _slug(result.system.name)
            own = (
                f"{_slug(result.dataset)}.{result.split}.{number}.{tag}.trec"
                if len(results) > 1
                else ""
            )
            path = run_path / own
            path.parent.mkdir(parents=True, exist_ok=True)
            write_run(path, run, tag=tag)
            console.print(f"run: {path}", highlight=False)
    if report:
        write_json(report, results, {"command": shlex.join(["aveyb-eval", *sys.argv[1:]])})
        console.print(f"report: {report}", highlight=False)


@main.command(epilog=examples("aveyb-eval score run.trec qrels.tsv"))
@click.argument("run_file", type=common.PATH)
@click.argument("qrels", type=common.PATH)
@METRICS
@click.option("--json", "as_json", is_flag=True, help="Print JSON, per-query values included.")
def score(run_file: Path, qrels: Path, metrics: tuple[str, ...], as_json: bool) -> None:
    """Score a TREC run file against qrels (BEIR or TREC column order, with or without header)."""
    from aveyb_retrieval.eval.base import read_run
    from aveyb_retrieval.eval.data import read_qrels
    from aveyb_retrieval.eval.metrics import evaluate, notices

    judged = read_qrels(qrels)
    scores = evaluate(judged.judgements, read_run(run_file), metrics)
    remarks = [*judged.notices, *notices(scores)]
    if as_json:
        report = {
            "queries": len(judged.judgements),
            "mean": scores.mean,
            "per_query": scores.per_query,
        }
        click.echo(json.dumps(report | _lacking(scores) | {"notices": remarks}, indent=1))
        return
    for metric, value in scores.mean.items():
        click.echo(f"{metric:<12} {value:.4f}")
    click.echo(f"{'queries':<12} {len(judged.judgements)}")
    for notice in remarks:
        click.echo(f"note: {notice}")


@main.command(epilog=examples("aveyb-eval compare a.trec b.trec qrels.tsv"))
@click.argument("run_a", type=common.PATH)
@click.argument("run_b", type=common.PATH)
@click.argument("qrels", type=common.PATH)
@click.option("--metric", default="ndcg@10", help="The metric to compare.")
@click.option(
    "--resamples",
    type=click.IntRange(100, 10**7),
    default=10_000,
    help="Sign patterns of the test, and samples of the interval.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1.0, max_open=True),
    default=0.95,
    help="Confidence of the interval; systems differ if p is below 1 minus this.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the samples.")
@common.number("--show", "List the N queries that differ most, each way.", least=0, default=5)
@common.path(
    "--queries",
    "queries.jsonl with the texts to list.  [default: the one of the qrels' BEIR folder]",
    "query_file",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, per-query differences included.")
def compare(
    run_a: Path,
    run_b: Path,
    qrels: Path,
    metric: str,
    show: int,
    query_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare two TREC runs: paired randomization test with its interval, wins, ties, losses."""
    from rich.console import Console

    from aveyb_retrieval.eval.base import read_run
    from aveyb_retrieval.eval.data import read_qrels, read_queries
    from aveyb_retrieval.eval.metrics import compare as compare_scores
    from aveyb_retrieval.eval.metrics import evaluate, notices
    from aveyb_retrieval.eval.runner import print_comparison

    judged = read_qrels(qrels)
    queries_file = qrels.parent.parent / "queries.jsonl"
    if query_file is None and qrels.parent.name == "qrels" and queries_file.is_file():
        query_file = queries_file
    texts = read_queries([query_file]) if query_file else {}
    scores = {
        path: evaluate(judged.judgements, read_run(path), [metric]) for path in (run_a, run_b)
    }
    remarks = [
        *judged.notices,
        *(f"{path}: {notice}" for path, own in scores.items() for notice in notices(own)),
    ]
    comparison = compare_scores(
        *(scores[path].per_query[metric] for path in (run_a, run_b)), **options
    )
    if as_json:
        report = {"metric": metric, **asdict(comparison), "significant": comparison.significant}
        sides = {
            name: {"run": str(path), **_lacking(scores[path])}
            for name, path in (("a", run_a), ("b", run_b))
        }
        click.echo(json.dumps(report | sides | {"notices": remarks}, indent=1))
        return
    console = Console()
    for notice in remarks:
        console.print(f"note: {notice}", highlight=False, markup=False, soft_wrap=True)
    print_comparison(comparison, metric, str(run_a), str(run_b), console)
    ordered = sorted(comparison.per_query.items(), key=lambda item: item[1])
    for title, items, sign in (
        ("A is better on", ordered[::-1], 1),
        ("B is better on", ordered, -1),
    ):
        if chosen := [(query, value) for query, value in items[:show] if sign * value > 0]:
            click.echo(title)
            for query, value in chosen:
                click.echo(printable(f"  {value:+.4f}  {query}  {texts.get(query, '')}".rstrip()))


def _lacking(scores: Scores) -> dict[str, Any]:
    return {"missing": list(scores.missing), "unjudged": scores.unjudged}


def _open_task(data: str, protocol: str = "standard", *, split: str | None, **draw: Any) -> Task:
    from aveyb_retrieval.eval.data import load_dataset
    from aveyb_retrieval.eval.tasks import PROTOCOLS, make_task

    return make_task(load_dataset(data, split), PROTOCOLS[protocol], split, **draw)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-") or "run"


if __name__ == "__main__":
    main()
