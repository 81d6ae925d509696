"""Indices that are made on the host and used on a device, sent there without waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_FROM_PAGE_LOCKED = ("cuda",)  # kinds of devices that copies from page-locked memory go to while the host goes on


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return int64 arrays of any shapes as contiguous tensors on a device, as kernels need them.

    On a CUDA device they go there in one copy from page-locked memory, which the host does not wait for; a copy from
    other memory makes it wait until the device has done everything before. A CPU may share the memory of `arrays`.
    """
    if device.type not in _FROM_PAGE_LOCKED or not arrays:
        return [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays]
    sizes = [array.size for array in arrays]
    packed = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=True)
    np.concatenate([array.reshape(-1) for array in arrays], out=packed.numpy())
    sent = packed.to(device, non_blocking=True).split(sizes)
    return [part.view(array.shape) for part, array in zip(sent, arrays, strict=True)]
