"""What `--help` prints: options in sections where there are many, and examples at the end."""

from __future__ import annotations

from dataclasses import fields

import click

from aveyb_retrieval.server.limits import ServerLimits, flag

MIN_SECTIONED_OPTIONS = 15  # below, one list is read at a glance

_MODEL = ("--model", "--vocabulary", "--device", "--precision", "--threads", "--processes")

# sections in the order in which they are printed; an option of none comes before all of them
SECTIONS = {
    "Corpus": (
        "--from",
        "--vectors",
        "--types",
        "--id-field",
        "--title-field",
        "--text-field",
        "--path-fields",
        "--exclude",
        "--follow-links",
        "--encoding",
        "--max-line",
        "--file-seconds",
        "--on-error",
        "--allow-empty",
        "--verbose",
        "--ocr-seconds",
        "--ocr-languages",
        "--rows",
        "--field",
        "--anchor",
        "--positive",
        "--negative",
        "--documents",
        "--queries",
    ),
    "Passages and vectors": (
        "--granularity",
        "--passage-tokens",
        "--passage-overlap",
        "--late",
        "--token-vectors",
        "--max-tokens",
        "--index",
        "--storage-dtype",
    ),
    "Words": (
        "--language",
        "--keep-accents",
        "--synonyms",
        "--operators",
    ),
    "Ranking": (
        "--mode",
        "--fusion",
        "--weight",
        "--rerank",
        "--boost",
        "--exact",
        "--min-score",
        "--per-document",
        "--diversity",
        "--fold",
        "--sort",
    ),
    "Output": (
        "--json",
        "--fields",
        "--passages",
        "--context",
    ),
    "Keys and origins": (
        "--api-key-file",
        "--write-key-file",
        "--keys",
        "--no-key",
        "--allow-host",
        "--cors-origin",
        "--trust-proxy",
        "--access-log",
        "--log-questions",
        "--originals",
    ),
    "Limits": tuple(
        flag(limit.name) for limit in fields(ServerLimits) if flag(limit.name) not in _MODEL
    ),
    "Model": _MODEL,
    "Several machines": (
        "--share",
        "--ray",
        "--of",
        "--cpus",
        "--gpus",
    ),
    "Optimizer": (
        "--steps",
        "--batch-size",
        "--micro-batch",
        "--learning-rate",
        "--schedule",
        "--warmup",
        "--floor",
        "--betas",
        "--eps",
        "--weight-decay",
        "--clip",
        "--gradient-checkpointing",
        "--seed",
    ),
    "Checkpoints": (
        "--log-every",
        "--save-every",
        "--keep",
        "--resume",
        "--evaluate-every",
    ),
    "Cache of object stores": (
        "--cache",
        "--cache-limit",
        "--cache-whole",
    ),
}
_SECTION_OF = {flag: section for section, flags in SECTIONS.items() for flag in flags}


def examples(*commands: str) -> str:
    """Return the end of a command's help: how it is typed, a line for each example."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def sections(command: click.Command) -> dict[str, list[click.Option]]:
    """Return the options of a command by section, "Options" first; all in one if there are few."""
    options = [
        param for param in command.params if isinstance(param, click.Option) and not param.hidden
    ]
    if len(options) < MIN_SECTIONED_OPTIONS:
        return {"Options": options}
    by_section: dict[str, list[click.Option]] = {name: [] for name in ("Options", *SECTIONS)}
    for option in options:
        by_section[_SECTION_OF.get(option.opts[-1], "Options")].append(option)
    for name in SECTIONS:
        if len(by_section[name]) == 1:
            by_section["Options"] += by_section.pop(name)
    return {name: members for name, members in by_section.items() if members}


class HelpfulCommand(click.Command):
    """A command whose help has its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list of options for each section; `--help` comes with the first."""
        lists = sections(self)
        help_option = self.get_help_option(ctx)
        if help_option is not None:
            lists["Options"] = [*lists.get("Options", []), help_option]
        for name, options in lists.items():
            records = [option.get_help_record(ctx) for option in options]
            with formatter.section(name):
                formatter.write_dl([record for record in records if record is not None])
