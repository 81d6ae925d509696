"""Run systems on tasks; a result carries everything it depends on, and is cached by exactly that.

Reports of results are a table for the terminal, and JSON for machines; every number stands beside
what it depends on.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
from rich.markup import escape as marked
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from aveyb_retrieval.errors import InputError, plural
from aveyb_retrieval.eval.base import (
    DEFAULT_METRICS,
    SystemInfo,
    fingerprint_of,
    info_fingerprint,
    rank,
)
from aveyb_retrieval.eval.metrics import evaluate, notices, parse_metric, retrieved_ndcg
from aveyb_retrieval.eval.tasks import PAPER
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from aveyb_retrieval.eval.base import Run, System
    from aveyb_retrieval.eval.metrics import Comparison
    from aveyb_retrieval.eval.tasks import Task

RESULT_FORMAT_VERSION = (
    3  # part of every cache key: raise it when the meaning of a stored value changes
)


@dataclass(frozen=True)
class Result:
    """One system on one task.

    `mean` and `per_query` are keyed by metric, then (per_query) by query id; `main_metric` is the
    one to show first. `seconds` is the wall time of the search, encoding the corpus included unless
    its vectors were cached.
    """

    system: SystemInfo
    dataset: str
    source: str
    split: str
    protocol: str
    main_metric: str
    corpus_size: int
    full_corpus_size: int
    queries: int
    missing: int
    unjudged: int
    depth: int
    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]
    task_fingerprint: str
    notices: tuple[str, ...]
    seconds: float

    @property
    def score(self) -> float:
        """The main metric's mean."""
        return self.mean[self.main_metric]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary; `from_json` reads it back."""
        return {"format": RESULT_FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Any, where: str) -> Result:
        """Read what `to_json` made; an InputError, which begins with `where`, if it is not that."""
        try:
            result = msgspec.convert(data, cls, strict=True)
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: {error}") from None
        if unknown := sorted(set(data) - set(result.to_json())):
            raise InputError(f"{where}: a result has no field {unknown[0]!a}")
        if result.main_metric not in result.mean or set(result.mean) != set(result.per_query):
            raise InputError(f"{where}: the metrics of its means are not those of its queries")
        return result


@dataclass(frozen=True)
class EvalSettings:
    """Run depth, metrics, and whether hits with the query's own id are dropped: the same for every
    system.

    `ignore_identical_ids` exists for sets whose queries are documents of the corpus (ArguAna,
    Quora). It is off unless asked for: where numeric ids happen to coincide it would remove real
    hits.
    """

    depth: int = 100
    metrics: tuple[str, ...] = DEFAULT_METRICS
    ignore_identical_ids: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown metric now, not after hours of encoding."""
        for metric in self.metrics:
            parse_metric(metric)


class ResultCache:
    """Results with their runs in one folder, named by a fingerprint of everything they depend on.

    Runs are kept as JSON: a TREC file cannot carry ids with spaces, which matters only where one is
    asked for.
    """

    def __init__(self, folder: Path) -> None:
        """Keep results in `folder`/results."""
        self._folder = folder / "results"

    def load(self, key: str) -> tuple[Result, Run] | None:
        """Return the result and the run of a key, or None."""
        path = self._folder / f"{key}.json"
        if not path.is_file():
            return None
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Result.from_json(stored["result"], str(path)), stored["run"]

    def save(self, key: str, result: Result, run: Run) -> None:
        """Keep a result and its run."""
        write_text(
            self._folder / f"{key}.json", json.dumps({"result": result.to_json(), "run": run})
        )


def result_key(info: SystemInfo, task: Task, settings: EvalSettings) -> str:
    """Return the cache key: model, data, protocol and settings, by fingerprint."""
    return fingerprint_of(
        [RESULT_FORMAT_VERSION, info_fingerprint(info), task.fingerprint, asdict(settings)]
    )[:32]


def run_system(
    system: System,
    task: Task,
    settings: EvalSettings | None = None,
    *,
    cache: ResultCache | None = None,
    only_missing: bool = False,
) -> tuple[Result, Run]:
    """Search, score and (with a cache) store; with `only_missing` a stored result is returned
    without any work.
    """
    settings = settings or EvalSettings()
    key = result_key(system.info, task, settings)
    if cache is not None and only_missing and (cached := cache.load(key)) is not None:
        stored, run = cached
        return replace(stored, system=replace(stored.system, name=system.info.name)), run
    start = time.perf_counter()
    # one more hit, so that dropping the query itself leaves `depth`
    extra = int(settings.ignore_identical_ids)
    run = system.search(task.queries, settings.depth + extra)
    seconds = time.perf_counter() - start
    remarks = [*task.notices, *system.notices]
    name = system.info.name
    if not any(run.values()):
        raise InputError(
            f"{name} returned nothing for any of the {len(task.queries)} queries of {task.dataset}"
        )
    for query, documents in run.items():
        if strange := [doc for doc in documents if doc not in task.corpus]:
            raise InputError(
                f"{name} returned the document {strange[0]!r} for query {query!r}, which is not in"
                f" the corpus of {task.dataset}: was the index built from another corpus?"
            )
    if settings.ignore_identical_ids:
        dropped = sum(query in documents for query, documents in run.items())
        run = {
            query: {
                doc: documents[doc]
                for doc in [d for d in rank(documents) if d != query][: settings.depth]
            }
            for query, documents in run.items()
        }
        remarks.append(
            f"dropped {plural(dropped, 'hit')} with the query's own id (ignore_identical_ids)"
        )
    scores = evaluate(task.judgements, run, settings.metrics)
    if task.protocol is PAPER:
        own = {PAPER.main_metric: retrieved_ndcg(task.judgements, run)}
        scores = replace(scores, per_query=own | scores.per_query)
    mean = scores.mean
    main = task.protocol.main_metric if task.protocol.main_metric in mean else next(iter(mean))
    deeper = [
        metric for metric in settings.metrics if (parse_metric(metric)[1] or 0) > settings.depth
    ]
    if deeper:
        remarks.append(f"{', '.join(deeper)} computed on a run of depth {settings.depth} only")
    result = Result(
        system=system.info,
        dataset=task.dataset,
        source=task.source,
        split=task.split,
        protocol=task.protocol.name,
        main_metric=main,
        corpus_size=len(task.corpus),
        full_corpus_size=task.full_corpus_size,
        queries=len(task.judgements),
        missing=len(scores.missing),
        unjudged=scores.unjudged,
        depth=settings.depth,
        mean=mean,
        per_query=scores.per_query,
        task_fingerprint=task.fingerprint,
        notices=(*remarks, *notices(scores)),
        seconds=seconds,
    )
    if cache is not None:
        cache.save(key, result, run)
    return result, run


def setting_text(result: Result) -> str:
    """Return the settings that decide this system's scores, in one line."""
    info = result.system
    parts = []
    if info.kind != "lexical":
        parts.append(f"max tokens {'unlimited' if info.max_tokens is None else info.max_tokens}")
    if any(info.prompts.values()):
        parts.append(
            "prompts "
            + ", ".join(f"{key}={value!r}" for key, value in sorted(info.prompts.items()))
        )
    elif info.kind != "lexical":
        parts.append("no prompts")
    if info.precision is not None:
        parts.append(f"computed in {info.precision}")
    if info.storage_dtype is not None:
        parts.append(f"stored as {info.storage_dtype}")
    parts.extend(
        f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}"
        for key, value in info.settings.items()
    )
    return "; ".join(parts)


def print_results(results: Sequence[Result], console: Console) -> None:
    """Print one table per data set, split and protocol, with its conditions and the systems'
    settings.
    """
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.dataset, result.split, result.protocol), []).append(result)
    for (dataset, split, protocol), members in groups.items():
        first = members[0]
        is_full_corpus = first.corpus_size == first.full_corpus_size
        reduced = "" if is_full_corpus else f" (of {first.full_corpus_size:,}: REDUCED CORPUS)"
        caption = (
            f"{plural(first.corpus_size, 'document')}{reduced},"
            f" {plural(first.queries, 'query', 'queries')}, depth {first.depth}, {first.source}"
        )
        table = _table(f"{dataset} {split} · protocol {protocol}", caption)
        table.add_column("system", overflow="fold")
        for metric in first.mean:
            table.add_column(metric, justify="right")
        table.add_column("fingerprint", justify="left")
        best = {metric: max(member.mean[metric] for member in members) for metric in first.mean}
        for member in members:
            values = [
                Text(
                    f"{value:.4f}",
                    style="bold" if len(members) > 1 and value == best[metric] else "",
                )
                for metric, value in member.mean.items()
            ]
            table.add_row(Text(member.system.name), *values, Text(member.system.fingerprint[:12]))
        _print_whole(table, console)
        for member in members:
            console.print(Text(f"  {member.system.name}: {setting_text(member)}", style="dim"))
        for notice in dict.fromkeys(notice for member in members for notice in member.notices):
            console.print(Text(f"  note: {notice}"))
        console.print()


def _table(title: str, caption: str) -> Table:
    return Table(
        title=Text(title), caption=Text(caption), title_justify="left", caption_justify="left"
    )


def _print_whole(table: Table, console: Console) -> None:
    """Print a table as wide as it is: a narrow terminal breaks its lines, and no cell is cut."""
    before, wide_options = console.width, console.options.update(width=10_000)
    console.width = max(before, Measurement.get(console, wide_options, table).maximum)
    console.print(table)
    console.width = before


def print_comparison(
    comparison: Comparison, metric: str, name_a: str, name_b: str, console: Console
) -> None:
    """Print means, difference with its interval, p-value, wins, ties and losses."""
    percent = f"{100 * comparison.confidence:g} %"
    table = Table(
        title=f"{metric} over {plural(comparison.queries, 'query', 'queries')}",
        title_justify="left",
        show_header=False,
    )
    table.add_row(f"A  {marked(name_a)}", f"{comparison.mean_a:.4f}")
    table.add_row(f"B  {marked(name_b)}", f"{comparison.mean_b:.4f}")
    table.add_row("A - B", f"{comparison.difference:+.4f}")
    table.add_row("p (paired randomization, two-sided)", f"{comparison.p_value:.4g}")
    table.add_row(
        f"{percent} interval (of that test)", f"{comparison.low:+.4f} to {comparison.high:+.4f}"
    )
    table.add_row(
        "A wins / ties / B wins", f"{comparison.wins} / {comparison.ties} / {comparison.losses}"
    )
    _print_whole(table, console)
    verdict = "differ" if comparison.significant else "show no significant difference"
    console.print(
        f"The systems {verdict} at the {percent} level ({comparison.resamples:,} resamples, seed"
        f" {comparison.seed})."
    )


def write_json(path: Path, results: Sequence[Result], extra: dict[str, Any] | None = None) -> None:
    """Write all results, per-query values included, in one JSON file; `path` is replaced in one
    step.
    """
    document = {
        "format": RESULT_FORMAT_VERSION,
        **(extra or {}),
        "results": [result.to_json() for result in results],
    }
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, so that a reader never sees half of it; make its folder if
    needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())
