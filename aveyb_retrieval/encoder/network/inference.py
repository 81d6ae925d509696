"""Inference-only forms of the layers: weights packed for the CPU, quantized to float8, or passes fused for a GPU.

An inference form is never saved, copied or pickled with its model. The model makes it at the first use and again
after a parameter changed. Packed weights take as much memory as the layers' own, float8 weights one byte per element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch

from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.kernels import cpu
from aveyb_retrieval.kernels.activations import activate_around
from aveyb_retrieval.kernels.add_norm import add_norm
from aveyb_retrieval.kernels.dynamic_mix import dynamic_mix_over_gate, in_kernel
from aveyb_retrieval.kernels.float8 import enrich_float8, fuse_float8, lacking, quantize_weight
from aveyb_retrieval.kernels.fuse import project_joined
from aveyb_retrieval.kernels.static_mix import static_mix_over_gate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn
    from typing_extensions import Self

    from aveyb_retrieval.encoder.network.layers import AveyBLayer


class ParameterVersions:
    """Detect whether a module's parameters have changed since they were recorded.

    Noticed: optimizers, `load_state_dict`, `.to`, in-place operations, new or removed parameters and submodules. Not
    noticed: a write through `parameter.data`.
    """

    def __init__(self, module: nn.Module) -> None:
        """Record the parameters of `module`.

        Raises:
            RuntimeError: a parameter was made in inference mode and therefore has no version counter.
        """
        self._modules = [(part, dict(part._modules), len(part._parameters)) for part in module.modules()]
        # The detached tensor keeps the storage alive, so that its address cannot be given to another one.
        self._parameters = [
            (part, name, p, p._version, p.data_ptr(), p.shape, p.detach())
            for part in module.modules()
            for name, p in part._parameters.items()
            if p is not None
        ]
        self._absent = [(part, name) for part in module.modules() for name, p in part._parameters.items() if p is None]

    def unchanged(self) -> bool:
        """Return whether the module still has the recorded submodules and parameters with the recorded values."""
        for part, modules, count in self._modules:
            if part._modules != modules or len(part._parameters) != count:
                return False
        for part, name, parameter, version, address, shape, _ in self._parameters:
            if (
                part._parameters.get(name) is not parameter
                or parameter._version != version
                or parameter.data_ptr() != address
                or parameter.shape != shape
            ):
                return False
        return all(part._parameters.get(name) is None for part, name in self._absent)


class InferenceLayer(ABC):
    """`AveyBLayer.forward` in an inference form, with everything that the form needs made once."""

    def __init__(self, layer: AveyBLayer) -> None:
        self._enricher_bias, self._fuser_bias = layer.enricher.bias, layer.fuser.bias
        self._alpha = layer.alpha
        self._settings = layer.settings
        self._layer = layer
        self._mixings: dict[int, tuple[torch.Tensor | None, torch.Tensor | None]] = {}

    def _mixing(self, factor: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return `AveyBLayer.mixing`, made once."""
        if factor not in self._mixings:
            self._mixings[factor] = self._layer.mixing(factor)
        return self._mixings[factor]

    @staticmethod
    @abstractmethod
    def possible(layer: AveyBLayer, dtype: torch.dtype) -> bool:
        """Return whether this form can run `layer` on inputs of `dtype`; if not, the layer itself has to run."""

    @classmethod
    @abstractmethod
    def run(
        cls, layers: Sequence[Self], x: torch.Tensor, lengths: torch.Tensor | None, factor: int = 1
    ) -> torch.Tensor:
        """Run layers of this form, one after another.

        Args:
            layers: one at least.
            x: `[n, T, D]`.
            lengths: int `[n]`, valid rows of each split; None when all T are.
            factor: how many tokens a row stands for.

        Returns:
            `[n, T, D]`.
        """


class SeparateLayer(InferenceLayer):
    """A form whose layers run each by itself, in the three steps of `AveyBLayer.forward`."""

    @classmethod
    def run(
        cls, layers: Sequence[Self], x: torch.Tensor, lengths: torch.Tensor | None, factor: int = 1
    ) -> torch.Tensor:
        """See `InferenceLayer.run`."""
        for layer in layers:
            mixed, gate, bypass = layer._settings.parts(layer._enrich(x))
            context = layer._mix(mixed, gate, lengths, factor)
            parts = (context, bypass) if layer._settings.fuser_order == "context_bypass" else (bypass, context)
            x = layer._fuse(parts, x)
        return x

    @abstractmethod
    def _enrich(self, x: torch.Tensor) -> torch.Tensor:
        """Enrich `[n, T, D]` -> `[n, T, 2 m + b]`."""

    def _mix(self, mixed: torch.Tensor, gate: torch.Tensor, lengths: torch.Tensor | None, factor: int) -> torch.Tensor:
        """Mix and gate two `[n, T, m]` -> `[n, T, m]`."""
        return self._layer.mix(mixed, gate, lengths, factor)

    @abstractmethod
    def _fuse(self, parts: tuple[torch.Tensor, torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
        """Fuse parts `[n, T, m]` and `[n, T, b]`, in the order of the matrix's columns, -> `[n, T, D]`."""


class PackedLayer(SeparateLayer):
    """A layer run by the operations of `kernels/cpu.py`, for inputs that `cpu.usable` accepts."""

    def __init__(self, layer: AveyBLayer) -> None:
        """Pack both weight matrices, with the norm's weight folded into the enricher's."""
        super().__init__(layer)
        self._enricher = cpu.pack(cpu.fold_norm(layer.enricher.weight.detach(), layer.norm.weight.detach()))
        self._fuser = cpu.pack(layer.fuser.weight.detach())

    @staticmethod
    def possible(layer: AveyBLayer, dtype: torch.dtype) -> bool:
        """Return False for parameters of another dtype or device, of a tensor subclass, or made in inference mode.

        A subclass is quantized or distributed; in inference mode there is no version counter to detect a change by.
        """
        return not _intercepted(layer) and all(
            type(p) is torch.nn.Parameter and p.dtype == dtype and p.device.type == "cpu" and not p.is_inference()
            for p in layer.parameters()
        )

    def _enrich(self, x: torch.Tensor) -> torch.Tensor:
        settings = self._settings
        return cpu.enrich(
            x, self._enricher, self._enricher_bias, eps=settings.norm_eps, activation=settings.enricher_activation
        )

    def _mix(self, mixed: torch.Tensor, gate: torch.Tensor, lengths: torch.Tensor | None, factor: int) -> torch.Tensor:
        if self._layer.kind == "coupled":
            return super()._mix(mixed, gate, lengths, factor)
        settings = self._settings
        weight, bias = self._mixing(factor)
        how = settings.mixing(lengths, bias)
        if weight is not None:
            return cpu.static_mix(mixed, gate, weight, **how)
        return cpu.dynamic_mix(settings.weighed(mixed, factor), gate, **settings.similarity, **how)

    def _fuse(self, parts: tuple[torch.Tensor, torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
        return cpu.fuse(parts, self._fuser, self._fuser_bias, residual, self._alpha)


class Float8Layer(SeparateLayer):
    """A layer with float8 operands in both linear maps (`kernels/float8.py`); mixing keeps the dtype of the input."""

    def __init__(self, layer: AveyBLayer) -> None:
        """Quantize both weight matrices, with the norm's weight folded into the enricher's."""
        super().__init__(layer)
        self._enricher = quantize_weight(layer.enricher.weight, layer.norm.weight)
        self._fuser = quantize_weight(layer.fuser.weight)

    @staticmethod
    def possible(layer: AveyBLayer, dtype: torch.dtype) -> bool:
        """Return True, or raise: float8 changes results, so the layer never runs in another form instead.

        Raises:
            BackendError: the device has no float8 products, the layer is compiled or has hooks, or its weights were
                made in inference mode, so that a change could not be detected.
        """
        if reason := lacking(layer.fuser.weight.device):
            raise BackendError(f"{reason}; encode in bfloat16 there")
        if _intercepted(layer):
            raise BackendError("float8 layers cannot be compiled or have hooks: leave one of the two out")
        if any(p.is_inference() for p in layer.parameters()):
            raise BackendError("float8 needs weights made outside torch.inference_mode(): load or convert them there")
        return True

    def _enrich(self, x: torch.Tensor) -> torch.Tensor:
        settings = self._settings
        return enrich_float8(
            x, self._enricher, self._enricher_bias, eps=settings.norm_eps, activation=settings.enricher_activation
        )

    def _fuse(self, parts: tuple[torch.Tensor, torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
        return fuse_float8(parts, self._fuser, self._fuser_bias, residual, self._alpha)


class FusedLayer(InferenceLayer):
    """A layer in five launches, for devices with kernels; nothing is copied or prepared.

    Of the passes over memory around its two products and the mixing two are left. One activates all columns but the
    gate's, and takes the norms that dynamic mixing needs; the mixing activates the gate on its way and writes the
    context over it, beside the bypass, so that the fuser is one product of strided rows. The other adds the residual
    and is the next layer's RMSNorm.
    """

    def __init__(self, layer: AveyBLayer) -> None:
        super().__init__(layer)
        self._norm = layer.norm

    @staticmethod
    def possible(layer: AveyBLayer, dtype: torch.dtype) -> bool:
        """Return False if the layer's form has no kernels of this kind, or a change could not be detected.

        Gate and bypass must stand in the fuser's order.
        """
        usable = all(p.dtype == dtype and not p.is_inference() for p in layer.parameters())
        known = layer.kind == "static" or (layer.kind == "dynamic" and in_kernel(layer.settings.similarity_norm))
        return known and layer.settings.joinable and not _intercepted(layer) and usable

    @classmethod
    def run(
        cls, layers: Sequence[Self], x: torch.Tensor, lengths: torch.Tensor | None, factor: int = 1
    ) -> torch.Tensor:
        """See `InferenceLayer.run`."""
        normed = layers[0]._norm(x)
        for layer, following in pairwise(layers):
            norm = following._norm
            x, normed = add_norm(layer._branch(normed, lengths, factor), x, layer._alpha, norm.weight, eps=norm.eps)
        last = layers[-1]
        branch = last._branch(normed, lengths, factor)
        return branch.add_(x) if last._alpha is None else branch.addcmul_(last._alpha, x)

    def _branch(self, normed: torch.Tensor, lengths: torch.Tensor | None, factor: int = 1) -> torch.Tensor:
        """The layer without its norm and its residual: `[n, T, D]` -> `[n, T, D]`."""
        settings, enricher, fuser = self._settings, self._layer.enricher, self._layer.fuser
        enriched = torch.nn.functional.linear(normed, enricher.weight, enricher.bias)
        mixed, gate, bypass = settings.parts(enriched)
        inverse_norms = activate_around(
            enriched,
            settings.enricher_activation,
            *settings.gate_columns,
            norms="head" if settings.mixed_first else "tail",
        )
        self._mix(mixed, gate, inverse_norms, lengths, factor)
        first = gate if settings.mixed_first else bypass
        size = (*first.shape[:-1], settings.mixed_size + settings.bypass_size)
        # Gate and bypass stand side by side: see `LayerSettings.joinable`.
        return project_joined(first.as_strided(size, first.stride()), fuser.weight, fuser.bias)

    def _mix(
        self,
        mixed: torch.Tensor,
        gate: torch.Tensor,
        inverse_norms: torch.Tensor,
        lengths: torch.Tensor | None,
        factor: int,
    ) -> None:
        """Write the context over the gate."""
        settings, width = self._settings, mixed.shape[1]
        weight, bias = self._mixing(factor)
        how = settings.mixing(lengths, None if bias is None else bias[:width])
        name = settings.enricher_activation
        if weight is not None:
            static_mix_over_gate(mixed, gate, weight[:width, :width], gate_activation=name, **how)
        else:
            dynamic_mix_over_gate(mixed, gate, inverse_norms, gate_activation=name, **settings.similarity, **how)


class InferenceLayers:
    """All layers of a model in one inference form, for inputs of one dtype, with the parameters that they have now."""

    def __init__(self, layers: nn.ModuleList, form: type[InferenceLayer], dtype: torch.dtype) -> None:
        """Prepare every layer; `form.possible` must hold for each."""
        self._layers, self._form, self._dtype = layers, form, dtype
        self._versions = ParameterVersions(layers)
        self._prepared = [form(layer) for layer in _layers_of(layers)]

    @classmethod
    def prepare(cls, layers: nn.ModuleList, form: type[InferenceLayer], dtype: torch.dtype) -> InferenceLayers | None:
        """Return the layers in `form` for inputs of `dtype`, or None where they have to run as they are.

        Raises:
            BackendError: float8 is asked for where it cannot run.
        """
        possible = all(form.possible(layer, dtype) for layer in _layers_of(layers))
        return cls(layers, form, dtype) if possible else None

    def serves(self, layers: nn.ModuleList, form: type[InferenceLayer], dtype: torch.dtype) -> bool:
        """Return whether this is what `prepare` with the same arguments would give now."""
        return (
            self._layers is layers
            and self._form is form
            and self._dtype == dtype
            and not any(_intercepted(layer) for layer in layers)
            and self._versions.unchanged()
        )

    def __call__(self, x: torch.Tensor, lengths: torch.Tensor | None, which: slice, factor: int) -> torch.Tensor:
        """Run some of the layers, one after another.

        Args:
            x: `[n, T, D]`.
            lengths: int `[n]`, valid rows of each split; None when all T are.
            which: the layers, one at least.
            factor: how many tokens a row stands for.

        Returns:
            `[n, T, D]`.
        """
        return self._form.run(self._prepared[which], x, lengths, factor)


def _layers_of(layers: nn.ModuleList) -> Iterator[AveyBLayer]:
    return iter(cast("Iterable[AveyBLayer]", layers))


def _intercepted(layer: nn.Module) -> bool:
    """Return whether a call of the layer runs more than its class's `forward`: it is compiled, hooked or patched."""
    return bool(
        layer._compiled_call_impl is not None
        or layer._forward_pre_hooks
        or layer._forward_hooks
        or "forward" in vars(layer)
    )
