"""Source code: definitions by tree-sitter are headings, lines are pages."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Parts,
    clean,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits


@dataclass(frozen=True)
class ProgrammingLanguage:
    """A language: the package of its grammar ("": none), the function in it, and the suffixes of
    its files.
    """

    package: str
    suffixes: tuple[str, ...]
    function: str = "language"


LANGUAGES = {
    "python": ProgrammingLanguage("tree_sitter_python", (".py", ".pyi")),
    "javascript": ProgrammingLanguage("tree_sitter_javascript", (".js", ".mjs", ".cjs", ".jsx")),
    "typescript": ProgrammingLanguage(
        "tree_sitter_typescript", (".ts", ".mts"), "language_typescript"
    ),
    "tsx": ProgrammingLanguage("tree_sitter_typescript", (".tsx",), "language_tsx"),
    "java": ProgrammingLanguage("tree_sitter_java", (".java",)),
    "go": ProgrammingLanguage("tree_sitter_go", (".go",)),
    "rust": ProgrammingLanguage("tree_sitter_rust", (".rs",)),
    "c": ProgrammingLanguage("tree_sitter_c", (".c", ".h")),
    "cpp": ProgrammingLanguage("tree_sitter_cpp", (".cpp", ".cc", ".cxx", ".hpp", ".hh")),
    "csharp": ProgrammingLanguage("tree_sitter_c_sharp", (".cs",)),
    "ruby": ProgrammingLanguage("tree_sitter_ruby", (".rb",)),
    "php": ProgrammingLanguage("tree_sitter_php", (".php",), "language_php"),
    "shell": ProgrammingLanguage("tree_sitter_bash", (".sh", ".bash")),
    "perl": ProgrammingLanguage("", (".pl", ".pm")),
    "r": ProgrammingLanguage("", (".r",)),
    "lua": ProgrammingLanguage("", (".lua",)),
    "kotlin": ProgrammingLanguage("", (".kt", ".kts")),
    "swift": ProgrammingLanguage("", (".swift",)),
    "scala": ProgrammingLanguage("", (".scala",)),
    "julia": ProgrammingLanguage("", (".jl",)),
    "sql": ProgrammingLanguage("", (".sql",)),
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


def read_code(data: bytes, limits: Limits, language: str) -> FileText:
    """Read a source file; what the grammar cannot parse stays with the definition before it."""
    text = clean(decode(data, limits.encoding))
    if not text.strip():
        return FileText("", "")
    lines = text.split("\n")
    names = dict(_definitions(text.encode(errors="replace"), language, lines))
    parts, before = Parts("line", limits), f"{_FENCE}{language}\n"
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
    rules = LANGUAGES[language]
    if not rules.package:
        return
    import tree_sitter

    grammar = getattr(importlib.import_module(rules.package), rules.function)()
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
    named = node.child_by_field_name("name")
    inner = node.child_by_field_name("declarator")
    while named is None and inner is not None:
        below = inner.child_by_field_name("declarator")
        if below is None:
            named = inner
        inner = below
    named = named or node.child_by_field_name("type")  # what an `impl` of Rust is for
    return "" if named is None else named.text.decode(errors="replace").split("\n")[0][:200]


def _first_line(node: Any, lines: list[str]) -> int:
    while (
        node.parent is not None
        and node.parent.type in _AROUND
        and node.parent.type != "declaration_list"
    ):
        node = node.parent
    number: int = node.start_point[0]
    while number > 0 and lines[number - 1].lstrip().startswith(("#", "//", "/*", "*", "@")):
        number -= 1
    return number
