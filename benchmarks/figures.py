"""Rows of figures that a result file does not have as a page shows them.

Each function takes the document of a file in benchmarks/results/ and returns rows for a table of
`readme.py`, or values for a paragraph: means over sets, cells of several systems, names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

Row = Mapping[str, Any]
Rows = Callable[[Any], Iterable[Row]]


def pivot(rows: Iterable[Row], down: str, across: str) -> list[dict[str, Any]]:
    """Gather rows that differ in `across` into one: {down: value, value of across: row, ...}."""
    gathered: dict[Any, dict[str, Any]] = {}
    for row in rows:
        gathered.setdefault(row[down], {down: row[down]})[row[across]] = row
    return list(gathered.values())


SHORT = ("scifact", "cranfield", "nq-gold", "medquad")
LONG = ("qmsum-long", "openstax-ccby-long")
UNSEEN = ("cranfield", "nq-gold")  # nothing of these trained the embedded model
SEEN = ("scifact", "medquad", "qmsum-long", "openstax-ccby-long")  # their training splits did
GROUPS = {"unseen": UNSEEN, "seen": SEEN, "all": (*UNSEEN, *SEEN), "short": SHORT}
MODEL = "aveyb-base-en-v2"
SYSTEMS = {  # of quality.json
    "default": f"index of {MODEL}",
    "vectors": f"index of {MODEL}, vectors",
    "maxsim": f"index of {MODEL}, reranked by MaxSim",
    "bm25": "BM25",
    "minilm": "MiniLM, cut at 256",
    "chunks": "MiniLM, 180-word chunks",
    "rrf": "RRF of BM25 and MiniLM",
    "fused": "hybrid of BM25 and MiniLM, 180-word chunks",
    "index_minilm": "index of MiniLM, passages of 128 tokens, one by one",
}
OF_SHORT_TEXTS = {"fused": "rrf", "chunks": "minilm"}  # a short text is one chunk


def ndcg(document: Any) -> dict[tuple[str, str], float]:
    """Return (set, system) -> NDCG@10 of quality.json, by the short names of systems."""
    names = {name: short for short, name in SYSTEMS.items()}
    return {
        (row["dataset"], names[row["system"]["name"]]): row["mean"]["ndcg@10"]
        for row in document["results"]
        if row["system"]["name"] in names
    }


def quality(systems: Mapping[str, str]) -> Rows:
    """Return a row for each system: its label, its NDCG@10 of each set and group, "-" if it was not
    measured.
    """

    def rows(document: Any) -> list[Row]:
        return [{"label": label, **quality_of(document, key)} for key, label in systems.items()]

    return rows


def quality_of(document: Any, system: str) -> dict[str, str]:
    """Return the NDCG@10 of a system: of each set, and the mean of each group."""
    scores = ndcg(document)
    groups = {**{name: (name,) for name in GROUPS["all"]}, **GROUPS}
    row = {}
    for group, sets in groups.items():
        keys = [
            (name, OF_SHORT_TEXTS.get(system, system) if name in SHORT else system) for name in sets
        ]
        measured = all(key in scores for key in keys)
        row[group] = f"{fmean(scores[key] for key in keys):.3f}" if measured else "-"
    return row


def quality_by_set(document: Any) -> list[Row]:
    """Return a row for each set: its sizes, and the NDCG@10 of each system."""
    scores = ndcg(document)
    sizes = {row["dataset"]: row for row in document["results"]}
    return [
        {**sizes[name], **{system: score for (of, system), score in scores.items() if of == name}}
        for name in (*SHORT, *LONG)
    ]


def quality_sums(document: Any) -> Row:
    """Return what is said of all sets: on how many the default search leads, and ratios."""
    scores = ndcg(document)
    own = quality_of(document, "default")
    leads = {}
    for peer in ("bm25", "fused", "index_minilm"):
        other = quality_of(document, peer)
        measured = [name for name in GROUPS["all"] if other[name] != "-"]
        ahead = sum(float(own[name]) > float(other[name]) for name in measured)
        leads[peer] = f"{ahead} of {len(measured)}"
    vectors, minilm = (
        fmean(scores[name, system] for name in SHORT) for system in ("vectors", "minilm")
    )
    chunks = [scores[name, "chunks"] for name in LONG]
    return {**leads, "ratio": vectors / minilm, "chunks": chunks}


def precisions(document: Any) -> list[Row]:
    """Return a row for each set with both precisions, and a row of means."""
    rows = pivot(document["rows"], "set", "precision")
    kinds = ("float32", "bfloat16")
    means = {kind: {"ndcg@10": fmean(row[kind]["ndcg@10"] for row in rows)} for kind in kinds}
    for row in rows:
        row["shared"] = f" ({row['bfloat16']['same_top_10']:.3f})"
    return [*rows, {"set": "mean", **means, "shared": ""}]


def encodings(document: Any) -> list[Row]:
    """Return a row for each shape of a batch with the tokens a second of each encoder."""
    rows = [
        {**row, "shape": f"{row['batch']} x {row['tokens']:,}"}
        for row in document["encode"] + document["eager"] + document["peers"]
        if row.get("ids") == "zipf" or row["name"] == "floor"
    ]
    shapes = [row for row in pivot(rows, "shape", "name") if "floor" in row]
    for row in shapes:
        floor = row["floor"]
        row["floor_rate"] = round(1000 * floor["batch"] * floor["tokens"] / floor["ms"], -3)
    return shapes


def gpu_searches(document: Any) -> list[Row]:
    """Return the searches that were measured and that obeyed their filter."""
    return [row for row in document["search"] if "ms_1" in row and row.get("obeyed", True)]


def dynamic_mixes(document: Any) -> list[Row]:
    """Return a row for each number of splits: milliseconds of each form of dynamic mixing."""
    rows = pivot(document["dynamic_mix"], "splits", "name")
    return [row for row in rows if row["splits"] in (512, 64, 16)]


def mix_ratios(document: Any) -> Row:
    """Return the ranges of dynamic mixing's time, against its floor and torch.compile's."""

    def ratios(splits: int, of: str) -> str:
        found = [
            row[of] / row["kernel_ms"]
            for row in document["operations"]
            if row.get("splits") == splits and "compiled_ms" in row
            if row["name"].startswith("dynamic_mix")
        ]
        if min(found) <= 1:  # the kernel is the slower one
            found = [1 / ratio for ratio in found]
        return f"{min(found):.2f} to {max(found):.2f}"

    return {
        "floor": ratios(512, "floor_ms"),
        "compiled": ratios(512, "compiled_ms"),
        "compiled_64": ratios(64, "compiled_ms"),
    }


def gpu_counts(document: Any) -> list[Row]:
    """Return launches and bytes of 8 texts of 2,048 tokens, before and after kernels were fused."""
    presets = {row["preset"]: row for row in document["rows"] if row["tokens"] == 2048}
    lines = {
        "operations for each layer": ("launches_per_layer_{}", "{released:g}"),
        "bytes per token and layer, `released` / `paper`": (
            "bytes_per_token_and_layer_{}",
            "{released:,} / {paper:,}",
        ),
        "the same in training": (
            "training_bytes_per_token_and_layer_{}",
            "{released:,} / {paper:,}",
        ),
        "launches of the ranker, 8 documents of 384 splits": (
            "ranker_launches_{}",
            "{released}",
        ),
    }
    rows: list[Row] = []
    for label, (field, form) in lines.items():
        row = {"label": label}
        for when in ("before", "now"):
            values = {preset: counts[field.format(when)] for preset, counts in presets.items()}
            row[when] = form.format_map(values)
        if field == "bytes_per_token_and_layer_{}":
            row["floor"] = f"{presets['released']['bytes_floor']:,}"
        rows.append(row)
    return rows


def passages(dataset: str) -> Rows:
    """Return a row for each system that is shown, with both scopes of one set."""
    shown = (
        "BM25, 200 words",
        "0.4 MiniLM + 0.6 BM25, 110 words",
        "ours, words and vectors, 256 tokens (default)",
        "ours, vectors, 256 tokens",
        "ours, words, 256 tokens",
        "ours, default, reranked by int8 token vectors",
        "MiniLM in our index, words and vectors, one by one, 128 tokens",
    )

    def rows(document: Any) -> list[Row]:
        of_set = [row for row in document["rows"] if row["set"] == dataset]
        by_system = {row["system"]: row for row in pivot(of_set, "system", "scope")}
        return [by_system[system] for system in shown]

    return rows


EXTRAS = {
    "torch": "other models, precisions and devices than int8 on a CPU; cross-encoders",
    "files": "files of PDF, office programs, HTML, EPUB and mail",
    "ocr": "scanned pages and pictures of text (and the program tesseract)",
    "code": "source code, cut at functions and classes",
    "server": "`aveyb-serve`",
    "telemetry": "spans of `aveyb-serve` for OpenTelemetry",
    "mcp": "`aveyb-mcp`",
    "langchain": "the adapters for LangChain (its core)",
    "llama-index": "the adapters for LlamaIndex (its core)",
    "haystack": "the adapters for Haystack",
    "pgvector": "PostgreSQL with pgvector as an engine",
    "ray": "`aveyb-index build --ray`",
    "eval": "metrics of `aveyb-eval`",
    "bm25": "BM25 by bm25s as a system of `aveyb-eval`",
    "hub": "data sets of the Hugging Face hub",
    "minilm": "the model all-MiniLM-L6-v2",
    "train": "`aveyb-train`",
}


def extras(document: Any) -> list[Row]:
    """Return a row for each extra with its purpose and its largest packages."""
    by_name = {row["extra"]: row for row in document["extras"]}
    rows = []
    for name, purpose in EXTRAS.items():
        sizes = by_name[name]["largest"].items()
        largest = ", ".join(f"{package} {megabytes:,.1f}" for package, megabytes in sizes)
        rows.append({**by_name[name], "purpose": purpose, "largest": largest})
    return rows


def int8_quality(document: Any) -> list[Row]:
    """Return a row for each set with the smallest cosine of all kinds of vectors."""
    return [
        {
            "set": name,
            **row,
            "smallest": min(kind["smallest"] for kind in row["cosine"].values()),
        }
        for name, row in document["sets"].items()
    ]


def starts(document: Any) -> list[Row]:
    """Return the environments with a name for each."""
    names = {"light": "without torch", "full": "with the extra `torch`"}
    return [{**row, "name": names[row["environment"]]} for row in document["rows"]]


def files(document: Any) -> list[Row]:
    """Return a row for each kind of file, and one of all: cells are ours / each peer's."""
    readers = ["ours", *document["peers"]]
    measures = ("read", "right", "words lost", "seconds")
    kinds = sorted(document["readers"].items())
    total = {
        "files": 0,
        "truth": 0,
        "readers": {name: dict.fromkeys(measures, 0) for name in readers},
    }
    for _, row in kinds:
        total["files"] += row["files"]
        total["truth"] += row["truth"]
        for name in readers:
            for measure in measures:
                total["readers"][name][measure] += row["readers"][name][measure]

    def cells(kind: str, row: Any, seconds: str) -> Row:
        values = [row["readers"][name] for name in readers]
        columns = {
            "read": [f"{value['read']}" for value in values],
            "right": [f"{value['right'] / row['truth']:.3f}" for value in values if row["truth"]],
            "lost": [f"{value['words lost']:,}" for value in values if row["truth"]],
            "seconds": [seconds.format(value["seconds"], row["files"]) for value in values],
        }
        joined = {name: " / ".join(texts) for name, texts in columns.items()}
        return {"kind": kind, "files": row["files"], **joined}

    each = [cells(kind, {**row, "readers": _per_file(row)}, "{0:.2f}") for kind, row in kinds]
    return [*each, cells("all", total, "{0:.0f} in all")]


def file_values(document: Any) -> Row:
    """Return the facts of all files, with their number."""
    return {**document, "total": sum(row["files"] for row in document["readers"].values())}


def _per_file(row: Any) -> Any:
    """Divide the seconds of each reader by the number of files."""
    return {
        name: {**values, "seconds": values["seconds"] / row["files"]}
        for name, values in row["readers"].items()
    }


def server_phases(document: Any) -> list[Row]:
    """Return the phases of a server under load: one client, many, one again."""
    return [document[name] for name in ("one_client", "many_clients", "one_client_again")]


def attacks(document: Any) -> list[Row]:
    """Return a polite client's phases: alone, beside each attack, and alone again."""
    quiet = document["quiet"]
    rows = []
    for row in (
        {**quiet, "attack": "nobody"},
        *document["attacks"],
        {**document["quiet_again"], "attack": "nobody, again"},
    ):
        got = sorted(row.get("attacker_got", {}).items())
        rows.append(
            {
                **row,
                "ratio": row["milliseconds"]["p99"] / quiet["milliseconds"]["p99"],
                "memory": max(row["resident_mib"]),
                "got": ", ".join(f"{what}: {count:,}" for what, count in got),
            }
        )
    return rows


def fuzzed(document: Any) -> Row:
    """Return the counts of generated requests."""
    statuses = ", ".join(f"{status}: {count:,}" for status, count in document["statuses"].items())
    findings = len(document["findings"])
    return {**document, "statuses": statuses, "findings": findings}


def engines(document: Any) -> list[Row]:
    """Return the engines, each with its name."""
    return [
        {"name": name, **row}
        for name, row in document.items()
        if name not in ("machine", "passages")
    ]


def needles(document: Any) -> list[Row]:
    """Return a row for each length: shares of needles found by each system, over all depths."""
    rows: dict[int, dict[str, Any]] = {}
    for length, system in dict.fromkeys(
        (row["length"], row["system"]) for row in document["cells"]
    ):
        cells = [
            row for row in document["cells"] if (row["length"], row["system"]) == (length, system)
        ]
        measures = [
            name for name in ("document_first", "passage_first") if cells[0][name] is not None
        ]
        shares = [f"{fmean(row[name] for row in cells):.2f}" for name in measures]
        rows.setdefault(length, {"length": length})[system] = ", ".join(shares)
    return list(rows.values())


def needle_values(document: Any) -> Row:
    """Return the settings of the needles, with the number of depths."""
    return {**document, "depths": len({row["depth"] for row in document["cells"]})}


def ablations(document: Any) -> list[Row]:
    """Return the rows of the small study, by the names of their columns."""
    names = ("choice", "ndcg", "difference", "table", "points", "same_sign")
    return [dict(zip(names, row, strict=True)) for row in document["table"]]


def ablation_values(document: Any) -> Row:
    """Return the settings of the small study, with the range of its default."""
    scores = [row["ndcg@10"] for row in document["rows"] if row["variant"] == "default"]
    return {**document, "range": max(scores) - min(scores)}


def quotations(document: Any) -> list[Row]:
    """Return a row for each corpus: verdicts on true and on changed quotations."""
    names = {
        "cuad-long": "contracts (cuad-long)",
        "qmsum-long": "meetings (qmsum-long)",
        "openstax-ccby-long": "textbooks (openstax-ccby-long)",
    }
    rows = []
    for row in document["rows"]:
        verdicts = row["verdicts"]
        changed = [
            str(verdicts[change]["altered"]) for change in ("number", "negation", "order", "word")
        ]
        false_alarms = sum(verdicts["true"].values()) - verdicts["true"]["found"]
        misses = sum(counts["found"] for kind, counts in verdicts.items() if kind != "true")
        rows.append(
            {
                **row,
                "name": names[row["corpus"]],
                "changed": ", ".join(changed),
                "false_alarms": str(false_alarms),
                "misses": str(misses),
            }
        )
    return rows


def named_questions(form: str, suffix: str = "") -> Rows:
    """Return a row for each system, for questions that name their document or do not."""
    names = {
        "ours, passages of 256 tokens": "ours, 256 tokens (the default)",
        "ours, passages of 128 tokens": "ours, 128 tokens",
        "BM25 (bm25s), 500 characters": "BM25 (bm25s), 500 characters",
        "all-MiniLM-L6-v2, 500 characters": "all-MiniLM-L6-v2, 500 characters",
        "both fused (RRF), 500 characters": "both fused by ranks, 500 characters",
    }

    def rows(document: Any) -> list[Row]:
        by_system = {row["system"]: row for row in document["rows"] if row["form"] == form}
        return [{**by_system[name], "name": label + suffix} for name, label in names.items()]

    return rows


def all_questions(document: Any) -> list[Row]:
    """Return the rows of both forms of questions."""
    stripped = named_questions("stripped", ", stripped")
    return [*named_questions("named")(document), *stripped(document)]


def filings(document: Any) -> list[Row]:
    """Return the shares of FinanceBench's questions with their page or filing found."""
    pages = [
        {
            "measure": f"the page in the first {k}",
            "all": document[f"page in the first {k}, all"],
            "right": document[f"page in the first {k}, right filing"],
        }
        for k in (1, 3, 10)
    ]
    cited = {
        "measure": "the page cited",
        "all": document["cited page, all"],
        "right": document["cited page, right filing"],
    }
    firsts = [
        {
            "measure": f"the right filing first, by {unit}",
            "all": document[f"filing first, by {unit}"],
        }
        for unit in ("passages", "documents")
    ]
    return [*pages, cited, *firsts]


def citations(document: Any) -> list[Row]:
    """Return a row for each set with true headings."""
    names = {
        "contracts": "contracts: a clause's numbered caption, or a number below it",
        "books": "textbooks as Markdown",
        "plain": "the same, headings as plain lines",
        "pdf": "the same as PDF; the page is right in all",
        "terms": "textbooks of other publishers, key terms",
    }
    by_set = {row["set"]: row for row in document["rows"]}
    return [{**by_set[name], "name": label} for name, label in names.items()]


def agents(document: Any) -> list[Row]:
    """Return a row for each set of tools."""
    names = {"both": "search once, then grep in the documents found"}
    questions = document["questions"]
    return [
        {**row, "name": names.get(row["tools"], row["tools"]), "questions": questions}
        for row in document["rows"]
    ]


def passage_settings(names: Mapping[str, str]) -> Rows:
    """Return a row for each system of passages.json that is named: its label, its row by set and
    scope.
    """

    def rows(document: Any) -> list[Row]:
        found: dict[str, dict[str, Any]] = {
            system: {"label": label} for system, label in names.items()
        }
        for row in document["rows"]:
            if row["system"] in found:
                found[row["system"]][f"{row['set']} {row['scope']}"] = row
        return list(found.values())

    return rows


def index_sizes(document: Any) -> list[Row]:
    """Return our own row of each size of growth.json, in documents of eight passages."""
    rows = []
    for passages_of_all in (10_000, 100_000, 1_000_000):
        row = document["columns"][f"{passages_of_all}x8"]["ours"]
        mapped = (row["reader MB, with mapped files"] - row["reader MB"]) / 1000
        seconds = row["build s"]
        build = f"{seconds:.{0 if seconds >= 9.95 else 1}f} s"
        disk = gigabytes(row["MB"])
        rows.append(
            {**row, "passages": passages_of_all, "mapped": mapped, "disk": disk, "build": build}
        )
    return rows


def gigabytes(megabytes: float) -> str:
    """Write megabytes, from a thousand on as gigabytes."""
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"


def two_digits(row: Row) -> str:
    """Write p50 / p99 with two digits, or more if they are larger."""
    return " / ".join(f"{row[name]:.{0 if row[name] >= 9.95 else 1}f}" for name in ("p50", "p99"))


SEARCHES = {  # of growth.json, and the peer of each; searches with operators have none
    "hybrid search": ("hybrid", "LanceDB"),
    "words, passages": ("words", "Lance"),
    "vectors, passages": ("vectors", "FAISS"),
    "hybrid with a phrase": ("hybrid with a phrase", None),
    "hybrid with `+word`": ("hybrid with a must", None),
    "hybrid with `begin*`": ("hybrid with a prefix", None),
    "hybrid with `typo~`": ("hybrid with a typo", None),
}


def growth(document: Any) -> list[Row]:
    """Return a row for each kind of search of a million passages, in both shapes, and of builds."""
    short, long = document["columns"]["1000000x8"], document["columns"]["1000000x1000"]
    rows: list[Row] = []
    for label, (key, peer) in SEARCHES.items():
        if peer is None:  # a search with operators: these have a table of their own
            continue
        row = {"label": label, "peers": f"{peer} {two_digits(short[peer][key])}"}
        row |= {"short": two_digits(short["ours"][key]), "long": two_digits(long["ours"][key])}
        rows.append(row)
    seconds = {name: values["build s"] for name, values in short.items()}
    peers = ", ".join(
        f"{name} {seconds[name]:.{0 if seconds[name] >= 10 else 1}f} s"
        for name in ("Lance", "FAISS", "LanceDB")
    )
    build = {
        name: f"{of['ours']['build s']:.0f} s" for name, of in (("short", short), ("long", long))
    }
    return [*rows, {"label": "build", **build, "peers": peers}]


def operators(document: Any) -> list[Row]:
    """Return one row: a hybrid search of a million passages with each operator."""
    row = document["columns"]["1000000x8"]["ours"]
    return [{label: two_digits(row[key]) for label, (key, _) in SEARCHES.items()}]


def languages(document: Any) -> list[Row]:
    """Return a row for each search of xquad.json, with its NDCG@10 by language."""
    searches = {
        "words alone": ("default", "words"),
        "embedded, default": ("default", "default"),
        "embedded, vectors alone": ("default", "vectors"),
        "`languages`, default": ("languages", "default"),
        "`languages`, vectors alone": ("languages", "vectors"),
        "`languages`, vectors alone, English questions": ("languages", "english vectors"),
        "`languages`, default, English questions": ("languages", "english default"),
    }
    return [
        {"label": label}
        | {row["language"]: row[field] for row in document["rows"] if row["model"] == model}
        for label, (model, field) in searches.items()
    ]
