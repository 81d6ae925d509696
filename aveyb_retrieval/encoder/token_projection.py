"""Vectors of single tokens for late interaction, in the directions by which a model was trained to compare them.

    y = P h                h: a token's output [d]; P: [w, d], the file of the model folder that `FILE` names
    a document's token     y / |y|
    a query's token        y / m, m the mean of |y| over the query's tokens: one that tells more weighs more

Training: `recipes/aveyb-small-en/train_token_projection.py`. A folder without the file compares outputs as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

FILE = "token_projection.safetensors"
_TENSOR = "weight"
_SMALLEST = 8  # dimensions: a whole byte of bits
_MIN_NORM = 1e-12


@dataclass(frozen=True)
class TokenProjection:
    """P, float32 `[w, d]`."""

    weight: torch.Tensor

    @classmethod
    def load(cls, folder: Path, dim: int) -> TokenProjection | None:
        """Read a model folder's, None where it has none.

        Args:
            folder: of the model.
            dim: d, the width of its outputs.

        Raises:
            ModelError: the file is damaged, or holds anything but one matrix of finite numbers for this width.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise ModelError(f"{path}: damaged or cut short ({error}); copy or download it again") from error
        weight = tensors.get(_TENSOR)
        found = {name: f"{value.dtype} {list(value.shape)}" for name, value in tensors.items()}
        fits = weight is not None and weight.dim() == 2 and weight.shape[1] == dim and _SMALLEST <= len(weight) <= dim
        if weight is None or not fits or len(tensors) > 1 or not weight.is_floating_point():
            raise ModelError(
                f"{path} holds {found}; one tensor {_TENSOR!r} of floats is needed, [{_SMALLEST} to {dim}, {dim}]: "
                "copy or download it again"
            )
        if not weight.isfinite().all():
            raise ModelError(f"{path}: {_TENSOR!r} holds numbers that are not finite; copy or download it again")
        return cls(weight.float())

    @property
    def width(self) -> int:
        """Return w, the width of a token's vector."""
        return len(self.weight)

    def document(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the tokens of documents: outputs `[..., d]` to float32 `[..., w]`, unit rows."""
        return nn.functional.normalize(self._projected(hidden), dim=-1)

    def query(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the tokens of one query: outputs `[T, d]` to float32 `[T, w]`, whose rows have a mean length of 1."""
        found = self._projected(hidden)
        return found / found.norm(dim=-1).mean().clamp_min(_MIN_NORM) if len(found) else found

    def _projected(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.float() @ self.weight.to(hidden.device).T
