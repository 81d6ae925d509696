"""Where a model's files are, what its JSON files hold, and the hash that identifies it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ModelError, OptionalDependencyError, extra_for
from aveyb_retrieval.files import hash_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# embedded; its name loads it, too
DEFAULT_MODEL = Path(__file__).parent.parent / "models" / "aveyb-base-en-v2"
MODEL_FILES = ("config.json", "model.safetensors")
# tensors of a checkpoint: embeddings, scales of int8 rows
TABLE, TABLE_SCALE = ("embed.weight", "embed.scale")
COMPRESSOR = "ranker.down_proj"  # the ranker's one tensor
# no code
_HUB_FILES = [
    f"*.{kind}" for kind in ("json", "safetensors", "tiktoken", "txt", "model", "jinja", "onnx")
]


def model_path() -> Path:
    """Return the folder of the embedded model, for sentence-transformers, transformers and MTEB.

    >>> model_path().name
    'aveyb-base-en-v2'
    """
    return DEFAULT_MODEL


def model_folder(model: str | Path | None, *, fetch: bool = True) -> Path:
    """Return the local folder of a model: the embedded one, a folder, or a snapshot from the
    Hugging Face hub.

    None names the embedded one. `fetch`: the hub may be asked; else a snapshot must be on this
    machine already.
    """
    folder = DEFAULT_MODEL if model is None else Path(model)
    if str(model) == DEFAULT_MODEL.name and not folder.is_dir():
        folder = DEFAULT_MODEL
    if folder.is_dir():
        return folder
    if folder == DEFAULT_MODEL:
        raise ModelError(
            f"{folder}: the embedded model is missing; reinstall the package, or name a model"
        )
    if folder.is_absolute() or str(model).count("/") != 1:
        raise ModelError(
            f"{model}: no such model folder, and not a hub name of the form owner/name"
        )
    with extra_for("models of the Hugging Face hub"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )

    try:
        return Path(
            snapshot_download(str(model), allow_patterns=_HUB_FILES, local_files_only=not fetch)
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        if not fetch:
            raise ModelError(
                f"{model}: not on this machine, and nothing is fetched because an index names it;"
                f" give it as the model (--model {model}) if you trust it"
            ) from None
        raise ModelError(
            f"{model}: no such folder, and not available from the hub: {error}"
        ) from error


def package_folder(package: str, extra: str, purpose: str) -> Path:
    """Return the folder of an installed package that brings a model, without importing it.

    Raises OptionalDependencyError: `package`, which `extra` installs for `purpose`, is missing.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise OptionalDependencyError(package.replace("_", "-"), extra, purpose)
    return Path(spec.origin).parent


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, parsed once as long as it does not change; empty where
    there is no file.
    """
    return dict(_object(path, _state(path))) if path.is_file() else {}


@lru_cache(maxsize=16)
def _object(path: Path, _state: tuple[int, ...]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} is not JSON ({error}); copy or download the model again"
        ) from error
    if not isinstance(content, dict):
        raise ModelError(
            f"{path} is not JSON of an object but of a {type(content).__name__}; copy the model"
            " again"
        )
    return content


def is_released(settings: Mapping[str, Any]) -> bool:
    """Return whether these are the fields of a configuration in the authors' format."""
    return "d_embed" in settings


def fingerprint(folder: Path, names: Iterable[str], settings: Mapping[str, str]) -> str:
    """SHA-256 (hex) over those of the named files that are there, in this order, and over the
    settings.
    """
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        if path.is_file():
            digest.update(f"{name}={file_digest(path)}\n".encode())
    for name, value in sorted(settings.items()):
        digest.update(f"{name}={value}\n".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file, which is read once as long as it does not change."""
    return _digest(path, _state(path))


def _state(path: Path) -> tuple[int, ...]:
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


@lru_cache(maxsize=64)
def _digest(path: Path, _state: tuple[int, ...]) -> str:
    return hash_file(path, follow_links=True).sha256
