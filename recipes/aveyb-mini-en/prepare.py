"""Build the training texts and pairs of the embedded model.

Writes into --out:
  texts.jsonl  {"text", "kind", "source"}: everything the teacher encodes, in the order of shuffled documents, so
               that any prefix is balanced and holds both sides of its pairs
  pairs.jsonl  {"anchor", "positive", "source"}: line numbers into texts.jsonl
  longs.jsonl  {"passages", "anchor"?, "source"}: consecutive passages of one document (line numbers), to be joined
  report.json  counts, and what the overlap check dropped
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sources import EVAL_ONLY, PRETRAIN, TRAIN_SETS, load_set, pretrain_documents, shingles, teacher_words, words
from synthetic import Topics

from aveyb_retrieval.training.teacher import encode_with, load_teacher

SMALLEST, LARGEST = 25, 120  # words of a passage: many short texts teach more than few long ones
WHOLE = 200  # a training answer up to this many words stays in one piece
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
NOT_HEADING = re.compile(r"[.,;:!?]$|^\W*$|^[\d\s.()\-\u2013a-z]{1,6}$")

PASSAGES = {  # how many of each source: technical and medical prose over statutes and novels
    "100_english_novels": 2_500,
    "eltec_eng": 2_000,
    "dc_code": 2_500,
    "ethereum_eips": 2_000,
    "kubernetes_keps": 3_000,
    "ms_cpp_docs": 3_500,
    "ms_powershell_docs": 2_500,
    "ms_win32": 4_000,
    "ms_windows_driver_docs": 3_000,
    "php_manual": 2_500,
    "python_peps": 4_000,
    "rust_rfcs": 3_500,
}
KINDS = ("question", "passage")
RARE_TOPICS = 30_000  # rare words that made-up texts may be about
TRAIN_PAIRS = {"medquad": 6_000, "scifact": 900, "qmsum-long": 1_100, "openstax-ccby-long": 480}


@dataclass
class Passage:
    text: str
    heading: str | None


@dataclass
class Collector:
    """Gathers texts once each; what the overlap check refuses is counted and left out."""

    blocked: set[int]
    blocked_queries: set[str]
    texts: list[dict[str, str]] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)
    pairs: list[dict[str, object]] = field(default_factory=list)
    longs: list[dict[str, object]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    groups: list[int] = field(default_factory=list)  # texts of one document stay together
    group: int = 0

    def add(self, text: str, kind: str, source: str) -> int | None:
        text = re.sub(r"[ \t]+", " ", text).strip()
        if not text:
            return None
        if text in self.index:
            return self.index[text]
        if " ".join(words(text)) in self.blocked_queries:
            self.dropped[f"{source}: equals a held-out query"] += 1
            return None
        if any(shingle in self.blocked for shingle in shingles(text)):
            self.dropped[f"{source}: shares 13 words with a held-out text"] += 1
            return None
        self.index[text] = len(self.texts)
        self.groups.append(self.group)
        self.texts.append({"text": text, "kind": kind, "source": source})
        return self.index[text]

    def pair(self, anchor: int | None, positive: int | None, source: str) -> None:
        if anchor is not None and positive is not None and anchor != positive:
            self.pairs.append({"anchor": anchor, "positive": positive, "source": source})


def is_heading(line: str) -> bool:
    count = len(line.split())
    return 1 <= count <= 12 and not NOT_HEADING.search(line) and any(c.isalpha() for c in line)


def split_passages(text: str) -> list[Passage]:  # noqa: C901  (one pass over the lines of a document)
    """Paragraphs packed into 25 to 120 words, each with the heading above it."""
    passages: list[Passage] = []
    lines: list[str] = []
    size, heading, upcoming = 0, None, None

    def close() -> None:
        nonlocal lines, size, heading
        if size >= SMALLEST:
            passages.append(Passage("\n".join(lines), heading))
        lines, size, heading = [], 0, None

    goal = random.Random(len(text)).randint(40, LARGEST)
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = " ".join(paragraph.split())
        if not paragraph:
            continue
        if is_heading(paragraph):
            if size >= SMALLEST:
                close()
            upcoming = paragraph
            continue
        count = len(paragraph.split())
        for piece in [paragraph] if count <= LARGEST else split_sentences(paragraph):
            length = len(piece.split())
            if length > LARGEST or size + length > goal:
                close()
            if length > LARGEST:
                continue
            if not lines:
                heading = upcoming
            lines.append(piece)
            size += length
    close()
    return passages


def split_sentences(paragraph: str) -> list[str]:
    pieces, current = [], ""
    for sentence in SENTENCE.split(paragraph):
        if current and len(current.split()) + len(sentence.split()) > 80:
            pieces.append(current)
            current = ""
        current = f"{current} {sentence}".strip()
    return [*pieces, current]


def sentence_out(passage: str, generator: random.Random) -> tuple[str, str] | None:
    """One sentence as the question, the rest as its passage (inverse cloze task, Lee et al., 2019)."""
    sentences = [s for s in SENTENCE.split(passage.replace("\n", " ")) if s]
    usable = [i for i, s in enumerate(sentences) if 6 <= len(s.split()) <= 40]
    if len(sentences) < 3 or not usable:
        return None
    chosen = generator.choice(usable)
    rest = " ".join(sentences[:chosen] + sentences[chosen + 1 :])
    return sentences[chosen], rest


def add_document(
    collector: Collector, title: str, text: str, source: str, budget: int, generator: random.Random
) -> int:
    """A window of consecutive passages, each with a heading, a title or one of its sentences as anchor."""
    passages = split_passages(text)
    if not passages:
        return 0
    window = min(budget, generator.choice([1, 1, 2, 3, 4, 6, 8]))
    start = generator.randrange(max(1, len(passages) - window + 1))
    rows: list[int] = []
    collector.group += 1
    for offset, passage in enumerate(passages[start : start + window]):
        first = start + offset == 0
        anchor, body = None, passage.text
        if passage.heading and generator.random() < 0.7:
            anchor = passage.heading if not title or generator.random() < 0.3 else f"{title}: {passage.heading}"
        elif title and first and generator.random() < 0.7:
            anchor = title
        elif generator.random() < 0.8 and (cloze := sentence_out(passage.text, generator)):
            anchor, body = cloze
        row = collector.add(body, "passage", source)
        if row is None:
            rows = []
            continue
        if anchor:
            collector.pair(collector.add(anchor, "anchor", source), row, source)
        rows.append(row)
    if len(rows) >= 2:
        collector.longs.append({"passages": rows, "source": source})
    return max(1, len(rows))


def add_pretrain(collector: Collector, data: Path, name: str, wanted: int, generator: random.Random) -> None:
    literary = name in ("100_english_novels", "eltec_eng")
    documents = pretrain_documents(data, name, limit=wanted)
    count = turn = 0
    while count < wanted and turn < 40 * wanted:
        text = documents[turn % len(documents)]
        turn += 1
        title = next((line.strip() for line in text.splitlines() if is_heading(line.strip())), "")
        if literary:  # a window out of the middle of the book; chapter numbers are no titles
            start = generator.randrange(max(1, len(text) - 20_000))
            text, title = text[start : start + 20_000], ""
        count += add_document(collector, title, text, name, wanted - count, generator)


def best_passage(query: str, passages: list[Passage]) -> int:
    """The passage that shares the most, and the rarest, words with the query."""
    bags = [set(words(p.text)) for p in passages]
    frequency = Counter(word for bag in bags for word in bag)
    scores = [sum(1 / frequency[w] for w in set(words(query)) if w in bag) for bag in bags]
    return max(range(len(scores)), key=scores.__getitem__)


def add_train_set(collector: Collector, data: Path, name: str, limit: int, generator: random.Random) -> None:
    collection = load_set(data / name)
    pairs = collection.train_pairs()
    generator.shuffle(pairs)
    for query, document in pairs[:limit]:
        title, text = collection.documents[document]
        collector.group += 1
        anchor = collector.add(collection.queries[query], "query", name)
        if len(text.split()) <= WHOLE:
            passage = f"{title}\n{text}" if title and generator.random() < 0.7 else text
            collector.pair(anchor, collector.add(passage, "passage", name), name)
            continue
        passages = split_passages(text.replace("\n", "\n\n"))
        if not passages:
            continue
        best = best_passage(f"{collection.queries[query]}", passages)
        body = passages[best].text
        row = collector.add(f"{title}\n{body}" if title and generator.random() < 0.7 else body, "passage", name)
        collector.pair(anchor, row, name)
        window = passages[max(0, best - generator.randrange(4)) :][: generator.randint(3, 8)]
        rows = [collector.add(p.text, "passage", name) for p in window]
        if anchor is not None and len(rows) >= 2 and all(r is not None for r in rows):
            collector.longs.append({"passages": rows, "anchor": anchor, "source": name})


def frequent(listed: list[str], count: int, generator: random.Random) -> list[str]:
    """Words of a list in order of frequency, the first ones more often."""
    return [listed[int(len(listed) * generator.random() ** 1.5)] for _ in range(count)]


def bag(words: list[str], generator: random.Random) -> str:
    """Words side by side, one in five with a capital."""
    return " ".join(word if generator.random() < 0.8 else word.capitalize() for word in words)


def add_words(collector: Collector, listed: list[str], bags: int, generator: random.Random) -> None:
    """The teacher's own words, alone and in small bags: how it places general English, for a few tokens each."""
    for word in listed:
        collector.group += 1
        collector.add(word if generator.random() < 0.5 else word.capitalize(), "word", "words")
    for _ in range(bags):
        collector.group += 1
        collector.add(bag(frequent(listed, generator.randint(2, 10), generator), generator), "bag", "words")


def add_rare_words(
    collector: Collector, rare: list[str], listed: list[str], bags: int, generator: random.Random
) -> None:
    """Words that are cut into pieces, each alone, and some of them among the teacher's own words."""
    for word in rare:
        collector.group += 1
        collector.add(bag([word], generator), "rare word", "words")
    for _ in range(bags):
        collector.group += 1
        chosen = generator.sample(rare, generator.randint(1, 3))
        chosen += frequent(listed, generator.randint(1, 7), generator)
        generator.shuffle(chosen)
        collector.add(bag(chosen, generator), "rare bag", "words")


def add_stories(collector: Collector, data: Path, wanted: int, generator: random.Random) -> list[str]:
    """Short windows of the novels, the most general English there is here; returns their sentences."""
    sentences: list[str] = []
    for name in ("100_english_novels", "eltec_eng"):
        books = pretrain_documents(data, name, limit=100)
        for turn in range(wanted // 2):
            book = books[turn % len(books)]
            start = generator.randrange(max(1, len(book) - 3_000))
            found = [" ".join(s.split()) for s in SENTENCE.split(book[start : start + 3_000])[1:-1]]
            found = [s for s in found if 5 <= len(s.split()) <= 40]
            sentences += found
            if len(found) >= 5:
                first = generator.randrange(len(found) - 3)
                collector.group += 1
                collector.add(" ".join(found[first : first + generator.choice([1, 1, 2, 3])]), "story", name)
    return sentences


def add_synthetic(
    collector: Collector, topics: Topics, sentences: list[str], wanted: int, generator: random.Random
) -> None:
    for _ in range(wanted):
        made = topics.pair(sentences, generator)
        if made:
            collector.group += 1
            question, passage = (collector.add(text, kind, "synthetic") for text, kind in zip(made, KINDS, strict=True))
            collector.pair(question, passage, "synthetic")


def blocked_texts(data: Path) -> tuple[set[int], set[str]]:
    """Hashed runs of 13 words of every held-out document, and the held-out queries of four words and more."""
    blocked: set[int] = set()
    blocked_queries: set[str] = set()
    for name in [*TRAIN_SETS, *EVAL_ONLY]:
        collection = load_set(data / name)
        for document in collection.held_out_documents():
            blocked.update(shingles("\n".join(collection.documents[document])))
        blocked_queries.update(" ".join(words(collection.queries[q])) for q in collection.held_out_queries())
    return blocked, {q for q in blocked_queries if q.count(" ") >= 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teacher", required=True, help="folder of the sentence-transformers teacher")
    parser.add_argument("--rare-words", type=Path, required=True, help="what rare_words.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every count")
    args = parser.parse_args()

    collector = Collector(*blocked_texts(args.data))
    generator = random.Random(0)
    for name in PRETRAIN:
        add_pretrain(collector, args.data, name, int(PASSAGES[name] * args.scale), generator)
    for name in TRAIN_SETS:
        add_train_set(collector, args.data, name, int(TRAIN_PAIRS[name] * args.scale), generator)
    listed = teacher_words(Path(args.teacher) / "vocab.txt")
    add_words(collector, listed, int(14_000 * args.scale), generator)
    generator = random.Random(1)
    sentences = add_stories(collector, args.data, int(20_000 * args.scale), generator)
    prose = [t["text"] for t in collector.texts if t["kind"] == "passage"]
    for text in generator.sample(prose, min(len(prose), 20_000)):
        sentences += [s for s in SENTENCE.split(" ".join(text.split())) if 5 <= len(s.split()) <= 40]
    teacher, _ = load_teacher(args.teacher, device="cpu", max_tokens=256)
    topics = Topics(listed, encode_with(teacher, listed, precision="bfloat16"))
    add_synthetic(collector, topics, sentences, int(30_000 * args.scale), generator)

    generator = random.Random(2)
    rare = args.rare_words.read_text(encoding="utf-8").split()
    add_rare_words(collector, rare, listed, int(30_000 * args.scale), generator)
    mixed = listed + generator.sample(rare, min(len(rare), RARE_TOPICS))
    topics = Topics(mixed, encode_with(teacher, mixed, precision="bfloat16"))
    add_synthetic(collector, topics, sentences, int(20_000 * args.scale), generator)

    place = list(range(collector.group + 1))
    generator.shuffle(place)
    order = sorted(range(len(collector.texts)), key=lambda i: place[collector.groups[i]])
    new = {old: position for position, old in enumerate(order)}
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "texts.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(collector.texts[i], ensure_ascii=False) + "\n" for i in order)
    with (args.out / "pairs.jsonl").open("w", encoding="utf-8") as out:
        for pair in collector.pairs:
            moved = pair | {"anchor": new[pair["anchor"]], "positive": new[pair["positive"]]}
            out.write(json.dumps(moved) + "\n")
    with (args.out / "longs.jsonl").open("w", encoding="utf-8") as out:
        for long in collector.longs:
            moved = long | {"passages": [new[i] for i in long["passages"]]}
            if "anchor" in long:
                moved["anchor"] = new[long["anchor"]]
            out.write(json.dumps(moved) + "\n")
    report = {
        "texts": dict(Counter(f"{t['source']}/{t['kind']}" for t in collector.texts)),
        "words": sum(len(t["text"].split()) for t in collector.texts),
        "pairs": dict(Counter(str(p["source"]) for p in collector.pairs)),
        "longs": dict(Counter(str(p["source"]) for p in collector.longs)),
        "dropped": dict(collector.dropped),
    }
    (args.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
