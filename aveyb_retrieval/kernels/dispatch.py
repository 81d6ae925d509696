"""Choose the implementation of an operation, by one rule for all of them.

`backend="auto"` takes the Triton kernel for tensors on a CUDA device of compute capability 8.0 or
newer when Triton is installed and the kernel covers the shapes and dtype, and plain torch
otherwise. `"triton"` and `"torch"` force a choice; `BackendError` says why where that cannot run.
Nothing here imports Triton.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from aveyb_retrieval.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Backend = Literal["auto", "triton", "torch"]
BACKENDS: tuple[str, ...] = ("auto", "triton", "torch")

_TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
# Triton reads the same variable when a kernel is defined; then kernels run, slowly, on CPU tensors.
_INTERPRETING = os.environ.get("TRITON_INTERPRET", "0") == "1"
_MIN_CAPABILITY = (8, 0)
# kinds of devices that copies from page-locked memory go to while the host goes on
_FROM_PAGE_LOCKED = ("cuda",)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_forced: ContextVar[str | None] = ContextVar("forced backend", default=None)


@contextmanager
def force_backend(backend: Backend) -> Iterator[None]:
    """Make every operation called with `backend="auto"` within the block behave as if called with
    this backend.

    Other threads and asynchronous tasks go on as before, autograd's on a GPU among them.
    """
    token = _forced.set(_known(backend))
    try:
        yield
    finally:
        _forced.reset(token)


def forced_backend() -> str | None:
    """Return the backend of a surrounding `force_backend`, or None outside of one."""
    return _forced.get()


def use_triton(
    backend: str, tensor: torch.Tensor, *, operation: str, limit: str | None = None
) -> bool:
    """Return whether an operation runs as a Triton kernel (otherwise as plain torch).

    The device and dtype of its main input, `tensor`, count; `limit`: why the kernel cannot take
    this call (a shape).
    """
    choice = _known(backend)
    if choice == "auto":
        choice = forced_backend() or choice
    if choice == "torch":
        return False
    reason = _why_not(tensor) or limit
    if reason and choice == "triton":
        raise BackendError(
            f'backend="triton" for {operation}: {reason}; use backend="auto" or "torch"'
        )
    return reason is None and (choice == "triton" or tensor.is_cuda)


def fuses_passes(x: torch.Tensor) -> bool:
    """Return whether inference on `x` `[n, T, D]` uses kernels that take over the passes around
    products and mixing.
    """
    return (
        x.is_cuda
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cuda")
        and use_triton("auto", x, operation="mixing")
    )


def inner_contiguous(x: torch.Tensor) -> torch.Tensor:
    """Return `x` if its last axis is contiguous, which is all that a kernel needs; otherwise a
    contiguous copy.
    """
    return x if x.stride(-1) == 1 else x.contiguous()


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return int64 arrays of any shapes as contiguous tensors on a device, as kernels need them.

    On a CUDA device they go there in one copy from page-locked memory, which the host does not wait
    for; a copy from other memory makes it wait until the device has done everything before. A CPU
    may share the memory of `arrays`.
    """
    if device.type not in _FROM_PAGE_LOCKED or not arrays:
        return [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays]
    sizes = [array.size for array in arrays]
    packed = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=True)
    np.concatenate([array.reshape(-1) for array in arrays], out=packed.numpy())
    sent = packed.to(device, non_blocking=True).split(sizes)
    return [part.view(array.shape) for part, array in zip(sent, arrays, strict=True)]


def _known(backend: str) -> str:
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    return backend


def _why_not(tensor: torch.Tensor) -> str | None:
    """Return why Triton cannot run on this tensor, or None."""
    if not _TRITON_INSTALLED:
        from aveyb_retrieval.system import install_command

        return f"Triton is not installed ({install_command('gpu')})"
    if tensor.dtype not in _DTYPES:
        return f"kernels take float32, float16 and bfloat16, not {tensor.dtype}"
    if _INTERPRETING:
        return None
    if not tensor.is_cuda:
        return f"the tensor is on {tensor.device}, kernels run on CUDA devices"
    capability = _capability(tensor.device)
    if capability < _MIN_CAPABILITY:
        return (
            f"the device has compute capability {capability[0]}.{capability[1]}, kernels need 8.0"
            " or newer"
        )
    return None


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


# All that torch.compiler.assume_constant_result does; calling it would load the compiler in every
# search. A compiled graph keeps the backend that it was compiled under.
_capability._dynamo_marked_constant = True  # type: ignore[attr-defined]
forced_backend._dynamo_marked_constant = True  # type: ignore[attr-defined]
