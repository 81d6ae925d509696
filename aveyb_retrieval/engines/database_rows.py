"""What rows of a database keep of metadata and of words, so that its filters and lists find what
our own files find.

Few databases have conditions on any element of a list, and comparisons with a missing field that
are false. So a row keeps its metadata in a form that needs neither: `facts`, an array of hashes
such as that of "the field `year` is 2004", and `bounds`, a JSON object of the least and greatest
number and string of each field, a list's included. Some element is less than a value where the
least one is.

For BM25 in engines that rank by themselves there are lists of which rows hold a word.
`Language.stored` gives the words of a text, so counting them is all there is to do. Scores are
those of an index directory, as `aveyb_retrieval.indexes.store.vocabulary` says. A list is only ever
added to: what is removed is added again with a negative count, which takes it out of every sum.

Words of rows are of ASCII, others in hexadecimal: every analyzer of a server leaves them whole.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.store.filters import (
    NOTHING,
    FilterCompiler,
    FilterCondition,
    elements_at,
    field_keys,
    is_number,
    items_of,
    join,
    nearest_float,
    negate,
    value_at_keys,
)
from aveyb_retrieval.indexes.store.postings import POSTING
from aveyb_retrieval.indexes.types import FIRST_BYTES, eights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.store.filters import Expression, Scalar
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import BoolArray

_MIN_FLOAT_INTEGER = 1 << 64  # whole numbers from here on are those of floats
_EMPTY: tuple[Any, ...] = ("", [], {}, None)


def describe(metadata: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """The facts and bounds of metadata."""
    facts: dict[int, None] = {}
    bounds: dict[str, Any] = {}
    for path, value in _fields(metadata):
        scalars = [
            item for item in elements_at(metadata, path) if not isinstance(item, (list, dict))
        ]
        kinds = {"list": isinstance(value, list), "text": isinstance(value, str)}
        kinds["empty"] = not isinstance(value, bool) and value in _EMPTY
        named = ["exists", *(name for name, holds in kinds.items() if holds)]
        facts.update(
            dict.fromkeys(
                [*(_fact(path, name) for name in named), *(_equal(path, item) for item in scalars)]
            )
        )
        numbers = [_number(item) for item in scalars if is_number(item)]
        for kind, held in (
            ("n", numbers),
            ("s", [item for item in scalars if isinstance(item, str)]),
        ):
            if held:
                bounds |= {_bound(path, kind, "<"): min(held), _bound(path, kind, ">"): max(held)}
    return list(facts), bounds


@dataclass(frozen=True)
class FactFilters(FilterCompiler):
    """Compiles filters to conditions in the words of a database."""

    holds: str  # `facts` hold one of the numbers `{}`
    has_key: str  # `bounds` have the key `{}`
    number: str  # they have the key `{key}`, under which is a number, `{operator}` %s
    text: str  # they have the key `{key}`, under which is a string, by code points, `{operator}` %s
    part: str  # they have the key `{}`, under which is a string that holds the text %s

    def one_of(self, field: str, values: Sequence[Scalar]) -> FilterCondition:
        path = field_keys(field)
        return self._holds(*(_equal(path, value) for value in values)) if values else NOTHING

    def compare(self, field: str, operator: str, value: str | int | float) -> FilterCondition:
        kind, value = ("s", value) if isinstance(value, str) else ("n", _number(value))
        key = _bound(field_keys(field), kind, operator[0])
        if isinstance(value, float) and math.isinf(value):
            return (
                FilterCondition(self.has_key.format(key), ())
                if (value < 0) == (operator[0] == ">")
                else NOTHING
            )
        test = self.text if kind == "s" else self.number
        return FilterCondition(test.format(key=key, operator=operator), (value,))

    def starts_with(self, field: str, text: str) -> FilterCondition:
        raise ConfigError(
            f"filter: $startsWith on {field!r}: only for index directories; compare a field of one"
            f' text with {{"$gte": {text!r}, "$lt": the text behind all that begin so}}'
        )

    def matches(self, expression: Expression) -> FilterCondition:
        raise ConfigError(
            f"filter: $regex on {expression.field!r}: only for index directories; a database can"
            " compare whole texts ($in) and parts ($contains)"
        )

    def is_list(self, field: str) -> FilterCondition:
        return self._holds(_fact(field_keys(field), "list"))

    def has_part(self, field: str, text: str) -> FilterCondition:
        path = field_keys(field)
        is_text = self._holds(_fact(path, "text"))
        part = FilterCondition(self.part.format(_bound(path, "s", "<")), (text,))
        return join(" AND ", [is_text, part]) if text else is_text

    def exists(self, field: str) -> FilterCondition:
        return self._holds(_fact(field_keys(field), "exists"))

    def is_empty(self, field: str) -> FilterCondition:
        return join(
            " OR ", [negate(self.exists(field)), self._holds(_fact(field_keys(field), "empty"))]
        )

    def _holds(self, *facts: int) -> FilterCondition:
        return FilterCondition(self.holds.format(", ".join(map(str, facts))), ())


def _fields(metadata: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Every field of an object and of those inside it, with its value; one inside a list of objects
    has the list of all values that its path leads to.
    """
    for path in dict.fromkeys(_paths(metadata, ())):
        yield list(path), value_at_keys(metadata, path)


def _paths(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, item in value.items():
        yield (*path, key)
        for inner in items_of(item):
            if isinstance(inner, dict):
                yield from _paths(inner, (*path, key))


def _equal(path: list[str], value: Scalar) -> int:
    if is_number(value):
        value = _number(value)
        value = int(value) if math.isfinite(value) and value == int(value) else value
    return _fact(path, "=", value)


def _fact(path: list[str], name: str, value: Any = None) -> int:
    """63 bits of a hash of what is said of a field."""
    statement = json.dumps([path, name, value]).encode()
    return int.from_bytes(hashlib.sha256(statement).digest()[:8], "big") >> 1


def _bound(path: list[str], kind: str, operator: str) -> str:
    """The key of the least (compared by <) or greatest number ("n") or string ("s") of a field."""
    return f"{_fact(path, kind):x}{'min' if operator == '<' else 'max'}"


def _number(value: int | float) -> int | float:
    return (
        nearest_float(value)
        if isinstance(value, int) and abs(value) >= _MIN_FLOAT_INTEGER
        else value
    )


def ascii_word(word: str) -> str:
    """A word as rows have it."""
    return word if word.isascii() else f"u{word.encode().hex()}"


def kept_words(rules: Language, heading: str, text: str) -> str:
    """The words of a text with what stands over it, as `Language.stored` gives them, each as rows
    have it.
    """
    return " ".join(map(ascii_word, rules.stored(f"{heading}\n{text}").split(" ")))


def word_key(word: str) -> bytes:
    """What a word is stored under, however long it is: half of the SHA-256 of how rows have it."""
    return hashlib.sha256(ascii_word(word).encode()).digest()[:16]


def pack_postings(rows: Iterable[tuple[int, str]], sign: int) -> dict[str, np.ndarray]:
    """The list of each word of some rows, (number, words as `kept_words` gives them); `sign` -1
    removes them.
    """
    lists: dict[str, list[tuple[int, int, int]]] = {}
    for number, stored in rows:
        words = stored.split()
        for word, count in Counter(words).items():
            lists.setdefault(word, []).append((number, sign * count, len(words)))
    return {word: np.array(held, dtype=POSTING) for word, held in lists.items()}


def held_words(texts: Sequence[bytes], words: Sequence[str]) -> BoolArray:
    """Which of `t` words each of some stored texts `[n]` holds, `[n, t]`: they stand between
    blanks.
    """
    held = np.zeros((len(texts), len(words)), np.bool_)
    together = b"".join(texts)
    following, data = eights(together), np.frombuffer(together, np.uint8)
    blanks, ends = np.flatnonzero(data == ord(" ")), np.cumsum([len(text) for text in texts])
    starts, sizes = blanks[:-1] + 1, np.diff(blanks)
    encoded = [word.encode() + b" " for word in words]
    # by size and first byte: few words of the texts are as one of these
    sought = np.zeros(1 << 16, np.bool_)
    sought[[(len(word) & 255) << 8 | word[0] for word in encoded]] = True
    alike = np.flatnonzero(sought.take((sizes & 255) << 8 | data.take(starts)))
    starts = starts[alike]
    beginnings = following[starts] & FIRST_BYTES.take(np.minimum(sizes[alike], 8))
    for column, word in enumerate(encoded):
        matches = starts[beginnings == int.from_bytes(word[:8], "little")]
        for at in range(8, len(word), 8):
            part = word[at : at + 8]
            matches = matches[
                following[matches + at] & FIRST_BYTES[len(part)] == int.from_bytes(part, "little")
            ]
        # every text begins and ends with a blank of its own, so that no word goes over from one to
        # the next
        held[np.searchsorted(ends, matches, side="right"), column] = True
    return held
