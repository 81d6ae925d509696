"""Equations as a line of text, from OMML (ECMA-376, part 1, 22.1) and from MathML Core.

A line says the same as the equation: the root of 2 is `√2`, a sum over a sum `(a+b)/c`, a mixed
number `2 1/3`, a matrix `[1, 2; 3, 4]`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
MAX_EQUATION_DEPTH = 60  # elements in elements; below, only the text that they hold is read
_ROOTS = {"": "√", "2": "√", "3": "∛", "4": "∜"}
_SINGLE = re.compile(r"[^\W_]+|.", re.DOTALL)  # what needs no parentheses


def grouped(text: str) -> str:
    """Return a part of an equation in parentheses, unless it is one name, number or sign."""
    text = text.strip()
    if _SINGLE.fullmatch(text) or (text.startswith("(") and _closes_at_end(text)):
        return text
    return f"({text})" if text else ""


def _closes_at_end(text: str) -> bool:
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return place == len(text) - 1
    return False


def fraction(numerator: str, denominator: str) -> str:
    """Return `a/b`."""
    return f"{grouped(numerator)}/{grouped(denominator)}"


def scripts(base: str, below: str = "", above: str = "") -> str:
    """Return a base with its lower and upper index, or limits."""
    lower = f"_{grouped(below)}" if below.strip() else ""
    upper = f"^{grouped(above)}" if above.strip() else ""
    return f"{grouped(base) if lower or upper else base}{lower}{upper}"


def root(inside: str, degree: str = "") -> str:
    """Return the root of a degree; without one, the square root."""
    sign = _ROOTS.get(degree.strip()) or f"√[{degree.strip()}]"
    return f"{sign}{grouped(inside)}"


def matrix(rows: Iterable[Iterable[str]]) -> str:
    """Return rows of a matrix: entries parted by commas, rows by semicolons."""
    return f"[{'; '.join(', '.join(entry.strip() for entry in row) for row in rows)}]"


def joined(parts: Sequence[str]) -> str:
    """Return parts of a row side by side: names and numbers that would run together stay apart."""
    text = ""
    for part in filter(None, parts):
        before, behind = text[-1:], part[:1]
        long_name = (len(text) > 1 and text[-2:].isalpha()) or (
            len(part) > 1 and part[:2].isalpha()
        )
        mixed = before.isdigit() and behind.isdigit() and "/" in part
        apart = before.isalnum() and behind.isalnum() and long_name
        text += f" {part}" if mixed or apart else part
    return text


def text_of_omml(element: Any, depth: int = 0) -> str:
    """Return the text of an equation of Office, or of a part of one."""
    if depth > MAX_EQUATION_DEPTH:
        return "".join(element.itertext(f"{M}t"))
    tag = element.tag.removeprefix(M)
    if tag == "t":
        return element.text or ""
    if tag == "m":
        rows = element.iterchildren(f"{M}mr")
        return matrix(
            [text_of_omml(e, depth + 2) for e in row.iterchildren(f"{M}e")] for row in rows
        )
    inside = [
        child for child in element if isinstance(child.tag, str) and not child.tag.endswith("Pr")
    ]
    parts = [text_of_omml(child, depth + 1) for child in inside]
    if tag == "d":
        return _delimited(element, parts)
    if tag == "eqArr":
        return "; ".join(parts)
    named = {child.tag.removeprefix(M): part for child, part in zip(inside, parts, strict=True)}
    write = _OMML.get(tag)
    return joined(parts) if write is None else write(element, named)


def _omml_fraction(_: Any, parts: dict[str, str]) -> str:
    return fraction(parts.get("num", ""), parts.get("den", ""))


def _omml_scripts(_: Any, parts: dict[str, str]) -> str:
    return scripts(parts.get("e", ""), parts.get("sub", ""), parts.get("sup", ""))


def _omml_scripts_before(_: Any, parts: dict[str, str]) -> str:
    return scripts("", parts.get("sub", ""), parts.get("sup", "")) + parts.get("e", "")


def _omml_limit_below(_: Any, parts: dict[str, str]) -> str:
    return scripts(parts.get("e", ""), below=parts.get("lim", ""))


def _omml_limit_above(_: Any, parts: dict[str, str]) -> str:
    return scripts(parts.get("e", ""), above=parts.get("lim", ""))


def _omml_root(_: Any, parts: dict[str, str]) -> str:
    return root(parts.get("e", ""), parts.get("deg", ""))


def _omml_operator(element: Any, parts: dict[str, str]) -> str:
    """A sum, a product or an integral with its limits."""
    sign = _property(element, "naryPr", "chr", "∫")
    limits = scripts(sign, parts.get("sub", ""), parts.get("sup", ""))
    return f"{limits} {parts.get('e', '')}"


_OMML: dict[str, Callable[[Any, dict[str, str]], str]] = {
    "f": _omml_fraction,
    "sSup": _omml_scripts,
    "sSub": _omml_scripts,
    "sSubSup": _omml_scripts,
    "sPre": _omml_scripts_before,
    "limLow": _omml_limit_below,
    "limUpp": _omml_limit_above,
    "rad": _omml_root,
    "nary": _omml_operator,
}


def _delimited(element: Any, parts: list[str]) -> str:
    first = _property(element, "dPr", "begChr", "(")
    last = _property(element, "dPr", "endChr", ")")
    between = _property(element, "dPr", "sepChr", "|")
    return f"{first}{between.join(parts)}{last}"


def _property(element: Any, properties: str, name: str, default: str) -> str:
    value = element.find(f"{M}{properties}/{M}{name}")
    return default if value is None else value.get(f"{M}val") or ""


def text_of_mathml(node: Any, depth: int = 0) -> str:
    """Return the text of a MathML element, or of a part of one, as selectolax parsed it."""
    if node.is_text_node:
        return " ".join((node.text_content or "").split())
    tag = (node.tag or "").lower()
    if not node.is_element_node or tag in ("annotation", "annotation-xml", "mphantom", "maction"):
        return ""
    if depth > MAX_EQUATION_DEPTH:
        return " ".join(node.text().split())
    parts = [
        text_of_mathml(child, depth + 1)
        for child in node.iter(include_text=True)
        if child.is_element_node or (child.text_content or "").strip()
    ]
    if tag == "mtable":
        return matrix(_rows_of_mathml(node, depth))
    if tag == "msqrt":
        return root(joined(parts))
    if tag == "mfenced":
        opened = node.attributes.get("open") or "("
        return f"{opened}{', '.join(parts)}{node.attributes.get('close') or ')'}"
    write = _MATHML.get(tag)
    return joined(parts) if write is None else write(*(*parts, "", "", "")[:3])


def _mathml_fraction(numerator: str, denominator: str, _: str) -> str:
    return fraction(numerator, denominator)


def _mathml_root(inside: str, degree: str, _: str) -> str:
    return root(inside, degree)


def _mathml_above(base: str, above: str, _: str) -> str:
    return scripts(base, above=above)


def _mathml_below(base: str, below: str, _: str) -> str:
    return scripts(base, below=below)


_MATHML: dict[str, Callable[[str, str, str], str]] = {
    "mfrac": _mathml_fraction,
    "mroot": _mathml_root,
    "msup": _mathml_above,
    "mover": _mathml_above,
    "msub": _mathml_below,
    "munder": _mathml_below,
    "msubsup": scripts,
    "munderover": scripts,
}


def _rows_of_mathml(table: Any, depth: int) -> list[list[str]]:
    return [
        [text_of_mathml(cell, depth + 2) for cell in row.iter()]
        for row in table.iter()
        if (row.tag or "").lower() in ("mtr", "mlabeledtr")
    ]
