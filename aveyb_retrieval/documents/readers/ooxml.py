"""Office Open XML (ECMA-376): packages, and what all of its formats have in common.

The parts that hold text are read here, and no others: a picture that is missing, a relation that
leads nowhere or a part that is damaged costs what it holds, not the file, for which the libraries
that write such files refuse it.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.archives import open_archive, read_member
from aveyb_retrieval.documents.readers.equations import M, text_of_omml
from aveyb_retrieval.documents.readers.filetext import (
    Unreadable,
    clean,
    clean_name,
    embedded,
    file_metadata,
    one_line,
    whole_number,
)
from aveyb_retrieval.documents.readers.list_numbers import number_as
from aveyb_retrieval.documents.readers.superscripts import shifted
from aveyb_retrieval.documents.readers.xml import parse_xml

if TYPE_CHECKING:
    from collections.abc import Iterator

A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
GRAPHICS = (f"{C}chart", "{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds")
PICTURES = (f"{A}blip", "{urn:schemas-microsoft-com:vml}imagedata")
SHIFTS = {"superscript": 1, "subscript": -1}
FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_RELATION = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
# names of ISO 29500 Strict, as those of Transitional
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")


class Package:
    """The parts of a file: what cannot be read of them is listed in `lost`."""

    def __init__(self, data: bytes) -> None:
        self._archive = open_archive(data)
        self._names = {name.lower(): name for name in self._archive.namelist()}
        self.lost: list[str] = []
        self._embedded: set[str] = set()  # files
        self._relations: dict[str, dict[str, tuple[str, str]]] = {}

    def part(self, name: str) -> Any | None:
        """Return the root of a part in XML; None where there is none."""
        data = self.data(name)
        try:
            return None if data is None else parse_xml(data, name)
        except Unreadable as error:
            self._lose(str(error))
            return None

    def data(self, name: str) -> bytes | None:
        """Return the bytes of a part, in the names of the transitional standard; None where there
        is none.
        """
        try:
            data = self._bytes(name)
        except Unreadable as error:
            self._lose(str(error))
            return None
        transitional = rb"http://schemas.openxmlformats.org/\1/2006/"
        return None if data is None else _STRICT.sub(transitional, data)

    def picture(self, name: str) -> bytes | None:
        """Return the bytes of a picture as they are; None where they are missing or damaged, which
        costs no more than the picture.
        """
        try:
            return self._bytes(name)
        except Unreadable:
            return None

    def _bytes(self, name: str) -> bytes | None:
        """The bytes of a part as they are, None if there is none; Unreadable if it is damaged."""
        stored = self._names.get(name.lstrip("/").lower())
        return None if stored is None else read_member(self._archive, stored)

    def _lose(self, reason: str) -> None:
        if reason not in self.lost:  # a part may be looked at twice
            self.lost.append(reason)

    def main(self, kind: str, usual: str, tag: str) -> tuple[str, Any]:
        """Return the name and the root, which has this tag, of the part that a file is about."""
        for name in (*self.related("", "officeDocument"), usual):
            root = self.part(name)
            if root is not None and root.tag == tag:
                return name, root
        raise Unreadable(
            f"damaged: not {kind}" + (f" ({one_line(self.lost[0])})" if self.lost else "")
        )

    def relations(self, name: str) -> dict[str, tuple[str, str]]:
        """Return the relations of a part: the kind and the name of another part by an id; "" is
        that of the package.
        """
        if name in self._relations:
            return self._relations[name]
        folder, _, base = name.rpartition("/")
        root = self.part(posixpath.join(folder, "_rels", f"{base}.rels"))
        relations = self._relations[name] = {}
        for relation in () if root is None else root.iter(_RELATION):
            if relation.get("TargetMode") != "External":
                target = relation.get("Target") or ""
                path = (
                    target
                    if target.startswith("/")
                    else posixpath.normpath(posixpath.join(folder, target))
                )
                kind = (relation.get("Type") or "").rpartition("/")[2]
                relations[relation.get("Id") or ""] = kind, path.lstrip("/")
                self._embedded |= (
                    {posixpath.basename(path)} if kind in ("package", "oleObject") else set()
                )
        return relations

    def related(self, name: str, kind: str) -> list[str]:
        """Return the names of the parts of a kind to which a part is related."""
        return [
            target for related_kind, target in self.relations(name).values() if related_kind == kind
        ]

    def properties(self) -> tuple[str, dict[str, Any]]:
        """Return the title, and the author and the date of creation as metadata."""
        values = {}
        for name in self.related("", "core-properties") or ["docProps/core.xml"]:
            root = self.part(name)
            for element in () if root is None else root:
                if isinstance(element.tag, str):
                    values[element.tag.rpartition("}")[2]] = element.text or ""
        return clean_name(values.get("title")), file_metadata(
            values.get("creator"), values.get("created")
        )

    @property
    def is_incomplete(self) -> bool:
        """Whether parts are not read that are not hidden."""
        return bool(self.lost or self._embedded)

    def warning(self, *others: str) -> str:
        """Return what a reader has to say of a file beside its text."""
        lost = (
            f"parts that cannot be read: {'; '.join(map(one_line, self.lost[:5]))}"
            if self.lost
            else ""
        )
        return "; ".join(filter(None, (*others, embedded(sorted(self._embedded)), lost)))


def is_on(element: Any | None, attribute: str) -> bool:
    """Return whether a switch is set: it is there, and not with the value "0"."""
    return element is not None and (element.get(attribute) or "1").lower() not in (
        "0",
        "false",
        "off",
        "none",
    )


def is_true(element: Any, attribute: str) -> bool:
    """Return whether an attribute is set."""
    return element.get(attribute) in ("1", "true")


def paragraphs_of_drawing(body: Any) -> Iterator[str]:
    """The paragraphs of a text body of DrawingML, with their numbers as PowerPoint shows them."""
    counts: dict[int, tuple[str, int]] = {}
    for paragraph in body.iter(f"{A}p"):
        properties = paragraph.find(f"{A}pPr")
        level = 0 if properties is None else whole_number(properties.get("lvl"))
        numbered = paragraph.find(f"{A}pPr/{A}buAutoNum")
        for deeper in [
            depth for depth in counts if depth > level or (depth == level and numbered is None)
        ]:
            del counts[deeper]
        number = ""
        if numbered is not None:
            kind, last = numbered.get("type") or "arabicPeriod", counts.get(level)
            count = (
                last[1] + 1
                if last and last[0] == kind
                else whole_number(numbered.get("startAt"), 1)
            )
            counts[level] = (kind, count)
            ending = next((ending for ending in _ENDINGS if kind.endswith(ending)), "Period")
            counted = number_as(_KINDS.get(kind.removesuffix(ending), "decimal"), count)
            number = f"{_ENDINGS[ending].format(counted)} "
        text = clean(run_text(paragraph)).strip()
        yield f"{number}{text}" if text else ""


def run_text(paragraph: Any) -> str:
    """The characters of a paragraph of DrawingML."""
    parts: list[str] = []
    for node in paragraph.iter(f"{A}t", f"{A}br", f"{A}tab", f"{M}oMath"):
        if node.tag == f"{A}br":
            parts.append("\n")
        elif node.tag == f"{A}tab":
            parts.append("\t")
        elif node.tag == f"{M}oMath":
            parts.append(text_of_omml(node))
        elif next(node.iterancestors(FALLBACK), None) is None:
            parts.append(_shifted("".join(parts[-3:]), node))
    return "".join(parts)


def _shifted(before: str, text: Any) -> str:
    run = text.getparent()
    properties = run.find(f"{A}rPr")
    if run.tag == f"{A}fld" and (run.get("type") or "") == "slidenum":
        return ""
    baseline = properties.get("baseline", "0") if properties is not None else "0"
    return shifted(before, text.text or "", _shift(baseline))


def _shift(baseline: str) -> int:
    """1 for a baseline that is raised, -1 for a lowered one, else 0."""
    if not baseline.strip("-0%"):
        return 0
    return -1 if baseline.startswith("-") else 1


_ENDINGS = {"Period": "{}.", "ParenR": "{})", "ParenBoth": "({})", "Plain": "{}"}
_KINDS = {
    "alphaLc": "lowerLetter",
    "alphaUc": "upperLetter",
    "romanLc": "lowerRoman",
    "romanUc": "upperRoman",
}


def _chart_lines(root: Any) -> Iterator[str]:
    """The title of a chart, its axes, and a row for each category: its name and the value of each
    series.
    """
    yield from filter(None, map(words_of_drawing, root.iterfind(f".//{C}chart/{C}title")))
    series = list(root.iter(f"{C}ser"))
    names = [_points(line.find(f"{C}tx")) for line in series]
    categories = max((_points(_first(line, "cat", "xVal")) for line in series), key=len, default={})
    values = [_points(_first(line, "val", "yVal")) for line in series]
    if any(names):
        yield " | ".join(" ".join(name.values()) for name in names)
    for place in sorted({*categories, *(place for column in values for place in column)}):
        yield " | ".join([categories.get(place, ""), *(column.get(place, "") for column in values)])
    for axis in root.iter(f"{C}catAx", f"{C}valAx", f"{C}dateAx"):
        yield from filter(None, map(words_of_drawing, axis.iterfind(f"{C}title")))


def words_of_drawing(body: Any) -> str:
    """Return the paragraphs of a text body of DrawingML as one line."""
    return one_line(" ".join(paragraphs_of_drawing(body)))


def _first(element: Any, *names: str) -> Any | None:
    return next(
        (child for name in names if (child := element.find(f"{C}{name}")) is not None), None
    )


def _points(element: Any | None) -> dict[int, str]:
    """The texts of a chart's points by their places; a chart keeps them beside the sheet that they
    come from.
    """
    if element is None:
        return {}
    points: dict[int, str] = {}
    for point in element.iter(f"{C}pt"):
        value = point.find(f"{C}v")
        place = whole_number(point.get("idx"), -1)
        if value is not None and place >= 0:
            # of some levels the outer one first
            points[place] = one_line(f"{value.text or ''} {points.get(place, '')}")
    if not points:
        points = {
            place: one_line(value.text or "") for place, value in enumerate(element.iter(f"{C}v"))
        }
    return points


def picture_part(reference: Any, relations: dict[str, tuple[str, str]]) -> str:
    """The name of the part of the picture that an element of `PICTURES` shows; "" of one that is
    not in the file.
    """
    identity = reference.get(f"{R}embed") or reference.get(f"{R}id") or ""
    kind, name = relations.get(identity, ("", ""))
    return name if kind == "image" else ""


def graphic_lines(
    reference: Any, relations: dict[str, tuple[str, str]], package: Package
) -> Iterator[str]:
    """The lines of the chart or the diagram that an element of `GRAPHICS` refers to."""
    is_chart = reference.tag == f"{C}chart"
    root = package.part(
        relations.get(reference.get(f"{R}id" if is_chart else f"{R}dm") or "", ("", ""))[1]
    )
    if root is None:
        return
    if is_chart:
        yield from _chart_lines(root)
        return
    for body in root.iter("{*}t"):  # of a diagram (SmartArt)
        if body.find(f"{A}p") is not None:
            yield from filter(None, paragraphs_of_drawing(body))
