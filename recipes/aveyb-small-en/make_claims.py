"""Make pairs from documents that nobody asked about: titles, claims and questions, each with the passage it is from.

    texts.jsonl  {"text", "kind", "source"}, as from make_texts.py
    pairs.jsonl  {"anchor", "positive"}: line numbers (from 0) of texts that belong together

Some passages of each document are taken as an index cuts them. A passage gives

    claim     one of its sentences, which is taken out of it (inverse cloze task; Lee, Chang and Toutanova, 2019)
    question  another one that begins with a pronoun or the title, with "who" or "what" for that; it stays
    title     the title of the document, if the passage is its first

Texts that aveyb-mini-en keeps out are kept out here, too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-mini-en"))
from make_texts import is_kept_out, records, write_texts
from prepare import blocked_texts

from aveyb_retrieval.encoder.passages import PassageSize, cut_passages
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (256, 256, 128)  # tokens of a passage at most, document by document
SHORTEST = 40  # words of a passage at least, when the claim is out
CLAIM = (8, 40)  # words of a claim
QUESTION = (4, 20)  # words behind the subject of a question
FILES = {  # passages of each document (.25: of every fourth), by the names of files
    "train/abstracts.texts": 1,
    "train/papers_biomed.texts": 8,
    "train/wikipedia_articles.texts.*": 1,
    "train/openstax_books.docs": 8,
    "pretrain/dc_code": 0.25,
}
ASKED_BY = {"he": "who", "she": "who", "they": "who", "it": "what"}
SENTENCE = re.compile(r"(?<=[a-z\d)\"][.!?])\s+(?=[A-Z])")
SUBJECT = re.compile(
    r"(?:The )?(.+?) ((?:is|was|are|were|has|had|can|may|became|won|wrote|made|led|[a-z]{2,}ed)\b.+)\."
)


def documents(data: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the file, title ("" if there is none) and text of each document."""
    for pattern in FILES:
        for _, record in records(data, pattern):
            yield pattern, record.get("title") or "", record["text"]


def sentences(text: str) -> list[str]:
    """Return the sentences of a passage; a heading is none."""
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    return [sentence for line in lines for sentence in SENTENCE.split(line.strip())]


def asked(sentence: str, title: str) -> str | None:
    """Return a sentence as a question for its subject, if that is a pronoun or the title."""
    found = SUBJECT.fullmatch(sentence)
    if found is None or not QUESTION[0] <= len(found.group(2).split()) <= QUESTION[1]:
        return None
    subject = found.group(1)
    word = ASKED_BY.get(subject.lower(), "what" if title and subject.lower() in title.lower() else None)
    return f"{word} {found.group(2)}?" if word else None


class Claims:
    """The texts and pairs of one document after another; each text once."""

    def __init__(self, tokenizer: AveyBTokenizer, blocked: tuple[set[int], set[str]], seed: int) -> None:
        """Start with none."""
        self.tokenizer, self.blocked, self.random = tokenizer, blocked, random.Random(seed)
        self.rows: list[dict[str, str]] = []
        self.pairs: list[tuple[int, int]] = []
        self.numbers: dict[str, int] = {}

    def add(self, source: str, title: str, text: str, count: float) -> None:
        """Take so many passages of a document; of those with a question rather than of others."""
        count = int(count) + (self.random.random() < count % 1)
        if not count or is_kept_out(text, self.blocked):
            return
        size = self.random.choice(SIZES)
        spans = cut_passages(text, self.tokenizer.encode(text)[1], PassageSize(size)).spans.tolist()
        cut = [(number, text[start:end]) for number, (start, end) in enumerate(spans)]
        self.random.shuffle(cut)
        cut.sort(key=lambda passage: not any(asked(sentence, title) for sentence in sentences(passage[1])))
        for number, passage in cut[:count]:
            self._passage(source, title if number == 0 else "", title, passage)

    def _passage(self, source: str, heading: str, title: str, passage: str) -> None:
        found = sentences(passage)
        questions = {sentence: asked(sentence, title) for sentence in found}
        claims = [s for s in found if CLAIM[0] <= len(s.split()) <= CLAIM[1] and s[-1] in ".!"]
        if not claims:
            return
        claim = self.random.choice([s for s in claims if not questions[s]] or claims)
        positive = passage.replace(claim, "", 1).strip()
        if len(positive.split()) < SHORTEST:
            return
        line = self._text(positive, "positive", source)
        question = next((q for sentence, q in questions.items() if q and sentence != claim), "")
        for kind, text in (("claim", claim), ("question", question), ("title", heading)):
            if text:
                self.pairs.append((self._text(text, kind, source), line))

    def _text(self, text: str, kind: str, source: str) -> int:
        if text not in self.numbers:
            self.numbers[text] = len(self.rows)
            self.rows.append({"text": text, "kind": kind, "source": source})
        return self.numbers[text]


def main() -> None:
    """Parse the arguments and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets, with train/ and pretrain/")
    parser.add_argument("--vocabulary", type=Path, required=True, help="folder of the student's vocabulary")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the passages")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    claims = Claims(AveyBTokenizer.load(args.vocabulary), blocked_texts(args.data), args.seed)
    for pattern, title, text in documents(args.data):
        source = pattern.partition("/")[2].partition(".")[0]
        claims.add(source, title, text, FILES[pattern] * args.share)
    if not claims.pairs:
        raise SystemExit(f"{args.data} holds no document with claims")
    write_texts(args.out, claims.rows, claims.pairs, range(len(claims.rows)))
    counts = Counter(f"{claims.rows[anchor]['source']}/{claims.rows[anchor]['kind']}" for anchor, _ in claims.pairs)
    print(json.dumps({"texts": len(claims.rows), "pairs": len(claims.pairs), **dict(sorted(counts.items()))}, indent=1))


if __name__ == "__main__":
    main()
