"""The second stage: questions find their passages in whole documents, and everything else stays
where it was.

    python documents.py --documents documents.jsonl --texts texts.jsonl --model MODEL --out OUT

A document is what an index reads: its title at the head of every split, passages of at most 256 or
128 tokens. A step reads runs of splits. With t = 0.05, q a question and p the passages of a step,

    loss = CE(q p / t, those of its document) + CE(q p / t, all)
           + 4 (1 - p p' + 1 - q q') + 8 (1 - x x') + 2 KL(x x / t)

where p', q', x' are the vectors of the start, a frozen copy, and x ordinary texts. What is written
is a mean of the weights before and behind the run (Wortsman et al., 2022, arXiv 2109.01903).
"""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import torch
from muon import Muon
from torch.nn.functional import cross_entropy, normalize

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.documents.records import prefix_of
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.passages import PassageSize, cut_passages, repeat_title
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.distill import batch_scores, score_divergence
from aveyb_retrieval.training.texts import read_records, read_texts
from aveyb_retrieval.training.trainer import learning_rate_factor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

SIZES = (256, 128)  # tokens of a passage at most; two runs in three are cut in the first way
QUESTIONS = 24  # of a run at most
TEMPERATURE = 0.05
HOLD, TEXTS, SCORES = 4.0, 8.0, 2.0  # weights of the losses that hold things


@dataclass(frozen=True)
class Document:
    """What an index reads of a document, and what is asked about it.

    Attributes:
        ids: int64 `[T]`, titles repeated.
        questions: int64 `[t]` each.
        ends: for each of `SIZES` int64 `[n]`, behind the last token of each passage.
        places: for each of `SIZES` int64 `[questions, 2]`, the passages `[first, last)` that a
            question is about.
    """

    ids: np.ndarray
    questions: list[np.ndarray]
    ends: tuple[np.ndarray, ...]
    places: tuple[np.ndarray, ...]


def read_document(tokenizer: Tokenizer, record: dict[str, object], split: int) -> Document | None:
    """Read a line of documents.jsonl; None where it has one passage, or none of its questions has a
    place.
    """
    title, text = str(record["title"]), str(record["text"])
    before = prefix_of(title)
    ids, offsets = tokenizer.encode(before + text)
    n_title = int((offsets[:, 1] <= len(before)).sum()) if before else 0
    cuts = [cut_passages(text, offsets - len(before), PassageSize(tokens)) for tokens in SIZES]
    questions, places = [], []
    for asked in record["questions"]:  # type: ignore[attr-defined]  # a list, as texts.py writes it
        found = [_place(cut.spans, *asked["span"]) for cut in cuts]
        if all(first < last for first, last in found):
            questions.append(tokenizer.encode_ids(asked["query"])[:split].astype(np.int64))
            places.append(found)
    if len(cuts[0]) < 2 or not questions:
        return None
    read = [repeat_title(ids, cut, n_title, split) for cut in cuts]
    ends = tuple(cut.ranges[:, 1] for _, cut in read)
    return Document(
        read[0][0].astype(np.int64), questions, ends, tuple(np.array(places).transpose(1, 0, 2))
    )


def _place(spans: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Return which passages `[first, last)` hold half of a span, or are half in it."""
    shared = np.minimum(end, spans[:, 1]) - np.maximum(start, spans[:, 0])
    needed = np.minimum(end - start, spans[:, 1] - spans[:, 0])
    found = np.flatnonzero((2 * shared >= needed) & (needed > 0))
    return (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)


@dataclass(frozen=True)
class Step:
    """What a step reads.

    Attributes:
        splits: the ids of each split.
        owners: int64 `[splits, S]`, the passage of each token; -1: of none that is whole.
        runs: int64 `[passages]`, the run of each.
        questions: as in `Document`.
        asked_runs: int64 `[questions]`, the run of each.
        places: as in `Document`, passages counted through the step.
        texts: ids of ordinary ones.
    """

    splits: list[np.ndarray]
    owners: np.ndarray
    runs: np.ndarray
    questions: list[np.ndarray]
    asked_runs: np.ndarray
    places: np.ndarray
    texts: list[np.ndarray]


class Steps:
    """Draws runs of splits and texts, by a seed."""

    def __init__(
        self, documents: Sequence[Document], texts: Sequence[np.ndarray], split: int, run: int
    ) -> None:
        self._documents, self._texts, self._split, self._run = documents, texts, split, run

    def draw(self, tokens: int, rng: np.random.Generator) -> Step:
        """Return a step of about so many tokens of documents, and half as many of texts."""
        splits, owners, runs, questions, asked, places = [], [], [], [], [], []
        while len(splits) * self._split < tokens:
            document = self._documents[rng.integers(len(self._documents))]
            size = int(rng.random() >= 2 / 3)
            parts = np.split(document.ids, range(self._split, len(document.ids), self._split))
            low = int(rng.integers(max(1, len(parts) - self._run + 1)))
            chosen = parts[low : low + self._run]
            begin, stop = low * self._split, low * self._split + sum(map(len, chosen))
            ends = document.ends[size]
            starts = np.concatenate([[0], ends[:-1]])
            whole = np.flatnonzero((starts >= begin) & (ends <= stop))
            if len(whole) < 2:
                continue
            first, last = int(whole[0]), int(whole[-1]) + 1
            place = document.places[size].clip(first, last)
            about = rng.permutation(np.flatnonzero(place[:, 0] < place[:, 1]))[:QUESTIONS]
            if not len(about):
                continue
            owner = np.full(len(chosen) * self._split, -1)
            for passage in whole:
                owner[starts[passage] - begin : ends[passage] - begin] = len(runs) + passage - first
            places.append(place[about] - first + len(runs))
            number = len(owners)
            runs += [number] * len(whole)
            asked += [number] * len(about)
            questions += [document.questions[i] for i in about]
            splits += chosen
            owners.append(owner.reshape(-1, self._split))
        count = max(2, tokens // 2 // int(np.mean([len(text) for text in self._texts])))
        drawn = [self._texts[i] for i in rng.integers(len(self._texts), size=count)]
        return Step(
            splits,
            np.concatenate(owners),
            np.array(runs),
            questions,
            np.array(asked),
            np.concatenate(places),
            drawn,
        )


def hidden(model: AveyBModel, texts: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs `[B, T, D]` of texts of one split each, and which tokens exist, `[B, T,
    1]`.
    """
    device = model.embed.weight.device
    lengths = torch.tensor([len(ids) for ids in texts], device=device)
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(ids) for ids in texts], batch_first=True
    ).to(device)
    exists = (torch.arange(ids.shape[1], device=device) < lengths[:, None])[..., None]
    return model.run_layers(model.embed(ids) * exists, lengths), exists


def vectors(model: AveyBModel, texts: Sequence[np.ndarray]) -> torch.Tensor:
    """Return the unit vectors `[B, D]` of texts of one split each."""
    states, exists = hidden(model, texts)
    return normalize((states * exists).float().sum(1), dim=-1)


def passage_vectors(model: AveyBModel, step: Step) -> torch.Tensor:
    """Return the unit vectors `[passages, D]` of a step."""
    states, _ = hidden(model, step.splits)
    owners = torch.from_numpy(step.owners[:, : states.shape[1]]).to(states.device).reshape(-1)
    rows = torch.zeros(len(step.runs) + 1, states.shape[-1], device=states.device)
    owners = torch.where(owners < 0, len(step.runs), owners)
    return normalize(rows.index_add(0, owners, states.flatten(0, 1).float())[:-1], dim=-1)


def step_loss(model: AveyBModel, start: AveyBModel, step: Step) -> torch.Tensor:
    """Return the loss of a step, a float32 scalar; `start` is the frozen copy."""
    own = passage_vectors(model, step), vectors(model, step.questions), vectors(model, step.texts)
    with torch.no_grad():
        was = (
            passage_vectors(start, step),
            vectors(start, step.questions),
            vectors(start, step.texts),
        )
    passages, questions, texts = own
    device = passages.device
    places = torch.from_numpy(step.places).to(device)
    column = torch.arange(len(passages), device=device)
    right = (column >= places[:, :1]) & (column < places[:, 1:])
    # of several right ones, the start's
    best = (was[1] @ was[0].T).masked_fill(~right, -9).argmax(1)
    others = right.scatter(1, best[:, None], value=False)
    logits = (questions @ passages.T / TEMPERATURE).masked_fill(others, -1e4)
    same = torch.from_numpy(step.asked_runs[:, None] == step.runs).to(device)
    loss = cross_entropy(logits, best) + cross_entropy(logits.masked_fill(~same, -1e4), best)
    for weight, now, before in zip((HOLD, HOLD, TEXTS), own, was, strict=True):
        loss = loss + weight * (1 - (now * before).sum(1).mean())
    return loss + SCORES * score_divergence(
        batch_scores([texts]), batch_scores([was[2]]), TEMPERATURE
    )


def optimizer_of(model: AveyBModel, learning_rate: float, *, embeddings: bool = False) -> Muon:
    """Return Muon for the layers' linear maps, StableAdamW for the rest; the compressor stays, and
    so do the embeddings unless they shall be trained.
    """
    maps = [part.weight for layer in model.layers for part in (layer.enricher, layer.fuser)]
    known = {id(parameter) for parameter in maps}
    rest = [p for layer in model.layers for p in layer.parameters() if id(p) not in known]
    if embeddings:
        rest.append(model.embed.weight)
    groups = [{"params": maps, "orthogonal": True}, {"params": rest}]
    return Muon(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0)


def train(
    model: AveyBModel, steps: Steps, *, count: int, tokens: int, learning_rate: float, seed: int
) -> AveyBModel:
    """Train the layers of a model; return what it was."""
    start, rng = copy.deepcopy(model).eval(), np.random.default_rng(seed)
    optimizer = optimizer_of(model, learning_rate)
    factor = learning_rate_factor("linear", count, 0.05)
    low = model.embed.weight.device.type == "cuda"
    for number in range(count):
        with torch.autocast(model.embed.weight.device.type, torch.bfloat16, enabled=low):
            loss = step_loss(model, start, steps.draw(tokens, rng))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.layers.parameters(), 5.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * factor(number)
        optimizer.step()
        if number % 20 == 0 or number == count - 1:
            click.echo(json.dumps({"step": number + 1, "loss": round(loss.item(), 4)}))
    return start


def mean_of(model: AveyBModel, start: AveyBModel, share: float) -> AveyBModel:
    """Move the weights of `start` by a share towards those of `model`."""
    with torch.no_grad():
        for was, now in zip(start.parameters(), model.parameters(), strict=True):
            was.lerp_(now, share)
    return start


@click.command(cls=Command)
@click.option(
    "--documents", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True
)
@click.option(
    "--texts", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True
)
@click.option(
    "--model",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Model folder; it must not be there yet.",
)
@click.option("--steps", type=click.IntRange(1), default=390)
@click.option(
    "--step-tokens", type=click.IntRange(1), default=120_000, help="Of documents, in a step."
)
@click.option(
    "--run-splits",
    type=click.IntRange(2),
    default=12,
    help="Splits of a document that are read at once.",
)
@click.option("--learning-rate", type=float, default=4e-4)
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
    default=0.5,
    help="Of what was learned, in the weights written.",
)
@click.option("--seed", type=int, default=0)
@click.option("--device", default=None, help="[default: cuda where there is one]")
def main(
    documents: Path,
    texts: Path,
    folder: Path,
    out: Path,
    steps: int,
    step_tokens: int,
    run_splits: int,
    learning_rate: float,
    share: float,
    seed: int,
    device: str | None,
) -> None:
    """Write the model folder --out."""
    if out.exists():
        raise ConfigError(f"{out} is there already: nothing was written; choose another folder")
    tokenizer = read_vocabulary(folder)
    model = AveyBModel.from_pretrained(folder, dtype=torch.float32)
    model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).train()
    split = model.config.split_size
    found = (read_document(tokenizer, dict(record), split) for _, record in read_records(documents))
    usable = [document for document in found if document is not None]
    ordinary = [
        ids
        for text in read_texts([texts])
        if len(ids := tokenizer.encode_ids(text)[:split].astype(np.int64))
    ]
    if not usable or not ordinary:
        raise InputError(
            f"{documents} has {len(usable)} documents of several passages with questions, {texts}"
            f" {len(ordinary)} texts: both need one at least"
        )
    drawn = Steps(usable, ordinary, split, run_splits)
    start = train(
        model, drawn, count=steps, tokens=step_tokens, learning_rate=learning_rate, seed=seed
    )
    sentence_transformer(mean_of(model, start, share).cpu(), tokenizer, out)
    shutil.copy(folder / "config_sentence_transformers.json", out)
    click.echo(f"{out}: {steps} steps over {len(usable):,} documents")


if __name__ == "__main__":
    main()
