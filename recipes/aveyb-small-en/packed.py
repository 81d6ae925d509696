"""Texts and their teacher vectors in a few files that travel well: token ids, quantized vectors, pairs.

A folder holds `part-000.safetensors`, ... and `packed.json`, written last. A part holds consecutive texts:

    ids      uint16 `[T]`      token ids of its texts, one text after another
    lengths  uint16 `[n]`      tokens of each text
    vectors  int8 `[n, D]`     with scales float32 `[n]`, or float16 `[n, D]` without: the teacher's, unit length
    pairs    int32 `[m, 2]`    (anchor, positive), numbers of texts within the part

To read them needs numpy and safetensors; the texts, their tokenizer and the teacher stay where the parts were made.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load, save

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.files import hash_file, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from teacher_tokens import TokenVectors

MANIFEST = "packed.json"
STORAGE_DTYPES = ("int8", "float16")
SMALLEST_COSINE = 0.999  # of a stored vector to the teacher's own
_VOCABULARIES = ("vocab.tiktoken", "tokenizer.json")  # byte-level, WordPiece
_OVERHEAD = 1024  # bytes of a part's header


@dataclass(frozen=True)
class Part:
    """One file: its name, size, SHA-256 and contents."""

    name: str
    bytes: int
    sha256: str
    texts: int
    tokens: int
    pairs: int


class PartWriter:
    """Writes texts into parts of at most `part_bytes` each; `finish` writes the manifest.

    Args:
        folder: where the parts go; made if needed.
        part_bytes: size of a part at most.
        storage_dtype: "int8" or "float16", of the vectors.

    Raises:
        ConfigError: an unknown storage dtype.
    """

    def __init__(self, folder: str | Path, *, part_bytes: int, storage_dtype: str = "int8") -> None:
        """Start with an empty part."""
        if storage_dtype not in STORAGE_DTYPES:
            raise ConfigError(f"storage_dtype is {storage_dtype!r}; choose one of {', '.join(STORAGE_DTYPES)}")
        self.folder, self.part_bytes, self.storage_dtype = Path(folder), part_bytes, storage_dtype
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / MANIFEST).unlink(missing_ok=True)  # until `finish`, the folder is incomplete
        self.parts: list[Part] = []
        self.pairs_left_out = 0
        self._ids: list[np.ndarray] = []
        self._vectors: list[np.ndarray] = []
        self._pairs: list[tuple[int, int]] = []
        self._first, self._bytes = 0, _OVERHEAD

    def add(self, ids: np.ndarray, vector: np.ndarray) -> None:
        """Add the next text.

        Args:
            ids: its token ids, below 65,536.
            vector: `[D]`, the teacher's.

        Raises:
            InputError: the text has no tokens or too many, an id does not fit, or the text alone exceeds a part.
        """
        number = self._first + len(self._ids)
        if not 0 < len(ids) < 2**16 or int(ids.max()) >= 2**16:
            raise InputError(f"text {number} has {len(ids)} tokens; 1 to 65,535 tokens with ids below 65,536 fit")
        size = 2 * len(ids) + 2 + (len(vector) + 4 if self.storage_dtype == "int8" else 2 * len(vector))
        if _OVERHEAD + size > self.part_bytes:
            raise InputError(f"text {number} takes {size:,} bytes, a part at most {self.part_bytes:,}")
        if self._bytes + size > self.part_bytes:
            self._write()
        self._ids.append(ids.astype(np.uint16))
        self._vectors.append(vector)
        self._bytes += size

    def pair(self, anchor: int, positive: int) -> None:
        """Pair two texts that were added, by their numbers over all parts; a pair across two parts is left out."""
        if min(anchor, positive) < self._first or self._bytes + 8 > self.part_bytes:
            self.pairs_left_out += 1
        else:
            self._pairs.append((anchor - self._first, positive - self._first))
            self._bytes += 8

    def finish(self, facts: dict[str, Any]) -> None:
        """Write the last part and the manifest.

        Args:
            facts: fingerprints of texts, teacher and vocabulary, kept in the manifest.

        Raises:
            InputError: no text was added.
        """
        if self._ids:
            self._write()
        if not self.parts:
            raise InputError(f"{self.folder}: there are no texts to pack")
        manifest = {"facts": facts, "storage_dtype": self.storage_dtype, "parts": [asdict(part) for part in self.parts]}
        write_atomic(self.folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())

    def _write(self) -> None:
        arrays = {
            "ids": np.concatenate(self._ids),
            "lengths": np.array([len(ids) for ids in self._ids], np.uint16),
            "pairs": np.array(self._pairs, np.int32).reshape(-1, 2),
            **quantize(np.stack(self._vectors), self.storage_dtype),
        }
        name = f"part-{len(self.parts):03d}.safetensors"
        info = write_atomic(self.folder / name, save(arrays))
        counts = len(self._ids), len(arrays["ids"]), len(self._pairs)
        self.parts.append(Part(name, info.bytes, info.sha256, *counts))
        self._first += len(self._ids)
        self._ids, self._vectors, self._pairs, self._bytes = [], [], [], _OVERHEAD


def quantize(vectors: np.ndarray, storage_dtype: str) -> dict[str, np.ndarray]:
    """Return `vectors` and, for int8, `scales`, as a part stores them.

    Raises:
        InputError: a stored vector's cosine to its own is below `SMALLEST_COSINE`.
    """
    vectors = vectors.astype(np.float32)
    if storage_dtype == "float16":
        stored = {"vectors": vectors.astype(np.float16)}
    else:
        scales = np.maximum(np.abs(vectors).max(1), 1e-12) / 127
        stored = {"vectors": np.rint(vectors / scales[:, None]).astype(np.int8), "scales": scales.astype(np.float32)}
    cosines = (dequantize(stored) * vectors).sum(1) / np.linalg.norm(vectors, axis=1)
    if not cosines.min() >= SMALLEST_COSINE:
        raise InputError(
            f"as {storage_dtype}, a teacher's vector keeps a cosine of {cosines.min():.5f} to itself, "
            f"{SMALLEST_COSINE} is needed: store float16, or look for vectors that are zero or not numbers"
        )
    return stored


def dequantize(stored: dict[str, np.ndarray]) -> np.ndarray:
    """Return stored vectors as float32 unit rows `[n, D]`."""
    vectors = stored["vectors"].astype(np.float32)
    if "scales" in stored:
        vectors *= stored["scales"][:, None]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@dataclass(frozen=True)
class PackedTexts:
    """All texts of some parts, in memory.

    ids: uint16 `[T]`. starts: int64 `[n + 1]`, text i has the ids from `starts[i]` to `starts[i + 1]`.
    vectors: float16 `[n, D]` unit rows. pairs: int64 `[m, 2]`. facts: what the manifest and the parts say of the data.
    places: int64 `[n]`, where each text begins among the tokens of all parts, loaded or not.
    tokens: the teacher's vectors of all tokens, if they are at hand (see `with_tokens`).
    """

    ids: np.ndarray
    starts: np.ndarray
    vectors: np.ndarray
    pairs: np.ndarray
    facts: dict[str, Any]
    places: np.ndarray
    tokens: TokenVectors | None = None

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, int64 `[n]`."""
        return np.diff(self.starts)

    @classmethod
    def load(cls, folder: str | Path, names: Sequence[str] | None = None) -> PackedTexts:
        """Read parts and check their hashes.

        Args:
            folder: with a manifest.
            names: of the parts; None: all that the manifest lists.

        Raises:
            InputError: the manifest or a part is missing, or a part is not the one that the manifest lists.
        """
        folder = Path(folder)
        if not (folder / MANIFEST).is_file():
            raise InputError(f"{folder / MANIFEST} is missing: {folder} does not hold all packed texts")
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        listed = {entry["name"]: entry for entry in manifest["parts"]}
        chosen = list(listed) if names is None else list(names)
        unknown = [name for name in chosen if name not in listed]
        if unknown or not chosen:
            raise InputError(f"{folder / MANIFEST} lists {', '.join(listed)}; asked for: {', '.join(chosen) or 'none'}")
        arrays = [_read_part(folder / name, listed[name]["sha256"]) for name in chosen]
        firsts = np.cumsum([0, *(len(part["lengths"]) for part in arrays[:-1])])
        before = dict(
            zip(listed, np.cumsum([0, *(entry["tokens"] for entry in listed.values())]).tolist(), strict=False)
        )
        lengths = np.concatenate([part["lengths"] for part in arrays]).astype(np.int64)
        return cls(
            np.concatenate([part["ids"] for part in arrays]),
            np.concatenate([[0], lengths.cumsum()]),
            np.concatenate([dequantize(part).astype(np.float16) for part in arrays]),
            np.concatenate([part["pairs"] + first for part, first in zip(arrays, firsts, strict=True)]),
            manifest["facts"] | {name: listed[name]["sha256"] for name in chosen},
            np.concatenate(
                [
                    before[name] + np.cumsum(part["lengths"], dtype=np.int64) - part["lengths"]
                    for name, part in zip(chosen, arrays, strict=True)
                ]
            ),
        )

    @classmethod
    def join(cls, texts: Sequence[PackedTexts]) -> PackedTexts:
        """Put the texts of several folders one after another; a folder given twice counts twice.

        Raises:
            InputError: their teachers or vocabularies differ.
        """
        for name in ("teacher", "vocabulary"):
            found = [part.facts[name] for part in texts]
            if len(set(found)) > 1:
                raise InputError(
                    f"folders of packed texts name {len(set(found))} kinds of {name}: {', '.join(map(str, found))}; "
                    "pack all of them with one"
                )
        firsts = np.cumsum([0, *(len(part.lengths) for part in texts[:-1])])
        return cls(
            np.concatenate([part.ids for part in texts]),
            np.concatenate([[0], np.concatenate([part.lengths for part in texts]).cumsum()]),
            np.concatenate([part.vectors for part in texts]),
            np.concatenate([part.pairs + first for part, first in zip(texts, firsts, strict=True)]),
            {name: texts[0].facts[name] for name in ("teacher", "vocabulary")} | {"texts": [p.facts for p in texts]},
            np.concatenate([part.places for part in texts]),
        )

    def with_tokens(self, tokens: TokenVectors) -> PackedTexts:
        """Return these texts with the teacher's vectors of their tokens.

        Raises:
            InputError: there are vectors for fewer tokens than the texts need.
        """
        last = int((self.places + self.lengths).max())
        if len(tokens) < last:
            raise InputError(
                f"the teacher's vectors of the first {len(tokens):,} tokens are at hand, the packed texts need "
                f"{last:,}: give the folder that they were packed from"
            )
        return replace(self, tokens=tokens)

    def padded_tokens(self, rows: Iterable[int]) -> np.ndarray:
        """Return the teacher's vectors of the tokens of some texts, float32 `[B, T, D]`, 0 where there are none."""
        assert self.tokens is not None
        found = [self.tokens[slice(self.places[row], self.places[row] + self.lengths[row])] for row in rows]
        out = np.zeros((len(found), max(map(len, found)), found[0].shape[1]), np.float32)
        for i, vectors in enumerate(found):
            out[i, : len(vectors)] = vectors
        return out

    def padded(self, rows: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return ids int64 `[B, T]` and mask bool `[B, T]` of some texts, padded to the longest."""
        return padded([self.ids[self.starts[row] : self.starts[row + 1]] for row in rows])


def vocabulary_hash(folder: Path) -> str | None:
    """Return the SHA-256 (hex) of the file that defines a model folder's vocabulary, None where there is none.

    Of the kinds of vocabularies only the files are known here: reading one takes packages that training does without.
    """
    path = next((folder / name for name in _VOCABULARIES if (folder / name).is_file()), None)
    return None if path is None else hash_file(path).sha256


def padded(texts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids int64 `[B, T]` and mask bool `[B, T]` of texts, whose ids are int `[t]`, padded to the longest."""
    width = max(map(len, texts))
    ids, mask = np.zeros((len(texts), width), np.int64), np.zeros((len(texts), width), bool)
    for i, text in enumerate(texts):
        ids[i, : len(text)], mask[i, : len(text)] = text, True
    return ids, mask


class BatchOrder:
    """The batches of an endless run; batch number i depends on the texts, the seed and i alone.

    A batch holds either pairs or single texts (those in no pair), of similar length, so many that neither limit is
    passed: hundreds of questions, or some whole splits. Every epoch sees each of them once in an order of its own.
    Similar ones share a batch if so asked: what must be told from a positive is then near to it (topic-aware sampling;
    Hofstaetter et al., 2021), and every epoch groups them anew.

    Args:
        texts: the data.
        batch_size: pairs or texts of a batch at most.
        batch_tokens: tokens of a batch at most, unless a single pair or text has more; 0: no limit.
        seed: decides the order.
        similar: group by the teacher's vectors (of the last text of a row).

    Raises:
        InputError: there are fewer pairs, and fewer single texts, than a batch.
    """

    _NEIGHBORHOOD = 32  # batches whose rows are sorted by length together: little padding, random enough
    _SECTION = 48  # batches whose rows are grouped by similarity together
    _LEAF = 8  # rows that are grouped no further

    def __init__(
        self, texts: PackedTexts, batch_size: int, seed: int, batch_tokens: int = 0, *, similar: bool = False
    ) -> None:
        """Find the single texts."""
        single = np.ones(len(texts.starts) - 1, bool)
        single[texts.pairs.ravel()] = False
        kinds = texts.pairs, np.flatnonzero(single)[:, None]
        self._kinds = [rows for rows in kinds if len(rows) >= (1 if batch_tokens else batch_size)]
        if not self._kinds:
            raise InputError(
                f"{len(texts.pairs)} pairs and {single.sum()} single texts are both less than one batch of "
                f"{batch_size}: give more texts or a smaller batch"
            )
        self._lengths, self._batch_size, self._batch_tokens, self._seed = texts.lengths, batch_size, batch_tokens, seed
        self._vectors = texts.vectors if similar else None
        self._starts, self._epoch, self._batches = [0], -1, list[np.ndarray]()

    def __getitem__(self, number: int) -> np.ndarray:
        """Return the rows of batch `number`: int64 `[B, 2]` of pairs or `[B, 1]` of single texts."""
        while self._starts[-1] <= number:  # how many batches an epoch has depends on its order
            self._load(len(self._starts) - 1)
            self._starts.append(self._starts[-1] + len(self._batches))
        epoch = bisect_right(self._starts, number) - 1
        self._load(epoch)
        return self._batches[number - self._starts[epoch]]

    def epoch_end(self, epoch: int) -> int:
        """Return the number of batches in the first `epoch + 1` epochs."""
        while len(self._starts) < epoch + 2:
            self[self._starts[-1]]
        return self._starts[epoch + 1]

    def _load(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._shuffled(epoch)

    def _shuffled(self, epoch: int) -> list[np.ndarray]:
        generator = np.random.default_rng([self._seed, epoch])
        batches: list[np.ndarray] = []
        for rows in self._kinds:
            whole = len(rows) if self._batch_tokens else len(rows) // self._batch_size * self._batch_size
            rows = generator.permutation(rows)[:whole]
            size = self._NEIGHBORHOOD * self._batch_size
            for start in range(0, len(rows), size):
                near = rows[start : start + size]
                near = near[np.argsort(self._lengths[near].max(1), kind="stable")]
                if self._vectors is not None:
                    near = self._by_similarity(near, self._vectors, generator)
                batches += np.split(near, self._cuts(self._lengths[near].sum(1)))
        return [batches[i] for i in generator.permutation(len(batches))]

    def _by_similarity(self, rows: np.ndarray, vectors: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return the rows, section by section of similar length, with similar ones beside each other."""
        batches = len(self._cuts(self._lengths[rows].sum(1))) + 1
        sections = np.array_split(rows, -(-batches // self._SECTION))
        return np.concatenate(
            [section[_similar_first(vectors[section[:, -1]], generator, self._LEAF)] for section in sections]
        )

    def _cuts(self, tokens: np.ndarray) -> list[int]:
        """Where batches begin in rows of so many tokens each, the first one left out."""
        if not self._batch_tokens:
            return list(range(self._batch_size, len(tokens), self._batch_size))
        cuts, count, total = [], 0, 0
        for row, size in enumerate(tokens.tolist()):
            if count and (count == self._batch_size or total + size > self._batch_tokens):
                cuts.append(row)
                count = total = 0
            count, total = count + 1, total + size
        return cuts


def _similar_first(vectors: np.ndarray, generator: np.random.Generator, leaf: int) -> np.ndarray:
    """Return an order of rows `[n, D]` in which neighbours are similar: halves by nearness to one of two, and so on."""
    if len(vectors) <= leaf:
        return np.arange(len(vectors))
    one, other = vectors[generator.choice(len(vectors), 2, replace=False)].astype(np.float32)
    order = np.argsort(vectors.astype(np.float32) @ (one - other), kind="stable")
    halves = np.array_split(order, 2)
    return np.concatenate([half[_similar_first(vectors[half], generator, leaf)] for half in halves])


def _read_part(path: Path, sha256: str) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise InputError(f"{path} is missing: copy it from where the texts were packed, or pack them again")
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise InputError(f"{path} has SHA-256 {found}, {MANIFEST} says {sha256}: copy or pack it again")
    return load(data)
