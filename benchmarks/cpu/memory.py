"""Peak memory of a build on one and on ten times the same corpus, with our encoder.

    python benchmarks/cpu/memory.py --model FOLDER          # None: the embedded model

The corpus is made of the docstrings of the Python standard library (`examples/stdlib_corpus.py`), each cut to
`--characters`, repeated under new ids. Each build runs in a process of its own. What may grow is FAISS's own vectors,
`4 * d` bytes each; the table shows them beside the difference.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "stdlib_corpus.py"


def rows(path: Path, documents: int, characters: int) -> Iterator[dict[str, Any]]:
    """`documents` documents of at most `characters`, from the start of the corpus again and again."""
    with path.open(encoding="utf-8") as handle:
        source = [json.loads(line) for line in handle]
    for number in range(documents):
        row = source[number % len(source)]
        yield {**row, "_id": str(number), "text": row["text"][:characters]}


def build(path: Path, out: Path, documents: int, characters: int, model: str | None) -> dict[str, float]:
    from aveyb_retrieval import build_index

    report = build_index(rows(path, documents, characters), out, model=model)
    faiss_bytes = sum(p.stat().st_size for p in out.rglob("*.faiss"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "documents": report.documents,
        "tokens": report.tokens,
        "seconds": report.seconds,
        "peak_mib": peak,
        "faiss_mib": faiss_bytes / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder; the embedded one if not given")
    parser.add_argument("--documents", type=int, default=200, help="of the smaller corpus")
    parser.add_argument("--characters", type=int, default=2000, help="of each document, at most")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--part", nargs=3, metavar=("CORPUS", "OUT", "DOCUMENTS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        corpus, out, documents = args.part
        print(json.dumps(build(Path(corpus), Path(out), int(documents), args.characters, args.model)))
        return
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        subprocess.run([sys.executable, EXAMPLE, corpus], check=True, capture_output=True)
        for documents in (args.documents, 10 * args.documents):
            more = ["--model", args.model] if args.model else []
            part = ["--part", corpus, Path(folder) / str(documents), str(documents)]
            command = [sys.executable, __file__, "--characters", str(args.characters), *more, *part]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            figures.append(json.loads(done.stdout.splitlines()[-1]))
    table = Table(title="Peak memory of a build", title_justify="left")
    for name in ("documents", "tokens", "seconds", "peak, MiB", "FAISS, MiB", "difference beyond FAISS"):
        table.add_column(name, justify="right")
    for f in figures:
        beyond = (f["peak_mib"] - f["faiss_mib"]) / (figures[0]["peak_mib"] - figures[0]["faiss_mib"]) - 1
        numbers = (f"{f['documents']:,}", f"{f['tokens']:,}", f"{f['seconds']:.0f}", f"{f['peak_mib']:.0f}")
        table.add_row(*numbers, f"{f['faiss_mib']:.1f}", f"{beyond:+.1%}")
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
