"""Which implementation of an operation runs: one rule for all of them.

`backend="auto"` takes the Triton kernel for tensors on a CUDA device of compute capability 8.0 or newer when Triton is
installed and the kernel covers the shapes and dtype, and plain torch otherwise. `"triton"` and `"torch"` are orders:
one that cannot be carried out raises `BackendError` with the reason. Nothing here imports Triton.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from aveyb_retrieval.errors import BackendError

Backend = Literal["auto", "triton", "torch"]
BACKENDS: tuple[str, ...] = ("auto", "triton", "torch")

_TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
# Triton reads the same variable when a kernel is defined; then kernels run, slowly, on CPU tensors.
_INTERPRETING = os.environ.get("TRITON_INTERPRET", "0") == "1"
_MIN_CAPABILITY = (8, 0)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_forced: str | None = None


@contextmanager
def force_backend(backend: Backend) -> Iterator[None]:
    """Within the block, every operation called with `backend="auto"` behaves as if called with this one.

    Raises:
        BackendError: the name is not one of "auto", "triton", "torch".
    """
    global _forced
    previous, _forced = _forced, _known(backend)
    try:
        yield
    finally:
        _forced = previous


def forced_backend() -> str | None:
    """What a surrounding `force_backend` asks for; None outside of one."""
    return _forced


def use_triton(
    backend: str, tensor: torch.Tensor, *, operation: str, limit: str | None = None, opt_in: bool = False
) -> bool:
    """Whether an operation runs as a Triton kernel (else as plain torch).

    Args:
        backend: "auto", "triton" or "torch".
        tensor: the operation's main input; its device and dtype count.
        operation: named in the error.
        limit: why the kernel cannot take this call (a shape), or None when it can.
        opt_in: "auto" means torch on every device.

    Raises:
        BackendError: "triton" was asked for and cannot run, or the name is unknown.
    """
    wanted = _known(backend)
    if wanted == "auto" and _forced is not None:
        wanted = _forced
    if wanted == "torch":
        return False
    reason = _why_not(tensor) or limit
    if reason and wanted == "triton":
        raise BackendError(f'backend="triton" for {operation}: {reason}; use backend="auto" or "torch"')
    return reason is None and (wanted == "triton" or (tensor.is_cuda and not opt_in))


def inner_contiguous(x: torch.Tensor) -> torch.Tensor:
    """`x` itself when its last axis is contiguous, which is all that a kernel asks for; else a contiguous copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def missing_triton() -> str | None:
    """What to do about Triton where it is not installed; None where it is."""
    return None if _TRITON_INSTALLED else "Triton is not installed (pip install 'aveyb-retrieval[gpu]')"


def autocast_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype in which a product of `x` runs: that of autocast on its device within such a block, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _known(backend: str) -> str:
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    return backend


def _why_not(tensor: torch.Tensor) -> str | None:
    """The reason Triton cannot run on this tensor, or None."""
    if reason := missing_triton():
        return reason
    if tensor.dtype not in _DTYPES:
        return f"kernels take float32, float16 and bfloat16, not {tensor.dtype}"
    if _INTERPRETING:
        return None
    if not tensor.is_cuda:
        return f"the tensor is on {tensor.device}, kernels run on CUDA devices"
    capability = _capability(tensor.device)
    if capability < _MIN_CAPABILITY:
        return f"the device has compute capability {capability[0]}.{capability[1]}, kernels need 8.0 or newer"
    return None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
