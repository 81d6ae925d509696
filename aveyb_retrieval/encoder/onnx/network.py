"""The encoder's network as an ONNX graph: embedding, compressor, layers and final norm on a group of splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.onnx.means import layer_means

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.encoder.network.layers import AveyBLayer
    from aveyb_retrieval.encoder.network.split_encoder import SplitEncoder
    from aveyb_retrieval.encoder.onnx.graph import Float32, Graph
    from aveyb_retrieval.encoder.onnx.means import Means

_MIN_NORM = 1e-12
_LOWEST = -3e38  # stands for minus infinity in a softmax


class Network:
    """Writes the network of one model into a graph.

    Shapes: `[n, T]` splits of T tokens, of which each retrieves j others; R = n T rows, or with no compressor
    n (j S + T).
    """

    def __init__(self, model: SplitEncoder, graph: Graph, linear: Float32) -> None:
        self._model, self._graph, self._linear = model, graph, linear
        self._config: AveyBConfig = model.config
        self._masked = self._config.tail == "masked"
        self._batch = self._width = self._mask = ""

    def write(self) -> str:
        """Write everything from the inputs `ids`, `retrieved` and `weights` to the vectors `[n, T, D]`."""
        graph, config = self._graph, self._config
        means = layer_means(self._model)
        x = self._start()
        for number, layer in enumerate(self._model.layers):
            x = self._layer(x, layer, means[number], f"layer{number}")  # type: ignore[arg-type]  # a ModuleList
        if self._model.ln_f is not None:
            weight = graph.constant(_array(self._model.ln_f.weight), name="final_norm")
            x = graph.op("Mul", graph.op("Div", x, self._root_mean_square(x)), weight)
        before = self._model.ranker.before
        x = self._splits(x, config.hidden_size)
        if before:
            x = graph.op("Slice", x, *self._ints([before], [1 << 30], [1]))
        return graph.op("Identity", x, name="vectors")

    # -- embedding and compressor ----------------------------------------------------------------------------------

    def _start(self) -> str:
        """The layers' input, rows `[R, D]`."""
        graph, config = self._graph, self._config
        table = _array(self._model.embed.weight)
        current = self._linear.table(table, "ids")
        present = graph.op("Unsqueeze", graph.op("GreaterOrEqual", "ids", graph.constant(0, np.int32)), self._axis(2))
        self._batch, self._width = (self._size("ids", axis) for axis in (0, 1))
        if not config.num_retrieved:
            x = current
        else:
            earlier = graph.op("Mul", self._linear.table(table, "retrieved"), self._unsqueezed("weights", 2, 3))
            shape = graph.op("Concat", self._batch, *self._ints([-1], [config.hidden_size]), axis=0)
            earlier = graph.op("Reshape", earlier, shape, allowzero=0)
            x = graph.op("Concat", earlier, current, axis=1)
            if config.compressor == "linear":
                x = self._compressed(current, x, earlier)
        if config.compressor != "linear" and config.num_retrieved:
            before = self._model.ranker.before
            pads = graph.constant([0, before, 0, 0, 0, 0], np.int64)
            present = graph.op("Cast", present, to=1)
            present = graph.op("Pad", present, pads, graph.constant(1.0))
            self._width = graph.op("Add", self._width, graph.constant([before], np.int64))
            self._mask = present
        elif self._masked:
            self._mask = graph.op("Cast", present, to=1)
        return graph.op("Reshape", x, graph.constant([-1, config.hidden_size], np.int64))

    def _compressed(self, current: str, joined: str, earlier: str) -> str:
        """`P [w1 X_r1, ..., X] (+ X)`: earlier ones stand for the last blocks of P before the current split's."""
        graph, size, k = self._graph, self._config.split_size, self._config.num_retrieved
        assert self._model.ranker.down_proj is not None  # there is a compressor
        matrix = self._linear.matrix(_array(self._model.ranker.down_proj), "compressor")
        zero, end = self._ints([0], [k * size])
        first = graph.op("Sub", end, self._size(earlier, 1))
        starts = graph.op("Concat", zero, first, axis=0)
        stops = graph.op("Concat", self._width, graph.op("Add", end, self._width), axis=0)
        block = graph.op("Slice", matrix, starts, stops, graph.constant([0, 1], np.int64))
        # One product: of no earlier splits alone, older versions of ONNX Runtime return noise.
        out = graph.op("MatMul", block, joined)
        return graph.op("Add", out, current) if self._config.compressor_residual else out

    # -- layers ----------------------------------------------------------------------------------------------------

    def _layer(self, x: str, layer: AveyBLayer, means: Means, name: str) -> str:
        graph, linear, settings = self._graph, self._linear, layer.settings
        squared = settings.enricher_activation == "relu2"
        enricher, bias = _array(layer.enricher.weight) * _array(layer.norm.weight), _array(layer.enricher.bias)
        bias = bias + linear.lost(enricher, means.normed)
        rows = linear.rows(x, self._root_mean_square(x))
        m, b = settings.mixed_size, settings.bypass_size
        sizes = {"mixed": m, "gate": m, "bypass": b}
        order = ("mixed", "gate", "bypass") if settings.mixed_first else ("bypass", "gate", "mixed")
        parts, start = {}, 0
        for part in order:
            stop = start + sizes[part]
            out = linear.product(rows, enricher[start:stop], f"{name}_{part}")
            out = graph.op("Add", out, graph.constant(bias[start:stop], name=f"{name}_{part}_bias"))
            parts[part] = self._activated(out, squared)
            start = stop
        context = self._mixed(parts["mixed"], parts["gate"], layer, name)
        positive = squared and settings.mix_activation == "relu"
        fuser = _array(layer.fuser.weight)
        if settings.fuser_order == "context_bypass":
            columns = {"context": slice(0, m), "bypass": slice(m, None)}
        else:
            columns = {"bypass": slice(0, b), "context": slice(b, None)}
        inputs = {
            "context": linear.rows(context, positive=positive),
            "bypass": linear.rows(parts["bypass"], positive=squared),
        }
        products, bias = [], _array(layer.fuser.bias)
        for part, rows in inputs.items():
            weight = fuser[:, columns[part]]
            products.append(linear.product(rows, weight, f"{name}_fuse_{part}"))
            bias = bias + linear.lost(weight, getattr(means, part))
        out = graph.op("Add", graph.op("Add", *products), graph.constant(bias, name=f"{name}_fuser_bias"))
        if layer.alpha is not None:
            x = graph.op("Mul", x, graph.constant(_array(layer.alpha), name=f"{name}_alpha"))
        return graph.op("Add", out, x)

    def _activated(self, x: str, squared: bool) -> str:
        graph = self._graph
        if squared:
            positive = graph.op("Relu", x)
            return graph.op("Mul", positive, positive)
        half = graph.op("Mul", x, graph.constant(0.5))
        erf = graph.op("Erf", graph.op("Mul", x, graph.constant(0.5**0.5)))
        return graph.op("Mul", half, graph.op("Add", erf, graph.constant(1.0)))

    def _mixed(self, mixed: str, gate: str, layer: AveyBLayer, name: str) -> str:
        """Contextualize and gate rows `[R, m]` -> `[R, m]`; what comes out of padding rows is not meaningful."""
        graph, settings, m = self._graph, layer.settings, layer.settings.mixed_size
        mixed = self._splits(mixed, m)
        if self._mask and self._masked:
            mixed = graph.op("Mul", mixed, self._mask)
        if layer.kind == "static":
            out = graph.op("MatMul", self._corner(layer, name), mixed)
        elif layer.kind == "coupled":
            square = graph.op("ReduceSumSquare", mixed, self._axis(-1), keepdims=1)
            norm = graph.op("Sqrt", graph.op("Add", square, graph.constant(settings.similarity_eps)))
            shares = graph.op("Mul", self._similarity(mixed, norm), self._corner(layer, name))
            out = graph.op("MatMul", shares, mixed)
        else:
            norm = graph.op("ReduceL2", mixed, self._axis(-1), keepdims=1)
            norm = graph.op("Max", norm, graph.constant(_MIN_NORM))
            out = self._dynamic(self._similarity(mixed, norm), mixed, layer)
        if layer.mix_bias is not None:
            column = graph.constant(_array(layer.mix_bias)[:, None], name=f"{name}_mix_bias")
            zero = graph.constant([0], np.int64)
            out = graph.op("Add", out, graph.op("Slice", column, zero, self._width, zero))
        if settings.mix_activation == "relu":
            out = graph.op("Relu", out)
        return graph.op("Mul", gate, graph.op("Reshape", out, graph.constant([-1, m], np.int64)))

    def _similarity(self, mixed: str, norm: str) -> str:
        unit = self._graph.op("Div", mixed, norm)
        return self._graph.op("MatMul", unit, self._graph.op("Transpose", unit, perm=[0, 2, 1]))

    def _dynamic(self, similarity: str, mixed: str, layer: AveyBLayer) -> str:
        graph, settings = self._graph, layer.settings
        kind, eps = settings.similarity_norm, settings.similarity_eps
        if kind in ("l1", "sum"):
            out = graph.op("MatMul", similarity, mixed)
            if kind == "l1":
                total = graph.op("ReduceL1", similarity, self._axis(-1), keepdims=1)
                return graph.op("Div", out, graph.op("Max", total, graph.constant(_MIN_NORM)))
            total = graph.op("ReduceSum", similarity, self._axis(-1), keepdims=1)
            # a padding row sums to zero: whatever it gives is cut off, but it must be a number
            return graph.op("Div", out, graph.op("Add", total, graph.constant(max(eps, 1e-30))))
        if kind == "rms":
            total = graph.op("ReduceSumSquare", similarity, self._axis(-1), keepdims=1)
            mean = graph.op("Max", graph.op("Div", total, self._count()), graph.constant(_MIN_NORM**2))
            similarity = graph.op("Div", similarity, graph.op("Add", graph.op("Sqrt", mean), graph.constant(eps)))
        elif kind != "none":
            if kind == "scaled_softmax":
                similarity = graph.op("Div", similarity, graph.constant(settings.mixed_size**0.5))
            if self._mask and self._masked:
                present = graph.op("Cast", graph.op("Transpose", self._mask, perm=[0, 2, 1]), to=9)
                similarity = graph.op("Where", present, similarity, graph.constant(_LOWEST))
            similarity = graph.op("Softmax", similarity, axis=-1)
        return graph.op("MatMul", similarity, mixed)

    def _count(self) -> str:
        """Tokens of each split, float `[n, 1, 1]`."""
        graph = self._graph
        if self._mask and self._masked:
            return graph.op("ReduceSum", self._mask, self._axis(1), keepdims=1)
        return graph.op("Cast", self._width, to=1)

    def _corner(self, layer: AveyBLayer, name: str) -> str:
        """The upper left corner of V, `[T, T]`."""
        graph = self._graph
        assert layer.spatial_proj is not None  # only dynamic layers have none
        matrix = self._linear.matrix(_array(layer.spatial_proj), f"{name}_static")
        both = graph.op("Concat", self._width, self._width, axis=0)
        return graph.op("Slice", matrix, graph.constant([0, 0], np.int64), both, graph.constant([0, 1], np.int64))

    # -- shapes ----------------------------------------------------------------------------------------------------

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

    def _unsqueezed(self, name: str, *axes: int) -> str:
        return self._graph.op("Unsqueeze", name, self._graph.constant(list(axes), np.int64))

    def _ints(self, *lists: list[int]) -> list[str]:
        return [self._graph.constant(values, np.int64) for values in lists]


def _array(parameter: object) -> np.ndarray:
    """A parameter as float32."""
    array: np.ndarray = parameter.detach().float().cpu().numpy()  # type: ignore[attr-defined]
    return array
