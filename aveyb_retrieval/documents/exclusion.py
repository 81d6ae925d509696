"""Patterns of files that are left out of a folder, as in a `.gitignore` file.

They come from `exclude`, and from files `.aveybignore` in the folder and the folders below it.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.records import Notice, path_text
from aveyb_retrieval.errors import ConfigError, plural, shortened

if TYPE_CHECKING:
    from pathlib import Path

    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".aveybignore"
_MAX_STARS = 4  # of a pattern: time grows with that power of a name's length
_STARS = re.compile(r"\*+")
_SET = re.compile(r"\\.|\[[!^]?+\]?+(?:\\.|[^\]\\])*+\]", re.DOTALL)
_CLASS = re.compile(r"\[\^?!?[^\]]*\[:\w+:\]")  # of POSIX: pathspec would take it for letters
_LONGEST_SHOWN = 60  # characters of a bad pattern


def check_patterns(patterns: object) -> None:
    """Raise ConfigError where `exclude` is no list of patterns."""
    if isinstance(patterns, str) or not isinstance(patterns, (list, tuple)):
        raise ConfigError(f"exclude={patterns!r}: must be a list of patterns, such as ['old/']")
    for pattern in patterns:
        if not isinstance(pattern, str) or not _is_pattern(pattern):
            raise ConfigError(
                f"exclude: {pattern!r} is not a pattern; write it as in a .gitignore file"
            )


@dataclass
class Exclusion:
    """What is left out of one folder while it is listed; `notices` tell of patterns that are none.

    A file of a folder below goes before those above it, `exclude` before all.
    """

    exclude: tuple[str, ...] = ()
    notices: list[Notice] = field(default_factory=list)
    _specs: dict[str, GitIgnoreSpec] = field(default_factory=dict)  # by "" or "a/b/"

    def enter(self, folder: Path, prefix: str, *, follow_links: bool) -> None:
        """Read the file of patterns of a folder, whose names begin with `prefix`."""
        # all readers of files: an index that is opened checks patterns, but reads none
        from aveyb_retrieval.documents.readers.kinds import read_bytes

        path = folder / IGNORE_FILE
        file_name = path_text(path)
        try:
            if not path.is_file() or (path.is_symlink() and not follow_links):
                return
            lines = decode(read_bytes(path, follow_links=follow_links)).splitlines()
        except OSError as error:  # such as a path longer than the system takes
            unused = f"not used: {error.strerror or error}"
            self.notices.append(Notice(file_name, unused, left_out=False))
            return
        except Unreadable as reason:
            self.notices.append(Notice(file_name, f"not used: {reason}", left_out=False))
            return
        bad = {number: line for number, line in enumerate(lines, start=1) if not _is_pattern(line)}
        if bad:
            self.notices.append(Notice(file_name, _passed_over(bad), left_out=False))
        good = (line for number, line in enumerate(lines, start=1) if number not in bad)
        spec = _spec(tuple(good))
        if spec is not None:
            self._specs[prefix] = spec

    def holds(self, name: str, *, is_folder: bool) -> bool:
        """Whether a file or folder is left out, by its path below the folder that is listed."""
        path = f"{name}/" if is_folder else name
        options = _spec(self.exclude) if self.exclude else None
        if options is not None and options.check_file(path).include:
            return True
        if not self._specs:  # deep folders have long names
            return False
        parts = name.split("/")
        for depth in range(len(parts) - 1, -1, -1):
            prefix = "".join(f"{part}/" for part in parts[:depth])
            spec = self._specs.get(prefix)
            include = spec.check_file(path.removeprefix(prefix)).include if spec else None
            if include is not None:
                return include
        return False


def _passed_over(bad: dict[int, str]) -> str:
    """Say which lines of a file are no patterns, by their numbers."""
    number, line = next(iter(bad.items()))
    first = f"line {number}: {shortened(repr(line), _LONGEST_SHOWN)} is not a pattern"
    if len(bad) == 1:
        return f"{first}, and is passed over"
    return f"{plural(len(bad), 'line')} are no patterns, and are passed over; {first}"


def _is_pattern(line: str) -> bool:
    """Whether a line is a pattern, a comment or empty.

    A bracket that is not closed, and classes of POSIX, would match nothing or something else. Many
    stars could take hours for one name.
    """
    if line.startswith("#"):
        return True
    stars = _STARS.findall(line)
    if len(stars) > _MAX_STARS or max(map(len, stars), default=0) > len("**"):
        return False
    if "[" in _SET.sub("", line) or _CLASS.search(line):
        return False
    return _spec((line,)) is not None


@lru_cache
def _spec(patterns: tuple[str, ...]) -> GitIgnoreSpec | None:
    """Compile patterns; None where one of them is none."""
    from pathspec import GitIgnoreSpec

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a bracket in brackets, which is a sign
        try:
            return GitIgnoreSpec.from_lines(patterns)
        except (ValueError, re.error):
            return None
