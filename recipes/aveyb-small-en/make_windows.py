"""Cut windows of documents, with questions or headings whose place in them is known: what passages are trained on.

    texts.jsonl    {"text", "kind", "source"}: the passages (behind their title) and queries of each window in turn,
                   for the teacher
    windows.jsonl  {"title", "text", "passage_tokens", "passages", "queries"}: the line of the first passage and how
                   many there are; for each query its line and the passages that it is about, [first, end)

A window is read as a document of up to LONGEST splits, and cut into the passages of an index. Documents come in a
random order; the windows of one stand together, so that the last ones can be kept aside. Texts that aveyb-mini-en keeps
out are kept out here, too.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-mini-en"))
from make_texts import DOCUMENTS, HEADING, SHORTEST, SPLIT, before, is_kept_out, records
from prepare import blocked_texts
from sources import TRAIN_SETS, load_set

from aveyb_retrieval.documents.records import prefix_of
from aveyb_retrieval.encoder.text.passages import Cuts, PassageSize, cut_passages
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.files import atomic_writer
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

LONGEST = 12  # splits of a window
SIZES = (256, 256, 128)  # tokens of a passage at most, window by window
ARTICLES = "wikipedia_articles.texts.*"
QUESTIONS = 24  # of a window at most


@dataclass(frozen=True)
class Question:
    """A text, and the characters of a document that it is about."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Document:
    """A document and what is asked about it; kind: "question" or "heading"."""

    title: str
    text: str
    source: str
    kind: str
    questions: list[Question]


def with_questions(data: Path, source: str) -> Iterator[Document]:
    """Yield the documents of a source of DATA/train with their questions."""
    questions: dict[str, list[Question]] = defaultdict(list)
    for _, record in records(data, f"{source}.questions"):
        span = record.get("silver_span") or record["spans"][0]
        questions[record["document_id"]].append(Question(record["query"], *span))
    for _, record in records(data, f"{source}.docs"):
        asked = questions[record["_id"]]
        yield Document(record.get("title") or "", record["text"], source, "question", asked)


def with_spans(data: Path, source: str) -> Iterator[Document]:
    """Yield the documents of a set's training part with the questions whose spans it lists."""
    collection = load_set(data / source)
    pairs = set(collection.train_pairs())
    questions: dict[str, list[Question]] = defaultdict(list)
    for _, record in read_records(data / source / "spans.jsonl"):
        if (record["query-id"], record["corpus-id"]) in pairs and record["spans"]:
            text = collection.queries[record["query-id"]]
            questions[record["corpus-id"]].append(Question(text, *record["spans"][0]))
    for name, asked in questions.items():
        title, text = collection.documents[name]
        yield Document(title, text, source, "question", asked)


def with_headings(data: Path, share: float) -> Iterator[Document]:
    """Yield some encyclopedic articles; each heading asks for the text below it."""
    for name, record in records(data, ARTICLES):
        if zlib.crc32(name.encode()) % 10_000 >= share * 10_000:
            continue
        found = list(HEADING.finditer(record["text"]))
        ends = [*(heading.start() for heading in found), len(record["text"])][1:]
        asked = [
            Question(f"{record['title']}: {heading.group(1)}", heading.start(), end)
            for heading, end in zip(found, ends, strict=True)
            if len(record["text"][heading.end() : end].split()) >= SHORTEST
        ]
        if len(asked) > 2:
            yield Document(record["title"], record["text"], "wikipedia_articles", "heading", asked)


def overlapping(cuts: Cuts, start: int, end: int) -> tuple[int, int] | None:
    """Return the passages that share half of themselves, or of the span, with it: the first, one behind the last."""
    shared = [min(end, stop) - max(start, begin) for begin, stop in cuts.spans.tolist()]
    sizes = [min(end - start, stop - begin) for begin, stop in cuts.spans.tolist()]
    rows = [i for i, (common, size) in enumerate(zip(shared, sizes, strict=True)) if 2 * common >= size > 0]
    return (rows[0], rows[-1] + 1) if rows else None


class Windows:
    """The windows of one document after another."""

    def __init__(self, tokenizer: Tokenizer, blocked: tuple[set[int], set[str]], seed: int) -> None:
        """Start with none."""
        self.tokenizer, self.blocked, self.random = tokenizer, blocked, random.Random(seed)
        self.rows: list[dict[str, str]] = []
        self.windows: list[dict[str, object]] = []
        self.counts: Counter[str] = Counter()

    def add(self, document: Document) -> None:
        """Cut a document into windows; of these, keep the ones that are asked about."""
        _, offsets = self.tokenizer.encode(document.text)
        first = 0
        while first < len(offsets):
            last = min(first + SPLIT * self.random.randint(LONGEST // 3, LONGEST), len(offsets)) - 1
            start, end = int(offsets[first, 0]), int(offsets[last, 1])
            if last < len(offsets) - 1:  # at the end of a line, where there is one in the second half
                line = document.text.rfind("\n", (start + end) // 2, end)
                end = line if line > 0 else end
                last = int(offsets[:, 1].searchsorted(end))
            asked = [Question(q.text, q.start - start, q.end - start) for q in document.questions]
            self._add(document, document.text[start:end], asked)
            first = max(last, first) + 1

    def _add(self, document: Document, text: str, asked: list[Question]) -> None:
        start = before(document.title)
        size = SIZES[len(self.windows) % len(SIZES)]
        cuts = cut_passages(text, self.tokenizer.encode(start + text)[1] - len(start), PassageSize(size))
        inside = [(q, overlapping(cuts, max(q.start, 0), min(q.end, len(text)))) for q in asked]
        found = [(q.text, place) for q, place in inside if place is not None and not is_kept_out(q.text, self.blocked)]
        if len(cuts) < 2 or not found or is_kept_out(text, self.blocked):
            return
        if not all(end > start for start, end in cuts.spans.tolist()):  # only a title
            return
        title = prefix_of(document.title)  # read at the head of every split, so that every passage knows it
        passages = [
            {"text": title + text[a:b], "kind": "passage", "source": document.source} for a, b in cuts.spans.tolist()
        ]
        line = len(self.rows)
        self.rows += passages
        chosen = self.random.sample(found, min(QUESTIONS, len(found)))
        queries = [(len(self.rows) + i, *place) for i, (_, place) in enumerate(chosen)]
        self.rows += [{"text": q, "kind": document.kind, "source": document.source} for q, _ in chosen]
        self.windows.append(
            {
                "title": document.title,
                "text": text,
                "passage_tokens": size,
                "passages": [line, len(passages)],
                "queries": queries,
            }
        )
        self.counts[f"{document.source}/windows"] += 1
        self.counts[f"{document.source}/{document.kind}"] += len(chosen)

    def write(self, out: Path) -> None:
        """Write both files."""
        out.mkdir(parents=True, exist_ok=True)
        for name, lines in (("texts.jsonl", self.rows), ("windows.jsonl", self.windows)):
            with atomic_writer(out / name) as file:
                for line in lines:
                    file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        counts = {"rows": len(self.rows), "windows": len(self.windows), **dict(sorted(self.counts.items()))}
        print(json.dumps(counts, indent=1))


def main() -> None:
    """Parse the arguments and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets, with train/ and pretrain/")
    parser.add_argument("--vocabulary", type=Path, required=True, help="folder of the student's vocabulary")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--articles", type=float, default=0.1, help="share of the encyclopedic articles")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    windows = Windows(read_vocabulary(args.vocabulary), blocked_texts(args.data), args.seed)
    documents = [d for source in DOCUMENTS for d in with_questions(args.data / "train", source)]
    documents += [
        document
        for source in TRAIN_SETS
        if (args.data / source / "spans.jsonl").exists()
        for document in with_spans(args.data, source)
    ]
    documents += with_headings(args.data / "train", args.articles)
    random.Random(args.seed).shuffle(documents)
    for document in documents:
        windows.add(document)
    windows.write(args.out)


if __name__ == "__main__":
    main()
