"""A teacher's vectors for a list of texts, cached on disk in shards so that an interrupted run can
be continued.

The folder holds `teacher.json` (which teacher, which texts, what shape) and `vectors-00000.npy`,
... of `shard_size` rows each, float16, unit length (a cosine of two such rows is right to about
1e-3).

Of several teachers a student learns one vector for each text. Each teacher's vectors lose their
mean (of documents and of queries, each by itself) and become unit vectors; they stand side by side,
and PCA turns them to as many numbers as the student's vectors have. Teachers that agree with each
other weigh no more than those that do not, and a direction in which all texts of a teacher point
says nothing of any.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from aveyb_retrieval.encoder.config import LOADING_ERRORS
from aveyb_retrieval.errors import ConfigError, InputError, ModelError, first_line
from aveyb_retrieval.files import hash_texts, write_atomic
from aveyb_retrieval.indexes.types import silent
from aveyb_retrieval.training.settings import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.types import Progress

TEACHER_FILE = "teacher.json"
TAG = f".{os.getpid()}"  # of files being written: another process may write the same
PHRASE = (3, 16)  # words
_SAMPLE_VECTORS = 200_000  # texts whose vectors PCA sees
_ROWS = 1024  # of queries beside which near documents are looked for at once
_MIN_NORM = 1e-6


@dataclass(frozen=True)
class TeacherSettings:
    """The facts that identify a cache: two caches are the same if all of them are."""

    teacher: str  # name and fingerprint of the weights
    dim: int
    max_tokens: int
    precision: str
    n_texts: int
    texts_sha256: str
    shard_size: int
    kind: str = "document"  # or "query"
    prompts: tuple[str, str] | None = (
        None  # of queries and documents, where they are not the teacher's own
    )


def load_teacher(model: str, *, device: str | None, max_tokens: int) -> tuple[Any, str]:
    """Load a SentenceTransformer that cuts at `max_tokens`, or at its own limit where that is
    lower.

    Also return its name with a hash of its weights and prompts. A table of vectors has no limit and
    reads all.
    """
    from sentence_transformers import SentenceTransformer

    try:
        teacher = SentenceTransformer(model, device=device)
    except LOADING_ERRORS as error:
        raise ModelError(
            f"teacher {model}: sentence-transformers cannot load it ({type(error).__name__}:"
            f" {first_line(error)}); give the folder or hub name of one of its models"
        ) from error
    tokenizer = getattr(teacher, "tokenizer", None)
    if tokenizer is not None and len(tokenizer.get_vocab()) <= len(
        getattr(tokenizer, "all_special_tokens", ())
    ):
        raise ModelError(
            f"teacher {model}: its vocabulary holds no words; copy or download tokenizer.json again"
        )
    limit = teacher.max_seq_length
    if limit is None or max_tokens < limit < math.inf:
        teacher.max_seq_length = max_tokens
    digest = hashlib.sha256()
    for name, tensor in sorted(teacher.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    if any(teacher.prompts.values()):
        digest.update(
            json.dumps([teacher.prompts, teacher.default_prompt_name], sort_keys=True).encode()
        )
    return teacher, f"{Path(model).name}@{digest.hexdigest()[:16]}"


def encode_with(
    teacher: Any, texts: Sequence[str], *, precision: str, kind: str = "document"
) -> np.ndarray:
    """Return unit vectors `[n, dim]` float32 of documents or queries, with the teacher's prompts
    for those.

    "bfloat16" runs under autocast (weights stay float32).
    """
    import torch

    with torch.autocast(teacher.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        encode = teacher.encode_query if kind == "query" else teacher.encode_document
        try:
            vectors = encode(
                list(texts), batch_size=64, convert_to_tensor=True, show_progress_bar=False
            )
        except IndexError as error:
            raise ModelError(
                "the teacher's vocabulary has tokens that its embeddings lack"
                f" ({first_line(error)}): its tokenizer is another model's; copy or download the"
                " folder again"
            ) from error
    return torch.nn.functional.normalize(vectors.float(), dim=-1).cpu().numpy()


def cache_vectors(
    texts: Sequence[str],
    folder: str | Path,
    *,
    model: str,
    device: str | None = "cpu",
    max_tokens: int = 256,
    precision: str = "float32",
    shard_size: int = 2048,
    kind: str = "document",
    prompts: tuple[str, str] | None = None,
    progress: Progress = silent,
) -> Path:
    """Let a teacher encode what its cache lacks of some texts, a row each, in this order; complete
    shards are kept.

    `model` is the folder or name of a sentence-transformers model, to which the texts are of a
    `kind`, "document" or "query". It reads `max_tokens` of each behind its own `prompts`, or those
    given for queries and for documents. A `device` of None is an accelerator where there is one.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}; choose one of {', '.join(PRECISIONS)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    teacher, name = load_teacher(model, device=device, max_tokens=max_tokens)
    dim, digest = teacher.get_embedding_dimension(), hash_texts(texts)
    settings = TeacherSettings(
        name, dim, max_tokens, precision, len(texts), digest, shard_size, kind, prompts
    )
    if prompts is not None:
        teacher.prompts = dict(zip(("query", "document"), prompts, strict=True))
    path, now = folder / TEACHER_FILE, asdict(settings)
    if not path.exists():
        write_atomic(path, (json.dumps(now, indent=2) + "\n").encode(), tag=TAG)
    elif different := {
        name: (was, now[name])
        for name, was in asdict(read_cache(folder)).items()
        if was != now[name]
    }:
        old, new = ({name: pair[i] for name, pair in different.items()} for i in (0, 1))
        raise InputError(
            f"{path} was made with {old}, this run has {new}: choose another folder or delete"
            " this one"
        )
    for number, start in enumerate(range(0, len(texts), shard_size)):
        if not shard_path(folder, number).exists():
            chosen = texts[start : start + shard_size]
            vectors = encode_with(teacher, chosen, precision=precision, kind=kind)
            data = io.BytesIO()
            np.save(data, vectors.astype(np.float16), allow_pickle=False)
            write_atomic(shard_path(folder, number), data.getvalue(), tag=TAG)
        progress("teacher", min(start + shard_size, len(texts)), len(texts), 0)
    return folder


def read_vectors(folder: str | Path) -> np.ndarray:
    """Read the cached vectors `[n, dim]` float16, in the order of the texts."""
    folder = Path(folder)
    settings = read_cache(folder)
    shards: list[np.ndarray] = []
    for number, start in enumerate(range(0, settings.n_texts, settings.shard_size)):
        path = shard_path(folder, number)
        if not path.exists():
            raise InputError(
                f"{path} is missing: the teacher's vectors are incomplete; run the caching step"
                " again"
            )
        shard = np.load(path, allow_pickle=False)
        rows = min(settings.shard_size, settings.n_texts - start)
        if shard.shape != (rows, settings.dim):
            raise InputError(
                f"{path} has shape {shard.shape}, {(rows, settings.dim)} is expected; delete it and"
                " run again"
            )
        shards.append(shard)
    return np.concatenate(shards)


def shard_path(folder: str | Path, number: int) -> Path:
    """Return where shard `number` is kept."""
    return Path(folder) / f"vectors-{number:05d}.npy"


def read_cache(folder: str | Path) -> TeacherSettings:
    """Read the settings of a cache."""
    path = Path(folder) / TEACHER_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=TeacherSettings)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {folder} does not hold teacher vectors") from None
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path} cannot be read ({error}); delete the folder and cache the vectors again"
        ) from error


@dataclass(frozen=True)
class Teacher:
    """A sentence-transformers model to learn from.

    model: its folder or name.
    prompts: before queries and before documents; None: the model's own.
    """

    model: str
    prompts: tuple[str, str] | None = None


@dataclass(frozen=True)
class Targets:
    """Unit vectors that the student is to have, `[n, D]` float16: those of the documents, behind
    them the queries'.
    """

    vectors: np.ndarray
    documents: int

    def near(self, count: int, seed: int) -> np.ndarray:
        """Draw one of the `count` nearest documents of each query: rows, int64 `[queries]`."""
        documents = self.vectors[: self.documents].astype(np.float32)
        queries, count = self.vectors[self.documents :], min(count, self.documents)
        choice = np.random.default_rng(seed).integers(count, size=len(queries))
        drawn = np.empty(len(queries), np.int64)
        for start in range(0, len(queries), _ROWS):
            part = slice(start, start + _ROWS)
            cosines = queries[part].astype(np.float32) @ documents.T
            nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
            drawn[part] = nearest[np.arange(len(nearest)), choice[part]]
        return drawn


def phrases(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Draw runs of words from each text that has as many: what somebody might ask who
    looks for it.
    """
    drawn, rng = [], np.random.default_rng(seed)
    for text in texts:
        words = text.split()
        for _ in range(count if len(words) > PHRASE[1] else 0):
            length = int(rng.integers(*PHRASE, endpoint=True))
            start = int(rng.integers(len(words) - length + 1))
            drawn.append(" ".join(words[start : start + length]))
    return drawn


def read_targets(
    teachers: Sequence[Teacher],
    documents: Sequence[str],
    queries: Sequence[str],
    folder: Path,
    *,
    dim: int,
    seed: int,
    **reading: Any,
) -> Targets:
    """Let every teacher read every text, and join what they say.

    Each reads with its own prompts; its vectors are cached in `folder/teacher-1`, ... (resumable by
    itself). `dim` is the width of the student's vectors, `reading` are other options of
    `cache_vectors`.
    """
    names = [teacher.model for teacher in teachers]
    if len({*names}) < len(names):
        raise ConfigError(f"the teachers are {', '.join(names)}: name each one once")
    parts = []
    for number, teacher in enumerate(teachers, start=1):
        both = []
        for kind, texts in (("document", documents), ("query", queries)):
            if texts:
                place = folder / f"teacher-{number}" / kind
                cache = cache_vectors(
                    texts, place, model=teacher.model, prompts=teacher.prompts, kind=kind, **reading
                )
                both.append(centred(read_vectors(cache)))
        parts.append(np.concatenate(both))
    return Targets(turned(np.concatenate(parts, axis=1), dim, seed), len(documents))


def centred(vectors: np.ndarray) -> np.ndarray:
    """Take the mean off vectors `[n, d]`; return unit vectors, float16."""
    moved = vectors.astype(np.float32)
    moved -= moved.mean(axis=0)
    return unit(moved).astype(np.float16)


def turned(vectors: np.ndarray, dim: int, seed: int) -> np.ndarray:
    """Turn vectors `[n, d]` to at most `dim` numbers that keep most of their products (PCA, no
    mean); unit, float16.
    """
    rows = np.random.default_rng(seed).permutation(len(vectors))[:_SAMPLE_VECTORS]
    sample = vectors[np.sort(rows)].astype(np.float64)
    _, basis = np.linalg.eigh(sample.T @ sample)  # ascending
    basis = np.ascontiguousarray(basis[:, ::-1][:, :dim], dtype=np.float32)
    return unit(vectors.astype(np.float32) @ basis).astype(np.float16)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return rows over their lengths."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _MIN_NORM)
