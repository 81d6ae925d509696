"""Write the teacher's vectors of every text, in parts that a later start continues.

python teacher.py --items items.jsonl --out OUT

vectors-00000.npy ...  float16 [n, 384], unit rows in the order of the texts
"""

from __future__ import annotations

import io
import shutil
import unicodedata
from pathlib import Path

import click
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.languages.folder import languages_folder
from aveyb_retrieval.files import write_atomic
from aveyb_retrieval.training.texts import read_records

PART = 4_096  # texts
BATCH_TOKENS = 1_024
LONGEST = 512  # tokens
ROTATION = "rotation.npy"  # in the folder of the start: from these vectors to the student's space
PROMPTS = {"query": "query: ", "document": "passage: ", "pair": "passage: "}


class Teacher:
    """multilingual-e5-small in int8, on one thread."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_mem_pattern = False
        self._session = onnxruntime.InferenceSession(
            str(folder / "onnx" / "model_int8.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return unit rows float32 `[n, D]`; texts of a length are read together."""
        ids = [self._tokenizer.encode(text).ids[:LONGEST] for text in texts]
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        vectors = np.zeros((len(ids), 384), np.float32)
        batch: list[int] = []
        for number in order:
            if batch and (len(batch) + 1) * len(ids[number]) > BATCH_TOKENS:
                vectors[batch] = self._run([ids[at] for at in batch])
                batch = []
            batch.append(number)
        if batch:
            vectors[batch] = self._run([ids[at] for at in batch])
        return vectors

    def _run(self, batch: list[list[int]]) -> np.ndarray:
        width = max(map(len, batch))
        ids = np.ones((len(batch), width), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        feed = {"input_ids": ids, "attention_mask": mask}
        (states,) = self._session.run(None, feed)
        sums = (states * mask[..., None]).sum(axis=1)
        rows: np.ndarray = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return rows


def part_path(folder: Path, number: int) -> Path:
    """Return where a part's vectors are."""
    return folder / f"vectors-{number:05d}.npy"


@click.command(cls=Command)
@click.option("--items", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--copy", type=click.Path(path_type=Path), default=None, help="A second place.")
@click.option("--parts", type=int, default=None, help="Of those that are missing, at most.")
def main(items: Path, out: Path, copy: Path | None, parts: int | None) -> None:
    """Write the parts that OUT lacks."""
    for folder in filter(None, (out, copy)):
        folder.mkdir(parents=True, exist_ok=True)
    records = [record for _, record in read_records(items)]
    numbers = range(-(-len(records) // PART))
    if copy is not None:
        for number in numbers:
            kept = part_path(copy, number)
            if kept.is_file() and not part_path(out, number).is_file():
                shutil.copy(kept, out)
    missing = [number for number in numbers if not part_path(out, number).is_file()][:parts]
    teacher = Teacher(languages_folder())
    for number in missing:
        rows = records[number * PART : (number + 1) * PART]
        texts = [unicodedata.normalize("NFC", PROMPTS[row["kind"]] + row["text"]) for row in rows]
        content = io.BytesIO()
        np.save(content, teacher.encode(texts).astype(np.float16))
        for folder in filter(None, (out, copy)):
            write_atomic(part_path(folder, number), content.getvalue())
        click.echo(f"part {number + 1} of {len(numbers)}")


if __name__ == "__main__":
    main()
