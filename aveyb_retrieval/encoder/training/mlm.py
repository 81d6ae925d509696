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
from aveyb_retrieval.encoder.training.optimizers import build_optimizer, learning_rate_factor
from aveyb_retrieval.encoder.training.packing import IGNORED_LABEL, MaskedSequences, pack_texts
from aveyb_retrieval.encoder.training.runs import CHECKPOINTS, RunCallback, RunFolder, check_loss
from aveyb_retrieval.errors import ConfigError


@dataclass(frozen=True)
class MLMSettings:
    """What decides a run. The defaults are the paper's; `batch_size` counts sequences over all processes.

    One step sees `batch_size * length` tokens (512K in the paper). A process takes `batch_size / processes` of them,
    `micro_batch` at a time.
    """

    steps: int = 90_000
    length: int = 2048
    batch_size: int = 256
    micro_batch: int = 8
    mask_rate: float = 0.2
    learning_rate: float = 5e-4
    schedule: str = "cosine"
    warmup: float = 0.1
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.95, 0.95)
    eps: float = 1e-18
    weight_decay: float = 0.01
    clip: float = 1.0
    bf16: bool = True
    gradient_checkpointing: bool = False
    held_out_every: int = 100
    seed: int = 0
    log_every: int = 10
    save_every: int = 500
    keep: int = 2


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
    arguments = _arguments(Path(folder), settings, device)
    with arguments.main_process_first(local=False, desc="packing the text"):
        run = RunFolder(folder, asdict(settings), data, resume=resume, main=arguments.process_index == 0)
        train_file, held_out_file = run.path / "train.tokens", run.path / "held_out.tokens"
        if run.main and not (resume and train_file.exists()):
            partial = train_file.with_suffix(".part")
            pack_texts(texts, tokenizer, partial, held_out_file, every=settings.held_out_every)
            partial.replace(train_file)

    def sequences(file: Path, seed: int, samples: int | None) -> MaskedSequences:
        return MaskedSequences(
            file,
            length=settings.length,
            mask_id=tokenizer.mask_id,
            mask_rate=settings.mask_rate,
            seed=seed,
            samples=samples,
        )

    optimizer = build_optimizer(
        model,
        settings.optimizer,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    factor = learning_rate_factor(settings.schedule, settings.steps, settings.warmup)
    callback = RunCallback(run, units_per_step=settings.batch_size * settings.length)
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=sequences(train_file, settings.seed, settings.steps * settings.batch_size),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)),
        callbacks=[callback],
    )
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    trainer.train(resume_from_checkpoint=run.checkpoint)
    if callback.interrupted:
        return {}
    figures: dict[str, float] = {}
    if held_out_file.stat().st_size // 4 >= settings.length:
        held_out = sequences(held_out_file, settings.seed + 1, None)
        figures = evaluate_mlm(model, held_out, batch_size=settings.micro_batch, bf16=settings.bf16)
    if trainer.is_world_process_zero():
        model.save_pretrained(run.model)
        tokenizer.save(run.model)
        run.finish("Masked-language modelling", figures)
    return figures


@torch.inference_mode()
def evaluate_mlm(
    model: nn.Module, sequences: MaskedSequences, *, batch_size: int, bf16: bool = False
) -> dict[str, float]:
    """Mean cross entropy (nats) and accuracy over the masked tokens of `sequences`."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    loss = right = count = 0.0
    for batch in DataLoader(sequences, batch_size=batch_size):
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


class _Trainer(Trainer):
    """Reads the samples in their own order (they are shuffled already) and stops at a loss that is no number."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        check_loss(loss, self.state.global_step + 1, Path(self.args.output_dir or ""))
        return loss


def _arguments(folder: Path, settings: MLMSettings, device: str | None) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(folder / CHECKPOINTS),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.micro_batch,
        max_grad_norm=settings.clip,
        bf16=settings.bf16,
        seed=settings.seed,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        save_steps=settings.save_every,
        save_total_limit=settings.keep,
        train_sampling_strategy="sequential",
        dataloader_drop_last=True,
        report_to="none",
        use_cpu=device == "cpu",
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
    for name in ("steps", "length", "batch_size", "micro_batch", "learning_rate", "log_every", "save_every"):
        if getattr(settings, name) <= 0:
            raise ConfigError(f"{name} is {getattr(settings, name)}; it must be above 0")
