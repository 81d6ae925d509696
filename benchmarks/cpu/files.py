"""A folder of 300 files of fifteen kinds: read, indexed, searched with page numbers, synchronised
after deletions.

    PYTHONPATH=. python benchmarks/cpu/files.py PACKAGES [--markitdown PYTHON] [--unstructured
    PYTHON] [--folder DIR]

PACKAGES is a folder of unpacked Debian packages with documentation (`apt-get download`, `dpkg-deb
-x`). `make_files.py` says what becomes of them; it needs pandoc, LibreOffice (Writer, Calc,
Impress), git, poppler-utils and apt. The other two options name the Python of an environment that
has the peer. All readers take the same file before the next, so that other load falls on all.

A character of a file's text is right if its word stands in a run of three words that the reader's
text holds, too; a word is lost if the reader's text does not hold it as often as the file does. The
text of a file is known where the file was made here; that of PDF files that were found is what
poppler reads; that of HTML pages that were found is unknown.

A page number is right if the page on which a hit's passage begins, as PDFium gives it, holds its
first words. That is checked for every passage of 40 queries, which are runs of words from pages
drawn at random.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pypdfium2
from make_files import Folder, make

from aveyb_retrieval import Retriever, build_index, sync_index
from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.kinds import kind_of
from aveyb_retrieval.documents.readers.process import FileReader

RESULTS = Path(__file__).parents[1] / "results"
QUERIES = 40
WORDS = 8

CONVERTER = """
import json, os, sys
{start}
for line in sys.stdin:
    start = sum(os.times()[:4])  # programs that it calls included
    try:
        text = convert(line.rstrip("\\n"))
    except BaseException:
        text = None
    print(json.dumps([sum(os.times()[:4]) - start, text]), flush=True)
"""
PEERS = {
    "markitdown": (
        "from markitdown import MarkItDown; convert = lambda path:"
        " MarkItDown().convert(path).text_content"
    ),
    # its tagger is a download; one that only splits sentences takes its place, which changes labels
    # of parts, not texts
    "unstructured": (
        """
import spacy
blank = spacy.blank("en")
blank.add_pipe("sentencizer")
spacy.load = lambda *_, **__: blank
from unstructured.partition.auto import partition
convert = lambda path: chr(10).join(str(part) for part in partition(path, strategy="fast"))
"""
    ),
}


class Peer:
    """Another converter, in its own environment: text and processor seconds of a file after
    another.
    """

    def __init__(self, python: str, converter: str) -> None:
        self._process = subprocess.Popen(
            [python, "-c", converter], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, bufsize=1,
        )  # fmt: skip

    def read(self, path: Path) -> tuple[float, str | None]:
        """Seconds and text of a file; None where it could not be read."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        seconds, text = json.loads(self._process.stdout.readline())
        return seconds, text


class Ours:
    """The readers of this package, their process of its own included."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader

    def read(self, path: Path) -> tuple[float, str | None]:
        """Seconds and text of a file; None where it could not be read."""
        kind = kind_of(path)
        if kind is None:
            return 0.0, None
        before = cpu_seconds(self._reader)
        try:
            found, _ = self._reader.read(path, kind)
            text: str | None = f"{found.title}\n{found.text}"
        except Unreadable:
            text = None
        return cpu_seconds(self._reader) - before, text


def time_readers(folder: Folder, peers: dict[str, Peer]) -> dict[str, dict[str, Any]]:
    """Files read, right characters and processor seconds by kind, one file by each reader before
    the next.
    """
    table: dict[str, dict[str, Any]] = {}
    with FileReader(Limits()) as reader:
        readers = {"ours": Ours(reader), **peers}
        for path in sorted(p for p in folder.files.rglob("*") if p.is_file()):
            kind = path.parent.name
            truth = folder.truth / kind / f"{path.name}.txt"
            wanted = words(truth.read_text(encoding="utf-8")) if truth.exists() else []
            row = table.setdefault(
                kind, {"files": 0, "bytes": 0, "truth": 0, "words": 0, "readers": {}}
            )
            row["files"] += 1
            row["bytes"] += path.stat().st_size
            row["truth"] += sum(map(len, wanted))
            row["words"] += len(wanted)
            for name, one in readers.items():
                seconds, text = one.read(path)
                counts = row["readers"].setdefault(
                    name, {"seconds": 0.0, "read": 0, "right": 0, "words lost": 0}
                )
                counts["seconds"] += seconds
                counts["read"] += bool(text and text.strip())
                found = words(text or "")
                counts["right"] += right_characters(wanted, found)
                counts["words lost"] += (Counter(wanted) - Counter(found)).total()
    return table


def right_characters(wanted: list[str], found: list[str]) -> int:
    """Characters of those wanted words that stand in a run of three which was found, too, as often
    as it was found.
    """
    left = Counter(zip(found, found[1:], found[2:], strict=False))
    right = [False] * len(wanted)
    for place in range(len(wanted) - 2):
        run = (wanted[place], wanted[place + 1], wanted[place + 2])
        if left[run] > 0:
            left[run] -= 1
            right[place : place + 3] = [True] * 3
    return sum(len(word) for word, is_right in zip(wanted, right, strict=True) if is_right)


def cpu_seconds(reader: FileReader) -> float:
    """Processor time of this process and of the one that parses."""
    total = time.process_time()
    if reader._process is not None and reader._process.poll() is None:
        fields = Path(f"/proc/{reader._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def check_pages(folder: Path, index: Path) -> dict[str, int]:
    """Search for words of PDF pages; compare the page of every passage found with PDFium's own text
    of that page.
    """
    rng = random.Random(1)
    pages: dict[str, list[list[str]]] = {}
    for path in sorted(folder.rglob("*.pdf")):
        document = pypdfium2.PdfDocument(path.read_bytes())
        texts = [page.get_textpage().get_text_bounded() for page in document]
        pages[path.relative_to(folder).as_posix()] = [words(text) for text in texts]
        document.close()
    places = [
        (name, n) for name, found in pages.items() for n, page in enumerate(found) if len(page) > 60
    ]
    counts: Counter[str] = Counter()
    with Retriever.load(index) as retriever:
        for name, number in rng.sample(places, QUERIES):
            start = rng.randrange(len(pages[name][number]) - WORDS - 20)
            query = " ".join(pages[name][number][start : start + WORDS])
            hits = retriever.search(query, k=10, unit="passage", filter={"type": "pdf"})
            counts["queries"] += 1
            counts["page found among the ten"] += any(
                h.id == name and h.page == number + 1 for h in hits
            )
            for hit in hits:
                assert hit.pages is not None
                first = words(hit.passage or "")[:6]
                counts["passages"] += 1
                counts["passages on their page"] += contains(pages[hit.id][hit.pages[0] - 1], first)
    return dict(counts)


def words(text: str) -> list[str]:
    """The words of a text as they are compared: letters and digits only, hyphens at line ends
    joined.
    """
    return re.findall(r"[^\W_]+", re.sub(r"[\x02\u00ad\ufffe]\s*", "", text).lower())


def contains(page: list[str], run: list[str]) -> bool:
    """Whether words stand on a page one after the other; at its end, as far as the page goes."""
    whole = any(page[i : i + len(run)] == run for i in range(len(page) - len(run) + 1))
    return whole or any(page[-n:] == run[:n] for n in range(1, len(run)))


def check_sync(folder: Path, index: Path) -> dict[str, int]:
    """Delete, rename and change files; say what a sync counted, and whether the index then holds
    the folder's files.
    """
    rng = random.Random(2)
    before = len(Retriever.load(index))
    files = sorted(
        p
        for p in folder.rglob("*")
        if p.is_file() and p.suffix in (".pdf", ".html", ".docx", ".epub")
    )
    chosen = rng.sample(files, 30)
    for path in chosen[:20]:
        path.unlink()
    for path in chosen[20:]:
        path.rename(path.with_name("moved-" + path.name))
    start = time.process_time()
    report = sync_index(folder, index, on_error="skip")
    with Retriever.load(index) as retriever:
        held = {document.id for document in retriever.documents()}
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return {
        "before": before,
        "deleted": report.deleted,
        "renamed": report.renamed,
        "added": report.added,
        "unchanged": report.unchanged,
        "after": report.documents,
        "documents without a file": len(held - there),
        "cpu_seconds": round(time.process_time() - start, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path)
    for name in PEERS:
        parser.add_argument(f"--{name}", help=f"Python of an environment that has {name}.")
    parser.add_argument(
        "--folder", type=Path, help="Where to put the files.  [default: a temporary folder]"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "files.json")
    options = parser.parse_args()
    chosen = {name: getattr(options, name) for name in PEERS if getattr(options, name)}
    with tempfile.TemporaryDirectory() as temporary:
        place = options.folder or Path(temporary)
        folder = make(options.packages, place)
        peers = {
            name: Peer(python, CONVERTER.format(start=PEERS[name]))
            for name, python in chosen.items()
        }
        readers = time_readers(folder, peers)
        print(json.dumps(readers, indent=1), flush=True)
        start = time.process_time()
        report = build_index(folder.files, place / "index", on_error="skip")
        built = {
            "documents": report.documents, "passages": report.passages, "tokens": report.tokens,
            "rejected": report.rejected, "cpu_seconds": round(time.process_time() - start, 1),
        }  # fmt: skip
        if report.rejected_file is not None:
            rows = map(json.loads, report.rejected_file.read_text().splitlines())
            built["reasons"] = sorted(f"{Path(row['file']).name}: {row['reason']}" for row in rows)
        print(json.dumps(built, indent=1), flush=True)
        pages = check_pages(folder.files, place / "index")
        sync = check_sync(folder.files, place / "index")
    result = {
        "machine": platform.machine(), "processors": os.cpu_count(), "load": os.getloadavg()[0],
        "peers": {name: version(python, name) for name, python in chosen.items()},
        "readers": readers, "build": built, "pages": pages, "sync": sync,
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def version(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
