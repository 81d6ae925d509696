"""Run systems on tasks; a result carries everything it depends on, and is cached by exactly that."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from aveyb_retrieval.errors import InputError, plural
from aveyb_retrieval.eval.base import DEFAULT_METRICS, SystemInfo, fingerprint_of, info_fingerprint, rank
from aveyb_retrieval.eval.metrics import Scores, evaluate, notices, parse_metric, retrieved_ndcg
from aveyb_retrieval.eval.tasks import PAPER
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aveyb_retrieval.eval.base import Run, System
    from aveyb_retrieval.eval.tasks import Task

RESULT_FORMAT = 3  # part of every cache key: raise it when the meaning of a stored value changes


@dataclass(frozen=True)
class Result:
    """One system on one task.

    `mean` and `per_query` are keyed by metric, then (per_query) by query id; `main_metric` is the one to show first.
    `seconds` is the wall time of the search, encoding the corpus included unless its vectors were cached.
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
        return {"format": RESULT_FORMAT, **asdict(self)}

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
class Settings:
    """Run depth, metrics, and whether hits with the query's own id are dropped: the same for every system.

    `ignore_identical_ids` exists for sets whose queries are documents of the corpus (ArguAna, Quora). It is off unless
    asked for: where numeric ids happen to coincide it would remove real hits.
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

    Runs are kept as JSON: a TREC file cannot carry ids with spaces, which matters only where one is asked for.
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
        self._folder.mkdir(parents=True, exist_ok=True)
        stored = {"result": result.to_json(), "run": run}
        write_atomic(self._folder / f"{key}.json", json.dumps(stored).encode())


def result_key(info: SystemInfo, task: Task, settings: Settings) -> str:
    """Return the cache key: model, data, protocol and settings, by fingerprint."""
    return fingerprint_of([RESULT_FORMAT, info_fingerprint(info), task.fingerprint, asdict(settings)])[:32]


def run_system(
    system: System,
    task: Task,
    settings: Settings | None = None,
    *,
    cache: ResultCache | None = None,
    only_missing: bool = False,
) -> tuple[Result, Run]:
    """Search, score and (with a cache) store; with `only_missing` a stored result is returned without any work."""
    settings = settings or Settings()
    key = result_key(system.info, task, settings)
    if cache is not None and only_missing and (known := cache.load(key)) is not None:
        stored, run = known
        return replace(stored, system=replace(stored.system, name=system.info.name)), run
    start = time.perf_counter()
    extra = int(settings.ignore_identical_ids)  # one more hit, so that dropping the query itself leaves `depth`
    run = system.search(task.queries, settings.depth + extra)
    seconds = time.perf_counter() - start
    remarks = [*task.notices, *system.notices]
    _check_documents(run, task, system.info.name)
    if settings.ignore_identical_ids:
        run, dropped = _without_identical(run, settings.depth)
        remarks.append(f"dropped {plural(dropped, 'hit')} with the query's own id (ignore_identical_ids)")
    result = score_run(system.info, task, run, settings, remarks, seconds)
    if cache is not None:
        cache.save(key, result, run)
    return result, run


def score_run(
    info: SystemInfo, task: Task, run: Run, settings: Settings, remarks: Sequence[str] = (), seconds: float = 0.0
) -> Result:
    """Score a run under the task's protocol."""
    scores = evaluate(task.judgements, run, settings.metrics)
    mean, per_query = scores.mean, dict(scores.per_query)
    if task.protocol is PAPER:
        per_query = {PAPER.main_metric: retrieved_ndcg(task.judgements, run), **per_query}
        mean = Scores(per_query, scores.missing, scores.unjudged).mean
    main = task.protocol.main_metric if task.protocol.main_metric in mean else next(iter(mean))
    found = list(remarks)
    deeper = [metric for metric in settings.metrics if (parse_metric(metric)[1] or 0) > settings.depth]
    if deeper:
        found.append(f"{', '.join(deeper)} computed on a run of depth {settings.depth} only")
    found.extend(notices(scores))
    return Result(
        system=info,
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
        per_query=per_query,
        task_fingerprint=task.fingerprint,
        notices=tuple(found),
        seconds=seconds,
    )


def _check_documents(run: Run, task: Task, name: str) -> None:
    if not any(run.values()):
        raise InputError(f"{name} returned nothing for any of the {len(task.queries)} queries of {task.dataset}")
    for query, documents in run.items():
        if strange := [doc for doc in documents if doc not in task.corpus]:
            raise InputError(
                f"{name} returned the document {strange[0]!r} for query {query!r}, which is not in the corpus of "
                f"{task.dataset}: was the index built from another corpus?"
            )


def _without_identical(run: Run, depth: int) -> tuple[Run, int]:
    dropped = sum(query in documents for query, documents in run.items())
    cut = {
        query: {doc: documents[doc] for doc in [d for d in rank(documents) if d != query][:depth]}
        for query, documents in run.items()
    }
    return cut, dropped
