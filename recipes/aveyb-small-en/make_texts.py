"""Make the texts that the teacher labels: whole splits of documents, questions, definitions, headings.

    texts.jsonl  {"text", "kind", "source"}, documents in a random order, the texts of one together: any part from
                 the front is balanced and holds both sides of its pairs
    pairs.jsonl  {"anchor", "positive"}: line numbers (from 0) of texts that belong together
    report.json  texts and tokens by kind and source

A passage is exactly what the encoder sees of a document: each 256 tokens of it in turn. The files of DATA/train were
checked against all evaluation sets when they were made (see SOURCE.md there). Of the sets and of DATA/pretrain, what
aveyb-mini-en keeps out is kept out here, too: documents and queries of dev and test, one training query in six,
whatever shares 13 words with any of them (`../aveyb-mini-en/sources.py`).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-mini-en"))
from prepare import blocked_texts
from sources import PRETRAIN, TRAIN_SETS, load_set, shingles, words

from aveyb_retrieval.documents.records import prefix_of
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.files import atomic_writer, write_atomic
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

PROMPT = " "  # of queries and documents: the first word of a text becomes the same token as inside one
SPLIT = 256  # tokens that the encoder reads at a time
SHORTEST = 16  # tokens of a passage at least
LOWER = 3  # one text in three is seen in lower case: the teacher ignores case, and questions often have none
HEADINGS = 3  # one heading in three becomes a pair
POSITIVE = 1_200  # characters of a positive at most: a span may be a whole chapter
LONGEST_PAIR = 1_000  # words of a set's document that is a positive: of a longer one, nobody knows which part
PRETRAIN_SHARE = 0.1  # of its documents: manuals, statutes, novels
SMALLEST_PASSAGE_SHARE = 1 / 3  # of the tokens

TEXTS = ("wikipedia_articles.texts.*", "abstracts.texts", "papers_biomed.texts", "factbook.texts")
DOCUMENTS = ("openstax_books", "squad", "fairytale", "wikiqa")
FILTERED = (*PRETRAIN, *TRAIN_SETS)  # sources that hold texts which are kept out
PAIRS = ("qa", "trivia_wikipedia", "definitions")
HEADING = re.compile(r"^#+ +(.{3,80})$", re.MULTILINE)


def as_seen(text: str) -> str:
    """Return a text as the student meets it."""
    return PROMPT + (text.lower() if zlib.crc32(text.encode()) % LOWER == 0 else text)


def before(title: str) -> str:
    """Return what a document is read behind: the prompt and, if it has one, its title."""
    return PROMPT + prefix_of(title)


def is_kept_out(text: str, blocked: tuple[set[int], set[str]]) -> bool:
    """Whether a text is a query kept out, or shares 13 words with a text kept out (`blocked_texts`)."""
    runs, queries = blocked
    return " ".join(words(text)) in queries or any(run in runs for run in shingles(text))


@dataclass
class Texts:
    """Texts and pairs of one document or pair after another; each text once."""

    tokenizer: Tokenizer
    share: float  # of the documents and pairs
    pretrain_share: float = PRETRAIN_SHARE  # of those of the pre-training text
    groups: list[list[int]] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    tokens: Counter[str] = field(default_factory=Counter)
    blocked: tuple[set[int], set[str]] = field(default_factory=lambda: (set(), set()))

    def chosen(self, name: str) -> bool:
        """Whether a document or pair belongs to the share, by its name alone."""
        return zlib.crc32(name.encode()) % 10_000 < self.share * 10_000

    def start(self) -> None:
        """Start the texts of another document."""
        self.groups.append([])

    def add(self, text: str, kind: str, source: str, tokens: int = 0) -> int | None:
        """Add a text of so many tokens (0: count them); return its number, or None if it is blank or kept out."""
        text = re.sub(r"[ \t]+", " ", text).strip()
        if not text or (source in FILTERED and is_kept_out(text, self.blocked)):
            return None
        if text not in self.numbers:
            self.numbers[text] = len(self.rows)
            self.groups[-1].append(len(self.rows))
            self.rows.append({"text": text, "kind": kind, "source": source})
            self.tokens[kind] += tokens or len(self.tokenizer.encode_ids(PROMPT + text))
        return self.numbers[text]

    def pair(self, anchor: str, positive: str, kind: str, source: str) -> None:
        """Add two texts that belong together."""
        numbers = self.add(anchor, kind, source), self.add(cut(positive), "positive", source)
        if numbers[0] is not None and numbers[1] is not None and numbers[0] != numbers[1]:
            self.pairs.append((numbers[0], numbers[1]))

    def document(self, title: str, text: str, source: str) -> None:
        """Add each split of a document, and some of its headings with the text below them."""
        self.start()
        whole = before(title) + text
        ids, offsets = self.tokenizer.encode(whole)
        for first in range(0, len(ids), SPLIT):
            last = min(first + SPLIT, len(ids)) - 1
            if last - first + 1 >= SHORTEST:
                self.add(whole[offsets[first, 0] : offsets[last, 1]], "passage", source, last - first + 1)
        for found in HEADING.finditer(text):
            if zlib.crc32(found.group().encode()) % HEADINGS == 0:
                heading = f"{title}: {found.group(1)}" if title else found.group(1)
                below = text[found.end() : found.end() + POSITIVE + 200].partition("\n#")[0]
                if len(below.split()) >= SHORTEST:
                    self.pair(heading, below, "heading", source)


def cut(text: str) -> str:
    """Return the beginning of a long text, cut between two words."""
    return text if len(text) <= POSITIVE else text[:POSITIVE].rpartition(" ")[0]


def records(data: Path, pattern: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each record of the matching files with a name of its own."""
    paths = sorted(data.glob(f"{pattern}.jsonl.zst"))
    if not paths:
        raise SystemExit(f"{data} holds no {pattern}.jsonl.zst")
    for path in paths:
        for number, record in read_records(path):
            yield f"{path.name}:{number}", record


def collect_questions(texts: Texts, data: Path, source: str) -> None:
    """Add the documents of a source that belong to the share, and all questions on them with their spans."""
    bodies: dict[str, str] = {}
    for _, record in records(data, f"{source}.docs"):
        if texts.chosen(record["_id"]):
            bodies[record["_id"]] = record["text"]
            texts.document(record.get("title") or "", record["text"], source)
    for _, record in records(data, f"{source}.questions"):
        if record["document_id"] in bodies:
            start, end = record.get("silver_span") or record["spans"][0]
            texts.start()
            texts.pair(record["query"], bodies[record["document_id"]][start:end], "question", source)


def collect_set(texts: Texts, data: Path, source: str) -> None:
    """Add the training part of a retrieval set: documents that belong to the share, and the questions on them."""
    collection = load_set(data / source)
    seen: set[str] = set()
    for query, document in collection.train_pairs():
        if not texts.chosen(document):
            continue
        title, text = collection.documents[document]
        if document not in seen:
            texts.document(title, text, source)
        seen.add(document)
        if len(text.split()) <= LONGEST_PAIR:
            texts.pair(collection.queries[query], f"{title}\n{text}", "question", source)
        else:
            texts.add(collection.queries[query], "question", source)


def collect_pretraining(texts: Texts, data: Path, source: str) -> None:
    """Add some documents of the pre-training text."""
    for number, record in read_records(data / f"{source}.jsonl.zst"):
        if zlib.crc32(f"{source}:{number}".encode()) % 10_000 < texts.share * texts.pretrain_share * 10_000:
            texts.document("", record["text"], source)


def collect(texts: Texts, root: Path) -> None:
    """Add everything that belongs to the share."""
    data = root / "train"
    for source in TRAIN_SETS:
        collect_set(texts, root, source)
    for source in PRETRAIN:
        collect_pretraining(texts, root / "pretrain", source)
    for pattern in TEXTS:
        for name, record in records(data, pattern):
            if texts.chosen(name):
                texts.document(record.get("title") or "", record["text"], pattern.partition(".")[0])
    for source in DOCUMENTS:
        collect_questions(texts, data, source)
    for source in PAIRS:
        for name, record in records(data, f"{source}.pairs"):
            if texts.chosen(name):
                texts.start()
                kind = "definition" if source == "definitions" else "question"
                texts.pair(record["query"], record["positive"], kind, source)


def write_texts(
    out: Path, rows: Sequence[Mapping[str, str]], pairs: Iterable[tuple[int, int]], order: Sequence[int]
) -> None:
    """Write texts.jsonl, the rows of these numbers in this order, and pairs.jsonl, with lines for numbers."""
    new = {number: line for line, number in enumerate(order)}
    out.mkdir(parents=True, exist_ok=True)
    with atomic_writer(out / "texts.jsonl") as file:
        for number in order:
            file.write((json.dumps(rows[number], ensure_ascii=False) + "\n").encode())
    with atomic_writer(out / "pairs.jsonl") as file:
        for anchor, positive in pairs:
            file.write((json.dumps({"anchor": new[anchor], "positive": new[positive]}) + "\n").encode())


def write(texts: Texts, out: Path, seed: int) -> None:
    """Write texts and pairs with the documents in a random order; the report comes last."""
    groups = list(texts.groups)
    random.Random(seed).shuffle(groups)
    write_texts(out, texts.rows, texts.pairs, [number for group in groups for number in group])
    report = {
        "texts": dict(sorted(Counter(f"{row['source']}/{row['kind']}" for row in texts.rows).items())),
        "tokens": dict(sorted(texts.tokens.items())),
        "passage_share": round(texts.tokens["passage"] / texts.tokens.total(), 4),
        "pairs": len(texts.pairs),
        "share": texts.share,
        "seed": seed,
    }
    write_atomic(out / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    print(json.dumps(report, indent=1))


def main() -> None:
    """Parse the arguments and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets, with train/ and pretrain/")
    parser.add_argument("--vocabulary", type=Path, required=True, help="folder of the student's vocabulary")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the documents and pairs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pretrain-share", type=float, default=PRETRAIN_SHARE, help="of the pre-training text's")
    args = parser.parse_args()
    tokenizer = read_vocabulary(args.vocabulary)
    texts = Texts(tokenizer, args.share, args.pretrain_share, blocked=blocked_texts(args.data))
    collect(texts, args.data)
    if not texts.rows:
        raise SystemExit(f"a share of {args.share} of {args.data} holds no text")
    if texts.tokens["passage"] < SMALLEST_PASSAGE_SHARE * texts.tokens.total():
        raise SystemExit(f"passages hold less than a third of the tokens: {dict(texts.tokens)}")
    write(texts, args.out, args.seed)


if __name__ == "__main__":
    main()
