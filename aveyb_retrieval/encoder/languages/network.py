"""BERT's network as an ONNX graph with int8 weights, and the same in NumPy for what it rounds by.

Each matrix is rounded to int8 with a scale for each of its rows, by the inputs that random tokens
give it (`graph.round_weight`); its mean error goes into the bias. Attention stays in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.onnx.graph import CONTRIB, Graph, Int8

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.languages.weights import BertWeights
    from aveyb_retrieval.encoder.onnx.graph import Rows

_SAMPLE = (16, 64)  # texts and tokens of what rounding is fitted to
_QUERY, _KEY, _VALUE = "q", "k", "v"


def onnx_model(weights: BertWeights) -> bytes:
    """Return the ONNX file's content.

    Inputs `input_ids` and `attention_mask`, int64 `[B, T]`; the output `last_hidden_state`,
    float32 `[B, T, D]`.
    """
    graph = Graph()
    Network(weights, graph).write()
    inputs = [(name, "INT64", ["B", "T"]) for name in ("input_ids", "attention_mask")]
    output = ("last_hidden_state", "FLOAT", ["B", "T", weights.sizes.hidden])
    return graph.model(inputs, output, {})


class Network:
    """Writes the network of one BERT into a graph; R = B T rows."""

    def __init__(self, weights: BertWeights, graph: Graph) -> None:
        self._weights, self._graph, self._linear = weights, graph, Int8(graph)

    def write(self) -> None:
        """Write everything from the inputs to `last_hidden_state`."""
        graph, sizes = self._graph, self._weights.sizes
        tensors = self._weights.tensors
        words = self._linear.table(tensors["emb.word"].reshape(-1, sizes.hidden), "input_ids")
        length = graph.op("Shape", "input_ids", start=1, end=2)
        table = graph.constant(position_table(self._weights), name="positions")
        zero = graph.constant([0], np.int64)
        positions = graph.op("Slice", table, zero, length, zero)
        rows = self._norm(graph.op("Add", words, positions), "emb.ln")
        self._shape = graph.op("Shape", rows)
        self._mask = graph.op("Cast", "attention_mask", to=6)
        flat = graph.constant([-1, sizes.hidden], np.int64)
        x = graph.op("Reshape", rows, flat)
        state = embedded(self._weights)
        for number in range(sizes.layers):
            x, state = self._layer(x, state, f"l{number}")
        graph.op("Reshape", x, self._shape, name="last_hidden_state")

    def _layer(self, x: str, state: np.ndarray, name: str) -> tuple[str, np.ndarray]:
        """Write a layer; return its output rows `[R, D]` and those of the sample."""
        graph, sizes = self._graph, self._weights.sizes
        flat = graph.constant([-1, sizes.hidden], np.int64)
        sample = state.reshape(-1, sizes.hidden)
        rows = self._linear.rows(x)
        parts = [
            graph.op("Reshape", self._product(rows, f"{name}.{part}", sample), self._shape)
            for part in (_QUERY, _KEY, _VALUE)
        ]
        mixed = graph.op(
            "MultiHeadAttention", *parts, "", self._mask, domain=CONTRIB, num_heads=sizes.heads
        )
        context = graph.op("Reshape", mixed, flat)
        attended = attention(self._weights, state, name)
        inputs = attended.reshape(-1, sizes.hidden)
        out = self._product(self._linear.rows(context), f"{name}.ao", inputs)
        x = self._norm(graph.op("Add", x, out), f"{name}.aln")
        state = normed(
            self._weights, state + linear(self._weights, attended, f"{name}.ao"), f"{name}.aln"
        )
        inputs = state.reshape(-1, sizes.hidden)
        inner = self._product(self._linear.rows(x), f"{name}.fi", inputs)
        inner = graph.op("Gelu", inner, domain=CONTRIB)
        activated = gelu(linear(self._weights, state, f"{name}.fi"))
        inputs = activated.reshape(-1, sizes.inner)
        out = self._product(self._linear.rows(inner), f"{name}.fo", inputs)
        state = normed(
            self._weights, state + linear(self._weights, activated, f"{name}.fo"), f"{name}.oln"
        )
        return self._norm(graph.op("Add", x, out), f"{name}.oln"), state

    def _product(self, rows: Rows, name: str, sample: np.ndarray) -> str:
        weight, bias = self._weights.matrix(name), self._weights.tensors[f"{name}.b"]
        out, lost = self._linear.product(rows, weight, sample, name)
        return self._graph.op("Add", out, self._graph.constant(bias + lost, name=f"{name}_bias"))

    def _norm(self, x: str, name: str) -> str:
        tensors = self._weights.tensors
        scale = self._graph.constant(tensors[f"{name}.w"], name=f"{name}_scale")
        shift = self._graph.constant(tensors[f"{name}.b"], name=f"{name}_shift")
        epsilon = self._weights.sizes.epsilon
        return self._graph.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=epsilon)


def position_table(weights: BertWeights) -> np.ndarray:
    """Return float32 `[positions, D]`, with the embedding of the one token type."""
    hidden = weights.sizes.hidden
    types = weights.tensors["emb.type"].reshape(-1, hidden)
    return weights.tensors["emb.pos"].reshape(-1, hidden) + types[0]


def embedded(weights: BertWeights) -> np.ndarray:
    """Return the first layer's input `[texts, tokens, D]` for random tokens, the same every time: a
    text would favour its language.
    """
    sizes = weights.sizes
    ids = np.random.default_rng(0).integers(sizes.words, size=_SAMPLE)
    words = weights.tensors["emb.word"].reshape(-1, sizes.hidden)[ids]
    return normed(weights, words + position_table(weights)[: _SAMPLE[1]], "emb.ln")


def linear(weights: BertWeights, x: np.ndarray, name: str) -> np.ndarray:
    """Return `x W' + b`."""
    return x @ weights.matrix(name).T + weights.tensors[f"{name}.b"]


def normed(weights: BertWeights, x: np.ndarray, name: str) -> np.ndarray:
    """Return the layer norm of the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + weights.sizes.epsilon)
    return centred / deviation * weights.tensors[f"{name}.w"] + weights.tensors[f"{name}.b"]


def attention(weights: BertWeights, x: np.ndarray, name: str) -> np.ndarray:
    """Return the heads' values `[texts, tokens, D]`, before the output matrix."""
    texts, tokens, hidden = x.shape
    heads = weights.sizes.heads
    size = hidden // heads

    def split(part: str) -> np.ndarray:
        rows = linear(weights, x, f"{name}.{part}")
        return rows.reshape(texts, tokens, heads, size).transpose(0, 2, 1, 3)

    scores = split(_QUERY) @ split(_KEY).transpose(0, 1, 3, 2) / np.float32(np.sqrt(size))
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return (shares @ split(_VALUE)).transpose(0, 2, 1, 3).reshape(texts, tokens, hidden)


def gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU in its tanh form, which is close enough to fit rounding to."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))
