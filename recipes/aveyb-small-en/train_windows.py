"""Train the whole model to tell the passages of a document apart, with what it retrieves from the document in them.

A step takes some windows of `make_windows.py` and a batch of packed texts. In the windows every passage is the mean of
its tokens in the window, as in an index (late chunking), and the questions have to find the passages they are about
among all of the step's: most wrong ones come from the same document. Of several right ones, the teacher's nearest is
the positive. Passages and questions are drawn to the teacher's vectors, too. The packed texts keep what the earlier
stages have taught, with the loss of `train_packed.py`.

The last windows (--aside) are not trained on. Processes that torchrun starts share a step's windows and texts. The same
command continues a run that was stopped, and ends with the weights of one that was not.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-mini-en"))
from make_texts import as_seen, before
from packed import PackedTexts, padded
from packed_loop import Head, PackedRun, StepLoss, token_vectors
from packed_settings import PackedSettings
from pairs import pair_loss
from train_packed import FOLDER, check_vocabulary

from aveyb_retrieval.cli.common import settings_options
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.network.splits import split_table
from aveyb_retrieval.encoder.text.passages import PassageSize, cut_passages, repeat_title
from aveyb_retrieval.encoder.text.wordpiece import Tokenizer, read_vocabulary
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.files import hash_file
from aveyb_retrieval.training.losses import score_divergence
from aveyb_retrieval.training.teacher import SETTINGS, read_vectors
from aveyb_retrieval.training.texts import read_records, read_texts

GROUP_TOKENS = 4096  # tokens that go through the layers together: what they leave for the gradient fits a CPU's cache


@dataclass(frozen=True)
class Window:
    """A window as the encoder reads it.

    ids: int32 `[T]`. ranges: int64 `[p, 2]`, the tokens of each passage. passages: their first line in texts.jsonl.
    queries: token ids of each. lines: int64 `[q]`, theirs. places: int64 `[q, 2]`, the passages that they are about.
    """

    ids: np.ndarray
    ranges: np.ndarray
    passages: int
    queries: list[np.ndarray]
    lines: np.ndarray
    places: np.ndarray


def read_windows(folder: Path, tokenizer: Tokenizer, split_size: int) -> list[Window]:
    """Read and tokenize the windows.

    Raises:
        InputError: a window is cut into other passages than when it was made.
    """
    texts = list(read_texts([folder / "texts.jsonl"]))
    found = []
    for number, record in read_records(folder / "windows.jsonl"):
        start = before(record["title"])
        ids, offsets = tokenizer.encode(start + record["text"])
        cuts = cut_passages(record["text"], offsets - len(start), PassageSize(record["passage_tokens"]))
        first, count = record["passages"]
        if len(cuts) != count:
            raise InputError(
                f"{folder / 'windows.jsonl'}, line {number}: {count} passages when it was made, now "
                f"{len(cuts)}: make it again"
            )
        queries = np.array(record["queries"], dtype=np.int64)
        asked = [tokenizer.encode_ids(as_seen(texts[line]))[:split_size] for line in queries[:, 0]]
        if record["title"]:
            ids, cuts = repeat_title(ids, cuts, int((offsets[:, 1] <= len(start)).sum()), split_size)
        found.append(Window(ids, cuts.ranges, first, asked, queries[:, 0], queries[:, 1:]))
    return found


def check_teacher(labels: Path, texts: PackedTexts) -> dict[str, Any]:
    """Return what the windows were labelled with; it must be the teacher of the packed texts.

    Raises:
        InputError: they were not.
    """
    facts: dict[str, Any] = json.loads((labels / SETTINGS).read_text(encoding="utf-8"))
    if facts["teacher"] != texts.facts["teacher"]:
        raise InputError(
            f"{labels / SETTINGS}: labelled by the teacher {facts['teacher']}, the packed texts by "
            f"{texts.facts['teacher']}: label both with one"
        )
    return facts


def passage_vectors(model: AveyBModel, windows: list[Window]) -> torch.Tensor:
    """Return the passages of all windows `[P, D]` float32, unit rows: means of their tokens' vectors."""
    counts = [len(window.ids) for window in windows]
    table = split_table(np.concatenate([window.ids for window in windows]), counts, model.split_size)
    sizes = [np.diff(np.append(window.ranges[:, 0], len(window.ids))) for window in windows]
    owner = torch.from_numpy(table.layout.spread(np.repeat(np.arange(sum(map(len, sizes))), np.concatenate(sizes))))
    retrieved = model.ranker.retrieve(table, model.embed.weight)
    slots, vectors, _ = (torch.cat(part) for part in zip(*model.encode_splits(table, retrieved), strict=True))
    sums = torch.zeros(sum(map(len, sizes)), vectors.shape[1]).index_add(0, owner[slots], vectors.float())
    return nn.functional.normalize(sums, dim=-1)


def query_vectors(model: AveyBModel, queries: list[np.ndarray]) -> torch.Tensor:
    """Return float32 `[Q, D]`, unit rows."""
    return nn.functional.normalize(token_vectors(model, *padded(queries))[1], dim=-1)


def own_passages(windows: list[Window]) -> torch.Tensor:
    """Return bool `[Q, P]`: the passages that each query is about."""
    firsts = np.cumsum([0, *(len(window.ranges) for window in windows)])
    places = np.concatenate([window.places + first for window, first in zip(windows, firsts[:-1], strict=True)])
    columns = np.arange(firsts[-1])
    return torch.from_numpy((columns >= places[:, :1]) & (columns < places[:, 1:]))


def windows_loss(
    model: AveyBModel, head: Head, windows: list[Window], taught: np.ndarray, settings: PackedSettings
) -> torch.Tensor:
    """Return the loss of some windows; taught: float16 `[n, D_teacher]`, the teacher's vector of each line."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.precision == "bfloat16"):
        passages = passage_vectors(model, windows)
        queries = query_vectors(model, [query for window in windows for query in window.queries])
    lines = np.concatenate([np.arange(window.passages, window.passages + len(window.ranges)) for window in windows])
    wanted = torch.from_numpy(taught[lines]).float()
    asked = torch.from_numpy(taught[np.concatenate([window.lines for window in windows])]).float()
    student, teacher = queries @ passages.T, asked @ wanted.T
    loss = settings.pair_weight * pair_loss(student, teacher, settings.temperature, own_passages(windows))
    loss = loss + settings.score_weight * score_divergence(student, teacher, settings.temperature)
    cosines = [nn.functional.cosine_similarity(head(s), t).mean() for s, t in ((passages, wanted), (queries, asked))]
    return loss + settings.vector_weight * (1 - torch.stack(cosines).mean())


def window_order(windows: list[Window], most: int, seed: int) -> list[np.ndarray]:
    """Return one epoch: batches of windows with `most` tokens at most, in a random order."""
    batches: list[list[int]] = [[]]
    total = 0
    for number in np.random.default_rng(seed).permutation(len(windows)).tolist():
        size = len(windows[number].ids)
        if batches[-1] and total + size > most:
            batches.append([])
            total = 0
        batches[-1].append(number)
        total += size
    return [np.array(batch) for batch in batches]


@click.command()
@click.option("--windows", "folder", type=FOLDER, required=True, help="Output folder of make_windows.py, labelled.")
@click.option("--packed", type=FOLDER, required=True, multiple=True, help="Output folder of pack_texts.py. Repeatable.")
@click.option("--model", required=True, help="Model folder to start from.")
@click.option("-o", "--out", type=FOLDER, required=True, help="Run folder.")
@click.option("--epochs", type=click.IntRange(min=1), default=3, show_default=True, help="Over the windows.")
@click.option("--window-tokens", type=int, default=24_576, show_default=True, help="Tokens of a step's windows.")
@click.option("--window-weight", type=float, default=1.0, show_default=True, help="Of the windows' loss.")
@click.option("--aside", type=int, default=250, show_default=True, help="Windows at the end that are kept aside.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: torch's choice]")
@settings_options("settings", PackedSettings())
def main(
    folder: Path,
    packed: tuple[Path, ...],
    model: str,
    out: Path,
    epochs: int,
    window_tokens: int,
    window_weight: float,
    aside: int,
    threads: int | None,
    settings: PackedSettings,
) -> None:
    """Train on the windows and the packed texts, starting from --model; the settings' number of steps is not used."""
    if threads is not None:
        torch.set_num_threads(threads)
    texts = PackedTexts.join([PackedTexts.load(one) for one in packed])
    check_vocabulary(Path(model), texts)
    student = AveyBModel.from_pretrained(model, dtype=torch.float32)
    windows = read_windows(folder, read_vocabulary(model), student.split_size)[:-aside]
    taught = read_vectors(folder / "teacher")
    labels = check_teacher(folder / "teacher", texts)
    batches = [batch for epoch in range(epochs) for batch in window_order(windows, window_tokens, epoch)]
    student.max_group_tokens = GROUP_TOKENS
    facts = {"windows": hash_file(folder / "windows.jsonl").sha256, "epochs": epochs, "aside": aside}
    facts |= {"window_tokens": window_tokens, "window_weight": window_weight, "labels": labels}
    run = PackedRun(student, texts, out, settings, steps=len(batches), facts=facts)

    def step_loss() -> StepLoss:
        batch = batches[run.step]
        chosen = [windows[number] for number in run.processes.share(batch)]
        loss = windows_loss(student, run.head, chosen, taught, settings)
        rest = run.packed_loss()
        tokens = rest.tokens + sum(len(windows[number].ids) for number in batch)
        return StepLoss(window_weight * loss + rest.loss, tokens, {"windows_loss": loss.item()})

    run.train(step_loss)


if __name__ == "__main__":
    main()
