"""The ONNX form of a model folder as a sentence-transformers model.

Its own `backend="onnx"` needs optimum, which gives a graph padded ids of whole texts; ours reads splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoTokenizer

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def onnx_sentence_transformer(model: str | Path | None = None) -> SentenceTransformer:
    """Open the int8 form of a model, named as for `Embedder.load`, which says what is raised; it runs on the CPU."""
    embedder = Embedder.load(model, precision="int8")
    modules = [OnnxTokens(embedder), Pooling(embedder.dim, pooling_mode="mean"), Normalize()]
    return SentenceTransformer(modules=modules, prompts=embedder.prompts, similarity_fn_name="cosine", device="cpu")


class OnnxTokens(InputModule):
    """Texts to token vectors: what takes the place of sentence-transformers' Transformer."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.onnx, self.dim = embedder.model, embedder.dim
        self.tokenizer: Any = AutoTokenizer.from_pretrained(self.onnx.folder)

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return int64 `[n, T]` of ids and of ones where they are."""
        return dict(self.tokenizer([f"{prompt or ''}{text}" for text in inputs], padding=True, return_tensors="pt"))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `token_embeddings`, float32 `[n, T, D]`, zeros where no token is."""
        ids, present = features["input_ids"].int().numpy(), features["attention_mask"].bool().numpy()
        counts, own = present.sum(axis=1).tolist(), np.ones(present.sum(), np.int64)  # each token is its own sum
        vectors, needed = np.zeros((*ids.shape, self.dim), np.float32), [0] * len(ids)
        vectors[present], _ = self.onnx.token_sums(
            ids[present], counts, own, first_needed=needed, funnel=False, codec=None
        )
        return features | {"token_embeddings": torch.from_numpy(vectors)}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refuse: a saved folder is opened by torch."""
        raise ModelError(f"{output_path}: an ONNX form is not saved from here; copy the model's folder")
