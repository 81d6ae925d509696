"""One training run on sentence-transformers' trainer: what contrastive learning and distillation share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.training.optimizers import build_optimizer, learning_rate_factor
from aveyb_retrieval.encoder.training.runs import CHECKPOINTS, RunCallback, RunFolder, check_loss
from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class SentenceSettings:
    """What decides a run. `batch_size` counts rows over all processes; every row of it is a negative of the others."""

    steps: int = 1000
    batch_size: int = 128
    learning_rate: float = 1e-4
    schedule: str = "linear"
    warmup: float = 0.1
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-5
    weight_decay: float = 0.1
    clip: float = 1.0
    bf16: bool = True
    seed: int = 0
    log_every: int = 10
    save_every: int = 500
    keep: int = 2


def train_sentence_model(
    model: SentenceTransformer,
    sets: dict[str, Dataset],
    loss: nn.Module,
    folder: str | Path,
    *,
    title: str,
    data: dict[str, Any],
    settings: SentenceSettings,
    tokenizer: AveyBTokenizer | None = None,
    recorded: dict[str, Any] | None = None,
    prompts: dict[str, str] | None = None,
    resume: bool = False,
    device: str | None = None,
) -> Path:
    """Trains `model` with `loss` on batches drawn from `sets` in proportion to their sizes.

    Args:
        sets: name -> rows; a batch comes from one set. Columns are read in order, `label` is the label.
        folder: the run folder (see `runs.py`).
        title: of the model card and the curves.
        data: fingerprints of the inputs.
        tokenizer: saved with the model, whose own save keeps transformers' view of it only.
        recorded: further settings that decide the result, kept in the run folder.
        prompts: column -> text put before it.
        resume: go on from the newest checkpoint.
        device: "cpu" keeps the run off an accelerator.

    Returns:
        the folder of the trained model, or of the run if it was interrupted.

    Raises:
        ConfigError, InputError: settings out of range, less than one batch of data, or a resume that does not fit.
    """
    _check(sets, settings)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(Path(folder) / CHECKPOINTS),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        max_grad_norm=settings.clip,
        bf16=settings.bf16,
        seed=settings.seed,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        save_steps=settings.save_every,
        save_total_limit=settings.keep,
        dataloader_drop_last=True,
        report_to="none",
        use_cpu=device == "cpu",
        prompts=prompts,
    )
    per_process, rest = divmod(settings.batch_size, arguments.world_size)
    if rest:
        raise ConfigError(f"batch_size {settings.batch_size} must be a multiple of {arguments.world_size} processes")
    arguments.per_device_train_batch_size = per_process
    with arguments.main_process_first(local=False, desc="opening the run folder"):
        main = arguments.process_index == 0
        run = RunFolder(folder, asdict(settings) | (recorded or {}), data, resume=resume, main=main)
    # The loss holds the model and, for distillation, a head of its own: all of it is trained.
    optimizer = build_optimizer(
        loss,
        settings.optimizer,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    factor = learning_rate_factor(settings.schedule, settings.steps, settings.warmup)
    callback = RunCallback(run, units_per_step=settings.batch_size, unit="rows")
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=sets if len(sets) > 1 else next(iter(sets.values())),
        loss=dict.fromkeys(sets, loss) if len(sets) > 1 else loss,
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)),
        callbacks=[callback],
    )
    own = LossParameters(model, loss)
    if own.parameters:
        trainer.add_callback(own)
        if run.checkpoint:
            own.load(Path(run.checkpoint))
    trainer.train(resume_from_checkpoint=run.checkpoint)
    if callback.interrupted:
        return run.path
    if trainer.is_world_process_zero():
        model.save(str(run.model), create_model_card=False)
        if tokenizer is not None:
            tokenizer.save(run.model)
        run.finish(title, {"rows": float(sum(map(len, sets.values())))})
    return run.model


class LossParameters(TrainerCallback):
    """Keeps what the loss learns beside the model, a distillation head say: the trainer's checkpoints lack it."""

    file = "loss.safetensors"

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        of_model = {id(parameter) for parameter in model.parameters()}
        self.parameters = {name: p for name, p in loss.named_parameters() if id(p) not in of_model}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Writes them into the checkpoint just made."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir or "") / f"checkpoint-{state.global_step}"
            save_file({name: p.detach().contiguous() for name, p in self.parameters.items()}, folder / self.file)

    def load(self, checkpoint: Path) -> None:
        """Restores them.

        Raises:
            InputError: the checkpoint was made by another loss.
        """
        path = checkpoint / self.file
        saved = load_file(path) if path.is_file() else {}
        if {n: p.shape for n, p in saved.items()} != {n: p.shape for n, p in self.parameters.items()}:
            raise InputError(
                f"{path} holds {sorted(saved)}, the loss learns {sorted(self.parameters)}, or their shapes differ: the "
                "checkpoint belongs to another run"
            )
        with torch.no_grad():
            for name, value in saved.items():
                self.parameters[name].copy_(value)


class _Trainer(SentenceTransformerTrainer):
    """Stops at a loss that is no number."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        check_loss(loss, self.state.global_step + 1, Path(self.args.output_dir or ""))
        return loss


def _check(sets: dict[str, Dataset], settings: SentenceSettings) -> None:
    for name in ("steps", "batch_size", "learning_rate", "log_every", "save_every"):
        if getattr(settings, name) <= 0:
            raise ConfigError(f"{name} is {getattr(settings, name)}; it must be above 0")
    for name, rows in sets.items():
        if len(rows) < settings.batch_size:
            raise InputError(
                f"set {name!r} has {len(rows)} rows, less than one batch of {settings.batch_size}: give more data or a "
                "smaller batch"
            )
