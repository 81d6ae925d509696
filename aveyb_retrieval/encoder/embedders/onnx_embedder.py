"""OnnxSentenceEmbedder: sentence-transformers folders by their ONNX files, without torch.

`onnx/` holds one or more files of a transformer (BERT, XLM-R, MPNet, ModernBERT and others with
their inputs). An int8 file is taken where the processor has instructions for it, else one in
float32. What comes behind the transformer, pooling and dense layers, is read from the folder's
settings and done in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from aveyb_retrieval.encoder.embedders.sentence_transformers import read_limit, read_modules
from aveyb_retrieval.encoder.embedders.windows import (
    WindowEncoder,
    choose_prompts,
    model_files,
)
from aveyb_retrieval.encoder.languages.folder import SOURCE
from aveyb_retrieval.encoder.model_folders import fingerprint, read_object
from aveyb_retrieval.encoder.network.token_codec import TokenCodes
from aveyb_retrieval.encoder.onnx.session import open_session
from aveyb_retrieval.encoder.text.tokenizer import as_texts
from aveyb_retrieval.errors import ConfigError, ModelError, first_line
from aveyb_retrieval.system import chosen_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.encoder.text.passages import PassageSize

FOLDER = "onnx"
INT8 = (  # the names that sentence-transformers, Optimum and this package give
    "model_int8.onnx",
    "model_quantized.onnx",
    "model_qint8_avx512_vnni.onnx",
    "model_qint8_avx512.onnx",
    "model_quint8_avx2.onnx",
    "model_qint8_arm64.onnx",
)
FLOAT32 = ("model.onnx", "model_O3.onnx", "model_O2.onnx", "model_O1.onnx")
_INT8_INSTRUCTIONS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}
_MODULES = {"Transformer", "Pooling", "Normalize", "Dense"}
_ADVICE = "the ONNX form of a model has Transformer, Pooling, Dense and Normalize alone"
_ACTIVATIONS = ("Identity", "Tanh")
_POOLINGS = {  # by the flags of older folders
    "cls_token": "cls",
    "mean_tokens": "mean",
    "max_tokens": "max",
    "lasttoken": "lasttoken",
}
_TOKEN_OUTPUTS = ("last_hidden_state", "token_embeddings")
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_BATCH_TOKENS = 4_096
_MIN_NORM = 1e-12


@dataclass(frozen=True)
class Dense:
    """A dense layer behind the pooling."""

    weight: np.ndarray  # [out, in]
    bias: np.ndarray | None
    activation: str

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Return rows `[n, out]` of rows `[n, in]`."""
        out = rows @ self.weight.T
        if self.bias is not None:
            out = out + self.bias
        return np.tanh(out) if self.activation == "Tanh" else out


class OnnxSentenceEmbedder(WindowEncoder):
    """Encodes documents and queries with the ONNX form of a sentence-transformers model.

    Attributes:
        dim: width of the vectors. precision: of the file that is run, "int8" or "float32".
        token_dim: width of the vectors of tokens.
        model_name, fingerprint, prompts, window, passage_size: as `SentenceEmbedder`'s.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        precision: str,
        max_tokens: int | None = None,
        batch_tokens: int = 16384,
        passage_size: PassageSize | None = None,
    ) -> None:
        super().__init__(max_tokens, batch_tokens)
        file = choose_file(folder, precision)
        self.precision = "int8" if file.name in INT8 else "float32"
        self.model_name, self.fingerprint = name, onnx_fingerprint(folder)
        # Most quantizers give a whole batch one scale: a text would depend on those beside it. What
        # this package writes has a scale for each row.
        alone = self.precision == "int8" and not (folder / SOURCE).is_file()
        self._batch_tokens = 0 if alone else _BATCH_TOKENS
        config = read_object(folder / "config.json")
        self._pad = int(config.get("pad_token_id") or 0)
        settings = read_object(folder / "config_sentence_transformers.json")
        self.prompts = choose_prompts(settings.get("prompts") or {})
        self._tokenizer = load_tokenizer(folder)
        self._session = open_session(
            file, threads=chosen_threads(), advice="export it again, in one file"
        )
        self._inputs = [node.name for node in self._session.get_inputs()]
        if unknown := set(self._inputs) - _INPUTS:
            raise ModelError(
                f"{file}: has the input {min(unknown)!r}; a sentence encoder reads"
                f" {', '.join(sorted(_INPUTS))}"
            )
        self._output = token_output(self._session, file)
        self._pooling, self._dense = read_head(folder)
        self.token_dim = int(config.get("hidden_size") or config.get("dim") or 0)
        self.window = read_limit(folder) or config.get("max_position_embeddings")
        self.dim = self._dense[-1].weight.shape[0] if self._dense else self._width()
        self.token_dim = self.token_dim or self.dim
        self.passage_size = self._checked(passage_size)

    def _width(self) -> int:
        states = self._run([[self._pad]])[0]
        return int(states.shape[-1])

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """float32 `[n, d]`, unit rows: the queries' vectors, query prompt included."""
        texts = [self.prompts["query"] + text for text in as_texts(queries, "queries")]
        return self._encode_texts(texts)[0]

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[np.ndarray]:
        """For late interaction: float32 `[T, d]` unit rows for each text, prompt and special tokens
        included.
        """
        whole = [self.prompts[prompt] + text for text in as_texts(texts, "texts")]
        return [unit_rows(rows) for rows in self._states(whole)]

    def _not_late(self) -> str | None:
        if self._pooling == "mean":
            return None
        return (
            f"pools by {self._pooling!r}, and a passage within its document can only be a mean of"
            " token outputs"
        )

    def _documents(self, texts: list[str]) -> tuple[np.ndarray, list[TokenCodes]]:
        vectors, states = self._encode_texts([self.prompts["document"] + text for text in texts])
        if self.token_codec is None:
            return vectors, []
        return vectors, [
            TokenCodes(self.token_codec.encode(rows), np.array([[0, len(rows)]])) for rows in states
        ]

    def _window_vectors(self, ids: list[int], weights: np.ndarray) -> tuple[np.ndarray, Any]:
        states = self._run([ids])[0]
        return self._finish(weights.astype(np.float32) @ states), states

    def _encode_texts(self, texts: list[str]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return unit rows float32 `[n, d]`, and the outputs of each text's tokens."""
        states = self._states(texts)
        if not texts:
            return np.zeros((0, self.dim), np.float32), []
        return self._finish(np.stack([pool(rows, self._pooling) for rows in states])), states

    def _finish(self, rows: np.ndarray) -> np.ndarray:
        for dense in self._dense:
            rows = dense.apply(rows)
        return unit_rows(rows)

    def _states(self, texts: list[str]) -> list[np.ndarray]:
        """Return the outputs of each text's tokens, float32 `[T, D]`; those of about one length are
        read together.
        """
        ids = [each.ids for each in self._tokenizer.encode_batch(texts)]
        if self.window is not None:
            ids = [_cut_ids(row, self.window) for row in ids]
        states: list[np.ndarray] = [np.zeros((0, self.token_dim), np.float32)] * len(ids)
        batch: list[int] = []
        for number in sorted(range(len(ids)), key=lambda each: len(ids[each])):
            if batch and (len(batch) + 1) * len(ids[number]) > self._batch_tokens:
                self._fill(states, ids, batch)
                batch = []
            batch.append(number)
        self._fill(states, ids, batch)
        return states

    def _fill(self, states: list[np.ndarray], ids: list[list[int]], batch: list[int]) -> None:
        for number, rows in zip(batch, self._run([ids[each] for each in batch]), strict=True):
            states[number] = rows

    def _run(self, batch: list[list[int]]) -> list[np.ndarray]:
        if not batch:
            return []
        width = max(max(map(len, batch)), 1)
        ids = np.full((len(batch), width), self._pad, np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run([self._output], {name: feeds[name] for name in self._inputs})
        return [
            np.asarray(rows[: len(tokens)], np.float32)
            for rows, tokens in zip(states, batch, strict=True)
        ]


def _cut_ids(ids: list[int], window: int) -> list[int]:
    """Return a text's ids cut to a window; the mark of the end stays."""
    return ids if len(ids) <= window else [*ids[: window - 1], ids[-1]]


def has_onnx(folder: Path) -> bool:
    """Whether a model folder has a file that `OnnxSentenceEmbedder` runs."""
    return any((folder / FOLDER / name).is_file() for name in (*INT8, *FLOAT32))


def choose_file(folder: Path, precision: str) -> Path:
    """Return the ONNX file to run: "auto", "int8" or "float32"."""
    names = {"int8": INT8, "float32": FLOAT32}.get(precision)
    if precision == "auto":
        names = (*INT8, *FLOAT32) if has_int8_instructions() else (*FLOAT32, *INT8)
    if names is None:
        raise ConfigError(
            f"precision is {precision!r}; {folder / FOLDER} is run in one of auto, int8, float32"
        )
    for name in names:
        if (folder / FOLDER / name).is_file():
            return folder / FOLDER / name
    raise ModelError(
        f"{folder / FOLDER}: no file in {precision} (looked for {', '.join(names)}); give another"
        " precision, or export one"
    )


@cache
def has_int8_instructions() -> bool:
    """Whether the processor multiplies int8 fast; False where it does not say."""
    try:
        said = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return not _INT8_INSTRUCTIONS.isdisjoint(said.split())


def onnx_fingerprint(folder: Path) -> str:
    """Identify the model in a folder, whichever of its ONNX files is run."""
    if (folder / SOURCE).is_file():  # made on this machine, where rounding may be its own
        return fingerprint(folder, [SOURCE], {"truncate_dim": "None"})
    files = model_files(folder)
    if not any(name.endswith(".safetensors") and "/" not in name for name in files):
        every = sorted((folder / FOLDER).glob("*.onnx"))
        files += [f"{FOLDER}/{path.name}" for path in every]
    return fingerprint(folder, files, {"truncate_dim": "None"})


def load_tokenizer(folder: Path) -> Any:
    """Read `tokenizer.json`; it neither cuts nor pads."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises Exception itself
        raise ModelError(
            f"{path}: no tokenizer can be read ({first_line(error)}); copy or download the model"
            " again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def token_output(session: Any, file: Path) -> str:
    """Return the name of the output of tokens, `[B, T, D]`."""
    outputs = {node.name: node.shape for node in session.get_outputs()}
    for name in (*_TOKEN_OUTPUTS, *outputs):
        if name in outputs and len(outputs[name]) == 3:
            return name
    raise ModelError(
        f"{file}: has no output of tokens, only {', '.join(outputs)}; export the transformer with"
        " last_hidden_state"
    )


def read_head(folder: Path) -> tuple[str, list[Dense]]:
    """Return the pooling ("mean", "cls", "max" or "lasttoken") and the dense layers behind it."""
    modules = read_modules(folder, _MODULES, _ADVICE)
    pooling, dense = "", list[Dense]()
    for module in modules:
        kind = module.type.rpartition(".")[2]
        place = folder / module.path
        settings = read_object(place / "config.json")
        if kind == "Pooling":
            pooling = pooling_of(settings, place)
        elif kind == "Dense":
            dense.append(read_dense(settings, place))
    if not pooling:
        raise ModelError(
            f"{folder}: no Pooling in modules.json, which would say how token vectors become one;"
            " save it as a sentence-transformers model with a pooling"
        )
    return pooling, dense


def pooling_of(settings: dict[str, Any], place: Path) -> str:
    """Return how token vectors become one, by a folder's settings in their old form or new."""
    named = settings.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or [])
    modes += [mode for flag, mode in _POOLINGS.items() if settings.get(f"pooling_mode_{flag}")]
    if len(modes) != 1 or modes[0] not in _POOLINGS.values():
        raise ModelError(
            f"{place}: pools by {' and '.join(map(str, modes)) or 'nothing'}; one of"
            f" {', '.join(_POOLINGS.values())} can be done without torch"
        )
    if settings.get("include_prompt") is False:
        raise ModelError(f"{place}: leaves the prompt out of the mean, which only torch does here")
    return str(modes[0])


def read_dense(settings: dict[str, Any], place: Path) -> Dense:
    """Read a dense layer."""
    activation = str(settings.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise ModelError(f"{place}: the activation {activation} is not one of Identity, Tanh")
    try:
        tensors = load_file(place / "model.safetensors")
        weight = tensors["linear.weight"].astype(np.float32)
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(f"{place}: no dense layer can be read ({first_line(error)})") from error
    return Dense(weight, tensors.get("linear.bias"), activation)


def pool(rows: np.ndarray, pooling: str) -> np.ndarray:
    """Make one vector `[D]` of token vectors `[T, D]`."""
    if pooling == "mean":
        pooled = rows.mean(axis=0)
    elif pooling == "max":
        pooled = rows.max(axis=0)
    else:
        pooled = rows[0 if pooling == "cls" else -1]
    result: np.ndarray = pooled
    return result


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows over their lengths, float32."""
    norms = np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), _MIN_NORM)
    return np.ascontiguousarray(rows / norms, np.float32)
