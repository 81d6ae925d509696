"""A checkpoint's tensors: the encoder's own names and order, and whether they fill a model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from aveyb_retrieval.encoder.model_folders import TABLE, TABLE_SCALE
from aveyb_retrieval.errors import ModelError, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENCODER_NAME = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*?(embed\.weight|ranker\.down_proj|layers\.\d+\..+|ln_f\.weight)$"
)


def float_table(tensors: Mapping[str, torch.Tensor], path: Any) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors; an embedding of int8 rows (`int8_rows`, with `embed.scale`)
    as float32.
    """
    found = dict(tensors)
    for name, codes in tensors.items():
        if name.endswith(TABLE) and codes.dtype == torch.int8:
            scale = found.pop(name.removesuffix(TABLE) + TABLE_SCALE, None)
            if scale is None or scale.shape != (len(codes), 1):
                raise ModelError(
                    f"{path}: {name} is int8 and has no {TABLE_SCALE} of the shape [{len(codes)},"
                    " 1]; copy it again"
                )
            found[name] = codes.float() * scale
    return found


def encoder_tensors(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the encoder's tensors of a checkpoint, without prefix and tied head."""
    return {
        match[1]: tensor
        for name, tensor in state_dict.items()
        if (match := _ENCODER_NAME.match(name))
    }


def released_tensors(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the encoder's tensors of a released checkpoint under our names, in our order.

    The authors' enricher gives [mixed, gate, bypass], ours [bypass, gate, mixed], and their fuser
    reads [context, bypass], ours [bypass, context].
    """
    tensors = encoder_tensors(state_dict)
    for name in [name for name in tensors if name.endswith(".fuser.weight")]:
        layer = name.removesuffix("fuser.weight")
        rows = tensors.get(f"{layer}enricher.weight")
        if rows is None or not 0 < len(rows) - tensors[name].shape[1] <= tensors[name].shape[1]:
            continue  # no layer of a released model: checked where the tensors are used
        mixed = len(rows) - tensors[name].shape[1]
        tensors[name] = tensors[name].roll(-mixed, dims=1)
        for part in (f"{layer}enricher.weight", f"{layer}enricher.bias"):
            if part in tensors:
                context, gate, bypass = tensors[part].tensor_split((mixed, 2 * mixed))
                tensors[part] = torch.cat((bypass, gate, context))
    return tensors


def no_weights(name: Any, reason: str) -> ModelError:
    """Return the error for a folder whose weights are absent or unreadable."""
    return ModelError(
        f"{name}: {reason}; this package reads safetensors only (convert a pickled checkpoint with "
        "safetensors.torch.save_file in a place you trust)"
    )


def check_shapes(name: Any, mismatched: set[tuple[str, Any, Any]]) -> None:
    """Raise `ModelError` if a (parameter, stored shape, expected shape) differs."""
    if mismatched:
        parameter, stored, expected = min(mismatched)
        raise ModelError(
            f"{name}: {parameter} has shape {tuple(stored)} in the checkpoint, config.json says"
            f" {tuple(expected)}; {len(mismatched)} tensors differ so: weights and configuration"
            " belong to different models"
        )


def check_fits(
    name: Any, tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Size]
) -> None:
    """Raise `ModelError` unless tensors are those of a model, in the shapes that it has."""
    both = expected.keys() & tensors.keys()
    check_shapes(
        name, {(n, tensors[n].shape, expected[n]) for n in both if tensors[n].shape != expected[n]}
    )
    check_complete(name, expected.keys() - tensors.keys(), tensors.keys() - expected.keys())


def check_complete(name: Any, missing: set[str], unexpected: set[str]) -> None:
    """Raise `ModelError` if a checkpoint does not fill every parameter, or holds tensors that have
    no place.
    """
    if missing:
        raise ModelError(
            f"{name}: the checkpoint lacks {plural(len(missing), 'parameter')}, first"
            f" {min(missing)!r}; it would be random, so use a complete checkpoint, or the model"
            " class that this one was saved from"
        )
    if extra := {key for key in unexpected if _ENCODER_NAME.match(key)}:
        raise ModelError(
            f"{name}: the checkpoint holds {len(extra)} encoder parameters with no place in the"
            f" model, first {min(extra)!r}; weights and config.json belong to different models"
        )
