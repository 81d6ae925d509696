"""The forward pass of Avey-B as the paper writes it, in plain PyTorch, beside the model of this
package.

    python examples/avey_b_in_100_lines.py

A text of N tokens is cut into splits of S tokens. The ranker finds the k earlier splits most
similar to each split and the compressor folds them into it; from then on every split goes through
the layers alone. There is no attention. Shapes: S tokens in a split (the last may have fewer, T),
width D, m = expansion_factor * D / 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, relu, rms_norm

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.network.model import AveyBModel

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.network.split_encoder import SplitEncoder

Weights = dict[str, torch.Tensor]


def maxsim(split: torch.Tensor, earlier: torch.Tensor, eps: float) -> float:
    """Score an earlier split for a split, `[T, D]` and `[S, D]`: each token's best cosine, summed
    over tokens.
    """
    split = split / (split.norm(dim=-1, keepdim=True) + eps)
    earlier = earlier / (earlier.norm(dim=-1, keepdim=True) + eps)
    return (split @ earlier.T).amax(dim=1).sum().item()


def rank(splits: list[torch.Tensor], current: int, k: int, eps: float) -> list[tuple[int, float]]:
    """Return the k best earlier splits in reading order, each with its weight: its score over the
    highest score.
    """
    scores = [(maxsim(splits[current], splits[i], eps), i) for i in range(current)]
    best = sorted(scores, key=lambda pair: (-pair[0], pair[1]))[:k]
    return sorted((i, score / best[0][0]) for score, i in best)


def compress(
    splits: list[torch.Tensor], current: int, projection: torch.Tensor, k: int, eps: float
) -> torch.Tensor:
    """Fold the retrieved splits into the current one (eq. 8): `P [0 ..., w1 X1, ..., wk Xk, X] +
    X`, `[T, D]`.

    P is the learned `[S, (k + 1) S]`; zeros on the left take the place of splits that do not exist.
    """
    x = splits[current]
    size = len(projection)
    chosen = rank(splits, current, k, eps)
    missing = x.new_zeros((k - len(chosen)) * size, x.shape[1])
    padding = x.new_zeros(size - len(x), x.shape[1])
    # [(k + 1) S, D]
    stacked = torch.cat([missing, *(weight * splits[i] for i, weight in chosen), x, padding])
    return (projection @ stacked)[: len(x)] + x


def mix_static(mixed: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Mix tokens by a learned matrix, one weight for each pair of positions (eq.

    4): `[T, m]` -> `[T, m]`.
    """
    return matrix[: len(mixed), : len(mixed)] @ mixed


def mix_dynamic(mixed: torch.Tensor, eps: float) -> torch.Tensor:
    """Mix tokens by their cosines, each row divided by its sum (eq.

    5 and 6): `[T, m]` -> `[T, m]`.
    """
    unit = mixed / mixed.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    similarity = unit @ unit.T
    return similarity / (similarity.sum(dim=-1, keepdim=True) + eps) @ mixed


def layer(x: torch.Tensor, w: Weights, name: str, config: AveyBConfig) -> torch.Tensor:
    """Run one layer on one split, `[T, D]` -> `[T, D]`: enrich, contextualize a half, fuse, add the
    input.
    """
    m = config.hidden_size * config.expansion_factor // 4
    normed = rms_norm(x, x.shape[-1:], w[f"{name}.norm.weight"], config.norm_eps)
    # [T, 4 m] (eq. 1)
    enriched = relu(linear(normed, w[f"{name}.enricher.weight"], w[f"{name}.enricher.bias"])) ** 2
    bypass, gate, mixed = enriched.split([2 * m, m, m], dim=-1)
    if f"{name}.spatial_proj" in w:
        context = mix_static(mixed, w[f"{name}.spatial_proj"])
    else:
        context = mix_dynamic(mixed, config.similarity_eps)
    context = gate * relu(context + w[f"{name}.mix_bias"][: len(x), None])  # (eq. 7)
    return (
        linear(
            torch.cat([bypass, context], dim=-1), w[f"{name}.fuser.weight"], w[f"{name}.fuser.bias"]
        )
        + x
    )


def encode(ids: torch.Tensor, w: Weights, config: AveyBConfig) -> torch.Tensor:
    """Encode the token ids of one text, int64 `[N]` -> `[N, D]`."""
    splits = list(w["embed.weight"][ids].split(config.split_size))
    out = []
    for current in range(len(splits)):
        x = compress(
            splits, current, w["ranker.down_proj"], config.num_retrieved, config.similarity_eps
        )
        for i in range(config.num_hidden_layers):
            x = layer(x, w, f"layers.{i}", config)
        out.append(
            rms_norm(x, x.shape[-1:], w["ln_f.weight"], config.norm_eps) if config.final_norm else x
        )
    return torch.cat(out)


@torch.no_grad()
def compare(name: str, model: SplitEncoder, ids: torch.Tensor) -> float:
    """Print and return the largest difference between `encode`, in float64, and the model, for
    int64 `[N]` ids.
    """
    expected = model.encode_batch(ids[None])[0]
    ours = encode(
        ids, {name: tensor.double() for name, tensor in model.state_dict().items()}, model.config
    )
    difference = (ours - expected).abs().max().item()
    print(
        f"{name}, {len(ids)} tokens: largest difference {difference:.1e}, numbers up to"
        f" {ours.abs().max():.1f}"
    )
    return difference


def main() -> None:
    """Compare `encode` with a random model of the paper's base settings, and with the embedded
    model on this file.
    """
    torch.manual_seed(0)
    random = AveyBModel(
        AveyBConfig.paper_base(hidden_size=64, num_hidden_layers=6, split_size=32)
    ).eval()
    compare(
        "random model of the paper's settings",
        random,
        torch.randint(0, random.config.vocab_size, (500,)),
    )
    embedder = Embedder.load(precision="float32")
    ids = torch.from_numpy(embedder.tokenizer.encode_ids(Path(__file__).read_text("utf-8"))).long()
    compare("embedded model", embedder.model, ids)


if __name__ == "__main__":
    main()
