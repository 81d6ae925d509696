"""The page: nothing external, no text can break out of it, and a real browser draws it without a console message."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.eval.base import SystemInfo
from aveyb_retrieval.eval.report import render, write_html, write_json
from aveyb_retrieval.eval.runner import Result
from tests.eval.toys import read_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def made_up_results(hostile: str = "") -> list[Result]:
    """Three systems on one set and one under the paper protocol, with plausible numbers from a fixed seed."""
    rng = np.random.default_rng(0)
    queries = [f"q{i}{hostile}" for i in range(150)]
    words = {q: float(x) for q, x in zip(queries, rng.lognormal(6.5, 1.1, len(queries)).round(), strict=True)}
    results = []
    for name, kind, skill in (
        ("BM25", "lexical", 0.55),
        ("MiniLM cut at 256", "dense", 0.5),
        ("Avey-B" + hostile, "dense", 0.7),
    ):
        decay = 0.06 if kind == "dense" and "256" in name else 0.01
        values = {
            q: float(np.clip(round((skill - decay * np.log(words[q]) + rng.normal(0, 0.35)) * 8) / 8, 0, 1))
            for q in queries
        }
        for protocol in ("standard", "paper") if "Avey" in name else ("standard",):
            metric = "ndcg@10" if protocol == "standard" else "retrieved-ndcg@10"
            per_query = {metric: values, "mrr@10": {q: v / 2 for q, v in values.items()}}
            info = SystemInfo(
                name, kind, name, "ab" * 32, 256 if "256" in name else None, {"query": "", "document": ""}, "float32"
            )
            results.append(
                Result(
                    system=info, dataset="toy" + hostile, source="made/up@1", split="test", protocol=protocol,
                    main_metric=metric, corpus_size=40 if protocol == "paper" else 5000, full_corpus_size=5000,
                    queries=150, missing=2, unjudged=0, depth=100,
                    mean={m: float(np.mean(list(v.values()))) for m, v in per_query.items()}, per_query=per_query,
                    relevant_words=words, task_fingerprint="f" * 64,
                    notices=("2 judged queries got no hit and count as 0.",), seconds=1.5,
                )
            )  # fmt: skip
    return results


class Page(HTMLParser):
    """Collects what the page refers to and the text of its table cells."""

    def __init__(self):
        super().__init__()
        self.references, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "action", "data")]


def test_page_is_self_contained():
    page = Page()
    text = render(made_up_results())
    page.feed(text)
    assert page.references == ["data:,"]
    assert "url(" not in text and "@import" not in text
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert page.tags.count("table") == 2
    assert {"caption", "noscript", "figcaption", "label"} <= set(page.tags)


def test_every_number_stands_beside_its_conditions():
    text = render(made_up_results())
    for fact in (
        "5,000 documents", "150 queries", "reduced from 5,000", "max tokens 256", "max tokens unlimited", "float32",
        "fingerprint abababababab", "paper protocol", "count as 0",
    ):  # fmt: skip
        assert fact in text
    for result in made_up_results():
        assert f"{result.score:.4f}" in text


def test_hostile_names_stay_text():
    hostile = "</script><script>alert(1)</script><b>&\u2028"
    text = render(made_up_results(hostile))
    assert "<script>alert(1)" not in text
    assert "<b>&" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    groups = json.loads(data)
    assert groups[0]["queries"][0] == "q0" + hostile
    assert [s["name"] for s in groups[0]["systems"]] == ["BM25", "MiniLM cut at 256", "Avey-B" + hostile]


def _browser(page, *arguments):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
               "--virtual-time-budget=3000", "--window-size=1200,1500", *arguments, page.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian package `chromium`)")
@pytest.mark.parametrize("hostile", ["", "</script><b>&"], ids=["plain", "hostile"])
def test_page_in_a_real_browser(tmp_path, hostile):
    page = tmp_path / "page.html"
    write_html(page, made_up_results(hostile))
    done = _browser(page, "--dump-dom")
    assert "CONSOLE" not in done.stderr, done.stderr
    dom = done.stdout
    assert dom.count("<svg") == 2
    assert dom.count("<circle") > 20
    assert dom.count("<polyline") == 3
    caption = re.search(r'id="scatter-text">(.*?)<', dom)[1]
    numbers = [int(n) for n in re.findall(r"\((\d+) queries\)|\((\d+)\)|(\d+) ties", caption) for n in n if n]
    assert sum(numbers) == 150
    done = _browser(page, f"--screenshot={tmp_path / 'page.png'}")
    assert "CONSOLE" not in done.stderr, done.stderr
    assert (tmp_path / "page.png").stat().st_size > 20_000


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian package `chromium`)")
def test_the_console_would_show_an_error(tmp_path):
    """The check above can fail: a broken script is seen."""
    page = tmp_path / "page.html"
    write_html(page, made_up_results())
    page.write_text(page.read_text().replace("function draw() {", "function draw() { undefined.broken;"))
    assert "CONSOLE" in _browser(page, "--dump-dom").stderr


def test_a_report_holds_every_value(tmp_path):
    write_json(tmp_path / "report.json", made_up_results())
    assert read_report(tmp_path / "report.json") == made_up_results()


DAMAGE = {
    "notices are a number": lambda row: row.update(notices=5),
    "a field is missing": lambda row: row.pop("queries"),
    "a field of another type": lambda row: row.update(corpus_size="many"),
    "an unknown field": lambda row: row.update(other=1),
    "a notice is no text": lambda row: row.update(notices=[{}]),
    "a mean is null": lambda row: row["mean"].update({"mrr@10": None}),
    "a metric without queries": lambda row: row["mean"].update({"map": 0.5}),
    "a system of text": lambda row: row.update(system="BM25"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_result_is_an_error_that_names_its_place(what):
    row = made_up_results()[0].to_json()
    DAMAGE[what](row)
    with pytest.raises(InputError, match=r"^there: "):
        Result.from_json(row, "there")
