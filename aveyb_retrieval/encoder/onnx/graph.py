"""A thin writer of ONNX graphs: operations and constants by name, everything else from the package onnx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

OPSET = 18  # of ai.onnx; ONNX Runtime 1.14 and newer read it
IR_VERSION = 8
CONTRIB = "com.microsoft"  # ONNX Runtime's own operators, of which the int8 form uses one


class Graph:
    """An ONNX graph while it is written. Values are named by strings; a method that adds one returns its name."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._nodes: list[Any] = []
        self._constants: dict[str, np.ndarray] = {}
        self._values = 0

    def constant(self, value: Any, dtype: Any = np.float32, name: str | None = None) -> str:
        """Add an array; equal unnamed scalars and short lists are kept once."""
        array = np.ascontiguousarray(value, dtype=dtype)
        array = array.reshape(np.shape(value))  # ascontiguousarray makes a scalar a list
        name = name or f"{array.dtype}{array.tolist()}"
        self._constants[name] = array
        return name

    @property
    def constant_bytes(self) -> int:
        """How many bytes the constants take."""
        return sum(array.nbytes for array in self._constants.values())

    def op(self, kind: str, *inputs: str, domain: str = "", name: str | None = None, **attributes: Any) -> str:
        """Add an operation with one output."""
        from onnx import helper

        made, self._values = name or f"v{self._values}", self._values + 1
        self._nodes.append(helper.make_node(kind, list(inputs), [made], domain=domain, **attributes))
        return made

    def model(
        self, inputs: Sequence[tuple[str, str, list[Any]]], output: tuple[str, str, list[Any]], metadata: dict[str, str]
    ) -> bytes:
        """Return the file's content.

        Args:
            inputs: (name, ONNX type such as "FLOAT", sizes: numbers or names of free ones) of each.
            output: the same.
            metadata: what the file says about itself.
        """
        from onnx import TensorProto, helper, numpy_helper

        def info(value: tuple[str, str, list[Any]]) -> Any:
            name, kind, shape = value
            return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)

        constants = [numpy_helper.from_array(array, name) for name, array in self._constants.items()]
        graph = helper.make_graph(self._nodes, "aveyb", [info(i) for i in inputs], [info(output)], constants)
        domains = {"": OPSET} | ({CONTRIB: 1} if any(node.domain == CONTRIB for node in self._nodes) else {})
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in domains.items()],
            ir_version=IR_VERSION,
            producer_name="aveyb-retrieval",
        )
        helper.set_model_props(model, metadata)
        content: bytes = model.SerializeToString(deterministic=True)
        return content
