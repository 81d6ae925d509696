"""Whether a torch device is there, said in one line before a model is moved to it."""

from __future__ import annotations

from aveyb_retrieval.errors import BackendError, ConfigError, extra_for


def check_device(device: str) -> None:
    """Check that this machine has the torch device of this name; the CPU needs no torch.

    Raises:
        ConfigError: torch has no device of this name.
        BackendError: this machine, or this build of torch, has none.
        OptionalDependencyError: torch is not installed.
    """
    if device == "cpu":
        return
    with extra_for(f"device {device!r}"):
        import torch
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device is {device!r}; give cpu, cuda, cuda:1 or another device of torch") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        reason = "there is no GPU" if torch.version.cuda else "torch is built without CUDA"
        raise BackendError(f"device {device!r}: {reason}; use cpu, or install a CUDA build of torch")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise BackendError(f"device {device!r}: there are {torch.cuda.device_count()} GPUs, numbered from 0")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise BackendError(f"device {device!r}: this machine has none; use cpu")
