"""Train the heads on labeled data with transformers' Trainer: labels of texts, tags of words, answers to questions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import Trainer, TrainingArguments

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.folders import model_folder
from aveyb_retrieval.encoder.network.heads import (
    AveyBForQuestionAnswering,
    AveyBForSequenceClassification,
    AveyBForTokenClassification,
)
from aveyb_retrieval.encoder.text.pairs import write_template
from aveyb_retrieval.encoder.text.wordpiece import load_tokenizer
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.labeled import label_ids, read_answered, read_labeled, read_tagged
from aveyb_retrieval.training.run_folder import RunCallback, RunFolder
from aveyb_retrieval.training.task_examples import (
    Example,
    answer_examples,
    answer_text,
    answer_tokens,
    collate,
    predict,
    read_answer,
    read_tags,
    tag_examples,
    text_examples,
)
from aveyb_retrieval.training.task_metrics import answer_metrics, class_metrics, number_metrics, tag_metrics
from aveyb_retrieval.training.trainer import CheckedSteps, optimizer_and_schedule, run_to_end, shared_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer
    from aveyb_retrieval.training.settings import AnswerSettings, ClassifySettings, TaskSettings

SPLIT_SEED = 42  # of the rows held out, as in the paper's protocol
_PROBLEMS = {"mse": "regression", "bce": "multi_label_classification", "cross_entropy": "single_label_classification"}


@dataclass(frozen=True)
class Task:
    """A model, its data, and how predictions are scored."""

    title: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    train: list[Example]
    held_out: list[Example]
    score: Callable[[list[tuple[Example, np.ndarray]]], dict[str, float]]


def classification(
    files: Sequence[Path], validation: Sequence[Path], model: str | None, settings: ClassifySettings
) -> Task:
    """Prepare the labels of texts, or of pairs; `loss` other than "cross_entropy": one number, as rerankers give.

    Raises:
        InputError: a line cannot be used, or its label is out of range (file, line and field).
        ModelError: there is no model, or it is of another kind.
    """
    numbers = settings.loss != "cross_entropy"
    train, held_out = _split(files, validation, settings, lambda paths: read_labeled(paths, numbers=numbers))
    for row in [*train, *held_out]:
        if settings.loss == "bce" and not 0 <= row.label <= 1:
            raise InputError(f"{row.where}: field 'label' is {row.label}, out of range: --loss bce needs 0 to 1")
    classes = None
    if not numbers:
        classes = label_ids((row.label, row.where) for row in train)
        label_ids(((row.label, row.where) for row in held_out), classes)
        if len(classes) < 2:
            raise InputError(f"{train[0].where}: every label is {train[0].label!r}; there must be two at least")
    head = _labels(classes or {"score": 0}) | {"problem_type": _PROBLEMS[settings.loss]}
    made, tokenizer = _start(AveyBForSequenceClassification, model, head)

    def score(found: list[tuple[Example, np.ndarray]]) -> dict[str, float]:
        wanted = [example.labels["labels"] for example, _ in found]
        if classes is not None:
            return class_metrics([int(logits.argmax()) for _, logits in found], wanted)
        scores = [float(logits[0]) for _, logits in found]
        if settings.loss == "mse":
            return number_metrics(scores, wanted)
        chances = [1 / (1 + math.exp(-s)) for s in scores]
        return class_metrics([int(s > 0) for s in scores], [int(w > 0.5) for w in wanted]) | number_metrics(
            chances, wanted
        )

    examples = [text_examples(rows, tokenizer, classes, settings.length) for rows in (train, held_out)]
    return Task("Classification of texts", made, tokenizer, examples[0], examples[1], score)


def tagging(files: Sequence[Path], validation: Sequence[Path], model: str | None, settings: TaskSettings) -> Task:
    """Prepare the tags of words; see `classification` for what is raised."""
    train, held_out = _split(files, validation, settings, read_tagged)
    classes = label_ids((tag, row.where) for row in train for tag in row.tags)
    label_ids(((tag, row.where) for row in held_out for tag in row.tags), classes)
    made, tokenizer = _start(AveyBForTokenClassification, model, _labels(classes))
    names = list(classes)

    def score(found: list[tuple[Example, np.ndarray]]) -> dict[str, float]:
        predicted = [read_tags(example, logits.argmax(-1), names) for example, logits in found]
        return tag_metrics(predicted, [example.source.tags for example, _ in found])

    examples = [tag_examples(rows, tokenizer, classes, settings.length) for rows in (train, held_out)]
    return Task("Tags of words", made, tokenizer, examples[0], examples[1], score)


def answering(files: Sequence[Path], validation: Sequence[Path], model: str | None, settings: AnswerSettings) -> Task:
    """Prepare answers in texts; see `classification` for what is raised."""
    none = settings.unanswerable
    train, held_out = _split(files, validation, settings, lambda paths: read_answered(paths, allow_none=none))
    form = settings.answer_form
    head = {"num_labels": 2, "answer_form": form}
    made, tokenizer = _start(AveyBForQuestionAnswering, model, head)

    def score(found: list[tuple[Example, np.ndarray]]) -> dict[str, float]:
        options: dict[str, Any] = {"longest": settings.longest_answer, "allow_none": none}
        tokens = [read_answer(example, logits, form, **options) for example, logits in found]
        texts = [answer_text(example, own) for (example, _), own in zip(found, tokens, strict=True)]
        truths = [example.source.answers for example, _ in found]
        true_tokens = [
            [set(answer_tokens(example.offsets, *answer).tolist()) for answer in example.source.answers]
            for example, _ in found
        ]
        positions = [(set(own.tolist()), sets) for own, sets in zip(tokens, true_tokens, strict=True)]
        return answer_metrics(texts, [[text for _, text in own] for own in truths], positions)

    examples = [answer_examples(rows, tokenizer, form, settings.length) for rows in (train, held_out)]
    return Task("Answers to questions", made, tokenizer, examples[0], examples[1], score)


def train_task(
    task: Task,
    folder: str | Path,
    *,
    data: dict[str, Any],
    settings: TaskSettings,
    resume: bool = False,
    device: str | None = None,
) -> dict[str, float]:
    """Train a head and its encoder, and save them in the run folder.

    The folder's `model/` opens with its class, with transformers' auto classes and, where there is one label, with
    `sentence_transformers.CrossEncoder`.

    Args:
        task: what one of the functions above prepared.
        folder: the run folder (see `run_folder.py`).
        data: fingerprints of the files.
        settings: of the run; `steps` 0 means `epochs`.
        resume: continue from the newest checkpoint.
        device: "cpu" keeps the run off an accelerator; None: the trainer chooses.

    Returns:
        The metrics on the held-out rows; `train_rows_cut` and `held_out_rows_cut`: how many texts lost tokens. Empty
        where the run was interrupted.

    Raises:
        ConfigError: settings are out of range, or the run folder holds another run.
        InputError: fewer rows than a batch, a loss that is not a number, or a resume that does not fit.
    """
    if settings.epochs <= 0 or settings.steps < 0 or settings.length <= 0:
        raise ConfigError(
            f"epochs is {settings.epochs}, steps {settings.steps}, length {settings.length}; epochs and length must be "
            "above 0, steps 0 (as many as the epochs need) or more"
        )
    if len(task.train) < settings.batch_size:
        raise InputError(
            f"there are {len(task.train)} rows to train on, less than one batch of {settings.batch_size}: give more "
            "data or a smaller batch"
        )
    steps = settings.steps or math.ceil(settings.epochs * (len(task.train) // settings.batch_size))
    settings = replace(settings, steps=steps)
    settings.check()
    arguments = TrainingArguments(
        **shared_arguments(settings, folder, device),
        per_device_train_batch_size=settings.batch_size,
        accelerator_config={"split_batches": True},
        remove_unused_columns=False,
    )
    run = RunFolder(folder, asdict(settings), data, resume=resume, main=arguments.process_index == 0)
    callback = RunCallback(run, units_per_step=settings.batch_size, unit="rows")
    trainer = _Trainer(
        model=task.model,
        args=arguments,
        train_dataset=task.train,
        data_collator=collate,
        optimizers=optimizer_and_schedule(task.model, settings),
        callbacks=[callback],
    )
    if not run_to_end(trainer, callback, run.checkpoint):
        return {}
    options: dict[str, Any] = {"batch_size": settings.batch_size, "precision": settings.precision}
    figures = task.score(list(predict(task.model, task.held_out, **options))) if task.held_out else {}
    for name, examples in (("train", task.train), ("held_out", task.held_out)):
        figures[f"{name}_rows_cut"] = float(sum(example.cut for example in examples))
    if trainer.is_world_process_zero():
        task.model.save_pretrained(run.model)
        task.tokenizer.save(run.model)
        write_template(run.model, task.tokenizer, limit=settings.length)
        run.finish(task.title, figures)
    return figures


class _Trainer(CheckedSteps, Trainer):
    """transformers' Trainer with the checks that all runs share."""


def _split(
    files: Sequence[Path],
    validation: Sequence[Path],
    settings: TaskSettings,
    read: Callable[[Sequence[Path]], list[Any]],
) -> tuple[list[Any], list[Any]]:
    """Read the rows to train on and those held out: the files of `validation`, or a share drawn with a fixed seed."""
    rows = read(files)
    if validation:
        return rows, read(validation)
    if not 0 <= settings.held_out < 1:
        raise ConfigError(f"held_out is {settings.held_out}; it is a share of the rows, at least 0 and below 1")
    aside = set(
        np.random.default_rng(SPLIT_SEED).permutation(len(rows))[: round(settings.held_out * len(rows))].tolist()
    )
    return [row for i, row in enumerate(rows) if i not in aside], [rows[i] for i in sorted(aside)]


def _labels(classes: dict[str, int]) -> dict[str, Any]:
    return {"id2label": {i: name for name, i in classes.items()}, "label2id": classes}


def _start(cls: Any, model: str | None, head: dict[str, Any]) -> tuple[Any, Tokenizer]:
    """Open a model with this head and the same labels as it is, or put a new head on the encoder of any other."""
    folder = model_folder(model)
    config = AveyBConfig.from_pretrained(folder)
    same = config.architectures == [cls.__name__] and all(
        getattr(config, name) == value for name, value in head.items()
    )
    made = cls.from_pretrained(folder) if same else cls.from_encoder(folder, **head)
    return made, load_tokenizer(folder, made.config.vocab_size)
