"""What documents are called by: the words of their ids, titles and metadata, and those that they
begin with.

A question names a document by these words (`aveyb_retrieval.indexes.search.names`). They are kept
as a column: a question has some two hundred competitors, and finding the words of each takes a
tenth of a millisecond. Those of id, title and metadata are a second column with lists of its own,
so that a document that nothing else speaks for is found, too.
"""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aveyb_retrieval.indexes.store.words import Language

# docs/ranking.md says what these were chosen on
MAX_NAME_CHARACTERS = 1000  # of an id, of a title, of all metadata
MAX_VALUES = 20  # of the metadata
MAX_VALUE_CHARACTERS = 100  # of each
BEGINNING_CHARACTERS = 500  # of the document's text

SEPARATOR = "\n"
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,4}$")
_YEARS = re.compile(r"(?<=[^\W\d_])(?=\d{4})|(?<=\d{4})(?=[^\W\d_])")  # FY|2018, 2023|Q2
# the same, where it is looked for in long texts: digits are found faster, and four of them in the
# bytes of a text still faster
_HAS_YEAR = re.compile(r"\d{4}(?:(?<=[^\W\d_]\d{4})|(?=[^\W\d_]))")
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


class CalledBy(NamedTuple):
    """The words that a document is called by, as they are stored: with a space around each."""

    path: str
    title: str
    beginning: str

    @classmethod
    def read(cls, stored: str) -> CalledBy:
        """Take apart what is stored: all of them, with `SEPARATOR` between them.

        ValueError if these are not three.
        """
        path, title, beginning = stored.split(SEPARATOR)
        return cls(path, title, beginning)


NamingTexts: TypeAlias = tuple[str, str, str]
"""The texts whose words call a document: its id with labels of its metadata, title, beginning."""
NO_NAMES: NamingTexts = ("", "", "")


def called_by(
    language: Language, document_id: str, title: str, metadata: Mapping[str, Any], beginning: str
) -> CalledBy:
    """Collect the words that call a document: those of its id, its title and its beginning.

    An id loses its suffix and percent signs. Short texts of the metadata, such as the name of a
    client, count with the id: neither is among the words that an index ranks a document by. Dates
    do not count: they are mostly those of writing or filing.
    """
    return CalledBy(*map(language.stored, naming_texts(document_id, title, metadata, beginning)))


def naming_texts(
    document_id: str, title: str, metadata: Mapping[str, Any], beginning: str
) -> NamingTexts:
    """Return the texts whose words call a document, each as far as it counts."""
    path = _SUFFIX.sub("", unquote(document_id[:MAX_NAME_CHARACTERS]))
    labels = " ".join(islice(_labels(metadata), MAX_VALUES))[:MAX_NAME_CHARACTERS]
    title, beginning = title[:MAX_NAME_CHARACTERS], beginning[:BEGINNING_CHARACTERS]
    return with_parts(f"{path} {labels}"), with_parts(title), with_parts(beginning)


def name_text(document_id: str, title: str, metadata: Mapping[str, Any]) -> str:
    """Return the text whose different words a document is called by without its own."""
    path, title, _ = naming_texts(document_id, title, metadata, "")
    return f"{path}\n{title}"


def with_parts(text: str) -> str:
    """The text, with letters and long numbers also apart: `FY2018` is also `FY 2018`."""
    if text.isascii() and b"0000" not in text.encode().translate(_DIGITS_ALIKE):
        return text
    if not _HAS_YEAR.search(text):
        return text
    parts = [_YEARS.sub(" ", run) for run in text.split() if _HAS_YEAR.search(run)]
    return " ".join([text, *parts])


def _labels(value: Any) -> Iterator[str]:
    """Texts of metadata that may name a document."""
    if isinstance(value, str):
        if len(value) <= MAX_VALUE_CHARACTERS and not _DATE.match(value):
            yield value
    elif isinstance(value, dict):
        yield from chain.from_iterable(map(_labels, value.values()))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(_labels, value))
