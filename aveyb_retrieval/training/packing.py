"""Packed sequences for language modeling: a file of token ids, and samples that depend on their number alone.

`pack_texts` writes all documents one after another, each closed by a separator, as int32 on disk; memory does not grow
with the text. Sample i of `MaskedSequences` and `NextTokens` is number i of an endless run: which N tokens, and which
of them are masked, follow from (seed, i) alone. A resumed run, or one spread over several processes, therefore sees
exactly what an unbroken one sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.files import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aveyb_retrieval.encoder.text.wordpiece import Tokenizer

IGNORED_LABEL = -100
END_OF_TEXT = "<|endoftext|>"
_ORDER, _MASK = 0, 1  # two independent streams of random numbers


def end_of_text(tokenizer: Tokenizer) -> int:
    """Return the token that closes a document of Avey: `<|endoftext|>` where the vocabulary has it, otherwise [SEP]."""
    return tokenizer.special_tokens.get(END_OF_TEXT, tokenizer.sep_id)


def pack_texts(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    train: Path,
    held_out: Path,
    *,
    separator: int,
    every: int = 100,
) -> tuple[int, int]:
    """Tokenize `texts` into two int32 files; `train` appears last, when both are complete.

    Args:
        texts: documents.
        tokenizer: gives their ids.
        train: file of the training documents.
        held_out: file of the others.
        separator: the token that closes a document.
        every: every `every`-th document is held out (0: none).

    Returns:
        Numbers of tokens written to each.
    """
    sizes = [0, 0]
    with atomic_writer(train) as kept, atomic_writer(held_out) as aside:  # left in reverse: `train` is renamed last
        for number, text in enumerate(texts, start=1):
            ids = np.append(tokenizer.encode_ids(text), np.int32(separator))
            which = int(bool(every) and number % every == 0)
            (kept, aside)[which].write(ids.astype("<i4").tobytes())
            sizes[which] += len(ids)
    return sizes[0], sizes[1]


class PackedSequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of `length` tokens of a packed file, in a new random order every epoch; a subclass makes the samples.

    Args:
        file: what `pack_texts` wrote.
        length: N, tokens in a sequence; the remainder at the end of the file is not used.
        seed: decides the order.
        samples: length of the run; None: once through the file, in order.

    Raises:
        ConfigError: a length below 1.
        InputError: the file holds less than one sequence.
    """

    beyond = 0  # tokens that a sample needs behind its sequence

    def __init__(self, file: Path, *, length: int, seed: int = 0, samples: int | None = None) -> None:
        if length < 1:
            raise ConfigError(f"length is {length}; it must be at least 1")
        tokens = file.stat().st_size // 4
        self.sequences = (tokens - self.beyond) // length
        if self.sequences <= 0:
            raise InputError(
                f"the text has {tokens} tokens, one sequence needs {length + self.beyond}: give more text or a smaller "
                "N"
            )
        self.file, self.length, self.seed = file, length, seed
        self.in_order = samples is None
        self.samples = self.sequences if samples is None else samples
        self._tokens: np.ndarray | None = None
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        if self._tokens is None:  # opened where it is used: worker processes map the file themselves
            self._tokens = np.memmap(self.file, dtype="<i4", mode="r")
        start = (index if self.in_order else self._row(index)) * self.length
        return self._sample(
            torch.from_numpy(self._tokens[start : start + self.length + self.beyond].astype(np.int64)), index
        )

    def _sample(self, ids: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        """Make sample `index` from its tokens int64 `[length + beyond]`."""
        raise NotImplementedError

    def _row(self, index: int) -> int:
        epoch, position = divmod(index, self.sequences)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, _ORDER, epoch]).permutation(self.sequences)
        return int(self._order[position])


class MaskedSequences(PackedSequences):
    """Sample i: `input_ids` and `labels`, int64 `[length]`; labels are -100 where a token is not masked.

    Exactly `round(mask_rate * length)` tokens are masked, all by [MASK] (the paper's recipe), so every sequence weighs
    the same.

    Args:
        file: as for `PackedSequences`, as are `length`, `seed` (which also decides the masks) and `samples`.
        mask_id: the [MASK] token.
        mask_rate: share of the tokens that is masked.

    Raises:
        ConfigError: length or rate out of range.
        InputError: the file holds less than one sequence.
    """

    def __init__(
        self,
        file: Path,
        *,
        length: int,
        mask_id: int,
        mask_rate: float = 0.2,
        seed: int = 0,
        samples: int | None = None,
    ) -> None:
        self.masked = round(mask_rate * length)
        if length < 1 or not 0 < self.masked < length:
            raise ConfigError(
                f"mask_rate {mask_rate} of {length} tokens masks {self.masked} of them; at least one must be "
                "masked and one be seen"
            )
        super().__init__(file, length=length, seed=seed, samples=samples)
        self.mask_id = mask_id

    def _sample(self, ids: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        chosen = np.random.default_rng([self.seed, _MASK, index]).permutation(self.length)[: self.masked]
        labels = torch.full_like(ids, IGNORED_LABEL)
        labels[chosen] = ids[chosen]
        ids[chosen] = self.mask_id
        return {"input_ids": ids, "labels": labels}


class NextTokens(PackedSequences):
    """Sample i: `input_ids` int64 `[length]` and, as `labels`, the token that follows each of them."""

    beyond = 1

    def _sample(self, ids: torch.Tensor, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": ids[:-1], "labels": ids[1:].clone()}
