"""Source code and notebooks: code between fences, and headings over definitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval.documents.readers.code import LANGUAGES
from aveyb_retrieval.documents.readers.filetext import Unreadable

if TYPE_CHECKING:
    from tests.documents.conftest import Read

pytest.importorskip("tree_sitter")


SOURCES = {
    "python": (
        (
            "import os\n# why\n@cache\ndef first(a):\n    return 1\n\n\nclass B:\n    def"
            " m(self):\n        pass\n"
        ),
        ["first", "B", "B.m"],
    ),
    "javascript": ("export class A {\n  m() {\n  }\n}\nfunction f() {\n}\n", ["A", "A.m", "f"]),
    "typescript": (
        "interface I {\n a: number\n}\nabstract class C {\n m(): void {\n }\n}\n",
        ["I", "C", "C.m"],
    ),
    "tsx": ("function f() {\n return <a/>\n}\n", ["f"]),
    "java": ("class A {\n /** d */\n void m() {\n }\n}\n", ["A", "A.m"]),
    "go": (
        "package x\n\n// Foo\nfunc Foo() {\n}\n\ntype T struct {\n}\nfunc (t *T) Bar() {\n}\n",
        ["Foo", "T", "Bar"],
    ),
    "rust": (
        "/// doc\npub fn a() {\n}\nimpl Foo {\n  fn b(&self) {\n  }\n}\n",
        ["a", "Foo", "Foo.b"],
    ),
    "c": ("int main(void)\n{\n}\nstruct s {\n int a;\n};\n", ["main", "s"]),
    "cpp": (
        "namespace n {\nclass A {\n  int m() {\n  }\n};\nint A::q() {\n}\n}\n",
        ["n", "n.A", "n.A.m", "n.A::q"],
    ),
    "csharp": ("namespace N {\n class A {\n  void M() {\n  }\n }\n}\n", ["N", "N.A", "N.A.M"]),
    "ruby": ("module M\n class A\n  def x\n   1\n  end\n end\nend\n", ["M", "M.A", "M.A.x"]),
    "php": ("<?php\nfunction a() {\n}\nclass B {\n function c() {\n }\n}\n", ["a", "B", "B.c"]),
    "shell": ("a() {\n echo\n}\n", ["a"]),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_code_is_cut_at_definitions_and_keeps_its_lines(read: Read, language: str) -> None:
    if package := LANGUAGES[language].package:
        pytest.importorskip(package)
        source, names = SOURCES[language]
    else:  # without a grammar there are no headings, and comments are none, either
        source, names = "#comment\nx <- 1\n\ny <- 2\n", []
    found = read(f"a{LANGUAGES[language].suffixes[0]}", source.encode())
    assert [
        line[2:] for line in found.text.split("\n") if line.startswith("# ") and "why" not in line
    ] == names
    lines = [
        line for line in found.text.split("\n") if line and not line.startswith(("~~~~", "# "))
    ]
    assert lines == [line for line in source.split("\n") if line and not line.startswith("# ")]
    assert found.pages is not None
    for number, line in enumerate(source.split("\n"), start=1):
        start = found.pages.starts[number - 1]
        assert (
            line
            in found.text[
                start : found.pages.starts[number] if number < len(found.pages.starts) else None
            ]
        )


def test_notebooks_keep_code_and_what_it_printed(read: Read) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Valves\n", "text"]},
        {"cell_type": "code", "source": "# no heading\nprint(1)", "outputs": [{"text": ["1\n"]},
         {"data": {"image/png": "AAAA" * 100, "text/plain": ["<Figure>"]}}]},
    ]  # fmt: skip
    data = {"nbformat": 4, "metadata": {"kernelspec": {"language": "python"}}, "cells": cells}
    found = read("a.ipynb", json.dumps(data).encode())
    assert (
        found.text == "# Valves\ntext\n\n```python\n# no"
        " heading\nprint(1)\n```\n\n```\n1\n```\n\n```\n<Figure>\n```"
    )
    for bad in (b"{}", b"[]", b"nothing", b'{"cells": [{"source": 5}]}'):
        with pytest.raises(Unreadable, match="not a Jupyter notebook"):
            read("b.ipynb", bad)
