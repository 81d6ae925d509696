"""Settings of every training objective: defaults, limits, and the help that `aveyb-train` shows.

Nothing heavy is imported here, so that the command line can derive its options from these classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEDULES = ("cosine", "linear", "trapezoidal", "constant")
PRECISIONS = ("float32", "bfloat16")
OBJECTIVES = ("masked", "causal")
LARGEST_INTEGER = 2**31 - 1  # of a whole number, where a field says nothing else
MAX_SEED = 2**32 - 1  # numpy's


@dataclass(frozen=True)
class NumberRange:
    """The numbers that a field may have: from `least` to `most`, without them where
    they are open.
    """

    least: float
    most: float
    least_open: bool
    most_open: bool

    def check(self, name: str, number: float) -> None:
        """Raise ConfigError where the number of a field is not one of them; NaN is none."""
        above = number > self.least if self.least_open else number >= self.least
        below = number < self.most if self.most_open else number <= self.most
        if not (above and below and math.isfinite(number)):
            raise ConfigError(f"{name} is {number}; it must be {self}")

    def __str__(self) -> str:
        least = f"{'above' if self.least_open else 'at least'} {self.least:.10g}"
        most = f"{'below' if self.most_open else 'at most'} {self.most:.10g}"
        return least if self.most in (math.inf, LARGEST_INTEGER) else f"{least} and {most}"


def setting(
    default: Any,
    text: str,
    *,
    choices: Sequence[str] = (),
    kind: type | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a field that users may set: its default, a line of help, its choices (empty: any) or
    range.

    Numbers are at least `least` or above `above`, at most `most` or below `below`; `kind` is the
    type of a value (of an item, for a tuple) where the default does not show it.
    """
    limits = None
    low = least if above is None else above
    if low is not None:
        high = most if below is None else below
        if high is None:
            high = LARGEST_INTEGER if int in (kind, type(default)) else math.inf
        limits = NumberRange(low, high, above is not None, below is not None)
    return field(
        default=default,
        metadata={"help": text, "choices": tuple(choices), "kind": kind, "limits": limits},
    )


def described(settings: type) -> dict[str, Mapping[str, Any]]:
    """Map each field that users may set to its metadata; a subclass that changes only a default
    keeps the text.
    """
    fields_of_settings: dict[str, Mapping[str, Any]] = {}
    for base in settings.__mro__:
        if is_dataclass(base):
            for name in base.__annotations__:
                metadata = base.__dataclass_fields__[name].metadata
                if metadata:
                    fields_of_settings.setdefault(name, metadata)
    return fields_of_settings


class Checked:
    """Settings whose fields are declared by `setting`."""

    def check(self) -> None:
        """Validate every field."""
        for name, rules in described(type(self)).items():
            value = getattr(self, name)
            if rules["choices"] and value not in rules["choices"]:
                raise ConfigError(
                    f"{name} is {value!r}; choose one of {', '.join(rules['choices'])}"
                )
            if rules["limits"] is not None:
                for number in value if isinstance(value, tuple) else (value,):
                    if number is not None:
                        rules["limits"].check(name, number)


@dataclass(frozen=True)
class RunSettings(Checked):
    """Hyperparameters shared by all objectives; the defaults are the paper's for contrastive
    fine-tuning.

    `batch_size` counts rows over all processes; `warmup` and `floor` are shares of the steps and of
    the peak.
    """

    steps: int = setting(1000, "Optimizer steps.", least=1)
    batch_size: int = setting(128, "Rows per step, over all processes.", least=1)
    learning_rate: float = setting(1e-4, "Peak learning rate.", above=0)
    schedule: str = setting(
        "linear", "Shape of the learning rate after the warm-up.", choices=SCHEDULES
    )
    warmup: float = setting(
        0.1, "Share of the steps in which the learning rate rises to its peak.", least=0, below=1
    )
    floor: float = setting(0.0, "Final learning rate, as a share of its peak.", least=0, most=1)
    betas: tuple[float, float] = setting(
        (0.9, 0.95), "Adam's decay rates of the gradient's mean and square.", least=0, below=1
    )
    eps: float = setting(1e-5, "Adam's epsilon.", least=0)
    weight_decay: float = setting(
        0.1, "Weight decay of matrices; biases, norms and scalars have none.", least=0
    )
    clip: float = setting(1.0, "Limit of the gradient's norm (0: none).", least=0)
    precision: str = setting(
        "bfloat16", "Precision of the matrix products; bfloat16 by autocast.", choices=PRECISIONS
    )
    seed: int = setting(0, "Seed of every random choice.", least=0, most=MAX_SEED)
    log_every: int = setting(10, "Steps between lines of metrics.jsonl.", least=1)
    save_every: int = setting(500, "Steps between checkpoints.", least=1)
    keep: int = setting(2, "Checkpoints to keep.", least=1)

    def check_rows(self, rows: int, said: str, more: str = "data") -> None:
        """Raise InputError where there are fewer rows than one batch has; what is `said` of them
        begins the message.
        """
        if rows < self.batch_size:
            raise InputError(
                f"{said} less than one batch of {self.batch_size}: give more {more} or a smaller"
                " batch"
            )


@dataclass(frozen=True)
class PackedSettings(RunSettings):
    """Training on packed sequences.

    A row is a sequence of `length` tokens; a process takes `batch_size / processes` of them,
    `micro_batch` at a time.
    """

    length: int = setting(2048, "Tokens per packed sequence.", least=1)
    micro_batch: int = setting(
        8, "Sequences per forward pass; gradients are accumulated to a full batch.", least=1
    )
    gradient_checkpointing: bool = setting(False, "Use less memory and a third more time.")
    held_out_every: int = setting(
        100, "Keep every N-th document for validation (0: none).", least=0
    )
    evaluate_every: int = setting(
        0, "Steps between validations; 0 validates at the end only.", least=0
    )
    schedule: str = "cosine"


@dataclass(frozen=True)
class MLMSettings(PackedSettings):
    """Masked-language modeling; the defaults are the paper's recipe for its base model.

    That is 180 billion tokens, 512K of them a step.
    """

    mask_rate: float = setting(0.2, "Share of tokens replaced by [MASK].", above=0, below=1)
    steps: int = 343_323
    batch_size: int = 256
    learning_rate: float = 5e-4
    betas: tuple[float, float] = (0.95, 0.95)
    eps: float = 1e-18
    weight_decay: float = 0.01


@dataclass(frozen=True)
class CausalSettings(PackedSettings):
    """Next-token prediction by Avey; the defaults are its paper's recipe.

    That is 100 billion tokens, 512K of them a step.
    """

    length: int = 512
    steps: int = 190_735
    batch_size: int = 1024
    learning_rate: float = 1e-3
    warmup: float = 0.0
    floor: float = 0.1
    eps: float = 1e-12
    seed: int = 11


# What a preset of a new model has instead of its objective's defaults.
RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("masked", "paper-large"): {"learning_rate": 2.5e-4},
    ("causal", "avey-large"): {"batch_size": 2048, "steps": 95_367},
    ("causal", "mini"): {"length": 256, "batch_size": 8, "steps": 2000, "eps": 1e-8},
}


def recipe(objective: str, preset: str | None) -> MLMSettings | CausalSettings:
    """Return an objective's settings for a new model of a preset, or (None) a continued one."""
    fields = RECIPES.get((objective, preset or ""), {})
    return CausalSettings(**fields) if objective == "causal" else MLMSettings(**fields)


@dataclass(frozen=True)
class ContrastiveSettings(RunSettings):
    """Contrastive fine-tuning; the defaults are the paper's protocol (its learning rate: the best
    of four).
    """

    micro_batch: int = setting(32, "Rows per forward pass (GradCache); limits memory.", least=1)
    max_tokens: int = setting(
        512,
        "Cut texts to this many tokens in training; the number of cut texts is printed.",
        least=1,
    )
    duplicates: str = setting(
        "mask",
        "mask: in a batch, positives of the same question (or of one with the same words) are no"
        " negatives of each other; keep: they are.",
        choices=("mask", "keep"),
    )
    scale: float = setting(20.0, "Factor applied to the cosines.", above=0)
    matryoshka: tuple[int, ...] = setting(
        (), "Also train vectors truncated to N dimensions. Repeatable.", kind=int, least=1
    )


@dataclass(frozen=True)
class TaskSettings(RunSettings):
    """Training of a head with its encoder; the defaults are the paper's protocol (its learning
    rate: one of four).
    """

    steps: int = setting(0, "Optimizer steps; 0: as many as --epochs need.", least=0)
    epochs: float = setting(1.0, "Passes over the training data.", above=0)
    length: int = setting(
        512, "Cut texts to this many tokens; how many texts were cut is printed.", least=1
    )
    held_out: float = setting(
        0.05,
        "Share of the rows kept for validation, without --validation.",
        least=0,
        below=1,
    )
    batch_size: int = 32


@dataclass(frozen=True)
class ClassifySettings(TaskSettings):
    """Labels of texts and pairs."""

    loss: str = setting(
        "cross_entropy",
        "cross_entropy: classes; mse: one number; bce: one number from 0 to 1, which makes a"
        " reranker.",
        choices=("cross_entropy", "mse", "bce"),
    )


@dataclass(frozen=True)
class AnswerSettings(TaskSettings):
    """Answers to questions in a text: four epochs, batches of 16."""

    epochs: float = 4.0
    batch_size: int = 16


@dataclass(frozen=True)
class DistillSettings(RunSettings):
    """Distillation of a teacher's vectors and scores."""

    vector_weight: float = setting(
        5.0, "Weight of the loss on vectors, 1 - cosine to the teacher's.", least=0
    )
    score_weight: float = setting(
        1.0, "Weight of the loss on the batch's score distributions.", least=0
    )
    temperature: float = setting(0.1, "Temperature of the score distributions.", above=0)
    max_tokens: int = setting(
        512,
        "Cut texts to this many tokens in training; the number of cut texts is printed.",
        least=1,
    )
    teacher_tokens: int = setting(256, "Tokens of a text that the teacher reads.", least=1)
    teacher_precision: str = setting(
        "float32", "Precision of the teacher's matrix products.", choices=PRECISIONS
    )
    phrases: int = setting(
        0, "Phrases of 3 to 16 words drawn from each text, learned as queries.", least=0
    )
    near: int = setting(
        0, "Add to each query one of the N texts that the teachers find nearest to it.", least=0
    )
    steps: int = 2000
    learning_rate: float = 5e-4
    schedule: str = "cosine"
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    weight_decay: float = 0.01


@dataclass(frozen=True)
class MiningRules(Checked):
    """Rules by which some of the texts found for an anchor become its negatives.

    Ranks `[range_min, range_max)` are considered, counted from 0 without the anchor's positives.
    With p the lowest cosine of the anchor's positives, a negative's cosine is at most `p -
    relative_margin |p|`, `p - absolute_margin` and `max_score`; None means no such limit. Of what
    is left, the `negatives` nearest are taken.
    """

    negatives: int = setting(1, "Negatives per pair; each becomes a row of its own.", least=1)
    range_min: int = setting(0, "Skip the best N texts, positives not counted.", least=0)
    range_max: int = setting(50, "Consider the best N texts.", least=1)
    relative_margin: float | None = setting(
        0.05,
        "Keep a negative only if its cosine is below the positive's by this share; closer texts may"
        " be answers.",
        least=0,
    )
    absolute_margin: float | None = setting(
        None,
        "Keep it only if its cosine is below the positive's by this much.  [default: no limit]",
        kind=float,
        least=0,
    )
    max_score: float | None = setting(
        None,
        "Keep it only if its cosine is at most this.  [default: no limit]",
        kind=float,
        least=-1,
        most=1,
    )

    def check(self) -> None:
        """Validate every field, and that the ranks are enough for the negatives."""
        super().check()
        if self.range_min > self.range_max - self.negatives:
            raise ConfigError(
                f"range_min {self.range_min} and range_max {self.range_max} leave"
                f" {self.range_max - self.range_min} ranks for {self.negatives} negatives;"
                " range_max must be higher"
            )

    def limit(self, positive: float) -> float:
        """Return the highest cosine of a negative where the lowest cosine of a positive is
        `positive`.
        """
        relative, absolute = self.relative_margin, self.absolute_margin
        return min(
            math.inf if relative is None else positive - relative * abs(positive),
            math.inf if absolute is None else positive - absolute,
            math.inf if self.max_score is None else self.max_score,
        )
