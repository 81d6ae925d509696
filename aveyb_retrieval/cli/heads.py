"""`aveyb-train classify`, `tag` and `answer`: heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import together
from aveyb_retrieval.cli.settings import settings_options
from aveyb_retrieval.cli.train_options import FILE, RUN, Run, fingerprints
from aveyb_retrieval.training.settings import AnswerSettings, ClassifySettings, TaskSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aveyb_retrieval.training.tasks import Task

LABELED = together(
    click.argument("files", nargs=-1, required=True, type=FILE),
    click.option("--model", help="Model folder, an encoder or a head to go on with.  [default: the embedded encoder]"),
    click.option("--validation", multiple=True, type=FILE, help="Rows to validate with. Repeatable."),
)


@click.command()
@LABELED
@settings_options("settings", ClassifySettings())
@RUN
def classify(**arguments: Any) -> dict[str, float]:
    """Train labels of texts or pairs from FILES (JSON lines: text, optionally text_pair, label).

    With --loss bce or mse there is one label, a number: a cross-encoder, which `rerank=` and sentence-transformers'
    CrossEncoder open.
    """
    from aveyb_retrieval.training.tasks import classification

    return _train_head(classification, **arguments)


@click.command()
@LABELED
@settings_options("settings", TaskSettings())
@RUN
def tag(**arguments: Any) -> dict[str, float]:
    """Train tags of words (entities, parts of speech) from FILES (JSON lines: words and tags, two lists)."""
    from aveyb_retrieval.training.tasks import tagging

    return _train_head(tagging, **arguments)


@click.command()
@LABELED
@settings_options("settings", AnswerSettings())
@RUN
def answer(**arguments: Any) -> dict[str, float]:
    """Train answers to questions from FILES (JSON lines: question, context, answers with text and start)."""
    from aveyb_retrieval.training.tasks import answering

    return _train_head(answering, **arguments)


def _train_head(
    prepare: Callable[..., Task],
    files: tuple[Path, ...],
    model: str | None,
    validation: tuple[Path, ...],
    settings: TaskSettings,
    run: Run,
) -> dict[str, float]:
    """Train what `prepare` makes of the files; print and return its metrics."""
    import torch

    from aveyb_retrieval.training.tasks import train_task

    options = run.prepare()
    torch.manual_seed(settings.seed)  # the head's start
    task = prepare(files, validation, model, settings)
    data = fingerprints(files) | {f"validation {name}": value for name, value in fingerprints(validation).items()}
    figures = train_task(task, run.out, data=data | {"model": model}, settings=settings, **options)
    for name, value in figures.items():
        click.echo(f"{name}: {value:.0f}" if name.endswith("_cut") else f"held out {name}: {value:.4f}")
    run.report()
    return figures
