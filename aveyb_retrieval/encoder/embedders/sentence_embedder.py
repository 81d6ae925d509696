"""SentenceEmbedder: any sentence-transformers model behind the methods of our `Embedder`.

It runs by torch, on any device; `windows` says how it reads a long document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open

from aveyb_retrieval.encoder.config import LOADING_ERRORS
from aveyb_retrieval.encoder.embedders.embedder import number_tokens
from aveyb_retrieval.encoder.embedders.sentence_transformers import read_modules
from aveyb_retrieval.encoder.embedders.windows import (
    OTHER_BACKENDS,
    WindowEncoder,
    choose_prompts,
    model_files,
)
from aveyb_retrieval.encoder.model_folders import fingerprint
from aveyb_retrieval.encoder.network.token_codec import TokenCodec, TokenCodes
from aveyb_retrieval.encoder.progress_bars import without_progress_bars
from aveyb_retrieval.encoder.text.tokenizer import as_texts
from aveyb_retrieval.errors import ConfigError, ModelError, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from aveyb_retrieval.encoder.text.passages import PassageSize

_PRECISIONS = ("float32", "bfloat16", "float16")
_OPTIONS: dict[str, Any] = {
    "batch_size": 32,
    "normalize_embeddings": True,
    "show_progress_bar": False,
}
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


class SentenceEmbedder(WindowEncoder):
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
        self.prompts = choose_prompts(model.prompts)
        self._tokenizer = offset_tokenizer(model, model_name)
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

    @property
    def computes_on_cpu(self) -> bool:
        """See `TextEncoder.computes_on_cpu`."""
        return bool(self.model.device.type == "cpu")

    def with_token_codec(self, codec: TokenCodec | None) -> Self:
        """See `TextEncoder.with_token_codec`; ConfigError: the model has no vectors of tokens."""
        if codec is not None:
            self._check_token_vectors("leave token_vectors out")
        return super().with_token_codec(codec)

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """float32 `[n, d]`, unit rows: the queries' vectors, query prompt included."""
        texts = as_texts(queries, "queries")
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        return self._rows(self.model.encode_query(texts, **_OPTIONS))

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

    def _window_vectors(self, ids: list[int], weights: np.ndarray) -> tuple[np.ndarray, Any]:
        device = self.model.device
        features = {
            "input_ids": torch.tensor([ids], device=device),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.int64, device=device),
        }
        with torch.inference_mode():
            outputs = self.model[0](features)["token_embeddings"][0].float()
            means = torch.from_numpy(weights).to(outputs) @ outputs
            pooled: dict[str, Any] = {"sentence_embedding": means.to(self.model.dtype)}
            for module in list(self.model)[2:]:
                pooled = module(pooled)
            vectors = pooled["sentence_embedding"].float()[:, : self.dim]
            return torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy(), outputs


def load_sentence_transformer(
    folder: Path, *, device: str, precision: str, truncate_dim: int | None
) -> Any:
    """Load a sentence-transformers folder; pickled weights and modules of its own are refused."""
    from sentence_transformers import SentenceTransformer

    _check_no_pickle(folder)
    options = {"dtype": precision, "use_safetensors": True}
    try:
        modules = read_modules(folder, _MODULES, _ADVICE)
        with without_progress_bars():
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


def _check_no_pickle(folder: Path) -> None:
    for pattern in ("*.bin", "*.pt", "*.pth", "*.pkl"):
        for path in folder.rglob(pattern):
            if not any(path.parent.glob("*.safetensors")) and not OTHER_BACKENDS & set(
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
