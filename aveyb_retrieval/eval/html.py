"""One self-contained HTML page per evaluation: scores, query by query and by document length.

No external resources: the page can be mailed, archived, and opened without a network. The tables are plain HTML and
read without JavaScript; the two plots are drawn as SVG by `report.js`.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.eval.report import group, setting_text, write_text
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aveyb_retrieval.eval.runner import Result


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
    body = f"""{tables}
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
</section>"""
    return _page(
        title, body, f'<script type="application/json" id="data">{payload}</script>\n<script>\n{script}</script>'
    )


def _page(title: str, body: str, scripts: str = "") -> str:
    """Return a whole page."""
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
{body}
</main>
{scripts}
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
