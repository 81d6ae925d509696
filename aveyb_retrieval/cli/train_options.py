"""What the training commands share: where data come from, where a run goes, how it computes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import together
from aveyb_retrieval.cli.settings import gather
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from datasets import Dataset

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
TEXT_FIELD = click.option("--field", default="text", help="Field of a JSON line with the text.")


def fingerprints(files: tuple[Path, ...]) -> dict[str, Any]:
    """Return the fingerprint of each file by its place: names may be the same in two folders."""
    from aveyb_retrieval.training.texts import fingerprint

    return {f"file {number}": fingerprint(path) for number, path in enumerate(files, start=1)}


@dataclass(frozen=True)
class Source:
    """Where training data come from: files, or one hub data set."""

    files: tuple[Path, ...]
    hub: str | None

    def record(self) -> dict[str, Any]:
        """Return what a run folder records of the data.

        Raises:
            click.UsageError: neither files nor a hub data set are given, or both.
        """
        if bool(self.files) == bool(self.hub):
            raise click.UsageError("give FILES or --hub, one of them")
        return {"hub": self.hub} if self.hub else fingerprints(self.files)


@dataclass(frozen=True)
class PairSource(Source):
    """Pairs or triplets in files or a hub data set, and the names of their fields."""

    rows: int | None
    anchor: str | None
    positive: str | None

    def open(self, **columns: str | None) -> tuple[Dataset, dict[str, Any]]:
        """Read the pairs; return them and what a run folder records of them.

        Args:
            columns: field of a further side, such as `negative`; None: one of the usual names.
        """
        from aveyb_retrieval.training.contrastive import read_hub_pairs, read_pairs

        data = self.record()
        named: Mapping[str, str | None] = {"anchor": self.anchor, "positive": self.positive, **columns}
        given = {side: field for side, field in named.items() if field is not None}
        options: dict[str, Any] = {"columns": given, "rows": self.rows}
        pairs = read_hub_pairs(self.hub, **options) if self.hub else read_pairs(self.files, **options)
        return pairs, data | {"rows": self.rows, "columns": given or None}


@dataclass(frozen=True)
class TextSource(Source):
    """Documents in files or a hub data set, how many of them to read, and the field with the text."""

    documents: int | None
    field: str

    def open(self) -> tuple[Iterator[str], dict[str, Any]]:
        """Open the texts, which are read as they are needed; return them and what a run folder records of them."""
        from itertools import islice

        from aveyb_retrieval.training.texts import read_hub, read_texts

        data = self.record() | {"documents": self.documents}
        read = read_hub(self.hub, field=self.field) if self.hub else read_texts(self.files, field=self.field)
        return islice(read, self.documents), data


@dataclass(frozen=True)
class Run:
    """A run folder, and where and how its run computes."""

    out: Path
    resume: bool
    device: str
    threads: int | None

    def prepare(self) -> dict[str, Any]:
        """Limit torch's threads; return the arguments that all training functions share."""
        set_threads(self.threads)
        return {"resume": self.resume, "device": None if self.device == "auto" else self.device}

    def report(self) -> None:
        """Print where the model is; after Ctrl-C, how to continue (exit code 130, as shells use for an interrupt)."""
        from aveyb_retrieval.training.run_folder import MODEL

        if os.environ.get("RANK", "0") != "0":  # under torchrun the first process speaks for all
            return
        if not (self.out / MODEL).is_dir():
            click.echo(f"interrupted: the run in {self.out} is saved, add --resume to continue it", err=True)
            raise SystemExit(130)
        click.echo(f"model in {self.out / MODEL}")


THREADS = click.option("--threads", type=int, help="CPU threads.  [default: torch's choice]")
RUN = gather(
    "run",
    Run,
    click.option("-o", "--out", required=True, type=PATH, help="Run folder: model, metrics, checkpoints."),
    click.option("--resume", is_flag=True, help="Continue the run in the run folder."),
    click.option(
        "--device",
        type=click.Choice(["auto", "cpu"]),
        default="auto",
        help="auto: a GPU if there is one.",
    ),
    THREADS,
)
PAIRS = gather(
    "source",
    PairSource,
    click.argument("files", nargs=-1, type=FILE),
    click.option("--hub", help="Hub data set to stream, as NAME or NAME:CONFIG (sentence-transformers/gooaq)."),
    click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Read at most N rows.  [default: all]"),
    click.option("--anchor", help="Field of the query.  [default: anchor, query or question]"),
    click.option("--positive", help="Field of its answer.  [default: positive, document, passage, answer or pos]"),
)


def read_fields(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """Read FIELD=VALUE: values are JSON, or else words."""
    fields: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.BadParameter(f"{each!r} is not FIELD=VALUE")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


FIELDS = click.option(
    "--set",
    "fields",
    multiple=True,
    callback=read_fields,
    metavar="FIELD=VALUE",
    help="Set a field of a new model's configuration, such as mix_activation=none. Repeatable.",
)
TEXTS = together(
    gather(
        "source",
        TextSource,
        click.argument("files", nargs=-1, type=FILE),
        click.option(
            "--hub", help="Hub data set to stream, as NAME or NAME:CONFIG (HuggingFaceFW/fineweb:sample-10BT)."
        ),
        click.option("--documents", type=int, metavar="N", help="Read at most N documents.  [default: all]"),
        TEXT_FIELD,
    ),
    click.option("--vocabulary", required=True, help="Folder of a vocabulary, or p50k_base."),
    click.option("--model", help="Model folder to continue from.  [default: a new model of --preset]"),
)


def set_threads(threads: int | None) -> None:
    """Limit torch to `threads` CPU threads, if a number is given.

    Raises:
        ConfigError: it is below 1.
    """
    if threads is not None:
        import torch

        if threads < 1:
            raise ConfigError(f"--threads is {threads}; it must be at least 1")
        torch.set_num_threads(threads)
