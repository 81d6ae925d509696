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

from aveyb_retrieval.encoder.folders import model_folder
from aveyb_retrieval.encoder.onnx.model import OnnxModel
from aveyb_retrieval.encoder.sentence_transformers import check_mean_pooling, read_prompts
from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def onnx_sentence_transformer(model: str | Path | None = None, *, precision: str = "int8") -> SentenceTransformer:
    """Open the ONNX form of a model, with its prompts, on the CPU: `encode_query` and `encode_document` as in torch.

    Args:
        model: a folder or a name on the Hugging Face hub; None: the embedded model.
        precision: "int8" or "float32".

    Raises:
        ModelError: there is no such form, it is damaged or foreign, or the model does not pool by the mean.
    """
    folder = model_folder(model)
    check_mean_pooling(folder)
    tokens = OnnxTokens(folder, precision)
    pooling = Pooling(tokens.onnx.config.hidden_size, pooling_mode="mean")
    return SentenceTransformer(
        modules=[tokens, pooling, Normalize()],
        prompts=read_prompts(folder),
        similarity_fn_name="cosine",
        device="cpu",
    )


class OnnxTokens(InputModule):
    """Texts to token vectors: what takes the place of sentence-transformers' Transformer."""

    def __init__(self, folder: Path, precision: str) -> None:
        """Open the form of a folder; raises ModelError as `OnnxModel.load`."""
        super().__init__()
        self.onnx = OnnxModel.load(folder, precision)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return int64 `[n, T]` of ids and of ones where they are."""
        return dict(self.tokenizer([f"{prompt or ''}{text}" for text in inputs], padding=True, return_tensors="pt"))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `token_embeddings`, float32 `[n, T, D]`, zeros where no token is."""
        ids, present = features["input_ids"].int().numpy(), features["attention_mask"].bool().numpy()
        counts, own = present.sum(axis=1).tolist(), np.ones(present.sum(), np.int64)  # each token is its own sum
        vectors = np.zeros((*ids.shape, self.onnx.config.hidden_size), np.float32)
        vectors[present], _ = self.onnx.token_sums(
            ids[present], counts, own, first_needed=[0] * len(counts), funnel=False, codec=None
        )
        return features | {"token_embeddings": torch.from_numpy(vectors)}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refuse: a saved folder is opened by torch, so copy the one that it came from."""
        raise ModelError(f"{output_path}: an ONNX form is not saved from here; copy the folder {self.onnx.folder}")
