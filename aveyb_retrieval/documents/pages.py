"""Where the pages of a document begin in its text, and how they are labelled."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MAX_PAGES = 1 << 20
UNITS = ("page", "slide", "sheet", "line", "file", "time")
_LONGEST_LABEL = 200  # characters; a label is "iv" or "A-12"


class Page(NamedTuple):
    """One page: its number, counted from 1, what the document itself calls it ("iv"), and what it is."""

    number: int
    label: str
    unit: str = "page"

    def __str__(self) -> str:
        return f"{self.unit} {self.label}"


@dataclass(frozen=True)
class Pages:
    """The pages of one document.

    Attributes:
        starts: The character of the text at which each page begins, ascending; an empty page begins with the next one.
        labels: What the document calls each page; empty where it has no labels of its own.
        unit: What they are: "page", "slide", "sheet", "line", "file" (of an archive or mail), or "time", whose labels
            are the times at which something is said.

    Raises:
        ValueError: these are not pages: the first does not begin at 0, starts do not ascend, or labels are missing.
    """

    starts: tuple[int, ...]
    labels: tuple[str, ...] = ()
    unit: str = "page"

    def __post_init__(self) -> None:
        whole = all(type(start) is int and 0 <= start < 1 << 40 for start in self.starts)
        if not whole or not 1 <= len(self.starts) <= MAX_PAGES or self.starts[0] != 0:
            raise ValueError("pages that do not begin at character 0")
        if any(a > b for a, b in pairwise(self.starts)):
            raise ValueError("pages out of order")
        if self.labels and len(self.labels) != len(self.starts):
            raise ValueError(f"{len(self.labels)} labels for {len(self.starts)} pages")
        if not all(isinstance(label, str) and len(label) <= _LONGEST_LABEL for label in self.labels):
            raise ValueError("a page label that is not a short text")
        if self.unit not in UNITS:
            raise ValueError(f"pages of an unknown unit {self.unit!r}")

    def at(self, character: int) -> Page:
        """Return the page that holds a character of the text."""
        number = bisect_right(self.starts, character)
        return Page(number, self.labels[number - 1] if self.labels else str(number), self.unit)

    def range(self, start: int, stop: int) -> tuple[Page, Page]:
        """Return the pages that hold the first and the last of the characters `[start, stop)`."""
        return self.at(start), self.at(max(start, stop - 1))

    def to_dict(self) -> dict[str, object]:
        """Return what `from_json` reads, as JSON can hold it; a unit is named where it is not "page"."""
        named = {} if self.unit == "page" else {"unit": self.unit}
        return {"starts": list(self.starts), "labels": list(self.labels), **named}

    def to_json(self) -> str:
        """Return the text of what `from_json` reads."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, value: object) -> Pages:
        """Make pages of parsed JSON.

        Raises:
            ValueError: it is not what `to_json` writes.
        """
        if not isinstance(value, dict) or set(value) - {"unit"} != {"starts", "labels"}:
            raise ValueError("pages without starts and labels")
        starts, labels = value["starts"], value["labels"]
        if not isinstance(starts, list) or not isinstance(labels, list):
            raise ValueError("pages that are not lists")
        return cls(tuple(starts), tuple(labels), value.get("unit", "page"))


def short_label(label: str) -> str:
    """Cut a label to what is stored of it."""
    return label[:_LONGEST_LABEL]
