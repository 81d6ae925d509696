"""Contrastive fine-tuning on pairs and triplets."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss, MatryoshkaLoss
from sentence_transformers.util import all_gather, all_gather_with_grad
from sentence_transformers.util.distributed import get_rank
from torch import nn

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.sentence_trainer import train_sentence_model
from aveyb_retrieval.training.settings import ContrastiveSettings
from aveyb_retrieval.training.texts import read_hub_rows, read_records, text_key
from aveyb_retrieval.training.trainer import started_processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

# Names of the sides in data sets; the first one that a row has is taken.
SIDES = {
    "anchor": ("anchor", "query", "question"),
    "positive": ("positive", "pos", "document", "passage", "answer"),
    "negative": ("negative", "neg"),
}


def read_pairs(
    paths: Iterable[str | Path], *, columns: Mapping[str, str] | None = None, rows: int | None = None
) -> Dataset:
    """Read pairs or triplets from JSON Lines files.

    Columns are `anchor`, `positive` and, where every line has one, `negative`.

    A line names its sides as MS MARCO's sets do (`query`, `positive`, `negative`) or by one of the names in `SIDES`;
    the first line of the first file decides.

    Args:
        paths: the files, read in this order.
        columns: side -> its field, for sides that are called otherwise.
        rows: read at most this many; None: all.

    Raises:
        InputError: there are no lines; a side is missing, empty or not a string (file, line and field are named).
    """
    paths = list(paths)
    records = ((f"{path}, line {number}", record) for path in paths for number, record in read_records(path))
    return _pairs(records, columns, rows, ", ".join(map(str, paths)))


def read_hub_pairs(name: str, *, columns: Mapping[str, str] | None = None, rows: int | None = None) -> Dataset:
    """Read pairs or triplets from a hub data set (`owner/set` or `owner/set:config`), streamed; see `read_pairs`.

    Raises:
        InputError: the data set does not exist, or as in `read_pairs`.
    """
    records = ((f"data set {name!r}, row {number}", row) for number, row in read_hub_rows(name))
    return _pairs(records, columns, rows, f"data set {name!r}")


def ranking_loss(
    model: SentenceTransformer,
    *,
    micro_batch: int,
    scale: float = 20.0,
    dimensions: Sequence[int] = (),
) -> nn.Module:
    """Build InfoNCE over the batch of all processes, with gradients cached in pieces (GradCache: Gao et al., 2021).

    Its labels are those of `duplicate_labels`: of the batch's texts, a row's negatives are then those that are no
    positive of its question. Without labels all others are.

    Args:
        model: the student.
        micro_batch: rows in a piece; limits memory, the gradients are those of the whole batch.
        scale: factor of the cosines (one over the temperature).
        dimensions: Matryoshka (Kusupati et al., 2022): the loss is the mean over vectors cut to each of these.

    Raises:
        ConfigError: a dimension is larger than the model's.
    """
    loss: nn.Module = MaskedRankingLoss(
        model, scale=scale, mini_batch_size=micro_batch, gather_across_devices=started_processes() > 1
    )
    if dimensions:
        width = model.get_embedding_dimension()
        if width is None or max(dimensions) > width or min(dimensions) < 1:
            raise ConfigError(f"Matryoshka dimensions {list(dimensions)} must lie between 1 and the model's {width}")
        loss = MatryoshkaLoss(model, loss, matryoshka_dims=sorted(set(dimensions), reverse=True))
    return loss


class MaskedRankingLoss(CachedMultipleNegativesRankingLoss):
    """InfoNCE without the false negatives that labels show (int64 `[B, columns]`, equal for equal texts)."""

    def calculate_loss(
        self, reps: list[list[torch.Tensor]], labels: torch.Tensor | None = None, *, with_backward: bool = False
    ) -> torch.Tensor:
        """Return the mean loss of this process's rows, a float32 scalar; with `with_backward` gradients are made, too.

        Args:
            reps: for each column the pieces of its unit vectors, float `[rows, D]`.
            labels: as `duplicate_labels`; None: all other rows are negatives.
            with_backward: call `backward` on each piece of the scores.
        """
        if labels is None:
            return super().calculate_loss(reps, labels, with_backward=with_backward)
        anchors, *documents = (torch.cat(rows) for rows in reps)
        count, first = len(anchors), 0
        if self.gather_across_devices:
            first = get_rank() * count
            documents, labels = [all_gather_with_grad(rows) for rows in documents], all_gather(labels)
        candidates = torch.cat(documents)
        total = anchors.new_zeros(())
        for begin in range(0, count, self.mini_batch_size):
            some = anchors[begin : begin + self.mini_batch_size]
            rows = torch.arange(first + begin, first + begin + len(some), device=anchors.device)
            scores = self.similarity_fct(some, candidates) * self.scale
            scores = scores.masked_fill(false_negatives(labels, rows), float("-inf"))
            loss = nn.functional.cross_entropy(scores.float(), rows, reduction="sum") / count
            if with_backward:
                loss.backward()
                loss = loss.detach()
            total = total + loss
        return total


def false_negatives(labels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return where a candidate is a positive of a row's question, but not the row's own: bool `[R, B (columns - 1)]`.

    Args:
        labels: int64 `[B, columns]`, of the anchor, the positive and any negatives of each row of the batch; equal for
            equal texts.
        rows: int64 `[R]`, the rows that are asked for. Candidates are the positives of all rows, then their negatives.
    """
    candidates = labels[:, 1:].T.reshape(-1)
    same_question = labels[rows, :1] == labels[:, 0]  # [R, B]
    is_positive = labels[:, 1:2] == candidates  # [B, candidates]
    found = (same_question.float() @ is_positive.float()) > 0
    found[torch.arange(len(rows), device=rows.device), rows] = False
    return found


def duplicate_labels(pairs: Dataset) -> list[list[int]]:
    """Return a number for each text of each row, equal where texts are, case and white space aside."""
    numbers: dict[str, int] = {}
    columns = [pairs[side] for side in pairs.column_names]
    return [[numbers.setdefault(text_key(text), len(numbers)) for text in row] for row in zip(*columns, strict=True)]


def train_contrastive(
    model: SentenceTransformer,
    pairs: Dataset,
    folder: str | Path,
    *,
    data: dict[str, Any],
    tokenizer: Tokenizer | None = None,
    settings: ContrastiveSettings | None = None,
    resume: bool = False,
    device: str | None = None,
) -> Path:
    """Fine-tune on rows of `read_pairs`, with the model's own prompts; see `train_sentence_model`."""
    settings = settings or ContrastiveSettings()
    settings.check()
    prompts = {"anchor": model.prompts.get("query") or "", "positive": model.prompts.get("document") or ""}
    if "negative" in pairs.column_names:
        prompts["negative"] = prompts["positive"]
    if settings.duplicates == "mask":
        pairs = pairs.add_column("label", duplicate_labels(pairs))
    return train_sentence_model(
        model,
        {"pairs": pairs},
        ranking_loss(model, micro_batch=settings.micro_batch, scale=settings.scale, dimensions=settings.matryoshka),
        folder,
        title="Contrastive fine-tuning",
        data=data,
        tokenizer=tokenizer,
        settings=settings,
        recorded={"prompts": prompts},
        prompts=prompts if any(prompts.values()) else None,
        max_tokens=settings.max_tokens,
        rows_at_once=settings.micro_batch,
        resume=resume,
        device=device,
    )


def _pairs(
    records: Iterable[tuple[str, Mapping[str, Any]]], columns: Mapping[str, str] | None, rows: int | None, source: str
) -> Dataset:
    """Pick the sides of records, each of which comes with its file and line."""
    from datasets import Dataset

    fields: dict[str, str] = {}
    pairs: list[dict[str, str]] = []
    places: list[str] = []
    for where, record in islice(records, rows):
        fields = fields or _fields(record, columns or {}, where)
        for field in fields.values():
            value = record.get(field)
            if not isinstance(value, str) or not value.strip():
                raise InputError(
                    f"{where}: field {field!r} must be a text, it is {value!r}; every row needs "
                    f"{', '.join(fields.values())}"
                )
        pairs.append({side: record[field] for side, field in fields.items()})
        places.append(where)
    if not pairs:
        raise InputError(f"{source}: there are no pairs")
    if "negative" in fields:
        _check_negatives(pairs, places)
    return Dataset.from_list(pairs)


def _check_negatives(pairs: list[dict[str, str]], places: list[str]) -> None:
    """Raise InputError where a negative is a positive of its question, case and white space aside."""
    positives: dict[str, set[str]] = {}
    for pair in pairs:
        positives.setdefault(text_key(pair["anchor"]), set()).add(text_key(pair["positive"]))
    for pair, where in zip(pairs, places, strict=True):
        if text_key(pair["negative"]) in positives[text_key(pair["anchor"])]:
            raise InputError(
                f"{where}: the negative {pair['negative']!r:.80} is a positive of the question {pair['anchor']!r:.80}, "
                "in this row or another; leave the row out, or give another negative"
            )


def _fields(record: Mapping[str, Any], columns: Mapping[str, str], where: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for side, usual in SIDES.items():
        names = (columns[side],) if side in columns else usual
        found = [name for name in names if name in record]
        if found:
            fields[side] = found[0]
        elif side != "negative" or side in columns:
            raise InputError(
                f"{where}: no {side} side, that is {' or '.join(names)}; the row has {', '.join(sorted(record))}"
            )
    return fields
