"""A sentence encoder and its run on sentence-transformers' trainer, for contrastive learning and
distillation.
"""

from __future__ import annotations

import heapq
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from aveyb_retrieval.encoder.embedders.sentence_transformers import (
    NO_LIMIT_TOKENS,
    check_modules,
    read_limit,
    read_prompts,
    save_again,
    sentence_transformer,
)
from aveyb_retrieval.encoder.model_folders import model_folder
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.wordpiece import Tokenizer, load_tokenizer
from aveyb_retrieval.errors import ConfigError, InputError, plural
from aveyb_retrieval.training.run_folder import RunCallback, RunFolder, TrainingRun
from aveyb_retrieval.training.trainer import (
    CheckedSteps,
    check_memory,
    optimizer_and_schedule,
    run_to_end,
    shared_arguments,
)

_LOG = logging.getLogger(__name__)

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from torch import nn

    from aveyb_retrieval.training.settings import RunSettings


def sentence_model(
    model: str | Path | None, work: Path, prompts: dict[str, str]
) -> tuple[SentenceTransformer, Tokenizer]:
    """Open an Avey-B encoder as a float32 sentence-transformers model, written to `work`; return
    its tokenizer as well.

    A plain encoder gets mean pooling; `prompts` replace the model's own.
    """
    folder = model_folder(model)
    check_modules(folder)
    encoder = AveyBModel.from_pretrained(folder, dtype=torch.float32)
    tokenizer = load_tokenizer(folder, encoder.config.vocab_size)
    made = sentence_transformer(
        encoder, tokenizer, work, prompts={**read_prompts(folder), **prompts}
    )
    if (limit := read_limit(folder)) is not None:
        made.max_seq_length = limit
    return made, tokenizer


def train_sentence_model(
    model: SentenceTransformer,
    sets: dict[str, Dataset],
    loss: nn.Module,
    run: TrainingRun,
    *,
    title: str,
    settings: RunSettings,
    tokenizer: Tokenizer | None = None,
    recorded: dict[str, Any] | None = None,
    prompts: dict[str, str] | None = None,
    max_tokens: int | None = None,
    rows_at_once: int | None = None,
) -> Path:
    """Train `model` with `loss` on batches drawn from `sets` in proportion to their sizes.

    Every row of a batch is a negative of the others, whichever process it is on.

    Args:
        sets: name -> rows; a batch comes from one set. Columns are read in order, `label` is the
            label.
        loss: takes the features of a row's columns and the labels; what it learns besides the model
            is saved, too.
        run: where it is written, and what of; `title` stands on its card, `recorded` among its
            settings.
        tokenizer: saved with the model, which by itself saves only transformers' form of it.
        prompts: column -> text put before it.
        max_tokens: texts are cut at so many tokens while training; the saved model keeps its own
            limit. None: at that.
        rows_at_once: of a column, whose activations are held; None: the batch's.

    Returns:
        The folder of the trained model, or of the run if it was interrupted.
    """
    settings.check()
    name, rows = min(sets.items(), key=lambda item: len(item[1]))
    settings.check_rows(len(rows), f"set {name!r} has {len(rows)} rows,")
    limit = model.max_seq_length
    if max_tokens is not None:
        model.max_seq_length = min(limit or max_tokens, max_tokens)
    if cut := count_cut(model, sets, prompts or {}):
        _LOG.warning(
            "%s longer than %d tokens: cut while training",
            plural(cut, "text is", "texts are"),
            model.max_seq_length,
        )
    arguments = SentenceTransformerTrainingArguments(
        **shared_arguments(settings, run),
        per_device_train_batch_size=settings.batch_size,
        # Every process takes its part of one batch, so that any number of them sees the same
        # batches.
        accelerator_config={"split_batches": True},
        prompts=prompts,
    )
    if settings.batch_size % arguments.world_size:
        raise ConfigError(
            f"batch_size {settings.batch_size} must be a multiple of {arguments.world_size}"
            " processes"
        )
    with arguments.main_process_first(local=False, desc="opening the run folder"):
        main = arguments.process_index == 0
        own = LossParameters(model, loss, settings.clip)
        needs = [own.file] if own.parameters else []
        record = asdict(settings) | (recorded or {})
        folder = RunFolder(run, record, main=main, needs=needs)
    size = settings.batch_size // arguments.world_size
    _check_memory(model, sets, min(rows_at_once or size, size), arguments.device)
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=sets if len(sets) > 1 else next(iter(sets.values())),
        loss=dict.fromkeys(sets, loss) if len(sets) > 1 else loss,
        # The loss holds the model and, for distillation, a head of its own: all of it is trained.
        optimizers=optimizer_and_schedule(loss, settings),
    )
    if own.parameters:
        trainer.args.max_grad_norm = 0  # the trainer would limit the model's gradient alone
        trainer.add_callback(own)
        trainer.own = own
        if folder.checkpoint:
            own.load(Path(folder.checkpoint))
    ended = run_to_end(trainer, RunCallback(folder, settings.batch_size, "rows"))
    if max_tokens is not None:
        model.max_seq_length = limit
    if not ended:
        return folder.path
    if trainer.is_world_process_zero():
        save_again(model, tokenizer, folder.model)
        folder.finish(title, {"rows": float(sum(map(len, sets.values()))), "texts cut": float(cut)})
    return folder.model


class LossParameters(TrainerCallback):
    """What the loss learns beside the model (a distillation head), of which the trainer knows
    nothing.

    Saves it with the model, and limits the norm of all gradients together to `clip` (0: no limit).
    """

    file = "loss.safetensors"

    def __init__(self, model: nn.Module, loss: nn.Module, clip: float) -> None:
        of_model = {id(parameter) for parameter in model.parameters()}
        self.parameters = {name: p for name, p in loss.named_parameters() if id(p) not in of_model}
        self._loss, self._clip = loss, clip

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Limit the norm of the gradient of everything that is learned."""
        if self._clip:
            torch.nn.utils.clip_grad_norm_(self._loss.parameters(), self._clip)

    def save(self, folder: Path) -> None:
        """Write them into a checkpoint."""
        tensors = {name: p.detach().contiguous() for name, p in self.parameters.items()}
        save_file(tensors, folder / self.file)

    def load(self, checkpoint: Path) -> None:
        """Restore them; InputError: the checkpoint was made by another loss."""
        path = checkpoint / self.file
        saved = load_file(path) if path.is_file() else {}
        if {n: p.shape for n, p in saved.items()} != {
            n: p.shape for n, p in self.parameters.items()
        }:
            raise InputError(
                f"{path} holds {sorted(saved)}, the loss learns {sorted(self.parameters)}, or their"
                " shapes differ: the checkpoint belongs to another run"
            )
        with torch.no_grad():
            for name, value in saved.items():
                self.parameters[name].copy_(value)


def count_cut(model: SentenceTransformer, sets: dict[str, Dataset], prompts: dict[str, str]) -> int:
    """Count the texts of all columns that are longer than the model's limit of tokens, prompt
    included.
    """
    limit = model.max_seq_length
    if limit is None or limit >= NO_LIMIT_TOKENS:
        return 0
    long = []
    for rows in sets.values():
        for column in _text_columns(rows):
            prompted = (prompts.get(column, "") + text for text in rows[column])
            # a token has a byte at least
            long += [text for text in prompted if len(text.encode()) > limit]
    parts = (long[i : i + 256] for i in range(0, len(long), 256))
    tokenized = (
        model.tokenizer(part, truncation=False, padding=False, verbose=False) for part in parts
    )
    return sum(len(ids) > limit for batch in tokenized for ids in batch["input_ids"])


def _check_memory(
    model: SentenceTransformer, sets: dict[str, Dataset], rows: int, device: torch.device
) -> None:
    """Check that the longest texts fit, of a column `rows` at once; see `check_memory`."""
    texts = (
        text
        for rows_of_set in sets.values()
        for name in _text_columns(rows_of_set)
        for text in rows_of_set[name]
    )
    longest = heapq.nlargest(rows, texts, key=len)
    tokens = int(model.preprocess(longest)["attention_mask"].sum())
    sample = model.preprocess([" ".join(longest[:8])[:2000]])
    sample = {
        name: value.to(model.device)
        for name, value in sample.items()
        if isinstance(value, torch.Tensor)
    }
    what = f"{rows} texts are read at once, and the longest have {tokens:,} tokens"
    remedy = "max_tokens or micro_batch (in distillation batch_size)"
    read = int(sample["attention_mask"].sum())
    check_memory(model, lambda: model(dict(sample)), read, tokens, device, what, remedy)


def _text_columns(rows: Dataset) -> list[str]:
    return [name for name in rows.column_names if name != "label"]


class _Trainer(CheckedSteps, SentenceTransformerTrainer):
    own: LossParameters | None = None

    def save_model(self, output_dir: str | None = None, *arguments: Any, **options: Any) -> None:
        """Save the model and what the loss learns, both before the state of the trainer, by which a
        checkpoint counts as whole.
        """
        super().save_model(output_dir, *arguments, **options)
        if self.own is not None and self.args.should_save:
            self.own.save(Path(output_dir or self.args.output_dir or ""))
