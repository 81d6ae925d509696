"""The documentation is true: Python examples run, commands and options exist, the command reference
is current.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import pytest
from click.testing import CliRunner

from aveyb_retrieval import Embedder
from aveyb_retrieval.cli import eval as eval_cli
from aveyb_retrieval.cli import index, train
from aveyb_retrieval.cli import mcp as mcp_cli
from aveyb_retrieval.cli import serve as serve_cli
from aveyb_retrieval.cli.help import sections
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.onnx.export import export_onnx
from tests.jsonl import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).parents[1]
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "benchmarks/notes/*.md",
    "recipes/*/README.md",
    "aveyb_retrieval/models/*/README.md",
)
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))
COMMANDS: dict[str, click.Command] = {
    "aveyb-index": index.main,
    "aveyb-serve": serve_cli.main,
    "aveyb-mcp": mcp_cli.main,
    "aveyb-eval": eval_cli.main,
    "aveyb-train": train.main,
}
NEEDS = {
    "langchain": "langchain_core",
    "llama-index": "llama_index.core",
    "haystack": "haystack",
    "mcp": "mcp",
}
CORPUS = [
    {
        "_id": "a",
        "title": "Contract",
        "text": "Either party may end the contract with three months' notice.",
        "year": 2021,
    },
    {
        "_id": "b",
        "title": "Manual",
        "text": "Close the valve before you open the filter housing.",
        "year": 2019,
    },
]


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a page in one language, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start(1)].count("\n") + 1, match.group(1)) for match in found]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_examples_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.parent.name == "integrations":
        pytest.importorskip(
            NEEDS[page.stem], reason=f"{NEEDS[page.stem]} is not installed: make test-integrations"
        )
        # LlamaIndex brings the vocabulary that it counts with
        monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    write_jsonl(tmp_path / "corpus.jsonl", CORPUS)
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "model").symlink_to(DEFAULT_MODEL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    for line, code in blocks(page, "python"):
        # so that a traceback names the page's line
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def test_the_javascript_example_gives_the_vectors_of_the_embedder(tmp_path: Path) -> None:
    packages = ROOT / "node_modules"
    if shutil.which("node") is None or not (packages / "onnxruntime-node").is_dir():
        pytest.skip("no Node.js with npm install onnxruntime-node @huggingface/tokenizers")
    ((_, code),) = blocks(ROOT / "docs" / "onnx.md", "javascript")
    (tmp_path / "example.mjs").write_text(code)
    (tmp_path / "node_modules").symlink_to(packages)
    questions = ["which notice period applies?", "Where is NASA?"]
    shutil.copytree(DEFAULT_MODEL, tmp_path / "model")
    export_onnx(tmp_path / "model", precision="float32")
    command = ["node", str(tmp_path / "example.mjs"), str(tmp_path / "model"), *questions]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        json.loads(done.stdout),
        Embedder.load(precision="float32").encode_queries(questions),
        atol=1e-3,
    )


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "cli.md"], ids=name)
def test_every_command_and_example_is_in_a_block_that_is_tested(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"^ *```(\w+)$", text, re.MULTILINE)) <= {
        "python",
        "sh",
        "json",
        "text",
        "toml",
        "javascript",
    }
    assert re.findall(rf"^ +(?:{'|'.join(COMMANDS)}) .*", text, re.MULTILINE) == []


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every call of our commands in the shell blocks of the pages, with where it is."""
    for page in PAGES:
        for line, code in blocks(page, "sh"):
            for statement in code.replace("\\\n", " ").splitlines():
                words = shlex.split(statement, comments=True)
                if "aveyb_retrieval.cli.train" in words:
                    words = ["aveyb-train", *words[words.index("aveyb_retrieval.cli.train") + 1 :]]
                if words and words[0] in COMMANDS:
                    yield f"{name(page)}, block at line {line}", words


def test_commands_of_the_pages_and_their_options_exist() -> None:
    found = list(command_lines())
    assert len(found) > 10
    for where, (program, *arguments) in found:
        command: click.Command = COMMANDS[program]
        if isinstance(command, click.Group):
            if program == "aveyb-mcp" and arguments[0] not in command.commands:
                arguments.insert(0, "serve")  # which need not be named
            subcommand = arguments.pop(0)
            assert subcommand in command.commands, f"{where}: {program} has no command {subcommand}"
            command = command.commands[subcommand]
        context = click.Context(command, **command.context_settings)
        try:
            command.make_parser(context).parse_args(arguments)
        except click.UsageError as error:
            pytest.fail(f"{where}: {program} {command.name}: {error.format_message()}")


@pytest.mark.parametrize(
    "module", [eval_cli, index, mcp_cli, serve_cli, train], ids=lambda m: m.__name__
)
def test_every_program_also_runs_as_a_module(module: ModuleType) -> None:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert source.endswith('\n\nif __name__ == "__main__":\n    main()\n')  # torchrun needs it


EVERY_COMMAND = COMMANDS | {
    f"{program} {subcommand}": command
    for program, group in COMMANDS.items()
    if isinstance(group, click.Group)
    for subcommand, command in group.commands.items()
}


@pytest.mark.parametrize("command", EVERY_COMMAND.values(), ids=EVERY_COMMAND.keys())
def test_every_command_and_option_has_help(command: click.Command) -> None:
    assert command.help
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [option.opts[0] for option in options if not option.help] == []


LEAVES = {
    name: command for name, command in EVERY_COMMAND.items() if not isinstance(command, click.Group)
}


@pytest.mark.parametrize("named", LEAVES)
def test_the_help_of_a_command_ends_with_examples_of_it(named: str) -> None:
    shown = CliRunner().invoke(LEAVES[named], ["--help"]).output
    _, _, end = shown.partition("Examples:\n")
    program, *subcommand = named.split()
    assert end
    for line in end.splitlines():
        words = line.split()
        assert words[0] == program
        assert subcommand == ["serve"] or words[1 : 1 + len(subcommand)] == subcommand


GROUPS = {
    name: command for name, command in EVERY_COMMAND.items() if isinstance(command, click.Group)
}


@pytest.mark.parametrize("named", GROUPS)
def test_the_help_of_a_group_lists_its_commands(named: str) -> None:
    group = GROUPS[named]
    shown = CliRunner().invoke(group, ["--help"]).output
    listed = shown.partition("\nCommands:\n")[2].splitlines()
    assert {line.split()[0] for line in listed if re.match(r"  \S", line)} == set(group.commands)


@pytest.mark.parametrize("named", LEAVES)
def test_long_help_is_in_sections_that_hold_every_option_once(named: str) -> None:
    command = LEAVES[named]
    by_section = sections(command)
    options = [param for param in command.params if isinstance(param, click.Option)]
    listed = [option for members in by_section.values() for option in members]
    assert sorted(map(id, listed)) == sorted(map(id, options))
    assert max(map(len, by_section.values())) <= 20
    if named == "aveyb-index build":
        assert {"Corpus", "Passages and vectors", "Words", "Model"} <= set(by_section)
        shown = CliRunner().invoke(command, ["--help"]).output
        assert all(f"\n{section}:\n" in shown for section in by_section)


@pytest.mark.parametrize("script", ["make_cli.py", "make_walks.py"])
def test_what_is_generated_is_current(script: str) -> None:
    done = subprocess.run(
        [sys.executable, f"docs/{script}", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(
        r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")
    )
    assert [target for target in targets if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site name them."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def lost_anchors(page: Path) -> list[str]:
    """The links of a page to a heading that does not exist."""
    links = re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    return [
        f"{target}#{anchor}"
        for target, anchor in links
        if anchor not in anchors(page.parent / target if target else page)
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    assert lost_anchors(page) == []


def test_a_link_to_a_heading_that_does_not_exist_is_lost(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Who may `ask`, and when?\n```sh\n# a comment\n```\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# Here\n[1](b.md#who-may-ask-and-when) [2](b.md#a-comment) [3](#here) [4](#there)\n"
    )
    assert lost_anchors(page) == ["b.md#a-comment", "#there"]


# a path in backticks: folders, a name, and one of these endings
PATH = re.compile(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|md|sh|json|toml|yaml|svg|png))`")
# folders that the reader of a page has, not the project
OF_READERS = ("runs/", "my-", "handbook/", "contracts/", "wiki/", "reports/", "path/")
# a file of Python in a docstring; `.py` alone is a kind of file
FILE = re.compile(r"(?<![\w./-])`?((?:[\w-]+/)*\w+\.py)\b")
MODULE = re.compile(r"`(aveyb_retrieval(?:\.\w+)+)`")
SOURCES = sorted(
    path
    for folder in ("aveyb_retrieval", "benchmarks", "docs", "examples", "recipes", "tests")
    for path in (ROOT / folder).rglob("*.py")
)


def lost_paths(text: str, *bases: Path) -> list[str]:
    """The paths in backticks that exist from none of these folders."""
    return [
        path
        for path in PATH.findall(text)
        if not path.startswith(OF_READERS) and not any((base / path).exists() for base in bases)
    ]


# which names what was there once
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert lost_paths(text, ROOT, ROOT / "aveyb_retrieval", page.parent) == []


def test_a_path_that_does_not_exist_is_lost() -> None:
    text = "`kernels/enrich.py` and `kernels/mixing.py`, `runs/mlm/config.json`, kernels/no.py"
    assert lost_paths(text, ROOT, ROOT / "aveyb_retrieval") == ["kernels/enrich.py"]


def docstrings(source: Path) -> Iterator[str]:
    """Every docstring of a file; none of one that names no file and no module."""
    text = source.read_text(encoding="utf-8")
    if not (FILE.search(text) or MODULE.search(text)):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def names_module(module: str) -> bool:
    """Whether this is a module of the package, or what one of them holds."""
    path = ROOT / module.replace(".", "/")
    if path.with_suffix(".py").is_file() or path.is_dir():
        return True
    owner = path.parent.with_suffix(".py")
    holder = owner if owner.is_file() else path.parent / "__init__.py"
    return holder.is_file() and path.name in holder.read_text(encoding="utf-8")


def test_files_and_modules_that_docstrings_name_exist() -> None:
    lost = []
    for source in SOURCES:
        bases = (source.parent, source.parent.parent, ROOT / "aveyb_retrieval", ROOT)
        for text in docstrings(source):
            files = (file for file in FILE.findall(text))
            lost += [
                f"{source.relative_to(ROOT)}: {file}"
                for file in files
                if not any((base / file).exists() for base in bases)
            ]
            lost += [
                f"{source.relative_to(ROOT)}: {module}"
                for module in MODULE.findall(text)
                if not names_module(module)
            ]
    assert lost == []


def test_a_module_that_does_not_exist_is_not_named() -> None:
    assert names_module("aveyb_retrieval.encoder.network.layers")
    assert names_module("aveyb_retrieval.encoder.network.layers.AveyBLayer")
    assert names_module("aveyb_retrieval.encoder")
    assert not names_module("aveyb_retrieval.encoder.network.heading")
    assert not names_module("aveyb_retrieval.encoder.network.layers.NoLayer")
