"""Words that must be there, or must not: what the signs of a query ask for, where operators are
switched on.

docs/exact-words.md has the signs: `"a phrase"`, `+word`, `begin*`, `typo~`, and `-` before any of
these, or a word. These are conditions on the documents (the passages, with `unit="passage"`) that
any mode finds. All else, and the words of the conditions that must be there, is the question. Signs
inside words and by themselves mean nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.store.vocabulary import edits
from aveyb_retrieval.indexes.store.words import (
    UNSPACED,
    cleaned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aveyb_retrieval.indexes.engine import EngineView
    from aveyb_retrieval.indexes.store.words import Language

MAX_CONDITIONS = 100  # of a query
MAX_FORM_WORDS = 1024  # words that a beginning or a typo stands for
_ALIKE = str.maketrans(
    "\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02\uff0b\uff0d\u2212\uff0a\uff5e", '"' * 7 + "+--*~"
)
_PART = re.compile(
    r'[(\[{¿¡]*(?P<sign>[+-]?)"(?P<phrase>[^"]*)"(?P<after>\S*)|(?P<word>[^\s"]+(?P<open>"?))|(?P<quote>")'
)
_ENDS = ".,;:!?)]}"  # of a sentence or in brackets: no part of what is asked for
_FIELD = re.compile(r"(?P<field>[^\W\d]\w{0,99}):(?!//|:)")


class QueryCondition(NamedTuple):
    """One condition: as it was written, what kind it is of, its words, and whether they must be
    there or must not.
    """

    written: str
    kind: Literal["words", "beginning", "typo"]
    text: str
    must: bool


@dataclass(frozen=True)
class Sought:
    """A condition, and what fulfills it in an index: any of the phrases, of words as they are
    stored.

    `words` are those to look for among what fulfills it: without stop words, unless there are no
    others. `forms` are, of a beginning or a typo, the words as they are written, with how many
    documents hold each.
    """

    condition: QueryCondition
    phrases: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]
    forms: Mapping[str, int] = field(default_factory=dict)


class Asked(NamedTuple):
    """A query without its signs: the question, and the conditions."""

    question: str
    conditions: tuple[Sought, ...]


def ask(query: str, view: EngineView) -> Asked:
    """Read the signs of a query, and look up in an index what its conditions stand for.

    Raises InputError where all that is asked for is what must not be there, and ConfigError as
    `parse` does.
    """
    plain, conditions = list[str](), list[Sought]()
    for part in parse(query, view.language, view.has_field):
        if isinstance(part, str):
            plain.append(part)
            continue
        sought = _seek(part, view)
        conditions.append(sought)
        if part.must:
            plain.append(max(sought.forms, key=sought.forms.__getitem__, default=part.text))
    if not plain:
        raise InputError(f"{_quoted(query)} only excludes words; add words to search for")
    return Asked(" ".join(plain), tuple(conditions))


def parse(
    query: str, rules: Language, has_field: Callable[[str], bool]
) -> list[str | QueryCondition]:
    """Read the signs of a query: plain text and conditions; raises ConfigError where a sign means
    nothing here, or a field is named as other search engines have it (`year:2020`). A colon behind
    any other word is text.
    """
    parts, conditions = list[str | QueryCondition](), 0
    for match in _PART.finditer(query.translate(_ALIKE)):
        if match["open"] and '"' in match.string[match.end() :]:
            before = _quoted(match["word"][:-1])
            raise ConfigError(
                f"operators: {before} before a phrase means nothing; put a space between them"
            )
        if match["quote"] or match["open"]:
            raise ConfigError(
                f"operators: the quote at character {match.end()} of {_quoted(query)} does not"
                " close"
            )
        part = _part(match, rules, has_field)
        parts.append(part)
        conditions += not isinstance(part, str)
    if conditions > MAX_CONDITIONS:
        raise ConfigError(
            f"operators: {conditions:,} conditions in one query; at most {MAX_CONDITIONS} are"
            " possible"
        )
    return parts


def _part(
    match: re.Match[str], rules: Language, has_field: Callable[[str], bool]
) -> str | QueryCondition:
    if (phrase := match["phrase"]) is not None:
        if (after := match["after"]).strip(_ENDS):
            raise ConfigError(
                f"operators: {_quoted(after)} after a phrase means nothing; put a space between"
                " them"
            )
        return (
            QueryCondition(match[0], "words", phrase, match["sign"] != "-")
            if rules.in_order(phrase)
            else phrase
        )
    written = match["word"]
    sign, word = (written[0], written[1:]) if written[0] in "+-" else ("", written)
    if not rules.in_order(word):
        return written
    named = _FIELD.match(word)
    if named and has_field(named["field"]):
        raise ConfigError(
            f"operators: {_quoted(written)}: fields are not supported; use a filter, or put the"
            " text in quotes"
        )
    if (word := word.rstrip(_ENDS))[-1] in "*~":
        text = word[:-1]
        # found in the middle of a run in any case
        unspaced = UNSPACED.search(cleaned(text)) is not None
        if not unspaced and len(rules.in_order(text)) > 1:
            raise ConfigError(
                f"operators: {_quoted(written)}: a beginning or a typo is one word; use a phrase"
            )
        kind: Literal["words", "beginning", "typo"] = "beginning" if word[-1] == "*" else "typo"
        return QueryCondition(written, "words" if unspaced else kind, text, sign != "-")
    return QueryCondition(written, "words", word, sign == "+") if sign else written


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}\u2026")


def _seek(condition: QueryCondition, view: EngineView) -> Sought:
    rules, vocabulary = view.language, view.vocabulary
    if condition.kind == "words":
        return Sought(
            condition, (tuple(rules.in_order(condition.text)),), tuple(rules.words(condition.text))
        )
    form = rules.form(condition.text)
    if vocabulary is None:
        raise ConfigError(
            f"{view.info.name}: {_quoted(condition.written)}: no list of words is stored here;"
            " search for beginnings and typos in an index directory"
        )
    if condition.kind == "beginning":
        forms = vocabulary.beginning(form, MAX_FORM_WORDS)
    else:
        forms = vocabulary.near(form, edits(form))
    if len(forms) > MAX_FORM_WORDS:
        raise ConfigError(
            f"operators: {_quoted(condition.written)} matches more than {MAX_FORM_WORDS:,} words:"
            " give more letters"
        )
    stems = tuple(dict.fromkeys(word for form in forms for word in rules.in_order(form)))
    return Sought(condition, tuple((word,) for word in stems), stems, forms)
