"""Source code by tree-sitter: each function, class and the like begins with a heading, and lines are pages.

Of languages without a grammar here, lines are pages, and there are no headings.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import FileText, Unreadable, clean
from aveyb_retrieval.documents.readers.characters import decode
from aveyb_retrieval.documents.records import MAX_PAGES, Pages

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Language:
    """A language: the package of its grammar ("": none), the function in it, and the suffixes of its files."""

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
    "function_definition", "function_declaration", "function_item", "method_definition", "method_declaration", "method",
    "singleton_method", "constructor_declaration", "generator_function_declaration",
}  # fmt: skip
_HOLDERS = {
    "class_definition", "class_declaration", "abstract_class_declaration", "class_specifier", "class", "module",
    "struct_specifier", "struct_declaration", "struct_item", "enum_item", "enum_declaration", "trait_item", "impl_item",
    "mod_item", "interface_declaration", "record_declaration", "trait_declaration", "namespace_definition",
    "namespace_declaration", "internal_module", "type_spec",
}  # fmt: skip
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


def read_code(data: bytes, encoding: str | None, language: str) -> FileText:
    """Read a source file; what the grammar cannot parse stays with the definition before it."""
    text = clean(decode(data, encoding))
    lines = text.split("\n")
    if len(lines) > MAX_PAGES:
        raise Unreadable(f"{len(lines):,} lines; at most {MAX_PAGES:,} are read")
    names = dict(_definitions(text.encode(errors="replace"), language, lines))
    parts, starts, position = [f"{_FENCE}{language}\n"], [0], len(_FENCE) + len(language) + 1
    for number, line in enumerate(lines):
        if number:
            starts.append(position)
        before = f"{_FENCE}\n\n# {names[number]}\n\n{_FENCE}{language}\n" if number in names else ""
        parts.append(f"{before}{line}\n")
        position += len(parts[-1])
    return FileText("", "".join([*parts, _FENCE]) if text.strip() else "", Pages(tuple(starts), (), "line"))


def _definitions(source: bytes, language: str, lines: list[str]) -> Iterator[tuple[int, str]]:
    """The first line of each definition, with the comments above it, and its name with those around it."""
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
            if name and _has_body(node):
                yield _first_line(node, lines), ".".join((*around, name))
                around = (*around, name)
        elif node.type not in _AROUND and not around:
            continue
        if node.type not in _FUNCTIONS and len(around) < _MAX_DEPTH:
            waiting += [(child, around) for child in node.children]


def _has_body(node: Any) -> bool:
    return node.end_point[0] > node.start_point[0]


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
    while node.parent is not None and node.parent.type in _AROUND and node.parent.type != "declaration_list":
        node = node.parent
    number: int = node.start_point[0]
    while number > 0 and lines[number - 1].lstrip().startswith(("#", "//", "/*", "*", "///", "@")):
        number -= 1
    return number
