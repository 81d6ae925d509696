"""A layer as its inference on a CPU wants it: matrices packed, parameters at hand.

A preparation takes as much memory as the layer's two matrices. It is no part of the model: it is neither saved nor
copied nor pickled with it, and when a parameter has changed, a new one is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.kernels import cpu
from aveyb_retrieval.kernels.packed import pack

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.layers import AveyBLayer


class PreparedLayer:
    """`AveyBLayer.forward` by the operations of `kernels/cpu.py`, for inputs that `packed.usable` accepts."""

    def __init__(self, layer: AveyBLayer) -> None:
        # Where each part and parameter is found, and the marks by which a change is known. A parameter's storage is
        # kept, so that its address cannot come to mean something else.
        self._parts = [(layer._modules, name, module) for name, module in layer.named_children()]
        self._sources = [
            (module._parameters, name, p, p._version, p.data_ptr(), p.shape, p.detach())
            for module in layer.modules()
            for name, p in module._parameters.items()
            if p is not None
        ]
        self._enricher = pack(cpu.fold_norm(layer.enricher.weight.detach(), layer.norm.weight.detach()))
        self._fuser = pack(layer.fuser.weight.detach())
        self._enricher_bias, self._fuser_bias = layer.enricher.bias, layer.fuser.bias
        self._spatial_proj, self._mix_bias, self._alpha = layer.spatial_proj, layer.mix_bias, layer.alpha
        self._settings = layer.settings

    @staticmethod
    def possible(layer: AveyBLayer, dtype: torch.dtype) -> bool:
        """Whether a layer can be prepared for inputs of this dtype.

        Not with parameters of another dtype or device, of a tensor subclass (quantised, distributed), or made in
        inference mode: those have no version counter, by which a change would be known.
        """
        return all(
            type(p) is torch.nn.Parameter and p.dtype == dtype and p.device.type == "cpu" and not p.is_inference()
            for p in layer.parameters()
        )

    def current(self, dtype: torch.dtype) -> bool:
        """Whether the layer's parameters are still those that were prepared, of this dtype.

        Optimizers, `load_state_dict`, `.to` and new parameters or parts are noticed; a write through `parameter.data`
        is not.
        """
        for modules, name, module in self._parts:
            if modules.get(name) is not module:
                return False
        for parameters, name, parameter, version, address, shape, _ in self._sources:
            if (
                parameters.get(name) is not parameter
                or parameter._version != version
                or parameter.data_ptr() != address
                or parameter.shape != shape
            ):
                return False
        return self._fuser_bias.dtype == dtype

    def __call__(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """`[n, T, D]` -> `[n, T, D]`; `lengths`: int `[n]` valid tokens of each split, None when all T are."""
        settings = self._settings
        enriched = cpu.enrich(
            x, self._enricher, self._enricher_bias, eps=settings.norm_eps, activation=settings.enricher_activation
        )
        mixed, gate, bypass = settings.parts(enriched)
        if self._spatial_proj is not None:
            context = cpu.static_mix(
                mixed,
                gate,
                self._spatial_proj,
                lengths=lengths,
                bias=self._mix_bias,
                activation=settings.mix_activation,
            )
        else:
            context = cpu.dynamic_mix(
                mixed,
                gate,
                normalisation=settings.similarity_norm,
                eps=settings.similarity_eps,
                lengths=lengths,
                bias=self._mix_bias,
                activation=settings.mix_activation,
            )
        parts = (context, bypass) if settings.fuser_order == "context_bypass" else (bypass, context)
        return cpu.fuse(parts, self._fuser, self._fuser_bias, x, self._alpha)
