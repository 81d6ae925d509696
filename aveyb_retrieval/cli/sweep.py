"""`aveyb-train sweep`: an objective with several learning rates and seeds."""

from __future__ import annotations

from pathlib import Path

import click

from aveyb_retrieval.cli.common import make_console
from aveyb_retrieval.errors import ConfigError

# The figure that decides, the paper's where it has one.
METRICS = {
    "mlm": "loss",
    "clm": "loss",
    "contrastive": "score",
    "classify": "accuracy",
    "tag": "sentence_macro_f1",
    "answer": "token_overlap_f1",
}
_OURS = ("-o", "--out", "--resume", "--learning-rate", "--seed")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("objective", type=click.Choice(list(METRICS)))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder of all runs.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    type=click.FloatRange(min=0, min_open=True),
    default=(2e-5, 6e-5, 1e-4, 5e-4),
    help="A learning rate. Repeatable; the defaults are the paper's.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=10, help="How many, from 0.")
@click.option("--metric", help="The figure that decides.  [default: the paper's for the objective; loss for mlm, clm]")
@click.option(
    "--evaluate",
    "sets",
    multiple=True,
    help="With contrastive: a retrieval set, as for `aveyb-eval run`, measured by the paper's protocol. Repeatable.",
)
@click.pass_context
def sweep(
    context: click.Context,
    objective: str,
    arguments: tuple[str, ...],
    out: Path,
    rates: tuple[float, ...],
    seeds: int,
    metric: str | None,
    sets: tuple[str, ...],
) -> None:
    """Train OBJECTIVE with every learning rate and seed, and print the median over the seeds for each rate.

    ARGUMENTS are those of the objective's own command, files and options. The same command continues an interrupted
    sweep. OUT/sweep.json holds every figure; `score` is the mean over the sets of --evaluate.
    """
    from aveyb_retrieval.training.sweep import Sweep

    if taken := [word for word in arguments if word.partition("=")[0] in _OURS]:
        raise ConfigError(f"{taken[0]} is what a sweep sets for each run; leave it out, or use --rate and --seeds")
    if bool(sets) != (objective == "contrastive"):
        raise ConfigError(
            "contrastive is swept with --evaluate SET, and only it: the other objectives measure held-out rows"
        )
    group = context.find_root().command
    assert isinstance(group, click.Group)  # aveyb-train
    command = group.commands[objective]

    def train(folder: Path, rate: float, seed: int, resume: bool) -> dict[str, float]:
        words = [*arguments, "-o", str(folder), "--learning-rate", repr(rate), "--seed", str(seed)]
        click.echo(f"{objective}, learning rate {rate:g}, seed {seed}")
        name = f"{context.command_path} {objective}"
        figures = command.main([*words, *["--resume"] * resume], prog_name=name, standalone_mode=False)
        return _retrieval(folder, sets) if objective == "contrastive" else figures

    swept = Sweep(out, objective, arguments, metric or METRICS[objective])
    swept.run(rates, range(seeds), train)
    _show(swept.table())


def _retrieval(folder: Path, sets: tuple[str, ...]) -> dict[str, float]:
    """Return the paper's measure of a run's model on each set, and their mean as "score"."""
    from aveyb_retrieval.eval.encoders import load_encoder
    from aveyb_retrieval.eval.loading import load_dataset
    from aveyb_retrieval.eval.runner import run_system
    from aveyb_retrieval.eval.systems import DenseSystem, VectorCache
    from aveyb_retrieval.eval.tasks import PAPER, make_task
    from aveyb_retrieval.training.run_folder import MODEL

    encoder = load_encoder(str(folder / MODEL), PAPER)
    found = {}
    for name in sets:
        task = make_task(load_dataset(name), PAPER)
        result, _ = run_system(DenseSystem(encoder, task.corpus, VectorCache()), task)
        found[task.dataset] = result.score
    return found | {"score": sum(found.values()) / len(found)}


def _show(rows: list[list[str]]) -> None:
    from rich.table import Table

    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    make_console().print(table)
