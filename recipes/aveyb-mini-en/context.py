"""Teach the compressor what to fetch from the splits that a split retrieves; everything else stays as it is.

The other stages see texts of one split, so the compressor's blocks for retrieved splits have learnt little. Here
windows of long documents are cut into splits, and each split's vector is drawn towards the teacher's vector of its own
text plus a share of those of the splits it retrieves. Only these blocks change: texts of one split keep their vectors.

Writes --out as --model with the new weights, and result.json: the mean cosine to the targets on documents kept aside,
with the old blocks, with none, with the start (each retrieved split adds a share of its mean), and after training.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from prepare import Collector, blocked_texts
from safetensors.torch import load_file, save_file
from sources import PRETRAIN, PROMPT, TRAIN_SETS, load_set, pretrain_documents

import aveyb_retrieval  # noqa: F401  (registers the architecture)
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.network.splits import SplitTable, split_table
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.training.teacher import encode_with, load_teacher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aveyb_retrieval.encoder.network.ranker import Retrieved

ASIDE = 20  # one document in so many is kept aside


@dataclass(frozen=True)
class Window:
    """Part of a document: its token ids, and the text of each of its splits."""

    ids: list[int]
    splits: list[str]


def windows(data: Path, tokenizer: AveyBTokenizer, wanted: int, size: int, longest: int) -> list[Window]:
    """As many windows of 2 to `longest` splits, evenly from all sources; held-out texts as in prepare.py."""
    collector = Collector(*blocked_texts(data))
    generator = random.Random(0)
    found: list[Window] = []
    for source in [*PRETRAIN, *TRAIN_SETS]:
        if source in PRETRAIN:
            documents = pretrain_documents(data, source, limit=2_000)
        else:
            collection = load_set(data / source)
            documents = ["\n".join(collection.documents[d]) for d in sorted({d for _, d in collection.train_pairs()})]
        documents = [text for text in documents if len(text) > 6 * size]
        count = 0
        for turn in range(20 * wanted):
            if not documents or count * (len(PRETRAIN) + len(TRAIN_SETS)) >= wanted:
                break
            text = documents[turn % len(documents)]
            start = generator.randrange(max(1, len(text) - 6 * size))
            start = text.find(" ", start) + 1  # at a word
            text = PROMPT + text[start : start + 8 * size * longest]
            ids, offsets = tokenizer.encode(text)
            kept = min(len(ids) // size, generator.randint(2, longest)) * size
            if kept < 2 * size or collector.add(text[: offsets[kept - 1, 1]], "window", source) is None:
                continue
            edges = [(offsets[i, 0], offsets[i + size - 1, 1]) for i in range(0, kept, size)]
            found.append(Window([int(i) for i in ids[:kept]], [text[a:b] for a, b in edges]))
            count += 1
        print(f"{source}: {count} windows", flush=True)
    generator.shuffle(found)
    return found


def batch_of(model: AveyBModel, chosen: list[Window]) -> tuple[SplitTable, Retrieved]:
    """The splits of some windows, and what each retrieves."""
    tokens = torch.tensor([i for window in chosen for i in window.ids])
    table = split_table(tokens, [len(window.ids) for window in chosen], model.split_size)
    return table, model.ranker.retrieve(table, model.embed.weight)


def split_vectors(model: AveyBModel, table: SplitTable, retrieved: Retrieved) -> torch.Tensor:
    """float32 `[n, d]`, unit rows: the mean of each split's token vectors."""
    parts = zip(*model.encode_splits(table, retrieved), strict=True)
    slots, vectors, _ = (torch.cat(part) for part in parts)
    # Windows hold full splits only, so that every slot is taken.
    means = vectors[slots.argsort()].view(len(table.ids), -1, vectors.shape[1]).float().mean(1)
    return torch.nn.functional.normalize(means, dim=-1)


def targets_of(vectors: torch.Tensor, retrieved: Retrieved, share: float) -> torch.Tensor:
    """`[n, t]`, unit rows: each split's own teacher vector plus `share` times the mean of its retrieved splits'."""
    weights = retrieved.weights.detach() * (retrieved.rows >= 0)
    context = (vectors[retrieved.rows.clamp_min(0)] * weights[..., None]).mean(1)
    return torch.nn.functional.normalize(vectors + share * context, dim=-1)


class RetrievedBlocks:
    """The compressor's blocks for retrieved splits: of a model, the only weights that are left to learn.

    matrix: `[S, (k + 1) S]`, the compressor; its first k S columns are the blocks. old: `[S, k S]`, as they came.
    """

    def __init__(self, model: AveyBModel) -> None:
        """Freeze everything else."""
        model.requires_grad_(False)
        self.matrix = model.ranker.down_proj.requires_grad_()
        self._columns = model.ranker.num_retrieved * model.split_size
        self.old = self.matrix.detach()[:, : self._columns].clone()
        self.matrix.register_hook(
            lambda grad: torch.cat([grad[:, : self._columns], torch.zeros_like(grad[:, self._columns :])], 1)
        )

    @torch.no_grad()
    def measure(
        self,
        cosine: Callable[[Sequence[Any]], torch.Tensor],
        aside: Sequence[Any],
        blocks: torch.Tensor | None = None,
    ) -> float:
        """Return the mean cosine of windows kept aside, with these blocks in place (None: as they are), which stay."""
        if blocks is not None:
            self.matrix[:, : self._columns] = blocks
        return float(np.mean([cosine(aside[i : i + 8]).item() for i in range(0, len(aside), 8)]))


def train(
    matrix: torch.nn.Parameter,
    cosine: Callable[[Sequence[Any]], torch.Tensor],
    windows: Sequence[Any],
    size: int,
    lr: float,
) -> None:
    """Raise the mean cosine of windows, `size` a step, each window once."""
    optimizer = torch.optim.Adam([matrix], lr=lr, betas=(0.9, 0.98))
    steps = len(windows) // size
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.05)
    begun = time.monotonic()
    seen: list[float] = []
    for step in range(steps):
        value = cosine(windows[step * size : (step + 1) * size])
        (1 - value).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        seen.append(value.item())
        if (step + 1) % 50 == 0:
            print(f"{step + 1} of {steps}: {np.mean(seen[-50:]):.4f}, {time.monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets, as for prepare.py")
    parser.add_argument("--model", type=Path, required=True, help="what train.py wrote")
    parser.add_argument("--embedding", type=Path, required=True, help="embedding.npz of that run; its head is used")
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=3_200)
    parser.add_argument("--longest", type=int, default=8, help="splits of a window")
    parser.add_argument("--share", type=float, default=0.3, help="of the context in a target")
    parser.add_argument("--batch", type=int, default=4, help="windows a step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)

    model = AveyBModel.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AveyBTokenizer.load(args.model)
    found = windows(args.data, tokenizer, args.documents, model.split_size, args.longest)
    cache = args.out.parent / f"{args.out.name}-teacher.npy"
    texts = [split for window in found for split in window.splits]
    if not cache.exists():
        teacher, _ = load_teacher(args.teacher, device="cpu", max_tokens=256)
        np.save(cache, encode_with(teacher, texts, precision="bfloat16"))
    taught = torch.from_numpy(np.load(cache, allow_pickle=False)).float()
    if len(taught) != len(texts):
        raise SystemExit(f"{cache} holds {len(taught)} vectors for {len(texts)} texts: remove it")
    starts = np.cumsum([0, *(len(window.splits) for window in found)])
    with np.load(args.embedding, allow_pickle=False) as saved:
        head = torch.from_numpy(saved["head"]).float()

    blocks = RetrievedBlocks(model)
    aside, rest = list(range(0, len(found), ASIDE)), [i for i in range(len(found)) if i % ASIDE]

    def cosine(chosen: Sequence[int]) -> torch.Tensor:
        table, retrieved = batch_of(model, [found[i] for i in chosen])
        own = torch.cat([taught[starts[i] : starts[i + 1]] for i in chosen])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            vectors = split_vectors(model, table, retrieved)
        return torch.nn.functional.cosine_similarity(vectors @ head.T, targets_of(own, retrieved, args.share)).mean()

    result = {
        "old": blocks.measure(cosine, aside),
        "none": blocks.measure(cosine, aside, torch.zeros_like(blocks.old)),
        "start": blocks.measure(cosine, aside, torch.full_like(blocks.old, args.share / model.split_size)),
    }
    print(result, flush=True)
    train(blocks.matrix, cosine, rest, args.batch, args.lr)
    result["trained"] = blocks.measure(cosine, aside)
    print(result, flush=True)
    shutil.copytree(args.model, args.out, dirs_exist_ok=True)
    weights = load_file(args.model / "model.safetensors")
    (name,) = [key for key in weights if key.endswith("ranker.down_proj")]
    weights[name] = blocks.matrix.detach().to(weights[name].dtype)
    save_file(weights, args.out / "model.safetensors", metadata={"format": "pt"})
    settings = {name: getattr(args, name) for name in ("documents", "longest", "share", "batch", "lr")}
    (args.out / "result.json").write_text(json.dumps({**result, "settings": settings, "windows": len(found)}) + "\n")


if __name__ == "__main__":
    main()
