"""Synonyms and protected words: what one small text file says of the words of a collection.

# a comment
car, automobile, motor car     a query for one of them also looks for the others
k8s => kubernetes              a query for the left one looks for those on the right instead
wings                          a word by itself is protected: no stemmer changes it
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.files import read_bounded

MOST_BYTES = 1 << 20
MOST_LINES = 10_000
_COMMENT = re.compile(r"(?:^|\s)#")


class Synonym(NamedTuple):
    """What a query for some words also looks for, or `instead` of them."""

    words: str
    others: tuple[str, ...]
    instead: bool


def read_synonyms(source: str | Path | list[str] | tuple[str, ...]) -> str:
    """Read a file, or its lines, and check them: lines as they are kept, without comments.

    Raises:
        InputError: the file cannot be read, or a line says nothing.
        ConfigError: `source` is neither a path nor a list of lines.
    """
    if isinstance(source, (str, Path)):
        try:
            lines = read_bounded(Path(source), MOST_BYTES + 1).decode()[: MOST_BYTES + 1].splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"synonyms: {source}: cannot be read as UTF-8 text ({error})") from error
        where = str(source)
    elif isinstance(source, (list, tuple)) and all(isinstance(line, str) for line in source):
        lines, where = [part for line in source for part in line.splitlines()], "synonyms"
    else:
        raise ConfigError(f"synonyms={source!r}: must be the path of a file, or a list of its lines")
    kept = []
    for number, line in enumerate(lines, start=1):
        if said := _COMMENT.split(line, maxsplit=1)[0].strip():
            _read_line(said, f"{where}, line {number}")
            kept.append(said)
    if len(kept) > MOST_LINES or sum(map(len, kept)) > MOST_BYTES:
        raise InputError(f"{where}: {len(kept):,} lines; at most {MOST_LINES:,} in {MOST_BYTES:,} bytes")
    return "\n".join(kept)


def synonyms_of(lines: str) -> tuple[Synonym, ...]:
    """The synonyms among lines that were read."""
    return tuple(each for line in lines.splitlines() for each in _read_line(line, "synonyms"))


def protected_words(lines: str) -> list[str]:
    """The protected words among lines that were read."""
    return [line for line in lines.splitlines() if "," not in line and "=>" not in line]


def _read_line(line: str, where: str) -> list[Synonym]:
    left, arrow, right = line.partition("=>")
    if arrow:
        others = tuple(each.strip() for each in right.split(",") if each.strip())
        if not left.strip() or not others or "=>" in right or "," in left:
            raise InputError(f"{where}: {line!r}: write it as `k8s => kubernetes`, with one word or phrase on the left")
        return [Synonym(left.strip(), others, instead=True)]
    group = [each.strip() for each in line.split(",")]
    if len(group) == 1:
        if len(line.split()) > 1:
            raise InputError(f"{where}: {line!r}: a protected word is one word; part synonyms by commas")
        return []
    if not all(group):
        raise InputError(f"{where}: {line!r}: nothing stands before or behind a comma")
    return [Synonym(word, tuple(other for other in group if other != word), instead=False) for word in group]
