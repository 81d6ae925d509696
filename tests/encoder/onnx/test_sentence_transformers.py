"""The ONNX form inside a sentence-transformers model gives the vectors of `Embedder`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.sentence_embedder import onnx_sentence_transformer
from aveyb_retrieval.errors import ModelError
from tests.encoder.onnx.forms import cosines, save_model, texts

if TYPE_CHECKING:
    from pathlib import Path

LONG = "The tenant may end the lease. " * 120  # several splits, so that the ranker has to choose
TEXTS = ["Close the valve.", LONG, "München Ünïcode CAPITALS", "a", LONG[:400]]


def test_the_embedded_model_gives_the_same_vectors() -> None:
    model, embedder = onnx_sentence_transformer(), Embedder.load(precision="int8")
    documents = np.stack([document.vector for document in embedder.encode_documents(("", text) for text in TEXTS)])
    np.testing.assert_allclose(model.encode_document(TEXTS, batch_size=2), documents, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(TEXTS), embedder.encode_queries(TEXTS), atol=1e-5)
    exact = Embedder.load(precision="float32").encode_queries(TEXTS)
    assert cosines(np.asarray(model.encode_query(TEXTS)), exact).min() > 0.998
    assert model.get_embedding_dimension() == embedder.dim
    assert float(model.similarity(documents[:1], documents[:1])) == pytest.approx(1)


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_splits_of_every_length_do(preset: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, preset)
    words = [text for _, text in texts([60, 1, 16, 100])]
    exact = Embedder.load(folder).encode_queries(words)
    np.testing.assert_allclose(onnx_sentence_transformer(folder).encode_query(words), exact, atol=1e-5)


def test_a_folder_without_the_form_is_refused_and_nothing_is_saved(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", forms=())
    with pytest.raises(ModelError, match=r"model_int8.onnx: no such file"):
        onnx_sentence_transformer(folder)
    with pytest.raises(ModelError, match="copy the model's folder"):
        onnx_sentence_transformer().save(str(tmp_path / "copy"))
