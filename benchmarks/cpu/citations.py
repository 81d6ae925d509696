"""What stands beside the right answer: is it cited under its heading, on its page, by the sentence
that answers?

    python benchmarks/cpu/citations.py --data ../shared/data --json
    benchmarks/results/citations.json

Questions are asked of some documents; of the first ten passages, the first that holds at least half
of the answer is looked at. Its heading is right where it is the nearest over the answer, and true
where that one is within its section ("5. Term" for "5.2 Notice"). What chunkers cite is beside it:
the heading over the beginning of the same passage, and over the beginning of 200 words that hold
the answer.

    books     chapters of textbooks with their authors' questions; an answer is the paragraph that
              has most of the words of the authors' solution (its weight from .8); headings are the
              books', as Markdown
    plain     the same without the marks: headings are lines between blank lines pdf       the same
    as PDF files, headings in larger type; pages are those that pdfium finds the answer on terms
    sections of other textbooks, flattened by their publisher's script: a key term stands in a line
    of its own
              where it is defined, the question is "what is <term>?". A heading is a line without a
              stop between a paragraph's end and a paragraph of 120 characters
    contracts a contract's clauses that lawyers marked; a heading is a caption with its number ("5.2
    Notice.", "Section
              5. Term", "ARTICLE V TERM"), alone or at the head of its paragraph, of contracts with
              ten of them
    squad, chunking-eval without headings: does the best sentence share half of itself or of the
              answer with the answer?
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

import pypdfium2
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import Paragraph, SimpleDocTemplate

from aveyb_retrieval import Hit, Retriever, build_index, hits_to_prompt
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Span = tuple[int, int]
_MARK = re.compile(r"^(#+) (.+)\n", re.MULTILINE)
_BLOCK = re.compile(r"\S[^\n]*")
_CAPTION = re.compile(
    r"^[ \t]*(?:(?P<article>ARTICLE|Article)[ ]+(?:[IVXLC]+|\d+)[.:]?|(?:SECTION|Section|§)?[ ]*"
    r"(?P<number>\d{1,2}(?:\.\d{1,2}){0,3})[.:)]?)[ \t]+"
    r"(?P<words>[A-Z][\w'’&/,()-]*"  # as it is written  # noqa: RUF001
    r"(?:[ ](?:[A-Z(][\w'’&/,()-]*|of|and|or|the|to|in|for|by|on|with|a|from|as|upon|&|/)){0,9})"  # noqa: RUF001
    r"(?:[.:](?=\s)|[ \t]*$)",
    re.MULTILINE,
)
_NUMBER = re.compile(
    r"^(?:(?:article|section)\s+|§\s*)?(?:[\d.]+|[IVXLC]+\b)[.:)]?\s+(?=\S)", re.IGNORECASE
)
_CLAUSE = re.compile(r" > [\d.]+$")
KINDS = (
    "nearest",
    "true",
    "at the passage's beginning",
    "at the beginning of 200 words",
    "page",
    "sentence",
)


class Title(NamedTuple):
    """A heading of a text: where it begins, its words, and those of the sections it is in, the
    nearest first.
    """

    start: int
    words: str
    around: tuple[str, ...] = ()


@dataclass
class Document:
    """A text with its headings, ascending."""

    text: str
    title: str = ""
    headings: list[Title] = field(default_factory=list)

    def over(self, place: int) -> Title | None:
        """The nearest heading over a character."""
        number = bisect_right([each.start for each in self.headings], place)
        return self.headings[number - 1] if number else None


class Question(NamedTuple):
    """A question, the id of its document, and the characters that answer it."""

    text: str
    document: str
    answers: list[Span]


Set = tuple[dict[str, Document], list[Question]]


def nested(found: Iterable[tuple[int, str, int]]) -> list[Title]:
    """Headings with those they are in, from (start, words, depth); a heading is in the last one
    that is less deep.
    """
    titles: list[Title] = []
    open_: list[tuple[int, str]] = []
    for start, words, depth in found:
        open_ = [each for each in open_ if each[0] < depth]
        titles.append(Title(start, words, tuple(each for _, each in reversed(open_))))
        open_.append((depth, words))
    return titles


def _books(data: Path, count: int, *, marked: bool) -> Set:
    folder = data / "train"
    asked = [each for _, each in read_records(folder / "openstax_books.questions.jsonl.zst")]
    asked = [each for each in asked if each.get("silver_score", 0) >= 0.8]
    names = sorted({each["document_id"] for each in asked})
    names = random.Random(0).sample(names, min(count, len(names)))
    documents, questions = {}, []
    for _, row in read_records(folder / "openstax_books.docs.jsonl.zst"):
        if row["_id"] not in names:
            continue
        found, removed = [], [(0, 0)]  # up to a character, how many before it
        for mark in _MARK.finditer(row["text"]):
            found.append((mark.start() - removed[-1][1], mark[2], len(mark[1])))
            removed.append((mark.end(), removed[-1][1] + (0 if marked else len(mark[1]) + 1)))
        text = row["text"] if marked else _MARK.sub(r"\2\n", row["text"])
        documents[row["_id"]] = Document(text, row["title"], nested(found))
        for each in asked:
            if each["document_id"] == row["_id"]:
                start, stop = each["silver_span"]
                by = removed[bisect_right(removed, (start, 1 << 60)) - 1][1]
                questions.append(Question(each["query"], row["_id"], [(start - by, stop - by)]))
    return documents, questions


def books(data: Path, count: int) -> Set:
    """Chapters as Markdown."""
    return _books(data, count, marked=True)


def plain(data: Path, count: int) -> Set:
    """Chapters whose headings are lines."""
    return _books(data, count, marked=False)


def terms(data: Path, count: int) -> Set:
    """Sections in which key terms are lines, and a question for each term."""
    documents, questions = {}, []
    rows = [each for _, each in read_records(data / "openstax-ccby-long" / "corpus.jsonl")]
    for row in random.Random(0).sample(rows, len(rows)):
        blocks = list(_BLOCK.finditer(row["text"]))
        found, asked = [], []
        for before, block, after in zip(blocks, blocks[1:], blocks[2:], strict=False):
            words = block[0].strip()
            if len(words.split()) <= 12 and words[0].isupper() and words[-1] not in ".,;:!)":
                if (
                    before[0].rstrip()[-1] in '.!?”")'
                    and len(after[0]) >= 120
                    and after[0][0].isupper()
                ):
                    found.append((block.start(), words, 1))
            elif (
                words[0].islower()
                and 1 < len(words.split()) <= 4
                and after[0][0] in ",.;("
                and len(after[0]) > 60
            ):
                stop = (
                    after.start() + len(re.split(r"(?<=[a-z])[.!?] ", after[0], maxsplit=1)[0]) + 1
                )
                asked.append(
                    Question(
                        f"what is {words}?", row["_id"], [(block.start(), min(stop, after.end()))]
                    )
                )
        document = Document(row["text"], row["title"], nested(found))
        asked = [each for each in asked if document.over(each.answers[0][0])]
        if len(found) > 2 and asked:
            documents[row["_id"]] = document
            questions += asked
        if len(documents) == count:
            break
    return documents, questions


def _depth(match: re.Match[str]) -> int:
    return (
        0 if match["article"] else 1 + match["number"].count(".") - match["number"].endswith(".0")
    )


def contracts(data: Path, count: int) -> Set:
    """Contracts with numbered captions."""
    rows = [each for _, each in read_records(data / "cuad-long" / "corpus.jsonl")]
    documents = {}
    for row in random.Random(0).sample(rows, len(rows)):
        found = [
            (each.start(), each["words"], _depth(each)) for each in _CAPTION.finditer(row["text"])
        ]
        if len(found) >= 10:
            documents[row["_id"]] = Document(row["text"], row["title"], nested(found))
        if len(documents) == count:
            break
    return documents, [each for each in spanned(data, "cuad-long") if each.document in documents]


def spanned(data: Path, name: str) -> list[Question]:
    """The questions of a set with true spans."""
    dataset = load_dataset(str(data / name))
    asked = dataset.queries[dataset.split()[0]]
    return [
        Question(asked[query], doc, spans)
        for query, of in dataset.spans.items()
        for doc, spans in of.items()
    ]


def squad(data: Path, count: int) -> Set:
    """Articles without headings, and what crowd workers asked."""
    rows = [each for _, each in read_records(data / "train" / "squad.docs.jsonl.zst")]
    documents = {
        row["_id"]: Document(row["text"], row["title"])
        for row in random.Random(0).sample(rows, count)
    }
    asked = [
        each
        for _, each in read_records(data / "train" / "squad.questions.jsonl.zst")
        if "answer_span" in each
    ]
    return documents, [
        Question(each["query"], each["document_id"], [tuple(each["answer_span"])])
        for each in asked
        if each["document_id"] in documents
    ]


def chunking(data: Path, count: int) -> Set:
    """Long texts without headings, and questions with all of their excerpts."""
    rows = [each for _, each in read_records(data / "chunking-eval" / "corpus.jsonl")]
    return {row["_id"]: Document(row["text"], row["title"]) for row in rows}, spanned(
        data, "chunking-eval"
    )


SETS: dict[str, tuple[Callable[[Path, int], Set], int]] = {
    "books": (books, 8),
    "plain": (plain, 8),
    "pdf": (plain, 4),
    "terms": (terms, 100),
    "contracts": (contracts, 60),
    "squad": (squad, 24),
    "chunking-eval": (chunking, 5),
}


# --- measuring


def letters(text: str) -> tuple[str, list[int]]:
    """Return the letters and digits of a text, and where each stands in it."""
    places = [i for i, character in enumerate(text) if character.isalnum()]
    return "".join(text[i] for i in places).casefold(), places


def same(first: str, second: str) -> bool:
    """Whether two headings are the same, whatever their numbers, case and punctuation, and what
    they are within.
    """
    return bare(first) == bare(second)


def bare(heading: str) -> str:
    """The letters of a heading without its number and without what it is within."""
    return letters(_NUMBER.sub("", heading.rpartition(" > ")[2]))[0]


def common(span: Span, spans: Sequence[Span]) -> int:
    """How many characters of some spans are in one."""
    return sum(max(0, min(span[1], stop) - max(span[0], start)) for start, stop in spans)


def first_with(hits: Iterable[Hit], question: Question, answers: Sequence[Span]) -> Hit | None:
    """The first hit that holds half of one of the answers."""
    for hit in hits:
        span = hit.span if hit.id.removesuffix(".pdf") == question.document else None
        if span and any(2 * common(span, [each]) >= each[1] - each[0] for each in answers):
            return hit
    return None


def write_pdf(path: Path, document: Document) -> None:
    """Write a document as PDF, headings in larger type."""

    styles = getSampleStyleSheet()
    starts = {each.start: len(each.around) for each in document.headings}
    parts = []
    for block in _BLOCK.finditer(document.text):
        depth = starts.get(block.start())
        parts.append(
            Paragraph(
                escape(block[0]), styles["BodyText" if depth is None else f"Heading{depth + 1}"]
            )
        )
    SimpleDocTemplate(str(path), pagesize=A4, title=document.title).build(parts)


def pages_of(path: Path) -> list[str]:
    """The letters of each page of a PDF, as pdfium reads them."""
    with pypdfium2.PdfDocument(path) as pdf:
        return [letters(page.get_textpage().get_text_range())[0] for page in pdf]


@dataclass
class Asked:
    """A question with the first hit that holds its answer; `answers` are in the text that was
    indexed.
    """

    question: Question
    document: Document
    hit: Hit
    answers: list[Span]
    pages: list[str] | None  # the letters of each, of a PDF

    def judge(self) -> dict[str, bool]:
        """What of the hit is right."""
        assert self.hit.span is not None  # of a passage
        best, begin = self.hit.best_sentence, self.hit.span[0]
        row = {
            "sentence": (
                best is not None
                and any(
                    2 * common(best, [each]) >= min(best[1] - best[0], each[1] - each[0])
                    for each in self.answers
                )
            )
        }
        # in the text as it was given: where the answer begins, and the passage
        start = min(each[0] for each in self.answers if common(self.hit.span, [each]))
        start, moved = max(start, begin), self.question.answers[0][0] - self.answers[0][0]
        start, begin = (
            (start, begin) if self.pages is None else (start + moved, max(begin + moved, 0))
        )
        if right := self.document.over(start):
            cited = _CLAUSE.sub("", self.hit.heading)  # "5. Term > 5.2" is under "5. Term", nearer
            row["nearest"] = same(cited, right.words)
            row["true"] = any(same(cited, each) for each in (right.words, *right.around))
            for kind, place in zip(
                KINDS[2:4], (begin, chunk(self.document.text, start)), strict=True
            ):
                over = self.document.over(place)
                row[kind] = over is not None and same(over.words, right.words)
        if self.pages is not None:
            said = letters(self.document.text[slice(*self.question.answers[0])])[0]
            on = [
                n for n, page in enumerate(self.pages, 1) if said[:30] in page or said[-30:] in page
            ]
            row["page"] = self.hit.page in range(on[0], on[-1] + 1) if on else False
        return row

    def shown(self, row: dict[str, bool]) -> dict[str, Any]:
        """What a person needs to see what is wrong."""
        text, best = self.hit.text, self.hit.best_sentence
        right = self.document.over(self.question.answers[0][0])
        return {
            "question": self.question.text,
            "cited": hits_to_prompt([self.hit]).split("\n", 1)[0],
            "right": right and right.words,
            "row": row,
            "best": best and text[slice(*best)],
            "answer": [text[start:stop] for start, stop in self.answers],
            "passage": self.hit.passage,
        }


def asked(name: str, documents: dict[str, Document], questions: list[Question]) -> Iterator[Asked]:
    """Ask the questions of one set, and yield those whose answer is found."""
    with tempfile.TemporaryDirectory() as top:
        root, paths = (
            Path(top) / "ix",
            {key: Path(top) / "files" / f"{key}.pdf" for key in documents},
        )
        if name == "pdf":
            paths[questions[0].document].parent.mkdir()
            for key, document in documents.items():
                write_pdf(paths[key], document)
            build_index(Path(top) / "files", root)
        else:
            build_index(
                [
                    {"_id": key, "title": each.title, "text": each.text}
                    for key, each in documents.items()
                ],
                root,
            )
        pages = {key: pages_of(path) for key, path in paths.items()} if name == "pdf" else {}
        with Retriever.load(root) as retriever:
            read = (
                {each.id.removesuffix(".pdf"): letters(each.text) for each in retriever.documents()}
                if pages
                else {}
            )
            found = retriever.search([each.text for each in questions], k=10, unit="passage")
            for question, hits in zip(questions, found, strict=True):
                document, answers = documents[question.document], question.answers
                if pages:
                    answers = list(moved(document.text, answers, *read[question.document]))
                hit = first_with(hits, question, answers)
                if hit is not None:
                    yield Asked(question, document, hit, answers, pages.get(question.document))


def measure(name: str, data: Path, most: int, wrong: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the shares of what is right in one set."""
    read, count = SETS[name]
    documents, questions = read(data, count)
    questions = random.Random(0).sample(questions, min(most, len(questions)))
    rows = []
    for each in asked(name, documents, questions):
        rows.append(each.judge())
        if not all(rows[-1].get(kind, True) for kind in ("nearest", "page", "sentence")):
            wrong.append({"set": name, **each.shown(rows[-1])})
    known = {kind: [row[kind] for row in rows if kind in row] for kind in KINDS}
    shares = {kind: round(sum(right) / len(right), 3) for kind, right in known.items() if right}
    return {
        "set": name,
        "documents": len(documents),
        "questions": len(questions),
        "found": len(rows),
        **shares,
    }


def chunk(text: str, place: int, size: int = 200) -> int:
    """Where the run of words begins that holds a character."""
    starts = [each.start() for each in re.finditer(r"\S+", text)][::size]
    return starts[max(bisect_right(starts, place) - 1, 0)]


def moved(text: str, answers: Sequence[Span], found: str, places: list[int]) -> Iterator[Span]:
    """Where the answers are in a text that was read again, by their letters."""
    for start, stop in answers:
        key = letters(text[start:stop])[0]
        if (at := found.find(key)) >= 0:
            yield places[at], places[at + len(key) - 1] + 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder of the sets"
    )
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--questions", type=int, default=600, help="at most so many of a set")
    parser.add_argument("--wrong", type=Path, help="write what was cited wrongly, as JSON lines")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    wrong: list[dict[str, Any]] = []
    for name in args.sets:
        rows.append(measure(name, args.data, args.questions, wrong))
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    if args.wrong:
        args.wrong.write_text("".join(json.dumps(each) + "\n" for each in wrong), encoding="utf-8")


if __name__ == "__main__":
    main()
