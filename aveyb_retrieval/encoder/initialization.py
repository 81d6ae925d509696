"""A start for static matrices that knows that near tokens matter most.

The matrix V of a static layer has one weight for every pair of positions in a split. Started at random it has to learn
what stands beside a token at each of S positions anew, and a masked-language model stays near the frequencies of single
tokens for long. `local_matrix` starts with the same weights around every position; training is free to change each.
"""

from __future__ import annotations

import torch
from torch.nn.init import xavier_normal_
from transformers import initialization

REACH = 2.0  # tokens over which the weight falls to 1/e
NOISE = 0.3  # Xavier noise on top: positions do not start alike
RIGHT = (-1.0, 0.5)  # weight of the right side beside the left one, by turns: two layers together tell the sides apart


def start_static(matrix: torch.nn.Parameter, static_init: str, order: int) -> None:
    """Sets a static matrix `[S, S]` as `AveyBConfig.static_init` says, unless it was loaded from a file."""
    if static_init == "local":
        initialization.copy_(matrix, local_matrix(len(matrix), order))
    else:
        initialization.xavier_normal_(matrix)


def local_matrix(size: int, order: int) -> torch.Tensor:
    """`V[i, j] = exp((1 - |i - j|) / REACH)` for j left of i, times RIGHT to the right, 0 for j = i; plus noise.

    Without the noise the mean square sum of a row is 1, that of a Xavier normal matrix.

    Args:
        size: S.
        order: which of the model's static layers it is for, from 0.

    Returns:
        float32 `[S, S]`.
    """
    place = torch.arange(size)
    offset = place[None, :] - place[:, None]
    near = torch.exp((1 - offset.abs()) / REACH).masked_fill(offset == 0, 0)
    near = torch.where(offset > 0, near * RIGHT[order % len(RIGHT)], near)
    near = near / near.square().sum(1).mean().sqrt().clamp_min(torch.finfo(near.dtype).tiny)
    return near + NOISE * xavier_normal_(torch.empty(size, size))
