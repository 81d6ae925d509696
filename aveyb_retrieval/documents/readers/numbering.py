"""The numbers of list items as Word shows them: "3.", "(a)", "2.1" (ECMA-376, part 1, 17.9)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aveyb_retrieval.documents.readers.ooxml import number_as

_LEVELS = 9
_PLACE = re.compile(r"%([1-9])")
_MOST = 1 << 31


@dataclass(frozen=True)
class _Level:
    kind: str = "decimal"
    shape: str = "%1."
    start: int = 1
    style: str = ""
    arabic: bool = False  # all numbers of its shape, whatever the levels above use


class Numbering:
    """The lists of a document, and how far each is counted. `root` is its part of numbering, `names` its namespace."""

    def __init__(self, root: Any | None, names: str) -> None:
        self._names = names
        self._shapes: dict[str, dict[int, _Level]] = {}
        self._lists: dict[str, tuple[str, dict[int, int], dict[int, _Level]]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._restarted: set[tuple[str, int]] = set()
        if root is not None:
            self._read(root)

    def next(self, listed: str, depth: int) -> str | None:
        """Count one item of a list: its number, "-" of a bullet, "" where nothing is shown; None of an unknown list."""
        if listed not in self._lists:
            return None
        shape, starts, own = self._lists[listed]
        levels = {**self._shapes.get(shape, {}), **own}
        counts = self._counts.setdefault(shape, {})
        for deeper in [level for level in counts if level > depth]:
            del counts[deeper]
        level = levels.get(depth, _Level())
        if depth in starts and (listed, depth) not in self._restarted:
            self._restarted.add((listed, depth))
            counts[depth] = starts[depth]
        else:
            counts[depth] = counts.get(depth, level.start - 1) + 1
        if level.kind == "bullet":
            return "-"
        if level.kind == "none":
            return _PLACE.sub("", level.shape).strip()

        def number(found: re.Match[str]) -> str:
            place = int(found[1]) - 1
            at = levels.get(place, _Level())
            kind = "decimal" if level.arabic else at.kind
            return number_as(kind, counts.get(place, at.start))

        return _PLACE.sub(number, level.shape).strip()

    def level_of(self, listed: str, style: str) -> int:
        """The level of a list that belongs to a style, 0 where none does."""
        shape = self._lists.get(listed, ("", {}, {}))[0]
        return next((depth for depth, level in self._shapes.get(shape, {}).items() if level.style == style), 0)

    def _read(self, root: Any) -> None:
        names, links, linked = self._names, {}, {}
        for element in root.iter(f"{names}abstractNum"):
            shape = element.get(f"{names}abstractNumId") or ""
            self._shapes[shape] = self._levels(element)
            if style := self._value(element, "styleLink"):
                links[style] = shape
            if style := self._value(element, "numStyleLink"):
                linked[shape] = style
        for shape, style in linked.items():  # a list whose levels another one holds
            self._shapes[shape] = self._shapes.get(links.get(style, ""), {})
        for element in root.iter(f"{names}num"):
            starts: dict[int, int] = {}
            own: dict[int, _Level] = {}
            for override in element.iter(f"{names}lvlOverride"):
                start = self._value(override, "startOverride")
                if start:
                    starts[_whole(override.get(f"{names}ilvl"), 0)] = _whole(start, 1)
                own |= self._levels(override)
            self._lists[element.get(f"{names}numId") or ""] = (self._value(element, "abstractNumId"), starts, own)

    def _levels(self, element: Any) -> dict[int, _Level]:
        names, found = self._names, {}
        for level in element.iter(f"{names}lvl"):
            depth = _whole(level.get(f"{names}ilvl"), 0)
            if depth < _LEVELS:
                found[depth] = _Level(
                    self._value(level, "numFmt") or "decimal",
                    self._value(level, "lvlText"),
                    _whole(self._value(level, "start"), 1),
                    self._value(level, "pStyle"),
                    level.find(f"{names}isLgl") is not None,
                )
        return found

    def _value(self, element: Any, name: str) -> str:
        found = element.find(f"{self._names}{name}")
        return (found.get(f"{self._names}val") or "") if found is not None else ""


def _whole(value: str | None, otherwise: int) -> int:
    text = value or ""
    return min(int(text), _MOST) if text.isascii() and text.isdigit() and len(text) < 12 else otherwise
