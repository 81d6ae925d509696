"""Load the model that an index is built or searched with."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from aveyb_retrieval.encoder.text.passages import DEFAULT_SIZE, PassageSize
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.types import EmbedderLike, PassageCutter, TokenEncoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec

Model = str | Path | EmbedderLike | None
"""A model folder or name, a loaded model, or None for the embedded default."""


_loading = threading.Lock()
_loaded: WeakValueDictionary[tuple[object, ...], EmbedderLike] = WeakValueDictionary()
"""Models that somebody uses: whoever asks for the same one as they did gets it."""


def load_model(
    model: Model,
    *,
    device: str = "cpu",
    precision: str = "auto",
    max_tokens: int | None = None,
    batch_tokens: int | None = None,
    recorded: str | None = None,
) -> EmbedderLike:
    """Return a model ready to encode: one that is loaded already as it is, any other loaded from its folder or name.

    Models are shared: as long as somebody in this process uses one, the next who asks for it gets the same.

    Raises:
        ConfigError: `device`, `precision`, `max_tokens` or `batch_tokens` is given beside a loaded model, which has its
            own.
        ModelError: there is no usable model there; with `recorded`, its fingerprint in an index, also: it would have to
            be fetched.
        IndexFormatError: it is not the recorded one.
    """
    if model is None or isinstance(model, (str, Path)):
        from aveyb_retrieval.encoder.embedders.loading import load_encoder

        key = (_place(model), device, precision, max_tokens, batch_tokens)
        with _loading:
            loaded = _loaded.get(key)
            if loaded is None:
                batch = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
                loaded = load_encoder(
                    model, device=device, precision=precision, max_tokens=max_tokens, recorded=recorded, **batch
                )
                _loaded[key] = loaded
        return loaded
    check_loaded(model, device=device, precision=precision, max_tokens=max_tokens, batch_tokens=batch_tokens)
    return model


def _place(model: str | Path | None) -> tuple[object, ...]:
    """What identifies the weights at a folder or name: a folder's files may be replaced."""
    if model is None or not Path(model).is_dir():
        return (None if model is None else str(model),)
    found = sorted(Path(model).rglob("*"))
    return (str(Path(model).resolve()), *((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in found))


def limiting(model: EmbedderLike, max_tokens: int | None) -> EmbedderLike:
    """Return the same model, reading so many tokens of a document; None: all. One without a limit stays as it is."""
    if getattr(model, "max_tokens", max_tokens) == max_tokens:
        return model
    limited: Any = copy.copy(model)
    limited.max_tokens = max_tokens
    return limited


def cutting(model: EmbedderLike, size: PassageSize | None) -> EmbedderLike:
    """Return the same model, cutting passages of this size; None: in its own way.

    Raises:
        ConfigError: the model has no such choice.
    """
    if isinstance(model, PassageCutter):
        return model if model.passage_size == size else model.with_passage_size(size)
    if size is not None:
        raise ConfigError(
            f"passage_tokens={size.tokens}: the model {model.model_name} cuts passages in its own way only"
        )
    return model


def cut_as_asked(model: EmbedderLike, tokens: int | None, overlap: int | None, late: bool | None) -> EmbedderLike:
    """Return the same model with the passages that were asked for; what was not asked for stays.

    Raises:
        ConfigError: the model has no such choice, or a size is out of range.
    """
    asked = {"tokens": tokens, "overlap": overlap, "late": late}
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return model
    return cutting(model, replace(getattr(model, "passage_size", None) or DEFAULT_SIZE, **asked))


def pooling(model: EmbedderLike, after: int | None) -> EmbedderLike:
    """Return the same model with a funnel for documents behind its first layers; None: as it is.

    Raises:
        ConfigError: the model has no such choice, or not so many layers.
    """
    if after is None:
        return model
    with_funnel = getattr(model, "with_funnel", None)
    if with_funnel is None:
        raise ConfigError(f"funnel={after}: only Avey-B models have one, not {model.model_name}; leave it out")
    pooled: EmbedderLike = with_funnel(after)
    return pooled


def keeping_tokens(model: EmbedderLike, codec: TokenCodec | None) -> EmbedderLike:
    """Return the same model, which also gives the token vectors of documents; None: without them.

    Raises:
        ConfigError: the model has none.
    """
    if codec is None:
        return model
    if not isinstance(model, TokenEncoder):
        raise ConfigError(
            f"token_vectors={codec.storage!r}: the model {model.model_name} gives no token vectors of documents; "
            "leave it out"
        )
    return model.with_token_codec(codec)


def load_recorded(loaded_by: str | None, description: Mapping[str, Any], **options: Any) -> EmbedderLike:
    """Load the model of an index by what the index says, which somebody else may have written.

    An index made with the embedded model names none to load.

    Args:
        loaded_by: what the model was loaded by; None: it was the embedded one, or given loaded.
        description: `model_description` of it.
        **options: as for `load_model`.

    Raises:
        ModelError: it is not on this machine.
        IndexFormatError: another one is there.
    """
    if loaded_by is None:
        return load_model(None, **options)
    return load_model(loaded_by, recorded=description["fingerprint"], **options)


def check_loaded(
    model: EmbedderLike, *, device: str, precision: str, max_tokens: int | None, batch_tokens: int | None = None
) -> None:
    """Raise ConfigError where an option is given that a loaded model has settled already."""
    if not (hasattr(model, "encode_documents") and hasattr(model, "encode_queries")):
        raise ConfigError(
            f"model is of type {type(model).__name__}; give a folder, a name, or a loaded Embedder (or an object with "
            "its methods)"
        )
    given: dict[str, tuple[Any, ...]] = {  # each with its defaults
        "device": (device, "cpu"),
        "precision": (precision, "auto"),
        "max_tokens": (max_tokens, None),
        "batch_tokens": (batch_tokens, None),
    }
    for name, (value, *defaults) in given.items():
        if value not in defaults:
            raise ConfigError(
                f"{name}={value!r} beside the loaded model {model.model_name}: give it to Embedder.load instead"
            )
