"""Masked-language modelling on transformers' Trainer; the defaults are the paper's recipe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainingArguments

from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.packing import IGNORED_LABEL, MaskedSequences, pack_texts
from aveyb_retrieval.training.run_folder import RunCallback, RunFolder
from aveyb_retrieval.training.trainer import (
    CheckedSteps,
    RunSettings,
    optimizer_and_schedule,
    run_to_end,
    shared_arguments,
)

TRAIN, HELD_OUT = "train.tokens", "held_out.tokens"  # in the run folder, beside what runs.py lists


@dataclass(frozen=True)
class MLMSettings(RunSettings):
    """What decides a run. The defaults are the paper's; `batch_size` counts sequences over all processes.

    One step sees `batch_size * length` tokens (512K in the paper). A process takes `batch_size / processes` of them,
    `micro_batch` at a time. Every `evaluate_every` steps the held-out documents are looked at (0: at the end only).
    """

    steps: int = 90_000
    length: int = 2048
    batch_size: int = 256
    micro_batch: int = 8
    mask_rate: float = 0.2
    learning_rate: float = 5e-4
    schedule: str = "cosine"
    betas: tuple[float, float] = (0.95, 0.95)
    eps: float = 1e-18
    weight_decay: float = 0.01
    gradient_checkpointing: bool = False
    held_out_every: int = 100
    evaluate_every: int = 0


def train_mlm(
    model: PreTrainedModel,
    tokenizer: AveyBTokenizer,
    texts: Iterable[str],
    folder: str | Path,
    *,
    data: dict[str, Any],
    settings: MLMSettings | None = None,
    resume: bool = False,
    device: str | None = None,
) -> dict[str, float]:
    """Trains `model` (an `AveyBForMaskedLM`, or any transformers model for masked language modelling) and saves it.

    Args:
        texts: documents; tokenised once into the run folder.
        folder: the run folder (see `runs.py`).
        data: fingerprints of what `texts` came from.
        resume: go on from the newest checkpoint; the run then equals one that was never stopped.
        device: "cpu" keeps the run off an accelerator; None: the trainer chooses.

    Returns:
        held-out `loss` and `accuracy` over masked tokens; nothing where fewer tokens than one sequence were held
        out, or the run was interrupted.

    Raises:
        ConfigError, InputError: settings out of range, too little text, a loss that is no number, or a resume that does
            not fit.
    """
    settings = settings or MLMSettings()
    _check(model, tokenizer, settings)
    arguments = _arguments(folder, settings, device)
    with arguments.main_process_first(local=False, desc="packing the text"):
        run = RunFolder(folder, asdict(settings), data, resume=resume, main=arguments.process_index == 0)
        train_file = run.path / TRAIN
        if run.main and not (resume and train_file.exists()):
            partial = train_file.with_suffix(".part")
            pack_texts(texts, tokenizer, partial, run.path / HELD_OUT, every=settings.held_out_every)
            partial.replace(train_file)

    held_out = held_out_sequences(run.path, tokenizer, settings)
    if settings.evaluate_every and held_out is None:
        raise InputError(
            f"{run.path / HELD_OUT} holds less than one sequence of {settings.length} tokens, evaluate_every is "
            f"{settings.evaluate_every}: hold out more documents (held_out_every {settings.held_out_every}), or give 0"
        )
    callback = RunCallback(run, units_per_step=settings.batch_size * settings.length)
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=_sequences(
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
        figures = evaluate_mlm(model, held_out, batch_size=settings.micro_batch, bf16=settings.bf16)
    if trainer.is_world_process_zero():
        model.save_pretrained(run.model)
        tokenizer.save(run.model)
        run.finish("Masked-language modelling", figures)
    return figures


def held_out_sequences(run: Path, tokenizer: AveyBTokenizer, settings: MLMSettings) -> MaskedSequences | None:
    """The held-out documents of a run folder, masked as every evaluation sees them; None: less than one sequence."""
    file = run / HELD_OUT
    if file.stat().st_size // 4 < settings.length:
        return None
    return _sequences(file, tokenizer, settings, seed=settings.seed + 1, samples=None)


@torch.inference_mode()
def evaluate_mlm(
    model: nn.Module, sequences: MaskedSequences, *, batch_size: int, bf16: bool = False
) -> dict[str, float]:
    """Mean cross entropy (nats) and accuracy over the masked tokens of `sequences`."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    loss = right = count = 0.0
    # A generator of its own: the loader draws a seed, and the run's random numbers must not depend on evaluations.
    for batch in DataLoader(sequences, batch_size=batch_size, generator=torch.Generator()):
        labels = batch["labels"].to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
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
    """Looks at the held-out documents with `evaluate_mlm`."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Logs and returns `eval_loss` and `eval_accuracy`."""
        assert isinstance(self.model, nn.Module) and isinstance(self.eval_dataset, MaskedSequences)
        size, bf16 = self.args.per_device_train_batch_size, bool(self.args.bf16)
        figures = evaluate_mlm(self.model, self.eval_dataset, batch_size=size, bf16=bf16)
        figures = {f"eval_{name}": value for name, value in figures.items()}
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures


def _sequences(
    file: Path, tokenizer: AveyBTokenizer, settings: MLMSettings, *, seed: int, samples: int | None
) -> MaskedSequences:
    return MaskedSequences(
        file,
        length=settings.length,
        mask_id=tokenizer.mask_id,
        mask_rate=settings.mask_rate,
        seed=seed,
        samples=samples,
    )


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


def _check(model: PreTrainedModel, tokenizer: AveyBTokenizer, settings: MLMSettings) -> None:
    rows = int(model.config.vocab_size)
    if tokenizer.vocab_size > rows:
        raise ConfigError(f"the tokenizer has {tokenizer.vocab_size} ids, the model {rows} embeddings; give it as many")
    settings.check("length", "micro_batch")
    if settings.evaluate_every < 0:
        raise ConfigError(f"evaluate_every is {settings.evaluate_every}; it must be 0 (at the end only) or more")
