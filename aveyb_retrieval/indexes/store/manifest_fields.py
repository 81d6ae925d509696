"""The type of every field of a manifest: what is read from a file is checked before anything relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aveyb_retrieval.encoder.token_codec import STORAGES
from aveyb_retrieval.indexes.store.language import LANGUAGES

_COUNTS = ("documents", "passages", "tokens", "cut_documents", "cut_tokens", "rejected")
_PARAMS = ("nprobe", "efSearch", "rescore")

_LARGE = float(1 << 63)
_MAX_TOKEN_DIM = 1 << 16

Test = Callable[[Any], bool]


def is_count(value: object) -> bool:
    """Whether a value is a whole number that fits into 63 bits."""
    return type(value) is int and 0 <= value < 1 << 63


def problem(fields: Mapping[str, Any]) -> str | None:
    """The first field of a manifest that has another type than it should, as words; None where there is none."""
    for name, test in _FIELDS.items():
        if not test(fields.get(name)):
            return f"{name} {_shown(fields.get(name))}"
    return None


def info_problem(fields: Mapping[str, Any]) -> str | None:
    """The same for the description of one FAISS index."""
    for name, test in _INFO.items():
        if not test(fields.get(name)):
            return f"{name} {_shown(fields.get(name))}"
    return None


def _shown(value: object) -> str:
    text = ascii(value) if not isinstance(value, int) or value.bit_length() < 128 else "of too many digits"
    return text if len(text) <= 80 else text[:80] + "..."


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGE < value < _LARGE  # not NaN


def _optional(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _map_of(test: Test) -> Test:
    return lambda value: isinstance(value, dict) and all(map(test, value.values()))


def _is_model(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("fingerprint"), str)


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and set(_COUNTS) <= set(value) and all(map(is_count, value.values()))


def _are_params(value: object) -> bool:
    return isinstance(value, dict) and all(
        name in _PARAMS and type(number) is int and 1 <= number < 1 << 31 for name, number in value.items()
    )


def _are_settings(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(_SETTINGS) <= set(value) <= set(_SETTINGS) | set(_LATER_SETTINGS)
        and all((_SETTINGS | _LATER_SETTINGS)[name](setting) for name, setting in value.items())
    )


_SETTINGS: dict[str, Test] = {
    "index": _is_text,
    "recall": _optional(_is_number),
    "model_source": _optional(_is_text),
    "max_tokens": _optional(is_count),
}
_LATER_SETTINGS: dict[str, Test] = {  # not in an index of format 1
    "passage_tokens": _optional(is_count),
    "passage_overlap": is_count,
    "late": _optional(lambda value: isinstance(value, bool)),
    "titled": lambda value: isinstance(value, bool),
    "language": lambda value: value in LANGUAGES,
    "token_vectors": lambda value: value in (None, *STORAGES),
    "token_dim": _optional(lambda value: is_count(value) and 8 <= value <= _MAX_TOKEN_DIM),
}
_FIELDS: dict[str, Test] = {
    "version": _is_text,
    "created": _is_text,
    "package": _is_text,
    "model": _optional(_is_model),
    "granularity": _is_text,
    "dim": is_count,
    "storage_dtype": lambda value: value in ("float32", "float16"),
    "settings": _are_settings,
    "index_fields": _map_of(_is_text),
    "counts": _are_counts,
    "job": lambda value: isinstance(value, dict),
}
_INFO: dict[str, Test] = {
    "factory": _is_text,
    "count": is_count,
    "trained_on": is_count,
    "tombstones": is_count,
    "params": _are_params,
    "recall": _optional(_is_number),
    "curve": lambda value: isinstance(value, list) and all(map(_map_of(_is_number), value)),
}
