"""Write what the student learns from: passages, questions and translations in many languages.

    python texts.py --data DATA --out OUT

    items.jsonl  {"text", "lang", "kind", "group"}: kind is document | query | pair

The passages of one page share a group and follow each other, as do a passage and a phrase of it,
and both sides of a translation. Groups are shuffled, so any first part is a sample of everything.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.files import atomic_writer
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSAGE_BYTES = 900  # about 200 tokens in every language
SHORTEST = 20  # bytes of a text
PHRASE_SHARE = 0.4  # of passages that are asked for by a phrase of theirs
PHRASE_WORDS = (2, 12)
PHRASE_CHARACTERS = (4, 24)  # where words have no spaces between them
SPACELESS = {"zh", "ja", "th"}
SENTENCE_END = re.compile(r"(?<=[.!?…؟।])\s+|(?<=[。\uff01\uff1f])|\n+")


def cut(text: str) -> list[str]:
    """Cut a text at ends of sentences and paragraphs into passages of at most about
    `PASSAGE_BYTES`.
    """
    passages: list[str] = []
    current = ""
    for start, stop in sentence_spans(text):
        sentence = text[start:stop]
        if current and len((current + sentence).encode()) > PASSAGE_BYTES:
            passages.append(current.strip())
            current = ""
        current += sentence
    passages.append(current.strip())
    return [passage for passage in passages if len(passage.encode()) >= SHORTEST]


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the sentences with what separates them; one that is too long is cut anywhere."""
    start = 0
    limit = PASSAGE_BYTES // max(1, round(len(text.encode()) / max(1, len(text))))
    for stop in [*(match.end() for match in SENTENCE_END.finditer(text)), len(text)]:
        for at in range(start, stop, limit):
            yield at, min(at + limit, stop)
        start = stop


def phrase(passage: str, lang: str, rng: random.Random) -> str:
    """Draw a phrase of a passage."""
    if lang in SPACELESS:
        length = rng.randint(*PHRASE_CHARACTERS)
        start = rng.randrange(max(1, len(passage) - length))
        return passage[start : start + length].strip()
    words = passage.split()
    length = rng.randint(*PHRASE_WORDS)
    start = rng.randrange(max(1, len(words) - length))
    return " ".join(words[start : start + length])


def groups(data: Path, rng: random.Random) -> Iterator[list[tuple[str, str, str]]]:
    """Yield (text, language, kind) of each group."""
    for path in sorted(data.glob("??.jsonl.zst")):
        lang = path.name[:2]
        for _, record in read_records(path):
            if record["kind"] == "question":
                yield [(record["text"], lang, "query")]
                continue
            title = record.get("title")
            passages = cut(f"{title}\n\n{record['text']}" if title else record["text"])
            group = [(passage, lang, "document") for passage in passages]
            for passage in passages:
                if rng.random() < PHRASE_SHARE and (asked := phrase(passage, lang, rng)):
                    group.append((asked, lang, "query"))
            if group:
                yield group
    for _, record in read_records(data / "parallel.jsonl.zst"):
        yield [(record["text"], record["lang"], "pair"), (record["en"], "en", "pair")]


@click.command(cls=Command)
@click.option(
    "--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True
)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--seed", type=int, default=0)
@click.option("--share", type=click.FloatRange(0, 1), default=1.0, help="Of the groups.")
def main(data: Path, out: Path, seed: int, share: float) -> None:
    """Write OUT/items.jsonl."""
    rng = random.Random(seed)
    every = [group for group in groups(data, rng) if rng.random() < share]
    rng.shuffle(every)
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    with atomic_writer(out / "items.jsonl") as file:
        for number, group in enumerate(every):
            for text, lang, kind in group:
                row = {"text": text, "lang": lang, "kind": kind, "group": number}
                file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
            count += len(group)
    click.echo(f"{out / 'items.jsonl'}: {count:,} texts in {len(every):,} groups")


if __name__ == "__main__":
    main()
