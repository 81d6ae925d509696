"""Contrastive fine-tuning on pairs and triplets, and the search for hard negatives.

Hard negatives are texts that a search puts near an anchor though they do not answer it. The rules
bear the names they have in sentence-transformers' `mine_hard_negatives`. The margins are those of
NV-Retriever (Moreira et al., 2024): a text that the model finds nearly as good as the known
positive is more often an answer that nobody marked than a negative. `mode` only proposes texts;
whether one is kept is decided by cosines in every mode, because a BM25 score says nothing about a
positive that shares no word with its anchor.

Texts of the corpus are cut into passages, as an index cuts them: a negative is no longer than what
a search would find. A passage that is a positive of its question, a part of one or around one, case
and white space aside, is no negative.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
)
from sentence_transformers.util import all_gather, all_gather_with_grad
from sentence_transformers.util.distributed import get_rank
from torch import nn

from aveyb_retrieval.encoder.embedders.embedder import TextEncoder
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.files import write_atomic
from aveyb_retrieval.indexes.changes.update import build_index
from aveyb_retrieval.indexes.model import load_model
from aveyb_retrieval.indexes.search.options import Options
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.types import silent
from aveyb_retrieval.training.sentence_trainer import train_sentence_model
from aveyb_retrieval.training.settings import ContrastiveSettings, MiningRules
from aveyb_retrieval.training.texts import field_in, read_placed, text_in, text_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer
    from aveyb_retrieval.indexes.model import Model
    from aveyb_retrieval.indexes.search.options import Mode
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray, Progress
    from aveyb_retrieval.training.run_folder import TrainingRun

# Names of the sides in data sets; the first one that a row has is taken.
SIDES = {
    "anchor": ("anchor", "query", "question"),
    "positive": ("positive", "pos", "document", "passage", "answer"),
    "negative": ("negative", "neg"),
}
_ANCHORS_PER_SEARCH = 256  # per search


def read_pairs(
    paths: Iterable[str | Path],
    *,
    columns: Mapping[str, str] | None = None,
    rows: int | None = None,
) -> Dataset:
    """Read pairs or triplets from JSON Lines files; columns: `anchor`, `positive` and, where there
    is one, `negative`.

    A line names its sides as MS MARCO's sets do (`query`, `positive`, `negative`) or by one of the
    names in `SIDES`; the first line of the first file decides. `columns` maps sides that are called
    otherwise to their fields.
    """
    from datasets import Dataset

    paths, fields = list(paths), dict[str, str]()
    pairs: list[dict[str, str]] = []
    places: list[str] = []
    for where, record in islice(read_placed(paths), rows):
        fields = fields or _fields(record, columns or {}, where)
        pairs.append({side: text_in(record, field, where) for side, field in fields.items()})
        places.append(where)
    if not pairs:
        raise InputError(f"{', '.join(map(str, paths))}: there are no pairs")
    if "negative" in fields:  # none may be a positive of its question, case and white space aside
        positives: dict[str, set[str]] = {}
        for pair in pairs:
            positives.setdefault(text_key(pair["anchor"]), set()).add(text_key(pair["positive"]))
        for pair, where in zip(pairs, places, strict=True):
            if text_key(pair["negative"]) in positives[text_key(pair["anchor"])]:
                raise InputError(
                    f"{where}: the negative {pair['negative']!r:.80} is a positive of the question"
                    f" {pair['anchor']!r:.80}, in this row or another; leave the row out, or give"
                    " another negative"
                )
    return Dataset.from_list(pairs)


def ranking_loss(
    model: SentenceTransformer,
    *,
    micro_batch: int,
    scale: float = 20.0,
    dimensions: Sequence[int] = (),
) -> nn.Module:
    """Build InfoNCE over the batch of all processes, with gradients cached in pieces (GradCache:
    Gao et al., 2021).

    Its labels are those of `duplicate_labels`: of the batch's texts, a row's negatives are then
    those that are no positive of its question. Without labels all others are. A piece has
    `micro_batch` rows, cosines are multiplied by `scale`, and over Matryoshka `dimensions`
    (Kusupati et al., 2022) the loss is the mean of vectors cut to each.
    """
    # as torchrun started them, also before they are connected
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    loss: nn.Module = MaskedRankingLoss(
        model, scale=scale, mini_batch_size=micro_batch, gather_across_devices=several
    )
    if dimensions:
        width = model.get_embedding_dimension()
        if width is None or max(dimensions) > width or min(dimensions) < 1:
            raise ConfigError(
                f"Matryoshka dimensions {list(dimensions)} must lie between 1 and the model's"
                f" {width}"
            )
        loss = MatryoshkaLoss(model, loss, matryoshka_dims=sorted(set(dimensions), reverse=True))
    return loss


class MaskedRankingLoss(CachedMultipleNegativesRankingLoss):
    """InfoNCE without the false negatives that labels show (int64 `[B, columns]`, equal for equal
    texts).
    """

    def calculate_loss(
        self,
        reps: list[list[torch.Tensor]],
        labels: torch.Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> torch.Tensor:
        """Return the mean loss of this process's rows, a float32 scalar; with `with_backward`
        gradients are made, too.

        `reps` are for each column the pieces of its unit vectors, float `[rows, D]`; `labels` as
        `duplicate_labels`.
        """
        if labels is None:
            return super().calculate_loss(reps, labels, with_backward=with_backward)
        anchors, *documents = (torch.cat(rows) for rows in reps)
        count, first = len(anchors), 0
        if self.gather_across_devices:
            first = get_rank() * count
            documents, labels = (
                [all_gather_with_grad(rows) for rows in documents],
                all_gather(labels),
            )
        candidates = torch.cat(documents)
        total = anchors.new_zeros(())
        for begin in range(0, count, self.mini_batch_size):
            anchor_rows = anchors[begin : begin + self.mini_batch_size]
            rows = torch.arange(
                first + begin, first + begin + len(anchor_rows), device=anchors.device
            )
            scores = self.similarity_fct(anchor_rows, candidates) * self.scale
            scores = scores.masked_fill(false_negatives(labels, rows), float("-inf"))
            loss = nn.functional.cross_entropy(scores.float(), rows, reduction="sum") / count
            if with_backward:
                loss.backward()
                loss = loss.detach()
            total = total + loss
        return total


def false_negatives(labels: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return where a candidate is a positive of a row's question, but not the row's own: bool `[R,
    B (columns - 1)]`.

    Of `rows`, int64 `[R]`; `labels` are int64 `[B, columns]`, of the anchor, the positive and any
    negatives of each row of the batch, equal for equal texts. Candidates are the positives of all
    rows, then their negatives.
    """
    candidates = labels[:, 1:].T.reshape(-1)
    same_question = labels[rows, :1] == labels[:, 0]  # [R, B]
    is_positive = labels[:, 1:2] == candidates  # [B, candidates]
    is_false_negative = (same_question.float() @ is_positive.float()) > 0
    is_false_negative[torch.arange(len(rows), device=rows.device), rows] = False
    return is_false_negative


def duplicate_labels(pairs: Dataset) -> list[list[int]]:
    """Return a number for each text of each row, equal where texts are, case and white
    space aside.
    """
    numbers: dict[str, int] = {}
    columns = [pairs[side] for side in pairs.column_names]
    return [
        [numbers.setdefault(text_key(text), len(numbers)) for text in row]
        for row in zip(*columns, strict=True)
    ]


def train_contrastive(
    model: SentenceTransformer,
    pairs: Dataset,
    run: TrainingRun,
    *,
    tokenizer: Tokenizer | None = None,
    settings: ContrastiveSettings | None = None,
) -> Path:
    """Fine-tune on rows of `read_pairs`, with the model's own prompts; see
    `train_sentence_model`.
    """
    settings = settings or ContrastiveSettings()
    settings.check()
    prompts = {
        "anchor": model.prompts.get("query") or "",
        "positive": model.prompts.get("document") or "",
    }
    if "negative" in pairs.column_names:
        prompts["negative"] = prompts["positive"]
    if settings.duplicates == "mask":
        pairs = pairs.add_column("label", duplicate_labels(pairs))
    return train_sentence_model(
        model,
        {"pairs": pairs},
        ranking_loss(
            model,
            micro_batch=settings.micro_batch,
            scale=settings.scale,
            dimensions=settings.matryoshka,
        ),
        run,
        title="Contrastive fine-tuning",
        tokenizer=tokenizer,
        settings=settings,
        recorded={"prompts": prompts},
        prompts=prompts if any(prompts.values()) else None,
        max_tokens=settings.max_tokens,
        rows_at_once=settings.micro_batch,
    )


def _fields(record: Mapping[str, Any], columns: Mapping[str, str], where: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for side, usual in SIDES.items():
        names = (columns[side],) if side in columns else usual
        if side != "negative" or side in columns or any(name in record for name in names):
            fields[side] = field_in(record, names, where)
    return fields


@dataclass(frozen=True)
class Mined:
    """The triplets found, and what was missing.

    Attributes:
        triplets: columns `anchor`, `positive`, `negative`; a row for each negative of each distinct
            pair.
        texts: how many distinct ones there were.
        anchors: likewise.
        short: anchors with some negatives, but fewer than asked for.
        left_out: anchors without a negative, and so without a row.
    """

    triplets: Dataset
    texts: int
    anchors: int
    short: list[str]
    left_out: list[str]

    def save(self, path: str | Path) -> None:
        """Write the triplets as JSON Lines, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(
            path,
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.triplets).encode(),
        )


def mine_negatives(
    pairs: Dataset,
    rules: MiningRules | None = None,
    *,
    model: Model = None,
    corpus: Iterable[str] = (),
    mode: Mode = "dense",
    device: str = "cpu",
    progress: Progress = silent,
) -> Mined:
    """Search an index of all positives with every anchor, and keep what the rules allow.

    The index is made in a temporary folder; the texts' vectors `[n, d]` float32 are held in memory
    as well.

    Args:
        pairs: rows with `anchor` and `positive`; all positives of the same anchor are its own. A
            column `negative` is ignored, so that triplets can be mined again with a better model.
        corpus: more texts whose passages may be negatives; blank and repeated ones are left out,
            and so is a text equal to the anchor, from which nothing can be learned.
        mode: what proposes texts, as in a search.
    """
    rules = rules or MiningRules()
    rules.check()
    Options.parse("document", rules.range_max, mode=mode)  # now, not after the encoding
    embedder = load_model(model, device=device)
    own: dict[str, list[str]] = {}
    for anchor, positive in dict.fromkeys(zip(pairs["anchor"], pairs["positive"], strict=True)):
        own.setdefault(anchor, []).append(positive)
    answers: dict[str, set[str]] = {}  # of all anchors with the same words
    for anchor, positives in own.items():
        answers.setdefault(text_key(anchor), set()).update(map(text_key, positives))
    more = (passage for text in corpus for passage in _passages(text, embedder) if passage.strip())
    texts = list(dict.fromkeys([*pairs["positive"], *more]))
    number, keys = {text: i for i, text in enumerate(texts)}, [text_key(text) for text in texts]
    vectors = _encode(embedder, texts, progress)
    anchors, negatives = list(own), dict[str, list[str]]()
    with TemporaryDirectory(prefix="aveyb-mine-") as folder:
        documents = ({"_id": str(i), "text": text} for i, text in enumerate(texts))
        build_index(
            documents,
            folder,
            vectors=vectors,
            granularity="document",
            model=embedder,
            progress=progress,
        )
        with Retriever.load(folder, model=embedder, device=device) as retriever:
            for start in range(0, len(anchors), _ANCHORS_PER_SEARCH):
                batch = anchors[start : start + _ANCHORS_PER_SEARCH]
                # 1: itself
                depth = (
                    rules.range_max + max(len(answers[text_key(anchor)]) for anchor in batch) + 1
                )
                rankings = retriever.rank(batch, depth, mode=mode)
                for anchor, query, ranking in zip(
                    batch, embedder.encode_queries(batch), rankings, strict=True
                ):
                    anchor_key = text_key(anchor)
                    ids = (int(text) for text, _ in ranking)
                    ranked = [
                        i
                        for i in ids
                        if keys[i] != anchor_key and not _is_answer(keys[i], answers[anchor_key])
                    ]
                    considered = ranked[rules.range_min : rules.range_max]
                    limit = rules.limit(
                        float((vectors[[number[text] for text in own[anchor]]] @ query).min())
                    )
                    near = zip(considered, (vectors[considered] @ query).tolist(), strict=True)
                    negatives[anchor] = [texts[i] for i, cosine in near if cosine <= limit][
                        : rules.negatives
                    ]
                progress("anchors", len(negatives), len(anchors), 0)
    return _mined(own, negatives, len(texts), rules)


def _passages(text: str, embedder: EmbedderLike) -> list[str]:
    """Cut a text as an index of the model would; a model that does not say how leaves it whole."""
    spans = embedder.spans_of(text) if isinstance(embedder, TextEncoder) else ()
    return [text] if len(spans) < 2 else [text[start:end] for start, end in spans]


def _is_answer(text: str, answers: set[str]) -> bool:
    """Whether a text is one of the answers, some words of one, or the words around one; all by
    `text_key`.
    """
    return text in answers or any(
        f" {text} " in f" {own} " or f" {own} " in f" {text} " for own in answers
    )


def _encode(embedder: EmbedderLike, texts: list[str], progress: Progress) -> FloatArray:
    vectors, tokens = np.empty((len(texts), embedder.dim), np.float32), 0
    for i, encoded in enumerate(embedder.encode_documents(("", text) for text in texts)):
        vectors[i] = encoded.vector
        tokens += encoded.n_tokens
        progress("texts", i + 1, len(texts), tokens)
    return vectors


def _mined(
    own: dict[str, list[str]], negatives: dict[str, list[str]], texts: int, rules: MiningRules
) -> Mined:
    from datasets import Dataset

    rows = [
        {"anchor": anchor, "positive": positive, "negative": negative}
        for anchor, positives in own.items()
        for positive in positives
        for negative in negatives[anchor]
    ]
    if not rows:
        raise InputError(
            f"none of {len(own)} anchors has a negative among {texts} texts, ranks"
            f" {rules.range_min} to {rules.range_max}: give more texts (a corpus), a higher"
            " range_max, or smaller margins"
        )
    short = [
        anchor for anchor, negatives in negatives.items() if 0 < len(negatives) < rules.negatives
    ]
    left_out = [anchor for anchor, negatives in negatives.items() if not negatives]
    return Mined(Dataset.from_list(rows), texts, len(own), short, left_out)
