"""The model inside the package: small enough, float32 once loaded, and trained, not random."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import aveyb_retrieval  # noqa: F401  (registers the architecture)
from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.folders import DEFAULT_MODEL, EMBEDDED, MODELS
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ModelError

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

    assert (DEFAULT_MODEL / "model.safetensors").stat().st_size <= 16 * 2**20
    model = SentenceTransformer(str(DEFAULT_MODEL), device="cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    ours = Embedder.load(precision="float32")
    assert ours.dim == model.get_embedding_dimension() == 256
    assert np.allclose(ours.encode_queries(QUERIES), model.encode_query(QUERIES), atol=1e-5)
    assert ours.prompts == model.prompts


def test_it_runs_in_int8_by_default_and_near_its_float32() -> None:
    ours, exact = Embedder.load(), Embedder.load(precision="float32")
    assert ours.precision == "int8"
    assert ours.fingerprint == exact.fingerprint
    documents = [("", text) for text in [*TEXTS, " ".join(TEXTS * 40)]]
    for left, right in zip(ours.encode_documents(documents), exact.encode_documents(documents), strict=True):
        assert left.vector @ right.vector > 0.9998
        assert (left.passages * right.passages).sum(1).min() > 0.9998
    assert (ours.encode_queries(QUERIES) * exact.encode_queries(QUERIES)).sum(1).min() > 0.9998


@pytest.mark.parametrize("name", EMBEDDED)
def test_it_finds_the_right_text(name: str) -> None:
    embedder = Embedder.load(name)
    documents = np.stack([d.vector for d in embedder.encode_documents(("", text) for text in TEXTS)])
    scores = embedder.encode_queries(QUERIES) @ documents.T
    assert scores.argmax(1).tolist() == [0, 1, 2, 3]


def test_an_index_is_searched_with_the_embedded_model_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index([{"_id": str(i), "text": text} for i, text in enumerate(TEXTS)], tmp_path / "index")
    # another default, which is not even there: the index finds its own by name
    monkeypatch.setattr("aveyb_retrieval.encoder.folders.DEFAULT_MODEL", tmp_path / "another")
    with pytest.raises(ModelError, match="another: the embedded model is missing"):
        Embedder.load()
    retriever = Retriever.load(tmp_path / "index")
    assert [retriever.search(query, 1)[0].id for query in QUERIES] == ["0", "1", "2", "3"]


def test_the_model_of_the_repository_runs_in_int8_and_as_a_sentence_transformer() -> None:
    from sentence_transformers import SentenceTransformer

    ours, exact = Embedder.load("aveyb-base-en"), Embedder.load("aveyb-base-en", precision="float32")
    assert (ours.precision, ours.dim, ours.fingerprint) == ("int8", 384, exact.fingerprint)
    theirs = SentenceTransformer(str(MODELS / "aveyb-base-en"), device="cpu")
    assert np.allclose(exact.encode_queries(QUERIES), theirs.encode_query(QUERIES), atol=1e-5)
    assert (ours.encode_queries(QUERIES) * exact.encode_queries(QUERIES)).sum(1).min() > 0.998


def test_an_installation_without_it_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aveyb_retrieval.encoder.folders.MODELS", tmp_path)
    with pytest.raises(ModelError, match="aveyb-base-en: its weights are in no wheel; give its folder"):
        Embedder.load("aveyb-base-en")


def test_vocabulary_agrees_with_auto_tokenizer() -> None:
    from transformers import AutoTokenizer

    tokenizer = AveyBTokenizer.load(DEFAULT_MODEL)
    theirs = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    for text in [*QUERIES, *TEXTS, "naïve café 🙂 [MASK] 3.14159 \n\n\t end"]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text)[0].tolist()
        assert tokenizer.decode(tokenizer.encode(text)[0]) == text
    assert json.loads((DEFAULT_MODEL / "config.json").read_text())["vocab_size"] == tokenizer.vocab_size
