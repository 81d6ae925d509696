"""Write the ONNX form of a model folder, in float32 or with int8 weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aveyb_retrieval.encoder.folders import file_digest, model_folder
from aveyb_retrieval.encoder.network.split_encoder import InferenceModel, SplitEncoder
from aveyb_retrieval.encoder.onnx.file import METADATA, OnnxSettings
from aveyb_retrieval.encoder.onnx.graph import Float32, Graph, Int8
from aveyb_retrieval.encoder.onnx.model import FILES, WEIGHTS
from aveyb_retrieval.encoder.onnx.network import Network
from aveyb_retrieval.encoder.onnx.ranker import EmbeddingTable
from aveyb_retrieval.errors import ConfigError, ModelError, extra_for

if TYPE_CHECKING:
    from pathlib import Path

_LINEAR: dict[str, type[Float32]] = {"float32": Float32, "int8": Int8}
_LARGEST = 1 << 31  # bytes of a protobuf message


def export_onnx(model: str | Path | None = None, *, precision: str = "int8") -> Path:
    """Write the ONNX form of a model into its folder, where `Embedder.load` finds it.

    Args:
        model: as for `Embedder.load`; the folder must be writable.
        precision: "int8", about half a byte to a byte for a weight of float16 or float32 | "float32".

    Returns:
        The file.

    Raises:
        ConfigError: an unknown precision.
        ModelError: there is no model, it has a funnel, or it is too large for one file.
        OptionalDependencyError: the package onnx is not installed.
    """
    if precision not in _LINEAR:
        raise ConfigError(f"precision is {precision!r}; an ONNX form has one of {', '.join(_LINEAR)}")
    folder = model_folder(model)
    encoder = InferenceModel.load(folder)
    weights = folder / WEIGHTS
    table = EmbeddingTable(weights, encoder.config.vocab_size, encoder.config.hidden_size)
    content = onnx_bytes(encoder, precision, file_digest(weights), str(folder), table)
    path = folder / FILES[precision]
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".partial")
    unfinished.write_bytes(content)
    unfinished.replace(path)
    return path


def onnx_bytes(model: SplitEncoder, precision: str, weights: str, name: str, table: EmbeddingTable) -> bytes:
    """Return the content of a model's ONNX file.

    Its inputs are a group of n splits:
        ids: int32 `[n, T]`, tokens of each split, T at most S; -1 where there is none.
        retrieved: int32 `[n, j, S]`, the ids of the j splits that each retrieves, in the compressor's order, j from 0
            to k (without a compressor always k); -1 where there is no token.
        weights: float32 `[n, j]`, theirs; 0 where there is none.
    Models that retrieve nothing lack the last two. The output `vectors` is float32 `[n, T, D]`; rows without a token
    are not meaningful.

    Args:
        model: the encoder.
        precision: "float32" or "int8".
        weights: SHA-256 of its checkpoint.
        name: for messages.
        table: its checkpoint's embeddings: rows in int8 are read from there, and take no place in the int8 form.

    Raises:
        ModelError: it has a funnel, or is too large for one file.
        OptionalDependencyError: the package onnx is not installed.
    """
    config = model.config
    if config.funnel_after is not None:
        raise ModelError(
            f"{name}: funnel_after is {config.funnel_after}; the ONNX form has no funnel, so run this model in torch"
        )
    settings = OnnxSettings(
        precision=precision,
        weights=weights,
        **{field: getattr(config, field) for field in OnnxSettings.__struct_fields__ if hasattr(config, field)},
    )
    with extra_for("exporting to ONNX"):
        graph = Graph()
        Network(model, graph, _LINEAR[precision](graph, table)).write()
        inputs: list[tuple[str, str, list[int | str]]] = [("ids", "INT32", ["n", "T"])]
        if config.num_retrieved:
            inputs += [("retrieved", "INT32", ["n", "j", config.split_size]), ("weights", "FLOAT", ["n", "j"])]
        output = ("vectors", "FLOAT", ["n", "T", config.hidden_size])
        if graph.constant_bytes >= _LARGEST:
            raise ModelError(f"{name}: {graph.constant_bytes:,} bytes of weights; one ONNX file holds less than 2 GiB")
        return graph.model(inputs, output, {METADATA: settings.to_json()})
