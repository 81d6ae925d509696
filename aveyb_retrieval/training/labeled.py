"""Read labeled data for the heads from JSON Lines: labels of texts and pairs, tags of words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

# Names of the fields in data sets; the first one that a line has is taken.
FIRST = ("text", "sentence", "sentence1", "query", "question", "premise", "anchor")
SECOND = ("text_pair", "sentence2", "document", "passage", "hypothesis", "positive")
_NUMBER = re.compile(r"0|-?[1-9][0-9]*")
WORDS, TAGS = ("words", "tokens"), ("tags", "labels", "ner_tags")


@dataclass(frozen=True)
class LabeledText:
    """A text, or a pair of texts, and its label: a class's name, or a number."""

    text: str
    pair: str | None
    label: str | float
    where: str


@dataclass(frozen=True)
class TaggedWords:
    """The words of a sentence and one tag for each."""

    words: list[str]
    tags: list[str]
    where: str


def read_labeled(paths: Iterable[Path], *, numbers: bool) -> list[LabeledText]:
    """Read lines `{"text": ..., "text_pair": ..., "label": ...}`; the pair is optional.

    Args:
        paths: the files, read in this order.
        numbers: labels are numbers; otherwise names of classes, or whole numbers that stand for them.

    Raises:
        InputError: there are no lines, a field is missing, empty or of the wrong kind (file, line and field), or some
            lines are pairs and others single texts.
    """
    found: list[LabeledText] = []
    for where, line in _lines(paths):
        pair_field = next((name for name in SECOND if name in line), None)
        pair = None if pair_field is None else _text(line, pair_field, where)
        if found and (found[0].pair is None) != (pair is None):
            kinds = ("a single text", "a pair") if pair is None else ("a pair", "a single text")
            raise InputError(f"{where}: {kinds[0]}, and {found[0].where} is {kinds[1]}; give all lines one form")
        label: Any = line.get("label")
        if numbers and (isinstance(label, bool) or not isinstance(label, (int, float)) or not math.isfinite(label)):
            raise InputError(f"{where}: field 'label' must be a number, it is {label!r}")
        if not numbers and not (isinstance(label, (str, int)) and str(label).strip()):
            raise InputError(f"{where}: field 'label' must be the name or the number of a class, it is {label!r}")
        text = _text(line, _field(line, FIRST, where), where)
        found.append(LabeledText(text, pair, float(label) if numbers else str(label), where))
    return _some(found, paths)


def read_tagged(paths: Iterable[Path]) -> list[TaggedWords]:
    """Read lines `{"words": [...], "tags": [...]}`.

    Raises:
        InputError: there are no lines, a field is missing or not a list of strings, or there is not one tag per word.
    """
    found = []
    for where, line in _lines(paths):
        names = _field(line, WORDS, where), _field(line, TAGS, where)
        words, tags = (_strings(line, name, where) for name in names)
        if len(words) != len(tags):
            raise InputError(
                f"{where}: field {names[0]!r} has {len(words)} entries, field {names[1]!r} {len(tags)}; each word "
                "needs one tag"
            )
        found.append(TaggedWords(words, tags, where))
    return _some(found, paths)


def label_ids(rows: Iterable[tuple[str, str]], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """Number the labels of (label, where) rows: whole numbers as they are, names in alphabetical order.

    What is not written as a number is, with leading zeros say, is a name.

    Args:
        rows: the labels, each with its file and line.
        known: labels of a trained model or of the training data; no others may occur then.

    Raises:
        InputError: a label is not known, or a number below 0; numbers and names are mixed; or most of the numbers up to
            the highest are no label.
    """
    rows = list(rows)
    if known is not None:
        for label, where in rows:
            if label not in known:
                raise InputError(
                    f"{where}: label {label!r} is out of range; the training data have {', '.join(sorted(known))}"
                )
        return dict(known)
    names = {label for label, _ in rows}
    numeric = {label for label in names if _NUMBER.fullmatch(label)}
    if numeric and numeric != names:
        label, where = next((label, where) for label, where in rows if label not in numeric)
        raise InputError(f"{where}: label {label!r} is a name, others are numbers ({min(numeric)}); use one of the two")
    if not numeric:
        return {name: number for number, name in enumerate(sorted(names))}
    for label, where in rows:
        if int(label) < 0:
            raise InputError(f"{where}: label {label} is out of range; classes are counted from 0")
    highest = max(map(int, names))
    if highest >= 2 * len(names):
        where = next(where for label, where in rows if int(label) == highest)
        raise InputError(
            f"{where}: label {highest} is the highest, and only {len(names)} of the classes from 0 to it occur; number "
            "them from 0, or give names"
        )
    return {str(number): number for number in range(highest + 1)}


def _lines(paths: Iterable[Path]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in paths:
        for number, line in read_records(path):
            yield f"{path}, line {number}", line


def _some(found: list[Any], paths: Iterable[Path]) -> list[Any]:
    if not found:
        raise InputError(f"{', '.join(map(str, paths))}: there are no lines")
    return found


def _field(line: Mapping[str, Any], names: Iterable[str], where: str) -> str:
    for name in names:
        if name in line:
            return name
    raise InputError(f"{where}: no field {' or '.join(names)}; the line has {', '.join(sorted(line))}")


def _text(line: Mapping[str, Any], field: str, where: str) -> str:
    value = line.get(field)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: field {field!r} must be a text, it is {value!r}")
    return value


def _strings(line: Mapping[str, Any], field: str, where: str) -> list[str]:
    value = line[field]
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v.strip() for v in value):
        raise InputError(f"{where}: field {field!r} must be a list of texts that are not empty")
    return value
