"""A layer as its inference wants it: matrices packed for a CPU, or rounded to float8.

A preparation is no part of the model: it is neither saved nor copied nor pickled with it, and when a parameter has
changed, a new one is made. Packed matrices take as much memory as the layer's own, float8 ones a byte an element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.encoder.marks import Marks
from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.kernels import cpu
from aveyb_retrieval.kernels.float8 import enrich_float8, fuse_float8, lacking, quantise_weight
from aveyb_retrieval.kernels.packed import pack

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.layers import AveyBLayer


class PreparedLayer(ABC):
    """`AveyBLayer.forward` in another form, with what that form needs made once."""

    def __init__(self, layer: AveyBLayer) -> None:
        self._marks = Marks(layer)
        self._enricher_bias, self._fuser_bias = layer.enricher.bias, layer.fuser.bias
        self._alpha = layer.alpha
        self._settings = layer.settings

    @staticmethod
    def possible(layer: AveyBLayer, dtype: torch.dtype) -> bool:
        """Whether a layer can be prepared for inputs of this dtype; else it runs as it stands, with equal results."""
        return True

    def current(self, dtype: torch.dtype) -> bool:
        """Whether the layer's parameters are still those that were prepared, of this dtype (see `Marks`)."""
        return self._marks.current() and self._fuser_bias.dtype == dtype

    def __call__(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """`[n, T, D]` -> `[n, T, D]`; `lengths`: int `[n]` valid tokens of each split, None when all T are."""
        mixed, gate, bypass = self._settings.parts(self._enrich(x))
        context = self._mix(mixed, gate, lengths)
        parts = (context, bypass) if self._settings.fuser_order == "context_bypass" else (bypass, context)
        return self._fuse(parts, x)

    @abstractmethod
    def _enrich(self, x: torch.Tensor) -> torch.Tensor:
        """`[n, T, D]` -> `[n, T, 4 m]`."""

    @abstractmethod
    def _mix(self, mixed: torch.Tensor, gate: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """Two of `[n, T, m]` -> `[n, T, m]`."""

    @abstractmethod
    def _fuse(self, parts: tuple[torch.Tensor, torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
        """Parts `[n, T, m]` and `[n, T, 2 m]` in the order of the matrix's columns -> `[n, T, D]`."""


class PackedLayer(PreparedLayer):
    """By the operations of `kernels/cpu.py`, for inputs that `packed.usable` accepts."""

    def __init__(self, layer: AveyBLayer) -> None:
        super().__init__(layer)
        self._enricher = pack(cpu.fold_norm(layer.enricher.weight.detach(), layer.norm.weight.detach()))
        self._fuser = pack(layer.fuser.weight.detach())
        self._spatial_proj, self._mix_bias = layer.spatial_proj, layer.mix_bias

    @staticmethod
    def possible(layer: AveyBLayer, dtype: torch.dtype) -> bool:
        """Not with parameters of another dtype or device, of a tensor subclass, or made in inference mode.

        A subclass is quantised or distributed; in inference mode there is no version counter to know a change by.
        """
        return all(
            type(p) is torch.nn.Parameter and p.dtype == dtype and p.device.type == "cpu" and not p.is_inference()
            for p in layer.parameters()
        )

    def _enrich(self, x: torch.Tensor) -> torch.Tensor:
        settings = self._settings
        return cpu.enrich(
            x, self._enricher, self._enricher_bias, eps=settings.norm_eps, activation=settings.enricher_activation
        )

    def _mix(self, mixed: torch.Tensor, gate: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        settings, bias, sigma = self._settings, self._mix_bias, self._settings.mix_activation
        if self._spatial_proj is not None:
            return cpu.static_mix(mixed, gate, self._spatial_proj, lengths=lengths, bias=bias, activation=sigma)
        return cpu.dynamic_mix(
            mixed,
            gate,
            normalisation=settings.similarity_norm,
            eps=settings.similarity_eps,
            lengths=lengths,
            bias=bias,
            activation=sigma,
        )

    def _fuse(self, parts: tuple[torch.Tensor, torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
        return cpu.fuse(parts, self._fuser, self._fuser_bias, residual, self._alpha)


class Float8Layer(PreparedLayer):
    """With float8 operands in both linear maps (`kernels/float8.py`); mixing stays in the dtype of the input.

    As it changes results, it is never left out in silence: where it is not possible, it raises.
    """

    def __init__(self, layer: AveyBLayer) -> None:
        """Raises: BackendError: the device has no float8 products, or a change of the weights could not be known."""
        if reason := lacking(layer.fuser.weight.device):
            raise BackendError(f"{reason}; encode in bfloat16 there")
        if any(p.is_inference() for p in layer.parameters()):
            raise BackendError("float8 needs weights made outside torch.inference_mode(): load or convert them there")
        super().__init__(layer)
        self._enricher = quantise_weight(layer.enricher.weight, layer.norm.weight)
        self._fuser = quantise_weight(layer.fuser.weight)
        self._mixing = layer.mix

    def _enrich(self, x: torch.Tensor) -> torch.Tensor:
        settings = self._settings
        return enrich_float8(
            x, self._enricher, self._enricher_bias, eps=settings.norm_eps, activation=settings.enricher_activation
        )

    def _mix(self, mixed: torch.Tensor, gate: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        return self._mixing(mixed, gate, lengths)

    def _fuse(self, parts: tuple[torch.Tensor, torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
        return fuse_float8(parts, self._fuser, self._fuser_bias, residual, self._alpha)
