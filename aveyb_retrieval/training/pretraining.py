"""Masked-language modeling on packed sequences with transformers' Trainer.

`pack_texts` writes all documents one after another, each closed by a separator, as int32 on disk;
memory does not grow with the text. Sample i of `MaskedSequences` is number i of an endless run:
which N tokens, and which of them are masked, follow from (seed, i) alone. A resumed run, or one
spread over several processes, therefore sees exactly what an unbroken one sees.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.folders import fingerprint
from aveyb_retrieval.encoder.network.model import IGNORED_LABEL, AveyBForMaskedLM
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.text.wordpiece import Tokenizer, read_vocabulary, tokenizer_files
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.files import atomic_writer
from aveyb_retrieval.training.run_folder import RunCallback, RunFolder
from aveyb_retrieval.training.trainer import (
    CheckedSteps,
    check_memory,
    optimizer_and_schedule,
    run_to_end,
    shared_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aveyb_retrieval.training.settings import MLMSettings

_ORDER, _MASK = 0, 1  # two independent streams of random numbers
TRAIN, HELD_OUT = (
    "train.tokens",
    "held_out.tokens",
)  # in the run folder, beside what run_folder.py lists
PRESETS = {
    "mini": AveyBConfig.mini,
    "paper-base": AveyBConfig.paper_base,
    "paper-large": AveyBConfig.paper_large,
    "released-base": AveyBConfig.released_base,
}


def open_vocabulary(name: str) -> Tokenizer:
    """Open `p50k_base`, or the vocabulary in a folder."""
    return AveyBTokenizer.p50k_base() if name == "p50k_base" else read_vocabulary(name)


def starting_model(
    model: str | None, preset: str, tokenizer: Tokenizer, *, seed: int, fields: Mapping[str, Any]
) -> AveyBForMaskedLM:
    """Load a saved model in float32, or make a new one of a preset with an embedding for each id of
    the vocabulary.

    `fields` of a new one's configuration replace the preset's; `seed` decides its parameters.
    """
    if model is None:
        if preset not in PRESETS:
            raise ConfigError(f"preset is {preset!r}; choose one of {', '.join(PRESETS)}")
        if "vocab_size" in fields:
            raise ConfigError(
                f"vocab_size is the vocabulary's, {tokenizer.vocab_size:,}: give another vocabulary"
            )
        if unknown := [name for name in fields if name not in AveyBConfig.__annotations__]:
            raise ConfigError(f"{unknown[0]!r} is not a field of AveyBConfig")
        torch.manual_seed(seed)
        return AveyBForMaskedLM(PRESETS[preset](**fields, vocab_size=tokenizer.vocab_size))
    if fields:
        raise ConfigError(
            f"{model} has its own configuration; {', '.join(fields)} can be set for a new model"
            " only"
        )
    loaded: AveyBForMaskedLM = AveyBForMaskedLM.from_pretrained(model, dtype=torch.float32)
    tokenizer.check_embeddings(loaded.config.vocab_size, model)
    return loaded


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
    with (
        atomic_writer(train) as kept,
        atomic_writer(held_out) as aside,
    ):  # left in reverse: `train` is renamed last
        for number, text in enumerate(texts, start=1):
            ids = np.append(tokenizer.encode_ids(text), np.int32(separator))
            which = int(bool(every) and number % every == 0)
            (kept, aside)[which].write(ids.astype("<i4").tobytes())
            sizes[which] += len(ids)
    return sizes[0], sizes[1]


class MaskedSequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of `length` tokens of a packed file, in a new random order every epoch.

    Sample i: `input_ids` and `labels`, int64 `[length]`; labels are -100 where a token is not
    masked. Exactly `round(mask_rate * length)` tokens are masked, all by [MASK] (the paper's
    recipe), so every sequence weighs as much.

    Args:
        file: what `pack_texts` wrote; a remainder of less than `length` tokens is not used.
        samples: length of the run; None: once through the file, in order.
    """

    def __init__(
        self,
        file: Path,
        *,
        length: int,
        mask_id: int,
        mask_rate: float = 0.2,
        seed: int = 0,
        samples: int | None = None,
    ) -> None:
        self.masked = round(mask_rate * length)
        if length < 1 or not 0 < self.masked < length:
            raise ConfigError(
                f"mask_rate {mask_rate} of {length} tokens masks {self.masked} of them; at least"
                " one must be masked and one be seen"
            )
        tokens = file.stat().st_size // 4
        self.sequences = tokens // length
        if self.sequences <= 0:
            raise InputError(
                f"the text has {tokens} tokens, one sequence needs {length}: give more text or a"
                " smaller N"
            )
        self.file, self.length, self.mask_id, self.seed = file, length, mask_id, seed
        self.in_order = samples is None
        self.samples = self.sequences if samples is None else samples
        self._tokens: np.ndarray | None = None
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        if (
            self._tokens is None
        ):  # opened where it is used: worker processes map the file themselves
            self._tokens = np.memmap(self.file, dtype="<i4", mode="r")
        start = (index if self.in_order else self._row(index)) * self.length
        ids = torch.from_numpy(self._tokens[start : start + self.length].astype(np.int64))
        chosen = np.random.default_rng([self.seed, _MASK, index]).permutation(self.length)[
            : self.masked
        ]
        labels = torch.full_like(ids, IGNORED_LABEL)
        labels[chosen] = ids[chosen]
        ids[chosen] = self.mask_id
        return {"input_ids": ids, "labels": labels}

    def _row(self, index: int) -> int:
        epoch, position = divmod(index, self.sequences)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, _ORDER, epoch]).permutation(
                self.sequences
            )
        return int(self._order[position])


def pretrain(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    folder: str | Path,
    *,
    data: dict[str, Any],
    settings: MLMSettings,
    resume: bool = False,
    device: str | None = None,
) -> dict[str, float]:
    """Train a model to predict masked tokens, and save it in the run folder.

    A resumed run equals one that was never stopped.

    The model takes `input_ids` and `labels` of masked tokens. Texts are tokenized once into the run
    folder; `data` are fingerprints of what they came from.

    Returns:
        Held-out `loss` (nats) and `accuracy` over the labels; empty where fewer tokens than one
        sequence were held
        out, or the run was interrupted.
    """
    rows = int(model.config.vocab_size)
    if tokenizer.vocab_size > rows:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model {rows} embeddings; give it as"
            " many"
        )
    settings.check()
    arguments = _arguments(folder, settings, device)
    _check_memory(model, settings, arguments.device)
    with arguments.main_process_first(local=False, desc="packing the text"):
        with TemporaryDirectory() as saved:  # the vocabulary may come from no folder
            tokenizer.save(saved)
            vocabulary = fingerprint(Path(saved), tokenizer_files(Path(saved)), {})
        known, data = asdict(settings) | _shape(model), data | {"vocabulary": vocabulary}
        run = RunFolder(folder, known, data, resume=resume, main=arguments.process_index == 0)
        train_file, held_out_file = run.path / TRAIN, run.path / HELD_OUT
        if run.main and not (resume and train_file.exists()):
            pack_texts(
                texts,
                tokenizer,
                train_file,
                held_out_file,
                every=settings.held_out_every,
                separator=tokenizer.sep_id,
            )

    held_out = open_held_out(run.path, tokenizer, settings)
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
    if not run_to_end(trainer, RunCallback(run, settings.batch_size * settings.length, "tokens")):
        return {}
    figures: dict[str, float] = {}
    if held_out is not None:
        figures = evaluate_labels(
            model, held_out, batch_size=settings.micro_batch, precision=settings.precision
        )
    if trainer.is_world_process_zero():
        model.save_pretrained(run.model)
        tokenizer.save(run.model)
        run.finish("Masked-language modeling", figures)
    return figures


def open_held_out(run: Path, tokenizer: Tokenizer, settings: MLMSettings) -> MaskedSequences | None:
    """Open the held-out documents of a run folder, the same in every evaluation; None: less than
    one sequence.
    """
    file = run / HELD_OUT
    if file.stat().st_size // 4 < settings.length:
        return None
    return _open(file, tokenizer, settings, seed=settings.seed + 1, samples=None)


def _open(
    file: Path, tokenizer: Tokenizer, settings: MLMSettings, *, seed: int, samples: int | None
) -> MaskedSequences:
    mask_id, rate = tokenizer.mask_id, settings.mask_rate
    return MaskedSequences(
        file, length=settings.length, mask_id=mask_id, mask_rate=rate, seed=seed, samples=samples
    )


@torch.inference_mode()
def evaluate_labels(
    model: nn.Module, sequences: MaskedSequences, *, batch_size: int, precision: str = "float32"
) -> dict[str, float]:
    """Return the mean cross entropy (nats) and the accuracy over the labels of `sequences`."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    loss = right = count = 0.0
    # A generator of its own: the loader draws a seed, and the run's random numbers must not depend
    # on evaluations.
    for batch in DataLoader(sequences, batch_size=batch_size, generator=torch.Generator()):
        labels = batch["labels"].to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(input_ids=batch["input_ids"].to(device), labels=labels).logits
        asked = labels[labels != IGNORED_LABEL]
        if logits.dim() == 3:  # a model that gives logits everywhere
            logits = logits[labels != IGNORED_LABEL]
        loss += nn.functional.cross_entropy(logits.float(), asked, reduction="sum").item()
        right += (logits.argmax(-1) == asked).sum().item()
        count += len(asked)
    model.train(training)
    return {"loss": loss / count, "accuracy": right / count}


class _Trainer(CheckedSteps, Trainer):
    """Measures the held-out documents with `evaluate_labels`."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Log and return `eval_loss` and `eval_accuracy`."""
        assert isinstance(self.model, nn.Module) and isinstance(self.eval_dataset, MaskedSequences)
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


def _arguments(folder: str | Path, settings: MLMSettings, device: str | None) -> TrainingArguments:
    arguments = TrainingArguments(
        **shared_arguments(settings, folder, device),
        per_device_train_batch_size=settings.micro_batch,
        train_sampling_strategy="sequential",  # the samples are in a random order already
        eval_strategy="steps" if settings.evaluate_every else "no",
        eval_steps=settings.evaluate_every or None,
    )
    per_process, rest = divmod(settings.batch_size, arguments.world_size * settings.micro_batch)
    if rest or not per_process:
        raise ConfigError(
            f"batch_size {settings.batch_size} must be a multiple of processes x micro_batch = "
            f"{arguments.world_size} x {settings.micro_batch}"
        )
    arguments.gradient_accumulation_steps = per_process
    return arguments


def _check_memory(model: PreTrainedModel, settings: MLMSettings, device: torch.device) -> None:
    """Check that a piece of a batch fits; with gradient checkpointing only the layers' inputs are
    kept.
    """
    if settings.gradient_checkpointing:
        return
    ids = torch.zeros((1, settings.length), dtype=torch.long, device=model.device)
    labels = torch.full_like(ids, IGNORED_LABEL)
    labels[:, :: max(1, round(1 / settings.mask_rate))] = 0
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
    incidental = (
        "transformers_version",
        "architectures",
        "dtype",
    )  # of the file that a model was read from
    fields = model.config.to_diff_dict()
    return {f"model.{name}": value for name, value in fields.items() if name not in incidental}
