"""Learn by which directions tokens are compared in late interaction (`encoder/token_projection.py`); the encoder stays.

On pairs of packed texts: a question has to find its passage among the batch's by MaxSim, the mean over its tokens,
weighted by their projected length, of the highest cosine with a token of the passage. Negatives that the teacher finds
as close as the passage are left out, as in `train_packed.py`.

Writes token_projection.safetensors into --model. Killed and started again, it starts over; the same weights.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.encoder.token_codec import WIDTH
from aveyb_retrieval.encoder.token_projection import FILE
from aveyb_retrieval.training.losses import pair_loss
from aveyb_retrieval.training.optimizers import learning_rate_factor
from aveyb_retrieval.training.packed import BatchOrder, PackedTexts
from aveyb_retrieval.training.packed_loop import token_vectors


def maxsim(queries: torch.Tensor, weights: torch.Tensor, documents: torch.Tensor, exist: torch.Tensor) -> torch.Tensor:
    """Return scores `[A, B]` of every query with every document.

    Args:
        queries: float32 `[A, Q, w]`, unit rows.
        weights: float32 `[A, Q]`, of each token, 0 in the padding; 1 in all.
        documents: float32 `[B, T, w]`, unit rows.
        exist: bool `[B, T]`.
    """
    scores = []
    for tokens, there in zip(documents, exist, strict=True):
        cosines = queries @ tokens[there].T
        scores.append((cosines.amax(-1).float() * weights).sum(-1))
    return torch.stack(scores, 1)


def pair_scores(weight: torch.Tensor, found: list[torch.Tensor], masks: list[np.ndarray]) -> torch.Tensor:
    """Return MaxSim `[B, B]` of questions by passages.

    Args:
        weight: `[w, d]`, the projection.
        found: float32 `[B, T, d]` of questions and passages, the encoder's outputs.
        masks: bool `[B, T]`, likewise.
    """
    asked, exist = (torch.from_numpy(mask) for mask in masks)
    queries, documents = (hidden @ weight.T for hidden in found)
    lengths = queries.norm(dim=-1) * asked
    weights = lengths / lengths.sum(-1, keepdim=True)
    normalize = nn.functional.normalize
    return maxsim(normalize(queries, dim=-1), weights, normalize(documents, dim=-1), exist)


def main() -> None:
    """Parse the arguments, train, and write the projection."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packed", type=Path, required=True, help="output folder of pack_texts.py, with pairs")
    parser.add_argument("--model", type=Path, required=True, help="folder of the finished encoder")
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--batch-tokens", type=int, default=8_192)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--temperature", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    texts = PackedTexts.load(args.packed)
    model = AveyBModel.from_pretrained(args.model, dtype=torch.float32).eval().requires_grad_(False)
    size = model.config.hidden_size
    weight = nn.Parameter(torch.linalg.qr(torch.randn(size, size)).Q[: min(WIDTH, size)].contiguous())
    optimizer = torch.optim.Adam([weight], lr=args.lr, betas=(0.9, 0.98))
    factor = learning_rate_factor("cosine", args.steps, 0.02)
    order = BatchOrder(texts, 512, args.seed, args.batch_tokens, similar=True)
    seen: list[float] = []
    step, number, begun = 0, 0, time.monotonic()
    while step < args.steps:
        rows = order[number]
        number += 1
        if rows.shape[1] < 2:  # single texts have no question
            continue
        for group in optimizer.param_groups:
            group["lr"] = args.lr * factor(step)
        padded = [texts.padded(column) for column in rows.T]
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            found = [token_vectors(model, *sides)[0] for sides in padded]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            student = pair_scores(weight, found, [mask for _, mask in padded])
        anchors, positives = (torch.from_numpy(texts.vectors[column]).float() for column in rows.T)
        loss = pair_loss(student, anchors @ positives.T, args.temperature, 0.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        seen.append(loss.item())
        if step % 50 == 0:
            line = {"step": step, "loss": round(float(np.mean(seen)), 4), "seconds": round(time.monotonic() - begun)}
            print(json.dumps(line), flush=True)
            seen.clear()
    save_file({"weight": weight.detach().half()}, args.model / FILE, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
