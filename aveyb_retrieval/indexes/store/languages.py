"""Which language each document is written in, and the rules of words for several languages at once.

An index of `language="auto"` keeps to the rules of each document's own language. py3langid says
what a text of 200 characters or more is written in; a shorter one takes the main language of all
before it. If only short texts are there, they are looked at together; below 200 characters they
take `MAIN`. Where letters are Latin, stop words must confirm the language: a text without its stop
words, or with more of the main one's, is a list or a table in the main one.

A question is read by the rules of the language it is written in, among those of the index, and by
all of them where that is not clear.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.encoding import AUTO, ENGLISH
from aveyb_retrieval.indexes.store.words import (
    LANGUAGES,
    PLAIN,
    Language,
    WordPlace,
    language,
    runs_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.store.words import Finder

MIN_DETECTED_CHARACTERS = 200  # characters of a text that is looked at by itself
MAIN = "en"  # the language of an index without documents, and of one with too little text
_PIECE_CHARACTERS = 200  # characters of each of three pieces of a text
_SHORT_TEXTS_CHARACTERS = 2_000  # characters of short texts that are looked at together
_SAMPLE_COUNT = 8
_WORDS = 100  # of a text, among which stop words are counted
_CLEAR_SHARE = 0.25  # the share of stop words from which on a text is surely in their language
_SETS_OF_LANGUAGES = 16  # whose rules and models are kept
_CLEAR_QUESTION_SHARE = 0.9  # the probability from which on a question is in one language
_PROSE_SHARE = 0.1  # the share of a language's stop words that any prose in it has

# ISO 639-1 codes of all languages that are told apart: names, as notices have them, and rules.
NAMES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ka": "Georgian",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "nl": "Dutch",
    "no": "Norwegian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sr": "Serbian",
    "sv": "Swedish",
    "ta": "Tamil",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh": "Chinese",
}


@cache
def stemmer_of(code: str) -> str:
    """Return the name of a language's rules; `PLAIN` where there are none of its own."""
    name = NAMES.get(code, "").lower()
    return name if name in LANGUAGES else PLAIN


@cache
def _whole_identifier() -> Any:
    """Load what tells languages apart, in a tenth of a second."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@lru_cache(maxsize=_SETS_OF_LANGUAGES)
def _identifier(codes: tuple[str, ...]) -> Any:
    """Return what tells some languages apart."""
    made = copy.copy(_whole_identifier())
    made.set_languages(codes)
    return made


def identify(text: str, codes: Iterable[str] = NAMES) -> tuple[str, float]:
    """Return the most probable language of a text among some, and its probability."""
    code, probability = _identifier(tuple(codes)).classify(text)
    return str(code), float(probability)


class DocumentLanguages:
    """Says what documents are written in, batch by batch."""

    def __init__(self, documents_by_language: Mapping[str, int] | None = None) -> None:
        """Take how many documents of each language there are already."""
        self._counts = Counter(documents_by_language or {})

    @property
    def main(self) -> str:
        """The language of most documents so far."""
        return max(self._counts, key=self._counts.__getitem__, default=MAIN)

    def of(self, texts: Sequence[str]) -> list[str]:
        """Return the language of each text of a batch."""
        long = [len(text) >= MIN_DETECTED_CHARACTERS for text in texts]
        if not self._counts:
            samples = [text for text, alone in zip(texts, long, strict=True) if alone]
            samples = samples[:: len(samples) // _WORDS + 1] or _joined(texts)
            # of numbers, names and code any language is the most probable one
            self._counts.update(written_in(text, MAIN) for text in samples)
            main = self.main
            self._counts.clear()
        else:
            main = self.main
        codes = [
            written_in(text, main) if alone else main
            for text, alone in zip(texts, long, strict=True)
        ]
        self._counts.update(codes)
        return codes


def written_in(text: str, main: str) -> str:
    """Return the language of a text among documents that are mostly in the main one."""
    sample = _sample(text)
    words = " ".join(runs_of(sample)[:_WORDS]).lower().split()
    mains = _stop_share(words, main)
    if mains >= _CLEAR_SHARE:
        return main
    letters = "".join(words)
    if len(letters.encode("ascii", "ignore")) < len(letters) / 2:
        return identify(sample)[0]  # its script says what it is not
    least = max(mains, _PROSE_SHARE)
    if not _is_confirmed(words, least):
        return main
    code, _ = identify(sample)
    return code if _stop_share(words, code) > least else main


def _stop_share(words: Sequence[str], code: str) -> float:
    stop = _stop_words(code)
    return sum(map(stop.__contains__, words)) / max(len(words), 1)


def _is_confirmed(words: Sequence[str], least: float) -> bool:
    """Whether some language's stop words have a larger share of some words than `least`.

    If not, no language found would be taken, and finding one takes ten times as long.
    """
    by_word = _languages_of_stop_words()
    counts = Counter(chain.from_iterable(by_word.get(word, ()) for word in words))
    return max(counts.values(), default=0) / max(len(words), 1) > least


@cache
def _languages_of_stop_words() -> dict[str, list[str]]:
    """Which languages each stop word is one of."""
    languages = defaultdict[str, list[str]](list)
    for code in NAMES:
        for word in _stop_words(code):
            languages[word].append(code)
    return dict(languages)


@cache
def _stop_words(code: str) -> frozenset[str]:
    """The stop words of a language, also of one without rules of its own."""
    from stop_words import AVAILABLE_LANGUAGES, get_stop_words

    rules = stemmer_of(code)
    name = NAMES[code].lower()
    if rules == PLAIN and name in AVAILABLE_LANGUAGES:
        return frozenset(get_stop_words(name))
    return language(rules).stop


def _sample(text: str) -> str:
    """Return three pieces of a text: of its beginning, its middle and its end."""
    if len(text) <= 3 * _PIECE_CHARACTERS:
        return text
    middle = len(text) // 2
    return " ".join(
        (
            text[:_PIECE_CHARACTERS],
            text[middle : middle + _PIECE_CHARACTERS],
            text[-_PIECE_CHARACTERS:],
        )
    )


def _joined(texts: Sequence[str]) -> list[str]:
    """Return samples of short texts, each long enough to be looked at; none of too little text."""
    step = max(len(texts) // _SAMPLE_COUNT, 1)
    samples, waiting = [], ""
    for start in range(0, len(texts), step):
        group = texts[start : start + min(step, _SHORT_TEXTS_CHARACTERS)]
        waiting = " ".join(f"{waiting} {' '.join(group)}".split())[:_SHORT_TEXTS_CHARACTERS]
        if len(waiting) >= MIN_DETECTED_CHARACTERS:
            samples.append(waiting)
            waiting = ""
    return samples


@dataclass(frozen=True)
class SeveralLanguages(Language):
    """The rules of the main language, with those of the others that an index has.

    A question is read by its own language's rules, or by all; texts of hits by all.
    """

    codes: tuple[str, ...] = ()  # of all languages, the main one first
    others: tuple[Language, ...] = ()  # rules that differ from the main ones

    def words(self, query: str) -> list[str]:
        """See `Language.words`."""
        words_by_rules = (Language.words(rules, query) for rules in self._of_question(query))
        return list(dict.fromkeys(word for words in words_by_rules for word in words))

    def second_words(self, query: str) -> list[str]:
        """See `Language.second_words`; what another language makes of the words is among them."""
        words_by_rules = (Language.second_words(rules, query) for rules in self._of_question(query))
        return list(dict.fromkeys(word for words in words_by_rules for word in words))

    def in_order(self, text: str) -> list[str]:
        """See `Language.in_order`, by the first of the languages that the text may be in."""
        return Language.in_order(self._of_question(text)[0], text)

    def finder(self, words: Collection[str], forms: Collection[str] = ()) -> Finder:
        """See `Language.finder`; a word may be found by several rules, and counts once."""
        finders = [Language.finder(rules, words, forms) for rules in (self, *self._others)]

        def find(text: str) -> list[WordPlace]:
            places: dict[tuple[int, int], WordPlace] = {}
            for finder in finders:
                for place in finder(text):
                    places.setdefault((place.start, place.stop), place)
            return [places[place] for place in sorted(places)]

        return find

    @cached_property
    def _others(self) -> tuple[Language, ...]:
        """The other rules, with the synonyms of these."""
        return tuple(replace(rules, synonyms=self.synonyms) for rules in self.others)

    def _of_question(self, text: str) -> list[Language]:
        every: list[Language] = [self, *self._others]
        code, probability = identify(text, sorted(self.codes))
        if probability < _CLEAR_QUESTION_SHARE:
            return every
        return [rules for rules in every if rules.name == stemmer_of(code)] or every


def rules_of(encoding: Encoding, codes: Sequence[str] = ()) -> Language:
    """Load the rules by which the words of a collection were made.

    `codes` are the languages of its documents, most frequent first, where each has its own rules.
    """
    names = list(dict.fromkeys(stemmer_of(code) for code in codes or (MAIN,)))
    if encoding.language != AUTO or len(names) == 1:
        name = names[0] if encoding.language == AUTO else encoding.language
        return language(name, keep_accents=encoding.keep_accents, synonyms=encoding.synonyms)
    return _several(tuple(codes), tuple(names), encoding.keep_accents, encoding.synonyms)


@lru_cache(maxsize=_SETS_OF_LANGUAGES)  # they remember words: parts of an index share them
def _several(
    codes: tuple[str, ...],
    names: tuple[str, ...],
    keep_accents: bool,  # by place: a key of the cache
    synonyms: str,
) -> SeveralLanguages:
    """Return the rules of several languages, by their codes and by the names of the rules."""
    every = [language(name, keep_accents=keep_accents, synonyms=synonyms) for name in names]
    main = {field: getattr(every[0], field) for field in Language.__dataclass_fields__}
    return SeveralLanguages(**main, codes=codes, others=tuple(every[1:]))


def main_language(encoding: Encoding, codes: Sequence[str]) -> Encoding:
    """Return the encoding of a place that keeps to one language: the main one of several."""
    if encoding.language != AUTO:
        return encoding
    return replace(encoding, language=stemmer_of(codes[0]) if codes else ENGLISH)
