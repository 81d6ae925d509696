"""BERT's WordPiece vocabularies, as a distilled model takes them over from its teacher: ids and
character offsets.

`tokenizers` does the work. As with `AveyBTokenizer`, special tokens are never added to texts and
never recognized in them, and nothing is cut: whatever `tokenizer.json` says of them is left out of
what `save` writes. WordPiece forgets white space and (here) capitals, so there is no byte-exact
decoding.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.model_folders import read_object
from aveyb_retrieval.encoder.text.knowledge import Knowledge, pieces_of
from aveyb_retrieval.encoder.text.pieces import cut_pieces
from aveyb_retrieval.encoder.text.tokenizer import (
    P50K_ROWS,
    SETTINGS_FILE,
    SPECIAL_TOKENS,
    VOCAB_FILE,
    AveyBTokenizer,
    Vocabulary,
    is_byte_level,
    utf8,
    write_huggingface_config,
)
from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TOKENIZER_FILE = "tokenizer.json"


class WordPieceTokenizer(Vocabulary):
    """A WordPiece vocabulary with [PAD] [UNK] [CLS] [SEP] [MASK]."""

    def __init__(self, description: Mapping[str, object], name: str) -> None:
        """Take the contents of a `tokenizer.json`.

        Raises ModelError: it describes no WordPiece vocabulary, or one without a special token.
        """
        from tokenizers import Tokenizer

        kept = {**description, **dict.fromkeys(("truncation", "padding", "post_processor"))}
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(kept))
        except Exception as error:  # tokenizers raises Exception itself
            raise ModelError(
                f"{name} describes no tokenizer ({error}); copy or download the model again"
            ) from error
        if not is_wordpiece(kept):
            raise ModelError(
                f"{name} holds no WordPiece vocabulary; only those of BERT's kind are read here"
            )
        self._tokenizer.encode_special_tokens = True
        found = {
            token: i
            for token in SPECIAL_TOKENS
            if (i := self._tokenizer.token_to_id(token)) is not None
        }
        if missing := [token for token in SPECIAL_TOKENS if token not in found]:
            raise ModelError(
                f"{name}: special tokens {', '.join(missing)} are missing; take BERT's own"
                " vocabulary"
            )
        super().__init__(name, self._tokenizer.get_vocab_size(), found)

    @classmethod
    def load(cls, folder: str | Path) -> WordPieceTokenizer:
        """Read `tokenizer.json` of a model folder.

        Raises ModelError: it is missing, damaged, or of another kind.
        """
        path = Path(folder) / TOKENIZER_FILE
        if not path.is_file():
            raise ModelError(
                f"{path} is missing: the folder holds no tokenizer; save one with .save"
            )
        return cls(read_object(path), str(path))

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which `AutoTokenizer` reads, too."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TOKENIZER_FILE).write_text(self._tokenizer.to_str() + "\n", encoding="utf-8")
        write_huggingface_config(folder)

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return token ids int32 `[T]` and the characters they come from, int32 `[T, 2]`, `[start,
        end)` in `text`.

        Raises InputError: `text` is not a string or holds a lone surrogate.
        """
        utf8(text)
        ids, offsets = bytearray(), bytearray()  # which grow where they are, unlike arrays
        for start, piece in cut_pieces(text):
            tokens = self._tokenizer.encode(piece, add_special_tokens=False)
            ids += np.array(tokens.ids, np.int32).tobytes()
            offsets += (np.array(tokens.offsets, np.int32).reshape(-1) + np.int32(start)).tobytes()
        return np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int32).reshape(-1, 2)

    def encode_words(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return of each text the ids of `encode` and where they begin, int64 `[T]`; other threads
        go on meanwhile.
        """
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [
            (np.array(each.ids, np.int64), np.array([at for at, _ in each.offsets], np.int64))
            for each in found
        ]

    def encode_ids(self, text: str) -> np.ndarray:
        """Return the ids int32 `[T]` of `encode`, without the cost of the offsets."""
        utf8(text)
        ids = bytearray()
        for _, piece in cut_pieces(text):
            tokens = self._tokenizer.encode(piece, add_special_tokens=False)
            ids += np.array(tokens.ids, np.int32).tobytes()
        return np.frombuffer(ids, np.int32)

    @cached_property
    def knowledge(self) -> Knowledge:
        """How well a model with this vocabulary knows a text."""
        return Knowledge(pieces_of(self._tokenizer))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return words with a space between them: what WordPiece keeps of a text."""
        values = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids)).tolist()
        return str(self._tokenizer.decode(values, skip_special_tokens=False))


Tokenizer = AveyBTokenizer | WordPieceTokenizer


def read_vocabulary(folder: str | Path) -> Tokenizer:
    """Read the vocabulary of a model folder, of either kind.

    Raises ModelError: there is none, or it is damaged.
    """
    return (
        WordPieceTokenizer.load(folder)
        if holds_wordpiece(Path(folder))
        else AveyBTokenizer.load(folder)
    )


def tokenizer_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that make the tokenizer of a model folder, as `load_tokenizer`
    reads it.
    """
    whole = holds_wordpiece(folder) or _saved_again(folder)
    return (TOKENIZER_FILE,) if whole else (VOCAB_FILE, SETTINGS_FILE)


def load_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer of a model folder, or p50k_base where it holds none, as the authors'
    checkpoints do.

    Where another tool has saved the folder again, only `tokenizer.json` is left of a vocabulary,
    and is read. `vocab_size` is the rows of the model's embedding. Raises ModelError: the tokenizer
    does not fit it, or there is none that does.
    """
    tokenizer: Tokenizer
    if (folder / VOCAB_FILE).is_file() or holds_wordpiece(folder):
        tokenizer = read_vocabulary(folder)
    elif _saved_again(folder):
        tokenizer = AveyBTokenizer.from_huggingface(folder / TOKENIZER_FILE, vocab_size)
    elif vocab_size == P50K_ROWS:
        tokenizer = AveyBTokenizer.p50k_base()
    else:
        raise ModelError(
            f"{folder}: {VOCAB_FILE} is missing, and there is no {TOKENIZER_FILE} made from one;"
            f" the model has {vocab_size:,} embeddings, so its vocabulary is not p50k_base: copy"
            " the tokenizer's files into the folder"
        )
    tokenizer.check_embeddings(vocab_size, str(folder))
    return tokenizer


def _saved_again(folder: Path) -> bool:
    return not (folder / VOCAB_FILE).is_file() and is_byte_level(
        read_object(folder / TOKENIZER_FILE)
    )


def is_wordpiece(description: object) -> bool:
    """Whether the contents of a `tokenizer.json` describe a WordPiece vocabulary."""
    model = description.get("model") if isinstance(description, dict) else None
    return isinstance(model, dict) and model.get("type") == "WordPiece"


def holds_wordpiece(folder: Path) -> bool:
    """Whether a model folder has a WordPiece vocabulary.

    Raises ModelError: its `tokenizer.json` is damaged.
    """
    return not (folder / VOCAB_FILE).is_file() and is_wordpiece(
        read_object(folder / TOKENIZER_FILE)
    )
