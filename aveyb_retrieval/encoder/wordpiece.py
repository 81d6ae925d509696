"""BERT's WordPiece vocabularies, as a distilled model takes them over from its teacher: ids and character offsets.

`tokenizers` does the work. As with `AveyBTokenizer`, special tokens are never added to texts and never recognized in
them, and nothing is cut: whatever `tokenizer.json` says of them is left out of what `save` writes. WordPiece forgets
white space and (here) capitals, so there is no byte-exact decoding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.settings_file import read_object
from aveyb_retrieval.encoder.tokenizer import (
    SPECIAL_TOKENS,
    VOCAB_FILE,
    AveyBTokenizer,
    check_rows,
    huggingface_config,
    utf8,
)
from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKENIZER_FILE = "tokenizer.json"


class WordPieceTokenizer:
    """A WordPiece vocabulary with [PAD] [UNK] [CLS] [SEP] [MASK].

    Attributes:
        vocab_size: number of ids, and of rows of the embedding.
        name: shown in messages.
    """

    files = (TOKENIZER_FILE,)  # what defines the vocabulary in a model folder

    def __init__(self, description: str, name: str) -> None:
        """Read the text of a `tokenizer.json`.

        Raises:
            ModelError: it describes no WordPiece vocabulary, or one without a special token.
        """
        from tokenizers import Tokenizer

        self.name = name
        try:
            kept: dict[str, object] = json.loads(description) | {
                "truncation": None,
                "padding": None,
                "post_processor": None,
            }
            self._tokenizer = Tokenizer.from_str(json.dumps(kept))
        except Exception as error:  # tokenizers raises Exception itself
            raise ModelError(f"{name} describes no tokenizer ({error}); copy or download the model again") from error
        if not is_wordpiece(kept):
            raise ModelError(f"{name} holds no WordPiece vocabulary; only those of BERT's kind are read here")
        self._tokenizer.encode_special_tokens = True
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        found = {token: self._tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
        self.special_tokens = {token: i for token, i in found.items() if i is not None}
        if missing := [token for token in SPECIAL_TOKENS if token not in self.special_tokens]:
            raise ModelError(f"{name}: special tokens {', '.join(missing)} are missing; take BERT's own vocabulary")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_tokens.values()

    @classmethod
    def load(cls, folder: str | Path) -> WordPieceTokenizer:
        """Read `tokenizer.json` in a model folder.

        Raises:
            ModelError: the file is missing, damaged, or describes another kind of vocabulary.
        """
        path = Path(folder) / TOKENIZER_FILE
        if not path.is_file():
            raise ModelError(f"{path} is missing: the folder holds no tokenizer; save one with .save")
        return cls(path.read_text(encoding="utf-8"), str(path))

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which `AutoTokenizer` reads, too."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TOKENIZER_FILE).write_text(self._tokenizer.to_str() + "\n", encoding="utf-8")
        settings = json.dumps(huggingface_config(), indent=2)
        (folder / "tokenizer_config.json").write_text(settings + "\n", encoding="utf-8")

    def __len__(self) -> int:
        """Return `vocab_size`."""
        return self.vocab_size

    def check_embeddings(self, rows: int, where: str) -> None:
        """Check that this vocabulary can belong to a model with `rows` embeddings.

        Raises:
            ModelError: there are fewer rows than ids, or more unused ones than padding explains; names `where`.
        """
        check_rows(self.vocab_size, rows, self.name, where)

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return token ids int32 `[T]` and the characters they come from, int64 `[T, 2]`, `[start, end)` in `text`.

        Raises:
            InputError: `text` is not a string or holds a lone surrogate.
        """
        utf8(text)
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(found.ids, dtype=np.int32), np.array(found.offsets, dtype=np.int64).reshape(-1, 2)

    def encode_ids(self, text: str) -> np.ndarray:
        """Return the ids int32 `[T]` of `encode`, without the cost of the offsets."""
        utf8(text)
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return words with a space between them: what WordPiece keeps of a text."""
        values = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids)).tolist()
        return str(self._tokenizer.decode(values, skip_special_tokens=False))


Tokenizer = AveyBTokenizer | WordPieceTokenizer


def read_vocabulary(folder: str | Path) -> Tokenizer:
    """Read the vocabulary of a model folder, of either kind.

    Raises:
        ModelError: there is none, or it is damaged.
    """
    return WordPieceTokenizer.load(folder) if holds_wordpiece(Path(folder)) else AveyBTokenizer.load(folder)


def is_wordpiece(description: object) -> bool:
    """Whether the contents of a `tokenizer.json` describe a WordPiece vocabulary."""
    model = description.get("model") if isinstance(description, dict) else None
    return isinstance(model, dict) and model.get("type") == "WordPiece"


def holds_wordpiece(folder: Path) -> bool:
    """Whether a model folder has a WordPiece vocabulary.

    Raises:
        ModelError: its `tokenizer.json` is damaged.
    """
    return not (folder / VOCAB_FILE).is_file() and is_wordpiece(read_object(folder / TOKENIZER_FILE))
