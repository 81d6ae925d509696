"""By what a change of a module's parameters is known: identity, version counter, address, shape."""

from __future__ import annotations

from torch import nn


class Marks:
    """The parameters of a module as they are now, to tell later whether they still are.

    Optimizers, `load_state_dict`, `.to` and new parameters or parts are noticed; a write through `parameter.data` is
    not. A parameter made in inference mode has no version counter: `RuntimeError`.
    """

    def __init__(self, module: nn.Module) -> None:
        # Where each part and parameter is found. A parameter's storage is kept, so that its address cannot come to
        # mean something else.
        self._parts = [
            (parent._modules, name, part) for parent in module.modules() for name, part in parent._modules.items()
        ]
        self._sources = [
            (part._parameters, name, p, p._version, p.data_ptr(), p.shape, p.detach())
            for part in module.modules()
            for name, p in part._parameters.items()
            if p is not None
        ]

    def current(self) -> bool:
        """Whether every part and parameter is the one that was marked, unchanged."""
        for parts, name, part in self._parts:
            if parts.get(name) is not part:
                return False
        for parameters, name, parameter, version, address, shape, _ in self._sources:
            if (
                parameters.get(name) is not parameter
                or parameter._version != version
                or parameter.data_ptr() != address
                or parameter.shape != shape
            ):
                return False
        return True
