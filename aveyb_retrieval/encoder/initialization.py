"""Locality-biased initialization of the static mixing matrices.

The matrix V of a static layer has one weight for every pair of positions in a split. From a random start, training has
to learn the influence of neighbouring tokens separately for each of S positions, and masked-language modelling stays
near single-token frequencies for a long time. `local_matrix` starts with the same weights around every position;
training can change each of them.
"""

from __future__ import annotations

import torch
from torch.nn.init import xavier_normal_
from transformers import initialization

REACH = 2.0  # tokens over which the weight falls to 1/e
NOISE = 0.3  # scale of the Xavier noise added, so that positions do not start equal
RIGHT = (
    -1.0,
    0.5,
)  # weight of the right side relative to the left, alternating: two layers together distinguish the sides


def start_static(matrix: torch.nn.Parameter, static_init: str, order: int) -> None:
    """Initialize a static matrix, unless it was loaded from a file.

    Args:
        matrix: `[S, S]`, written in place.
        static_init: "local" or "xavier", as in `AveyBConfig`.
        order: how many static layers come before this one.
    """
    if static_init == "local":
        initialization.copy_(matrix, local_matrix(len(matrix), order))
    else:
        initialization.xavier_normal_(matrix)


def local_matrix(size: int, order: int) -> torch.Tensor:
    """Return `V[i, j] = exp((1 - |i - j|) / REACH)` for j left of i, times RIGHT to the right, 0 for j = i; plus noise.

    Without the noise the mean square sum of a row is 1, that of a Xavier normal matrix.

    Args:
        size: S.
        order: how many static layers come before this one.

    Returns:
        float32 `[S, S]`.
    """
    position = torch.arange(size)
    offset = position[None, :] - position[:, None]
    near = torch.exp((1 - offset.abs()) / REACH).masked_fill(offset == 0, 0)
    near = torch.where(offset > 0, near * RIGHT[order % len(RIGHT)], near)
    near = near / near.square().sum(1).mean().sqrt().clamp_min(torch.finfo(near.dtype).tiny)
    return near + NOISE * xavier_normal_(torch.empty(size, size))
