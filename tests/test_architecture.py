"""Imports run one way, from the command line down to the kernels, and files do not import each
other in a circle.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "aveyb_retrieval"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
# A folder may import the folders below it in these lists, and what stands at the top of the
# package.
FLOORS = [
    "kernels",
    "encoder",
    "family",
    "documents",
    "indexes",
    "engines",
    "training",
    "eval",
    "server",
    "integrations",
    "cli",
]
BESIDE = {("eval", "training"), ("training", "eval")}
# The same of the rooms of two folders, and of the files beside them.
ROOMS = {
    "encoder": [
        "progress_bars",
        "model_folders",
        "settings",
        "config",
        "text",
        "network",
        "onnx",
        "languages",
        "embedders",
    ],
    "indexes": [
        "types",
        "progress",
        "encoding",
        "store",
        "model",
        "vectors",
        "nearest",
        "engine",
        "changes",
        "cluster",
        "search",
        "index",
    ],
}
APART = {("search", "changes")}


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports when it runs, also inside its functions."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: a relative import; name the module in full"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return {
        name for name in found if name in MODULES and name not in ("aveyb_retrieval", *packages())
    }


def packages() -> set[str]:
    """Packages of this package: importing one says nothing of what is used."""
    return {name for name, path in MODULES.items() if path.name == "__init__.py"}


@cache
def graph() -> dict[str, set[str]]:
    return {name: imports(path) - {name} for name, path in MODULES.items()}


def folder(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else ""


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_file_imports_only_what_is_below_it(module: str) -> None:
    floor = folder(module)
    if floor == "":
        return  # the door: the package's own names, errors, registration
    for imported in graph()[module]:
        below = folder(imported)
        assert below in ("", floor) or FLOORS.index(below) < FLOORS.index(floor), (
            f"{module} imports {imported}"
        )
        assert (floor, below) not in BESIDE, f"{module} imports {imported}"


def room(module: str) -> str:
    """The room of a file of `encoder` or `indexes`, or the file's own name where it is in none."""
    return module.split(".")[2]


@pytest.mark.parametrize("name", ROOMS)
def test_inside_a_folder_imports_run_one_way_too(name: str) -> None:
    mine, rooms = (
        [module for module in graph() if folder(module) == name and module not in packages()],
        ROOMS[name],
    )
    assert {room(module) for module in mine} == set(rooms)
    for module in mine:
        for imported in graph()[module]:
            if folder(imported) != name or room(imported) == room(module):
                continue
            assert rooms.index(room(imported)) < rooms.index(room(module)), (
                f"{module} imports {imported}"
            )
            assert (room(module), room(imported)) not in APART, f"{module} imports {imported}"


POSIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios"}
POSIX_CALLS = {
    "os.fork",
    "os.getuid",
    "os.killpg",
    "os.mkfifo",
    "os.setsid",
    "select.poll",
    "signal.SIGKILL",
}


def test_only_one_file_asks_for_what_windows_does_not_have() -> None:
    """`make lint` checks types as Windows has them, too; what no system is told apart by is found
    here.
    """
    last = {call.partition(".")[2] for call in POSIX_CALLS}
    for name, path in MODULES.items():
        imported, called = set[str](), set[str]()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Attribute) and node.attr in last:
                called.add(ast.unparse(node))
        assert not called & POSIX_CALLS, name
        assert not imported & POSIX or name == "aveyb_retrieval.system", name


USERS_OF_THE_FAMILY = {"family", "training", "cli"}


def test_the_search_knows_nothing_of_the_family() -> None:
    """The family is built on the encoder; only training and the command line use it."""
    for module, imported in graph().items():
        if folder(module) and folder(module) not in USERS_OF_THE_FAMILY:
            assert not {name for name in imported if folder(name) == "family"}, module
        if folder(module) == "family":
            assert {folder(name) for name in imported} <= {"", "family", "encoder"}, module


def test_no_circle_of_files() -> None:
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
