"""Pages a minute that OCR reads, by one processor and by several, and the words that it loses.

    python benchmarks/cpu/ocr.py

Needs the extras files and ocr, and tesseract with its data eng and osd. A page is a picture of A4
at 200 dots per inch, drawn with the text of pages in docs/, as a PDF; some lie on their side. The
numbers of processors take turns, so that a slow moment of the machine does not fall on one alone; a
figure is the best of the rounds. Processor seconds, which other work changes less, stand beside
those of the clock. A word is lost if the text that is read has it less often than the page.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import resource
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from aveyb_retrieval.documents.corpus import read_corpus
from aveyb_retrieval.documents.readers.ocr import installed_languages
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "ocr.json"
A4 = (1654, 2339)  # dots, at 200 an inch
LINES, CHARACTERS, TYPE = 42, 72, 34  # of a page; the size of type in dots
KINDS = {"upright": 0, "on its side": 90}


def page_texts(count: int) -> list[str]:
    """Return the texts of so many pages, from the pages of the documentation."""
    text = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    prose = [line for line in text.split("\n") if re.match(r"[A-Z][\w ,.'-]{40,}", line)]
    lines = textwrap.wrap(" ".join(prose), CHARACTERS)
    return ["\n".join(lines[LINES * n : LINES * (n + 1)]) for n in range(count)]


def draw(text: str, turn: int) -> Image.Image:
    """Return a picture of a page, turned by so many degrees."""
    picture = Image.new("L", A4, 252)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(TYPE)
    for number, line in enumerate(text.split("\n")):
        pen.text((140, 140 + 48 * number), line, font=font, fill=12)
    return picture.rotate(turn, expand=True)


def write_scan(path: Path, texts: list[str], turn: int) -> None:
    """Write pages as a PDF of pictures."""
    first, *others = [draw(text, turn) for text in texts]
    data = io.BytesIO()
    first.save(data, "PDF", save_all=True, append_images=others, resolution=200)
    path.write_bytes(data.getvalue())


def processor_seconds() -> float:
    """Return what the processes that this one has started and that have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, texts: list[str], processors: int) -> dict[str, Any]:
    """Read a folder with one scan on so many processors."""
    everyone = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(everyone)[:processors])  # the process that reads inherits it
    try:
        started, used = time.perf_counter(), processor_seconds()
        (record,) = read_corpus(folder, Reading(ocr_seconds=600))
        seconds, used = time.perf_counter() - started, processor_seconds() - used
    finally:
        os.sched_setaffinity(0, everyone)
    assert isinstance(record, Record), record
    words, read = (Counter(re.findall(r"\w+", text)) for text in (" ".join(texts), record.text))
    certainty = record.metadata["ocr_certainty"]
    return {
        "pages_a_minute": round(60 * len(texts) / seconds, 1),
        "processor_seconds_a_page": round(used / len(texts), 2),
        "words": words.total(),
        "words_lost": (words - read).total(),
        "certainty": round(sum(certainty) / len(certainty), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=8, help="pages of each kind")
    parser.add_argument("--rounds", type=int, default=2, help="of which the best counts")
    args = parser.parse_args()
    texts = page_texts(args.pages)
    numbers = sorted({1, min(2, os.cpu_count() or 1)})
    best: dict[tuple[str, int], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as top:
        folders = {kind: Path(top) / str(turn) for kind, turn in KINDS.items()}
        for kind, turn in KINDS.items():
            folders[kind].mkdir()
            write_scan(folders[kind] / "scan.pdf", texts, turn)
        for _ in range(args.rounds):
            for kind in KINDS:
                for processors in numbers:
                    row = measure(folders[kind], texts, processors)
                    print(kind, processors, row, flush=True)
                    before = best.get((kind, processors), row)
                    best[kind, processors] = max(
                        row, before, key=lambda each: each["pages_a_minute"]
                    )
    RESULTS.write_text(
        json.dumps(
            {
                "pages": args.pages,
                "languages": sorted(set(installed_languages() or ()) - {"osd"}),
                "machine": {"processors": os.cpu_count(), "system": platform.platform()},
                "load": round(os.getloadavg()[0], 1),
                "rows": [
                    {"kind": kind, "processors": processors, **row}
                    for (kind, processors), row in best.items()
                ],
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
