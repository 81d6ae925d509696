"""Write the text that the vocabulary is trained on: an even sample of the pre-training sources, the documents and
queries of the training splits, a list of general English words, and the list of rare ones.

The list is there because the sources are technical, legal and literary: the words that the teacher's vocabulary
holds whole (general web and book English, in order of frequency) are written with slowly falling frequencies, so that
most of them become whole tokens. The rare words (rare_words.py) are written a few times each, so that the parts they
share become tokens. The vocabulary marks capitals, so that one spelling serves for all.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from sources import PRETRAIN, TRAIN_SETS, load_set, pretrain_documents, teacher_words

CHARACTERS_PER_SOURCE = 1_500_000
WORD_COUNTS = (6_000_000, 8_000)  # (a, b): the r-th word of the list is written a / (r + b) times
RARE_WORD_COUNT = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds pretrain/, medquad/, ...")
    parser.add_argument("--teacher-vocabulary", type=Path, required=True, help="vocab.txt of the teacher")
    parser.add_argument("--rare-words", type=Path, required=True, help="what rare_words.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="the .jsonl to write")
    args = parser.parse_args()
    generator = random.Random(0)
    with args.out.open("w", encoding="utf-8") as out:
        for name in PRETRAIN:
            budget = CHARACTERS_PER_SOURCE
            for text in pretrain_documents(args.data, name, limit=5_000):
                start = generator.randrange(max(1, len(text) - 60_000))  # a window: no novel fills a source alone
                piece = text[start : start + min(budget, 60_000)]
                out.write(json.dumps({"text": piece}) + "\n")
                budget -= len(piece)
                if budget <= 0:
                    break
        for name in TRAIN_SETS:
            collection = load_set(args.data / name)
            pairs = collection.train_pairs()
            budget = 2 * CHARACTERS_PER_SOURCE
            for document in sorted({d for _, d in pairs}):
                text = "\n".join(collection.documents[document])[: min(budget, 20_000)]
                out.write(json.dumps({"text": text}) + "\n")
                budget -= len(text)
                if budget <= 0:
                    break
            for query in sorted({q for q, _ in pairs}):
                out.write(json.dumps({"text": collection.queries[query]}) + "\n")
        for rank, word in enumerate(teacher_words(args.teacher_vocabulary)):
            count = WORD_COUNTS[0] // (rank + WORD_COUNTS[1])
            out.write(json.dumps({"text": f" {word}" * count}) + "\n")
        for word in args.rare_words.read_text(encoding="utf-8").split():
            out.write(json.dumps({"text": f" {word}" * RARE_WORD_COUNT}) + "\n")


if __name__ == "__main__":
    main()
