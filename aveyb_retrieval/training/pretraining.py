"""Pre-training on packed sequences with transformers' Trainer: masked tokens, or the next ones.

`pack_texts` writes all documents one after another, each closed by a separator, as int32 on disk;
memory does not grow with the text. Sequences and their splits are cut from that without regard to
documents, as in the paper: a split may hold the end of one document and the beginning of the next,
whose tokens the layers mix, and may retrieve splits of other documents.

Sample i of `PackedSequences` is number i of an endless run: which N tokens, and which of them are
masked, follow from (seed, i) alone. A resumed run, or one spread over several processes, therefore
sees exactly what an unbroken one sees.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import PreTrainedModel, Trainer, TrainingArguments

from aveyb_retrieval.encoder.config import AveyBConfig, SettingsConfig
from aveyb_retrieval.encoder.model_folders import fingerprint, model_folder
from aveyb_retrieval.encoder.network.model import IGNORED_LABEL, AveyBForMaskedLM
from aveyb_retrieval.encoder.progress_bars import without_progress_bars
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.text.wordpiece import Tokenizer, read_vocabulary, tokenizer_files
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.family.avey import AveyForCausalLM
from aveyb_retrieval.family.config import AveyConfig
from aveyb_retrieval.files import atomic_writer
from aveyb_retrieval.training.run_folder import RunCallback, RunFolder, TrainingRun
from aveyb_retrieval.training.settings import CausalSettings, MLMSettings, PackedSettings
from aveyb_retrieval.training.trainer import (
    CheckedSteps,
    check_memory,
    optimizer_and_schedule,
    run_to_end,
    shared_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_ORDER, _MASK = 0, 1  # two independent streams of random numbers
# in the run folder, beside what run_folder.py lists
TRAIN, HELD_OUT = ("train.tokens", "held_out.tokens")


@dataclass(frozen=True)
class Objective:
    """What is predicted: the kind of model, its shapes, and the title of its model card."""

    title: str
    model: type[PreTrainedModel]
    config: type[SettingsConfig]
    presets: Mapping[str, Callable[..., Any]]


OBJECTIVE_BY_NAME = {
    "masked": Objective(
        "Masked-language modeling",
        AveyBForMaskedLM,
        AveyBConfig,
        {
            "mini": AveyBConfig.mini,
            "paper-base": AveyBConfig.paper_base,
            "paper-large": AveyBConfig.paper_large,
            "released-base": AveyBConfig.released_base,
        },
    ),
    "causal": Objective(
        "Next-token prediction",
        AveyForCausalLM,
        AveyConfig,
        {
            "mini": AveyConfig.mini,
            "avey-small": AveyConfig.small,
            "avey-medium": AveyConfig.medium,
            "avey-large": AveyConfig.large,
        },
    ),
}
STRICT_SEQUENCES = 4  # held-out sequences that are scored strictly, which takes S times the work


def open_vocabulary(name: str | None, model: str | None = None) -> Tokenizer:
    """Open `p50k_base`, the vocabulary in a folder, or (None) that of a model, or the embedded
    one's.
    """
    if name == "p50k_base":
        return AveyBTokenizer.p50k_base()
    return read_vocabulary(name or str(model_folder(model)))


def starting_model(
    model: str | None,
    preset: str,
    tokenizer: Tokenizer,
    *,
    seed: int,
    fields: Mapping[str, Any],
    objective: str = "masked",
) -> PreTrainedModel:
    """Load a saved model in float32, or make a new one of a preset with an embedding for each id of
    the vocabulary.

    `fields` of a new one's configuration replace the preset's; `seed` decides its parameters.
    """
    kind = OBJECTIVE_BY_NAME[objective]
    if model is None:
        made = _new_model(kind, preset, tokenizer, seed, fields)
    elif fields:
        raise ConfigError(
            f"{model} has its own configuration; {', '.join(fields)} can be set for a new model"
            " only"
        )
    else:
        made = kind.model.from_pretrained(model, dtype=torch.float32)
        tokenizer.check_embeddings(made.config.vocab_size, model)
    if isinstance(made, AveyForCausalLM):
        made.generation_config.eos_token_id = tokenizer.sep_id
    return made


def _new_model(
    kind: Objective, preset: str, tokenizer: Tokenizer, seed: int, fields: Mapping[str, Any]
) -> PreTrainedModel:
    if preset not in kind.presets:
        raise ConfigError(f"preset is {preset!r}; choose one of {', '.join(kind.presets)}")
    if "vocab_size" in fields:
        raise ConfigError(
            f"vocab_size is the vocabulary's, {tokenizer.vocab_size:,}: give another vocabulary"
        )
    known = kind.config.settings_type.__struct_fields__
    if unknown := [name for name in fields if name not in known]:
        raise ConfigError(f"{unknown[0]!r} is not a field of {kind.config.__name__}")
    torch.manual_seed(seed)
    config = kind.presets[preset](**fields, vocab_size=tokenizer.vocab_size)
    return kind.model(config)


def pack_texts(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    train: Path,
    held_out: Path,
    *,
    separator: int,
    every: int = 100,
) -> tuple[int, int]:
    """Tokenize documents, closed by `separator`, into two int32 files; `train` appears last, when
    both are complete.

    Every `every`-th document is held out (0: none). Returns the numbers of tokens written to each.
    """
    sizes = [0, 0]
    # left in reverse: `train` is renamed last
    with atomic_writer(train) as trained_file, atomic_writer(held_out) as aside:
        for number, text in enumerate(texts, start=1):
            ids = np.append(tokenizer.encode_ids(text), np.int32(separator))
            which = int(bool(every) and number % every == 0)
            (trained_file, aside)[which].write(ids.astype("<i4").tobytes())
            sizes[which] += len(ids)
    return sizes[0], sizes[1]


class PackedSequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of `length` tokens of a packed file, in a new random order every epoch.

    Args:
        file: what `pack_texts` wrote; a remainder of less than a sequence is not used.
        samples: length of the run; None: once through the file, in order.
    """

    beyond = 0  # tokens behind a sequence that are read with it

    def __init__(
        self, file: Path, *, length: int, seed: int = 0, samples: int | None = None
    ) -> None:
        if length < 1:
            raise ConfigError(f"length is {length}; a sequence has at least 1 token")
        tokens = file.stat().st_size // 4
        self.sequences = (tokens - self.beyond) // length
        if self.sequences <= 0:
            raise InputError(
                f"the text has {tokens} tokens, one sequence needs {length + self.beyond}: give"
                " more text or a smaller N"
            )
        self.file, self.length, self.seed = file, length, seed
        self.in_order = samples is None
        self.samples = self.sequences if samples is None else samples
        self._tokens: np.ndarray | None = None
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        # opened where it is used: worker processes map the file themselves
        if self._tokens is None:
            self._tokens = np.memmap(self.file, dtype="<i4", mode="r")
        start = (index if self.in_order else self._row(index)) * self.length
        ids = self._tokens[start : start + self.length + self.beyond].astype(np.int64)
        return self.sample(torch.from_numpy(ids), index)

    def sample(self, ids: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        """Make sample number `index` of its tokens: `input_ids` and `labels`, int64 `[length]`."""
        raise NotImplementedError

    def _row(self, index: int) -> int:
        epoch, position = divmod(index, self.sequences)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, _ORDER, epoch]).permutation(
                self.sequences
            )
        return int(self._order[position])


class MaskedSequences(PackedSequences):
    """Sequences some of whose tokens are [MASK] and have a label; elsewhere labels are -100.

    Exactly `round(mask_rate * length)` tokens are masked, all by [MASK] (the paper's recipe), so
    every sequence weighs as much.
    """

    def __init__(
        self, file: Path, *, length: int, mask_id: int, mask_rate: float = 0.2, **order: Any
    ) -> None:
        self.masked, self.mask_id = round(mask_rate * length), mask_id
        if length < 1 or not 0 < self.masked < length:
            raise ConfigError(
                f"mask_rate {mask_rate} of {length} tokens masks {self.masked} of them; at least"
                " one must be masked and one be seen"
            )
        super().__init__(file, length=length, **order)

    def sample(self, ids: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        """See the base class."""
        places = np.random.default_rng([self.seed, _MASK, index]).permutation(self.length)
        chosen = places[: self.masked]
        labels = torch.full_like(ids, IGNORED_LABEL)
        labels[chosen] = ids[chosen]
        ids[chosen] = self.mask_id
        return {"input_ids": ids, "labels": labels}


class NextTokens(PackedSequences):
    """Sequences whose labels are the tokens that follow theirs."""

    beyond = 1

    def sample(self, ids: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        """See the base class."""
        return {"input_ids": ids[:-1], "labels": ids[1:].clone()}


def pretrain(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    run: TrainingRun,
    *,
    settings: MLMSettings | CausalSettings,
) -> dict[str, float]:
    """Train a model to predict masked or next tokens, and save it in the run folder.

    A resumed run equals one that was never stopped. The settings say what is predicted, and the
    model takes `input_ids` and `labels` of that. Texts are tokenized once into the run
    folder.

    Returns:
        Held-out `loss` (nats) and `accuracy` over the labels. Of next tokens these are "as
        trained"; `strict_loss` and `strict_accuracy` of the first sequences are what generation
        gives. Empty where fewer tokens than one sequence were held out, or the run was interrupted.
    """
    rows = int(model.config.vocab_size)
    if tokenizer.vocab_size > rows:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model {rows} embeddings; give it as"
            " many"
        )
    settings.check()
    arguments = _arguments(settings, run)
    _check_memory(model, settings, arguments.device)
    with arguments.main_process_first(local=False, desc="packing the text"):
        with TemporaryDirectory() as saved:  # the vocabulary may come from no folder
            tokenizer.save(saved)
            vocabulary = fingerprint(Path(saved), tokenizer_files(Path(saved)), {})
        folder = RunFolder(
            replace(run, data=run.data | {"vocabulary": vocabulary}),
            asdict(settings) | _shape(model),
            main=arguments.process_index == 0,
        )
        train_file, held_out_file = folder.path / TRAIN, folder.path / HELD_OUT
        if folder.main and not (run.resume and train_file.exists()):
            pack_texts(
                texts,
                tokenizer,
                train_file,
                held_out_file,
                every=settings.held_out_every,
                separator=tokenizer.sep_id,
            )

    held_out = open_held_out(folder.path, tokenizer, settings)
    if settings.evaluate_every and held_out is None:
        raise InputError(
            f"{held_out_file} holds less than one sequence of {settings.length} tokens,"
            f" evaluate_every is {settings.evaluate_every}: hold out more documents (held_out_every"
            f" {settings.held_out_every}), or give 0"
        )
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=_open(
            train_file,
            tokenizer,
            settings,
            seed=settings.seed,
            samples=settings.steps * settings.batch_size,
        ),
        eval_dataset=held_out,
        optimizers=optimizer_and_schedule(model, settings),
    )
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if not run_to_end(
        trainer, RunCallback(folder, settings.batch_size * settings.length, "tokens")
    ):
        return {}
    figures: dict[str, float] = {}
    if held_out is not None:
        figures = _held_out_figures(model, held_out, settings)
    if trainer.is_world_process_zero():
        with without_progress_bars():
            model.save_pretrained(folder.model)
        tokenizer.save(folder.model)
        folder.finish(OBJECTIVE_BY_NAME[objective_of(settings)].title, figures)
    return figures


def objective_of(settings: MLMSettings | CausalSettings) -> str:
    """Return the name of the objective that settings are for."""
    return "masked" if isinstance(settings, MLMSettings) else "causal"


def _held_out_figures(
    model: PreTrainedModel, held_out: PackedSequences, settings: MLMSettings | CausalSettings
) -> dict[str, float]:
    size, precision = settings.micro_batch, settings.precision
    figures = evaluate_labels(model, held_out, batch_size=size, precision=precision)
    if objective_of(settings) == "causal":
        first = Subset(held_out, range(min(STRICT_SEQUENCES, len(held_out))))
        strict = evaluate_labels(model, first, batch_size=1, precision=precision, strict=True)
        figures |= {f"strict_{name}": value for name, value in strict.items()}
    return figures


def open_held_out(
    run: Path, tokenizer: Tokenizer, settings: MLMSettings | CausalSettings
) -> PackedSequences | None:
    """Open the held-out documents of a run folder, the same in every evaluation; None: less than
    one sequence.
    """
    file = run / HELD_OUT
    sequence = settings.length
    if objective_of(settings) == "causal":
        sequence += NextTokens.beyond
    if file.stat().st_size // 4 < sequence:
        return None
    return _open(file, tokenizer, settings, seed=settings.seed + 1, samples=None)


def _open(
    file: Path,
    tokenizer: Tokenizer,
    settings: MLMSettings | CausalSettings,
    *,
    seed: int,
    samples: int | None,
) -> PackedSequences:
    length = settings.length
    if not isinstance(settings, MLMSettings):
        return NextTokens(file, length=length, seed=seed, samples=samples)
    mask_id, rate = tokenizer.mask_id, settings.mask_rate
    return MaskedSequences(
        file, length=length, mask_id=mask_id, mask_rate=rate, seed=seed, samples=samples
    )


@torch.inference_mode()
def evaluate_labels(
    model: nn.Module,
    sequences: Dataset[dict[str, torch.Tensor]],
    *,
    batch_size: int,
    precision: str = "float32",
    **options: Any,
) -> dict[str, float]:
    """Return the mean cross entropy (nats) and the accuracy over the labels of `sequences`.

    `options` are those of the model's `forward`.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    loss = right = count = 0.0
    # A generator of its own: the loader draws a seed, and the run's random numbers must not depend
    # on evaluations.
    for batch in DataLoader(sequences, batch_size=batch_size, generator=torch.Generator()):
        labels = batch["labels"].to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            ids = batch["input_ids"].to(device)
            logits = model(input_ids=ids, labels=labels, **options).logits
        masked_labels = labels[labels != IGNORED_LABEL]
        if logits.dim() == 3:  # a model that gives logits everywhere
            logits = logits[labels != IGNORED_LABEL]
        loss += nn.functional.cross_entropy(logits.float(), masked_labels, reduction="sum").item()
        right += (logits.argmax(-1) == masked_labels).sum().item()
        count += len(masked_labels)
    model.train(training)
    return {"loss": loss / count, "accuracy": right / count}


class _Trainer(CheckedSteps, Trainer):
    """Measures the held-out documents with `evaluate_labels`."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Log and return `eval_loss` and `eval_accuracy`."""
        assert isinstance(self.model, nn.Module) and isinstance(self.eval_dataset, PackedSequences)
        size, precision = (
            self.args.per_device_train_batch_size,
            "bfloat16" if self.args.bf16 else "float32",
        )
        figures = evaluate_labels(
            self.model, self.eval_dataset, batch_size=size, precision=precision
        )
        figures = {f"eval_{name}": value for name, value in figures.items()}
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, figures
        )
        return figures


def _arguments(settings: PackedSettings, run: TrainingRun) -> TrainingArguments:
    arguments = TrainingArguments(
        **shared_arguments(settings, run),
        per_device_train_batch_size=settings.micro_batch,
        train_sampling_strategy="sequential",  # the samples are in a random order already
        eval_strategy="steps" if settings.evaluate_every else "no",
        eval_steps=settings.evaluate_every or None,
    )
    per_process, remainder = divmod(
        settings.batch_size, arguments.world_size * settings.micro_batch
    )
    if remainder or not per_process:
        raise ConfigError(
            f"batch_size {settings.batch_size} must be a multiple of processes x micro_batch = "
            f"{arguments.world_size} x {settings.micro_batch}"
        )
    arguments.gradient_accumulation_steps = per_process
    return arguments


def _check_memory(
    model: PreTrainedModel, settings: MLMSettings | CausalSettings, device: torch.device
) -> None:
    """Check that a piece of a batch fits; with gradient checkpointing only the layers' inputs are
    kept.
    """
    if settings.gradient_checkpointing:
        return
    ids = torch.zeros((1, settings.length), dtype=torch.long, device=model.device)
    labels = torch.full_like(ids, IGNORED_LABEL)
    share = settings.mask_rate if isinstance(settings, MLMSettings) else 1
    labels[:, :: max(1, round(1 / share))] = 0
    what = f"{settings.micro_batch} sequences of {settings.length} tokens are read at once"
    remedy = "micro_batch or length, or give gradient_checkpointing"
    tokens = settings.micro_batch * settings.length
    check_memory(
        model,
        lambda: model(input_ids=ids, labels=labels),
        settings.length,
        tokens,
        device,
        what,
        remedy,
    )


def _shape(model: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of the model's configuration as a run folder records them."""
    # of the file that a model was read from
    incidental = ("transformers_version", "architectures", "dtype")
    fields = model.config.to_diff_dict()
    return {f"model.{name}": value for name, value in fields.items() if name not in incidental}
