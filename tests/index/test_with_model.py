"""The index on our own encoder: a small random Avey-B model in place of the fake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedder import Embedder
from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.encoder.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.index.write.update import upsert_documents
from aveyb_retrieval.index.write.verify import verify_index

LOG = "".join(f"{hour:02}:00 the pump ran at {hour * 7} degrees\n" for hour in range(24))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    config = AveyBConfig.mini(
        vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=4, split_size=32, initializer_range=0.2
    )
    path = tmp_path_factory.mktemp("model")
    sentence_transformer(AveyBModel(config), tokenizer, path, prompts={"query": "query: ", "document": "text: "})
    return path


def test_build_search_and_grow_with_our_encoder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"_id": "log", "title": "Pump 7", "text": LOG},
        {"_id": "other", "text": "Something else altogether, in one short line."},
        {"_id": "empty", "text": ""},
    ]
    report = build_index(rows, tmp_path / "ix", model=folder)
    assert report.documents == 3
    with Retriever.load(tmp_path / "ix") as retriever:
        hits = retriever.search("the pump at noon", k=3, rerank="maxsim", context=1)
        assert {hit.id for hit in hits} == {"log", "other", "empty"}
        best = next(hit for hit in hits if hit.id == "log")
        assert best.span is not None
        assert best.passage == LOG[slice(*best.span)]

    grown = {**rows[0], "text": LOG + "24:00 the pump stopped\n"}
    calls: list[int] = []
    original = Embedder.encode_grown

    def counted(self: Embedder, prefix: str, text: str, passages: np.ndarray, norms: np.ndarray) -> object:
        calls.append(len(norms))
        return original(self, prefix, text, passages, norms)

    monkeypatch.setattr(Embedder, "encode_grown", counted)
    upsert_documents([grown], tmp_path / "ix")
    assert calls == [len("text: Pump 7\n" + LOG) // 32], "every full split was kept"
    build_index([grown, *rows[1:]], tmp_path / "anew", model=folder)
    assert verify_index(tmp_path / "ix").problems == []
    with Retriever.load(tmp_path / "ix") as a, Retriever.load(tmp_path / "anew") as b:
        for one, other in zip(a.search("pump", k=3, passages=9), b.search("pump", k=3, passages=9), strict=True):
            assert (one.id, one.span) == (other.id, other.span)
            assert one.score == pytest.approx(other.score, abs=1e-5)


def test_a_model_that_changed_under_the_index_is_noticed(folder: Path, tmp_path: Path) -> None:
    build_index([{"_id": "a", "text": "x"}], tmp_path / "ix", model=folder)
    config = folder / "config.json"
    before = config.read_bytes()
    config.write_bytes(before + b"\n")
    try:
        with Retriever.load(tmp_path / "ix") as retriever, pytest.raises(IndexFormatError, match="made by the model"):
            retriever.search("x")
    finally:
        config.write_bytes(before)


@pytest.mark.parametrize("precision", ["bfloat16", "float8"])
def test_documents_and_queries_of_another_precision(folder: Path, tmp_path: Path, precision: str) -> None:
    rows = [{"_id": "log", "text": LOG}, {"_id": "other", "text": "Something else altogether, in one short line."}]
    build_index(rows, tmp_path / "exact", model=folder)
    build_index(rows, tmp_path / "ix", model=folder, precision=precision)
    with Retriever.load(tmp_path / "exact") as exact:
        expected = {hit.id: hit.score for hit in exact.search("the pump", k=2, mode="dense")}
    for used in ("float32", precision):
        with Retriever.load(tmp_path / "ix", precision=used) as retriever:
            found = {hit.id: hit.score for hit in retriever.search("the pump", k=2, mode="dense")}
        assert found == pytest.approx(expected, abs=0.05)
        assert found != expected, "the vectors are not those of float32"
    with Retriever.load(tmp_path / "ix", precision="int4") as retriever, pytest.raises(ConfigError, match="'int4'"):
        retriever.search("the pump", mode="dense")
