"""Operators for inference alone, registered without the bookkeeping of gradients.

What `torch.library.custom_op` adds to a call costs the host more than the launch itself, and a short text's forward is
as slow as its host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARY = torch.library.Library("aveyb", "FRAGMENT")


def inference_operator(signature: str, run: Callable[..., Any], shapes: Callable[..., Any]) -> Callable[..., Any]:
    """Register `run` as an operator of the namespace `aveyb`, and return the operator.

    Args:
        signature: name, arguments and results as torch writes them; "Tensor(a!)" for an argument that is written to.
        run: launches the kernels, on any device.
        shapes: gives empty results of the right shapes, for tensors without values; None where nothing is returned.
    """
    name = signature.split("(", 1)[0]
    _LIBRARY.define(signature)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, shapes, "Meta")
    return getattr(torch.ops.aveyb, name).default
