"""Write a student that has learned nothing, with a vocabulary of its own.

    python start.py --items items.jsonl OUT

The vocabulary is byte-level, so no text is unknown to it. A piece's embedding begins as the mean of
the teacher's embeddings of the same characters.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import torch
from student import new_student
from tokenizers import Tokenizer

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.languages.folder import languages_folder, weights_file
from aveyb_retrieval.encoder.languages.network import normed, position_table
from aveyb_retrieval.encoder.languages.weights import read_weights
from aveyb_retrieval.encoder.text.tokenizer import WORDS_PATTERN, AveyBTokenizer
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.texts import read_records, train_vocabulary

PIECES = 64_000
# Marks of vowels and tones belong to their letters (Hindi, Bengali, Thai, Arabic, Hebrew).
PATTERN = WORDS_PATTERN.replace(r"\p{L}", r"\p{L}\p{M}").replace(
    r" ?\p{L}\p{M}+", r" ?[\p{L}\p{M}]+"
)
SPLIT = 256


def teacher_table(tokenizer: AveyBTokenizer) -> torch.Tensor:
    """Return float32 `[V, 384]`: what the teacher embeds each piece as, beside the mean of its
    positions.
    """
    weights = read_weights(weights_file())
    place = position_table(weights)[:SPLIT].mean(axis=0)
    words = weights.tensors["emb.word"].reshape(-1, weights.sizes.hidden)
    reader = Tokenizer.from_file(str(languages_folder() / "tokenizer.json"))
    unknown, space = weights.pieces.unknown, reader.token_to_id("▁")
    rng = np.random.default_rng(0)
    rows = rng.normal(scale=words.std() / 4, size=(tokenizer.vocab_size, words.shape[1]))
    for number in range(tokenizer.vocab_size):
        text = tokenizer.decode_bytes([number]).decode(errors="replace")
        ids = reader.encode(text, add_special_tokens=False).ids
        if text[:1] != " " and len(ids) > 1 and ids[0] == space:
            ids = ids[1:]
        ids = [token for token in ids if token != unknown]
        if ids and "\ufffd" not in text:
            rows[number] = words[ids].mean(axis=0)
    return torch.from_numpy(normed(weights, rows + place, "emb.ln").astype(np.float32))


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
    model = new_student(teacher_table(tokenizer))
    sentence_transformer(model, tokenizer, out)


if __name__ == "__main__":
    main()
