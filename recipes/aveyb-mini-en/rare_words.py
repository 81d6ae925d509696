"""List words that the teacher's vocabulary does not hold whole: real ones of the sources, and made-up scientific ones.

Names, derived words and terms of every trade are cut into pieces, by the teacher as by the student, and a query often
turns on one of them. The teacher knows how its pieces combine; the student learns it from many such words, each alone
and among others (prepare.py), and its vocabulary from seeing them (vocabulary_text.py). Few of the sources are
scientific, so words are also put together from the Greek and Latin parts that scientific terms are made of.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from pathlib import Path

from sources import PRETRAIN, TRAIN_SETS, load_set, pretrain_documents, teacher_words

WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z]?[a-z]{3,19}(?![A-Za-z0-9_])")
MADE = 20_000
LENGTHS = range(5, 21)
IDENTIFIERS = "ms_"  # sources whose rare words are mostly names of functions: a word must be in two of them
PARTS = Path(__file__).with_name("word_parts.txt")  # beginnings, stems and endings of scientific words


def made_words(count: int, generator: random.Random) -> set[str]:
    """Words of two or three parts that could be scientific terms; some of them are."""
    beginnings, stems, endings = (part.split() for part in PARTS.read_text(encoding="utf-8").split("\n\n"))
    words: set[str] = set()
    while len(words) < count:
        first, stem, last = generator.choice(beginnings), generator.choice(stems), generator.choice(endings)
        second = generator.choice(beginnings)
        forms = [first + last, first + stem + last, stem + last, first + second + last, first + stem]
        word = generator.choices(forms, weights=[7, 5, 3, 3, 2])[0]
        if len(word) in LENGTHS:
            words.add(word)
    return words


def real_words(data: Path, known: set[str]) -> set[str]:
    """Words outside `known` that the sources use twice: in prose, or in two sources that are full of identifiers."""
    prose: Counter[str] = Counter()
    for name in PRETRAIN:
        found = Counter(
            word.lower() for text in pretrain_documents(data, name, limit=10**6) for word in WORD.findall(text)
        )
        prose.update(dict.fromkeys(found, 1) if name.startswith(IDENTIFIERS) else found)
    for name in TRAIN_SETS:
        collection = load_set(data / name)
        pairs = collection.train_pairs()
        texts = ["\n".join(collection.documents[d]) for d in {d for _, d in pairs}]
        texts += [collection.queries[q] for q in {q for q, _ in pairs}]
        prose.update(word.lower() for text in texts for word in WORD.findall(text))
    return {word for word, count in prose.items() if count >= 2 and word not in known}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds pretrain/, medquad/, ...")
    parser.add_argument("--teacher-vocabulary", type=Path, required=True, help="vocab.txt of the teacher")
    parser.add_argument("--out", type=Path, required=True, help="the text file to write, a word a line")
    args = parser.parse_args()
    known = set(teacher_words(args.teacher_vocabulary))
    real = real_words(args.data, known)
    made = made_words(MADE, random.Random(0)) - real - known
    args.out.write_text("\n".join(sorted(real | made)) + "\n", encoding="utf-8")
    print(f"{len(real):,} words of the sources, {len(made):,} made up")


if __name__ == "__main__":
    main()
