"""The authors' released checkpoints: how to recognise one, and what its fields and names mean here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers.utils import cached_file

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.errors import ModelError

_RELEASED_FIELDS = ("vocab_size", "d_embed", "n_layers", "chunk_size", "k", "eps")
_ENCODER_NAME = re.compile(r"^(?:[A-Za-z_]\w*\.)*?(embed\.weight|ranker\.down_proj|layers\.\d+\..+)$")
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


class ReleasedCheckpoints:
    """Mixed into the models: `from_released`, and `from_pretrained` for folders in the authors' format."""

    @classmethod
    def from_released(
        cls,
        state_dict: Mapping[str, torch.Tensor],
        *,
        vocab_size: int,
        d_embed: int,
        n_layers: int,
        chunk_size: int,
        k: int,
        eps: float,
    ) -> Any:
        """Builds the model from the tensors and settings of a released checkpoint.

        Args:
            state_dict: the checkpoint's tensors, with or without a prefix before `embed`, `layers` and `ranker`; a tied
                head is ignored.
            vocab_size, d_embed, n_layers, chunk_size, k, eps: the fields of the checkpoint's configuration.

        Raises:
            ModelError: a tensor is missing, left over, or of another shape than the settings say.
        """
        config = AveyBConfig.from_released(
            vocab_size=vocab_size, d_embed=d_embed, n_layers=n_layers, chunk_size=chunk_size, k=k, eps=eps
        )
        model: Any = cls(config)  # type: ignore[call-arg]
        encoder = model.base_model
        tensors = released_tensors(state_dict)
        expected = encoder.state_dict()
        if missing := sorted(expected.keys() - tensors.keys()):
            raise ModelError(f"released checkpoint lacks {len(missing)} tensors, first {missing[0]!r}; is it complete?")
        if extra := sorted(tensors.keys() - expected.keys()):
            raise ModelError(
                f"released checkpoint holds {len(extra)} tensors with no place in the model, first {extra[0]!r}; "
                f"do n_layers={n_layers} and k={k} belong to it?"
            )
        for name, tensor in tensors.items():
            if tensor.shape != expected[name].shape:
                raise ModelError(
                    f"released checkpoint: {name} has shape {tuple(tensor.shape)}, its settings say "
                    f"{tuple(expected[name].shape)}"
                )
        encoder.load_state_dict(tensors)
        model.tie_weights()
        return model.eval()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """transformers' `from_pretrained`; a name or folder in the authors' format takes the road of `from_released`.

        Weights are read from safetensors only.

        Raises:
            ModelError: a released checkpoint without `model.safetensors`, or one that does not fit its settings.
        """
        hub = {name: kwargs[name] for name in _HUB_OPTIONS if kwargs.get(name) is not None}
        fields = _released_fields(pretrained_model_name_or_path, hub)
        if fields is None or isinstance(kwargs.get("config"), AveyBConfig):
            kwargs["use_safetensors"] = True
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]
        weights = cached_file(
            pretrained_model_name_or_path, "model.safetensors", _raise_exceptions_for_missing_entries=False, **hub
        )
        if weights is None:
            raise ModelError(
                f"{pretrained_model_name_or_path}: no model.safetensors; this package reads safetensors only "
                "(convert a pickled checkpoint with safetensors.torch.save_file in a place you trust)"
            )
        dtype = kwargs.get("dtype") or kwargs.get("torch_dtype")
        model = cls.from_released(load_file(weights), **fields)
        return model.to(dtype) if isinstance(dtype, torch.dtype) else model


def released_tensors(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The encoder's tensors of a released checkpoint under our names: the prefix and the tied head fall away."""
    return {match[1]: tensor for name, tensor in state_dict.items() if (match := _ENCODER_NAME.match(name))}


def _released_fields(name_or_path: Any, hub: dict[str, Any]) -> dict[str, Any] | None:
    """The settings in the authors' `config.json`, or None where it is not in their format (or not there)."""
    path = cached_file(
        name_or_path,
        "config.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_connection_errors=False,
        **hub,
    )
    if path is None:
        return None
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    if "d_embed" not in settings:
        return None
    if missing := [name for name in _RELEASED_FIELDS if name not in settings]:
        raise ModelError(
            f"{path}: a released Avey-B configuration must have {', '.join(_RELEASED_FIELDS)}; lacks {missing}"
        )
    return {name: settings[name] for name in _RELEASED_FIELDS}
