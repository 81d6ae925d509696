"""Write the ONNX form of a model folder, in float32 or with int8 weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from aveyb_retrieval.encoder.model_folders import file_digest, model_folder
from aveyb_retrieval.encoder.network.split_encoder import InferenceModel, SplitEncoder
from aveyb_retrieval.encoder.onnx.graph import Float32, Graph, Int8
from aveyb_retrieval.encoder.onnx.model import (
    FILES,
    METADATA,
    WEIGHTS,
    EmbeddingTable,
    FormMetadata,
)
from aveyb_retrieval.errors import ConfigError, ModelError, extra_for
from aveyb_retrieval.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.encoder.network.layers import AveyBLayer
    from aveyb_retrieval.encoder.settings import EncoderSettings

_SPLITS = 16
_MIN_NORM = 1e-12


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
        bypass, gate, mixed = layer.enriched(x)  # type: ignore[operator]  # a ModuleList holds modules
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
        self._config: EncoderSettings = model.config
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

    # -- embedding and compressor -----------------------------------------------------------------

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

    # -- layers -----------------------------------------------------------------------------------

    def _layer(self, x: str, layer: AveyBLayer, sample: LayerRows, name: str) -> str:
        graph, linear, settings = self._graph, self._linear, layer.settings
        squared = settings.enricher_activation == "relu2"
        enricher, bias = (
            _array(layer.enricher.weight) * _array(layer.norm.weight),
            _array(layer.enricher.bias),
        )
        rows = linear.rows(x, self._root_mean_square(x))
        m, b = settings.mixed_size, settings.bypass_size
        parts, start = {}, 0
        for part, size in (("bypass", b), ("gate", m), ("mixed", m)):
            stop = start + size
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
            # the upper left one of V, `[T, T]`
            corner = graph.op("Slice", matrix, first, both, axes)
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

    # -- shapes -----------------------------------------------------------------------------------

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
_MAX_PROTOBUF_BYTES = 1 << 31  # bytes of a protobuf message


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
    model: InferenceModel, precision: str, weights: str, name: str, table: EmbeddingTable
) -> bytes:
    """Return the content of a model's ONNX file.

    Its inputs are a group of n splits:

        ids: int32 `[n, T]`, tokens of each split, T at most S; -1 where there is none.
        retrieved: int32 `[n, j, S]`, the ids of the j splits that each retrieves, in the
            compressor's order, j from 0 to k; -1 where there is no token.
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
    config: EncoderSettings = model.config
    form = FormMetadata(precision=precision, weights=weights, settings=config)
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
        if graph.constant_bytes >= _MAX_PROTOBUF_BYTES:
            raise ModelError(
                f"{name}: {graph.constant_bytes:,} bytes of weights; one ONNX file holds less than"
                " 2 GiB"
            )
        return graph.model(inputs, output, {METADATA: form.to_json()})
