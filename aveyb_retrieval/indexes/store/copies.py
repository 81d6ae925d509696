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
import pyarrow as pa
import pyarrow.compute as pc
import regex

from aveyb_retrieval.documents.records import MAIL_TYPES
from aveyb_retrieval.encoder.text.subjects import is_answer
from aveyb_retrieval.indexes.store.segments import after_blanks, offsets_and_bytes, text_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    import numpy.typing as npt

    from aveyb_retrieval.indexes.store.segments import Segments
    from aveyb_retrieval.indexes.types import BoolArray, IntArray

NO_THREAD = 0  # the digest of what is in no thread
UNLINKED = 1  # the bit of a digest that says that a reply names no mail
_MATCHES_AT_ONCE = 4096
_SEGMENTS_AT_ONCE = 4096
NO_WORDS = 0  # the digest of a text without words, which is a copy of nothing
_DASHES = re.compile("[\u2010-\u2014\u2212]")
_APOSTROPHES = re.compile("[\u2018\u2019\u02bc]")
_QUOTATION_MARKS = re.compile("[\u201c\u201d\u201e\u00ab\u00bb]")
_UNSEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}\u0640]+")
# ligatures, full and half width, not powers
_FORMS = re.compile("[\xb5\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffef]+")
_BROKEN = re.compile(r"-\n(?<=[^\W\d_]-\n)(?=[^\W\d_])")  # a word at the end of a line
_UNIT = r"(?:M(?:Wh?|VA?|g|A|Hz|Ω|J|Pa|eV|L|bit|bps)|[kKMGTP]i?B(?:ps)?)(?![^\W\d_])"
_UNITS = re.compile(rf"\d[\s-]?{_UNIT}")
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


def normalized_words(text: str) -> Iterator[str]:
    """The words that copies have in common, in order; those with one space between are together."""
    return _words_in(_in_one_form(text))


def _in_one_form(text: str) -> str:
    """A text in which letters and signs that are written alike are one."""
    if text.isascii():
        return text
    text = _FORMS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), _UNSEEN.sub("", text))
    text = _DASHES.sub("-", unicodedata.normalize("NFC", text))
    return _QUOTATION_MARKS.sub('"', _APOSTROPHES.sub("'", text))


def _words_in(text: str) -> Iterator[str]:
    """See `normalized_words`, of a text in one form."""
    # a case that matters: of mega and milli, of byte and bit
    text = _UNITS.sub(
        lambda match: match[0].replace("M", "mega ").replace("B", "byte"), _BROKEN.sub("", text)
    )
    return map(regex.Match.group, _WORDS.finditer(text.lower()))


# --- many texts at once --------------------------------------------------------------------------

# Segments whose words depend on their neighbor: how one ends and the next one begins. All patterns
# above that look over a blank are here.
_APART = " \0  "  # a word by itself that depends on no neighbor, and on which none depends
_NUMBER_BEGINS = regex.compile(r"\p{Sc}?[.,]?\d")
_UNIT_BEGINS = re.compile(_UNIT)
_UNIT_LETTERS = frozenset("kKMGTP")
_BREAKS = re.compile(r"[^\W\d_]-\Z")
_LETTER = re.compile(r"[^\W\d_]")
_MEASURE, _NEGATIVE, _PRODUCT, _BREAK, _DASH, _SEVERAL_SIGNS = (1 << bit for bit in range(6))
_NO_WORD_SIGNS = ".,;:\"'()[]{}"  # beside letters
_DIGEST_BYTES = 8
_OFFSET_BITS = 32  # of a place in the words of a batch, two of which are one number
_NO_DIGEST = NO_WORDS.to_bytes(_DIGEST_BYTES, "little")


def segment_copy_digests(
    segments: Segments, texts: IntArray, passages: IntArray
) -> tuple[IntArray, IntArray]:
    """The digests of texts and of passages, int64 `[n]` and `[p]`, that are ranges of pieces
    `[n, 2]` and `[p, 2]`: to the bit those that `copy_digest` makes of each.
    """
    places = segments.firsts[np.concatenate([texts, passages])]
    segments = segments.before(int(places.max(initial=0)))  # others are not of these texts
    forms, words = _forms_and_words(segments.different)
    depends = _depends_on_next(segments, forms, places)
    data, offsets = _words_of_places(segments, words, depends)
    is_within = np.concatenate([[False], depends])  # whether a place follows one that depends on it
    digests, out = dict[int, bytes](), list[bytes]()
    starts, stops = offsets[places].T
    # numbers alone: a pair for each text would keep the collection of garbage busy
    for start, stop, text in zip(
        starts.tolist(), stops.tolist(), (starts << _OFFSET_BITS | stops).tolist(), strict=True
    ):
        if text not in digests:
            # a blank is before the first word, too
            hashed = blake2b(data[start + 1 : stop], digest_size=_DIGEST_BYTES).digest()
            digests[text] = hashed if start < stop else _NO_DIGEST
        out.append(digests[text])
    made = np.frombuffer(b"".join(out), "<i8").astype(np.int64)
    for row in np.flatnonzero(is_within[places].any(axis=1)).tolist():
        made[row] = copy_digest(segments.source(*places[row].tolist()))
    return made[: len(texts)], made[len(texts) :]


def _forms_and_words(
    segments: pa.LargeStringArray,
) -> tuple[pa.LargeStringArray, pa.LargeStringArray]:
    """Segments in one form, and the normalized words of each, with a blank before each word."""
    letters = pc.ascii_trim(segments, _NO_WORD_SIGNS)
    is_other = pc.invert(pc.ascii_is_alpha(letters))
    plain_words = after_blanks(pc.ascii_lower(letters))
    others = segments.filter(is_other).to_pylist()
    forms, words = list[str](), list[str]()
    for start in range(0, len(others), _SEGMENTS_AT_ONCE):
        block_forms, block_words = _normalize(others[start : start + _SEGMENTS_AT_ONCE])
        forms += block_forms
        words += [f" {of_segment}" if of_segment else "" for of_segment in block_words]
    return (
        pc.replace_with_mask(segments, is_other, text_array(forms)),
        pc.replace_with_mask(plain_words, is_other, text_array(words)),
    )


def _normalize(segments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The same of any segments, without the first blank."""
    joined = _in_one_form(_APART.join(segments))
    if joined.count("\0") >= len(segments):  # texts with NUL are possible
        forms = [_in_one_form(segment) for segment in segments]
        return forms, [" ".join(_words_in(form)) for form in forms]
    words = " ".join(_words_in(joined)).split("\0")
    return joined.split(_APART), [of_segment.strip(" ") for of_segment in words]


def _depends_on_next(segments: Segments, forms: pa.LargeStringArray, texts: IntArray) -> BoolArray:
    """Whether the words of places `[m]` may depend on the next place of the same text.

    Texts are ranges of places `[t, 2]`.
    """
    ends, begins = _edges(forms)
    numbers = segments.numbers
    texts = texts[texts[:, 0] < texts[:, 1]]
    # how many more texts a place and the next have
    texts_at = np.zeros(len(numbers) + 1, np.int32)
    np.add.at(texts_at, texts[:, 0], 1)
    np.add.at(texts_at, texts[:, 1] - 1, -1)
    alike = ends[numbers[:-1]] & begins[numbers[1:]]
    depends = np.zeros(len(numbers), np.bool_)
    depends[:-1] = alike > 0
    depends[:-2] |= (alike[1:] & _DASH) > 0  # a dash between numbers depends on both
    return depends & (np.cumsum(texts_at, dtype=np.int32)[:-1] > 0)


def _edges(
    forms: pa.LargeStringArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """How segments in one form `[s]` end, and how they begin: one and the next with a bit in common
    depend on each other.
    """
    ends = _bits(pc.utf8_slice_codeunits(forms, -1), _ending)
    begins = _bits(pc.utf8_slice_codeunits(forms, 0, 1), _beginning)
    for bits, bits_of in ((ends, _whole_ending), (begins, _whole_beginning)):
        unclear = np.flatnonzero(bits & _SEVERAL_SIGNS)
        bits[unclear] = _bits(forms.take(pa.array(unclear)), bits_of)
    return ends, begins


def _bits(texts: pa.LargeStringArray, bits_of: Callable[[str], int]) -> npt.NDArray[np.uint8]:
    """What a function says of each text, `[n]`; it is asked once for texts that are equal."""
    encoded = texts.dictionary_encode()
    bits = np.array([bits_of(text) for text in encoded.dictionary.to_pylist()], np.uint8)
    return bits[encoded.indices.to_numpy()]


def _whole_ending(form: str) -> int:
    """The bits of how a segment ends, by all of it."""
    return (_DASH if form == "-" else 0) | (_BREAK if _BREAKS.search(form) else 0)


def _whole_beginning(form: str) -> int:
    """The bits of how a segment begins, by all of it."""
    # what a break joins may be a unit
    is_unit = form[0] in _UNIT_LETTERS and (_UNIT_BEGINS.match(form) or _BREAKS.search(form))
    return (
        (_MEASURE if is_unit else 0)
        | (_NEGATIVE | _DASH if _NUMBER_BEGINS.match(form) else 0)
        | (_BREAK if _LETTER.match(form) else 0)
    )


def _ending(last: str) -> int:
    """The bits of how a segment ends, by its last letter; `_SEVERAL_SIGNS` where that does not say
    it.
    """
    if last.isdecimal():
        return _MEASURE
    return {"(": _NEGATIVE, "*": _PRODUCT, "-": _SEVERAL_SIGNS}.get(last, 0)


def _beginning(first: str) -> int:
    """The bits of how a segment begins, by its first letter, as `_ending` does."""
    if first.isdecimal():
        return _NEGATIVE | _PRODUCT | _DASH
    if first in ("", "*"):
        return _MEASURE if first else 0
    if first in _UNIT_LETTERS or _NUMBER_BEGINS.match(f"{first}1"):
        return _SEVERAL_SIGNS
    return _BREAK if _LETTER.match(first) else 0


def _words_of_places(
    segments: Segments, words: pa.LargeStringArray, depends: BoolArray
) -> tuple[memoryview, IntArray]:
    """The normalized words of all places in UTF-8, a blank before each, and where those of each
    begin, `[m + 1]`.

    Places that depend on each other are looked at together: their words stand at the first one.
    """
    numbers = segments.numbers.copy()
    follows = np.concatenate([[False], depends])[:-1]
    heads = np.flatnonzero(depends & ~follows)
    tails = np.flatnonzero(follows & ~depends)
    sources = [
        segments.source(head, tail + 1)
        for head, tail in zip(heads.tolist(), tails.tolist(), strict=True)
    ]
    different = {source: place for place, source in enumerate(dict.fromkeys(sources), len(words))}
    _, more = _forms_and_words(text_array(different))
    numbers[heads] = [different[source] for source in sources]
    numbers[follows] = len(words) + len(more)
    spelled = pa.concat_arrays([words, more, text_array([""])])
    edges, data = offsets_and_bytes(spelled.take(pa.array(numbers)))
    return data.data, edges
