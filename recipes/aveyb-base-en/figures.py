"""Development figures of a run: a line for each time that it is judged, and their curve.

    cosine        of the student's vectors to the teacher's: passages, questions (of the texts kept aside)
    correlation   of the cosines between these questions and passages with the teacher's
    scifact, medquad   NDCG@10 of development questions in small pools (`../aveyb-small-en/judge.py`)

The model is judged as it is used: saved, and opened by `Embedder`.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from token_ids import groups
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-small-en"))
from judge import make_pool, score_pool
from select_pairs import KEPT_ASIDE

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.loading import load_encoder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.text.wordpiece import WordPieceTokenizer
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from student import Teacher
    from token_ids import TokenIds

    from aveyb_retrieval.encoder.network.model import AveyBModel

FIGURES, CURVE = "figures.json", "figures.png"
TEXTS = 256  # of each kind
SETS = ("scifact", "medquad")
POOL = (60, 6, 150)  # questions, documents that BM25 finds for each, other documents
MAX_TOKENS = 256  # of a document


class Judge:
    """Judges a run's model from time to time.

    Args:
        run: its folder, in which the figures are kept.
        folder: of the teacher, whose vocabulary the student has.
        teacher: the same, loaded.
        texts: the data; the last ones are judged.
        data: folder of the data sets; None: no pools.
    """

    def __init__(self, run: Path, folder: Path, teacher: Teacher, texts: TokenIds, data: Path | None) -> None:
        """Choose the texts; the teacher encodes them when they are first needed."""
        self.path, self.folder, self.data = run / FIGURES, folder, data
        self._teacher, self._texts = teacher, texts
        last = max(0, len(texts) - KEPT_ASIDE)
        self.rows = {kind: [r for r in texts.of_kind(kind).tolist() if r >= last][:TEXTS] for kind in KEPT_KINDS}
        self._wanted: dict[str, np.ndarray] = {}

    def drop_after(self, step: int) -> None:
        """Drop what a continued run will measure again."""
        found = read(self.path)
        found["curve"] = [line for line in found["curve"] if line["step"] <= step]
        self._write(found)

    def add(self, model: AveyBModel, step: int, tokens: int, stage: str) -> None:
        """Measure a model and write the line."""
        found = read(self.path)
        if self.data is not None and "teacher" not in found:
            found["teacher"] = pools(load_encoder(self.folder, max_tokens=MAX_TOKENS), self.data)
        found["curve"].append({"step": step, "tokens": tokens, "stage": stage, **self.measure(model)})
        self._write(found)

    def measure(self, model: AveyBModel) -> dict[str, float]:
        """Return all figures of a model."""
        if not self._wanted:
            self._wanted = {
                kind: vectors([self._texts[r] for r in rows], lambda part: self._teacher.batch(part).vectors)
                for kind, rows in self.rows.items()
            }
        model.eval()
        own = {
            kind: vectors([self._texts[r] for r in rows], lambda part: pooled(model, part))
            for kind, rows in self.rows.items()
        }
        figures = {f"cosine {kind}": float((own[kind] * self._wanted[kind]).sum(1).mean()) for kind in own}
        figures["correlation"] = correlation(own, self._wanted)
        if self.data is not None:
            with tempfile.TemporaryDirectory() as folder:
                export(model, self.folder, Path(folder))
                figures |= pools(Embedder.load(folder, max_tokens=MAX_TOKENS), self.data)
        model.train()
        return {name: round(value, 4) for name, value in figures.items()}

    def _write(self, found: dict[str, Any]) -> None:
        write_atomic(self.path, (json.dumps(found, indent=1) + "\n").encode())


KEPT_KINDS = ("passage", "question")


def read(path: Path) -> dict[str, Any]:
    """Return the figures of a run, or of none."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"curve": []}
    return found


def export(model: AveyBModel, teacher: Path, out: Path) -> None:
    """Write a folder that `Embedder` and sentence-transformers open, with the teacher's vocabulary."""
    sentence_transformer(model, WordPieceTokenizer.load(teacher), out)


def pools(model: Any, data: Path) -> dict[str, float]:
    """Return NDCG@10 of the sets' pools."""
    return {name: round(score_pool(model, make_pool(data, name, *POOL)), 4) for name in SETS}


@torch.no_grad()
def vectors(texts: list[np.ndarray], encode: Any) -> np.ndarray:
    """Return float32 `[n, D]` of some texts, encoded in groups of similar length."""
    rows = groups(texts, 2048)
    found = torch.cat([encode([texts[i] for i in part]) for part in rows]).numpy()
    out: np.ndarray = found[np.argsort(np.concatenate(rows))]
    return out


def pooled(model: AveyBModel, texts: list[np.ndarray]) -> torch.Tensor:
    """Return the model's unit vectors `[B, D]` of some texts."""
    ids = nn.utils.rnn.pad_sequence([torch.from_numpy(text.astype(np.int64)) for text in texts], batch_first=True)
    lengths = torch.tensor([len(text) for text in texts])
    hidden = model(ids, torch.arange(ids.shape[1]) < lengths[:, None]).last_hidden_state
    return nn.functional.normalize(hidden.sum(1), dim=-1)


def correlation(own: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Return the correlation of cosines between questions and passages with the teacher's."""
    scores = [(found["question"] @ found["passage"].T).ravel() for found in (own, wanted)]
    return float(np.corrcoef(scores)[0, 1])


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the curve, dotted lines for the teacher."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    names = [[f"cosine {kind}" for kind in KEPT_KINDS] + ["correlation"], list(SETS)]
    for axes, chosen in zip(panels, names, strict=True):
        for name in chosen:
            points = [(line["tokens"] / 1e6, line[name]) for line in found["curve"] if name in line]
            if points:
                (drawn,) = axes.plot(*zip(*points, strict=True), label=name, marker=".")
                if name in found.get("teacher", {}):
                    axes.axhline(found["teacher"][name], color=drawn.get_color(), linestyle=":")
        axes.set(xlabel="million tokens")
        axes.grid(alpha=0.3)
        axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    write_atomic(path, image.getvalue())


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def main(run: Path, out: Path) -> None:
    """Write the figures of RUN and their curve to the folder OUT."""
    found = read(run / FIGURES)
    write_atomic(out / FIGURES, (json.dumps(found, indent=1) + "\n").encode())
    draw(found, out / CURVE)


if __name__ == "__main__":
    main()
