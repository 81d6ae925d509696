"""Reports of results: a table for the terminal, and JSON for machines; every number beside what it depends on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape as marked
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from aveyb_retrieval.errors import plural
from aveyb_retrieval.eval.runner import RESULT_FORMAT
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from aveyb_retrieval.eval.metrics import Comparison
    from aveyb_retrieval.eval.passages import PassageScores
    from aveyb_retrieval.eval.runner import Result
    from aveyb_retrieval.eval.tasks import Task


def setting_text(result: Result) -> str:
    """Return the settings that decide this system's scores, in one line."""
    info = result.system
    parts = []
    if info.kind != "lexical":
        parts.append(f"max tokens {'unlimited' if info.max_tokens is None else info.max_tokens}")
    if any(info.prompts.values()):
        parts.append("prompts " + ", ".join(f"{key}={value!r}" for key, value in sorted(info.prompts.items())))
    elif info.kind != "lexical":
        parts.append("no prompts")
    if info.precision is not None:
        parts.append(f"computed in {info.precision}")
    if info.storage_dtype is not None:
        parts.append(f"stored as {info.storage_dtype}")
    parts.extend(
        f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in info.settings.items()
    )
    return "; ".join(parts)


def print_results(results: Sequence[Result], console: Console) -> None:
    """Print one table per data set, split and protocol, with its conditions and the systems' settings."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.dataset, result.split, result.protocol), []).append(result)
    for (dataset, split, protocol), members in groups.items():
        first = members[0]
        whole = first.corpus_size == first.full_corpus_size
        reduced = "" if whole else f" (of {first.full_corpus_size:,}: REDUCED CORPUS)"
        caption = (
            f"{plural(first.corpus_size, 'document')}{reduced}, {plural(first.queries, 'query', 'queries')}, "
            f"depth {first.depth}, {first.source}"
        )
        table = _table(f"{dataset} {split} · protocol {protocol}", caption)
        table.add_column("system", overflow="fold")
        for metric in first.mean:
            table.add_column(metric, justify="right")
        table.add_column("fingerprint", justify="left")
        best = {metric: max(member.mean[metric] for member in members) for metric in first.mean}
        for member in members:
            values = [
                Text(f"{value:.4f}", style="bold" if len(members) > 1 and value == best[metric] else "")
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
    return Table(title=Text(title), caption=Text(caption), title_justify="left", caption_justify="left")


def _print_whole(table: Table, console: Console) -> None:
    """Print a table as wide as it is: a narrow terminal breaks its lines, and no cell is cut."""
    before, whole = console.width, console.options.update(width=10_000)
    console.width = max(before, Measurement.get(console, whole, table).maximum)
    console.print(table)
    console.width = before


def print_comparison(comparison: Comparison, metric: str, name_a: str, name_b: str, console: Console) -> None:
    """Print means, difference with its interval, p-value, wins, ties and losses."""
    percent = f"{100 * comparison.confidence:g} %"
    table = Table(
        title=f"{metric} over {plural(comparison.queries, 'query', 'queries')}", title_justify="left", show_header=False
    )
    table.add_row(f"A  {marked(name_a)}", f"{comparison.mean_a:.4f}")
    table.add_row(f"B  {marked(name_b)}", f"{comparison.mean_b:.4f}")
    table.add_row("A - B", f"{comparison.difference:+.4f}")
    table.add_row("p (paired randomization, two-sided)", f"{comparison.p_value:.4g}")
    table.add_row(f"{percent} interval (of that test)", f"{comparison.low:+.4f} to {comparison.high:+.4f}")
    table.add_row("A wins / ties / B wins", f"{comparison.wins} / {comparison.ties} / {comparison.losses}")
    _print_whole(table, console)
    verdict = "differ" if comparison.significant else "show no significant difference"
    console.print(
        f"The systems {verdict} at the {percent} level ({comparison.resamples:,} resamples, seed {comparison.seed})."
    )


def print_passages(scores: Sequence[PassageScores], task: Task, console: Console) -> None:
    """Print precision, recall and IoU of characters at each k: one row per measure, one column per system."""
    title = f"{task.dataset} {task.split} · passages against true spans · scope {scores[0].scope}"
    counts = f"{plural(len(task.corpus), 'document')}, {plural(scores[0].queries, 'query', 'queries')} with spans"
    table = _table(title, f"{counts}; characters, mean over queries")
    table.add_column("", no_wrap=True)
    for item in scores:
        table.add_column(Text(item.name), justify="right")
    table.add_row("mean length", *(f"{item.mean_passage_characters:,.0f}" for item in scores))
    for measure in scores[0].mean:
        table.add_row(measure, *(f"{item.mean[measure]:.4f}" for item in scores))
    _print_whole(table, console)


def write_json(path: Path, results: Sequence[Result], extra: dict[str, Any] | None = None) -> None:
    """Write all results, per-query values included, in one JSON file; `path` is replaced in one step."""
    document = {"format": RESULT_FORMAT, **(extra or {}), "results": [result.to_json() for result in results]}
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, so that a reader never sees half of it; make its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())
