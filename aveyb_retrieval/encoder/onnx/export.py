"""Write the ONNX form of a model folder, in float32 or with int8 weights.

A thin writer of ONNX graphs, and the linear maps in them: in float32, or with int8 weights and rows
of bytes.

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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from aveyb_retrieval.encoder.folders import file_digest, model_folder
from aveyb_retrieval.encoder.network.checkpoints import int8_table
from aveyb_retrieval.encoder.network.split_encoder import InferenceModel, SplitEncoder
from aveyb_retrieval.encoder.onnx.model import (
    CHECKPOINT,
    EMBEDDING,
    FILES,
    METADATA,
    WEIGHTS,
    EmbeddingTable,
    OnnxSettings,
)
from aveyb_retrieval.errors import ConfigError, ModelError, extra_for
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.encoder.network.layers import AveyBLayer

OPSET = 18  # of ai.onnx; ONNX Runtime 1.14 and newer read it
IR_VERSION = 8
CONTRIB = "com.microsoft"  # ONNX Runtime's own operators, of which the int8 form uses one
LARGEST_WEIGHT = 64
_SPLITS = 16
_SMALLEST = 1e-30  # a row of zeros is divided by it
_MIN_NORM = 1e-12
_DAMPING = 0.01  # of the mean square of an input


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
            codes, scale = (part.numpy() for part in int8_table(torch.from_numpy(weight)))
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
            "Mul", graph.op("Max", largest, graph.constant(_SMALLEST)), graph.constant(1 / steps)
        )
        zero = graph.constant(0 if positive else 128, np.uint8)
        values = graph.op("QuantizeLinear", graph.op("Div", x, step), graph.constant(1.0), zero)
        return Rows(values, step if divisor is None else graph.op("Div", step, divisor), zero)

    def product(
        self, rows: Rows, weight: np.ndarray, sample: np.ndarray, name: str
    ) -> tuple[str, np.ndarray]:
        """See `Float32.product`; each column of `weight.T` has a scale of its own."""
        graph = self._graph
        codes, scale = _rounded(weight, sample)
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


def _rounded(weight: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes `[N, K]` and scales `[N]` of a weight `[N, K]` that is multiplied by rows like these
    `[R, K]`.

    The columns are rounded one by one; what one loses, those behind it make up for as well as the
    rows' correlations allow (Frantar et al., 2022, arXiv 2210.17323, without its blocks).
    """
    scale = np.maximum(np.abs(weight).max(axis=1) / LARGEST_WEIGHT, _SMALLEST).astype(np.float32)
    left, codes = weight.astype(np.float64), np.empty(weight.shape, np.int8)
    moments = rows.astype(np.float64).T @ rows / len(rows)
    moments[np.diag_indices_from(moments)] += (
        _DAMPING * np.trace(moments) / len(moments) + _SMALLEST
    )
    upper = np.linalg.cholesky(np.linalg.inv(moments)).T
    for column in range(weight.shape[1]):
        codes[:, column] = np.clip(
            np.rint(left[:, column] / scale), -LARGEST_WEIGHT, LARGEST_WEIGHT
        )
        lost = (left[:, column] - codes[:, column] * scale) / upper[column, column]
        left[:, column:] -= np.outer(lost, upper[column, column:])
    return codes, scale


class LayerRows(NamedTuple):
    """The rows that one layer's maps read, float32: the enricher `[R, D]`, the fuser `[R, m]` and
    `[R, b]`.
    """

    normed: np.ndarray  # over their root mean square
    context: np.ndarray
    bypass: np.ndarray


@torch.inference_mode()
def layer_rows(model: SplitEncoder) -> Iterator[LayerRows]:
    """Yield what each layer reads of splits of random tokens, the same every time: a text would
    favour its kind.
    """
    config = model.config
    ids = torch.randint(
        config.vocab_size, (_SPLITS, config.split_size), generator=torch.Generator().manual_seed(0)
    )
    x = model.ranker.compress_alone(model.embed.weight[ids])
    for layer in model.layers:
        mixed, gate, bypass = layer.enriched(x)  # type: ignore[operator]  # a ModuleList holds modules
        context = layer.mix(mixed, gate, None)  # type: ignore[operator]
        normed = torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=config.norm_eps)
        yield LayerRows(*(part.flatten(0, 1).float().numpy() for part in (normed, context, bypass)))
        x = layer(x, None)


class Network:
    """Writes the network of one model into a graph.

    Shapes: `[n, T]` splits of T tokens, of which each retrieves j others; R = n T rows.
    """

    def __init__(self, model: SplitEncoder, graph: Graph, linear: Float32) -> None:
        self._model, self._graph, self._linear = model, graph, linear
        self._config: AveyBConfig = model.config
        self._masked = self._config.tail == "masked"
        self._batch = self._width = self._mask = ""

    def write(self) -> str:
        """Write everything from the inputs `ids`, `retrieved` and `weights` to the vectors `[n, T,
        D]`.
        """
        graph, config = self._graph, self._config
        x = self._start()
        for number, (layer, rows) in enumerate(
            zip(self._model.layers, layer_rows(self._model), strict=True)
        ):
            x = self._layer(x, layer, rows, f"layer{number}")  # type: ignore[arg-type]  # a ModuleList
        if self._model.ln_f is not None:
            weight = graph.constant(_array(self._model.ln_f.weight), name="final_norm")
            x = graph.op("Mul", graph.op("Div", x, self._root_mean_square(x)), weight)
        return graph.op("Identity", self._splits(x, config.hidden_size), name="vectors")

    # -- embedding and compressor
    # ----------------------------------------------------------------------------------

    def _start(self) -> str:
        """The layers' input, rows `[R, D]`."""
        graph, config = self._graph, self._config
        table = _array(self._model.embed.weight)
        current = self._linear.table(table, "ids")
        present = graph.op(
            "Unsqueeze",
            graph.op("GreaterOrEqual", "ids", graph.constant(0, np.int32)),
            self._axis(2),
        )
        self._batch, self._width = (self._size("ids", axis) for axis in (0, 1))
        if not config.num_retrieved:
            x = current
        else:
            weights = graph.op("Unsqueeze", "weights", *self._ints([2, 3]))
            earlier = graph.op("Mul", self._linear.table(table, "retrieved"), weights)
            shape = graph.op("Concat", self._batch, *self._ints([-1], [config.hidden_size]), axis=0)
            earlier = graph.op("Reshape", earlier, shape, allowzero=0)
            x = self._compressed(current, graph.op("Concat", earlier, current, axis=1), earlier)
        if self._masked:
            self._mask = graph.op("Cast", present, to=1)
        return graph.op("Reshape", x, graph.constant([-1, config.hidden_size], np.int64))

    def _compressed(self, current: str, joined: str, earlier: str) -> str:
        """`P [w1 X_r1, ..., X] + X`: earlier ones stand for the last blocks of P before the current
        split's.
        """
        graph, size, k = self._graph, self._config.split_size, self._config.num_retrieved
        assert self._model.ranker.down_proj is not None  # there is a compressor
        matrix = self._linear.matrix(_array(self._model.ranker.down_proj), "compressor")
        zero, end = self._ints([0], [k * size])
        first = graph.op("Sub", end, self._size(earlier, 1))
        starts = graph.op("Concat", zero, first, axis=0)
        stops = graph.op("Concat", self._width, graph.op("Add", end, self._width), axis=0)
        block = graph.op("Slice", matrix, starts, stops, graph.constant([0, 1], np.int64))
        # One product: of no earlier splits alone, older versions of ONNX Runtime return noise.
        return graph.op("Add", graph.op("MatMul", block, joined), current)

    # -- layers
    # ----------------------------------------------------------------------------------------------

    def _layer(self, x: str, layer: AveyBLayer, sample: LayerRows, name: str) -> str:
        graph, linear, settings = self._graph, self._linear, layer.settings
        squared = settings.enricher_activation == "relu2"
        enricher, bias = (
            _array(layer.enricher.weight) * _array(layer.norm.weight),
            _array(layer.enricher.bias),
        )
        rows = linear.rows(x, self._root_mean_square(x))
        m, b = settings.mixed_size, settings.bypass_size
        sizes = {"mixed": m, "gate": m, "bypass": b}
        order = ("mixed", "gate", "bypass") if settings.mixed_first else ("bypass", "gate", "mixed")
        parts, start = {}, 0
        for part in order:
            stop = start + sizes[part]
            out, lost = linear.product(rows, enricher[start:stop], sample.normed, f"{name}_{part}")
            out = graph.op(
                "Add", out, graph.constant(bias[start:stop] + lost, name=f"{name}_{part}_bias")
            )
            if squared:
                out = graph.op("Relu", out)
                parts[part] = graph.op("Mul", out, out)
            else:
                half = graph.op("Mul", out, graph.constant(0.5))
                erf = graph.op("Erf", graph.op("Mul", out, graph.constant(0.5**0.5)))
                parts[part] = graph.op("Mul", half, graph.op("Add", erf, graph.constant(1.0)))
            start = stop
        context = self._mixed(parts["mixed"], parts["gate"], layer, name)
        positive = squared and settings.mix_activation == "relu"
        fuser = _array(layer.fuser.weight)
        if settings.fuser_order == "context_bypass":
            columns = {"context": slice(0, m), "bypass": slice(m, None)}
        else:
            columns = {"bypass": slice(0, b), "context": slice(b, None)}
        products, bias = [], _array(layer.fuser.bias)
        for part, values, signless in (
            ("context", context, positive),
            ("bypass", parts["bypass"], squared),
        ):
            weight = fuser[:, columns[part]]
            rows = linear.rows(values, positive=signless)
            out, lost = linear.product(rows, weight, getattr(sample, part), f"{name}_fuse_{part}")
            products.append(out)
            bias = bias + lost
        out = graph.op(
            "Add", graph.op("Add", *products), graph.constant(bias, name=f"{name}_fuser_bias")
        )
        if layer.alpha is not None:
            x = graph.op("Mul", x, graph.constant(_array(layer.alpha), name=f"{name}_alpha"))
        return graph.op("Add", out, x)

    def _mixed(self, mixed: str, gate: str, layer: AveyBLayer, name: str) -> str:
        """Contextualize and gate rows `[R, m]` -> `[R, m]`; what comes out of padding rows is not
        meaningful.
        """
        graph, settings, m = self._graph, layer.settings, layer.settings.mixed_size
        mixed = self._splits(mixed, m)
        if self._mask:
            mixed = graph.op("Mul", mixed, self._mask)
        if layer.kind == "static":
            assert layer.spatial_proj is not None  # only dynamic layers have none
            matrix = self._linear.matrix(_array(layer.spatial_proj), f"{name}_static")
            both = graph.op("Concat", self._width, self._width, axis=0)
            first, axes = (graph.constant(pair, np.int64) for pair in ([0, 0], [0, 1]))
            corner = graph.op(
                "Slice", matrix, first, both, axes
            )  # the upper left one of V, `[T, T]`
            out = graph.op("MatMul", corner, mixed)
        else:
            out = self._dynamic(mixed, layer)
        if layer.mix_bias is not None:
            column = graph.constant(_array(layer.mix_bias)[:, None], name=f"{name}_mix_bias")
            zero = graph.constant([0], np.int64)
            out = graph.op("Add", out, graph.op("Slice", column, zero, self._width, zero))
        if settings.mix_activation == "relu":
            out = graph.op("Relu", out)
        return graph.op("Mul", gate, graph.op("Reshape", out, graph.constant([-1, m], np.int64)))

    def _dynamic(self, mixed: str, layer: AveyBLayer) -> str:
        graph = self._graph
        norm = graph.op("ReduceL2", mixed, self._axis(-1), keepdims=1)
        unit = graph.op("Div", mixed, graph.op("Max", norm, graph.constant(_MIN_NORM)))
        similarity = graph.op("MatMul", unit, graph.op("Transpose", unit, perm=[0, 2, 1]))
        out = graph.op("MatMul", similarity, mixed)
        if layer.settings.similarity_norm == "l1":
            total = graph.op("ReduceL1", similarity, self._axis(-1), keepdims=1)
            return graph.op("Div", out, graph.op("Max", total, graph.constant(_MIN_NORM)))
        total = graph.op("ReduceSum", similarity, self._axis(-1), keepdims=1)
        # a padding row sums to zero: whatever it gives is cut off, but it must be a number
        return graph.op(
            "Div",
            out,
            graph.op("Add", total, graph.constant(max(layer.settings.similarity_eps, 1e-30))),
        )

    # -- shapes
    # ----------------------------------------------------------------------------------------------

    def _root_mean_square(self, x: str) -> str:
        """`sqrt(mean x^2 + eps)` of rows, `[R, 1]`."""
        graph, config = self._graph, self._config
        square = graph.op("ReduceSumSquare", x, self._axis(-1), keepdims=1)
        mean = graph.op("Mul", square, graph.constant(1 / config.hidden_size))
        return graph.op("Sqrt", graph.op("Add", mean, graph.constant(config.norm_eps)))

    def _splits(self, rows: str, size: int) -> str:
        """`[R, size]` -> `[n, T, size]`."""
        shape = self._graph.op("Concat", self._batch, self._width, *self._ints([size]), axis=0)
        return self._graph.op("Reshape", rows, shape)

    def _size(self, name: str, axis: int) -> str:
        return self._graph.op("Shape", name, start=axis, end=axis + 1)

    def _axis(self, axis: int) -> str:
        return self._graph.constant([axis], np.int64)

    def _ints(self, *lists: list[int]) -> list[str]:
        return [self._graph.constant(values, np.int64) for values in lists]


def _array(parameter: object) -> np.ndarray:
    """A parameter as float32."""
    return parameter.detach().float().cpu().numpy()  # type: ignore[attr-defined]


_LINEAR: dict[str, type[Float32]] = {"float32": Float32, "int8": Int8}
_LARGEST = 1 << 31  # bytes of a protobuf message


def export_onnx(model: str | Path | None = None, *, precision: str = "int8") -> Path:
    """Write the ONNX form of a model into its folder, where `Embedder.load` finds it, and return
    the file.

    Args:
        model: as for `Embedder.load`; the folder must be writable.
        precision: "int8", about half a byte to a byte for a weight of float16 or float32 |
            "float32".
    """
    if precision not in _LINEAR:
        raise ConfigError(
            f"precision is {precision!r}; an ONNX form has one of {', '.join(_LINEAR)}"
        )
    folder = model_folder(model)
    encoder = InferenceModel.load(folder)
    path, weights = folder / FILES[precision], folder / WEIGHTS
    content = onnx_bytes(
        encoder, precision, file_digest(weights), str(folder), EmbeddingTable(weights)
    )
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, content)
    return path


def onnx_bytes(
    model: SplitEncoder, precision: str, weights: str, name: str, table: EmbeddingTable
) -> bytes:
    """Return the content of a model's ONNX file.

    Its inputs are a group of n splits: ids: int32 `[n, T]`, tokens of each split, T at most S; -1
        where there is none. retrieved: int32 `[n, j, S]`, the ids of the j splits that each
        retrieves, in the compressor's order, j from 0
            to k; -1 where there is no token.
        weights: float32 `[n, j]`, theirs; 0 where there is none.
    Models that retrieve nothing lack the last two. The output `vectors` is float32 `[n, T, D]`;
    rows without a token are not meaningful.

    Args:
        model: the encoder; `name` stands for it in messages.
        precision: "float32" or "int8".
        weights: SHA-256 of its checkpoint.
        table: its checkpoint's embeddings: rows in int8 are read from there, and take no place in
            the int8 form.
    """
    config = model.config
    settings = OnnxSettings(
        precision=precision,
        weights=weights,
        **{
            field: getattr(config, field)
            for field in OnnxSettings.__struct_fields__
            if hasattr(config, field)
        },
    )
    with extra_for("exporting to ONNX"):
        graph = Graph()
        Network(model, graph, _LINEAR[precision](graph, table)).write()
        inputs: list[tuple[str, str, list[int | str]]] = [("ids", "INT32", ["n", "T"])]
        if config.num_retrieved:
            inputs += [
                ("retrieved", "INT32", ["n", "j", config.split_size]),
                ("weights", "FLOAT", ["n", "j"]),
            ]
        output = ("vectors", "FLOAT", ["n", "T", config.hidden_size])
        if graph.constant_bytes >= _LARGEST:
            raise ModelError(
                f"{name}: {graph.constant_bytes:,} bytes of weights; one ONNX file holds less than"
                " 2 GiB"
            )
        return graph.model(inputs, output, {METADATA: settings.to_json()})
