"""A sentence-transformers model in a folder: loaded from safetensors only, whole, and without running code from it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from transformers.utils import logging

from aveyb_retrieval.encoder.config import LOADING_ERRORS
from aveyb_retrieval.errors import ModelError
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_PART_OF_A_MODEL = {".md", ".png", ".jpg", ".gitattributes", ".py", ".pyc"}
# What a folder may be made of: stock modules that read settings and safetensors. Any other word under
# `sentence_transformers` would be imported too, and made with what the folder says.
_MODULES = {"Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "StaticEmbedding", "WeightedLayerPooling"}
_MODULES |= {"Dropout", "CNN", "LSTM", "BoW", "WordWeights"}
_OTHER_BACKENDS = {"onnx", "openvino", ".git", ".cache", "__pycache__"}


def precision_of(model: Any) -> str:
    """Return the type of a loaded model's weights, such as "float32"; that also of a model without weights (BoW)."""
    first = next(model.parameters(), None)
    return "float32" if first is None else str(first.dtype).removeprefix("torch.")


def load_sentence_transformer(folder: Path, *, device: str, precision: str, truncate_dim: int | None) -> Any:
    """Load a sentence-transformers folder.

    Raises:
        ModelError: it is incomplete or damaged, holds pickled weights or modules of its own, or its weights do not fill
            the model.
    """
    _check_no_pickle(folder)
    model = _load(folder, device=device, precision=precision, truncate_dim=truncate_dim)
    _check_filled(model, folder)
    return model


def has_token_vectors(model: Any) -> bool:
    """Return whether a model has outputs of tokens that see their neighbours."""
    from sentence_transformers.base.modules import Transformer

    return len(model) > 1 and isinstance(model[0], Transformer)


def offset_tokenizer(model: Any, name: str) -> Any:
    """Return the model's own tokenizer, which neither cuts nor pads, with the characters that each token stands for.

    Raises:
        ModelError: it cannot say which characters those are.
    """
    from tokenizers import Tokenizer

    backend = model.tokenizer if isinstance(model.tokenizer, Tokenizer) else None
    backend = backend or getattr(model.tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ModelError(
            f"{name}: its tokenizer ({type(model.tokenizer).__name__}) cannot say which characters a token stands for; "
            "save the model with a fast tokenizer (tokenizer.json)"
        )
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def model_files(folder: Path) -> list[str]:
    """Return every file that the model is made of: weights, configuration, tokenizer and prompts."""
    files = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        file.as_posix()
        for file in files
        if file.suffix not in _NO_PART_OF_A_MODEL and not _OTHER_BACKENDS & set(file.parts)
    ]


def _load(folder: Path, *, device: str, precision: str, truncate_dim: int | None) -> Any:
    from sentence_transformers import SentenceTransformer

    try:
        _check_modules(folder / "modules.json")
        with _no_progress_bar():
            return SentenceTransformer(
                str(folder),
                device=device,
                truncate_dim=truncate_dim,
                local_files_only=True,
                model_kwargs={"dtype": precision, "use_safetensors": True},
            )
    except LOADING_ERRORS as error:
        raise ModelError(
            f"{folder}: sentence-transformers cannot load it ({type(error).__name__}: {first_line(error)}); check that "
            "the folder is complete"
        ) from error


def _check_no_pickle(folder: Path) -> None:
    for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl"):
        for path in folder.rglob(pattern):
            if not any(path.parent.glob("*.safetensors")) and not _OTHER_BACKENDS & set(path.relative_to(folder).parts):
                raise ModelError(
                    f"{path}: a pickled file; this package reads weights from safetensors only (convert it with "
                    "safetensors.torch.save_file in a place you trust)"
                )


def _check_modules(path: Path) -> None:
    """Raise ModelError where a folder is made of anything but stock modules."""
    for settings in json.loads(path.read_text(encoding="utf-8")):
        kind = str(settings["type"])
        if not (kind.startswith("sentence_transformers.") and kind.rpartition(".")[2] in _MODULES):
            raise ModelError(
                f"{path}: a module of type {kind!r}; known are {', '.join(sorted(_MODULES))} of sentence-transformers: "
                "where you trust it, load it yourself and give SentenceEmbedder(model, ...)"
            )


def _check_filled(model: Any, folder: Path) -> None:
    """Raise ModelError where weights of a transformer in the folder are missing and were left random."""
    from sentence_transformers.base.modules import Transformer
    from transformers import AutoModel

    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    for settings, module in zip(modules, model, strict=False):
        if not isinstance(module, Transformer):
            continue
        path = folder / settings["path"]
        saved: set[str] = set()
        for file in path.glob("*.safetensors"):
            with safe_open(file, framework="pt") as tensors:
                saved |= set(tensors.keys())
        wanted = {name for name in module.auto_model.state_dict() if not name.startswith("pooler.")}
        if all(any(name == key or name.endswith("." + key) for name in saved) for key in wanted - saved):
            continue
        _, found = AutoModel.from_pretrained(path, output_loading_info=True, use_safetensors=True)
        missing = sorted(key for key in found["missing_keys"] if not key.startswith("pooler."))
        if missing:
            raise ModelError(
                f"{path}: the checkpoint lacks {len(missing)} of the model's tensors, first {missing[0]!r}; they would "
                "be random: use a complete checkpoint of this architecture"
            )


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar while it loads weights."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
