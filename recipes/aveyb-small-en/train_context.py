"""Teach the compressor what to fetch from the splits that a split retrieves; everything else stays as it is.

As `../aveyb-mini-en/context.py`, with documents that are labelled already: their splits stand side by side in the
packed texts, each with the teacher's vector. A run of passages is taken for one document as long as all but the last
are full; where a document's rest was too short to be a passage (about one in sixteen), the next one is joined to it.

Writes --out, a model folder as --model, with result.json: the mean cosine to the targets on windows kept aside, with
the blocks that the model came with, with none, and after training.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parents[1] / "aveyb-mini-en"))
from context import RetrievedBlocks, split_vectors, targets_of, train

from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.encoder.sentence_transformers import read_prompts, sentence_transformer
from aveyb_retrieval.encoder.splits import split_table
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.training.packed import PackedTexts
from aveyb_retrieval.training.texts import read_records

SLACK = 8  # tokens that a full passage may lack: alone, it may take fewer than in its document
ASIDE = 20  # one window in so many is kept aside


@dataclass(frozen=True)
class Settings:
    """What decides the result."""

    windows: int
    longest: int  # splits of a window
    share: float  # of the context in a target
    batch: int  # windows a step
    lr: float
    seed: int


def passages(texts: PackedTexts, folder: Path, split_size: int) -> list[list[int]]:
    """Return the packed texts that are full passages in a row, from one source, two or more."""
    rows: list[list[int]] = [[]]
    before = ""
    for number, (_, record) in enumerate(read_records(folder / "texts.jsonl")):
        if number == len(texts.lengths):
            break
        here = record["source"] if record["kind"] == "passage" else ""
        full = texts.lengths[number] >= split_size - SLACK
        if here != before or not full:
            rows.append([])
        if here and full:
            rows[-1].append(number)
        before = here
    return [row for row in rows if len(row) > 1]


def windows(rows: list[list[int]], settings: Settings) -> list[list[int]]:
    """Return up to `windows` runs of 2 to `longest` passages, in a random order."""
    generator = random.Random(settings.seed)
    found = []
    for row in rows:
        start = 0
        while len(row) - start > 1:
            size = generator.randint(2, settings.longest)
            found.append(row[start : start + size])
            start += size
    generator.shuffle(found)
    return [window for window in found if len(window) > 1][: settings.windows]


@dataclass(frozen=True)
class Context:
    """Windows of packed texts, and the cosine that training raises. head: `[D_teacher, D]`, of the run."""

    model: AveyBModel
    texts: PackedTexts
    head: torch.Tensor
    share: float

    def cosine(self, chosen: list[list[int]]) -> torch.Tensor:
        """Return the mean cosine of the splits of some windows to their targets."""
        size = self.model.split_size
        rows = [row for window in chosen for row in window]
        ids = [np.resize(self.texts.ids[self.texts.starts[row] : self.texts.starts[row + 1]], size) for row in rows]
        tokens = torch.from_numpy(np.concatenate(ids).astype(np.int64))
        table = split_table(tokens, [len(window) * size for window in chosen], size)
        retrieved = self.model.ranker.retrieve(table, self.model.embed.weight)
        own = torch.from_numpy(self.texts.vectors[rows]).float()
        vectors = split_vectors(self.model, table, retrieved) @ self.head.T
        return torch.nn.functional.cosine_similarity(vectors, targets_of(own, retrieved, self.share)).mean()


def main() -> None:
    """Parse the arguments, train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="output folder of make_texts.py")
    parser.add_argument("--packed", type=Path, required=True, help="output folder of pack_texts.py")
    parser.add_argument("--model", type=Path, required=True, help="what assemble.py wrote")
    parser.add_argument("--run", type=Path, required=True, help="run folder of train_packed.py; its head is used")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=1_500)
    parser.add_argument("--longest", type=int, default=8, help="splits of a window")
    parser.add_argument("--share", type=float, default=0.3, help="of the context in a target")
    parser.add_argument("--batch", type=int, default=4, help="windows a step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = Settings(args.windows, args.longest, args.share, args.batch, args.lr, args.seed)
    texts = PackedTexts.load(args.packed)
    model = AveyBModel.from_pretrained(args.model, dtype=torch.float32).eval()
    head = load_file(args.run / "model" / "head.safetensors")["head"].float()
    found = windows(passages(texts, args.texts, model.split_size), settings)
    aside, rest = found[::ASIDE], [window for i, window in enumerate(found) if i % ASIDE]
    blocks, cosine = RetrievedBlocks(model), Context(model, texts, head, settings.share).cosine
    result = {
        "windows": len(found),
        "none": blocks.measure(cosine, aside, torch.zeros_like(blocks.old)),
        "old": blocks.measure(cosine, aside, blocks.old),
    }
    print(result, flush=True)
    train(blocks.matrix, cosine, rest, settings.batch, settings.lr)
    result["trained"] = blocks.measure(cosine, aside)
    print(result, flush=True)
    sentence_transformer(model, AveyBTokenizer.load(args.model), args.out, prompts=read_prompts(args.model))
    (args.out / "result.json").write_text(json.dumps({**result, "settings": asdict(settings)}) + "\n")


if __name__ == "__main__":
    main()
