"""The one error family of the package, and the words that several messages share.

Every message says what is wrong, where (file, line, field, both values) and what to do about it.
The command-line tools print the message and exit with code 2; anything else that escapes is a bug
of ours.
"""

from __future__ import annotations

import difflib
import re
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    """An index directory is missing, damaged, from another format version, or made by another
    model.
    """


class IndexLockedError(AveyBError):
    """Another process is writing to the index."""


class DiskError(AveyBError):
    """An index cannot be written: the disk is full, read-only, or fails."""


class EngineError(AveyBError, RuntimeError):
    """A database server cannot be reached, refuses, or fails."""


class BackendError(AveyBError, RuntimeError):
    """An accelerated backend was asked for and is not available."""


class OptionalDependencyError(AveyBError, ImportError):
    """An optional package is not installed; the message names the command that installs the extra
    that brings it.
    """

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
    """Raise `OptionalDependencyError` where an import inside lacks a package of an extra (None:
    looked up).
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        brought = extra or _EXTRAS.get(package)
        if brought is None:
            raise
        raise OptionalDependencyError(package.replace("_", "-"), brought, purpose) from error


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: "1 document", "2,300 documents", "3 queries" for ("query",
    "queries").
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def first_line(error: BaseException, said: str | None = None) -> str:
    """Return the first line of an error's message, or of what else it `said`; its type where there
    is none.
    """
    return next(
        iter((str(error) if said is None else said).strip().splitlines()), type(error).__name__
    )


def how_it_ended(code: int, said: str = "") -> str:
    """Say how a process ended: by which signal, or the last line of what it said; its exit code
    where it said none.
    """
    if code < 0:
        return signal.Signals(-code).name
    return next(iter(said.strip().splitlines()[-1:]), f"exit code {code}")


def shortened(text: str, most: int = 600) -> str:
    """Return a message of at most `most` characters; its middle, likely a value that was sent, is
    left out.
    """
    if len(text) <= most:
        return text
    begin = most * 2 // 3
    return f"{text[:begin]} ... {text[begin + 5 - most :]}"


def no_option(
    of: str, name: str, known: Sequence[str], near: str | None = None, *, kind: str = "option"
) -> str:
    """Say that something has no option of a name, which ones it has, and which may be meant
    (`near`, if known).
    """
    near = near or next(iter(difflib.get_close_matches(name, known, 1)), None)
    hint = f"did you mean {near!r}? Known are" if near else "known are"
    return f"{of} has no {kind} {name!r}; {hint} {', '.join(known)}"


_FLAGS = re.compile(r" \((?=[^()]*--[a-z])[^()]*\)")


def without_flags(text: str) -> str:
    """Return a message without the options of commands that it names in brackets, for whoever gives
    no command.
    """
    return _FLAGS.sub("", text)


_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return a text with controls, marks of direction and bytes of no UTF-8 as "\x1b": it steers
    no terminal.
    """
    return _UNPRINTABLE.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    number = ord(match[0])
    if 0xDC80 <= number <= 0xDCFF:  # how Python carries a byte that is not UTF-8
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
