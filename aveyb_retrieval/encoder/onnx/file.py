"""Read an ONNX file without trusting it: what it holds is checked before ONNX Runtime sees it.

The file must be a whole one, made by our export: of the operators that it uses, without functions, subgraphs or data in
other files (but the embeddings that its checkpoint holds in int8), and no larger than a form of its weights can be. A
few lines read protobuf's wire format, so that the package onnx is needed by the export alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import msgspec

from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPERATORS = frozenset(
    [
        "Abs",
        "Add",
        "Cast",
        "Concat",
        "Div",
        "Erf",
        "Gather",
        "GreaterOrEqual",
        "Identity",
        "MatMul",
        "MatMulIntegerToFloat",
        "Max",
        "Mul",
        "Pad",
        "QuantizeLinear",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceSum",
        "ReduceSumSquare",
        "Relu",
        "Reshape",
        "Shape",
        "Slice",
        "Softmax",
        "Sqrt",
        "Sub",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)
_LARGEST_FACTOR = 4  # float32 weights, of ones in a byte
_GRAPH_BYTES = 1 << 24  # more than any graph takes beside its weights
# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_METADATA, _MODEL_TRAINING, _MODEL_FUNCTIONS = 7, 14, 20, 25
_GRAPH_NODE, _GRAPH_TENSOR, _GRAPH_SPARSE = 1, 5, 15
_NODE_OPERATOR, _NODE_ATTRIBUTE = 4, 5
_ATTRIBUTE_CONTENT = {5, 6, 10, 11, 22, 23}  # tensors, graphs and sparse tensors inside an attribute
_TENSOR_NAME, _TENSOR_EXTERNAL, _TENSOR_PLACE = 8, 13, 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
METADATA = "aveyb"  # the key of the file's metadata
EMBEDDING, CHECKPOINT = "embedding", "../model.safetensors"  # the one constant that may be elsewhere, and where
FORMAT = 1
_LARGEST_SIZE = 1 << 24  # of any size: a damaged file must not ask for endless memory


_Size = Annotated[int, msgspec.Meta(gt=0, le=_LARGEST_SIZE)]


class OnnxSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a model that what runs its ONNX form must know.

    precision: "float32" or "int8".
    weights: SHA-256 of the `model.safetensors` that it was made from.
    others: as in `AveyBConfig`.
    """

    precision: Annotated[str, msgspec.Meta(pattern="^(float32|int8)$")]
    weights: str
    vocab_size: _Size
    hidden_size: _Size
    split_size: _Size
    num_retrieved: Annotated[int, msgspec.Meta(ge=0, lt=_LARGEST_SIZE)]
    compressor: str
    tail: str
    ranker_direction: str
    retrieved_order: str
    weight_norm: str
    similarity_eps: float
    max_split_weight: float

    funnel_after: ClassVar[None] = None  # the ONNX form has no funnel

    @property
    def looks_ahead(self) -> bool:
        """Whether a split may retrieve later ones."""
        return self.ranker_direction == "both"

    def to_json(self) -> str:
        """Return the settings as the file's metadata."""
        return json.dumps({"format": FORMAT, **msgspec.structs.asdict(self)}, sort_keys=True)

    @classmethod
    def read(cls, metadata: dict[str, str], path: Path) -> OnnxSettings:
        """Read the metadata of a file.

        Raises:
            ModelError: it is of another kind of model, of another format version, or damaged.
        """
        try:
            content = json.loads(metadata[METADATA])
            version = content.pop("format")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{path}: not an ONNX file of an Avey-B model (its metadata has no {METADATA!r}); make one with "
                "aveyb-train export"
            ) from error
        if version != FORMAT:
            raise ModelError(
                f"{path}: format {version!r}, this version of aveyb-retrieval reads {FORMAT}; export the model again"
            )
        try:
            return msgspec.convert(content, cls, strict=True)
        except msgspec.ValidationError as error:
            raise ModelError(f"{path}: its settings are damaged ({error}); export it again") from error


class OnnxFile(NamedTuple):
    """A checked file.

    content: all of it.
    settings: what it says about itself.
    table_place: where in the checkpoint its embeddings are, in bytes; None: in the file itself.
    """

    content: bytes
    settings: OnnxSettings
    table_place: int | None


def read_onnx(path: Path, weights_bytes: int) -> OnnxFile:
    """Read and check an ONNX file.

    Args:
        path: the file.
        weights_bytes: size of the checkpoint that it must be a form of.

    Raises:
        ModelError: it is cut, damaged, too large, of another kind of model, or holds what the export never writes.
    """
    limit = _LARGEST_FACTOR * weights_bytes + _GRAPH_BYTES
    size = path.stat().st_size
    if size > limit:
        raise ModelError(
            f"{path}: {size:,} bytes, a form of these weights has at most {limit:,}; remove it, or export it again"
        )
    content = path.read_bytes()
    metadata: dict[str, str] = {}
    graphs, place = 0, None
    try:
        for number, value in _fields(content):
            if number == _MODEL_METADATA:
                entry = dict(_fields(_message(value)))
                metadata[_text(entry[1])] = _text(entry[2])
            elif number == _MODEL_GRAPH:
                graphs += 1
                place = _check_graph(_message(value), path)
            elif number in (_MODEL_TRAINING, _MODEL_FUNCTIONS):
                raise _foreign(path, "functions of its own")
    except (ValueError, KeyError) as error:
        raise ModelError(f"{path}: damaged or cut short ({error}); copy it or export it again") from error
    if graphs != 1:
        raise ModelError(f"{path}: damaged or cut short ({graphs} graphs); copy it or export it again")
    return OnnxFile(content, OnnxSettings.read(metadata, path), place)


def _check_graph(graph: memoryview, path: Path) -> int | None:
    """Check a graph, and return where in the checkpoint its embeddings are, if they are there."""
    place = None
    for number, value in _fields(graph):
        if number == _GRAPH_NODE:
            _check_node(_message(value), path)
        elif number == _GRAPH_TENSOR:
            fields = list(_fields(_message(value)))
            if any(field in (_TENSOR_EXTERNAL, _TENSOR_PLACE) for field, _ in fields):
                place = _table_place(fields, path)
        elif number == _GRAPH_SPARSE:
            raise _foreign(path, "sparse tensors")
    return place


def _table_place(tensor: list[tuple[int, memoryview | int]], path: Path) -> int:
    """Return where in the checkpoint a tensor is, which must be the embeddings."""
    entries = [dict(_fields(_message(value))) for field, value in tensor if field == _TENSOR_EXTERNAL]
    named = {_text(entry[_ENTRY_KEY]): _text(entry[_ENTRY_VALUE]) for entry in entries}
    names = [_text(value) for field, value in tensor if field == _TENSOR_NAME]
    if names != [EMBEDDING] or named.get("location") != CHECKPOINT or not named.get("offset", "").isdecimal():
        raise _foreign(path, "data in another file")
    return int(named["offset"])


def _check_node(node: memoryview, path: Path) -> None:
    for number, value in _fields(node):
        if number == _NODE_OPERATOR and _text(value) not in OPERATORS:
            raise _foreign(path, f"the operator {_text(value)!r}")
        if number == _NODE_ATTRIBUTE and any(field in _ATTRIBUTE_CONTENT for field, _ in _fields(_message(value))):
            raise _foreign(path, "a graph or tensor inside an operator")


def _foreign(path: Path, what: str) -> ModelError:
    return ModelError(f"{path}: holds {what}, which our export never writes; make the file with aveyb-train export")


def _fields(data: bytes | memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the number and value of each field of a message."""
    view, position = memoryview(data), 0
    while position < len(view):
        key, position = _varint(view, position)
        number, kind = key >> 3, key & 7
        value: memoryview | int
        if kind == 0:
            value, position = _varint(view, position)
        else:
            if kind not in (1, 2, 5):
                raise ValueError(f"field {number} has wire type {kind}")
            size = {1: 8, 5: 4}.get(kind, 0)
            if kind == 2:
                size, position = _varint(view, position)
            if position + size > len(view):
                raise ValueError(f"field {number} ends behind the end")
            value, position = view[position : position + size], position + size
        yield number, value


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    number = shift = 0
    while position < len(view) and shift < 70:
        byte = view[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
    raise ValueError("a number does not end")


def _message(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def _text(value: memoryview | int) -> str:
    return bytes(_message(value)).decode("utf-8")
