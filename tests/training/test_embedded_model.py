"""The model inside the package: small enough, float32 once loaded, and trained, not random."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import aveyb_retrieval  # noqa: F401  (registers the architecture)
from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.errors import IndexFormatError, ModelError
from tests.encoder.models import small_model

QUERIES = [
    "how to lock part of a file",
    "why do prices rise",
    "symptoms of an infection",
    "marriage in a country house",
]
TEXTS = [
    "Locks a region of an open file so that other processes cannot write to these bytes until it is unlocked.",
    "Inflation follows when demand for goods grows faster than their supply, or when the money supply expands.",
    "Fever, chills and a sore throat are common signs; see a doctor if they last longer than three days.",
    "The squire's eldest daughter was to wed in the spring, and the old hall had not seen such guests for years.",
]


def test_weights_are_small_and_load_as_float32() -> None:
    from sentence_transformers import SentenceTransformer

    assert (DEFAULT_MODEL / "model.safetensors").stat().st_size <= 26 * 2**20
    model = SentenceTransformer(str(DEFAULT_MODEL), device="cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    ours = Embedder.load(precision="float32")
    assert ours.dim == model.get_embedding_dimension() == 384
    assert np.allclose(ours.encode_queries(QUERIES), model.encode_query(QUERIES), atol=1e-5)
    assert ours.prompts == model.prompts


def test_it_runs_in_int8_by_default_and_near_its_float32() -> None:
    ours, exact = Embedder.load(), Embedder.load(precision="float32")
    assert ours.precision == "int8"
    assert ours.fingerprint == exact.fingerprint
    documents = [("", text) for text in [*TEXTS, " ".join(TEXTS * 40)]]
    for left, right in zip(ours.encode_documents(documents), exact.encode_documents(documents), strict=True):
        assert left.vector @ right.vector > 0.999
        assert (left.passages * right.passages).sum(1).min() > 0.999
    assert (ours.encode_queries(QUERIES) * exact.encode_queries(QUERIES)).sum(1).min() > 0.998


def test_it_finds_the_right_text() -> None:
    embedder = Embedder.load("aveyb-base-en-v2")
    documents = np.stack([d.vector for d in embedder.encode_documents(("", text) for text in TEXTS)])
    scores = embedder.encode_queries(QUERIES) @ documents.T
    assert scores.argmax(1).tolist() == [0, 1, 2, 3]


def test_an_index_of_another_embedded_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index([{"_id": str(i), "text": text} for i, text in enumerate(TEXTS)], tmp_path / "index")
    with Retriever.load(tmp_path / "index") as retriever:
        assert [retriever.search(query, 1)[0].id for query in QUERIES] == ["0", "1", "2", "3"]
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    model = small_model("paper", vocab_size=tokenizer.vocab_size)
    sentence_transformer(model, tokenizer, tmp_path / "another")
    monkeypatch.setattr("aveyb_retrieval.encoder.folders.DEFAULT_MODEL", tmp_path / "another")
    with (
        pytest.raises(IndexFormatError, match=r"made by the model aveyb-base-en-v2 \(fingerprint \w+\), but this is"),
        Retriever.load(tmp_path / "index") as retriever,
    ):
        retriever.search("locks")


def test_an_installation_without_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aveyb_retrieval.encoder.folders.DEFAULT_MODEL", tmp_path / "another")
    with pytest.raises(ModelError, match="another: the embedded model is missing"):
        Embedder.load()


def test_vocabulary_agrees_with_auto_tokenizer() -> None:
    from transformers import AutoTokenizer

    tokenizer = read_vocabulary(DEFAULT_MODEL)
    theirs = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    for text in [*QUERIES, *TEXTS, "naïve café 🙂 3.14159 \n\n\t end"]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)[0].tolist()
    assert json.loads((DEFAULT_MODEL / "config.json").read_text())["vocab_size"] == tokenizer.vocab_size
