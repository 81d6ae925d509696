"""Cache the teacher's vectors for texts.jsonl (resumable: run it again after an interruption)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from aveyb_retrieval.training.teacher import cache_vectors
from aveyb_retrieval.training.texts import read_texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="what prepare.py wrote")
    parser.add_argument("--teacher", required=True, help="folder or name of the sentence-transformers teacher")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="i n: this process takes every n-th shard")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = list(read_texts([args.data / "texts.jsonl"]))
    begun = time.time()

    def progress(stage: str, done: int, total: int | None, tokens: int) -> None:
        print(f"{done:,} of {total:,} texts, {time.time() - begun:.0f} s", flush=True)

    cache_vectors(
        texts, args.data / "teacher", model=args.teacher, precision="bfloat16", part=tuple(args.part), progress=progress
    )


if __name__ == "__main__":
    main()
