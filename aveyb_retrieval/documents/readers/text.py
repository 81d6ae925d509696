"""Plain text, Markdown with its front matter, RTF, notebooks, subtitles, calendars; source code by
tree-sitter.
"""

from __future__ import annotations

import html
import importlib
import json
import math
import re
import string
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import (
    FileText,
    Parts,
    Unreadable,
    clean,
    decode,
    one_line,
    shifted,
    whole_words,
)
from aveyb_retrieval.documents.readers.html import read_html
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def read_text(data: bytes, encoding: str | None) -> FileText:
    """Read a plain text."""
    return FileText("", whole_words(decode(data, encoding)))


_RAISED, _LOWERED, _END = (
    "\ue000",
    "\ue001",
    "\ue002",
)  # private characters, in place of RTF's words for it
_RTF_MARKS = {"super": _RAISED, "sub": _LOWERED, "nosupersub": _END, "up": _RAISED, "dn": _LOWERED}
_RTF_RAISED = re.compile(r"\\(super|sub|nosupersub|up|dn)(\d{0,3})(?![a-z0-9-]) ?")
_RTF_GROUP_END = re.compile(f"([{_RAISED}{_LOWERED}][^{{}}{_END}]*)\\}}")
_RTF_SIGNS = re.compile(f"[{_RAISED}-{_END}]")
_RAISED_TEXT = re.compile(
    f"([{_RAISED}{_LOWERED}])(?:([^{_RAISED}-{_END}\n]*){_END}|([-+]?\\d+|\\S))"
)
_RTF_ASIDE = re.compile(
    r"\{(?:\\\*)?\\(?:footnote|annotation|header[lrf]?|footer[lrf]?|shptxt|result)(?![a-z])"
)
_RTF_HIDING = re.compile(r"\\(?:v|deleted)(?![a-z0-9-])")
_RTF_STATES = re.compile(
    r"\\(?P<name>v|deleted|plain)(?P<off>0?)(?![a-z0-9-]) ?|\\.|[{}]", re.DOTALL
)
_RTF_CELL = re.compile(r"\\(?:nest)?cell(?![a-z]) ?")
_RTF_FONTS = re.compile(r"\{\\fonttbl")
_RTF_CODEPAGE = re.compile(r"\\ansicpg\d+")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def read_rtf(data: bytes, encoding: str | None) -> FileText:
    """Read RTF, in `encoding` or cp1252; notes, comments, page headers and footers stand behind the
    text.
    """
    if not data.startswith(b"{\\rtf"):
        raise Unreadable("not an RTF file")
    source, hidden = _without_hidden(data.decode("latin-1").replace("{\\pntext", "{\\listtext"))
    source = _RTF_CELL.sub(" | ", _RTF_RAISED.sub(_marked, source))
    source = _RTF_GROUP_END.sub(rf"\1{_END}}}", source)
    fonts = _RTF_FONTS.search(source)
    codepage = _RTF_CODEPAGE.search(source[:1000])
    of_fonts = source[fonts.start() : _group_end(source, fonts.start())] if fonts else ""
    start = f"{{\\rtf1\\ansi{codepage[0] if codepage else ''}{of_fonts} "
    body, asides, position = [], [], 0
    for found in _RTF_ASIDE.finditer(source):
        if found.start() >= position:
            end = _group_end(source, found.start())
            body.append(source[position : found.start()])
            asides.append(f"{start}{source[found.end() : end]}}}")
            position = end
    texts = [_rtf_text(part, encoding) for part in ("".join([*body, source[position:]]), *asides)]
    told = f"hidden text left out ({plural(hidden, 'place')})" if hidden else ""
    return FileText("", "\n\n".join(dict.fromkeys(filter(None, texts))), None, told)


def _without_hidden(source: str) -> tuple[str, int]:
    """RTF without what is hidden or was deleted with changes tracked, and how many places are
    hidden.
    """
    if not _RTF_HIDING.search(source):
        return source, 0
    parts, states, gone, count, position = [], [frozenset[str]()], frozenset[str](), 0, 0
    for found in _RTF_STATES.finditer(source):
        parts.append("" if gone else source[position : found.start()])
        position, name = found.end(), found["name"]
        if name:
            before, gone = (
                gone,
                (
                    frozenset()
                    if name == "plain"
                    else gone - {name}
                    if found["off"]
                    else gone | {name}
                ),
            )
            count += "v" in gone and "v" not in before
        elif found[0] == "{":
            states.append(gone)
        elif found[0] == "}" and len(states) > 1:
            gone = states.pop()
        parts.append("" if gone and found[0] not in "{}" else found[0])
    return "".join([*parts, source[position:]]), count


def _marked(found: re.Match[str]) -> str:
    return f"{found[0].rstrip()} {_END if found[2] == '0' else _RTF_MARKS[found[1]]}"


def _group_end(source: str, start: int) -> int:
    """The place behind the group of RTF that begins at `start`."""
    depth = 0
    for found in _BRACES.finditer(source, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(source)


def _rtf_text(source: str, encoding: str | None) -> str:
    from striprtf.striprtf import rtf_to_text

    text = rtf_to_text(source, encoding=encoding or "cp1252", errors="replace")
    parts, position = [""], 0
    for found in _RAISED_TEXT.finditer(text):
        parts.append(text[position : found.start()])
        inside = found[2] if found[2] is not None else found[3]
        parts.append(
            shifted(parts[-1] or "".join(parts[-3:]), inside, 1 if found[1] == _RAISED else -1)
        )
        position = found.end()
    text = "".join([*parts, text[position:]])
    return "\n".join(
        line.removesuffix(" | ") for line in clean(_RTF_SIGNS.sub("", text)).split("\n")
    ).strip()


def read_notebook(data: bytes, encoding: str | None) -> FileText:
    """Read a notebook, without pictures and other outputs that are no text."""
    try:
        notebook = json.loads(decode(data, encoding))
        language = str(notebook.get("metadata", {}).get("kernelspec", {}).get("language", ""))
        texts = [text for cell in notebook["cells"] for text in _cell(cell, language)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(
            f"not a Jupyter notebook of format 4 ({type(error).__name__}: {error})"
        ) from None
    return FileText("", clean("\n\n".join(filter(str.strip, texts))))


def _cell(cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _joined(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif source.strip():
        yield f"```{language}\n{source}\n```"
    for output in cell.get("outputs", ()):
        shown = output.get("data", {})
        texts = (
            output.get("text"),
            shown.get("text/plain"),
            output.get("evalue"),
        )  # the last: of an error
        text = next((text for text in map(_joined, texts) if text.strip()), "")
        if text:
            yield f"```\n{text.rstrip()}\n```"
        elif page := _joined(shown.get("text/html")):
            yield read_html(page.encode("utf-8", "replace"), None, declared="utf-8").text
        else:
            yield _joined(shown.get("text/markdown"))


def _joined(lines: Any) -> str:
    return lines if isinstance(lines, str) else "".join(map(str, lines or ()))


_TIMES = re.compile(r"\s*(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,]\d{1,3}[ \t]+-->")
_VOICE = re.compile(r"<v(?:\.[^ \t<>]*)?[ \t]+([^<>]+)>")
_MARKS = re.compile(r"</?[A-Za-z][^<>]*>|<\d[\d:.]*>|</>|\{\\[^{}]*\}")
_ASIDE = re.compile(r"\s*(?:NOTE|STYLE|REGION)\b")
_SENTENCE_END = (".", "!", "?", "…", "。", "！", "？")  # stops of other scripts  # noqa: RUF001


def read_subtitles(data: bytes, encoding: str | None, longest: int) -> FileText:
    """Read the cues of a transcript; those of one sentence become one paragraph."""
    lines = clean(decode(data, encoding)).split("\n")
    times = {number: found for number, line in enumerate(lines) if (found := _TIMES.match(line))}
    if not times:
        raise Unreadable("no cues with times, as SRT and WebVTT files have them")
    parts, is_vtt = Parts("time", longest), lines[0].startswith("WEBVTT")
    for cue, ((start, found), end) in enumerate(
        zip(times.items(), [*list(times)[1:], len(lines)], strict=True), 2
    ):
        label = f"{int(found[1] or 0)}:{found[2]:>02}:{found[3]}"
        said = _without_asides(lines[start + 1 : _end_of_cue(lines, start + 1, end, cue)])
        words = " ".join(_MARKS.sub("", _VOICE.sub(r"\1: ", " ".join(said))).split())
        if is_vtt or "&" in words:
            words = " ".join(html.unescape(words).split())
        if words:
            parts.add(words, label, end="\n" if words.endswith(_SENTENCE_END) else " ")
    return parts.text("")


def _end_of_cue(lines: list[str], start: int, end: int, following: int) -> int:
    """Where a cue ends before the times in line `end`: in front of the number or the name of the
    following cue.
    """
    if end == len(lines):
        return end
    name = next((number for number in range(end - 1, start - 1, -1) if lines[number].strip()), None)
    if name is None:
        return end
    counts = lines[name].strip() == str(following) or (
        lines[name].strip().isdigit() and name == end - 1
    )
    return (
        name
        if counts or (name == end - 1 and name > start and not lines[name - 1].strip())
        else end
    )


def _without_asides(lines: list[str]) -> Iterator[str]:
    """Lines without the blocks of notes and styles that follow a cue."""
    aside = False
    for number, line in enumerate(lines):
        if not line.strip():
            aside = False
        elif number and not lines[number - 1].strip() and _ASIDE.match(line):
            aside = True
        elif not aside:
            yield line


_ICS_FOLD = re.compile(r"\n[ \t]")
_ICS_FIELD = re.compile(r"(?P<name>[A-Z]+)(?:;(?P<options>(?:\"[^\"]*\"|[^\":])*))?:(?P<value>.*)")
_ICS_ESCAPE = re.compile(r"\\([\\;,nN])")
_ICS_SHOWN = {
    "SUMMARY": "",
    "DTSTART": "Start: ",
    "DTEND": "End: ",
    "DUE": "Due: ",
    "LOCATION": "Location: ",
    "ORGANIZER": "Organizer: ",
    "ATTENDEE": "Attendee: ",
    "STATUS": "Status: ",
    "CATEGORIES": "Categories: ",
    "URL": "Address: ",
    "RRULE": "Repeats: ",
    "DESCRIPTION": "",
    "COMMENT": "",
    "CONTACT": "Contact: ",
}
_ICS_TIMES = ("DTSTART", "DTEND", "DUE", "RRULE")
_ICS_TIME = re.compile(r"\b(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)?(Z?))?\b")
_ICS_ZONE = re.compile(r"TZID=\"?/?([^\";:]+)")


def read_calendar(data: bytes, encoding: str | None) -> FileText:
    """Read a calendar (RFC 5545): of each event the title as a heading, times, place, people and
    description.
    """
    text = clean(decode(data, encoding))
    if "BEGIN:VCALENDAR" not in text:
        raise Unreadable("not a calendar of RFC 5545")
    lines: list[str] = []
    first, skipped = (
        0,
        "",
    )  # line of an event, over which its title goes, wherever that stands; rules of a time zone
    for line in _ICS_FOLD.sub("", text).split("\n"):
        found = _ICS_FIELD.match(line)
        if found is None:
            continue
        name, value = found["name"], found["value"].strip()
        if name in ("BEGIN", "END"):
            skipped = value if name == "BEGIN" and value in ("VTIMEZONE", "VALARM") else skipped
            skipped = "" if name == "END" and value == skipped else skipped
            lines.append("")
            first = len(lines) if name == "BEGIN" and not skipped else first
        elif name in _ICS_SHOWN and not skipped and value:
            who = re.search(r"CN=(\"[^\"]*\"|[^;:]*)", found["options"] or "")
            value = _ICS_ESCAPE.sub(
                lambda escaped: {"n": "\n", "N": "\n"}.get(escaped[1], escaped[1]), value
            )
            named = (
                who[1].strip('"') + f" ({value.removeprefix('mailto:')})"
                if who and who[1]
                else value
            )
            if name in _ICS_TIMES:
                named = _ics_time(name, value, found["options"] or "")
            if name == "SUMMARY":
                lines.insert(first, f"# {one_line(named)}")
            else:
                lines.append(f"{_ICS_SHOWN[name]}{named}")
    title = next((line[2:] for line in lines if line.startswith("# ")), "")
    return FileText(title, re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip())


def _ics_time(name: str, value: str, options: str) -> str:
    """Times to be read, with their zone; of a day on which an event ends the last one, where RFC
    5545 has the next.
    """
    if name == "DTEND" and "T" not in value:
        with suppress(ValueError, OverflowError):
            value = (date.fromisoformat(value) - timedelta(days=1)).strftime("%Y%m%d")
    zone = _ICS_ZONE.search(options)
    return _ICS_TIME.sub(_shown_time, value) + (f" ({zone[1]})" if zone else "")


def _shown_time(found: re.Match[str]) -> str:
    year, month, day, hour, minute, second, is_utc = found.groups(default="")
    clock = f" {hour}:{minute}" + (f":{second}" if int(second or 0) else "") if hour else ""
    return f"{year}-{month}-{day}{clock}{' UTC' if is_utc else ''}"


_YAML = re.compile(
    r"---[ \t]*\r?\n(?P<inside>.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_TOML = re.compile(
    r"\+\+\+[ \t]*\r?\n(?P<inside>.*?)^\+\+\+[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_HEADING = re.compile(r"\s*#{1,6}[ \t]+(?P<title>[^\s#][^\n]*)")
_LONGEST = 1 << 19  # characters of front matter
_DEEPEST = 20  # levels of what it holds


def read_markdown(data: bytes, encoding: str | None) -> FileText:
    """Read Markdown, titled by front matter (other text between rules stays) or the heading that it
    begins with.
    """
    text = whole_words(decode(data, encoding))
    metadata: dict[str, Any] = {}
    for pattern, parse in ((_YAML, _yaml), (_TOML, tomllib.loads)):
        front = pattern.match(text[: _LONGEST + 8])
        values = _values(parse, front["inside"].replace("\r\n", "\n")) if front else None
        if front and values is not None:
            text, metadata = text[front.end() :].lstrip(), values
            break
    title = str(metadata.pop("title", None) or "")
    heading = _HEADING.match(text)
    if not title and heading:
        title = heading["title"].rstrip(f"{string.whitespace}#")
    return FileText(one_line(title), text, metadata=metadata)


def _values(parse: Callable[[str], object], source: str) -> dict[str, Any] | None:
    """Names and values as JSON can hold them; None of another value, or one that is nested too
    deeply.
    """
    import yaml

    try:
        values = parse(source)
        return _plain(values) if isinstance(values, dict) else None
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
        OverflowError,
    ):  # the others: TOML, dates, depth, numbers
        return None


def _yaml(source: str) -> object:
    import yaml

    return yaml.load(source, _safe_loader()) if source.strip() else {}  # a safe one  # noqa: S506


@cache
def _safe_loader() -> Any:
    """PyYAML's safe loader without references to what stands before: a few of them write a text of
    gigabytes.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("a reference to what stands before")
            return super().compose_node(parent, index)

    return Loader


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        return {str(name): _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    fits = (
        math.isfinite(value)
        if isinstance(value, float)
        else value is None or isinstance(value, bool)
    )
    return (
        value if fits or (isinstance(value, int) and -(1 << 63) <= value < 1 << 64) else str(value)
    )


@dataclass(frozen=True)
class Language:
    """A language: the package of its grammar ("": none), the function in it, and the suffixes of
    its files.
    """

    package: str
    suffixes: tuple[str, ...]
    function: str = "language"


LANGUAGES = {
    "python": Language("tree_sitter_python", (".py", ".pyi")),
    "javascript": Language("tree_sitter_javascript", (".js", ".mjs", ".cjs", ".jsx")),
    "typescript": Language("tree_sitter_typescript", (".ts", ".mts"), "language_typescript"),
    "tsx": Language("tree_sitter_typescript", (".tsx",), "language_tsx"),
    "java": Language("tree_sitter_java", (".java",)),
    "go": Language("tree_sitter_go", (".go",)),
    "rust": Language("tree_sitter_rust", (".rs",)),
    "c": Language("tree_sitter_c", (".c", ".h")),
    "cpp": Language("tree_sitter_cpp", (".cpp", ".cc", ".cxx", ".hpp", ".hh")),
    "csharp": Language("tree_sitter_c_sharp", (".cs",)),
    "ruby": Language("tree_sitter_ruby", (".rb",)),
    "php": Language("tree_sitter_php", (".php",), "language_php"),
    "shell": Language("tree_sitter_bash", (".sh", ".bash")),
    "perl": Language("", (".pl", ".pm")),
    "r": Language("", (".r",)),
    "lua": Language("", (".lua",)),
    "kotlin": Language("", (".kt", ".kts")),
    "swift": Language("", (".swift",)),
    "scala": Language("", (".scala",)),
    "julia": Language("", (".jl",)),
    "sql": Language("", (".sql",)),
}
# What has a name and a body, in the grammars of these languages.
_FUNCTIONS = {
    "function_definition",
    "function_declaration",
    "function_item",
    "method_definition",
    "method_declaration",
    "method",
    "singleton_method",
    "constructor_declaration",
    "generator_function_declaration",
}
_HOLDERS = {
    "class_definition",
    "class_declaration",
    "abstract_class_declaration",
    "class_specifier",
    "class",
    "module",
    "struct_specifier",
    "struct_declaration",
    "struct_item",
    "enum_item",
    "enum_declaration",
    "trait_item",
    "impl_item",
    "mod_item",
    "interface_declaration",
    "record_declaration",
    "trait_declaration",
    "namespace_definition",
    "namespace_declaration",
    "internal_module",
    "type_spec",
}
_AROUND = {
    "type_declaration",
    "decorated_definition",
    "export_statement",
    "template_declaration",
    "declaration_list",
    "linkage_specification",
}
_MAX_DEPTH = 8  # of definitions in definitions
_FENCE = "~~~~"


def read_code(data: bytes, encoding: str | None, longest: int, language: str) -> FileText:
    """Read a source file; what the grammar cannot parse stays with the definition before it."""
    text = clean(decode(data, encoding))
    if not text.strip():
        return FileText("", "")
    lines = text.split("\n")
    names = dict(_definitions(text.encode(errors="replace"), language, lines))
    parts, before = Parts("line", longest), f"{_FENCE}{language}\n"
    for number, line in enumerate(lines):
        before += (
            f"{_FENCE}\n\n# {names[number]}\n\n{_FENCE}{language}\n" if number in names else ""
        )
        parts.add(f"{before}{line}\n", end=_FENCE if number == len(lines) - 1 else "")
        before = ""
    return parts.text("")


def _definitions(source: bytes, language: str, lines: list[str]) -> Iterator[tuple[int, str]]:
    """The first line of each definition, with the comments above it, and its name with those around
    it.
    """
    known = LANGUAGES[language]
    if not known.package:
        return
    import tree_sitter

    grammar = getattr(importlib.import_module(known.package), known.function)()
    tree = tree_sitter.Parser(tree_sitter.Language(grammar)).parse(source)
    waiting: list[tuple[Any, tuple[str, ...]]] = [(child, ()) for child in tree.root_node.children]
    while waiting:
        node, around = waiting.pop()
        if node.type in _FUNCTIONS or node.type in _HOLDERS:
            name = _name(node)
            if name and node.end_point[0] > node.start_point[0]:  # it has a body
                yield _first_line(node, lines), ".".join((*around, name))
                around = (*around, name)
        elif node.type not in _AROUND and not around:
            continue
        if node.type not in _FUNCTIONS and len(around) < _MAX_DEPTH:
            waiting += [(child, around) for child in node.children]


def _name(node: Any) -> str:
    """The name of a definition; in C and C++ it stands inside of a declarator."""
    found = node.child_by_field_name("name")
    inner = node.child_by_field_name("declarator")
    while found is None and inner is not None:
        below = inner.child_by_field_name("declarator")
        if below is None:
            found = inner
        inner = below
    found = found or node.child_by_field_name("type")  # what an `impl` of Rust is for
    return "" if found is None else found.text.decode(errors="replace").split("\n")[0][:200]


def _first_line(node: Any, lines: list[str]) -> int:
    while (
        node.parent is not None
        and node.parent.type in _AROUND
        and node.parent.type != "declaration_list"
    ):
        node = node.parent
    number: int = node.start_point[0]
    while number > 0 and lines[number - 1].lstrip().startswith(("#", "//", "/*", "*", "///", "@")):
        number -= 1
    return number
