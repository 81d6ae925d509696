"""Copies: texts that say the same, told by a digest of their words.

Copies are texts whose words are equal, whatever their case, spaces and punctuation. All else may
carry the meaning and makes texts different: the order of words, a negation, a number as it is
written (`1.5`, `1,500`, `-5`, `(5)`, `3/4`), a sign (`%`, `€`, `<`, `?`).
"""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import regex

from aveyb_retrieval.documents.records import MAIL_TYPES
from aveyb_retrieval.encoder.text.subjects import is_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from aveyb_retrieval.indexes.types import IntArray

NO_THREAD = 0  # the digest of what is in no thread
UNLINKED = 1  # the bit of a digest that says that a reply names no mail
_MATCHES_AT_ONCE = 4096
NO_WORDS = 0  # the digest of a text without words, which is a copy of nothing
_PLAIN = dict.fromkeys([*range(0x2010, 0x2015), 0x2212], "-") | dict.fromkeys(
    map(ord, "\u2018\u2019\u02bc"), "'"
)
_PLAIN |= dict.fromkeys(map(ord, "\u201c\u201d\u201e\u00ab\u00bb"), '"')
_UNSEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}\u0640]+")
# ligatures, full and half width, not powers
_FORMS = re.compile("[\xb5\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffef]+")
_BROKEN = re.compile(r"-\n(?<=[^\W\d_]-\n)(?=[^\W\d_])")  # a word at the end of a line
_UNITS = re.compile(
    r"\d[\s-]?(?:M(?:Wh?|VA?|g|A|Hz|Ω|J|Pa|eV|L|bit|bps)|[kKMGTP]i?B(?:ps)?)(?![^\W\d_])"
)
_WORDS = regex.compile(  # words with one space between them are one match: fewer are faster
    r"""[^\W\d_]+(?:[ ][^\W\d_]+)*+
      | (?:(?<!\w)[.,])?\d+(?:[.,:/'-]\d+)*(?:e[+-]\d+)?  # a number, date or time
      | (?<!\w)-(?=[\w.\p{Sc}])               # a minus, but no dash of a list or between words
      | (?<=\S[ ])-(?=[ ]\p{Sc}?[.,]?\d)      # the same, or "to", with a space
      | \((?=\s?\p{Sc}?[.,]?\d)               # the minus of accounts
      | (?<=\d)['"]                           # feet, inches, minutes
      | (?<=\d[ ]?)\*+(?=[ ]?\d)              # times
      | !(?=\S)                               # "not" in code
      | (?<=\w)\#                             # C#
      | [^\w\s.,;:!"'(){}\[\]*_`\#¡¿•▪◦‣\p{Pi}\p{Pf}\p{Ps}\p{Pe}…。、，；：！-]""",  # other scripts' points  # noqa: E501, RUF001
    regex.VERBOSE,
)


def copy_digest(text: str) -> int:
    """Hash the words of a text to 64 bits: texts of one digest are copies. 0 where it has no words.

    Two of a billion different texts have one digest with a probability of 0.03.
    """
    words, sums, is_empty = normalized_words(text), blake2b(digest_size=8), True
    while batch := list(islice(words, _MATCHES_AT_ONCE)):
        sums.update(f"{'' if is_empty else ' '}{' '.join(batch)}".encode())
        is_empty = False
    return NO_WORDS if is_empty else int.from_bytes(sums.digest(), "little", signed=True)


def thread_digest(metadata: Mapping[str, Any]) -> int:
    """Hash the thread that a mail belongs to to 63 bits; 0 of any other document.

    The lowest bit is set of an unlinked reply: its subject says that it answers a mail, but it
    names none and so begins a thread of its own.
    """
    thread = metadata.get("thread")
    if metadata.get("type") not in MAIL_TYPES or not isinstance(thread, str):
        return NO_THREAD
    digest = blake2b(thread.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    begins = thread == metadata.get("message_id")
    is_unlinked = begins and is_answer(str(metadata.get("subject", "")))
    return int.from_bytes(digest, "little", signed=True) & ~UNLINKED | (UNLINKED * is_unlinked)


def copy_digests(texts: Iterable[str]) -> IntArray:
    """The digests of texts, int64 `[n]`."""
    return np.array([copy_digest(text) for text in texts], np.int64)


def passage_copy_digests(text: str, spans: IntArray, of_text: int) -> list[int]:
    """The digests of passages, characters `[n, 2]` of a text whose own digest is known: it is that
    of a passage of all the text, too.
    """
    whole = (0, len(text))
    return [
        of_text if (start, stop) == whole else copy_digest(text[start:stop])
        for start, stop in spans.tolist()
    ]


def normalized_words(text: str) -> Iterator[str]:
    """The words that copies have in common, in order; those with one space between are together."""
    if not text.isascii():
        text = _FORMS.sub(
            lambda match: unicodedata.normalize("NFKC", match[0]), _UNSEEN.sub("", text)
        )
        text = unicodedata.normalize("NFC", text).translate(_PLAIN)
    # a case that matters: of mega and milli, of byte and bit
    text = _UNITS.sub(
        lambda match: match[0].replace("M", "mega ").replace("B", "byte"), _BROKEN.sub("", text)
    )
    return map(regex.Match.group, _WORDS.finditer(text.lower()))
