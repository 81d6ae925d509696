"""How words are found in a text: the same way where it is stored and where it is searched for.

Full-text search (SQLite's FTS5) splits a text at spaces and punctuation and, in English, stems by Porter's rules. Two
things are done before that, here: runs of Chinese, Japanese and Korean characters, which have no spaces between their
words, become overlapping pairs of characters; and words of another language are stemmed by Snowball's rules.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import ConfigError, OptionalDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

ENGLISH = "english"
PLAIN = "none"
_SNOWBALL = (
    "arabic", "danish", "dutch", "finnish", "french", "german", "greek", "hungarian", "italian", "norwegian",
    "portuguese", "romanian", "russian", "spanish", "swedish", "turkish",
)  # fmt: skip
LANGUAGES = (ENGLISH, *_SNOWBALL, PLAIN)

_WORD = re.compile(r"[^\W_]+")
# Hiragana, Katakana, Chinese characters (with their rarer blocks) and Korean syllables.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
# Words in more than half of all English documents: BM25 gives them next to nothing, and they cost the most to look up.
_ENGLISH_STOP = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "have", "how", "in", "is", "it",
    "its", "of", "on", "or", "that", "the", "this", "to", "was", "were", "what", "when", "where", "which",
    "who", "why", "will", "with",
))  # fmt: skip


@dataclass(frozen=True)
class Language:
    """The rules of one language, as an index keeps to them.

    Attributes:
        name: One of `LANGUAGES`.
        tokenize: FTS5's tokenizer.
        stop: Words of a query that are not looked up, unless there are no others.
        stem: What makes one form of a word's forms before FTS5 sees them; None leaves that to FTS5.
        pairs: Whether unspaced scripts become pairs of characters (not so in indexes of format 1).
    """

    name: str
    tokenize: str
    stop: frozenset[str]
    stem: Callable[[str], str] | None = None
    pairs: bool = True

    def index_text(self, text: str) -> str:
        """Prepare a text for the full-text index."""
        if self.pairs and not text.isascii():
            text = _UNSPACED.sub(_spell_out, text)
        if self.stem is not None:
            stem = self.stem
            text = _WORD.sub(lambda word: stem(word.group().lower()), unicodedata.normalize("NFC", text))
        return text

    def words(self, text: str) -> list[str]:
        """Find the words of a query, lower case, in order, each once; stop words only if there are no others.

        Letters and their accents are put together first (NFC): on its own, an accent would end a word.
        """
        found = [word.lower() for word in _WORD.findall(unicodedata.normalize("NFC", text))]
        found = [word for word in found if word not in self.stop] or found
        if self.pairs:
            found = [part for word in found for part in _parts(word)]
        if self.stem is not None:
            found = [self.stem(word) for word in found]
        return list(dict.fromkeys(found))

    def terms(self, text: str) -> list[str]:
        """Write each word of a query as an FTS5 expression; whatever a user types, it is never syntax."""
        return [self._term(word) for word in self.words(text)]

    def _term(self, word: str) -> str:
        # one character of an unspaced script is only found as the beginning of a pair
        prefix = "*" if self.pairs and len(word) == 1 and _UNSPACED.fullmatch(word) else ""
        return f'"{word}"{prefix}'


@cache
def language(name: str) -> Language:
    """Load the rules of a language.

    Raises:
        ConfigError: the language is not one of `LANGUAGES`.
        OptionalDependencyError: it needs Snowball's stemmers and lists of stop words, which are not installed.
    """
    if name == ENGLISH:
        return Language(name, "porter unicode61", _ENGLISH_STOP)
    if name == PLAIN:
        return Language(name, "unicode61", frozenset())
    if name not in LANGUAGES:
        raise ConfigError(f"language={name!r}: must be one of {', '.join(LANGUAGES)}")
    try:
        import Stemmer
        from bm25s import stopwords
    except ImportError as error:
        raise OptionalDependencyError("PyStemmer with bm25s", "bm25", f"words in {name}") from error
    stop = getattr(stopwords, f"STOPWORDS_{name.upper()}", ())
    return Language(name, "unicode61", frozenset(stop), Stemmer.Stemmer(name).stemWord)


OLD_ENGLISH = Language(ENGLISH, "porter unicode61", _ENGLISH_STOP, pairs=False)  # of indexes of format 1


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces: alone, it is looked up as the beginning of a pair."""
    return _UNSPACED.fullmatch(character) is not None


def _spell_out(run: re.Match[str]) -> str:
    """Write a run of characters as pairs with spaces between them; the last one also alone."""
    text = run.group()
    return f" {' '.join([*(text[i : i + 2] for i in range(len(text) - 1)), text[-1]])} "


def _parts(word: str) -> list[str]:
    """Split a word of a query into its pairs of unspaced characters and what lies between them."""
    parts, end = [], 0
    for run in _UNSPACED.finditer(word):
        text = run.group()
        parts.append(word[end : run.start()])
        parts += [text] if len(text) == 1 else [text[i : i + 2] for i in range(len(text) - 1)]
        end = run.end()
    return [part for part in [*parts, word[end:]] if part]
