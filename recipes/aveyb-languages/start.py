"""Write a student that begins as the English model, with a vocabulary of its own.

    python start.py --items items.jsonl OUT

The vocabulary is byte-level, so no text is unknown to it. All layers are those of the English
model. A piece that is one of its words begins with the embedding of that word; another piece with
p the teacher's vector of the piece and w those of English words, both less their means,

    e = sum_i softmax(p w_i / T)_i e_i        over its K nearest words

so a word of any language begins near what it means. OUT/rotation.npy turns the teacher's vectors
into the space that these layers write to: the orthogonal map which brings the vectors of English
texts nearest to the English model's (Schönemann, 1966).
"""

from __future__ import annotations

import json
import unicodedata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import torch
from documents import vectors
from teacher import PROMPTS, ROTATION, Teacher

from aveyb_retrieval import model_path
from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.languages.folder import languages_folder
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import WORDS_PATTERN
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.teacher import unit
from aveyb_retrieval.training.texts import read_records, train_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

PIECES = 64_000
# Marks of vowels and tones belong to their letters (Hindi, Bengali, Thai, Arabic, Hebrew).
PATTERN = WORDS_PATTERN.replace(r"\p{L}", r"\p{L}\p{M}").replace(
    r" ?\p{L}\p{M}+", r" ?[\p{L}\p{M}]+"
)
NEAREST_WORDS = 10  # K
TEMPERATURE = 0.05  # T
BLOCK_PIECES = 2_048
ENGLISH_TEXTS = 3_000  # from which the rotation is found
BATCH_TEXTS = 32


def first_letter(text: str) -> str:
    """Return the first letter of a text, "" where it has none."""
    return next((letter for letter in text if letter.isalpha()), "")


def script_of(text: str) -> str:
    """Return the first word of the Unicode name of the first letter: LATIN, CYRILLIC."""
    return unicodedata.name(first_letter(text), "").partition(" ")[0]


def spellings(piece: str) -> list[str]:
    """Return how the English vocabulary may spell a piece, the likeliest first.

    It has small letters without marks, and "##" before what goes on a word.
    """
    small = piece.strip().casefold() or piece
    plain = "".join(c for c in unicodedata.normalize("NFD", small) if not unicodedata.combining(c))
    if piece.startswith(" "):
        return [small, plain]
    return [f"##{small}", small, f"##{plain}", plain]


def centred_by_script(rows: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return unit rows float32 `[n, D]` less the mean of each script."""
    scripts = np.array([script_of(text) for text in texts])
    centred = rows.copy()
    for script in np.unique(scripts):
        members = scripts == script
        centred[members] -= centred[members].mean(axis=0)
    return unit(centred)


def english_meanings(pieces: Sequence[str], english: AveyBModel, teacher: Teacher) -> np.ndarray:
    """Return float32 `[V, 384]`, what each piece begins as."""
    table = english.embed.weight.detach().numpy()
    folder = model_path()
    vocabulary = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    words = [word for word in vocabulary if len(word) > 1 and word.isalpha()]
    of_words = table[[vocabulary[word] for word in words]]
    rows = np.tile(of_words.mean(axis=0), (len(pieces), 1)).astype(np.float32)
    readable = [n for n, text in enumerate(pieces) if first_letter(text) and "\ufffd" not in text]
    texts = [unicodedata.normalize("NFC", pieces[number].strip()) for number in readable]
    known = teacher.encode([PROMPTS["query"] + word for word in words])
    asked = teacher.encode([PROMPTS["query"] + text for text in texts])
    known, asked = unit(known - known.mean(axis=0)), centred_by_script(asked, texts)
    for start in range(0, len(readable), BLOCK_PIECES):
        scores = asked[start : start + BLOCK_PIECES] @ known.T
        nearest = np.argpartition(-scores, NEAREST_WORDS, axis=1)[:, :NEAREST_WORDS]
        best = np.take_along_axis(scores, nearest, axis=1)
        weights = np.exp((best - best.max(axis=1, keepdims=True)) / TEMPERATURE)
        weights /= weights.sum(axis=1, keepdims=True)
        means = np.einsum("nk,nkd->nd", weights, of_words[nearest])
        rows[readable[start : start + BLOCK_PIECES]] = means
    for number, piece in enumerate(pieces):
        token = next((vocabulary[s] for s in spellings(piece) if s in vocabulary), None)
        if token is not None:
            rows[number] = table[token]
    return rows


def new_student(tokenizer: AveyBTokenizer, english: AveyBModel, teacher: Teacher) -> AveyBModel:
    """Return a model with the layers of the English one and an embedding of each piece."""
    size = tokenizer.vocab_size
    pieces = [tokenizer.decode_bytes([n]).decode(errors="replace") for n in range(size)]
    config = AveyBConfig(**{**english.config.to_dict(), "vocab_size": size})
    student = AveyBModel(config)
    state = dict(english.state_dict())
    state["embed.weight"] = torch.from_numpy(english_meanings(pieces, english, teacher))
    student.load_state_dict(state)
    return student


@torch.no_grad()
def rotation_of(items: Path, english: AveyBModel, teacher: Teacher) -> np.ndarray:
    """Return the orthogonal map float32 `[384, 384]` from the teacher's vectors to the model's.

    With `t` and `y` the vectors of English texts less their means, it is `U V^T` of `t^T y = U S
    V^T`.
    """
    tokenizer = read_vocabulary(model_path())
    records = (record for _, record in read_records(items))
    chosen = (r["text"] for r in records if r["lang"] == "en" and r["kind"] == "document")
    texts = list(islice(chosen, ENGLISH_TEXTS))
    said = teacher.encode([PROMPTS["document"] + text for text in texts])
    split = english.config.split_size
    own = np.zeros_like(said)
    for start in range(0, len(texts), BATCH_TEXTS):
        batch = texts[start : start + BATCH_TEXTS]
        ids = [tokenizer.encode_ids(text)[:split].astype(np.int64) for text in batch]
        own[start : start + BATCH_TEXTS] = vectors(english, ids).numpy()
    said, own = unit(said - said.mean(axis=0)), unit(own - own.mean(axis=0))
    left, _, right = np.linalg.svd(said.T @ own)
    return (left @ right).astype(np.float32)


@click.command(cls=Command)
@click.option("--items", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--pieces", type=int, default=PIECES)
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def main(items: Path, pieces: int, out: Path) -> None:
    """Write the model folder OUT."""
    if out.exists():
        raise ConfigError(f"{out} is there already: nothing was written; choose another folder")
    texts = (record["text"] for _, record in read_records(items) if record["kind"] != "query")
    tokenizer = train_vocabulary(texts, pieces, name="aveyb-languages", pattern=PATTERN)
    english = AveyBModel.from_pretrained(model_path(), dtype=torch.float32).eval()
    teacher = Teacher(languages_folder())
    sentence_transformer(new_student(tokenizer, english, teacher), tokenizer, out)
    np.save(out / ROTATION, rotation_of(items, english, teacher))


if __name__ == "__main__":
    main()
