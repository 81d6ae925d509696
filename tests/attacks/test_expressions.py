"""No regular expression of the package takes more than about linear time, whatever the text."""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections import defaultdict, deque
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import regex

import aveyb_retrieval

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(aveyb_retrieval.__path__[0])
SOURCES = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
SMALL, FACTOR = 250, 4
ENOUGH = 0.001  # seconds: what the larger text may take without being compared
WORST = 8.0  # times as long for a text FACTOR times as long; 16 would be quadratic

# Expressions that only ever see a text of bounded length.
BOUNDED = {
    "aveyb_retrieval.encoder.network.tensors._ENCODER_NAME": "the name of a tensor",
}
# Expressions that are put together where they are used: what may be in them, and what they are
# given.
MADE = {
    "documents/folders.py:compile": (
        "the parts of `path_fields` between slashes, for paths that the system has"
    ),
    "indexes/store/expressions.py:compile": (
        "what the caller of `grep` or a filter asks for: stopped by `regex` after `SECONDS`"
    ),
    "server/search.py:fullmatch": "a cursor: digits of bounded numbers",
}


def named_expressions() -> Iterator[tuple[str, Any]]:
    """Every compiled expression that a module of the package holds, by its name; none is made
    without `compile`.
    """
    for path in PACKAGE.rglob("*.py"):
        if "compile(" not in path.read_text(encoding="utf-8"):
            continue
        module = ".".join(("aveyb_retrieval", *path.relative_to(PACKAGE).with_suffix("").parts))
        try:
            loaded = importlib.import_module(module.removesuffix(".__init__"))
        except ImportError:  # of an extra that is not installed
            continue
        for name, value in vars(loaded).items():
            if isinstance(value, (re.Pattern, regex.Pattern)):
                yield f"{module}.{name}", value


@cache
def calls() -> list[tuple[str, str, ast.expr]]:
    """Every call of `re` or `regex` inside a function: its file, the method, and the expression."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        every = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        functions = (node for node in every if isinstance(node, ast.FunctionDef))
        for node in {node: None for function in functions for node in ast.walk(function)}:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in ("re", "regex")
                and node.func.attr != "escape"
            ):
                found.append((path.relative_to(PACKAGE).as_posix(), node.func.attr, node.args[0]))
    return found


def expressions() -> Iterator[tuple[str, Any, list[str]]]:
    """Every expression of the package that may see a text of any length, and how it is used."""
    for name, value in named_expressions():
        if name not in BOUNDED:
            yield name, value, uses(name)
    for path, method, pattern in calls():
        if isinstance(pattern, ast.Constant):
            yield f"{path}:{pattern.value}", re.compile(pattern.value), [method]


@pytest.mark.needs("torch")
def test_every_expression_is_timed_or_said_to_be_bounded() -> None:
    assert set(BOUNDED) <= {name for name, _ in named_expressions()}
    made = {
        f"{path}:{method}"
        for path, method, pattern in calls()
        if not isinstance(pattern, ast.Constant)
    }
    assert made == set(MADE)


def pieces(pattern: Any) -> list[str]:
    """Short texts that an expression may begin with and never get through: its own literals, and
    what repeats.
    """
    source = (
        pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    )
    literals = re.findall(r"[A-Za-z<?+§#-]{2,}", source)
    return [*" \n\ta1#-=,)|", "\u4e00", "a ", "a\n", "1.", "i.", ", ", "# ", "\n ", *literals[:12]]


def hostile(pattern: Any, length: int) -> Iterator[Any]:
    found = pieces(pattern)
    heads = ["", "# ", "a", "\n", *(word for word in found if len(word) > 2)]
    heads += [
        head for head in ("---\n", "+++\n", "title: a", "<meta ") if head[0] in str(pattern.pattern)
    ]
    for head in heads:
        for piece in found:
            for tail in ("", "a\x00"):
                text = head + piece * (length // len(piece)) + tail
                yield text if isinstance(pattern.pattern, str) else text.encode("utf-8")


@cache
def uses_by_name() -> dict[str, set[str]]:
    """How the package uses what has a method of expressions, by its name."""
    use = re.compile(r"\b(\w+)\.(match|fullmatch|search|finditer|findall|sub|split)\(")
    found = defaultdict[str, set[str]](set)
    for source in SOURCES:
        for name, method in use.findall(source):
            found[name].add(method)
    return found


def uses(name: str) -> list[str]:
    """How the package uses an expression: one that is only matched at a text's beginning is not
    searched for here.
    """
    return sorted(uses_by_name()[name.rpartition(".")[2]]) or ["finditer"]


def seconds(pattern: Any, ways: list[str], text: Any) -> float:
    began = time.process_time()
    for way in ways:
        if way == "sub":
            pattern.sub(text[:0], text)
        elif way == "finditer":
            deque(pattern.finditer(text), maxlen=0)
        else:
            getattr(pattern, way)(text)
    return time.process_time() - began


@pytest.mark.needs("torch")
def test_every_expression_takes_linear_time() -> None:
    """One test: what holds expressions is imported where it runs, not in every process that looks
    for tests.
    """
    slow = []
    for name, pattern, ways in expressions():
        for small, large in zip(
            hostile(pattern, SMALL), hostile(pattern, SMALL * FACTOR), strict=True
        ):
            if seconds(pattern, ways, large) <= ENOUGH:
                continue
            for _ in range(3):  # so short a time may be wrong once
                before = min(seconds(pattern, ways, small) for _ in range(3))
                after = min(seconds(pattern, ways, large) for _ in range(3))
                if after <= max(ENOUGH, WORST * before):
                    break
            else:
                slow.append(f"{name}: {before:.4f} s, then {after:.4f} s for {large[:40]!r}...")
                break
    assert slow == []
