"""Teach the student what the teacher says of every text; stopped at any time, it goes on later.

    python learn.py --items items.jsonl --vectors VECTORS --model START --out OUT

A target is the teacher's vector less the mean of its language and kind, turned into the space that
the student starts in; both sides of a translation share the mean of theirs. A step reads groups of
texts, and with each question a passage that the teacher finds near. Passages of one page are read
alone or, half of the time, within splits of their page. With s the student's vectors of a step, t
the targets and T = 0.05,

    loss = 4 (1 - s t) + 2 KL(t t' / T || s s' / T)

Embeddings learn by Adam at a rate of their own, and a step changes only the rows that it reads.

OUT/checkpoint holds the newest whole state, OUT/log.jsonl a line for each report.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from documents import optimizer_of
from safetensors.torch import load_file, save_file
from teacher import PART, ROTATION, part_path
from torch.nn.functional import embedding, normalize

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.training.distill import batch_scores, score_divergence
from aveyb_retrieval.training.teacher import unit
from aveyb_retrieval.training.texts import read_records
from aveyb_retrieval.training.trainer import learning_rate_factor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from muon import Muon

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

TEMPERATURE = 0.05
VECTORS, SCORES = 4.0, 2.0  # weights of the losses
WITHIN_PAGES = 0.5  # how often passages are read within their page
NEAR = 24  # passages from which one beside a question is drawn
HELD_OUT = 400  # groups at the end
MAX_GRADIENT_NORM = 5.0
WIDTHS = (32, 64, 128, 192, 256)  # tokens; splits of about one length are read together


@dataclass(frozen=True)
class Items:
    """Texts and their targets.

    ids: tokens of each text, int64. kinds, langs: of each. first: where each group begins, and the
    number of texts. targets: float16 `[N, D]`.
    """

    ids: list[np.ndarray]
    kinds: np.ndarray
    langs: np.ndarray
    first: np.ndarray
    targets: np.ndarray


def read_items(
    path: Path, vectors: Path, rotation: np.ndarray, tokenizer: Tokenizer, split: int
) -> Items:
    """Read the texts whose vectors are there, up to the first part that is missing."""
    parts = []
    while part_path(vectors, len(parts)).is_file():
        parts.append(np.load(part_path(vectors, len(parts))))
    if not parts:
        raise InputError(f"{vectors}: no vectors; run teacher.py first")
    raw = np.concatenate(parts)
    records = [record for (_, record), _ in zip(read_records(path), raw, strict=False)]
    ids = [tokenizer.encode_ids(record["text"])[:split].astype(np.int64) for record in records]
    kinds, langs = (np.array([record[name] for record in records]) for name in ("kind", "lang"))
    groups = np.array([record["group"] for record in records])
    first = np.append(np.flatnonzero(np.diff(groups, prepend=-1)), len(groups))
    if len(raw) % PART == 0:
        first = first[:-1]  # the last group may go on in the next part
    targets = (centred_targets(raw, kinds, langs) @ rotation).astype(np.float16)
    return Items(ids, kinds, langs, first, targets)


def centred_targets(raw: np.ndarray, kinds: np.ndarray, langs: np.ndarray) -> np.ndarray:
    """Return float32 `[N, D]` unit rows without the means of their languages and kinds."""
    targets = raw.astype(np.float32)
    for lang in np.unique(langs):
        for kind in np.unique(kinds):
            rows = np.flatnonzero((langs == lang) & (kinds == kind))
            if len(rows):
                targets[rows] -= targets[rows].mean(axis=0)
    targets = unit(targets)
    pairs = np.flatnonzero(kinds == "pair")[: 2 * (np.sum(kinds == "pair") // 2)].reshape(-1, 2)
    targets[pairs] = unit(targets[pairs].mean(axis=1))[:, None]
    return targets


def near_passages(items: Items, rng: np.random.Generator) -> np.ndarray:
    """Return for each text that is a question one of its nearest passages, else -1: int64 `[N]`."""
    near = np.full(len(items.kinds), -1)
    for lang in np.unique(items.langs):
        asked = np.flatnonzero((items.langs == lang) & (items.kinds == "query"))
        passages = np.flatnonzero((items.langs == lang) & (items.kinds == "document"))
        if len(passages) <= NEAR:
            continue
        rows = items.targets[passages].astype(np.float32)
        for some in np.array_split(asked, len(asked) // 512 + 1):
            scores = items.targets[some].astype(np.float32) @ rows.T
            best = np.argpartition(-scores, NEAR, axis=1)[:, :NEAR]
            drawn = rng.integers(NEAR, size=len(some))
            near[some] = passages[best[np.arange(len(some)), drawn]]
    return near


@dataclass(frozen=True)
class Split:
    """What is read at once: tokens, the text that each belongs to."""

    ids: np.ndarray
    owners: np.ndarray


class Steps:
    """Draws the steps of an epoch, by its number."""

    def __init__(self, items: Items, split: int, tokens: int) -> None:
        self._items, self._split, self._tokens = items, split, tokens

    def epoch(self, number: int) -> Iterator[tuple[list[Split], np.ndarray]]:
        """Yield the splits of each step and its texts, int64 `[n]`; owners count those."""
        rng = np.random.default_rng(number)
        near = near_passages(self._items, rng)
        groups = rng.permutation(len(self._items.first) - 1 - HELD_OUT)
        splits: list[Split] = []
        texts: list[int] = []
        count = 0
        for group in groups:
            for rows in self._read_together(int(group), near, rng):
                owners = np.repeat(np.arange(len(rows)), [len(self._items.ids[r]) for r in rows])
                ids = np.concatenate([self._items.ids[row] for row in rows])
                if len(ids):
                    splits.append(Split(ids[: self._split], (owners + len(texts))[: self._split]))
                    texts += rows
                    count += len(ids)
            if count >= self._tokens:
                yield splits, np.array(texts)
                splits, texts, count = [], [], 0

    def held_out(self) -> tuple[list[Split], np.ndarray]:
        """Return what no epoch reads, each text alone."""
        rows = np.arange(self._items.first[-1 - HELD_OUT], self._items.first[-1])
        rows = rows[[len(self._items.ids[row]) > 0 for row in rows]]
        splits = [
            Split(self._items.ids[row], np.full(len(self._items.ids[row]), number))
            for number, row in enumerate(rows)
        ]
        return splits, rows

    def _read_together(
        self, group: int, near: np.ndarray, rng: np.random.Generator
    ) -> Iterator[list[int]]:
        """Yield the texts of each split of a group, and the passages near its questions."""
        rows = range(*self._items.first[group : group + 2].tolist())
        together = rng.random() < WITHIN_PAGES
        current: list[int] = []
        size = 0
        for row in rows:
            length = len(self._items.ids[row])
            alone = not together or self._items.kinds[row] != "document"
            if current and (alone or size + length > self._split):
                yield current
                current, size = [], 0
            current.append(row)
            size += length
            if near[row] >= 0 and near[row] not in rows:
                yield [int(near[row])]
        if current:
            yield current


@dataclass(frozen=True)
class Network:
    """What computes vectors.

    embed: from tokens int64 `[B, T]` to embeddings `[B, T, D]`. layers: from those and the lengths
    int64 `[B]` to states `[B, T, D]`.
    """

    embed: Callable[[torch.Tensor], torch.Tensor]
    layers: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def text_vectors(network: Network, splits: Sequence[Split], targets: torch.Tensor) -> torch.Tensor:
    """Return the unit vectors float32 `[n, D]` of a step's texts, which have targets `[n, D]`;
    splits of about one length are read together, filled up to one width.
    """
    device = targets.device
    sums = torch.zeros_like(targets)
    classes = np.digitize([len(split.ids) for split in splits], WIDTHS, right=True)
    for number in np.unique(classes):
        batch = [splits[place] for place in np.flatnonzero(classes == number)]
        lengths = torch.tensor([len(split.ids) for split in batch], device=device)
        ids = torch.zeros(len(batch), WIDTHS[number], dtype=torch.int64)
        for row, split in enumerate(batch):
            ids[row, : len(split.ids)] = torch.from_numpy(split.ids)
        exists = torch.arange(WIDTHS[number], device=device) < lengths[:, None]
        states = network.layers(network.embed(ids.to(device)) * exists[..., None], lengths)
        owners = torch.from_numpy(np.concatenate([split.owners for split in batch])).to(device)
        sums = sums.index_add(0, owners, states.float()[exists])
    return normalize(sums, dim=-1)


class RowAdam:
    """Adam for those rows of a table `[V, D]` that a step reads (Kingma and Ba, 2015).

    Moments of a row change when it is read, and are debiased by how often it was.
    """

    BETAS = (0.9, 0.98)
    EPSILON = 1e-8

    def __init__(self, table: torch.Tensor) -> None:
        self._table = table
        self.mean, self.square = torch.zeros_like(table), torch.zeros_like(table)
        self.counts = torch.zeros(len(table), 1, device=table.device)

    @torch.no_grad()
    def step(self, rows: torch.Tensor, gradient: torch.Tensor, learning_rate: float) -> None:
        """Change the rows (int64 `[n]`) by their gradient `[n, D]`."""
        first, second = self.BETAS
        counts = self.counts[rows] + 1
        mean = self.mean[rows].lerp_(gradient, 1 - first)
        square = self.square[rows].lerp_(gradient.square(), 1 - second)
        self.counts[rows], self.mean[rows], self.square[rows] = counts, mean, square
        size = (square / (1 - second**counts)).sqrt_().add_(self.EPSILON)
        self._table[rows] -= learning_rate * (mean / (1 - first**counts)) / size


def table_reader(rows: torch.Tensor, table: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return what reads tokens `[B, T]` in a table `[n, D]` of those sorted rows: `[B, T, D]`.
    A token that is not among them, such as padding, is read as some row.
    """

    def read(ids: torch.Tensor) -> torch.Tensor:
        places = torch.searchsorted(rows, ids).clamp_max(len(rows) - 1)
        return embedding(places, table)

    return read


def gradient_of(leaf: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a tensor that a loss was computed from."""
    if leaf.grad is None:
        raise InputError("a step has no tokens; write texts that are not empty")
    return leaf.grad


def step_loss(vectors: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of a step, a float32 scalar."""
    cosines = (vectors * targets).sum(1)
    divergence = score_divergence(batch_scores([vectors]), batch_scores([targets]), TEMPERATURE)
    return VECTORS * (1 - cosines.mean()) + SCORES * divergence


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    epoch: int = 0
    step_in_epoch: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    texts: int = 0  # that the epoch reads; more vectors begin a new one


class Checkpoint:
    """The newest whole state of a run, and copies of it."""

    def __init__(self, folder: Path, copies: Sequence[Path]) -> None:
        self._folder, self._copies = folder / "checkpoint", copies
        for copy in copies:
            if not self._folder.is_dir() and copy.is_dir():
                shutil.copytree(copy, self._folder)

    def load(self, model: AveyBModel, optimizer: Muon, rows: RowAdam) -> Progress:
        """Return how far the run is, and set model and optimizers to that."""
        if not self._folder.is_dir():
            return Progress()
        model.load_state_dict(load_file(self._folder / "model.safetensors"))
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in load_file(self._folder / "optimizer.safetensors").items():
            number, _, part = name.partition(".")
            state.setdefault(int(number), {})[part] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        for name, tensor in load_file(self._folder / "rows.safetensors").items():
            getattr(rows, name).copy_(tensor)
        return Progress(**json.loads((self._folder / "progress.json").read_text()))

    def save(self, model: AveyBModel, optimizer: Muon, rows: RowAdam, progress: Progress) -> None:
        """Write a state beside the old one, then take its place; then copy it."""
        part = self._folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
            part / "model.safetensors",
        )
        tensors = {
            f"{number}.{name}": tensor.contiguous()
            for number, values in optimizer.state_dict()["state"].items()
            for name, tensor in values.items()
        }
        save_file(tensors, part / "optimizer.safetensors")
        moments = {"mean": rows.mean, "square": rows.square, "counts": rows.counts}
        save_file(moments, part / "rows.safetensors")
        (part / "progress.json").write_text(json.dumps(asdict(progress)))
        replace_folder(part, self._folder)
        for copy in self._copies:
            beside = copy.with_suffix(".part")
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(self._folder, beside)
            replace_folder(beside, copy)


def replace_folder(new: Path, folder: Path) -> None:
    """Give a folder another's name; the old one is there until then."""
    old = folder.with_suffix(".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.is_dir():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@torch.no_grad()
def measure(model: AveyBModel, steps: Steps, items: Items) -> dict[str, float]:
    """Return the mean cosine of texts that are not learned, and how often the nearest of their
    targets is their own.
    """
    splits, rows = steps.held_out()
    targets = torch.from_numpy(items.targets[rows]).float()
    network = Network(model.embed, model.run_layers)
    vectors = text_vectors(network, splits, targets.to(model.embed.weight.device)).cpu()
    scores = vectors @ targets.T
    right = (scores.argmax(1) == torch.arange(len(rows))) | torch.from_numpy(
        items.kinds[rows] == "pair"
    )
    return {"cosine": float(scores.diagonal().mean()), "first": float(right.float().mean())}


def train(
    model: AveyBModel,
    items: Items,
    checkpoint: Checkpoint,
    *,
    log: Path,
    step_tokens: int,
    total_tokens: int,
    learning_rate: float,
    embedding_rate: float,
    save_seconds: float,
    bfloat16: bool,
    compiled: bool,
) -> Progress:
    """Train until so many tokens are seen."""
    optimizer = optimizer_of(model, learning_rate)
    row_adam = RowAdam(model.embed.weight.detach())
    weights = [parameter for layer in model.layers for parameter in layer.parameters()]
    layers = torch.compile(model.run_layers, dynamic=True) if compiled else model.run_layers
    progress = checkpoint.load(model, optimizer, row_adam)
    steps = Steps(items, model.config.split_size, step_tokens)
    device = model.embed.weight.device
    factor = learning_rate_factor("trapezoidal", total_tokens // step_tokens, 0.01)
    if progress.texts != len(items.ids):
        progress = replace(
            progress,
            epoch=progress.epoch + bool(progress.steps),
            step_in_epoch=0,
            texts=len(items.ids),
        )
    saved = time.monotonic()
    while progress.tokens < total_tokens:
        for number, (splits, rows) in enumerate(steps.epoch(progress.epoch)):
            if number < progress.step_in_epoch:
                continue
            began = time.monotonic()
            targets = torch.from_numpy(items.targets[rows]).to(device).float()
            read = torch.from_numpy(np.unique(np.concatenate([s.ids for s in splits]))).to(device)
            table = model.embed.weight.detach()[read].requires_grad_()
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                vectors = text_vectors(Network(table_reader(read, table), layers), splits, targets)
            loss = step_loss(vectors, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*weights, table], MAX_GRADIENT_NORM)
            share = factor(progress.tokens // step_tokens)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * share
            optimizer.step()
            row_adam.step(read, gradient_of(table), embedding_rate * share)
            now = time.monotonic()
            progress = replace(
                progress,
                step_in_epoch=number + 1,
                steps=progress.steps + 1,
                tokens=progress.tokens + sum(len(split.ids) for split in splits),
                seconds=progress.seconds + now - began,
            )
            if progress.steps % 20 == 1:
                report(log, progress, {"loss": loss.item()})
            if now - saved > save_seconds:
                checkpoint.save(model, optimizer, row_adam, progress)
                report(log, progress, measure(model, steps, items))
                saved = now
            if progress.tokens >= total_tokens:
                break
        else:
            progress = replace(progress, epoch=progress.epoch + 1, step_in_epoch=0)
    checkpoint.save(model, optimizer, row_adam, progress)
    report(log, progress, measure(model, steps, items))
    return progress


def report(log: Path, progress: Progress, values: dict[str, Any]) -> None:
    """Add a line to the log and show it."""
    line = json.dumps(
        {
            "step": progress.steps,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds),
            **{name: round(value, 4) for name, value in values.items()},
        }
    )
    with log.open("a") as file:
        file.write(line + "\n")
    click.echo(line)


@click.command(cls=Command)
@click.option("--items", "path", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--vectors", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--model", "folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--copy", "copies", type=click.Path(path_type=Path), multiple=True)
@click.option("--tokens", type=int, default=160_000_000, help="To read in all.")
@click.option("--step-tokens", type=int, default=16_384)
@click.option("--learning-rate", type=float, default=1e-3)
@click.option("--embedding-rate", type=float, default=5e-3)
@click.option("--save-seconds", type=float, default=900)
@click.option("--compile", "compiled", is_flag=True, help="Layers by torch.compile.")
@click.option("--float32", is_flag=True, help="Else bfloat16 where matrices are multiplied.")
def main(
    path: Path,
    vectors: Path,
    folder: Path,
    out: Path,
    copies: tuple[Path, ...],
    tokens: int,
    step_tokens: int,
    learning_rate: float,
    embedding_rate: float,
    save_seconds: float,
    compiled: bool,
    float32: bool,
) -> None:
    """Write OUT/model once all tokens are read."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = read_vocabulary(folder)
    model = AveyBModel.from_pretrained(folder, dtype=torch.float32)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    rotation = np.load(folder / ROTATION)
    items = read_items(path, vectors, rotation, tokenizer, model.config.split_size)
    train(
        model,
        items,
        Checkpoint(out, copies),
        log=out / "log.jsonl",
        step_tokens=step_tokens,
        total_tokens=tokens,
        learning_rate=learning_rate,
        embedding_rate=embedding_rate,
        save_seconds=save_seconds,
        bfloat16=not float32,
        compiled=compiled,
    )
    sentence_transformer(model.cpu(), tokenizer, out / "model")


if __name__ == "__main__":
    main()
