"""A thin writer of ONNX graphs, and the linear maps in them: in float32, or with int8 weights and
rows of bytes.

Operations and constants go by name, everything else is the package onnx. A linear map in int8 is

    y = (q W_q) * s_row * s_column + b      q: a row over its own largest value; W_q: a column over
    its largest

A row's scale is its own, so its result does not depend on the rows beside it. Weights reach 64, not
127: processors without VNNI add pairs of products in 16 bits, which 255 * 64 * 2 fits and 255 * 127
* 2 does not, so results are the same on every processor. Rows that are never negative use all 256
values, others -127 to 127.

Rounding a matrix W to W' takes (W - W') x from every output. What is the same for all rows, (W -
W') E[x], does not average out over a text's tokens, so it goes into the bias (Nagel et al., 2019,
arXiv 1906.04721, section 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.encoder.onnx.model import CHECKPOINT, EMBEDDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.encoder.onnx.model import EmbeddingTable

OPSET = 18  # of ai.onnx; ONNX Runtime 1.14 and newer read it
IR_VERSION = 8
CONTRIB = "com.microsoft"  # ONNX Runtime's own operators
LARGEST_WEIGHT = 64
_MIN_DIVISOR = 1e-30  # a row of zeros is divided by it
_DAMPING_SHARE = 0.01  # of the mean square of an input


class Graph:
    """An ONNX graph while it is written.

    Values are named by strings; a method that adds one returns its name.
    """

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, np.ndarray] = {}
        self._elsewhere: dict[str, tuple[str, int]] = {}
        self._values = 0

    def constant(self, value: Any, dtype: Any = np.float32, name: str | None = None) -> str:
        """Add an array; equal unnamed scalars and short lists are kept once."""
        array = np.ascontiguousarray(value, dtype=dtype)
        array = array.reshape(np.shape(value))  # ascontiguousarray makes a scalar a list
        name = name or f"{array.dtype}{array.tolist()}"
        self._constants[name] = array
        return name

    def constant_elsewhere(self, array: np.ndarray, name: str, file: str, place: int) -> str:
        """Add an array that is stored at a place, in bytes, of another file."""
        self._elsewhere[name] = file, place
        return self.constant(array, array.dtype, name)

    @property
    def constant_bytes(self) -> int:
        """How many bytes the constants take."""
        return sum(
            array.nbytes for name, array in self._constants.items() if name not in self._elsewhere
        )

    def op(
        self, kind: str, *inputs: str, domain: str = "", name: str | None = None, **attributes: Any
    ) -> str:
        """Add an operation with one output."""
        from onnx import helper

        made, self._values = name or f"v{self._values}", self._values + 1
        self._nodes.append(
            helper.make_node(kind, list(inputs), [made], domain=domain, **attributes)
        )
        return made

    def model(
        self,
        inputs: Sequence[tuple[str, str, list[Any]]],
        output: tuple[str, str, list[Any]],
        metadata: dict[str, str],
    ) -> bytes:
        """Return the file's content; a value is (name, ONNX type such as "FLOAT", sizes or names of
        free ones).
        """
        from onnx import TensorProto, external_data_helper, helper, numpy_helper

        def info(value: tuple[str, str, list[Any]]) -> Any:
            name, kind, shape = value
            return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)

        constants = []
        for name, array in self._constants.items():
            constants.append(tensor := numpy_helper.from_array(array, name))
            if name in self._elsewhere:
                external_data_helper.set_external_data(tensor, *self._elsewhere[name], array.nbytes)
                tensor.ClearField("raw_data")
        graph = helper.make_graph(
            self._nodes, "aveyb", [info(i) for i in inputs], [info(output)], constants
        )
        domains = {"": OPSET} | (
            {CONTRIB: 1} if any(node.domain == CONTRIB for node in self._nodes) else {}
        )
        model = helper.make_model(
            graph,
            opset_imports=[
                helper.make_opsetid(domain, version) for domain, version in domains.items()
            ],
            ir_version=IR_VERSION,
            producer_name="aveyb-retrieval",
        )
        helper.set_model_props(model, metadata)
        return model.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class Rows:
    """The input of linear maps.

    values: `[R, K]`: float32, or uint8 in the int8 form.
    scale: `[R, 1]`, what products are multiplied by; None: nothing.
    zero: what a stored 0.0 is, a uint8 constant; "" in float32.
    """

    values: str
    scale: str | None
    zero: str = ""


class Float32:
    """Linear maps in float32."""

    def __init__(self, graph: Graph, stored: EmbeddingTable | None = None) -> None:
        """Write into a graph; `stored` is the checkpoint's table of embeddings, where
        there is one.
        """
        self._graph, self._stored = graph, stored

    def table(self, weight: np.ndarray, ids: str) -> str:
        """Look up rows of the embedding `[V, D]`; -1 gives zeros."""
        rows = np.concatenate([weight, np.zeros_like(weight[:1])])
        return self._graph.op("Gather", self._graph.constant(rows, name=EMBEDDING), ids)

    def matrix(self, weight: np.ndarray, name: str) -> str:
        """Return a matrix that mixes tokens: it stays a float32 one when it is used."""
        return self._graph.constant(weight, name=name)

    def rows(self, x: str, divisor: str | None = None, *, positive: bool = False) -> Rows:
        """Take `[R, K]`, each row over its `divisor` `[R, 1]`."""
        return Rows(x if divisor is None else self._graph.op("Div", x, divisor), None)

    def product(
        self, rows: Rows, weight: np.ndarray, sample: np.ndarray, name: str
    ) -> tuple[str, np.ndarray]:
        """Multiply R rows by `weight.T`, a constant `[N, K]`: the product `[R, N]`.

        And what it lacks of the exact one in the mean of `sample`, rows like those, float32 `[s,
        K]`: `[N]`.
        """
        lost = np.zeros(len(weight), np.float32)
        return (
            self._graph.op("MatMul", rows.values, self._graph.constant(weight.T, name=name)),
            lost,
        )


class Int8(Float32):
    """Linear maps with int8 weights and rows rounded to a byte."""

    def table(self, weight: np.ndarray, ids: str) -> str:
        """See `Float32.table`; each row is int8 with a scale of its own, which is 0 for -1.

        Rows that the checkpoint itself holds in int8 stay there.
        """
        graph, stored = self._graph, self._stored
        if stored is not None and stored.scale is not None:
            scale = stored.scale
            rows = graph.constant_elsewhere(stored.rows, EMBEDDING, CHECKPOINT, stored.place)
        else:
            codes, scale = int8_rows(weight)
            rows = graph.constant(codes, np.int8, name=EMBEDDING)
        scales = graph.constant(
            np.concatenate([scale, np.zeros_like(scale[:1])]), name="embedding_scale"
        )
        found = graph.op("Cast", graph.op("Gather", rows, ids), to=1)
        return graph.op("Mul", found, graph.op("Gather", scales, ids))

    def matrix(self, weight: np.ndarray, name: str) -> str:
        """See `Float32.matrix`; it is kept as float16."""
        return self._graph.op("Cast", self._graph.constant(weight, np.float16, name=name), to=1)

    def rows(self, x: str, divisor: str | None = None, *, positive: bool = False) -> Rows:
        """See `Float32.rows`; `positive`: no value is below zero."""
        graph = self._graph
        size = x if positive else graph.op("Abs", x)
        largest = graph.op("ReduceMax", size, graph.constant([-1], np.int64), keepdims=1)
        steps = 255 if positive else 127
        step = graph.op(
            "Mul", graph.op("Max", largest, graph.constant(_MIN_DIVISOR)), graph.constant(1 / steps)
        )
        zero = graph.constant(0 if positive else 128, np.uint8)
        values = graph.op("QuantizeLinear", graph.op("Div", x, step), graph.constant(1.0), zero)
        return Rows(values, step if divisor is None else graph.op("Div", step, divisor), zero)

    def product(
        self, rows: Rows, weight: np.ndarray, sample: np.ndarray, name: str
    ) -> tuple[str, np.ndarray]:
        """See `Float32.product`; each column of `weight.T` has a scale of its own."""
        graph = self._graph
        codes, scale = round_weight(weight, sample)
        sums = graph.op(
            "MatMulIntegerToFloat",
            rows.values,
            graph.constant(codes.T, np.int8, name=name),
            graph.constant(1.0),
            graph.constant(scale, name=f"{name}_scale"),
            rows.zero,
            domain=CONTRIB,
        )
        lost = (weight - codes * scale[:, None]) @ sample.mean(axis=0)
        return graph.op("Mul", sums, rows.scale or graph.constant(1.0)), lost


def round_weight(weight: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes `[N, K]` and scales `[N]` of a weight `[N, K]` that is multiplied by rows like these
    `[R, K]`.

    The columns are rounded one by one; what one loses, those behind it make up for as well as the
    rows' correlations allow (Frantar et al., 2022, arXiv 2210.17323, without its blocks).
    """
    scale = np.maximum(np.abs(weight).max(axis=1) / LARGEST_WEIGHT, _MIN_DIVISOR).astype(np.float32)
    left, codes = weight.astype(np.float64), np.empty(weight.shape, np.int8)
    moments = rows.astype(np.float64).T @ rows / len(rows)
    moments[np.diag_indices_from(moments)] += (
        _DAMPING_SHARE * np.trace(moments) / len(moments) + _MIN_DIVISOR
    )
    upper = np.linalg.cholesky(np.linalg.inv(moments)).T
    for column in range(weight.shape[1]):
        codes[:, column] = np.clip(
            np.rint(left[:, column] / scale), -LARGEST_WEIGHT, LARGEST_WEIGHT
        )
        lost = (left[:, column] - codes[:, column] * scale) / upper[column, column]
        left[:, column:] -= np.outer(lost, upper[column, column:])
    return codes, scale


def int8_rows(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a table `[V, D]` to codes int8 `[V, D]` of scales float32 `[V, 1]`.

    A scale is the largest value of a row over 127.
    """
    largest = np.abs(weight).max(axis=1, keepdims=True).astype(np.float32)
    scale = np.maximum(largest / np.float32(127), np.float32(_MIN_DIVISOR))
    return np.rint(weight / scale).astype(np.int8), scale
