"""Train the heads on labeled JSON Lines with transformers' Trainer: labels of texts and pairs, tags
of words.

The paper's figure for tags is not the usual one: macro F1 within each sentence, the label O
included, averaged over sentences. Entity F1 (CoNLL 2003) is given beside it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer, TrainingArguments

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.model_folders import model_folder
from aveyb_retrieval.encoder.network.heads import (
    AveyBForSequenceClassification,
    AveyBForTokenClassification,
    sequence_ids,
    write_template,
)
from aveyb_retrieval.encoder.network.model import IGNORED_LABEL
from aveyb_retrieval.encoder.progress_bars import without_progress_bars
from aveyb_retrieval.encoder.text.tokenizer import write_limit
from aveyb_retrieval.encoder.text.wordpiece import load_tokenizer
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.training.run_folder import RunCallback, RunFolder, TrainingRun
from aveyb_retrieval.training.texts import field_in, read_placed, text_in
from aveyb_retrieval.training.trainer import (
    CheckedSteps,
    check_memory,
    optimizer_and_schedule,
    run_to_end,
    shared_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedModel

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer
    from aveyb_retrieval.training.settings import ClassifySettings, TaskSettings

# Names of the fields in data sets; the first one that a line has is taken.
FIRST = ("text", "sentence", "sentence1", "query", "question", "premise", "anchor")
SECOND = ("text_pair", "sentence2", "document", "passage", "hypothesis", "positive")
_NUMBER = re.compile(r"0|-?[1-9][0-9]*")
WORDS, TAGS = ("words", "tokens"), ("tags", "labels", "ner_tags")
SPLIT_SEED = 42  # of the rows held out, as in the paper's protocol
_PROBLEMS = {
    "mse": "regression",
    "bce": "multi_label_classification",
    "cross_entropy": "single_label_classification",
}
_ACTIVATIONS = {"mse": "linear.Identity", "bce": "activation.Sigmoid"}


@dataclass(frozen=True)
class LabeledText:
    """A text, or a pair of texts, and its label: a class's name, or a number."""

    text: str
    pair: str | None
    label: str | float
    where: str


@dataclass(frozen=True)
class TaggedWords:
    """The words of a sentence and one tag for each."""

    words: list[str]
    tags: list[str]
    where: str


def read_labeled(paths: Sequence[Path], *, numbers: bool) -> list[LabeledText]:
    """Read lines `{"text": ..., "text_pair": ..., "label": ...}`; the pair is optional.

    With `numbers` labels are numbers, otherwise names of classes, or whole numbers that stand for
    them.
    """
    rows: list[LabeledText] = []
    for where, line in read_lines(paths):
        pair_field = next((name for name in SECOND if name in line), None)
        pair = None if pair_field is None else text_in(line, pair_field, where)
        if rows and (rows[0].pair is None) != (pair is None):
            kinds = ("a single text", "a pair") if pair is None else ("a pair", "a single text")
            raise InputError(
                f"{where}: {kinds[0]}, and {rows[0].where} is {kinds[1]}; give all lines one form"
            )
        label: Any = line.get("label")
        if numbers and (
            isinstance(label, bool)
            or not isinstance(label, (int, float))
            or not math.isfinite(label)
        ):
            raise InputError(f"{where}: field 'label' must be a number, it is {label!r}")
        if not numbers and not (isinstance(label, (str, int)) and str(label).strip()):
            raise InputError(
                f"{where}: field 'label' must be the name or the number of a class, it is {label!r}"
            )
        text = text_in(line, field_in(line, FIRST, where), where)
        rows.append(LabeledText(text, pair, float(label) if numbers else str(label), where))
    return rows


def read_tagged(paths: Sequence[Path]) -> list[TaggedWords]:
    """Read lines `{"words": [...], "tags": [...]}`, one tag for each word."""
    rows = []
    for where, line in read_lines(paths):
        names = field_in(line, WORDS, where), field_in(line, TAGS, where)
        words, tags = (_strings(line, name, where) for name in names)
        if len(words) != len(tags):
            raise InputError(
                f"{where}: field {names[0]!r} has {len(words)} entries, field {names[1]!r}"
                f" {len(tags)}; each word needs one tag"
            )
        rows.append(TaggedWords(words, tags, where))
    return rows


def label_ids(
    rows: Iterable[tuple[str, str]], classes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Number the labels of (label, file and line) rows: whole numbers as they are, names in
    alphabetical order.

    What is not written as a number is, with leading zeros say, is a name. Of `known` labels no
    others may occur.
    """
    rows = list(rows)
    if classes is not None:
        for label, where in rows:
            if label not in classes:
                raise InputError(
                    f"{where}: label {label!r} is out of range; the training data have"
                    f" {', '.join(sorted(classes))}"
                )
        return dict(classes)
    names = {label for label, _ in rows}
    numeric = {label for label in names if _NUMBER.fullmatch(label)}
    if numeric and numeric != names:
        label, where = next((label, where) for label, where in rows if label not in numeric)
        raise InputError(
            f"{where}: label {label!r} is a name, others are numbers ({min(numeric)}); use one of"
            " the two"
        )
    if not numeric:
        return {name: number for number, name in enumerate(sorted(names))}
    for label, where in rows:
        if int(label) < 0:
            raise InputError(f"{where}: label {label} is out of range; classes are counted from 0")
    highest = max(map(int, names))
    if highest >= 2 * len(names):
        where = next(where for label, where in rows if int(label) == highest)
        raise InputError(
            f"{where}: label {highest} is the highest, and only {len(names)} of the classes from 0"
            " to it occur; number them from 0, or give names"
        )
    return {str(number): number for number in range(highest + 1)}


def read_lines(paths: Sequence[Path]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of JSON Lines files, each with its file and line for messages."""
    lines = list(read_placed(paths))
    if not lines:
        raise InputError(f"{', '.join(map(str, paths))}: there are no lines")
    return lines


def _strings(line: Mapping[str, Any], field: str, where: str) -> list[str]:
    value = line[field]
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(v, str) and v.strip() for v in value)
    ):
        raise InputError(f"{where}: field {field!r} must be a list of texts that are not empty")
    return value


def class_metrics(predicted: Sequence[int | str], truth: Sequence[int | str]) -> dict[str, float]:
    """Return `accuracy` and `macro_f1`, the mean over the classes that occur in either."""
    from sklearn.metrics import f1_score

    accuracy = float((np.asarray(predicted) == np.asarray(truth)).mean())
    return {
        "accuracy": accuracy,
        "macro_f1": float(f1_score(truth, predicted, average="macro", zero_division=0.0)),
    }


def number_metrics(predicted: Sequence[float], truth: Sequence[float]) -> dict[str, float]:
    """Return `mse`, `pearson` and `spearman`; a correlation of something constant is 0."""
    from scipy.stats import rankdata

    scores, numbers = np.asarray(predicted, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    return {
        "mse": float(np.square(scores - numbers).mean()),
        "pearson": _correlation(scores, numbers),
        "spearman": _correlation(rankdata(scores), rankdata(numbers)),
    }


def tag_metrics(
    predicted: Sequence[Sequence[str]], truth: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return metrics of the tags of words, sentence by sentence.

    `accuracy` and `macro_f1` over all words; `sentence_macro_f1`: macro F1 within each sentence,
    averaged (the paper's); where tags name entities (B-PER, I-PER, O): `entity_precision`,
    `entity_recall` and `entity_f1` of whole entities.
    """
    from sklearn.metrics import f1_score

    flat = [tag for tags in predicted for tag in tags], [tag for tags in truth for tag in tags]
    metrics = class_metrics(*flat)
    pairs = zip(predicted, truth, strict=True)
    within = [f1_score(own, tags, average="macro", zero_division=0.0) for tags, own in pairs]
    metrics["sentence_macro_f1"] = float(np.mean(within))
    if any("-" in tag for tag in flat[1]):
        predicted_entities, true_entities = (
            {(i, *entity) for i, tags in enumerate(side) for entity in entities_of(tags)}
            for side in (predicted, truth)
        )
        right = len(predicted_entities & true_entities)
        metrics["entity_precision"], metrics["entity_recall"] = (
            right / max(1, len(predicted_entities)),
            right / max(1, len(true_entities)),
        )
        metrics["entity_f1"] = 2 * right / max(1, len(predicted_entities) + len(true_entities))
    return metrics


def entities_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the entities (type, first word, word behind the last) that tags in IOB1, IOB2 or IOBES
    mark.

    As CoNLL's script and seqeval's default have it: I- after O or after another type begins an
    entity, too.
    """
    entities: list[tuple[str, int, int]] = []
    kind, start, ended = "", 0, False
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, own = tag.partition("-")
        goes_on = prefix in ("I", "E", "M") and bool(kind) and own == kind and not ended
        if kind and not goes_on:
            entities.append((kind, start, i))
            kind = ""
        if not goes_on and prefix != "O":
            kind, start = own or "_", i
        ended = prefix in ("E", "S")
    return entities


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(np.corrcoef(a, b)[0, 1])


@dataclass(frozen=True)
class Example:
    """One row, made from `source`; `cut`: tokens were cut off."""

    ids: np.ndarray  # int64 [T]
    labels: Any  # what the model's `forward` takes: a number, or int64 [T]
    source: Any
    cut: bool
    # int64 [T, 2], the characters of each token, for tags
    offsets: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))


def text_examples(
    rows: Iterable[LabeledText], tokenizer: Tokenizer, classes: Mapping[str, int] | None, limit: int
) -> list[Example]:
    """Make examples of labeled texts; `classes` None: labels are numbers."""
    examples = []
    for row in rows:
        ids, cut = sequence_ids(tokenizer, row.text, row.pair, limit)
        label = float(row.label) if classes is None else classes[str(row.label)]
        examples.append(Example(ids, label, row, cut))
    return examples


def tag_examples(
    rows: Iterable[TaggedWords], tokenizer: Tokenizer, classes: Mapping[str, int], limit: int
) -> list[Example]:
    """Make examples of tagged words, joined by spaces; each token of a word has the word's tag."""
    examples = []
    for row in rows:
        ids, offsets = tokenizer.encode(" ".join(row.words))
        word_of = words_of_tokens(row.words, offsets)
        labels = np.array(
            [IGNORED_LABEL if w < 0 else classes[row.tags[w]] for w in word_of], np.int64
        )
        examples.append(
            Example(
                ids[:limit].astype(np.int64), labels[:limit], row, len(ids) > limit, offsets[:limit]
            )
        )
    return examples


def words_of_tokens(words: Sequence[str], offsets: np.ndarray) -> np.ndarray:
    """Return the word of each token, int64 `[T]`, by its last character; -1 for a token of white
    space or none.
    """
    lengths = np.array([len(word) for word in words])
    ends = np.cumsum(lengths + 1) - 1  # of each word: where the space behind it is
    last = offsets[:, 1] - 1
    word = np.searchsorted(ends, last, side="left")
    inside = (last < ends[np.minimum(word, len(words) - 1)]) & (offsets[:, 1] > offsets[:, 0])
    return np.where(inside, word, -1)


def read_tags(example: Example, predicted: np.ndarray, names: Sequence[str]) -> list[str]:
    """Return a tag for each word from labels int64 `[T]` of tokens, by majority; a word that was
    cut off gets O.

    Of equally frequent labels the first one counts.
    """
    words = example.source.words
    votes: list[list[int]] = [[] for _ in words]
    for token, word in enumerate(words_of_tokens(words, example.offsets)):
        if word >= 0:
            votes[word].append(int(predicted[token]))
    nothing = "O" if "O" in names else names[0]
    return [names[Counter(own).most_common(1)[0][0]] if own else nothing for own in votes]


def collate(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Pad examples to a batch: `input_ids` and `attention_mask` int64 `[B, T]`, and
    their labels.
    """

    def padded(rows: list[np.ndarray], value: int) -> torch.Tensor:
        return pad_sequence(
            [torch.from_numpy(row) for row in rows], batch_first=True, padding_value=value
        )

    labels = [example.labels for example in examples]
    return {
        "input_ids": padded([example.ids for example in examples], 0),
        "attention_mask": padded([np.ones_like(example.ids) for example in examples], 0),
        "labels": (
            padded(labels, IGNORED_LABEL)
            if isinstance(labels[0], np.ndarray)
            else torch.tensor(labels)
        ),
    }


@torch.inference_mode()
def predict(
    model: torch.nn.Module, examples: Sequence[Example], *, batch_size: int, precision: str
) -> Iterator[tuple[Example, np.ndarray]]:
    """Yield each example with its logits, float32 `[L]` or `[T, L]`, longest first."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    ordered = sorted(examples, key=lambda example: -len(example.ids))
    for begin in range(0, len(ordered), batch_size):
        part = ordered[begin : begin + batch_size]
        batch = collate(part)
        inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(**inputs).logits
        for example, row in zip(part, logits.float().cpu().numpy(), strict=True):
            yield example, row[: len(example.ids)] if row.ndim == 2 else row
    model.train(training)


@dataclass(frozen=True)
class Task:
    """A model, its data, and how predictions are scored.

    `marked`: texts are read between [CLS] and [SEP], and so they are by the saved tokenizer.
    """

    title: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    train: list[Example]
    held_out: list[Example]
    score: Callable[[list[tuple[Example, np.ndarray]]], dict[str, float]]
    marked: bool = False


def classification(
    files: Sequence[Path], validation: Sequence[Path], model: str | None, settings: ClassifySettings
) -> Task:
    """Prepare the labels of texts, or of pairs; `loss` other than "cross_entropy": one number, as
    rerankers give.
    """
    numbers = settings.loss != "cross_entropy"
    train, held_out = split_rows(
        files, validation, settings, lambda paths: read_labeled(paths, numbers=numbers)
    )
    for row in [*train, *held_out]:
        if settings.loss == "bce" and not 0 <= row.label <= 1:
            raise InputError(
                f"{row.where}: field 'label' is {row.label}, out of range: --loss bce needs 0 to 1"
            )
    classes = None
    if not numbers:
        classes = label_ids((row.label, row.where) for row in train)
        label_ids(((row.label, row.where) for row in held_out), classes)
        if len(classes) < 2:
            raise InputError(
                f"{train[0].where}: every label is {train[0].label!r}; there must be two at least"
            )
    head = _labels(classes or {"score": 0}) | {"problem_type": _PROBLEMS[settings.loss]}
    if classes is None:  # what a cross-encoder applies to the score
        head["sentence_transformers"] = {
            "activation_fn": f"torch.nn.modules.{_ACTIVATIONS[settings.loss]}"
        }
    made, tokenizer = start_head(AveyBForSequenceClassification, model, head)

    def score(scored: list[tuple[Example, np.ndarray]]) -> dict[str, float]:
        truth = [example.labels for example, _ in scored]
        if classes is not None:
            return class_metrics([int(logits.argmax()) for _, logits in scored], truth)
        scores = [float(logits[0]) for _, logits in scored]
        if settings.loss == "mse":
            return number_metrics(scores, truth)
        classified = class_metrics([int(s > 0) for s in scores], [int(w > 0.5) for w in truth])
        return classified | number_metrics([1 / (1 + math.exp(-s)) for s in scores], truth)

    examples = [
        text_examples(rows, tokenizer, classes, settings.length) for rows in (train, held_out)
    ]
    return Task(
        "Classification of texts", made, tokenizer, examples[0], examples[1], score, marked=True
    )


def tagging(
    files: Sequence[Path], validation: Sequence[Path], model: str | None, settings: TaskSettings
) -> Task:
    """Prepare the tags of words; see `classification` for what is raised."""
    train, held_out = split_rows(files, validation, settings, read_tagged)
    classes = label_ids((tag, row.where) for row in train for tag in row.tags)
    label_ids(((tag, row.where) for row in held_out for tag in row.tags), classes)
    made, tokenizer = start_head(AveyBForTokenClassification, model, _labels(classes))
    names = list(classes)

    def score(scored: list[tuple[Example, np.ndarray]]) -> dict[str, float]:
        predicted = [read_tags(example, logits.argmax(-1), names) for example, logits in scored]
        return tag_metrics(predicted, [example.source.tags for example, _ in scored])

    examples = [
        tag_examples(rows, tokenizer, classes, settings.length) for rows in (train, held_out)
    ]
    return Task("Tags of words", made, tokenizer, examples[0], examples[1], score)


def train_task(
    task: Task,
    run: TrainingRun,
    *,
    settings: TaskSettings,
) -> dict[str, float]:
    """Train a head and its encoder, and save them in the run folder (see `run_folder.py`).

    The folder's `model/` opens with its class, with transformers' auto classes and, where there is
    one label, with `sentence_transformers.CrossEncoder`. Settings of 0 `steps` mean `epochs`.

    Returns:
        The metrics on the held-out rows; `train_rows_cut` and `held_out_rows_cut`: how many texts
        lost tokens. Empty where the run was interrupted.
    """
    settings.check()
    settings.check_rows(len(task.train), f"there are {len(task.train)} rows to train on,")
    steps = settings.steps or math.ceil(settings.epochs * (len(task.train) // settings.batch_size))
    settings = replace(settings, steps=steps)
    arguments = TrainingArguments(
        **shared_arguments(settings, run),
        per_device_train_batch_size=settings.batch_size,
        accelerator_config={"split_batches": True},
        remove_unused_columns=False,
    )
    size = settings.batch_size // arguments.world_size or 1
    longest = max(task.train, key=lambda example: len(example.ids))
    tokens, sample = (
        len(longest.ids),
        {name: value.to(task.model.device) for name, value in collate([longest]).items()},
    )
    what, remedy = (
        f"{size} rows are read at once, and the longest has {tokens:,} tokens",
        "batch_size or length",
    )
    check_memory(
        task.model,
        lambda: task.model(**sample),
        tokens,
        size * tokens,
        arguments.device,
        what,
        remedy,
    )
    folder = RunFolder(run, asdict(settings), main=arguments.process_index == 0)
    trainer = _Trainer(
        model=task.model,
        args=arguments,
        train_dataset=task.train,
        data_collator=collate,
        optimizers=optimizer_and_schedule(task.model, settings),
    )
    if not run_to_end(trainer, RunCallback(folder, settings.batch_size, "rows")):
        return {}
    figures: dict[str, float] = {}
    if task.held_out:
        predictions = predict(
            task.model, task.held_out, batch_size=settings.batch_size, precision=settings.precision
        )
        figures = task.score(list(predictions))
    for name, examples in (("train", task.train), ("held_out", task.held_out)):
        figures[f"{name}_rows_cut"] = float(sum(example.cut for example in examples))
    if trainer.is_world_process_zero():
        with without_progress_bars():
            task.model.save_pretrained(folder.model)
        task.tokenizer.save(folder.model)
        if task.marked:
            write_template(folder.model, task.tokenizer)
        write_limit(folder.model, settings.length)
        folder.finish(task.title, figures)
    return figures


class _Trainer(CheckedSteps, Trainer):
    pass


def split_rows(
    files: Sequence[Path],
    validation: Sequence[Path],
    settings: TaskSettings,
    read: Callable[[Sequence[Path]], list[Any]],
) -> tuple[list[Any], list[Any]]:
    """Read the rows to train on and those held out: the files of `validation`, or a share drawn
    with a fixed seed.
    """
    settings.check()  # before anything is read
    rows = read(files)
    if validation:
        return rows, read(validation)
    drawn = np.random.default_rng(SPLIT_SEED).permutation(len(rows))
    aside = set(drawn[: round(settings.held_out * len(rows))].tolist())
    return [row for i, row in enumerate(rows) if i not in aside], [rows[i] for i in sorted(aside)]


def _labels(classes: dict[str, int]) -> dict[str, Any]:
    return {"id2label": {i: name for name, i in classes.items()}, "label2id": classes}


def start_head(cls: Any, model: str | None, head: dict[str, Any]) -> tuple[Any, Tokenizer]:
    """Open a model with this head and the same labels as it is, or put a new head on the encoder of
    any other.
    """
    folder = model_folder(model)
    config = AveyBConfig.from_pretrained(folder)
    alike = (getattr(config, name, None) == value for name, value in head.items())
    same = config.architectures == [cls.__name__] and all(alike)
    made = cls.from_pretrained(folder) if same else cls.from_encoder(folder, **head)
    return made, load_tokenizer(folder, made.config.vocab_size)
