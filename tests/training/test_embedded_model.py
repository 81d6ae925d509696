"""The model inside the package: small enough, float32 once loaded, and trained, not random."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import aveyb_retrieval  # noqa: F401
from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.errors import IndexFormatError, ModelError
from tests.encoder.models import small_model

CARD = DEFAULT_MODEL / "README.md"
QUERIES = [
    "how to lock part of a file",
    "why do prices rise",
    "symptoms of an infection",
    "marriage in a country house",
]
TEXTS = [
    (
        "Locks a region of an open file so that other processes cannot write to these bytes until"
        " it is unlocked."
    ),
    (
        "Inflation follows when demand for goods grows faster than their supply, or when the money"
        " supply expands."
    ),
    (
        "Fever, chills and a sore throat are common signs; see a doctor if they last longer than"
        " three days."
    ),
    (
        "The squire's eldest daughter was to wed in the spring, and the old hall had not seen such"
        " guests for years."
    ),
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
    for left, right in zip(
        ours.encode_documents(documents), exact.encode_documents(documents), strict=True
    ):
        assert left.vector @ right.vector > 0.999
        assert (left.passages * right.passages).sum(1).min() > 0.999
    assert (ours.encode_queries(QUERIES) * exact.encode_queries(QUERIES)).sum(1).min() > 0.998


def test_it_finds_the_right_text() -> None:
    embedder = Embedder.load("aveyb-base-en-v2")
    documents = np.stack(
        [d.vector for d in embedder.encode_documents(("", text) for text in TEXTS)]
    )
    scores = embedder.encode_queries(QUERIES) @ documents.T
    assert scores.argmax(1).tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nq-gold", "cranfield"])
def test_it_is_as_good_as_its_card_says(name: str, tmp_path: Path) -> None:
    """The data sets lie beside the checkout, or where AVEYB_SHARED says; NDCG@10 to the third
    digit.
    """
    data = (
        Path(os.environ.get("AVEYB_SHARED", Path(__file__).parents[3] / "shared")) / "data" / name
    )
    if not data.is_dir():
        pytest.skip(f"{data} is not here")
    pytest.importorskip("pytrec_eval")
    from aveyb_retrieval.eval.data import load_dataset
    from aveyb_retrieval.eval.named_systems import indexed_rows
    from aveyb_retrieval.eval.runner import run_system
    from aveyb_retrieval.eval.systems import IndexSystem
    from aveyb_retrieval.eval.tasks import make_task

    task = make_task(load_dataset(str(data)), max_queries=700)
    build_index(indexed_rows(task.corpus), tmp_path / "index")
    row = re.search(
        rf"^\| {name} \| [\d,]+ / [\d,]+ \| ([\d.]+) \| ([\d.]+) ",
        CARD.read_text("utf-8"),
        re.MULTILINE,
    )
    assert row is not None
    for mode, said in zip(("dense", "hybrid"), row.groups(), strict=True):
        result, _ = run_system(IndexSystem(tmp_path / "index", mode=mode), task)
        assert result.score == pytest.approx(float(said), abs=1e-3), mode


def test_an_index_of_another_embedded_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index([{"_id": str(i), "text": text} for i, text in enumerate(TEXTS)], tmp_path / "index")
    with Retriever.load(tmp_path / "index") as retriever:
        assert [retriever.search(query, 1)[0].id for query in QUERIES] == ["0", "1", "2", "3"]
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    model = small_model("paper", vocab_size=tokenizer.vocab_size)
    sentence_transformer(model, tokenizer, tmp_path / "another")
    monkeypatch.setattr("aveyb_retrieval.encoder.model_folders.DEFAULT_MODEL", tmp_path / "another")
    monkeypatch.setattr("aveyb_retrieval.indexes.model._loaded", {})  # as in another process
    with (
        pytest.raises(
            IndexFormatError,
            match=r"made by the model aveyb-base-en-v2 \(fingerprint \w+\), but this is",
        ),
        Retriever.load(tmp_path / "index") as retriever,
    ):
        retriever.search("locks")


def test_an_installation_without_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aveyb_retrieval.encoder.model_folders.DEFAULT_MODEL", tmp_path / "another")
    with pytest.raises(ModelError, match="another: the embedded model is missing"):
        Embedder.load()


def test_the_card_names_the_teachers_with_their_licences() -> None:
    text = CARD.read_text("utf-8").partition("## Training")[2]
    assert (
        "all-MiniLM-L6-v2, all-mpnet-base-v2 and snowflake-arctic-embed-xs (Apache-2.0) and"
        " e5-small-v2 (MIT)" in text
    )


def test_vocabulary_agrees_with_auto_tokenizer() -> None:
    from transformers import AutoTokenizer

    tokenizer = read_vocabulary(DEFAULT_MODEL)
    theirs = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    for text in [*QUERIES, *TEXTS, "naïve café 🙂 3.14159 \n\n\t end"]:
        assert (
            theirs(text, add_special_tokens=False)["input_ids"]
            == tokenizer.encode(text)[0].tolist()
        )
    assert (
        json.loads((DEFAULT_MODEL / "config.json").read_text())["vocab_size"]
        == tokenizer.vocab_size
    )
