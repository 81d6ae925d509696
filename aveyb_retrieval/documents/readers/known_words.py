"""Whether a text is made of words, by stop words of many languages and by the embedded model."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
# what is set as a word, signs within it included
_TOKEN = re.compile(r"(?<!\S)(?:(?![^\W\d_])\S)*+[^\W\d_]\S*")
_EDGES = ".,;:!?()[]{}\"'\u2018\u2019\u201c\u201d\u00ab\u00bb"
_MAX_WORDS = 300  # of a page, that are looked up
_MIN_LETTERS = 3  # of a word that is looked up among the model's
_KNOWN_SHARE = 0.5  # of the words of a page in a language that the model knows
_STOP_SHARE = 0.22  # of the words of a page in any language that has stop words


def count_words(text: str) -> int:
    """Return how many words a text has."""
    return len(_TOKEN.findall(text))


def is_doubtful(text: str) -> bool:
    """Return whether few words of a text are known in any one language: it may be none.

    So are lists of names and texts in languages without stop words.
    """
    words = _words(text)
    return bool(words) and (_stop_share(words) < _STOP_SHARE and _model_share(words) < _KNOWN_SHARE)


def known_share(text: str) -> float:
    """Return the share of a text's words that are known, 0 to 1."""
    words = _words(text)
    return max(_stop_share(words), _model_share(words)) if words else 0.0


def shared_words(text: str, other: str) -> float:
    """Return the share of a text's words that another one has, too, 0 to 1."""
    words = Counter(_WORD.findall(text.casefold()))
    other_words = Counter(_WORD.findall(other.casefold()))
    return (words & other_words).total() / words.total() if words else 0.0


def _words(text: str) -> list[str]:
    words = (token.strip(_EDGES).casefold() for token in _TOKEN.findall(text)[:_MAX_WORDS])
    return [word for word in words if word]


def _stop_share(words: list[str]) -> float:
    """The share of words that are stop words, in the language that has most of them."""
    counts = Counter(language for word in words for language in _stop_words().get(word, ()))
    return max(counts.values(), default=0) / len(words)


def _model_share(words: list[str]) -> float:
    long = [word for word in words if len(word) >= _MIN_LETTERS]
    return sum(word in _model_words() for word in long) / len(long) if long else 0.0


@cache
def _stop_words() -> dict[str, tuple[str, ...]]:
    """The languages of each stop word of two letters or more."""
    from stop_words import AVAILABLE_LANGUAGES, get_stop_words

    languages: dict[str, tuple[str, ...]] = {}
    for language in AVAILABLE_LANGUAGES:
        for word in get_stop_words(language):
            if len(word) > 1:
                languages[word] = (*languages.get(word, ()), language)
    return languages


@cache
def _model_words() -> frozenset[str]:
    """The words that the embedded model has a token of its own for."""
    from tokenizers import Tokenizer

    return frozenset(Tokenizer.from_file(str(DEFAULT_MODEL / "tokenizer.json")).get_vocab())
