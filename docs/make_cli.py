"""Write docs/cli.md from the commands themselves: `python docs/make_cli.py`, or `--check` to
compare only.

The page does not depend on the terminal or on click's version: everything is formatted here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from aveyb_retrieval.cli import eval as eval_cli
from aveyb_retrieval.cli import index, train
from aveyb_retrieval.cli import mcp as mcp_cli
from aveyb_retrieval.cli import serve as serve_cli
from aveyb_retrieval.cli.help import sections

PAGE = Path(__file__).with_name("cli.md")
COMMANDS = {
    "aveyb-index": index.main,
    "aveyb-serve": serve_cli.main,
    "aveyb-mcp": mcp_cli.main,
    "aveyb-eval": eval_cli.main,
    "aveyb-train": train.main,
}
INTRODUCTION = """\
# Command line

Generated from the commands by `python docs/make_cli.py`; do not edit. Every command prints the same with `--help`.

Exit codes: 0 for success; 1 if a command ran and found something to report: damage that remains (`verify`), files that
were [left out](files.md#what-is-left-out) (`build`, `add`, `upsert`, `sync`), a false quotation (`ask`, `check`), or no
match (`grep`); 2 for wrong arguments or bad input, with a message that says what is wrong, where, and what to do; 130
for a command that was interrupted and can be continued.
"""  # noqa: E501


def commands(name: str, command: click.Command) -> list[tuple[str, click.Command]]:
    """List a command and its subcommands with their full names, in alphabetical order."""
    if not isinstance(command, click.Group):
        return [(name, command)]
    return [(name, command)] + [
        pair
        for sub in sorted(command.commands)
        for pair in commands(f"{name} {sub}", command.commands[sub])
    ]


def section(name: str, command: click.Command) -> str:
    """Describe one command: usage, help, arguments, options."""
    level = "##" if " " not in name else "###"
    lines = [f"{level} {name}", "", *paragraphs(command.help or ""), ""]
    if isinstance(command, click.Group):
        return "\n".join(lines)
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option)]
    usage = [name, *(["[OPTIONS]"] if options else []), *(argument_name(p) for p in arguments)]
    lines += ["    " + " ".join(usage), "", *example_block(command)]
    lines += ["| option | |", "|---|---|"] if options else []
    for name_of_section, members in sections(command).items():
        lines += [] if name_of_section == "Options" else [f"| **{name_of_section}** | |"]
        lines += [f"| {option_name(p)} | {option_help(p)} |" for p in members]
    return "\n".join(lines).rstrip() + "\n"


def example_block(command: click.Command) -> list[str]:
    """Return the examples of a command as a block of shell."""
    examples = [line.strip() for line in (command.epilog or "").splitlines()[2:]]
    return ["```sh", *examples, "```", ""] if examples else []


def paragraphs(text: str) -> list[str]:
    """Join the lines of each paragraph of a docstring."""
    blocks = [" ".join(block.split()) for block in text.split("\n\n")]
    return "\n\n".join(blocks).splitlines()


def argument_name(argument: click.Argument) -> str:
    """Return the argument as usage lines show it: optional in brackets, repeatable with dots."""
    name = (argument.name or "").upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def option_name(option: click.Option) -> str:
    """Return all spellings of an option, then its value."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    return f"`{names} {value_name(option)}`".replace(" `", "`")


def value_name(option: click.Option) -> str:
    """Return how an option's value is written: its choices, its metavar, or its type."""
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return "\\|".join(str(choice) for choice in option.type.choices)
    return option.metavar or {
        "integer range": "INTEGER",
        "float range": "FLOAT",
        "filename": "FILE",
    }.get(option.type.name, option.type.name.upper())


def option_help(option: click.Option) -> str:
    """Return the help with what click adds to it: required, or the default."""
    text = (option.help or "").replace("|", "\\|")
    if option.required:
        return f"{text} Required."
    shown = default(option)
    return f"{text} [default: {shown}]" if shown else text.replace("  [", " [")


def default(option: click.Option) -> str:
    """Return the default value as it would be typed; empty where help shows none."""
    value: Any = option.to_info_dict()["default"]
    if (
        value is None
        or option.show_default is False
        or (option.is_flag and not option.secondary_opts)
    ):
        return ""
    if option.is_flag:
        value = (option.opts if value else option.secondary_opts)[0].lstrip("-")
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def page() -> str:
    """Return the whole page."""
    parts = [
        section(*pair) for name, command in COMMANDS.items() for pair in commands(name, command)
    ]
    return "\n".join([INTRODUCTION, *parts]).rstrip() + "\n"


def main() -> int:
    """Write the page; with `--check`, only say whether it is current."""
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        sys.stderr.write("" if current else f"{PAGE} is out of date: run python docs/make_cli.py\n")
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
