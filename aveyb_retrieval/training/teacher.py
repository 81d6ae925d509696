"""A teacher's vectors for a list of texts, cached on disk in shards so that an interrupted run goes on where it was.

The folder holds `teacher.json` (which teacher, which texts, what shape) and `vectors-00000.npy`, ... of `shard_size`
rows each, float16, unit length (a cosine of two such rows is right to about 1e-3).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError

SETTINGS = "teacher.json"


@dataclass(frozen=True)
class TeacherSettings:
    """What makes two caches the same."""

    teacher: str  # name and fingerprint of the weights
    dim: int
    max_tokens: int
    precision: str
    n_texts: int
    texts_sha256: str
    shard_size: int


def texts_digest(texts: Sequence[str]) -> str:
    """SHA-256 over the texts and their borders."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def load_teacher(model: str, *, device: str, max_tokens: int) -> tuple[Any, str]:
    """A SentenceTransformer that cuts at `max_tokens`, and its name with a fingerprint of its weights."""
    from sentence_transformers import SentenceTransformer

    teacher = SentenceTransformer(model, device=device)
    teacher.max_seq_length = max_tokens
    digest = hashlib.sha256()
    for name, tensor in sorted(teacher.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().numpy().tobytes())
    return teacher, f"{Path(model).name}@{digest.hexdigest()[:16]}"


def encode_with(teacher: Any, texts: Sequence[str], *, precision: str, batch_size: int = 64) -> np.ndarray:
    """Unit vectors [n, dim] float32; `precision` bf16 runs under autocast (weights stay float32)."""
    import torch

    if precision not in ("fp32", "bf16"):
        raise ConfigError(f"precision is {precision!r}; choose fp32 or bf16")
    with torch.autocast(teacher.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        vectors = teacher.encode(list(texts), batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False)
    vectors = torch.nn.functional.normalize(vectors.float(), dim=-1)
    return vectors.cpu().numpy()


def cache_vectors(
    texts: Sequence[str],
    folder: str | Path,
    *,
    model: str,
    device: str = "cpu",
    max_tokens: int = 256,
    precision: str = "fp32",
    shard_size: int = 2048,
    part: tuple[int, int] = (0, 1),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Encode what is missing; complete shards are kept.

    Args:
        part: (i, n) takes every n-th shard from the i-th, so that n processes can share the work.

    Raises:
        ConfigError: `part` or `precision` is out of range.
        InputError: the folder holds the vectors of another teacher, other texts or other settings.
    """
    if not 0 <= part[0] < part[1]:
        raise ConfigError(f"part is {part}; it must be (i, n) with 0 <= i < n")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    teacher, name = load_teacher(model, device=device, max_tokens=max_tokens)
    settings = TeacherSettings(
        name, teacher.get_embedding_dimension(), max_tokens, precision, len(texts), texts_digest(texts), shard_size
    )
    path = folder / SETTINGS
    if path.exists():
        found = _read_settings(folder)
        different = [f for f, value in asdict(settings).items() if asdict(found)[f] != value]
        if different:
            was = {f: asdict(found)[f] for f in different}
            now = {f: asdict(settings)[f] for f in different}
            raise InputError(
                f"{path} was made with {was}, this run has {now}: choose another folder or delete this one"
            )
    else:
        path.write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    for start in range(part[0] * shard_size, len(texts), part[1] * shard_size):
        shard = _shard(folder, start // shard_size)
        if not shard.exists():
            vectors = encode_with(teacher, texts[start : start + shard_size], precision=precision)
            partial = shard.with_suffix(".part")
            with partial.open("wb") as file:
                np.save(file, vectors.astype(np.float16), allow_pickle=False)
            partial.replace(shard)
        if progress:
            progress(min(start + shard_size, len(texts)), len(texts))
    return folder


def read_vectors(folder: str | Path, *, allow_partial: bool = False) -> np.ndarray:
    """The cached vectors [n, dim] float16, in the order of the texts.

    Args:
        allow_partial: take the complete shards from the front where later ones are still missing.

    Raises:
        InputError: no cache there, a missing shard, or a shard of another shape.
    """
    folder = Path(folder)
    settings = _read_settings(folder)
    shards: list[np.ndarray] = []
    for number, start in enumerate(range(0, settings.n_texts, settings.shard_size)):
        path = _shard(folder, number)
        if not path.exists():
            if allow_partial and shards:
                break
            raise InputError(f"{path} is missing: the teacher's vectors are incomplete; run the caching step again")
        shard = np.load(path, allow_pickle=False)
        rows = min(settings.shard_size, settings.n_texts - start)
        if shard.shape != (rows, settings.dim):
            raise InputError(
                f"{path} has shape {shard.shape}, {(rows, settings.dim)} is expected; delete it and run again"
            )
        shards.append(shard)
    return np.concatenate(shards)


def _shard(folder: Path, number: int) -> Path:
    return folder / f"vectors-{number:05d}.npy"


def _read_settings(folder: Path) -> TeacherSettings:
    path = folder / SETTINGS
    try:
        return TeacherSettings(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {folder} holds no teacher vectors") from None
    except (json.JSONDecodeError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}); delete the folder and cache the vectors again") from error
