"""Reports of results: a table for the terminal, JSON for machines, and one self-contained HTML page.

Every number stands beside what it depends on. The page has no external resources: it can be mailed, archived, and
opened without a network. Its tables are plain HTML and read without JavaScript; the two plots are drawn as SVG by
`report.js`.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rich.markup import escape as marked
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from aveyb_retrieval.eval.runner import RESULT_FORMAT
from aveyb_retrieval.files import write_atomic
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from aveyb_retrieval.eval.metrics import Comparison
    from aveyb_retrieval.eval.passages import PassageScores
    from aveyb_retrieval.eval.runner import Latency, Result
    from aveyb_retrieval.eval.tasks import Task


def group(results: Sequence[Result]) -> dict[tuple[str, str, str], list[Result]]:
    """Group results that may be compared with each other: same data set, split and protocol."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.dataset, result.split, result.protocol), []).append(result)
    return groups


def setting_text(result: Result) -> str:
    """Return the settings that decide this system's scores, in one line."""
    info = result.system
    parts = (
        [f"max tokens {'unlimited' if info.max_tokens is None else info.max_tokens}"] if info.kind != "lexical" else []
    )
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
    for (dataset, split, protocol), members in group(results).items():
        first = members[0]
        reduced = (
            "" if first.corpus_size == first.full_corpus_size else f" (of {first.full_corpus_size:,}: REDUCED CORPUS)"
        )
        caption = (
            f"{plural(first.corpus_size, 'document')}{reduced}, {plural(first.queries, 'query', 'queries')}, "
            f"depth {first.depth}, {first.source}"
        )
        table = Table(
            title=Text(f"{dataset} {split} · protocol {protocol}"),
            caption=Text(caption),
            title_justify="left",
            caption_justify="left",
        )
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
    caption = f"{counts}; characters, mean over queries"
    table = Table(title=Text(title), caption=Text(caption), title_justify="left", caption_justify="left")
    table.add_column("", no_wrap=True)
    for item in scores:
        table.add_column(Text(item.name), justify="right")
    table.add_row("mean length", *(f"{item.mean_passage_characters:,.0f}" for item in scores))
    for measure in scores[0].mean:
        table.add_row(measure, *(f"{item.mean[measure]:.4f}" for item in scores))
    _print_whole(table, console)


def print_latency(rows: Sequence[Latency], caption: str, console: Console) -> None:
    """Print milliseconds per call by batch size."""
    table = Table(caption=Text(caption), caption_justify="left")
    for column in ("batch", "calls", "mean ms", "p50", "p95", "p99", "max", "queries/s"):
        table.add_column(column, justify="right")
    for row in rows:
        times = [f"{value:.2f}" for value in (row.mean_ms, row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms)]
        table.add_row(str(row.batch), str(row.calls), *times, f"{row.queries_per_second:,.1f}")
    _print_whole(table, console)


def write_json(path: Path, results: Sequence[Result], extra: dict[str, Any] | None = None) -> None:
    """Write all results, per-query values included, in one JSON file; `path` is replaced in one step."""
    document = {"format": RESULT_FORMAT, **(extra or {}), "results": [result.to_json() for result in results]}
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, so that a reader never sees half of it; make its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())


def write_html(path: Path, results: Sequence[Result], title: str = "Retrieval evaluation") -> None:
    """Write the page for all results; `path` is replaced in one step."""
    write_text(path, render(results, title))


def render(results: Sequence[Result], title: str = "Retrieval evaluation") -> str:
    """Return the page as one string."""
    script = files("aveyb_retrieval.eval").joinpath("report.js").read_text(encoding="utf-8")
    groups = group(results)
    tables = "\n".join(_table(key, members) for key, members in groups.items())
    data = [_plot_data(key, members) for key, members in groups.items()]
    # "<" never appears inside the script element, so no text of a data set can close it
    payload = (
        json.dumps(data, ensure_ascii=False)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
    style = files("aveyb_retrieval.eval").joinpath("report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(title)}</h1></header>
<main>
{tables}
<section aria-labelledby="plots">
<h2 id="plots">Query by query</h2>
<p class="controls">
<label>Data set <select id="group"></select></label>
<label>Horizontal <select id="first"></select></label>
<label>Vertical <select id="second"></select></label>
</p>
<div class="plots">
<figure><div id="scatter"></div><figcaption id="scatter-text"></figcaption></figure>
<figure><div id="lengths"></div><figcaption id="lengths-text"></figcaption></figure>
</div>
<noscript><p>The plots need JavaScript; the tables above hold the means.</p></noscript>
</section>
</main>
<script type="application/json" id="data">{payload}</script>
<script>
{script}</script>
</body>
</html>
"""


def _table(key: tuple[str, str, str], members: Sequence[Result]) -> str:
    dataset, split, protocol = (escape(part) for part in key)
    first = members[0]
    best = {metric: max(member.mean[metric] for member in members) for metric in first.mean}
    head = "".join(f'<th scope="col" class="number">{escape(metric)}</th>' for metric in first.mean)
    rows = []
    for member in members:
        cells = "".join(
            f'<td class="number{" best" if len(members) > 1 and value == best[metric] else ""}">{value:.4f}</td>'
            for metric, value in member.mean.items()
        )
        details = f"{escape(setting_text(member))}; fingerprint {escape(member.system.fingerprint[:12])}"
        rows.append(f'<tr><th scope="row">{escape(member.system.name)}<small>{details}</small></th>{cells}</tr>')
    reduced = (
        f' <strong class="warn">reduced from {first.full_corpus_size:,}</strong>'
        if first.corpus_size != first.full_corpus_size
        else ""
    )
    notices = "".join(f"<li>{escape(n)}</li>" for n in dict.fromkeys(n for member in members for n in member.notices))
    return f"""<section>
<h2>{dataset} <span class="badge">{split}</span> <span class="badge {protocol}">{protocol} protocol</span></h2>
<p class="facts">{plural(first.corpus_size, "document")}{reduced} · {plural(first.queries, "query", "queries")} ·
depth {first.depth} ·
{escape(first.source)}</p>
<div class="scroll" tabindex="0" role="region" aria-label="Scores on {dataset} {split}, {protocol} protocol">
<table><caption class="hidden">Mean scores on {dataset} {split}</caption>
<thead><tr><th scope="col">System</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>
</div>
{f'<ul class="notices">{notices}</ul>' if notices else ""}
</section>"""


def _plot_data(key: tuple[str, str, str], members: Sequence[Result]) -> dict[str, Any]:
    """Per-query values of the main metric, in one order of queries for all systems."""
    first = members[0]
    queries = list(first.per_query[first.main_metric])
    return {
        "name": " · ".join(key),
        "metric": first.main_metric,
        "queries": queries,
        "words": [first.relevant_words.get(query) for query in queries],
        "systems": [
            {
                "name": member.system.name,
                "values": [round(member.per_query[first.main_metric].get(q, 0.0), 6) for q in queries],
            }
            for member in members
        ],
    }
