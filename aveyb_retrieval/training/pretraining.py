"""Pre-training on packed sequences with transformers' Trainer: what masked and causal language models share."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainingArguments

from aveyb_retrieval.encoder.folders import fingerprint
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.packing import (
    IGNORED_LABEL,
    MaskedSequences,
    NextTokens,
    PackedSequences,
    end_of_text,
    pack_texts,
)
from aveyb_retrieval.training.run_folder import RunCallback, RunFolder
from aveyb_retrieval.training.settings import CLMSettings, MLMSettings
from aveyb_retrieval.training.trainer import CheckedSteps, optimizer_and_schedule, run_to_end, shared_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

TRAIN, HELD_OUT = "train.tokens", "held_out.tokens"  # in the run folder, beside what run_folder.py lists


def pretrain(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    folder: str | Path,
    *,
    data: dict[str, Any],
    settings: MLMSettings | CLMSettings,
    resume: bool = False,
    device: str | None = None,
) -> dict[str, float]:
    """Train a model and save it in the run folder; the settings say with which objective.

    Args:
        model: takes `input_ids` and `labels`: of masked tokens (`MLMSettings`), or the next ones (`CLMSettings`).
            Avey's sequences are scored as trained: all positions of a split share its ranking (`avey_model.py`).
        tokenizer: of the model.
        texts: documents; tokenized once into the run folder.
        folder: the run folder (see `run_folder.py`).
        data: fingerprints of what `texts` came from.
        settings: of the run.
        resume: continue from the newest checkpoint; the run then equals one that was never stopped.
        device: "cpu" keeps the run off an accelerator; None: the trainer chooses.

    Returns:
        Held-out `loss` (nats) and `accuracy` over the labels; empty where fewer tokens than one sequence were held
        out, or the run was interrupted.

    Raises:
        ConfigError: settings are out of range, or the run folder holds another run.
        InputError: too little text, a loss that is not a number, or a resume that does not fit.
    """
    _check(model, tokenizer, settings)
    arguments = _arguments(folder, settings, device)
    masked = isinstance(settings, MLMSettings)
    with arguments.main_process_first(local=False, desc="packing the text"):
        known, data = asdict(settings) | _shape(model), data | {"vocabulary": _vocabulary(tokenizer)}
        run = RunFolder(folder, known, data, resume=resume, main=arguments.process_index == 0)
        train_file, held_out_file = run.path / TRAIN, run.path / HELD_OUT
        if run.main and not (resume and train_file.exists()):
            separator = tokenizer.sep_id if masked else end_of_text(tokenizer)
            every = settings.held_out_every
            pack_texts(texts, tokenizer, train_file, held_out_file, every=every, separator=separator)

    held_out = open_held_out(run.path, tokenizer, settings)
    if settings.evaluate_every and held_out is None:
        raise InputError(
            f"{held_out_file} holds less than one sequence of {settings.length} tokens, evaluate_every is "
            f"{settings.evaluate_every}: hold out more documents (held_out_every {settings.held_out_every}), or give 0"
        )
    callback = RunCallback(run, units_per_step=settings.batch_size * settings.length)
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=_open(
            train_file, tokenizer, settings, seed=settings.seed, samples=settings.steps * settings.batch_size
        ),
        eval_dataset=held_out,
        optimizers=optimizer_and_schedule(model, settings),
        callbacks=[callback],
    )
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if not run_to_end(trainer, callback, run.checkpoint):
        return {}
    figures: dict[str, float] = {}
    if held_out is not None:
        figures = evaluate_labels(model, held_out, batch_size=settings.micro_batch, precision=settings.precision)
    if trainer.is_world_process_zero():
        model.save_pretrained(run.model)
        tokenizer.save(run.model)
        run.finish("Masked-language modeling" if masked else "Next-token training", figures)
    return figures


def open_held_out(run: Path, tokenizer: Tokenizer, settings: MLMSettings | CLMSettings) -> PackedSequences | None:
    """Open the held-out documents of a run folder, the same in every evaluation; None: less than one sequence."""
    file = run / HELD_OUT
    if file.stat().st_size // 4 < settings.length + 1:
        return None
    return _open(file, tokenizer, settings, seed=settings.seed + 1, samples=None)


def _open(
    file: Path, tokenizer: Tokenizer, settings: MLMSettings | CLMSettings, *, seed: int, samples: int | None
) -> PackedSequences:
    """Open a file of packed tokens as the samples of the objective."""
    length = settings.length
    if isinstance(settings, CLMSettings):
        return NextTokens(file, length=length, seed=seed, samples=samples)
    mask_id, rate = tokenizer.mask_id, settings.mask_rate
    return MaskedSequences(file, length=length, mask_id=mask_id, mask_rate=rate, seed=seed, samples=samples)


@torch.inference_mode()
def evaluate_labels(
    model: nn.Module, sequences: PackedSequences, *, batch_size: int, precision: str = "float32"
) -> dict[str, float]:
    """Return the mean cross entropy (nats) and the accuracy over the labels of `sequences`."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    loss = right = count = 0.0
    # A generator of its own: the loader draws a seed, and the run's random numbers must not depend on evaluations.
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
        assert isinstance(self.model, nn.Module) and isinstance(self.eval_dataset, PackedSequences)
        size, precision = self.args.per_device_train_batch_size, "bfloat16" if self.args.bf16 else "float32"
        figures = evaluate_labels(self.model, self.eval_dataset, batch_size=size, precision=precision)
        figures = {f"eval_{name}": value for name, value in figures.items()}
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures


def _arguments(folder: str | Path, settings: MLMSettings | CLMSettings, device: str | None) -> TrainingArguments:
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


def _shape(model: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of the model's configuration as a run folder records them."""
    incidental = ("transformers_version", "architectures", "dtype")  # of the file that a model was read from
    fields = model.config.to_diff_dict()
    return {f"model.{name}": value for name, value in fields.items() if name not in incidental}


def _vocabulary(tokenizer: Tokenizer) -> str:
    """Return the fingerprint of a vocabulary, which may come from no folder."""
    with TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return fingerprint(Path(folder), tokenizer.files, {})


def _check(model: PreTrainedModel, tokenizer: Tokenizer, settings: MLMSettings | CLMSettings) -> None:
    rows = int(model.config.vocab_size)
    if tokenizer.vocab_size > rows:
        raise ConfigError(f"the tokenizer has {tokenizer.vocab_size} ids, the model {rows} embeddings; give it as many")
    settings.check()
