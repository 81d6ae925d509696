"""Embedder: texts in, vectors out, streaming. One vector per document and one per split, with its character span.

A split's vector has already seen the earlier splits its document retrieved (late chunking). Documents of any length
share batches, because after the ranker every split is processed alone; memory does not depend on how many texts come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.encoder.sentence_transformers import check_mean_pooling, read_prompts
from aveyb_retrieval.encoder.splits import split_table
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, ModelError

DEFAULT_MODEL = Path(__file__).parent.parent / "models" / "aveyb-mini-en"
_MODEL_FILES = ("config.json", "model.safetensors")
_TOKENIZER_FILES = ("vocab.tiktoken", "aveyb_tokenizer.json")
_MIN_NORM = 1e-12
# What a model is kept in; "float8": its linear maps multiply in float8, everything else is bfloat16.
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.bfloat16,
}


@dataclass(frozen=True)
class EncodedDocument:
    """What the encoder knows of one text.

    vector: float32 `[d]`, unit length: the mean of all token vectors; zeros for a text without tokens.
    passages: float32 `[n, d]`, unit rows: the mean of each split's token vectors.
    norms: float32 `[n]`, the lengths of those means before they were scaled to one.
    spans: int64 `[n, 2]`, character offsets `[start, end)` of each split in the text; empty for a split that holds
        nothing but prompt or prefix.
    n_tokens: tokens encoded, prompt and prefix included.
    n_cut: tokens left out because of `max_tokens`.
    """

    vector: np.ndarray
    passages: np.ndarray
    norms: np.ndarray
    spans: np.ndarray
    n_tokens: int
    n_cut: int


@dataclass(frozen=True)
class _Tokenised:
    ids: np.ndarray
    spans: np.ndarray
    n_cut: int
    kept_passages: np.ndarray | None = None
    kept_norms: np.ndarray | None = None

    @property
    def n_kept(self) -> int:
        return 0 if self.kept_norms is None else len(self.kept_norms)


class Embedder:
    """Encodes documents and queries with an Avey-B model.

    Attributes:
        dim: width of the vectors. split_size: tokens in a full split.
        model_name: what `load` was given. fingerprint: SHA-256 over configuration, weights, tokenizer and prompts.
        prompts: text put before every "query" and "document".
    """

    def __init__(
        self,
        model: AveyBModel,
        tokenizer: AveyBTokenizer,
        *,
        prompts: dict[str, str],
        model_name: str,
        fingerprint: str,
        max_tokens: int | None = None,
        batch_tokens: int = 16384,
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"max_tokens is {max_tokens}; it must be at least 1, or None for no limit")
        if batch_tokens < 1:
            raise ConfigError(f"batch_tokens is {batch_tokens}; it must be at least 1")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.model_name = model_name
        self.fingerprint = fingerprint
        self.max_tokens = max_tokens
        self.batch_tokens = batch_tokens
        self.dim: int = model.config.hidden_size
        self.split_size: int = model.config.split_size

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "cpu",
        precision: str = "float32",
        max_tokens: int | None = None,
        batch_tokens: int = 16384,
        cuda_graphs: bool = False,
    ) -> Embedder:
        """Loads a model folder, or a model of the Hugging Face hub by its name.

        Args:
            model: None is the model embedded in this package.
            device: a torch device.
            precision: what it computes in: "float32", "bfloat16", "float16" or "float8" (CUDA devices of compute
                capability 8.9 and newer; on a CPU the same rounding, slowly); vectors are float32 in any case.
            max_tokens: read at most this many tokens of a text; what is cut is counted. None: read everything.
            batch_tokens: tokens encoded at once; bounds memory, does not change results.
            cuda_graphs: replay the layers as CUDA graphs where few tokens are encoded at once, as for queries.

        Raises:
            ModelError: the folder is missing, incomplete, or pools in another way.
            ConfigError: an option is out of range.
            BackendError: CUDA graphs without a CUDA device.
        """
        if precision not in _DTYPES:
            raise ConfigError(f"precision is {precision!r}; choose one of {', '.join(_DTYPES)}")
        folder = model_folder(model)
        with _no_progress_bar():
            encoder = AveyBModel.from_pretrained(folder, dtype=torch.float32)
        check_mean_pooling(folder)
        tokenizer = load_tokenizer(folder, encoder.config.vocab_size)
        prompts = read_prompts(folder)
        encoder.to(device=device, dtype=_DTYPES[precision])
        encoder.use_float8(precision == "float8")
        encoder.use_cuda_graphs(cuda_graphs)
        return cls(
            encoder,
            tokenizer,
            prompts=prompts,
            model_name=str(model) if model is not None else DEFAULT_MODEL.name,
            fingerprint=_fingerprint(folder, prompts),
            max_tokens=max_tokens,
            batch_tokens=batch_tokens,
        )

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
        """Encodes (prefix, text) pairs as they come, in order.

        The document prompt and the prefix (a title, say) are read before the text; spans are positions in the text.

        Raises:
            InputError: a text cannot be tokenised.
        """
        yield from self._stream(self._tokenise(prefix, text) for prefix, text in documents)

    def encode_grown(self, prefix: str, text: str, passages: np.ndarray, norms: np.ndarray) -> EncodedDocument:
        """Encodes a text whose first splits are known already, running the layers only on the others.

        A split depends on itself and on earlier splits alone, so the vectors of unchanged leading full splits stay
        valid when the text grows behind them.

        Args:
            prefix, text: as for `encode_documents`, the whole new text.
            passages: float32 `[m, d]` and norms: float32 `[m]`, the results for the first m splits; these must be full
                splits of the same tokens.

        Returns:
            the whole document, equal to what `encode_documents` gives.

        Raises:
            ConfigError: more splits are given than the new text has full ones.
        """
        tokens = self._tokenise(prefix, text)
        if len(norms) > len(tokens.ids) // self.split_size or len(norms) != len(passages):
            raise ConfigError(
                f"encode_grown: {len(passages)} passages and {len(norms)} norms are given; the text has "
                f"{len(tokens.ids) // self.split_size} full splits of {self.split_size} tokens"
            )
        known = _Tokenised(tokens.ids, tokens.spans, tokens.n_cut, passages, norms)
        return next(self._encode([known]))

    def unchanged_splits(self, old: tuple[str, str], new: tuple[str, str]) -> int:
        """How many leading full splits of two (prefix, text) pairs hold the same tokens, whose vectors can be kept."""
        before, after = (self._tokenise(prefix, text).ids for prefix, text in (old, new))
        shared = min(len(before), len(after))
        different = np.flatnonzero(before[:shared] != after[:shared])
        return int(different[0] if len(different) else shared) // self.split_size

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """float32 `[n, d]`, unit rows: the queries' vectors, query prompt included."""
        tokenised = (self._tokenise("", query, prompt="query") for query in queries)
        vectors = [encoded.vector for encoded in self._stream(tokenised)]
        return np.stack(vectors) if vectors else np.zeros((0, self.dim), np.float32)

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[np.ndarray]:
        """For late interaction: float32 `[T, d]` unit rows for each text, one a token, prompt included.

        Args:
            texts: any number of texts.
            prompt: "query" or "document".
        """
        vectors: list[np.ndarray] = []
        for batch in self._batches(self._tokenise("", text, prompt=prompt) for text in texts):
            with torch.inference_mode():
                table, slots, pieces = self._forward(batch)
                out = torch.zeros(table.ids.numel(), self.dim)
                for rows, hidden, valid in pieces:
                    columns = torch.arange(hidden.shape[1], device=rows.device)
                    unit = torch.nn.functional.normalize(hidden[valid].float(), dim=-1)
                    out[(rows[:, None] * self.split_size + columns)[valid].cpu()] = unit.cpu()
                counts = [len(tokens.ids) for tokens in batch]
                vectors += [part.numpy() for part in out[slots.cpu()].split(counts)]
        return vectors

    def _tokenise(self, prefix: str, text: str, *, prompt: str = "document") -> _Tokenised:
        before = self.prompts[prompt] + prefix
        ids, offsets = self.tokenizer.encode(before + text)
        kept = len(ids) if self.max_tokens is None else min(len(ids), self.max_tokens)
        starts = np.arange(0, kept, self.split_size)
        ends = np.minimum(starts + self.split_size, kept)
        spans = np.stack([offsets[starts, 0], offsets[ends - 1, 1]], axis=1) - len(before)
        return _Tokenised(ids[:kept], spans.clip(0, len(text)), len(ids) - kept)

    def _stream(self, tokenised: Iterable[_Tokenised]) -> Iterator[EncodedDocument]:
        for batch in self._batches(tokenised):
            yield from self._encode(batch)

    def _batches(self, tokenised: Iterable[_Tokenised]) -> Iterator[list[_Tokenised]]:
        batch: list[_Tokenised] = []
        size = 0
        for tokens in tokenised:
            batch.append(tokens)
            size += len(tokens.ids) + 1  # an empty text counts, too: a million of them must not pile up
            if size >= self.batch_tokens:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _forward(self, batch: list[_Tokenised]) -> Any:
        device = self.model.device
        tokens = torch.from_numpy(np.concatenate([item.ids for item in batch]).astype(np.int64)).to(device)
        counts = torch.tensor([len(item.ids) for item in batch], device=device)
        table, slots = split_table(tokens, counts, self.split_size)
        needed = torch.ones(len(table.lengths), dtype=torch.bool)
        start = 0
        for item in batch:
            needed[start : start + item.n_kept] = False
            start += len(item.spans)
        retrieved = self.model.ranker.retrieve(table, self.model.embed.weight)
        return table, slots, self.model.encode_splits(table, retrieved, needed.to(device))

    def _split_means(self, batch: list[_Tokenised]) -> tuple[torch.Tensor, np.ndarray]:
        """float32 `[n, d]`, the mean of each split's token vectors, and int64 `[n]`, its tokens."""
        if len(batch) == 1 and batch[0].n_kept == 0:  # one query, most often: no table of splits is needed
            ids = torch.from_numpy(batch[0].ids.astype(np.int64))[None].to(self.model.device)
            if self.model.is_short(ids):
                return self.model.encode_short(ids).float().mean(1), np.array([ids.shape[1]])
        table, _, pieces = self._forward(batch)
        means = torch.zeros(len(table.lengths), self.dim, device=self.model.device)
        for rows, hidden, valid in pieces:
            means[rows] = (hidden.float() * valid[..., None]).sum(1) / table.lengths[rows, None]
        return means, table.lengths.cpu().numpy()

    def _encode(self, batch: list[_Tokenised]) -> Iterator[EncodedDocument]:
        with torch.inference_mode():
            means, lengths = self._split_means(batch)
            norms = torch.linalg.vector_norm(means, dim=1)
            units = (means / norms.clamp_min(_MIN_NORM)[:, None]).cpu().numpy()
            weights = norms.cpu().numpy()
        start = 0
        for item in batch:
            rows_of = slice(start, start + len(item.spans))
            start = rows_of.stop
            passages, norm = units[rows_of].copy(), weights[rows_of].copy()
            if item.kept_passages is not None and item.kept_norms is not None:
                passages[: item.n_kept], norm[: item.n_kept] = item.kept_passages, item.kept_norms
            total = (norm * lengths[rows_of])[None] @ passages
            length = float(np.linalg.norm(total))
            yield EncodedDocument(
                vector=(total[0] / length if length else total[0]).astype(np.float32),
                passages=passages,
                norms=norm,
                spans=item.spans,
                n_tokens=len(item.ids),
                n_cut=item.n_cut,
            )


def model_folder(model: str | Path | None) -> Path:
    """The local folder of a model: the embedded one, a folder, or a snapshot from the Hugging Face hub.

    Raises:
        ModelError: nothing is there, locally or on the hub.
    """
    folder = DEFAULT_MODEL if model is None else Path(model)
    if folder.is_dir():
        return folder
    if model is None:
        raise ModelError(f"{folder}: the embedded model is missing; reinstall the package, or name a model")
    if folder.is_absolute() or str(model).count("/") != 1:
        raise ModelError(f"{model}: no such model folder, and not a hub name of the form owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(model), allow_patterns=["*.json", "*.safetensors", "*.tiktoken"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"{model}: no such folder, and the hub did not give it: {error}") from error


def load_tokenizer(folder: Path, vocab_size: int) -> AveyBTokenizer:
    """The tokenizer of a model folder; the authors' checkpoints carry none of ours and use p50k_base.

    Raises:
        ModelError: neither fits the model's vocabulary.
    """
    own = (folder / _TOKENIZER_FILES[0]).is_file()
    tokenizer = AveyBTokenizer.load(folder) if own else AveyBTokenizer.p50k_base()
    tokenizer.check_embeddings(vocab_size, str(folder))
    return tokenizer


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _fingerprint(folder: Path, prompts: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name in (*_MODEL_FILES, *_TOKENIZER_FILES):
        path = folder / name
        if path.is_file():
            digest.update(name.encode())
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
    for name, prompt in sorted(prompts.items()):
        digest.update(f"{name}={prompt}\n".encode())
    return digest.hexdigest()
