"""An Avey-B encoder run by ONNX Runtime on a CPU: what `Embedder` asks of a model, without torch.

Read an ONNX file without trusting it: what it holds is checked before ONNX Runtime sees it.

The file must be a whole one, made by our export: of the operators that it uses, without functions, subgraphs or data in
other files (but the embeddings that its checkpoint holds in int8), and no larger than a form of its weights can be. A
few lines read protobuf's wire format, so that the package onnx is needed by the export alone.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from aveyb_retrieval.encoder.folders import file_digest, read_object
from aveyb_retrieval.encoder.network.layout import SplitLayout, group_widths
from aveyb_retrieval.encoder.onnx.ranker import Choice, EmbeddingTable, retrieve
from aveyb_retrieval.errors import ModelError, extra_for
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec

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


FILES = {"float32": "onnx/model.onnx", "int8": "onnx/model_int8.onnx"}
WEIGHTS = "model.safetensors"
_GROUP_TOKENS = 2048  # in one run: groups that stay in the cache are faster, and memory is bounded
_MIN_NORM = 1e-12


class OnnxModel:
    """Token ids to token vectors: the ranker in NumPy, everything else in ONNX Runtime.

    Attributes:
        folder: where it was loaded from.
        config: what the file says about its model.
    """

    def __init__(self, folder: Path, session: Any, config: OnnxSettings, table: EmbeddingTable) -> None:
        self.folder, self.config = folder, config
        self._session, self._table = session, table

    @classmethod
    def load(cls, folder: Path, precision: str) -> OnnxModel:
        """Open the ONNX form of a model folder.

        Args:
            folder: holds the file and the checkpoint that it was made from.
            precision: "float32" or "int8".

        Raises:
            ModelError: there is no such form, it is damaged, of other weights or another configuration than those in
                the folder, or holds what our export never writes.
            OptionalDependencyError: ONNX Runtime is not installed.
        """
        path, weights = folder / FILES[precision], folder / WEIGHTS
        for needed in (path, weights):
            if not needed.is_file():
                raise ModelError(
                    f"{needed}: no such file; make the ONNX form with aveyb-train export, beside the weights"
                )
        file = read_onnx(path, weights.stat().st_size)
        settings = file.settings
        if settings.precision != precision:
            raise ModelError(f"{path}: holds the {settings.precision} form, not {precision}; export it again")
        if settings.weights != file_digest(weights):
            raise ModelError(
                f"{path}: made from other weights than {weights.name} beside it; export it again, or remove it"
            )
        _check_config(settings, read_object(folder / "config.json"), path)
        table = EmbeddingTable(weights, settings.vocab_size, settings.hidden_size)
        if file.table_place not in (None, table.place):
            raise ModelError(f"{path}: its embeddings are not where {weights.name} has them; export it again")
        rows = None if file.table_place is None else table.rows
        return cls(folder, _session(file.content, path, rows), settings, table)

    def eval(self) -> OnnxModel:
        """Return the model, which only encodes."""
        return self

    def warm_up(self) -> int:
        """Run one batch of each kind of length, so that the first text does not pay for what is made once.

        Returns:
            How many batches.
        """
        size = self.config.split_size
        counts = [[width] for width in (*group_widths(size), size)] + [[2 * size]]
        for batch in counts:
            for _ in self._outputs(np.zeros(sum(batch), np.int32), batch, None):
                pass
        return len(counts)

    def token_sums(
        self,
        ids: np.ndarray,
        counts: list[int],
        runs: np.ndarray,
        *,
        first_needed: list[int],
        funnel: bool,
        codec: TokenCodec | None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """See `BatchEncoder.token_sums`."""
        owner = np.repeat(np.arange(len(runs)), runs)
        sums = np.zeros((len(runs), self.config.hidden_size), np.float32)
        codes = codec.empty(len(ids)) if codec else None
        for tokens, vectors in self._outputs(ids, counts, first_needed):
            owners = owner[tokens]
            starts = np.flatnonzero(np.diff(owners, prepend=-1))  # of runs of tokens that are summed together
            np.add.at(sums, owners[starts], np.add.reduceat(vectors, starts, axis=0))
            if codec and codes is not None:
                codes[tokens] = codec.encode(vectors)
        return sums, codes

    def token_rows(self, ids: np.ndarray, counts: list[int], *, funnel: bool) -> np.ndarray:
        """See `BatchEncoder.token_rows`."""
        out = np.zeros((len(ids), self.config.hidden_size), np.float32)
        for tokens, vectors in self._outputs(ids, counts, None):
            out[tokens] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _MIN_NORM)
        return out

    def _outputs(
        self, ids: np.ndarray, counts: list[int], first_needed: list[int] | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield positions in `ids` int64 `[t]` and the vectors `[t, D]` of the tokens there, group by group."""
        config = self.config
        layout = SplitLayout.of(counts, config.split_size)
        splits = np.full((len(layout.lengths), config.split_size), -1, dtype=np.int32)
        present = np.arange(config.split_size) < layout.lengths[:, None]
        splits[present] = ids
        position = np.zeros(splits.shape, dtype=np.int64)
        position[present] = np.arange(len(ids))
        needed = None if first_needed is None else layout.needed(first_needed)
        choice = retrieve(layout, splits, self._table, config)
        full_width = config.tail != "masked"
        for group, width in layout.groups(needed, full_width=full_width, max_tokens=_GROUP_TOKENS):
            for rows in self._by_candidates(group, choice):
                vectors = self._run(splits, rows, width, choice)
                taken = present[rows, :width]
                yield position[rows, :width][taken], vectors[taken]

    def _by_candidates(self, group: np.ndarray, choice: Choice) -> Iterator[np.ndarray]:
        """Cut a group so that all splits of a part retrieve equally many."""
        found = (choice.rows[group] >= 0).sum(axis=1)
        if self.config.compressor == "none":  # there every split has k places
            found[:] = self.config.num_retrieved
        for number in np.unique(found):
            yield group[found == number]

    def _run(self, splits: np.ndarray, rows: np.ndarray, width: int, choice: Choice) -> np.ndarray:
        """Encode some splits that retrieve equally many: `[m, T, D]`."""
        feed = {"ids": np.ascontiguousarray(splits[rows, :width])}
        k = self.config.num_retrieved
        if k:
            used = k if self.config.compressor == "none" else int((choice.rows[rows[0]] >= 0).sum())
            retrieved = choice.rows[rows, k - used :]
            feed["retrieved"] = np.where(retrieved[..., None] >= 0, splits[retrieved], np.int32(-1))
            feed["weights"] = choice.weights[rows, k - used :]
        vectors: np.ndarray = self._session.run(None, feed)[0]
        return vectors


def _check_config(settings: OnnxSettings, config: dict[str, Any], path: Path) -> None:
    """Raise ModelError where a `config.json` says otherwise; a field that it lacks or leaves open says nothing."""
    for name in (*settings.__struct_fields__, "funnel_after"):
        own = getattr(settings, name)
        if config.get(name) not in (None, own):
            raise ModelError(
                f"{path}: made with {name} {own!r}, config.json beside the weights says {config[name]!r}; export it "
                "again, or remove it"
            )


def _session(content: bytes, path: Path, rows: np.ndarray | None) -> Any:
    """Open a session on one processor or as many as OMP_NUM_THREADS says; its threads wait as OMP_WAIT_POLICY says.

    `rows` are those of the embeddings, if they are in another file.
    """
    with extra_for("the ONNX form of a model", "cpu"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    options.intra_op_num_threads = int(threads) if threads.isdigit() else 0
    options.log_severity_level = 4
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if rows is not None:
        options.add_external_initializers([EMBEDDING], [onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(rows))])
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        reason = first_line(error)[:200].rstrip(".")
        raise ModelError(f"{path}: ONNX Runtime cannot read it ({reason}); export it again") from error
