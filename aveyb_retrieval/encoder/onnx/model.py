"""An Avey-B encoder run by ONNX Runtime on a CPU: what `Embedder` asks of a model, without torch.

The file's metadata name the model that it was exported from: its settings and the hash of its
weights. They are compared with the folder before anything is run. A form is no larger than its
weights can be, and has no data in other files but the embeddings that its checkpoint holds in int8,
which are given to ONNX Runtime.

The ranker is that of torch models on a CPU. Nothing is ranked if the checkpoint's compressor is
zero.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from aveyb_retrieval.encoder.model_folders import (
    COMPRESSOR,
    TABLE,
    TABLE_SCALE,
    file_digest,
)
from aveyb_retrieval.encoder.network.host_ranker import choose, split_weights
from aveyb_retrieval.encoder.network.layout import SplitLayout, group_widths
from aveyb_retrieval.encoder.onnx.session import open_session
from aveyb_retrieval.encoder.settings import EncoderSettings, settings_of
from aveyb_retrieval.errors import ConfigError, ModelError
from aveyb_retrieval.system import chosen_threads, usable_processors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.encoder.network.token_codec import TokenCodec

_LARGEST_FACTOR = 4  # float32 weights, of ones in a byte
_GRAPH_BYTES = 1 << 24  # more than any graph takes beside its weights
# what a damaged safetensors file raises while it is read
_DAMAGES = (OSError, ValueError, LookupError, SafetensorError)
_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I8": np.int8}
FILES = {"float32": "onnx/model.onnx", "int8": "onnx/model_int8.onnx"}
WEIGHTS = "model.safetensors"
_GROUP_TOKENS = 256  # in one run: about as fast as eight times as many, in less memory
_MIN_NORM = 1e-12
METADATA = "aveyb"  # the key of the file's metadata
# the one constant that may be elsewhere, and where
EMBEDDING, CHECKPOINT = ("embedding", "../model.safetensors")
FORMAT = 2


class FormMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an ONNX file says of itself.

    Attributes:
        precision: "float32" or "int8".
        weights: SHA-256 of the checkpoint that it was made from.
        settings: its model's.
    """

    precision: Annotated[str, msgspec.Meta(pattern="^(float32|int8)$")]
    weights: str
    settings: EncoderSettings

    def to_json(self) -> str:
        """Return what the file's metadata holds."""
        content = {"format": FORMAT, **msgspec.structs.asdict(self)}
        return json.dumps(content | {"settings": self.settings.fields()}, sort_keys=True)

    @classmethod
    def read(cls, metadata: dict[str, str], path: Path) -> FormMetadata:
        """Read and check the metadata of a file."""
        try:
            content = json.loads(metadata[METADATA])
            version = content.pop("format")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{path}: not an ONNX file of an Avey-B model (its metadata has no {METADATA!r});"
                " make one with aveyb-train export"
            ) from error
        if version != FORMAT:
            raise ModelError(
                f"{path}: format {version!r}, this version of aveyb-retrieval reads {FORMAT};"
                " export the model again"
            )
        try:
            read = msgspec.convert(content, cls, strict=True)
            return msgspec.structs.replace(read, settings=read.settings.completed("settings"))
        except (msgspec.ValidationError, ConfigError) as error:
            raise ModelError(
                f"{path}: its settings are damaged ({error}); export it again"
            ) from error


class OnnxModel:
    """Token ids to token vectors: the ranker in NumPy, everything else in ONNX Runtime.

    Attributes:
        folder: where it was loaded from.
        config: the model's settings.
    """

    def __init__(
        self, folder: Path, session: Any, settings: EncoderSettings, table: EmbeddingTable
    ) -> None:
        self.folder, self.config = folder, settings
        self._session, self._table = session, table
        self._retrieves = settings.num_retrieved > 0 and not compressor_is_zero(
            folder / WEIGHTS, settings
        )

    def embeddings(self, ids: np.ndarray) -> np.ndarray:
        """Return float32 `[T, D]`, the embeddings of token ids `[T]`."""
        return self._table[ids]

    @classmethod
    def load(cls, folder: Path, precision: str) -> OnnxModel:
        """Open the ONNX form, "float32" or "int8", of a model folder, which also holds the
        checkpoint that it is of.
        """
        path, weights = folder / FILES[precision], folder / WEIGHTS
        for one in (path, weights):
            if not one.is_file():
                raise ModelError(
                    f"{one}: no such file; make the ONNX form with aveyb-train export, beside the"
                    " weights"
                )
        table = EmbeddingTable(weights)
        session = _session(
            path, weights.stat().st_size, table.rows if precision == "int8" else None
        )
        form = FormMetadata.read(session.get_modelmeta().custom_metadata_map, path)
        if form.precision != precision:
            raise ModelError(
                f"{path}: holds the {form.precision} form, not {precision}; export it again"
            )
        if form.weights != file_digest(weights):
            raise ModelError(
                f"{path}: made from other weights than {weights.name} beside it; export it again,"
                " or remove it"
            )
        settings, stored = form.settings, settings_of(folder).fields()
        for name, own in settings.fields().items():
            if stored[name] != own:
                raise ModelError(
                    f"{path}: made with {name} {own!r}, config.json beside the weights says"
                    f" {stored[name]!r}; export it again, or remove it"
                )
        if table.rows.shape != (settings.vocab_size, settings.hidden_size):
            raise ModelError(
                f"{path}: made for embeddings of {settings.vocab_size} x {settings.hidden_size},"
                f" {weights.name} has {' x '.join(map(str, table.rows.shape))}; export it again"
            )
        return cls(folder, session, settings, table)

    def eval(self) -> OnnxModel:
        """Return the model, which only encodes."""
        return self

    def warm_up(self) -> int:
        """Run a batch of each kind of length, so that the first text does not pay for what is made
        once; how many.
        """
        size = self.config.split_size
        counts = [[width] for width in (*group_widths(size), size)] + [[2 * size]]
        for batch in counts:
            for _ in self._outputs(np.zeros(sum(batch), np.int32), batch):
                pass
        return len(counts)

    def token_sums(
        self,
        ids: np.ndarray,
        counts: list[int],
        runs: np.ndarray,
        *,
        codec: TokenCodec | None,
        watch: Callable[[int], None],
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """See `SplitEncoder.token_sums`."""
        owner = np.repeat(np.arange(len(runs)), runs)
        sums = np.zeros((len(runs), self.config.hidden_size), np.float32)
        codes = codec.empty(len(ids)) if codec else None
        for tokens, vectors in self._outputs(ids, counts):
            owners = owner[tokens]
            # of runs of tokens that are summed together
            starts = np.flatnonzero(np.diff(owners, prepend=-1))
            np.add.at(sums, owners[starts], np.add.reduceat(vectors, starts, axis=0))
            if codec and codes is not None:
                codes[tokens] = codec.encode(vectors)
            watch(len(tokens))
        return sums, codes

    def token_rows(self, ids: np.ndarray, counts: list[int]) -> np.ndarray:
        """See `SplitEncoder.token_rows`."""
        out = np.zeros((len(ids), self.config.hidden_size), np.float32)
        for tokens, vectors in self._outputs(ids, counts):
            out[tokens] = vectors / np.maximum(
                np.linalg.norm(vectors, axis=1, keepdims=True), _MIN_NORM
            )
        return out

    def _retrieved(
        self, layout: SplitLayout, splits: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what each split retrieves, rows int64 `[n, k]` and their weights float32 `[n, k]`;
        None if the compressor would take nothing from it.
        """
        if not self._retrieves:
            return None
        choice = choose(layout, splits, self.embeddings, self.config)
        return choice.rows, split_weights(choice, self.config)

    def _outputs(
        self, ids: np.ndarray, counts: list[int]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield positions in `ids` int64 `[t]` and the vectors `[t, D]` of the tokens there, group
        by group.
        """
        config = self.config
        layout = SplitLayout.of(counts, config.split_size)
        splits = np.full((len(layout.lengths), config.split_size), -1, dtype=np.int32)
        present = np.arange(config.split_size) < layout.lengths[:, None]
        splits[present] = ids
        position = np.zeros(splits.shape, dtype=np.int64)
        position[present] = np.arange(len(ids))
        retrieved = self._retrieved(layout, splits)

        def run(rows: np.ndarray, width: int, number: int) -> np.ndarray:
            feed = {"ids": np.ascontiguousarray(splits[rows, :width])}
            if config.num_retrieved:
                feed |= _inputs(splits, retrieved, rows, number)
            return self._session.run(None, feed)[0]

        # How many others a split can retrieve also divides the groups if none is retrieved: the
        # last bit of a sum depends on how many rows a product has.
        candidates = np.minimum(layout.earlier, config.num_retrieved)
        runs = []
        for group, width in layout.groups(
            full_width=config.tail != "masked", max_tokens=_GROUP_TOKENS
        ):
            used = candidates[group]
            runs += [(group[used == number], width, number) for number in np.unique(used).tolist()]
        for (rows, width, _), vectors in zip(runs, _side_by_side(run, runs), strict=True):
            taken = present[rows, :width]
            yield position[rows, :width][taken], vectors[taken]


def _inputs(
    splits: np.ndarray,
    retrieved: tuple[np.ndarray, np.ndarray] | None,
    rows: np.ndarray,
    number: int,
) -> dict[str, np.ndarray]:
    """Return the graph's inputs for splits that each retrieve `number` others.

    `retrieved`: rows and weights `[n, k]` of the batch; None: nothing is retrieved.
    """
    if retrieved is None:
        return {
            "retrieved": np.zeros((len(rows), 0, splits.shape[1]), np.int32),
            "weights": np.zeros((len(rows), 0), np.float32),
        }
    chosen, weights = (part[rows, part.shape[1] - number :] for part in retrieved)
    return {
        "retrieved": np.where(chosen[..., None] >= 0, splits[chosen], np.int32(-1)),
        "weights": weights,
    }


def _side_by_side(
    work: Callable[..., np.ndarray], every: Sequence[tuple[Any, ...]]
) -> Iterator[np.ndarray]:
    """Yield what some work makes of arguments, in their order: OMP_NUM_THREADS at once, or as many
    as processors.
    """
    threads = min(chosen_threads() or usable_processors(), len(every))
    # no thread is begun where the process is about to end
    if threads < 2 or not threading.main_thread().is_alive():
        yield from (work(*arguments) for arguments in every)
        return
    begun = deque[Future[np.ndarray]]()
    with ThreadPoolExecutor(threads, "aveyb-encode") as pool:
        for arguments in every:
            if len(begun) > threads:
                yield begun.popleft().result()
            begun.append(pool.submit(work, *arguments))
        while begun:
            yield begun.popleft().result()


def _session(path: Path, weights_bytes: int, rows: np.ndarray | None) -> Any:
    """Open a session on one processor: a query is too small to be shared, and of more splits
    several run at once.

    Rows in int8 are the embeddings of an int8 form, which has none of its own then.
    """
    limit, size = _LARGEST_FACTOR * weights_bytes + _GRAPH_BYTES, path.stat().st_size
    if size > limit:
        raise ModelError(
            f"{path}: {size:,} bytes, a form of these weights has at most {limit:,}; remove it, or"
            " export it again"
        )
    held = rows is not None and rows.dtype == np.int8
    return open_session(
        path,
        threads=1,
        advice="export it again",
        initializers={EMBEDDING: np.asarray(rows)} if held else None,
    )


class EmbeddingTable:
    """A checkpoint's token embeddings, mapped into memory: only rows that are asked for are read;
    processes share them.

    Attributes:
        rows: `[V, D]` as stored; bfloat16 as uint16.
        scale: float32 `[V, 1]`, of rows in int8; else None.
        place: bytes from the start of the file to the rows.
    """

    def __init__(self, path: Path) -> None:
        """Map the embedding of a safetensors file."""
        try:
            header, start = _header(path)
            (name,) = (name for name in header if f".{name}".endswith(f".{TABLE}"))
            entry, scale = header[name], header.get(name.removesuffix(TABLE) + TABLE_SCALE)
            rows, dim = entry["shape"]
        except _DAMAGES as error:
            raise ModelError(
                f"{path}: damaged, cut short or without an embedding ({type(error).__name__}); copy"
                " it again"
            ) from error
        dtype, self.place = _DTYPES.get(entry["dtype"]), start + entry["data_offsets"][0]
        scaled = scale is not None and (scale["dtype"], scale["shape"]) == ("F32", [rows, 1])
        if dtype is None or (dtype is np.int8) != scaled or not rows * dim:
            raise ModelError(
                f"{path}: its embedding, {rows} x {dim}, is not one in float32, float16, bfloat16"
                " or int8 with scales; copy it again"
            )
        self.rows = np.memmap(path, dtype=dtype, mode="r", offset=self.place, shape=(rows, dim))
        self.scale = None
        if scale is not None and scaled:
            place = start + scale["data_offsets"][0]
            self.scale = np.fromfile(path, np.float32, rows, offset=place)[:, None]

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """Return float32 `[n, D]`, the embeddings of ids `[n]`."""
        rows = _floats(self.rows[ids])
        return rows if self.scale is None else rows * self.scale[ids]


def compressor_is_zero(path: Path, settings: EncoderSettings) -> bool:
    """Return whether a checkpoint's compressor takes nothing from retrieved splits.

    Its columns for them, the first `k S` of `[S, (k + 1) S]`, are all zero then.

    Raises:
        ModelError: the checkpoint has no compressor of that shape.
    """
    size, own = settings.split_size, settings.num_retrieved * settings.split_size
    try:
        header, start = _header(path)
        (entry,) = (header[name] for name in header if f".{name}".endswith(f".{COMPRESSOR}"))
        matrix = np.memmap(
            path,
            dtype=_DTYPES[entry["dtype"]],
            mode="r",
            offset=start + entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
        )
    except _DAMAGES as error:
        raise ModelError(
            f"{path}: damaged, or its {COMPRESSOR} is missing or of a kind that is not read"
            f" ({type(error).__name__}); copy it again"
        ) from error
    if matrix.shape != (size, own + size):
        raise ModelError(
            f"{path}: {COMPRESSOR} has shape {matrix.shape}, the ONNX form says"
            f" {(size, own + size)}; export it again"
        )
    return not _floats(matrix[:, :own]).any()


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return what a safetensors file says of each tensor, and where in the file its data begin.

    Opening it by the library checks that places, shapes and the file's size agree.
    """
    with safe_open(path, framework="np"):
        pass
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), 8 + size


def _floats(values: np.ndarray) -> np.ndarray:
    """Return stored numbers as float32; bfloat16, stored as uint16, is the upper half of one."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
