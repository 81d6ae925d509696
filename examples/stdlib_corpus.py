"""Write a corpus of long documents from the docstrings of the running Python's standard library,
without a network.

    python examples/stdlib_corpus.py corpus.jsonl

One document per module: the docstrings of the module, its classes and its functions, each under its
name. The same Python writes the same file. Modules are read with `ast`, never imported, so nothing
in them runs.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = {
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "dist-packages",
}
AT_LEAST = 200  # characters; shorter documents say nothing to search for


def modules() -> Iterator[tuple[str, Path]]:
    """Names and files of the standard library's public Python modules, in order of name."""
    found = []
    for path in LIBRARY.rglob("*.py"):
        parts = path.relative_to(LIBRARY).with_suffix("").parts
        if LEFT_OUT.isdisjoint(parts) and parts[0].split(".")[0] in sys.stdlib_module_names:
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not any(part.startswith("_") for part in name.split(".")):
                found.append((name, path))
    yield from sorted(found)


def sections(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, docstring) of everything in a module that has one, in the order of the source."""
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        name, node = pending.pop(0)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield name, docstring
            children = [
                n
                for n in node.body
                if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            ]
            pending[:0] = [(f"{name}.{child.name}".lstrip("."), child) for child in children]


def document(name: str, path: Path) -> dict[str, object] | None:
    """A module as a document, or None where it has too little to say."""
    found = list(sections(ast.parse(path.read_bytes())))
    text = "\n\n".join(
        f"{name}.{part}\n{docstring}" if part else docstring for part, docstring in found
    )
    if len(text) < AT_LEAST:
        return None
    return {
        "_id": name,
        "title": name,
        "text": text,
        "package": name.split(".")[0],
        "docstrings": len(found),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def main() -> None:
    """Write the corpus to the file that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="file to write, JSON lines")
    out: Path = parser.parse_args().out
    documents = [d for d in (document(name, path) for name, path in modules()) if d]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        "".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents), encoding="utf-8"
    )
    characters = sum(len(str(d["text"])) for d in documents)
    print(f"{out}: {len(documents)} documents, {characters:,} characters")


if __name__ == "__main__":
    main()
