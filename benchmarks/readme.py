"""Write measured figures into the documentation, from the JSON files in benchmarks/results/.

    python benchmarks/readme.py            # write them
    python benchmarks/readme.py --check    # exit code 1 where a page holds other figures

A page says where figures go: everything between `<!-- figures: NAME -->` and `<!-- /figures -->` is
replaced by the block of that name below. tests/test_figures.py checks that all pages are current.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import sys
import textwrap
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORMS = (("float32", "float32"), ("int8", "int8"), ("float32", "int8"))  # of index and queries
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SHORT = ("scifact", "cranfield", "nq-gold", "medquad")
LONG = ("qmsum-long", "openstax-ccby-long")
UNSEEN = ("cranfield", "nq-gold")  # of these nothing trained the embedded model
SEEN = ("scifact", "medquad", "qmsum-long", "openstax-ccby-long")  # of these, the training splits
BM25 = "BM25"
MINILM = "MiniLM, cut at 256"
CHUNKS = "MiniLM, 180-word chunks"
RRF = "RRF of BM25 and MiniLM"
MODEL = "aveyb-base-en-v2"
INDEX = f"index of {MODEL}"
VECTORS = f"{INDEX}, vectors"
MAXSIM = f"{INDEX}, reranked by MaxSim"
FUSED_CHUNKS = f"hybrid of BM25 and {CHUNKS}"
INDEX_MINILM = "index of MiniLM, passages of 128 tokens, one by one"

WIDTH = 120  # characters of a line
# no table, list, heading or markup
_PARAGRAPH = re.compile(r"^[\w*`(\"].*(?:\n[\w*`(\"].*)*", re.MULTILINE)
_BLOCK = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


@cache
def results(name: str) -> Any:
    """Read a file of benchmarks/results/."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def ndcg() -> dict[tuple[str, str], float]:
    """Return (set, system) -> NDCG@10 of quality.json."""
    rows = results("quality.json")["results"]
    return {(row["dataset"], row["system"]["name"]): row["mean"]["ndcg@10"] for row in rows}


def sizes() -> dict[str, str]:
    """Return set -> documents and queries of quality.json."""
    return {
        row["dataset"]: f"{row['corpus_size']:,} / {row['queries']:,}"
        for row in results("quality.json")["results"]
    }


def mean(system: str, sets: Sequence[str]) -> float:
    """Return a system's NDCG@10, averaged over sets."""
    scores = ndcg()
    return fmean([scores[name, system] for name in sets])


def groups() -> dict[str, Sequence[str]]:
    """Return the columns of a quality table, and their sets."""
    return {
        f"our model not trained on ({' and '.join(UNSEEN)})": UNSEEN,
        f"training splits used ({', '.join(SEEN)})": SEEN,
        "all 6": (*UNSEEN, *SEEN),
    }


def group_mean(system: str, sets: Sequence[str]) -> str:
    """Return a system's mean NDCG@10 over sets; on short texts a chunk is the text."""
    scores = ndcg()
    names = {name: RRF if system == FUSED_CHUNKS and name in SHORT else system for name in sets}
    names |= {name: MINILM for name in sets if system == CHUNKS and name in SHORT}
    if not all((name, names[name]) in scores for name in sets):
        return "-"  # not measured on all of them
    return f"{fmean([scores[name, names[name]] for name in sets]):.3f}"


def quality_table(systems: dict[str, str]) -> str:
    """Return the mean NDCG@10 of systems over the sets by whether the model was trained on them."""
    rows = [
        [label, *(group_mean(system, sets) for sets in groups().values())]
        for label, system in systems.items()
    ]
    return table(["mean NDCG@10", *groups()], rows)


def quality_sentence() -> str:
    """Return the table of README."""
    return quality_table(
        {
            "default search": INDEX,
            "BM25": BM25,
            "BM25 and all-MiniLM-L6-v2 on chunks, fused": FUSED_CHUNKS,
            "all-MiniLM-L6-v2 in our own index": INDEX_MINILM,
        }
    )


def quality_summary() -> str:
    """Return the tables of docs/measurements.md: means, and every set."""
    systems = {
        f"{MODEL}, default search": INDEX,
        f'{MODEL}, the best 100 reranked (`rerank="maxsim"`)': MAXSIM,
        f'{MODEL}, vectors (`mode="dense"`)': VECTORS,
        "BM25": BM25,
        "all-MiniLM-L6-v2 on 180-word chunks": CHUNKS,
        "BM25 and all-MiniLM-L6-v2 on 180-word chunks, fused": FUSED_CHUNKS,
        "all-MiniLM-L6-v2 in our own index, passages of 128 tokens": INDEX_MINILM,
    }
    rows = [
        [label, *(group_mean(system, (name,)) for name in (*UNSEEN, *SEEN))]
        for label, system in systems.items()
    ]
    marked = [*UNSEEN, *(f"{name} *" for name in SEEN)]
    peers = {
        BM25: "BM25",
        FUSED_CHUNKS: "the fusion on chunks",
        INDEX_MINILM: "MiniLM in our own index",
    }
    ahead = [f"of {label} on {lead(system)}" for system, label in peers.items()]
    return "\n".join(
        [
            quality_table(systems),
            "",
            "Each set by itself; `*` marks the sets whose training splits trained the model:",
            "",
            table(["NDCG@10", *marked], rows),
            "",
            f"The default search is ahead {', '.join(ahead)} sets.",
        ]
    )


def lead(peer: str) -> str:
    """Return on how many sets the default search finds more than a peer, of those measured."""
    pairs = [(group_mean(INDEX, (name,)), group_mean(peer, (name,))) for name in quality_sets()]
    measured = [(float(own), float(other)) for own, other in pairs if other != "-"]
    return f"{sum(own > other for own, other in measured)} of {len(measured)}"


def quality_sets() -> tuple[str, ...]:
    """Return the sets of the quality tables, those that the model never saw first."""
    return (*UNSEEN, *SEEN)


def stores() -> str:
    """Return the table of stores.json: quality, seconds and milliseconds beside peers."""
    rows = results("stores.json")["results"]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    by = {(row["set"], row["system"]): row for row in rows}
    body = []
    for system in dict.fromkeys(row["system"] for row in rows):
        cells = [f"{by[name, system]['ndcg@10']:.3f}" for name in sets]
        last = by[sets[-1], system]
        cells += [f"{last['build_seconds']:.0f}", f"{last['query_milliseconds']:.1f}"]
        body.append([system, *cells])
    head = ["", *(f"NDCG@10, {name}" for name in sets), f"build of {sets[-1]}, s", "a query, ms"]
    return table(head, body)


def quality_card() -> str:
    """Return the model card's table: every set, four decimals."""
    scores = ndcg()
    columns = {
        "vectors": VECTORS,
        "default search": INDEX,
        "all-MiniLM-L6-v2": MINILM,
        "BM25": BM25,
        "RRF of the last two": RRF,
    }
    rows = [
        [name, sizes()[name], *(f"{scores[name, system]:.4f}" for system in columns.values())]
        for name in (*SHORT, *LONG)
    ]
    share = mean(VECTORS, SHORT) / mean(MINILM, SHORT)
    chunks = " and ".join(f"{scores[name, CHUNKS]:.4f}" for name in LONG)
    return "\n".join(
        [
            table(["set", "docs / queries", *columns], rows),
            "",
            f"Dense alone, it reaches {share:.2f} of MiniLM on the four sets of short texts.",
            f"On the two sets of long texts, MiniLM on 180-word chunks scores {chunks}.",
        ]
    )


def precision() -> str:
    """Return the table of precision.json: NDCG@10, shared top ten, cosines."""
    rows = {(row["set"], row["precision"]): row for row in results("precision.json")["rows"]}
    sets = list(dict.fromkeys(name for name, _ in rows))
    kinds = list(dict.fromkeys(kind for _, kind in rows))

    def cell(name: str, kind: str) -> str:
        row = rows[name, kind]
        return f"{row['ndcg@10']:.4f}" + (
            "" if kind == "float32" else f" ({row['same_top_10']:.3f})"
        )

    body = []
    for name in sets:
        lowest = rows[name, "bfloat16"]
        cosines = f"{lowest['mean_cosine']:.6f}, {lowest['smallest_cosine']:.6f}"
        body.append([name, *(cell(name, kind) for kind in kinds), cosines])
    means = [f"{fmean([rows[name, kind]['ndcg@10'] for name in sets]):.4f}" for kind in kinds]
    head = ["set", *kinds, "cosine of document vectors to float32's: mean, smallest"]
    return table(head, [*body, ["mean", *means, ""]])


def gpu_encode() -> str:
    """Return gpu.json's tokens a second, of our model in each form and of ModernBERT."""
    document = results("gpu.json")
    found: dict[tuple[str, int, int], str] = {}
    for row in document["encode"] + document["eager"] + document["peers"]:
        if row.get("ids") == "zipf":
            found[row["name"], row["batch"], row["tokens"]] = f"{row['per_s']:,.0f}"
    floors = {
        (r["batch"], r["tokens"]): 1000 * r["batch"] * r["tokens"] / r["ms"]
        for r in document["encode"]
        if r["name"] == "floor"
    }
    names = ["ours, ours", "ours, launches", "ours, torch", "ModernBERT banded", "ModernBERT sdpa"]
    body = [
        [
            f"{b} x {t:,}",
            *(found.get((name, b, t), "") for name in names),
            f"{round(floor, -3):,.0f}",
        ]
        for (b, t), floor in floors.items()
    ]
    head = [
        "tokens a second",
        "ours",
        "without graphs",
        "plain torch",
        "ModernBERT, banded",
        "ModernBERT, sdpa",
        "floor",
    ]
    return table(head, body)


def gpu_operations() -> str:
    """Return gpu.json's times of single operations on 512 splits, in milliseconds."""
    rows = [row for row in results("gpu.json")["operations"] if row.get("splits") == 512]
    columns = ("floor_ms", "kernel_ms", "compiled_ms", "torch_ms")
    body = [[row["name"], *(f"{row[c]:.3f}" if c in row else "" for c in columns)] for row in rows]
    return table(["ms for 512 splits of 256", "floor", "kernel", "torch.compile", "torch"], body)


def gpu_search() -> str:
    """Return gpu.json's exact and approximate searches of a million vectors, in milliseconds for a
    batch of queries.
    """
    rows = [
        row for row in results("gpu.json")["search"] if "ms_1" in row and row.get("obeyed", True)
    ]
    body = [
        [row["name"], f"{row['recall']:.3f}", *(f"{row[f'ms_{n}']:,.2f}" for n in (1, 16, 256))]
        for row in rows
    ]
    return table(["ms for queries at once", "recall@10", "1", "16", "256"], body)


def gpu_dynamic_mix() -> str:
    """Return what gpu.json says of dynamic mixing: beside its floor and torch.compile, and in one
    pass and in two.
    """
    document = results("gpu.json")

    def times(splits: int, of: str) -> str:
        rows = [
            r for r in document["operations"] if r.get("splits") == splits and "compiled_ms" in r
        ]
        ratios = [r[of] / r["kernel_ms"] for r in rows if r["name"].startswith("dynamic_mix")]
        ratios = [ratio if min(ratios) > 1 else 1 / ratio for ratio in ratios]
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    found = {(r["name"], r["splits"]): f"{r['ms']:#.3g}" for r in document["dynamic_mix"]}
    columns = {"forward": "forward", "backward": "backward", "over gate, GELU": "over gate gelu"}
    columns["over gate, ReLU²"] = "over gate relu2"
    body = [
        [
            str(n),
            *(
                f"{found[f'one pass, {c}', n]} → {found[f'two passes, {c}', n]}"
                for c in columns.values()
            ),
        ]
        for n in (512, 64, 16)
    ]
    return "\n".join(
        [
            (
                f"Dynamic mixing takes {times(512, 'floor_ms')} times its floor and"
                f" {times(512, 'compiled_ms')} times"
            ),
            (
                f"torch.compile's time on 512 splits; on 64 it is {times(64, 'compiled_ms')} times"
                " as fast. The earlier form,"
            ),
            (
                "one program that keeps the shares in registers, and the form of today, in"
                " milliseconds:"
            ),
            "",
            table(["splits", *columns], body),
        ]
    )


def gpu_counts() -> str:
    """Return gpu_counts.json's launches and bytes, of 8 texts of 2,048 tokens."""
    rows = {
        row["preset"]: row for row in results("gpu_counts.json")["rows"] if row["tokens"] == 2048
    }
    one, other = rows["released"], rows["paper"]

    def both(name: str) -> str:
        return " / ".join(f"{row[name]:,}" for row in (one, other))

    forms, name = ("before", "now"), "bytes_per_token_and_layer"
    ranker = [f"{one[f'ranker_launches_{form}']}" for form in forms]
    moved = [both(f"{name}_{form}") for form in forms]
    body = [
        [
            "operations for each layer",
            *(f"{one[f'launches_per_layer_{form}']:g}" for form in forms),
            "",
        ],
        ["bytes per token and layer, `released` / `paper`", *moved, f"{one['bytes_floor']:,}"],
        ["the same in training", *(both(f"training_{name}_{form}") for form in forms), ""],
        ["launches of the ranker, 8 documents of 384 splits", *ranker, ""],
    ]
    return table(["", "not fused", "now", "floor"], body)


SHOWN_PASSAGES = (
    "BM25, 200 words",
    "0.4 MiniLM + 0.6 BM25, 110 words",
    "ours, words and vectors, 256 tokens (default)",
    "ours, vectors, 256 tokens",
    "ours, words, 256 tokens",
    "ours, default, reranked by int8 token vectors",
    "MiniLM in our index, words and vectors, one by one, 128 tokens",
)


def passages() -> str:
    """Return the main rows of passages.json, a table for each set: both scopes side by side."""
    document = results("passages.json")
    measures = ("recall@1", "recall@5", "recall@10", "iou@1")
    lines = []
    for facts in document["sets"]:
        rows = {
            (row["system"], row["scope"]): row
            for row in document["rows"]
            if row["set"] == facts["set"]
        }
        body = []
        for system in SHOWN_PASSAGES:
            means = [rows[system, scope]["mean"] for scope in ("document", "corpus")]
            length = rows[system, "document"]["mean_passage_characters"]
            figures = [f"{means[0][m]:.3f}" for m in measures] + [f"{means[1]['recall@5']:.3f}"]
            body.append([system, f"{length:,.0f}", *figures])
        sampled = facts["documents"] < facts["all_documents"]
        drawn = f" of {facts['all_documents']:,}, drawn at random" if sampled else ""
        counts = f"{facts['documents']:,} documents{drawn}; {facts['queries']:,} questions."
        lines += [
            table([facts["set"], "characters", *measures, "corpus: recall@5"], body),
            "",
            counts,
            "",
        ]
    return "\n".join(lines).rstrip()


IDLE = 0.5  # load of a machine that does nothing else
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


def extras() -> str:
    """Return the table of extras.json: what each extra is for and how large it is."""
    found = results("extras.json")
    base = found["base"]
    sizes = {row["extra"]: row for row in found["extras"]}
    rows = [
        [
            f"`{name}`",
            meaning,
            str(sizes[name]["packages"]),
            f"{sizes[name]['megabytes']:,.1f}",
            ", ".join(
                f"{package} {megabytes:,.1f}"
                for package, megabytes in sizes[name]["largest"].items()
            ),
        ]
        for name, meaning in EXTRAS.items()
    ]
    return "\n".join(
        [
            table(["extra", "for", "packages", "MB", "largest"], rows),
            "",
            (
                "Measured by `benchmarks/extras.py` in an environment with all of them (Python"
                f" {found['python']}, {found['machine']}): packages on top"
            ),
            (
                f"of the base with `cpu`, which has {base['packages']} packages and"
                f" {base['megabytes']:,.0f} MB."
            ),
            "Extras share packages, so several together take less than their sum.",
        ]
    )


def onnx() -> str:
    """Return the tables of int8_quality.json and encode_words.json: what int8 costs, and what it
    saves.
    """
    sets = results("int8_quality.json")["sets"]
    rows = []
    for name, found in sets.items():
        scores, cosine = found["ndcg@10"], found["cosine"]
        forms = [scores[f"index {one}, queries {other}"] for one, other in _FORMS]
        rows.append(
            [
                name,
                f"{found['documents']:,} / {found['queries']:,}",
                *(f"{score:.4f}" for score in forms),
                f"{cosine['passages']['mean']:.5f}",
                f"{min(kind['smallest'] for kind in cosine.values()):.5f}",
            ]
        )
    header = [
        "set",
        "documents / queries",
        "float32",
        "int8",
        "index float32, queries int8",
        "passages",
        "smallest",
    ]
    speed = results("encode_words.json")
    measured = [
        [
            row["system"],
            str(row["threads"]),
            *(f"{words:,.0f}" for words in row["words_per_processor_second"].values()),
        ]
        for row in speed["rows"]
    ]
    lengths = [f"{int(length):,}" for length in speed["rows"][0]["words_per_processor_second"]]
    machine = speed["machine"]
    if machine.get("quiet"):  # times of the clock mean something
        points = [("10", "p50"), ("10", "p99"), ("200", "p50"), ("200", "p99")]
        lengths += [f"query of {length} tokens, ms, {point}" for length, point in points]
        for cells, row in zip(measured, speed["rows"], strict=True):
            cells += [f"{row['query_ms'][length][point]:.1f}" for length, point in points]
    return "\n".join(
        [
            (
                "NDCG@10 by the better of document and best passage, dense search over the full"
                " corpus, and cosines of the"
            ),
            (
                "two forms' vectors: the mean over passages, and the smallest of any query,"
                " document or passage"
            ),
            (
                "(`benchmarks/cpu/int8_quality.py`; two empty documents of cranfield have no vector"
                " and give the 0):"
            ),
            "",
            table(header, rows),
            "",
            "Words of running text per processor second, by the length of the texts in our tokens",
            "(`benchmarks/cpu/encode_words.py`):",
            "",
            table(["system", "threads", *lengths], measured),
            "",
            (
                f"ONNX Runtime {machine['onnxruntime']}, torch {machine['torch']}, a processor with"
                f" {', '.join(machine['instructions'])}; {machine['note']}."
            ),
        ]
    )


def ocr() -> str:
    """Return the table of ocr.json: pages a minute by one processor and by several."""
    rows = results("ocr.json")
    body = [
        [
            row["kind"],
            f"{row['processors']}",
            f"{row['processor_seconds_a_page']:.1f}",
            f"{row['pages_a_minute']:.1f}",
            f"{row['words_lost']:,} of {row['words']:,}",
            f"{row['certainty']:.0f} %",
        ]
        for row in rows["rows"]
    ]
    columns = ["page", "processors", "processor seconds a page", "pages a minute", "words lost"]
    processors = rows["machine"]["processors"]
    return "\n".join(
        [
            table([*columns, "certainty"], body),
            "",
            (
                "Pages of A4 with 42 lines, at 200 dots per inch, in"
                f" {'+'.join(rows['languages'])} (`benchmarks/cpu/ocr.py`), on a machine of"
                f" {processors} processors that others used too (load {rows['load']:.0f}):"
                " processor seconds change less with that than pages a minute."
            ),
        ]
    )


def start() -> str:
    """Return the table of cpu_start.json: what a start costs with torch and without."""
    found = results("cpu_start.json")
    machine, rows = found["machine"], found["rows"]
    measures = {
        "packages of the environment": ("packages", ",.0f"),
        "their megabytes": ("megabytes", ",.0f"),
        "one search from the command line, processor seconds": ("search_processor_seconds", ".1f"),
        "a program after its first search, MB": ("after_mb", ".0f"),
        "of these, not mapped from files": ("own_mb", ".0f"),
    }
    if machine["quiet"]:  # times of the clock mean something
        measures |= {
            "one search from the command line, seconds": ("search_seconds", ".2f"),
            "a server until it is ready, seconds": ("server_ready_seconds", ".2f"),
            "and until its first answer": ("server_answer_seconds", ".2f"),
        }
    names = {"light": "without torch", "full": "with the extra `torch`"}
    return "\n".join(
        [
            table(
                ["", *(f"{names[row['environment']]}, {row['form']}" for row in rows)],
                [
                    [name, *(format(row[key], digits) for row in rows)]
                    for name, (key, digits) in measures.items()
                ],
            ),
            "",
            (
                f"Fresh environments of `[cpu]` (Python {machine['python']},"
                f" {machine['processor']}), an index of the"
            ),
            (
                "pages in docs/, the best of several rounds (`benchmarks/cpu/start.py`);"
                f" {machine['note']}."
            ),
        ]
    )


def files() -> str:
    """Return the table of files.json: a folder of 300 files, beside markitdown and unstructured."""
    found = results("files.json")
    names = ["ours", *found["peers"]]
    rows, sums = [], {name: [0, 0.0, 0, 0, 0] for name in names}
    for kind, row in sorted(found["readers"].items()):
        cells: dict[str, tuple[str, ...]] = {}
        for name in names:
            one = row["readers"][name]
            right = f"{one['right'] / row['truth']:.3f}" if row["truth"] else ""
            lost = f"{one['words lost']:,}" if row["truth"] else ""
            cells[name] = (str(one["read"]), right, lost, f"{one['seconds'] / row['files']:.2f}")
            values = one["read"], one["seconds"], one["right"], row["truth"], one["words lost"]
            for place, value in enumerate(values):
                sums[name][place] += value
        rows.append(
            [
                kind,
                str(row["files"]),
                *(" / ".join(cells[name][i] for name in names) for i in range(4)),
            ]
        )
    total = sum(row["files"] for row in found["readers"].values())
    ends = [
        [f"{s[0]}", f"{s[2] / s[3]:.3f}", f"{s[4]:,}", f"{s[1]:.0f} in all"] for s in sums.values()
    ]
    rows.append(["all", str(total), *(" / ".join(end[i] for end in ends) for i in range(4))])
    rows = [[cell if cell.strip(" /") else "" for cell in row] for row in rows]
    build, pages, sync = found["build"], found["pages"], found["sync"]
    versions = ", ".join(f"{name} {version}" for name, version in found["peers"].items())
    return "\n".join(
        [
            (
                f"{total} files that pandoc, LibreOffice and git made, or that Debian packages hold"
                " (`benchmarks/cpu/files.py`, `make_files.py`)."
            ),
            f"Each cell: this package / {' / '.join(found['peers'])} ({versions}).",
            (
                "A character is right if the reader found its word and two neighbors in the same"
                " order; the true text of HTML pages"
            ),
            (
                "from packages is unknown. A word is lost if the reader's text has it less often"
                " than the file."
            ),
            "Seconds are processor seconds per file, on a busy machine.",
            "",
            table(
                ["kind", "files", "read", "right characters", "words lost", "seconds a file"], rows
            ),
            "",
            (
                f"One command built an index of these files in {build['cpu_seconds']:.0f} s of"
                f" processor time for {build['tokens']:,} tokens; {build['rejected']} files were"
            ),
            (
                f"left out. {pages['queries']} searches found {pages['passages']} PDF passages;"
                f" {pages['passages on their page']} begin with words of the page that they cite,"
            ),
            "as PDFium reads it.",
            (
                f"A sync after {sync['deleted']} deletions and {sync['renamed']} renamings took"
                f" {sync['cpu_seconds']:.1f} s and left {sync['after']} documents, one per file."
            ),
        ]
    )


def server() -> str:
    """Return the table of cpu_serve.json: one client, many, and one again."""
    found = results("cpu_serve.json")
    rows = []
    for name in ("one_client", "many_clients", "one_client_again"):
        row = found[name]
        memory = row["resident_mib"]
        shown = (memory[0], memory[1], memory[len(memory) // 2], memory[-1])
        rows.append(
            [
                str(row["clients"]),
                f"{row['requests']:,}",
                f"{row['requests_per_second']:.0f}",
                *(f"{row['milliseconds'][q]:.0f}" for q in ("p50", "p99")),
                ", ".join(f"{value:.0f}" for value in shown),
            ]
        )
    head = ["clients", "requests", "per second", "p50, ms", "p99, ms", "memory, MiB"]
    busy = found["load_before"] > IDLE
    return "\n".join(
        [
            table(head, rows),
            "",
            (
                f"`benchmarks/cpu/serve.py`: searches for ten documents among {found['documents']}"
                " long ones (this project's pages), for"
            ),
            f"{found['one_client']['seconds']:.0f} seconds in each phase, with {found['threads']}"
            f" threads on {found['cores']} {found['processor']} cores, which the clients share"
            + (
                f"; other work kept the machine busy (load {found['load_before']:.1f})."
                if busy
                else "."
            ),
            (
                "Memory is the server's resident set at the beginning of a phase, after a twelfth,"
                " half and all of it."
            ),
        ]
    )


def hostile() -> str:
    """Return the table of cpu_serve_hostile.json: a polite client alone, beside each attack, and
    alone again.
    """
    if not (RESULTS / "cpu_serve_hostile.json").is_file():
        return "Not measured yet: `python benchmarks/cpu/serve.py --hostile`."
    found = results("cpu_serve_hostile.json")
    quiet = found["quiet"]["milliseconds"]["p99"]
    phases = [("nobody", found["quiet"]), *((each["attack"], each) for each in found["attacks"])]
    rows = []
    for name, row in [*phases, ("nobody, again", found["quiet_again"])]:
        times = row["milliseconds"]
        got = ", ".join(
            f"{what}: {count:,}" for what, count in sorted(row.get("attacker_got", {}).items())
        )
        shown = [f"{times[q]:.0f}" for q in ("p50", "p99")]
        rows.append(
            [name, *shown, f"{times['p99'] / quiet:.1f}", f"{max(row['resident_mib']):.0f}", got]
        )
    head = [
        "attacker",
        "p50, ms",
        "p99, ms",
        "p99 / quiet",
        "memory of the server at most, MiB",
        "the attacker got",
    ]
    seconds = found["quiet"]["seconds"]
    return "\n".join(
        [
            table(head, rows),
            "",
            (
                "`benchmarks/cpu/serve.py --hostile`: one client asks a question after the other"
                f" for {seconds:.0f} seconds in each phase;"
            ),
            f"{found['threads']} threads on {found['cores']} {found['processor']} cores, shared by"
            " client and attacker"
            + (
                f"; load before: {found['load_before']:.1f}."
                if found["load_before"] > IDLE
                else "."
            ),
        ]
    )


def fuzzed() -> str:
    """Return what http_fuzz.json counted."""
    if not (RESULTS / "http_fuzz.json").is_file():
        return "Not run yet: `python -m rigs.fuzz.server --minutes 30`."
    found = results("http_fuzz.json")
    statuses = ", ".join(f"{status}: {count:,}" for status, count in found["statuses"].items())
    memory, drawn = found["resident_mib"], found["schemathesis"]
    cases = (
        f"schemathesis asked with {drawn['cases']:,} cases"
        if drawn.get("cases")
        else "schemathesis was not there"
    )
    return "\n".join(
        [
            (
                f"`python -m rigs.fuzz.server --minutes {found['minutes']:g} --seed"
                f" {found['seed']}`: {found['requests']:,} requests through raw connections"
                f" ({statuses});"
            ),
            (
                f"{cases}. Findings: {len(found['findings'])}. The server's memory was"
                f" {memory['after_a_fifth']:.0f} MiB after a fifth of the"
            ),
            f"time, and {memory['most']:.0f} MiB at most.",
        ]
    )


def engines() -> str:
    """Return the table of engines.json."""
    found = results("engines.json")
    machine, passages = found.pop("machine"), found.pop("passages")

    def cell(value: Any) -> str:
        return f"{value['p50']:.1f} / {value['p99']:.1f}" if isinstance(value, dict) else f"{value}"

    names = [*found["index directory"]]
    rows = [[name, *(cell(system.get(name, "")) for system in found.values())] for name in names]
    return "\n".join(
        [
            table(["", *found], rows),
            "",
            (
                f"`benchmarks/cpu/engines.py`, {passages:,} passages of 560 characters, 256"
                " dimensions; searches in"
            ),
            (
                f"milliseconds, p50 / p99; {machine['cores']} {machine['processor']} cores; load"
                f" before: {machine['load before']:.1f}."
            ),
        ]
    )


def needle() -> str:
    """Return the table of needle.json: shares of the needles by length, all depths together."""
    found = results("needle.json")
    systems = list(dict.fromkeys(cell["system"] for cell in found["cells"]))
    rows = []
    for length in dict.fromkeys(cell["length"] for cell in found["cells"]):
        row = [f"{length:,}"]
        for system in systems:
            cells = [
                cell
                for cell in found["cells"]
                if (cell["system"], cell["length"]) == (system, length)
            ]
            shares = [
                fmean(cell[name] for cell in cells)
                for name in ("document_first", "passage_first")
                if cells[0][name] is not None
            ]
            row.append(", ".join(f"{share:.2f}" for share in shares))
        rows.append(row)
    depths = len({cell["depth"] for cell in found["cells"]})
    return "\n".join(
        [
            table(["tokens of a document", *systems], rows),
            "",
            (
                f"`{found['command']}`: {found['seeds']} needles at each of {depths} depths,"
                f" {found['distractors']} more documents of each length;"
            ),
            (
                "the share of right documents in first place, and of needles in the first passage"
                " of their document."
            ),
        ]
    )


def scale() -> str:
    """Return the tables that scale.py prints where it is given no option."""
    tables: str = runpy.run_path(str(ROOT / "benchmarks" / "scale.py"))["tables"]([])
    return tables


def ablations() -> str:
    """The paper's choices in small, with the signs of its own differences."""
    found = results("ablations.json")
    defaults = [row["ndcg@10"] for row in found["rows"] if row["variant"] == "default"]
    head = ["choice", "NDCG@10", "difference", "paper's table", "paper, points of IR", "same sign"]
    return "\n".join(
        [
            f"`python benchmarks/cpu/ablations.py`: four layers of width"
            f" {found['shape']['hidden_size']}, splits of {found['shape']['split_size']} tokens,"
            f" {found['steps']} steps of {found['batch_size']} pairs of a question and"
            f" {found['tokens']['text']} tokens of text on fixed token vectors, then a search of"
            f" {found['set']}. A difference is the mean over seeds, with half their range."
            ' It is "unclear" if the seeds differ in its sign. Two seeds of the default differ by'
            f" {max(defaults) - min(defaults):.4f}, so smaller differences of one seed mean"
            " little.",
            "",
            table(head, found["table"]),
        ]
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "ablations": ablations,
    "quality-sentence": quality_sentence,
    "quality-summary": quality_summary,
    "quality-card": quality_card,
    "stores": stores,
    "extras": extras,
    "onnx": onnx,
    "start": start,
    "ocr": ocr,
    "files": files,
    "server": server,
    "hostile": hostile,
    "fuzzed": fuzzed,
    "engines": engines,
    "needle": needle,
    "precision": precision,
    "gpu-encode": gpu_encode,
    "gpu-operations": gpu_operations,
    "gpu-search": gpu_search,
    "gpu-dynamic-mix": gpu_dynamic_mix,
    "gpu-counts": gpu_counts,
    "passages": passages,
    "scale": scale,
}


def renew(text: str) -> str:
    """Return a page with its blocks as the results have them.

    Raises:
        KeyError: the page names a block that is not there.
    """
    return _BLOCK.sub(lambda match: f"{match[1]}{_wrapped(BLOCKS[match[2]]())}\n{match[3]}", text)


def _wrapped(block: str) -> str:
    """Wrap the paragraphs that have a line longer than pages have: figures decide how long their
    lines get.
    """

    def fill(paragraph: re.Match[str]) -> str:
        if max(map(len, paragraph[0].split("\n"))) <= WIDTH:
            return paragraph[0]
        return textwrap.fill(paragraph[0], WIDTH, break_long_words=False, break_on_hyphens=False)

    return _PARAGRAPH.sub(fill, block)


def pages() -> list[Path]:
    """Return the pages that hold figures."""
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/*/README.md")]
    files += ROOT.glob("benchmarks/notes/*.md")
    files += ROOT.glob("aveyb_retrieval/models/*/README.md")
    return sorted(path for path in files if "<!-- figures: " in path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 where a page is not current",
    )
    args = parser.parse_args()
    stale = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        current = renew(text)
        if current != text:
            stale.append(path)
            if not args.check:
                path.write_text(current, encoding="utf-8")
    for path in stale:
        print(
            f"{path.relative_to(ROOT)}:"
            f" {'other figures than the results' if args.check else 'written'}"
        )
    sys.exit(1 if args.check and stale else 0)


if __name__ == "__main__":
    main()
