"""Texts into vectors on a CPU: the embedded model beside all-MiniLM-L6-v2, each through its usual call.

    python benchmarks/cpu/speed.py --threads 1

Texts are this package's own documentation, about 4,096 tokens of it in one call, in pieces of the same number of
tokens; tokens are MiniLM's for both, so that both read the same text. MiniLM reads texts beyond its 256 tokens in
chunks of 180 words, as people use it. float32, tokenizing included, the best of several runs taken in turn. Writes
cpu_speed.json into benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from encode import best_times
from quality import CHUNK_WORDS, RESULTS, minilm_folder
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer

from aveyb_retrieval import Embedder
from aveyb_retrieval.eval.datasets import Document
from aveyb_retrieval.eval.encoders import word_chunks

LENGTHS = (16, 64, 256, 1024, 2048, 8192)
TOKENS = 4_096  # of a call, where texts are shorter
WINDOW = 256  # tokens that MiniLM reads


def texts_of(tokenizer: Any, length: int) -> list[str]:
    """Return texts of `length` tokens each, from this package's documentation."""
    pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    whole = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    offsets = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    count = max(1, TOKENS // length)
    return [whole[offsets[i * length][0] : offsets[(i + 1) * length - 1][1]] for i in range(count)]


def chunks(text: str) -> list[str]:
    """Return the chunks of a long text."""
    return [text[start:end] for start, end in word_chunks(CHUNK_WORDS)(Document("", "", text))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--minilm", default=None, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--seconds", type=float, default=5.0, help="time spent on each figure, at least three runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ours, minilm = Embedder.load(precision="float32"), SentenceTransformer(args.minilm or minilm_folder(), device="cpu")
    minilm.max_seq_length = WINDOW
    table, rows = Table("tokens of a text", ours.model_name, "all-MiniLM-L6-v2", "ratio", title="tokens/s"), []
    for length in args.lengths:
        texts = texts_of(minilm.tokenizer, length)
        pieces = [piece for text in texts for piece in (chunks(text) if length > WINDOW else [text])]
        times = best_times(
            {
                ours.model_name: lambda texts=texts: list(ours.encode_documents(("", text) for text in texts)),
                "all-MiniLM-L6-v2": lambda pieces=pieces: minilm.encode(pieces, batch_size=32),
            },
            seconds=args.seconds,
        )
        rates = {name: length * len(texts) / seconds for name, seconds in times.items()}
        mine, theirs = rates.values()
        rows.append({"tokens": length, "texts": len(texts), "tokens_per_second": rates, "ratio": mine / theirs})
        table.add_row(f"{length:,}", f"{mine:,.0f}", f"{theirs:,.0f}", f"{mine / theirs:.2f}")
    Console().print(table)
    machine = {"cpu": platform.processor() or platform.machine(), "threads": args.threads, "torch": torch.__version__}
    report = {"command": "python benchmarks/cpu/speed.py", "machine": machine, "rows": rows}
    (args.out / "cpu_speed.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
