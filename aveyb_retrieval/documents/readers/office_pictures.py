"""Pictures in documents of Office: a scanned page that was pasted into one is read by OCR."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.filetext import Unreadable, Unrecognized
from aveyb_retrieval.documents.readers.ocr import why_unavailable
from aveyb_retrieval.documents.readers.pictures import (
    MIN_PICTURE_BYTES,
    picture_words,
    read_inner_pictures,
)
from aveyb_retrieval.documents.readers.suffixes_without_text import PICTURE_SUFFIXES
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aveyb_retrieval.documents.readers.file_limits import Limits
    from aveyb_retrieval.documents.readers.ocr_text import PictureText
    from aveyb_retrieval.documents.readers.ooxml import Package


@dataclass(frozen=True)
class OfficePictures:
    """What OCR reads in the pictures of a document, by the names of their parts, or why it does
    not; small pictures are not among them.

    `without_ocr` says what is missing for OCR, "" if nothing is.
    """

    outcomes: Mapping[str, PictureText | Unreadable] = field(default_factory=dict)
    without_ocr: str = ""

    def text(self, name: str) -> str:
        """Return the words of a picture; "" where none are read."""
        outcome = self.outcomes.get(name)
        return "" if outcome is None or isinstance(outcome, Unreadable) else picture_words(outcome)

    def certainty(self, names: Iterable[str]) -> float | None:
        """Return the mean certainty of some pictures in percent; None where none shows words."""
        outcomes = (self.outcomes.get(name) for name in names)
        certainties = [
            outcome.certainty
            for outcome in outcomes
            if outcome is not None and not isinstance(outcome, Unreadable) and outcome.text
        ]
        return round(sum(certainties) / len(certainties), 1) if certainties else None

    @property
    def warning(self) -> str:
        """How many pictures are not read, and why the first is not; "" where all are."""
        reasons = self._reasons()
        if not reasons:
            return ""
        count = f"{len(reasons):,} of {plural(len(self.outcomes), 'picture')}"
        return f"{count} not read ({reasons[0]})"

    @property
    def is_incomplete(self) -> bool:
        """Whether a picture is not read that OCR could read; without OCR most are photographs."""
        return bool(self._reasons()) and not self.without_ocr

    @property
    def may_recognize_more(self) -> bool:
        """Whether a picture is not read that may be another time."""
        return any(isinstance(reason, Unrecognized) for reason in self._reasons())

    def check_text(self, text: str) -> None:
        """Raise Unrecognized where a document has no text, and pictures that are not read."""
        if self.may_recognize_more and not text.strip():
            raise Unrecognized(f"no text: {self.warning}")

    def _reasons(self) -> list[Unreadable]:
        return [reason for reason in self.outcomes.values() if isinstance(reason, Unreadable)]


def read_office_pictures(
    package: Package, names: Iterable[str], size: int, limits: Limits
) -> OfficePictures:
    """Read the pictures of these parts of a file of `size` bytes, each once."""
    contents: dict[str, bytes] = {}
    for name in dict.fromkeys(names):
        data = package.picture(name) if _has_dots(name) else None
        if data is not None and len(data) >= MIN_PICTURE_BYTES:
            contents[name] = data
    if not contents:
        return OfficePictures()
    return OfficePictures(read_inner_pictures(contents, size, limits), why_unavailable(limits))


def _has_dots(name: str) -> bool:
    """Whether a picture is one of dots; those of lines and text (EMF, SVG) are not read."""
    return PurePosixPath(name).suffix.lower() in PICTURE_SUFFIXES
