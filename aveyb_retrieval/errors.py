"""The one error family of the package.

Every message says what is wrong, where (file, line, field, both values) and what to do about it. The command-line
tools print the message and exit with code 2; anything else that escapes is a bug of ours.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXTRAS = {  # packages that more than one place imports
    "torch": "torch",
    "transformers": "torch",
    "sentence_transformers": "torch",
    "huggingface_hub": "hub",
    "onnx": "train",
}


class AveyBError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(AveyBError, ValueError):
    """A setting is out of range or contradicts another one."""


class InputError(AveyBError, ValueError):
    """A document, query, qrels or run file holds something that cannot be used."""


class ModelError(AveyBError):
    """A model folder is missing, incomplete, or does not fit its own configuration."""


class IndexFormatError(AveyBError):
    """An index directory is missing, damaged, from another format version, or made by another model."""


class IndexLockedError(AveyBError):
    """Another process is writing to the index."""


class EngineError(AveyBError, RuntimeError):
    """A database server cannot be reached, refuses, or fails."""


class BackendError(AveyBError, RuntimeError):
    """An accelerated backend was asked for and is not available."""


class OptionalDependencyError(AveyBError, ImportError):
    """An optional package is not installed; the message names the command that installs the extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        from aveyb_retrieval.system import install_command

        self.command = install_command(extra)
        super().__init__(f"{package} is needed for {purpose} and is not installed: {self.command}")
        self.package = package
        self.extra = extra
        self._purpose = purpose

    def __reduce__(self) -> tuple[type[OptionalDependencyError], tuple[str, str, str]]:
        """Let it pass from one process to another."""
        return type(self), (self.package, self.extra, self._purpose)


@contextmanager
def extra_for(purpose: str, extra: str | None = None) -> Iterator[None]:
    """Raise `OptionalDependencyError` where an import inside the block lacks a package that an extra brings.

    Args:
        purpose: what the package is needed for, for the message.
        extra: that brings what the block imports; None looks the package up.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        brought = extra or _EXTRAS.get(package)
        if brought is None:
            raise
        raise OptionalDependencyError(package.replace("_", "-"), brought, purpose) from error
