"""Pack token ids and teacher vectors into parts for train_packed.py.

Texts without a vector yet are left out from the first missing shard on, so that training can begin while the teacher
still works. --part-mib is what one upload may hold beside the program.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from make_texts import SPLIT, as_seen
from packed import STORAGE_DTYPES, PartWriter, vocabulary_hash

from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.training.teacher import SETTINGS, read_vectors
from aveyb_retrieval.training.texts import read_records, read_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

CHUNK = 2_000  # texts that a process tokenizes at a time


def token_ids(vocabulary: Path, texts: list[str]) -> list[np.ndarray]:
    """Return the token ids of each text as the student meets it."""
    tokenizer = read_vocabulary(vocabulary)
    return [tokenizer.encode_ids(as_seen(text)) for text in texts]


def all_token_ids(vocabulary: Path, texts: Iterable[str], processes: int) -> Iterator[np.ndarray]:
    """Yield the token ids of each text, in order, tokenized by some processes."""
    rest = iter(texts)
    chunks = iter(lambda: list(islice(rest, CHUNK)), [])
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for ids in pool.map(partial(token_ids, vocabulary), chunks):
            yield from ids


def main() -> None:
    """Parse the arguments and write the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="output folder of make_texts.py, with teacher/ in it")
    parser.add_argument("--vocabulary", type=Path, required=True, help="folder of the student's vocabulary")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part-mib", type=float, default=40.0)
    parser.add_argument("--storage-dtype", choices=STORAGE_DTYPES, default="int8", help="of the teacher's vectors")
    parser.add_argument("--processes", type=int, default=1, help="that tokenize")
    args = parser.parse_args()
    vectors = read_vectors(args.texts / "teacher", allow_partial=True)
    positives: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by the later text of the pair
    for _, pair in read_records(args.texts / "pairs.jsonl"):
        positives[max(pair["anchor"], pair["positive"])].append((pair["anchor"], pair["positive"]))
    writer = PartWriter(args.out, part_bytes=int(args.part_mib * 2**20), storage_dtype=args.storage_dtype)
    shortened = 0
    texts = islice(read_texts([args.texts / "texts.jsonl"]), len(vectors))
    tokenized = all_token_ids(args.vocabulary, texts, args.processes)
    for number, (ids, vector) in enumerate(zip(tokenized, vectors, strict=True)):
        shortened += len(ids) > SPLIT  # a split that began inside a word: alone, it may take a token or two more
        writer.add(ids[:SPLIT], vector)
        for pair in positives[number]:
            writer.pair(*pair)
    teacher = json.loads((args.texts / "teacher" / SETTINGS).read_text(encoding="utf-8"))
    vocabulary = vocabulary_hash(args.vocabulary)
    writer.finish({"teacher": teacher["teacher"], "texts": teacher["texts_sha256"], "vocabulary": vocabulary})
    for part in writer.parts:
        counts = f"{part.texts:,} texts, {part.tokens:,} tokens, {part.pairs:,} pairs"
        print(f"{part.name}: {part.bytes / 2**20:.1f} MiB, {counts}")
    print(f"cut to {SPLIT} tokens: {shortened:,}; pairs across two parts, left out: {writer.pairs_left_out:,}")


if __name__ == "__main__":
    main()
