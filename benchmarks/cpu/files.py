"""A folder of 200 real files of six kinds: read, indexed, searched with page numbers, synchronised after deletions.

    PYTHONPATH=. python benchmarks/cpu/files.py PACKAGES [--markitdown PYTHON] [--folder DIR]

PACKAGES is a folder of unpacked Debian packages (`apt-get download`, `dpkg-deb -x`), which hold PDF, HTML, Markdown and
text. DOCX and EPUB files are made here from such texts. With `--markitdown`, the Python of an environment that has
markitdown converts the same files, alternating with our readers file by file, so that other load falls on both.

A page number is right if the page of that number, as PDFium gives it, holds the first words of the hit's passage. That
is checked for every passage of 40 queries, which are runs of words from pages drawn at random.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import docx
import pypdfium2

from aveyb_retrieval import Retriever, build_index, sync_index
from aveyb_retrieval.indexes.input.readers.base import Unreadable
from aveyb_retrieval.indexes.input.readers.formats import kind_of
from aveyb_retrieval.indexes.input.readers.process import FileReader
from tests.indexes.files import make_epub

RESULTS = Path(__file__).parents[1] / "results"
WANTED = {"pdf": 60, "html": 60, "text": 30, "markdown": 10, "docx": 20, "epub": 20}
LARGEST = 150_000  # bytes of a file, so that 200 are read and encoded in minutes
QUERIES = 40
WORDS = 8

CONVERTER = """
import os, sys, time
from markitdown import MarkItDown
convert = MarkItDown().convert
for line in sys.stdin:
    start = time.process_time()
    try:
        length = len(convert(line.rstrip("\\n")).text_content)
    except Exception:
        length = -1
    print(time.process_time() - start, length, flush=True)
"""


def collect(packages: Path, folder: Path) -> None:
    """Copy 200 files into a folder, and make those that packages do not hold."""
    rng = random.Random(0)
    found: dict[str, list[Path]] = {kind: [] for kind in WANTED}
    seen: set[str] = set()
    for path in sorted(packages.rglob("*")):
        kind = kind_of(path)
        if kind is None or path.is_symlink() or not path.is_file() or not 1000 < path.stat().st_size < LARGEST:
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in seen:
            seen.add(digest)
            found[kind.name].append(path)
    texts = [path for path in found["text"] + found["html"] if not path.suffix.endswith("gz")]
    shortfall = 0
    for kind in ("markdown", "text", "pdf", "html"):
        chosen = rng.sample(found[kind], min(WANTED[kind] + shortfall, len(found[kind])))
        shortfall += WANTED[kind] - len(chosen)
        for number, path in enumerate(chosen):
            suffix = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
            target = folder / kind / f"{number:03d}-{path.name.split('.')[0]}{suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    with FileReader(None, 64 << 20) as reader:
        for kind in ("docx", "epub"):
            (folder / kind).mkdir()
            for number in range(WANTED[kind]):
                source = texts[(number * 7 + (kind == "epub")) % len(texts)]
                source_kind = kind_of(source)
                assert source_kind is not None
                try:
                    text = reader.read(source, source_kind)[0].text
                except Unreadable:
                    text = "A text in another encoding."
                (folder / kind / f"{number:03d}.{kind}").write_bytes(make_file(kind, source.stem, text))


def make_file(kind: str, title: str, text: str) -> bytes:
    """A DOCX or EPUB file that holds a text."""
    paragraphs = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    if kind == "epub":
        escaped = [p.replace("&", "&amp;").replace("<", "&lt;") for p in paragraphs]
        chapters = ["".join(f"<p>{p}</p>" for p in escaped[i : i + 50]) for i in range(0, len(escaped), 50)]
        return make_epub([f"<body>{chapter}</body>" for chapter in chapters or [""]], title=title)
    document = docx.Document()
    document.core_properties.title = title
    for paragraph in paragraphs:
        is_heading = paragraph.startswith("#")
        document.add_paragraph(paragraph.lstrip("# "), style="Heading 1" if is_heading else None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.docx")
        document.save(str(path))
        return path.read_bytes()


def time_readers(folder: Path, markitdown: str | None) -> dict[str, dict[str, float]]:
    """CPU seconds of reading every file, by kind: ours (the process of the parsers included) and markitdown's."""
    table: dict[str, Counter[str]] = {}
    other = None
    if markitdown:
        other = subprocess.Popen(
            [markitdown, "-c", CONVERTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, bufsize=1,
        )  # fmt: skip
    with FileReader(None, 64 << 20) as reader:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            kind = kind_of(path)
            assert kind is not None
            row = table.setdefault(kind.name, Counter())
            row["files"] += 1
            row["bytes"] += path.stat().st_size
            before = cpu_seconds(reader)
            try:
                row["characters"] += len(reader.read(path, kind)[0].text)
            except Unreadable:
                row["unreadable"] += 1
            row["seconds"] += cpu_seconds(reader) - before
            if other is not None and other.stdin and other.stdout:
                other.stdin.write(f"{path}\n")
                seconds, length = other.stdout.readline().split()
                row["markitdown_seconds"] += float(seconds)
                row["markitdown_unreadable"] += int(length) < 0
                row["markitdown_characters"] += max(0, int(length))
    if other is not None and other.stdin:
        other.stdin.close()
        other.wait()
    return {kind: dict(row) for kind, row in sorted(table.items())}


def cpu_seconds(reader: FileReader) -> float:
    """Processor time of this process and of the one that parses."""
    total = time.process_time()
    if reader._process is not None and reader._process.poll() is None:
        fields = Path(f"/proc/{reader._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def check_pages(folder: Path, index: Path) -> dict[str, int]:
    """Search for words of PDF pages; compare the page of every passage found with PDFium's own text of that page."""
    rng = random.Random(1)
    pages: dict[str, list[list[str]]] = {}
    for path in sorted((folder / "pdf").rglob("*.pdf")):
        document = pypdfium2.PdfDocument(path.read_bytes())
        texts = [page.get_textpage().get_text_bounded() for page in document]
        pages[path.relative_to(folder).as_posix()] = [words(text) for text in texts]
        document.close()
    places = [(name, n) for name, found in pages.items() for n, page in enumerate(found) if len(page) > 60]
    counts: Counter[str] = Counter()
    with Retriever.load(index) as retriever:
        for name, number in rng.sample(places, QUERIES):
            start = rng.randrange(len(pages[name][number]) - WORDS - 20)
            query = " ".join(pages[name][number][start : start + WORDS])
            hits = retriever.search(query, k=10, unit="passage", filter={"type": "pdf"})
            counts["queries"] += 1
            counts["page found among the ten"] += any(h.id == name and h.page == number + 1 for h in hits)
            for hit in hits:
                assert hit.page is not None
                first = words(hit.passage or "")[:6]
                counts["passages"] += 1
                counts["passages on their page"] += contains(pages[hit.id][hit.page - 1], first)
    return dict(counts)


def words(text: str) -> list[str]:
    """The words of a text as they are compared: letters and digits only, hyphens at line ends joined."""
    return re.findall(r"[^\W_]+", re.sub(r"[\x02\u00ad\ufffe]\s*", "", text).lower())


def contains(page: list[str], run: list[str]) -> bool:
    """Whether words stand on a page one after the other; at its end, as far as the page goes."""
    whole = any(page[i : i + len(run)] == run for i in range(len(page) - len(run) + 1))
    return whole or any(page[-n:] == run[:n] for n in range(1, len(run)))


def check_sync(folder: Path, index: Path) -> dict[str, int]:
    """Delete, rename and change files; say what a sync counted, and whether the index then holds the folder's files."""
    rng = random.Random(2)
    before = len(Retriever.load(index))
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in (".pdf", ".html", ".txt", ".epub"))
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
        "before": before, "deleted": report.deleted, "renamed": report.renamed, "added": report.added,
        "unchanged": report.unchanged, "after": report.documents, "documents without a file": len(held - there),
        "cpu_seconds": round(time.process_time() - start, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--markitdown", help="Python of an environment that has markitdown.")
    parser.add_argument("--folder", type=Path, help="Where to put the files.  [default: a temporary folder]")
    parser.add_argument("--out", type=Path, default=RESULTS / "files.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / "files"
        index = (options.folder or Path(temporary)) / "index"
        collect(options.packages, folder)
        readers = time_readers(folder, options.markitdown)
        print(json.dumps(readers, indent=1), flush=True)
        start = time.process_time()
        report = build_index(folder, index, on_error="skip")
        built = {
            "documents": report.documents, "passages": report.passages, "tokens": report.tokens,
            "rejected": report.rejected, "notices": [n.reason for n in report.notices],
            "cpu_seconds": round(time.process_time() - start, 1),
        }  # fmt: skip
        if report.rejected_file is not None:
            rows = map(json.loads, report.rejected_file.read_text().splitlines())
            built["reasons"] = sorted(f"{Path(row['file']).name}: {row['reason']}" for row in rows)
        print(json.dumps(built, indent=1), flush=True)
        pages = check_pages(folder, index)
        sync = check_sync(folder, index)
    result = {
        "machine": platform.machine(), "processors": os.cpu_count(), "load": os.getloadavg()[0],
        "readers": readers, "build": built, "pages": pages, "sync": sync,
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(page_of(result))
    print(options.out.with_suffix(".md").read_text())


def page_of(result: dict) -> str:
    """The results as a page."""
    machine = f"{result['machine']}, {result['processors']} processors, load {result['load']:.1f} at the end"
    lines = [
        "# A folder of 200 real files",
        "",
        "Written by `benchmarks/cpu/files.py`. PDF, HTML, Markdown and text are those of Debian packages; DOCX and",
        f"EPUB are made from such texts. {machine}, shared with other work. Both columns are",
        "processor seconds of one run that alternates between the two readers file by file, and rough.",
        "",
        "| kind | files | MB | s/MB | characters | unreadable | markitdown s/MB | characters | unreadable |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, row in result["readers"].items():
        size = row["bytes"] / 1e6
        theirs = (
            f"{row['markitdown_seconds'] / size:.3f} | {row['markitdown_characters']:,} | "
            f"{row.get('markitdown_unreadable', 0)}"
            if "markitdown_seconds" in row
            else "- | - | -"
        )
        lines.append(
            f"| {kind} | {row['files']} | {size:.2f} | {row['seconds'] / size:.3f} | {row.get('characters', 0):,} | "
            f"{row.get('unreadable', 0)} | {theirs} |"
        )
    build, pages, sync = result["build"], result["pages"], result["sync"]
    lines += [
        "",
        f"Build: {build['documents']} documents, {build['passages']:,} passages, {build['tokens']:,} tokens, "
        f'{build["cpu_seconds"]} s of processor time; {build["rejected"]} left out by `on_error="skip"`.',
        *(f"- {reason}" for reason in build.get("reasons", [])),
        "",
        f"Pages: {pages['passages on their page']} of {pages['passages']} passages begin with words that PDFium finds",
        f"on the page of the hit's number. For {pages['page found among the ten']} of {pages['queries']} queries (runs",
        f"of {WORDS} words of a page drawn at random) that page is among the ten passages found.",
        "",
        f"Sync after deleting 20 files and renaming 10: {sync['deleted']} deleted, {sync['renamed']} renamed,",
        f"{sync['added']} added, {sync['unchanged']} unchanged; {sync['after']} documents, "
        f"{sync['documents without a file']} of them without a file; {sync['cpu_seconds']} s of processor time.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
