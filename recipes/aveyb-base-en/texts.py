"""Write the texts of both stages from the data sets.

    python texts.py --data DATA --vocabulary FOLDER --out OUT

    texts.jsonl      {"text"}: whole splits of documents, and what answers the questions
    queries.jsonl    {"text"}: questions, headings, words that are defined
    documents.jsonl  {"title", "text", "questions": [{"query", "span"}]}: whole documents, with
                     what is asked about them

A text is what the encoder sees of a document: each 256 tokens of it in turn. What `sources.py`
keeps out is in none.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from sources import (
    HEADING,
    PRETRAIN,
    TRAIN_SETS,
    is_kept_out,
    kept_out,
    load_set,
    records,
)

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.documents.records import prefix_of
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.files import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

SPLIT = 256  # tokens that the encoder reads at a time
SHORTEST = 16  # tokens of a text, words below a heading
LONGEST = 1_200  # characters of an answer: a span may be a whole chapter
PRETRAIN_SHARE = 0.3  # of its documents: manuals, statutes, novels
TEXTS = ("wikipedia_articles.texts.*", "abstracts.texts", "papers_biomed.texts", "factbook.texts")
DOCUMENTS = ("openstax_books", "squad", "fairytale", "wikiqa")
PAIRS = ("qa", "trivia_wikipedia", "definitions")


@dataclass
class Collector:
    """Texts, each once, and documents."""

    tokenizer: Tokenizer
    blocked: tuple[set[int], set[str]]
    share: float
    texts: dict[str, None] = field(default_factory=dict)
    queries: dict[str, None] = field(default_factory=dict)
    documents: list[dict[str, Any]] = field(default_factory=list)

    def chosen(self, name: str, share: float = 1.0) -> bool:
        """Whether a document or pair belongs to the share, by its name alone."""
        return zlib.crc32(name.encode()) % 10_000 < self.share * share * 10_000

    def add(self, into: dict[str, None], text: str) -> bool:
        """Add a text unless it is blank or kept out; return whether it is there."""
        text = text.strip()
        if not text or is_kept_out(text, self.blocked):
            return False
        into[text] = None
        return True

    def pair(self, query: str, answer: str) -> None:
        """Add a question and what answers it."""
        if self.add(self.texts, answer[:LONGEST]):
            self.add(self.queries, query)

    def document(self, title: str, text: str, asked: Iterable[tuple[str, int, int]] = ()) -> None:
        """Add each split of a document, its headings, and what is asked about it: questions with
        their spans.
        """
        if is_kept_out(text, self.blocked):
            return
        whole = prefix_of(title) + text
        ids, offsets = self.tokenizer.encode(whole)
        for first in range(0, len(ids), SPLIT):
            last = min(first + SPLIT, len(ids)) - 1
            if last - first + 1 >= SHORTEST:
                self.add(self.texts, whole[offsets[first, 0] : offsets[last, 1]])
        found = list(HEADING.finditer(text))
        ends = [*(heading.start() for heading in found), len(text)][1:]
        questions = [*asked]
        for heading, end in zip(found, ends, strict=True):
            if len(text[heading.end() : end].split()) >= SHORTEST:
                query = f"{title}: {heading.group(1)}" if title else heading.group(1)
                questions.append((query, heading.start(), end))
        kept = [
            {"query": query, "span": [a, b]}
            for query, a, b in questions
            if self.add(self.queries, query)
        ]
        if kept and len(ids) > SPLIT:
            self.documents.append({"title": title, "text": text, "questions": kept})


def collect_sets(texts: Collector, data: Path) -> None:
    """Add the training part of the retrieval sets."""
    for source in TRAIN_SETS:
        collection, of = load_set(data / source), defaultdict(list)
        for query, document in collection.train_pairs():
            of[document].append(collection.queries[query])
        for document in filter(texts.chosen, of):
            title, text = collection.documents[document]
            texts.document(title, text, [(query, 0, len(text)) for query in of[document]])


def collect_texts(texts: Collector, data: Path) -> None:
    """Add what nobody asked about: the pre-training text, articles, abstracts."""
    for source in PRETRAIN:
        for name, record in records(data / "pretrain", source):
            if texts.chosen(name, PRETRAIN_SHARE):
                texts.document("", record["text"])
    for pattern in TEXTS:
        for name, record in records(data / "train", pattern):
            if texts.chosen(name):
                texts.document(record.get("title") or "", record["text"])


def collect_questions(texts: Collector, data: Path) -> None:
    """Add documents with questions on them and their spans, and pairs."""
    for source in DOCUMENTS:
        asked = defaultdict(list)
        for _, record in records(data / "train", f"{source}.questions"):
            asked[record["document_id"]].append(
                (record["query"], *(record.get("silver_span") or record["spans"][0]))
            )
        for _, record in records(data / "train", f"{source}.docs"):
            if texts.chosen(record["_id"]):
                texts.document(record.get("title") or "", record["text"], asked[record["_id"]])
    for source in PAIRS:
        for name, record in records(data / "train", f"{source}.pairs"):
            if texts.chosen(name):
                texts.pair(record["query"], record["positive"])


@click.command(cls=Command)
@click.option(
    "--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
@click.option(
    "--vocabulary", type=click.Path(path_type=Path), required=True, help="Folder of the student."
)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option(
    "--share", type=click.FloatRange(0, 1), default=1.0, help="Of the documents and pairs."
)
def main(data: Path, vocabulary: Path, out: Path, share: float) -> None:
    """Write texts.jsonl, queries.jsonl and documents.jsonl into OUT."""
    texts = Collector(read_vocabulary(vocabulary), kept_out(data), share)
    for collect in (collect_sets, collect_texts, collect_questions):
        collect(texts, data)
    out.mkdir(parents=True, exist_ok=True)
    rows = {"texts": texts.texts, "queries": texts.queries}
    lines = {name: [{"text": text} for text in found] for name, found in rows.items()} | {
        "documents": texts.documents
    }
    for name, found in lines.items():
        with atomic_writer(out / f"{name}.jsonl") as file:
            for line in found:
                file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        click.echo(f"{out / name}.jsonl: {len(found):,} lines")


if __name__ == "__main__":
    main()
