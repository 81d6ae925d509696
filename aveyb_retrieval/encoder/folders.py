"""Where a model's files are, and the tokenizer among them."""

from __future__ import annotations

from pathlib import Path

from aveyb_retrieval.encoder.embedded import DEFAULT_MODEL, EMBEDDED, MODELS
from aveyb_retrieval.encoder.tokenizer import VOCAB_FILE, AveyBTokenizer
from aveyb_retrieval.encoder.wordpiece import Tokenizer, WordPieceTokenizer, holds_wordpiece
from aveyb_retrieval.errors import ModelError
from aveyb_retrieval.optional import extra_for

MODEL_FILES = ("config.json", "model.safetensors")
_HUB_FILES = [
    "*.json",
    "*.safetensors",
    "*.tiktoken",
    "*.txt",
    "*.model",
    "*.jinja",
    "*.onnx",
]  # nothing pickled, no code


def model_folder(model: str | Path | None, *, fetch: bool = True) -> Path:
    """Return the local folder of a model: an embedded one, a folder, or a snapshot from the Hugging Face hub.

    Args:
        model: what names it; None: the default among the embedded ones.
        fetch: whether the hub may be asked; else a snapshot must be on this machine already.

    Raises:
        ModelError: nothing is there, locally or on the hub.
    """
    folder = DEFAULT_MODEL if model is None else Path(model)
    if folder.is_dir():
        return folder
    if model in EMBEDDED:
        return MODELS / str(model)
    if model is None:
        raise ModelError(f"{folder}: the embedded model is missing; reinstall the package, or name a model")
    if folder.is_absolute() or str(model).count("/") != 1:
        raise ModelError(f"{model}: no such model folder, and not a hub name of the form owner/name")
    with extra_for("models of the Hugging Face hub"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(model), allow_patterns=_HUB_FILES, local_files_only=not fetch))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        if not fetch:
            raise ModelError(
                f"{model}: not on this machine, and nothing is fetched because an index names it; give it as the model "
                f"(--model {model}) if you trust it"
            ) from None
        raise ModelError(f"{model}: no such folder, and not available from the hub: {error}") from error


def tokenizer_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that make the tokenizer of a model folder, as `load_tokenizer` reads it."""
    is_wordpiece = not (folder / VOCAB_FILE).is_file() and holds_wordpiece(folder)
    return WordPieceTokenizer.files if is_wordpiece else AveyBTokenizer.files


def load_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer of a model folder, or p50k_base where it holds none, as the authors' checkpoints do.

    Args:
        folder: the model folder.
        vocab_size: rows of the model's embedding.

    Raises:
        ModelError: the tokenizer does not fit the model's vocabulary.
    """
    tokenizer: Tokenizer
    if (folder / VOCAB_FILE).is_file():
        tokenizer = AveyBTokenizer.load(folder)
    elif holds_wordpiece(folder):
        tokenizer = WordPieceTokenizer.load(folder)
    else:
        tokenizer = AveyBTokenizer.p50k_base()
    tokenizer.check_embeddings(vocab_size, str(folder))
    return tokenizer
