"""Write measured figures into the documentation, from the JSON files in benchmarks/results/.

    python benchmarks/readme.py            # write them
    python benchmarks/readme.py --check    # exit code 1 if a page has other figures

A page says where figures go: everything between `<!-- figures: NAME -->` and `<!-- /figures -->` is
replaced by the block `BLOCKS[NAME]`. A block is a list of paragraphs and tables, and each of them
is data: a result file, its rows, and the format of each column. To add a block, add an entry to
`BLOCKS`. tests/test_figures.py checks that all pages are current.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
WIDTH = 120  # characters of a line
_PARAGRAPH = re.compile(r"^[\w*`(\"].*(?:\n[\w*`(\"].*)*", re.MULTILINE)  # no table, list, markup
_BLOCK = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)


# ---- how a block is written ----


@cache
def results(file: str) -> Any:
    """Read a file of benchmarks/results/."""
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def cell(form: str, row: figures.Row) -> str:
    """Format the fields of a row, such as "{documents:,} / {queries:,}" or "{mean[recall]:.3f}".

    Returns "" if the row has no such field: it was not measured.
    """
    try:
        return form.format_map(row)
    except KeyError:
        return ""


@dataclass(frozen=True)
class Table:
    """A table of one result file: a line for each row, or a column if it is `transposed`."""

    file: str
    # the name of a list in the file, or a function that makes rows of the file
    rows: str | figures.Rows
    columns: Mapping[str, str]  # heading -> format of a row's fields
    where: figures.Row | None = None  # only rows with these values
    transposed: bool = False

    def write(self) -> str:
        """Return the table in Markdown.

        Raises:
            ValueError: no row has the field of a column, so its name is wrong.
        """
        document = results(self.file)
        rows = document[self.rows] if isinstance(self.rows, str) else self.rows(document)
        where = (self.where or {}).items()
        rows = [row for row in rows if all(row.get(name) == value for name, value in where)]
        columns = {head: [cell(form, row) for row in rows] for head, form in self.columns.items()}
        for head, cells in columns.items():
            if not any(cells):
                raise ValueError(f"{self.file}: no row has a value for the column {head!r}")
        lines = [[head, *cells] for head, cells in columns.items()]
        return markdown(lines if self.transposed else list(zip(*lines, strict=True)))


@dataclass(frozen=True)
class Paragraph:
    """A paragraph with fields of one result file, or with values that a function makes of it."""

    form: str
    file: str | None = None
    values: Callable[[Any], figures.Row] = dict

    def write(self) -> str:
        """Return the paragraph."""
        if self.file is None:
            return self.form
        return self.form.format_map(self.values(results(self.file)))


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first line is the head."""
    head, *rest = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rest])


# ---- the blocks ----


def passage_table(dataset: str) -> list[Table | Paragraph]:
    """Return the table of one set of passages.json, and its size."""

    def values(document: Any) -> figures.Row:
        row = next(row for row in document["sets"] if row["set"] == dataset)
        is_sample = row["documents"] < row["all_documents"]
        of_all = f" of {row['all_documents']:,}, drawn at random" if is_sample else ""
        return {**row, "of_all": of_all}

    columns = {
        dataset: "{system}",
        "characters": "{document[mean_passage_characters]:,.0f}",
        "recall@1": "{document[mean][recall@1]:.3f}",
        "recall@5": "{document[mean][recall@5]:.3f}",
        "recall@10": "{document[mean][recall@10]:.3f}",
        "iou@1": "{document[mean][iou@1]:.3f}",
        "corpus: recall@5": "{corpus[mean][recall@5]:.3f}",
    }
    size = "{documents:,} documents{of_all}; {queries:,} questions."
    return [
        Table("passages.json", figures.passages(dataset), columns),
        Paragraph(size, "passages.json", values),
    ]


def scale() -> str:
    """Return the tables that scale.py prints without an option."""
    tables: str = runpy.run_path(str(ROOT / "benchmarks" / "scale.py"))["tables"]([])
    return tables


_GROUP_COLUMNS = {
    "mean NDCG@10": "{label}",
    f"sets that our model was not trained on ({' and '.join(figures.UNSEEN)})": "{unseen}",
    f"sets whose training part it saw ({', '.join(figures.SEEN)})": "{seen}",
    "all 6": "{all}",
}
_COMPARED = {
    "default": f"{figures.MODEL}, default search",
    "maxsim": f'{figures.MODEL}, the best 100 reranked (`rerank="maxsim"`)',
    "vectors": f'{figures.MODEL}, vectors (`mode="dense"`)',
    "bm25": "BM25",
    "chunks": "all-MiniLM-L6-v2 on 180-word chunks",
    "fused": "BM25 and all-MiniLM-L6-v2 on 180-word chunks, fused",
    "index_minilm": "all-MiniLM-L6-v2 in our own index, passages of 128 tokens",
}
_NAMED_COLUMNS = {
    "": "{name}",
    "recall@1": "{measures[mean][R@1]:.3f}",
    "recall@8": "{measures[mean][R@8]:.3f}",
    "recall@64": "{measures[mean][R@64]:.3f}",
    "precision@1": "{measures[mean][P@1]:.3f}",
    "another document first": "{measures[mean][wrong first]:.3f}",
}

BLOCKS: dict[str, Sequence[Table | Paragraph] | Callable[[], str]] = {
    "ablations": [
        Paragraph(
            "`python benchmarks/cpu/ablations.py`: four layers of width {shape[hidden_size]},"
            " splits of {shape[split_size]} tokens, {steps} steps of {batch_size} pairs of a"
            " question and {tokens[text]} tokens of text on fixed token vectors, then a search of"
            " {set}. A difference is the mean over seeds, with half their range. It is"
            ' "unclear" if the seeds differ in its sign. Two seeds of the default differ by'
            " {range:.4f}, so smaller differences of one seed mean little.",
            "ablations.json",
            figures.ablation_values,
        ),
        Table(
            "ablations.json",
            figures.ablations,
            {
                "choice": "{choice}",
                "NDCG@10": "{ndcg}",
                "difference": "{difference}",
                "paper's table": "{table}",
                "paper, points of IR": "{points}",
                "same sign": "{same_sign}",
            },
        ),
    ],
    "quality-sentence": [
        Table(
            "quality.json",
            figures.quality(
                {
                    "default": "default search",
                    "bm25": "BM25",
                    "fused": "BM25 and all-MiniLM-L6-v2 on chunks, fused",
                    "index_minilm": "all-MiniLM-L6-v2 in our own index",
                }
            ),
            _GROUP_COLUMNS,
        )
    ],
    "quality-summary": [
        Table("quality.json", figures.quality(_COMPARED), _GROUP_COLUMNS),
        Paragraph(
            "Each set by itself; `*` marks the sets whose training splits trained the model:"
        ),
        Table(
            "quality.json",
            figures.quality(_COMPARED),
            {
                "NDCG@10": "{label}",
                **{name: f"{{{name}}}" for name in figures.UNSEEN},
                **{f"{name} *": f"{{{name}}}" for name in figures.SEEN},
            },
        ),
        Paragraph(
            "The default search is ahead of BM25 on {bm25} sets, of the fusion on chunks on"
            " {fused}, and of MiniLM in our own index on {index_minilm}.",
            "quality.json",
            figures.quality_sums,
        ),
    ],
    "quality-card": [
        Table(
            "quality.json",
            figures.quality_by_set,
            {
                "set": "{dataset}",
                "docs / queries": "{corpus_size:,} / {queries:,}",
                "vectors": "{vectors:.4f}",
                "default search": "{default:.4f}",
                "all-MiniLM-L6-v2": "{minilm:.4f}",
                "BM25": "{bm25:.4f}",
                "RRF of the last two": "{rrf:.4f}",
            },
        ),
        Paragraph(
            "With vectors alone, it reaches {ratio:.2f} of MiniLM on the four sets of short texts."
            " On the two sets of long texts, MiniLM on 180-word chunks scores {chunks[0]:.4f} and"
            " {chunks[1]:.4f}.",
            "quality.json",
            figures.quality_sums,
        ),
    ],
    "stores": [
        Table(
            "stores.json",
            "results",
            {
                "": "{system}",
                "NDCG@10, cranfield": "{ndcg@10:.3f}",
                "build of cranfield, s": "{build_seconds:.0f}",
                "a query, ms": "{query_milliseconds:.1f}",
            },
            where={"set": "cranfield"},
        )
    ],
    "extras": [
        Table(
            "extras.json",
            figures.extras,
            {
                "extra": "`{extra}`",
                "for": "{purpose}",
                "packages": "{packages}",
                "MB": "{megabytes:,.1f}",
                "largest": "{largest}",
            },
        ),
        Paragraph(
            "Measured by `benchmarks/extras.py` in an environment with all of them (Python"
            " {python}, {machine}): packages on top of the base with `cpu`, which has"
            " {base[packages]} packages and {base[megabytes]:,.0f} MB. Extras share packages, so"
            " several together take less than their sum.",
            "extras.json",
        ),
    ],
    "onnx": [
        Paragraph(
            "NDCG@10 by the better of document and best passage, dense search over the full"
            " corpus, and cosines of the two forms' vectors: the mean over passages, and the"
            " smallest of any query, document or passage (`benchmarks/cpu/int8_quality.py`; two"
            " empty documents of cranfield have no vector and give the 0):"
        ),
        Table(
            "int8_quality.json",
            figures.int8_quality,
            {
                "set": "{set}",
                "documents / queries": "{documents:,} / {queries:,}",
                "float32": "{ndcg@10[index float32, queries float32]:.4f}",
                "int8": "{ndcg@10[index int8, queries int8]:.4f}",
                "index float32, queries int8": "{ndcg@10[index float32, queries int8]:.4f}",
                "passages": "{cosine[passages][mean]:.5f}",
                "smallest": "{smallest:.5f}",
            },
        ),
        Paragraph(
            "Words of running text per processor second, by the length of the texts in our tokens,"
            " and the time of a query, p50 (`benchmarks/cpu/encode_words.py`):"
        ),
        Table(
            "encode_words.json",
            lambda document: [
                {
                    **row,
                    **{f"of_{n}": v for n, v in row["words_per_processor_second"].items()},
                    **{f"query_of_{n}": v["p50"] for n, v in row["query_ms"].items()},
                }
                for row in document["rows"]
            ],
            {
                "system": "{system}",
                "threads": "{threads}",
                "128": "{of_128:,.0f}",
                "512": "{of_512:,.0f}",
                "2,048": "{of_2048:,.0f}",
                "8,192": "{of_8192:,.0f}",
                "a query of 10 tokens, ms": "{query_of_10:.1f}",
                "of 200": "{query_of_200:.1f}",
            },
        ),
        Paragraph(
            "ONNX Runtime {machine[onnxruntime]}, torch {machine[torch]}, a processor with"
            " {machine[instructions][0]}; {machine[note]}.",
            "encode_words.json",
        ),
    ],
    "start": [
        Table(
            "cpu_start.json",
            figures.starts,
            {
                "": "{name}, {form}",
                "packages of the environment": "{packages:,.0f}",
                "their megabytes": "{megabytes:,.0f}",
                "one search from the command line, processor seconds": (
                    "{search_processor_seconds:.1f}"
                ),
                "a program after its first search, MB": "{after_mb:.0f}",
                "of these, not mapped from files": "{own_mb:.0f}",
                "one search from the command line, seconds": "{search_seconds:.2f}",
                "a server until it is ready, seconds": "{server_ready_seconds:.2f}",
                "and until its first answer": "{server_answer_seconds:.2f}",
            },
            transposed=True,
        ),
        Paragraph(
            "Fresh environments of `[cpu]` (Python {machine[python]}, {machine[processor]}), an"
            " index of the pages in docs/, the best of several rounds (`benchmarks/cpu/start.py`);"
            " {machine[note]}.",
            "cpu_start.json",
        ),
    ],
    "ocr": [
        Table(
            "ocr.json",
            "rows",
            {
                "page": "{kind}",
                "processors": "{processors}",
                "processor seconds a page": "{processor_seconds_a_page:.1f}",
                "pages a minute": "{pages_a_minute:.1f}",
                "words lost": "{words_lost:,} of {words:,}",
                "certainty": "{certainty:.0f} %",
            },
        ),
        Paragraph(
            "Pages of A4 with 42 lines, at 200 dots per inch, in {languages[0]}"
            " (`benchmarks/cpu/ocr.py`), on a machine of {machine[processors]} processors that"
            " others used too (load {load:.0f}): this changes the pages a minute much and the"
            " processor seconds little.",
            "ocr.json",
        ),
    ],
    "files": [
        Paragraph(
            "{total} files that pandoc, LibreOffice and git made, or that Debian packages hold"
            " (`benchmarks/cpu/files.py`, `make_files.py`). Each cell: this package / markitdown /"
            " unstructured (markitdown {peers[markitdown]}, unstructured {peers[unstructured]}). A"
            " character is right if the reader found its word and two neighbors in the same order;"
            " the true text of HTML pages from packages is unknown. A word is lost if the reader's"
            " text has it less often than the file. Seconds are processor seconds per file, on a"
            " busy machine.",
            "files.json",
            figures.file_values,
        ),
        Table(
            "files.json",
            figures.files,
            {
                "kind": "{kind}",
                "files": "{files}",
                "read": "{read}",
                "right characters": "{right}",
                "words lost": "{lost}",
                "seconds a file": "{seconds}",
            },
        ),
        Paragraph(
            "One command built an index of these files in {build[cpu_seconds]:.0f} s of processor"
            " time for {build[tokens]:,} tokens; {build[rejected]} files were left out."
            " {pages[queries]} searches found {pages[passages]} PDF passages;"
            " {pages[passages on their page]} begin with words of the page that they cite, as"
            " PDFium reads it. A sync after {sync[deleted]} deletions and {sync[renamed]} renamings"
            " took {sync[cpu_seconds]:.1f} s and left {sync[after]} documents, one per file.",
            "files.json",
        ),
    ],
    "server": [
        Table(
            "cpu_serve.json",
            figures.server_phases,
            {
                "clients": "{clients}",
                "requests": "{requests:,}",
                "per second": "{requests_per_second:.0f}",
                "p50, ms": "{milliseconds[p50]:,.0f}",
                "p99, ms": "{milliseconds[p99]:,.0f}",
                "memory, MiB": (
                    "{resident_mib[0]:.0f}, {resident_mib[1]:.0f}, {resident_mib[6]:.0f},"
                    " {resident_mib[12]:.0f}"
                ),
            },
        ),
        Paragraph(
            "`benchmarks/cpu/serve.py`: searches for ten documents among {documents} long ones"
            " (this project's pages), for {one_client[seconds]:.0f} seconds in each phase, with"
            " {threads} threads on {cores} {processor} cores, which the clients share (load before:"
            " {load_before:.1f}). Memory is the server's resident set at the beginning of a phase,"
            " after a twelfth, half and all of it.",
            "cpu_serve.json",
        ),
    ],
    "hostile": [
        Table(
            "cpu_serve_hostile.json",
            figures.attacks,
            {
                "attacker": "{attack}",
                "p50, ms": "{milliseconds[p50]:.0f}",
                "p99, ms": "{milliseconds[p99]:.0f}",
                "p99 / quiet": "{ratio:.1f}",
                "memory of the server at most, MiB": "{memory:.0f}",
                "the attacker got": "{got}",
            },
        ),
        Paragraph(
            "`benchmarks/cpu/serve.py --hostile`: one client asks a question after the other for"
            " {quiet[seconds]:.0f} seconds in each phase; {threads} threads on {cores} {processor}"
            " cores, shared by client and attacker (load before: {load_before:.1f}).",
            "cpu_serve_hostile.json",
        ),
    ],
    "fuzzed": [
        Paragraph(
            "`python -m rigs.fuzz.server --minutes {minutes:g} --seed {seed}`: {requests:,}"
            " requests through raw connections ({statuses}), and {schemathesis[cases]:,} cases of"
            " schemathesis. Findings: {findings}. The server's memory was"
            " {resident_mib[after_a_fifth]:.0f} MiB after a fifth of the time, and"
            " {resident_mib[most]:.0f} MiB at most.",
            "http_fuzz.json",
            figures.fuzzed,
        )
    ],
    "engines": [
        Table(
            "engines.json",
            figures.engines,
            {
                "": "{name}",
                "queries": "{queries}",
                "build s": "{build s}",
                "disk MB": "{disk MB}",
                **{
                    name: f"{{{name}[p50]:.1f}} / {{{name}[p99]:.1f}}"
                    for name in (
                        *("vectors", "words, a sentence", "words, a question"),
                        *("hybrid", "hybrid under a filter"),
                    )
                },
                "memory MB": "{memory MB}",
                "recall": "{recall}",
                "same by words": "{same by words}",
            },
            transposed=True,
        ),
        Paragraph(
            "`benchmarks/cpu/engines.py`, {passages:,} passages of 560 characters, 256 dimensions;"
            " searches in milliseconds, p50 / p99; {machine[cores]} {machine[processor]} cores;"
            " load before: {machine[load before]:.1f}.",
            "engines.json",
        ),
    ],
    "needle": [
        Table(
            "needle.json",
            figures.needles,
            {
                "tokens of a document": "{length:,}",
                **{
                    name: f"{{{name}}}"
                    for name in (
                        *("document vectors", "passage vectors", "words", "hybrid"),
                        "hybrid, reranked by MaxSim",
                    )
                },
            },
        ),
        Paragraph(
            "`{command}`: {seeds} needles at each of {depths} depths, {distractors} more documents"
            " of each length; the share of right documents in first place, and of needles in the"
            " first passage of their document.",
            "needle.json",
            figures.needle_values,
        ),
    ],
    "precision": [
        Table(
            "precision.json",
            figures.precisions,
            {
                "set": "{set}",
                "float32": "{float32[ndcg@10]:.4f}",
                "bfloat16": "{bfloat16[ndcg@10]:.4f}{shared}",
                "cosine of document vectors to float32's: mean, smallest": (
                    "{bfloat16[mean_cosine]:.6f}, {bfloat16[smallest_cosine]:.6f}"
                ),
            },
        )
    ],
    "gpu-encode": [
        Table(
            "gpu.json",
            figures.encodings,
            {
                "tokens a second": "{shape}",
                "ours": "{ours, ours[per_s]:,.0f}",
                "without graphs": "{ours, launches[per_s]:,.0f}",
                "plain torch": "{ours, torch[per_s]:,.0f}",
                "ModernBERT, banded": "{ModernBERT banded[per_s]:,.0f}",
                "ModernBERT, sdpa": "{ModernBERT sdpa[per_s]:,.0f}",
                "floor": "{floor_rate:,.0f}",
            },
        )
    ],
    "gpu-operations": [
        Table(
            "gpu.json",
            "operations",
            {
                "ms for 512 splits of 256": "{name}",
                "floor": "{floor_ms:.3f}",
                "kernel": "{kernel_ms:.3f}",
                "torch.compile": "{compiled_ms:.3f}",
                "torch": "{torch_ms:.3f}",
            },
            where={"splits": 512},
        )
    ],
    "gpu-search": [
        Table(
            "gpu.json",
            figures.gpu_searches,
            {
                "ms for queries at once": "{name}",
                "recall@10": "{recall:.3f}",
                "1": "{ms_1:,.2f}",
                "16": "{ms_16:,.2f}",
                "256": "{ms_256:,.2f}",
            },
        )
    ],
    "gpu-dynamic-mix": [
        Paragraph(
            "Dynamic mixing takes {floor} times its floor and {compiled} times torch.compile's time"
            " on 512 splits; on 64 it is {compiled_64} times as fast. The earlier form, one program"
            " that keeps the shares in registers, and the form of today, in milliseconds:",
            "gpu.json",
            figures.mix_ratios,
        ),
        Table(
            "gpu.json",
            figures.dynamic_mixes,
            {
                "splits": "{splits}",
                **{
                    head: f"{{one pass, {name}[ms]:#.3g}} → {{two passes, {name}[ms]:#.3g}}"
                    for head, name in {
                        "forward": "forward",
                        "backward": "backward",
                        "over gate, GELU": "over gate gelu",
                        "over gate, ReLU²": "over gate relu2",
                    }.items()
                },
            },
        ),
    ],
    "gpu-counts": [
        Table(
            "gpu_counts.json",
            figures.gpu_counts,
            {"": "{label}", "not fused": "{before}", "now": "{now}", "floor": "{floor}"},
        )
    ],
    "passages": [
        *passage_table("chunking-eval"),
        *passage_table("qmsum-long"),
        *passage_table("cuad-long"),
    ],
    "quotations": [
        Table(
            "quotes.json",
            figures.quotations,
            {
                "corpus": "{name}",
                "true": "{verdicts[true][found]} found",
                "altered: number, negation, order, word": "{changed} altered",
                "moved": "{verdicts[moved][elsewhere]} elsewhere",
                "invented": "{verdicts[invented][absent]} absent",
                "right": "{right} of {quotations}",
                "false alarms": "{false_alarms}",
                "misses": "{misses}",
                "ms": "{ms:.0f}",
            },
        )
    ],
    "named-and-stripped": [Table("legalbench_rag.json", figures.all_questions, _NAMED_COLUMNS)],
    "filings": [
        Table(
            "financebench.json",
            figures.filings,
            {
                "": "{measure}",
                "among all filings": "{all:.3f}",
                "within the right filing": "{right:.3f}",
            },
        )
    ],
    "citations": [
        Table(
            "citations.json",
            figures.citations,
            {
                "": "{name}",
                "found of asked": "{found} of {questions}",
                "`heading`": "{nearest:.2f}",
                "of the passage's beginning": "{at the passage's beginning:.2f}",
                "of 200 words, as chunkers cite": "{at the beginning of 200 words:.2f}",
            },
        )
    ],
    "agents": [
        Table(
            "agents.json",
            figures.agents,
            {
                "tools": "{name}",
                "answers shown": "{found} of {questions}",
                "steps, mean (median)": "{steps} ({median_steps:g})",
                "tokens read, mean (median)": "{tokens:,} ({median_tokens:,})",
            },
        )
    ],
    "models": [
        Table(
            "quality.json",
            figures.quality(
                {
                    "default": "embedded, default",
                    "maxsim": 'embedded, reranked (`rerank="maxsim"`)',
                    "vectors": "embedded, vectors",
                    "index_minilm": "MiniLM, passages of 128 tokens, default search",
                    "minilm": "MiniLM, vectors, cut at its 256 tokens",
                }
            ),
            {
                "search": "{label}",
                "short texts (4 sets)": "{short}",
                "meetings": "{qmsum-long}",
                "textbooks": "{openstax-ccby-long}",
            },
        )
    ],
    "languages": [
        Table(
            "xquad.json",
            figures.languages,
            {
                "search": "{label}",
                **{name: f"{{{name}:.3f}}" for name in ("de", "es", "ru", "zh", "ar", "en")},
            },
        )
    ],
    "contracts": [
        Table(
            "passages.json",
            figures.passage_settings(
                {
                    "ours, words and vectors, 256 tokens (default)": "default",
                    "ours, words and vectors, 128 tokens": "passages of 128 tokens, half the text",
                    "ours, words and vectors, 256 tokens, 64 shared": (
                        "overlap of 64 tokens, a quarter more text"
                    ),
                    "ours, vectors, 256 tokens": "`--mode dense`",
                    "ours, default, reranked by int8 token vectors": "`--rerank token-vectors`",
                }
            ),
            {
                "setting": "{label}",
                "within a contract": "{cuad-long document[mean][recall@5]:.3f}",
                "over all contracts": "{cuad-long corpus[mean][recall@5]:.3f}",
            },
        )
    ],
    "transcripts": [
        Table(
            "passages.json",
            figures.passage_settings(
                {
                    "ours, words and vectors, 256 tokens (default)": "default",
                    "ours, words and vectors, 256 tokens, 64 shared": (
                        "`passage_overlap=64`, a quarter more text"
                    ),
                    "ours, words and vectors, 128 tokens": "128 tokens, half the text",
                    "ours, vectors, 256 tokens": '`mode="dense"`',
                    "ours, default, reranked by int8 token vectors": '`rerank="token-vectors"`',
                }
            ),
            {
                "setting": "{label}",
                "within a meeting": "{qmsum-long document[mean][recall@5]:.3f}",
                "over all meetings": "{qmsum-long corpus[mean][recall@5]:.3f}",
            },
        )
    ],
    "passage-sizes": [
        Table(
            "passages.json",
            figures.passage_settings(
                {
                    "ours, words and vectors, 256 tokens (default)": "256 tokens (default)",
                    "ours, words and vectors, 256 tokens, 64 shared": "256 tokens, overlap of 64",
                    "ours, words and vectors, 128 tokens": "128 tokens",
                }
            ),
            {
                "passages": "{label}",
                "chunking-eval": "{chunking-eval document[mean][recall@5]:.3f}",
                "within a meeting": "{qmsum-long document[mean][recall@5]:.3f}",
                "within a contract": "{cuad-long document[mean][recall@5]:.3f}",
            },
        )
    ],
    "sizes": [
        Table(
            "growth.json",
            figures.index_sizes,
            {
                "passages": "{passages:,}",
                "disk": "{disk}",
                "reader's own memory": "{reader MB:.0f} MB",
                "and mapped files, at most": "{mapped:.1f} GB",
                "build, vectors given": "{build}",
                "hybrid search, p50 / p99": "{hybrid[p50]:.2g} / {hybrid[p99]:.2g} ms",
            },
        )
    ],
    "growth": [
        Table(
            "growth.json",
            figures.growth,
            {
                "": "{label}",
                "125,000 documents of 8": "{short}",
                "1,000 documents of 1,000": "{long}",
                "peers": "{peers}",
            },
        )
    ],
    "operators": [
        Table(
            "growth.json",
            figures.operators,
            {
                "no operator": "{hybrid search}",
                '`"two words"`': "{hybrid with a phrase}",
                "`+word`": "{hybrid with `+word`}",
                "`begin*`": "{hybrid with `begin*`}",
                "`typo~`": "{hybrid with `typo~`}",
            },
        )
    ],
    "scale": scale,
}


# ---- pages ----


def block(name: str) -> str:
    """Return the block of this name in Markdown.

    Raises:
        KeyError: there is no such block.
    """
    parts = BLOCKS[name]
    if callable(parts):
        return parts()
    return "\n\n".join(part.write() for part in parts)


def renew(text: str) -> str:
    """Return a page with its blocks as the results have them.

    Raises:
        KeyError: the page names a block that does not exist.
    """
    return _BLOCK.sub(lambda match: f"{match[1]}{_wrapped(block(match[2]))}\n{match[3]}", text)


def _wrapped(text: str) -> str:
    """Wrap paragraphs to the width of pages; tables keep their lines."""
    return _PARAGRAPH.sub(
        lambda match: textwrap.fill(
            " ".join(match[0].split()), WIDTH, break_long_words=False, break_on_hyphens=False
        ),
        text,
    )


def pages() -> list[Path]:
    """Return the pages that hold figures."""
    paths = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/*/README.md")]
    paths += ROOT.glob("benchmarks/notes/*.md")
    paths += ROOT.glob("aveyb_retrieval/models/*/README.md")
    return sorted(path for path in paths if "<!-- figures: " in path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 if a page is not current",
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
    done = "other figures than the results" if args.check else "written"
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {done}")
    sys.exit(1 if args.check and stale else 0)


if __name__ == "__main__":
    main()
