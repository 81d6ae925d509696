"""SentenceEmbedder: any sentence-transformers model behind the methods of our `Embedder`.

Such a model reads a window of a few hundred tokens. A document's passages are encoded one by one,
or late: as many together as fit into a window, each the mean of its own token outputs, where the
model pools by the mean. The document's vector is the model's own where the document fits into its
window, and else the mean of the passages' vectors, weighted by their tokens. So everything is read;
what a model nevertheless cuts off is counted.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open
from transformers.utils import logging

from aveyb_retrieval.encoder.config import LOADING_ERRORS
from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument, TextEncoder, number_tokens
from aveyb_retrieval.encoder.embedders.sentence_transformers import read_modules
from aveyb_retrieval.encoder.folders import fingerprint
from aveyb_retrieval.encoder.network.token_codec import TokenCodec, TokenCodes
from aveyb_retrieval.encoder.text.passages import DEFAULT_SIZE, Cuts, PassageSize, cut_passages
from aveyb_retrieval.encoder.text.tokenizer import as_texts
from aveyb_retrieval.errors import ConfigError, ModelError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # in sentence-transformers' own order
_PRECISIONS = ("float32", "bfloat16", "float16")
_MARGIN = 8  # a passage alone can have a few tokens more than within its text
_OPTIONS: dict[str, Any] = {
    "batch_size": 32,
    "normalize_embeddings": True,
    "show_progress_bar": False,
}
_NO_PART_OF_A_MODEL = {".md", ".png", ".jpg", ".gitattributes", ".py", ".pyc"}
# What a folder may be made of: stock modules that read settings and safetensors. Any other word
# under `sentence_transformers` would be imported too, and made with what the folder says.
_MODULES = {
    "Transformer",
    "Pooling",
    "Normalize",
    "Dense",
    "LayerNorm",
    "StaticEmbedding",
    "WeightedLayerPooling",
}
_MODULES |= {"Dropout", "CNN", "LSTM", "BoW", "WordWeights"}
_ADVICE = "where you trust it, load it yourself and give SentenceEmbedder(model, ...)"
_OTHER_BACKENDS = {"onnx", "openvino", ".git", ".cache", "__pycache__"}


@dataclass(frozen=True)
class _Job:
    """One document: what comes before its text, the text, its passages, and how many of them are
    known already.
    """

    prefix: str
    text: str
    cuts: Cuts
    counts: np.ndarray  # int64 [n], tokens of each passage, prefix included
    n_cut: int
    known: np.ndarray | None = None  # float32 [m, d]

    @property
    def n_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def n_known(self) -> int:
        return 0 if self.known is None else len(self.known)

    def passage(self, number: int) -> str:
        start, stop = self.cuts.spans[number]
        return (self.prefix if number == 0 else "") + self.text[start:stop]


class SentenceEmbedder(TextEncoder):
    """Encodes documents and queries with a sentence-transformers model.

    Attributes:
        dim: width of the vectors. window: tokens that the model reads at once; None: any number.
            precision: of the weights.
        model_name, fingerprint, prompts, max_tokens, passage_size, token_codec: as `Embedder`'s;
            `passage_size` also says whether passages are encoded one by one (the default) or late.
        token_dim: width of the vectors of tokens; 0 where there are none.
    """

    def __init__(
        self,
        model: Any,
        *,
        model_name: str,
        fingerprint: str,
        max_tokens: int | None = None,
        batch_tokens: int = 16384,
        passage_size: PassageSize | None = None,
    ) -> None:
        """Take a loaded `SentenceTransformer`; `load` is the usual way."""
        super().__init__(max_tokens, batch_tokens)
        self.model, self.model_name, self.fingerprint = model.eval(), model_name, fingerprint
        first = next(model.parameters(), None)  # None: of a model without weights (BoW)
        self.precision = "float32" if first is None else str(first.dtype).removeprefix("torch.")
        self.dim = int(model.get_embedding_dimension())
        limit = model.max_seq_length
        self.window: int | None = int(limit) if limit is not None and limit < 1 << 30 else None
        named = [name for name in _DOCUMENT_PROMPTS if name in model.prompts]
        self.prompts = {
            "query": model.prompts.get("query") or "",
            "document": (model.prompts[named[0]] or "") if named else "",
        }
        self._tokenizer = offset_tokenizer(model, model_name)
        self._overhead = len(self._tokenizer.encode(self.prompts["document"]).ids)
        self.passage_size = self._checked(passage_size)
        self.token_dim: int = model[0].get_embedding_dimension() if has_token_vectors(model) else 0

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        name: str | None = None,
        device: str = "cpu",
        precision: str = "float32",
        max_tokens: int | None = None,
        batch_tokens: int = 16384,
        truncate_dim: int | None = None,
        passage_size: PassageSize | None = None,
    ) -> SentenceEmbedder:
        """Load a sentence-transformers folder: weights from safetensors only, and without running
        code from it.

        The options are those of `Embedder.load`; `loading.load_encoder` also takes names.

        Args:
            truncate_dim: keep only the first components of each vector, for models that were
                trained for it.
            passage_size: None: the default size, or what fits into the model's window.
        """
        folder = Path(folder)
        if precision not in _PRECISIONS:
            raise ConfigError(
                f"precision is {precision!r}; {folder} computes in one of {', '.join(_PRECISIONS)}"
            )
        if truncate_dim is not None and truncate_dim < 1:
            raise ConfigError(f"truncate_dim is {truncate_dim}; it must be at least 1")
        model = load_sentence_transformer(
            folder, device=device, precision=precision, truncate_dim=truncate_dim
        )
        return cls(
            model,
            model_name=name or str(folder),
            fingerprint=fingerprint(
                folder, model_files(folder), {"truncate_dim": str(truncate_dim)}
            ),
            max_tokens=max_tokens,
            batch_tokens=batch_tokens,
            passage_size=passage_size,
        )

    def with_token_codec(self, codec: TokenCodec | None) -> Self:
        """See `TextEncoder.with_token_codec`; ConfigError: the model has no vectors of tokens."""
        if codec is not None:
            self._check_token_vectors("leave token_vectors out")
        return super().with_token_codec(codec)

    def encode_grown(
        self, prefix: str, text: str, passages: np.ndarray, norms: np.ndarray
    ) -> EncodedDocument:
        """Encode a text whose first passages, unit vectors float32 `[m, d]`, are known; see
        `unchanged_passages`.
        """
        return next(
            self._encode([replace(self._grown(prefix, text, passages, norms), known=passages)])
        )

    def unchanged_passages(self, old: tuple[str, str], new: tuple[str, str]) -> int:
        """How many leading passages of two (prefix, text) pairs have the same vectors."""
        if self.passage_size.late:
            return 0  # a passage's window may now hold other neighbours
        before, after = self._cut(*old), self._cut(*new)
        count = min(len(before.cuts), len(after.cuts))
        same = (before.passage(i) == after.passage(i) for i in range(count))
        return next((i for i, equal in enumerate(same) if not equal), count)

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """float32 `[n, d]`, unit rows: the queries' vectors, query prompt included."""
        texts = as_texts(queries, "queries")
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        return self._rows(self.model.encode_query(texts, **_OPTIONS))

    def count_tokens(self, texts: Sequence[str], *, prompt: str) -> list[int]:
        """Count the tokens of each text as a "query" or a "document", prompt and special tokens
        included.

        Of a query longer than the model's window, only what fits is read and counted; documents are
        read whole.
        """
        counts = [
            len(self._tokenizer.encode(self.prompts[prompt] + text).ids)
            for text in as_texts(texts, "texts")
        ]
        if prompt == "query" and self.window is not None:
            return [min(count, self.window) for count in counts]
        return counts

    def word_vectors(
        self, texts: Sequence[str]
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
        """Look up unit rows float32 `[n, D]` of tokens; of each text which its have, and where they
        begin `[T]`.
        """
        self._check_token_vectors("leave them out")
        found = self._tokenizer.encode_batch(as_texts(texts, "texts"), add_special_tokens=False)
        ids, numbers = number_tokens([each.ids for each in found])
        with torch.inference_mode():
            table = self.model[0].auto_model.get_input_embeddings()
            rows = table(torch.from_numpy(ids).to(self.model.device)).float()
        places = [np.array([start for start, _ in each.offsets], dtype=np.int64) for each in found]
        return torch.nn.functional.normalize(rows, dim=-1).cpu().numpy(), list(
            zip(numbers, places, strict=True)
        )

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[np.ndarray]:
        """For late interaction: float32 `[T, d]` unit rows for each text, prompt and special tokens
        included.
        """
        self._check_token_vectors("leave rerank out")
        options = {**_OPTIONS, "normalize_embeddings": False, "output_value": "token_embeddings"}
        found = self.model.encode(as_texts(texts, "texts"), prompt=self.prompts[prompt], **options)
        return [torch.nn.functional.normalize(rows.float(), dim=-1).cpu().numpy() for rows in found]

    def _check_token_vectors(self, advice: str) -> None:
        if not has_token_vectors(self.model):
            raise ConfigError(
                f"{self.model_name}: has no vectors of tokens for late interaction; {advice}"
            )

    def _checked(self, size: PassageSize | None) -> PassageSize:
        if size is None:
            fitting = (
                self.window - self._overhead if self.window is not None else DEFAULT_SIZE.tokens
            )
            size = PassageSize(min(DEFAULT_SIZE.tokens, fitting))
        if self.window is not None and size.tokens > self.window - self._overhead:
            raise ConfigError(
                f"passage_tokens is {size.tokens}; {self.model_name} reads {self.window} tokens at"
                f" once, {self._overhead} of them its own marks and prompt: give at most"
                f" {self.window - self._overhead}"
            )
        if size.titled:
            raise ConfigError(
                f"titled=True: {self.model_name} is no Avey-B model and has no splits; leave"
                " titled out"
            )
        if size.late and (reason := self._not_late()):
            raise ConfigError(
                f"late=True: {self.model_name} {reason}; leave late out to encode passages one"
                " by one"
            )
        return replace(size, titled=False)

    def _not_late(self) -> str | None:
        """Why the model cannot encode passages late, or None."""
        from sentence_transformers.sentence_transformer.modules import Pooling

        if not has_token_vectors(self.model):
            return "has no token outputs that see their neighbours"
        pooling = self.model[1]
        if not isinstance(pooling, Pooling) or pooling.pooling_mode not in ("mean", ("mean",)):
            mode = getattr(pooling, "pooling_mode", type(pooling).__name__)
            return (
                f"pools by {mode!r}, and a passage within its document can only be a mean of token"
                " outputs"
            )
        return None if pooling.include_prompt else "leaves its prompt out of the mean"

    def _cut(self, prefix: str, text: str) -> _Job:
        before = len(prefix)
        offsets = np.array(
            self._tokenizer.encode(prefix + text, add_special_tokens=False).offsets, dtype=np.int64
        )
        offsets = offsets.reshape(-1, 2)
        kept = len(offsets) if self.max_tokens is None else min(len(offsets), self.max_tokens)
        cuts = cut_passages(text, offsets[:kept] - before, self.passage_size)
        job = _Job(prefix, text, cuts, np.diff(cuts.ranges, axis=1)[:, 0], len(offsets) - kept)
        if (
            self.window is not None
        ):  # the model will cut off tokens of passages that do not fit into it
            room = self.window - self._overhead
            close = np.flatnonzero(job.counts > room - _MARGIN)
            lengths = [
                len(self._tokenizer.encode(job.passage(i), add_special_tokens=False).ids)
                for i in close
            ]
            job = replace(job, n_cut=job.n_cut + sum(max(0, length - room) for length in lengths))
        return job

    def _encode(self, batch: list[_Job]) -> Iterator[EncodedDocument]:
        late = bool(self.passage_size.late)
        texts: list[str] = []
        whole: list[int | None] = []
        firsts: list[int] = []
        for job in batch:
            single = bool(len(job.cuts))  # the model reads the whole document at once
            if single and self.window is not None:
                single = (
                    not job.n_cut and int(job.cuts.ranges[-1, 1]) + self._overhead <= self.window
                )
            whole.append(len(texts) if single else None)
            if single:
                texts.append(
                    job.prefix
                    + (job.text if self.max_tokens is None else job.text[: job.cuts.spans[-1, 1]])
                )
            firsts.append(len(texts))
            if not late and not (
                single and len(job.cuts) == 1
            ):  # a passage that is all of its document is known
                texts += [job.passage(i) for i in range(job.n_known, len(job.cuts))]
        vectors, codes = self._documents(texts)
        for job, one, first in zip(batch, whole, firsts, strict=True):
            new = len(job.cuts) - job.n_known
            if late:
                passages, tokens = self._late(job)
            elif one is not None and len(job.cuts) == 1:
                passages, tokens = vectors[one : one + 1], codes[one : one + new]
            else:
                passages, tokens = vectors[first : first + new], codes[first : first + new]
            if (
                job.known is not None
                and job.n_known
                and not (one is not None and len(job.cuts) == 1)
            ):
                passages = np.concatenate([job.known, passages])
            total = (job.counts[:, None] * passages).sum(axis=0)
            length = float(np.linalg.norm(total))
            mean = (total / length if length else total).astype(np.float32)
            yield EncodedDocument(
                vector=mean if one is None else vectors[one],
                passages=passages,
                norms=np.ones(len(passages), np.float32),
                spans=job.cuts.spans,
                n_tokens=int(job.cuts.ranges[-1, 1]) if len(job.cuts) else 0,
                n_cut=job.n_cut,
                headings=job.cuts.headings,
                tokens=None if self.token_codec is None else self.token_codec.concatenate(tokens),
            )

    def _documents(self, texts: list[str]) -> tuple[np.ndarray, list[TokenCodes]]:
        """Return unit rows float32 `[n, d]` and, with a codec, the codes of each text's tokens."""
        if not texts:
            return np.zeros((0, self.dim), np.float32), []
        if self.token_codec is None:
            return self._rows(self.model.encode_document(texts, **_OPTIONS)), []
        found = self.model.encode_document(texts, **{**_OPTIONS, "output_value": None})
        vectors = torch.stack([each["sentence_embedding"] for each in found]).float()
        outputs = [each["token_embeddings"][each["attention_mask"].bool()] for each in found]
        return self._rows(torch.nn.functional.normalize(vectors, dim=-1).cpu()), [
            TokenCodes(self.token_codec.encode(rows), np.array([[0, len(rows)]]))
            for rows in outputs
        ]

    def _rows(self, vectors: Any) -> np.ndarray:
        return np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1, self.dim)

    def _late(self, job: _Job) -> tuple[np.ndarray, list[TokenCodes]]:
        """Return unit vectors float32 `[n, d]` of all passages, encoded window by window, and codes
        as `_documents`.
        """
        windows = [self._late_window(job, first, end) for first, end in self._windows(job)]
        rows = [np.zeros((0, self.dim), np.float32), *(vectors for vectors, _ in windows)]
        return np.concatenate(rows), [codes for _, codes in windows if codes is not None]

    def _windows(self, job: _Job) -> Iterator[tuple[int, int]]:
        """Runs of passages [first, end) that fit into the model's window."""
        first = 0
        room = (self.window or 1 << 62) - self._overhead - _MARGIN
        for end in range(1, len(job.cuts) + 1):
            inside = job.cuts.ranges[end - 1, 1] - job.cuts.ranges[first, 0]
            if inside > room and end - 1 > first:
                yield first, end - 1
                first = end - 1
        if len(job.cuts):
            yield first, len(job.cuts)

    def _late_window(self, job: _Job, first: int, end: int) -> tuple[np.ndarray, TokenCodes | None]:
        spans = job.cuts.spans[first:end]
        prefix = self.prompts["document"] + (job.prefix if first == 0 else "")
        base = int(spans[0, 0])
        encoding = self._tokenizer.encode(prefix + job.text[base : int(spans[-1, 1])])
        length = len(encoding.ids) if self.window is None else min(len(encoding.ids), self.window)
        device = self.model.device
        features = {
            "input_ids": torch.tensor([encoding.ids[:length]], device=device),
            "attention_mask": torch.ones(1, length, dtype=torch.int64, device=device),
        }
        with torch.inference_mode():
            outputs = self.model[0](features)["token_embeddings"][0].float()
            places = np.array(encoding.offsets[:length])[:, 0] - len(prefix) + base
            special = np.array(encoding.special_tokens_mask[:length], dtype=bool)
            places[special] = np.where(np.arange(length) < length // 2, base, spans[-1, 1] - 1)[
                special
            ]
            places = places.clip(base, max(int(spans[-1, 1]) - 1, base))
            inside = (places >= spans[:, :1]) & (
                places < np.maximum(spans[:, 1:], spans[:, :1] + 1)
            )
            weights = torch.from_numpy(
                inside / np.maximum(inside.sum(axis=1, keepdims=True), 1)
            ).to(outputs)
            pooled: dict[str, Any] = {
                "sentence_embedding": (weights @ outputs).to(self.model.dtype)
            }
            for module in list(self.model)[2:]:
                pooled = module(pooled)
            vectors = pooled["sentence_embedding"].float()[:, : self.dim]
            vectors = torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy()
            if self.token_codec is None:
                return vectors, None
            begins = inside.argmax(axis=1)  # a passage's tokens follow each other
            ranges = np.stack([begins, begins + inside.sum(axis=1)], axis=1)
            return vectors, TokenCodes(self.token_codec.encode(outputs), ranges)


def load_sentence_transformer(
    folder: Path, *, device: str, precision: str, truncate_dim: int | None
) -> Any:
    """Load a sentence-transformers folder; pickled weights and modules of its own are refused."""
    from sentence_transformers import SentenceTransformer

    _check_no_pickle(folder)
    options = {"dtype": precision, "use_safetensors": True}
    try:
        modules = read_modules(folder, _MODULES, _ADVICE)
        with _no_progress_bar():
            model = SentenceTransformer(
                str(folder),
                device=device,
                truncate_dim=truncate_dim,
                local_files_only=True,
                model_kwargs=options,
            )
    except LOADING_ERRORS as error:
        raise ModelError(
            f"{folder}: sentence-transformers cannot load it ({type(error).__name__}:"
            f" {first_line(error)}); check that the folder is complete"
        ) from error
    _check_filled(model, [folder / module.path for module in modules])
    return model


def has_token_vectors(model: Any) -> bool:
    """Return whether a model has outputs of tokens that see their neighbours."""
    from sentence_transformers.base.modules import Transformer

    return len(model) > 1 and isinstance(model[0], Transformer)


def offset_tokenizer(model: Any, name: str) -> Any:
    """Return the model's own tokenizer, which neither cuts nor pads; ModelError: it has no
    characters of tokens.
    """
    from tokenizers import Tokenizer

    backend = model.tokenizer if isinstance(model.tokenizer, Tokenizer) else None
    backend = backend or getattr(model.tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ModelError(
            f"{name}: its tokenizer ({type(model.tokenizer).__name__}) cannot say which characters"
            " a token stands for; save the model with a fast tokenizer (tokenizer.json)"
        )
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def model_files(folder: Path) -> list[str]:
    """Return every file that the model is made of: weights, configuration, tokenizer
    and prompts.
    """
    files = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        file.as_posix()
        for file in files
        if file.suffix not in _NO_PART_OF_A_MODEL and not _OTHER_BACKENDS & set(file.parts)
    ]


def _check_no_pickle(folder: Path) -> None:
    for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl"):
        for path in folder.rglob(pattern):
            if not any(path.parent.glob("*.safetensors")) and not _OTHER_BACKENDS & set(
                path.relative_to(folder).parts
            ):
                raise ModelError(
                    f"{path}: a pickled file; this package reads weights from safetensors only"
                    " (convert it with safetensors.torch.save_file in a place you trust)"
                )


def _check_filled(model: Any, folders: list[Path]) -> None:
    """Raise ModelError where weights of a transformer, one of the modules, are missing and were
    left random.
    """
    from sentence_transformers.base.modules import Transformer
    from transformers import AutoModel

    for path, module in zip(folders, model, strict=False):
        if not isinstance(module, Transformer):
            continue
        saved: set[str] = set()
        for file in path.glob("*.safetensors"):
            with safe_open(file, framework="pt") as tensors:
                saved |= set(tensors.keys())
        wanted = {name for name in module.auto_model.state_dict() if not name.startswith("pooler.")}
        if all(
            any(name == key or name.endswith("." + key) for name in saved) for key in wanted - saved
        ):
            continue
        _, found = AutoModel.from_pretrained(path, output_loading_info=True, use_safetensors=True)
        missing = sorted(key for key in found["missing_keys"] if not key.startswith("pooler."))
        if missing:
            raise ModelError(
                f"{path}: the checkpoint lacks {len(missing)} of the model's tensors, first"
                f" {missing[0]!r}; they would be random: use a complete checkpoint of this"
                " architecture"
            )


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing a bar while it loads weights."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
