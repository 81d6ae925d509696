"""Model folders with ONNX forms, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.onnx.export import export_onnx
from aveyb_retrieval.encoder.onnx.graph import int8_rows
from aveyb_retrieval.encoder.onnx.model import OnnxModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from tests.encoder.models import small_config, small_model

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.encoder.settings import EncoderSettings

PRECISIONS = ("float32", "int8")


def byte_tokenizer() -> AveyBTokenizer:
    """A vocabulary of single bytes."""
    return AveyBTokenizer.from_ranks([bytes([byte]) for byte in range(256)])


def save_model(
    folder: Path, preset: str = "paper", *, forms: tuple[str, ...] = PRECISIONS, **overrides: Any
) -> Path:
    """Save a small random model with its tokenizer and ONNX forms."""
    tokenizer = byte_tokenizer()
    model = small_model(preset, **{"vocab_size": len(tokenizer), **overrides})
    model.save_pretrained(folder)
    tokenizer.save(folder)
    for precision in forms:
        export_onnx(folder, precision=precision)
    return folder


def settings_of(**overrides: object) -> EncoderSettings:
    """The settings of a small model."""
    return small_config("paper", **overrides).settings


def store_table_in_int8(folder: Path) -> None:
    """Rewrite a model's checkpoint with int8 rows of embeddings."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    rows = int8_rows(tensors["embed.weight"].float().numpy())
    tensors["embed.weight"], tensors["embed.scale"] = map(torch.from_numpy, rows)
    save_file(tensors, path, metadata={"format": "pt"})


def with_form(folder: Path, precision: str) -> Embedder:
    """Return the model of a folder in an ONNX form, also in float32."""
    embedder = Embedder.load(folder, precision="int8")
    embedder.model, embedder.precision = OnnxModel.load(folder, precision), precision
    return embedder


def texts(lengths: list[int], seed: int = 0) -> list[tuple[str, str]]:
    """Texts of so many tokens, that is, ASCII characters."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghij klmnopqrstu.\n"))
    return [("", "".join(rng.choice(letters, length))) for length in lengths]


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Row by row."""
    found: np.ndarray = (
        (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    )
    return found
