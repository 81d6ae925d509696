"""Cache the teacher's vectors of texts.jsonl, and of their tokens if asked for; run it again after an interruption.

Several processes, on one machine or several, share the work with --part I N; shards made elsewhere are copied into the
folder `teacher`. Another teacher, other texts or another precision are refused.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from make_texts import SPLIT, as_seen
from packed import vocabulary_hash
from teacher_tokens import label_tokens

from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.training.settings import PRECISIONS
from aveyb_retrieval.training.teacher import cache_vectors
from aveyb_retrieval.training.texts import read_texts

if TYPE_CHECKING:
    import numpy as np


def main() -> None:
    """Parse the arguments and encode what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="output folder of make_texts.py")
    parser.add_argument("--teacher", required=True, help="folder or name of the sentence-transformers teacher")
    parser.add_argument(
        "--tokens-of", type=Path, help="also label each token of the student's vocabulary in this folder"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--shard-size", type=int, default=2048, help="texts per shard")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="every N-th shard from I")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.monotonic()

    def show(stage: str, done: int, total: int | None, tokens: int) -> None:
        print(f"{stage}: {done:,} of {total:,} texts, {time.monotonic() - started:.0f} s", flush=True)

    texts = [as_seen(text) for text in read_texts([args.texts / "texts.jsonl"])]
    tokens: dict[str, Any] = {}
    if args.tokens_of is not None:
        tokenizer = read_vocabulary(args.tokens_of)

        def tokenize(text: str) -> tuple[np.ndarray, np.ndarray]:
            ids, offsets = tokenizer.encode(text)
            return ids[:SPLIT], offsets[:SPLIT]

        encode = partial(label_tokens, tokenize=tokenize, precision=args.precision)
        tokens = {"encode": encode, "vocabulary": vocabulary_hash(args.tokens_of)}
    cache_vectors(
        texts,
        args.texts / "teacher",
        model=args.teacher,
        device=args.device,
        precision=args.precision,
        shard_size=args.shard_size,
        part=tuple(args.part),
        progress=show,
        **tokens,
    )


if __name__ == "__main__":
    main()
