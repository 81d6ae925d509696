"""Loading a model reads its configuration once and hashes its weights once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.encoder import model_folders
from tests.recorder import record_calls

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_index_with_its_model_parses_and_hashes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index([{"_id": "a", "text": "the contract ends"}], tmp_path / "index")
    model_folders._object.cache_clear()
    model_folders._digest.cache_clear()
    hashed: list[Path] = []
    config = (model_folders.DEFAULT_MODEL / "config.json").read_text()
    weights = model_folders.DEFAULT_MODEL / "model.safetensors"

    real = model_folders._digest.__wrapped__

    def counted_digest(path: Path, state: tuple[int, ...]) -> str:
        hashed.append(path)
        return real(path, state)

    monkeypatch.setattr("aveyb_retrieval.indexes.model._loaded", {})  # as where nobody uses a model
    parsed = record_calls(monkeypatch, json, "loads")
    monkeypatch.setattr(model_folders, "_digest", model_folders.lru_cache(counted_digest))
    with Retriever.load(tmp_path / "index") as retriever:
        assert [hit.id for hit in retriever.search("contract", 1)] == ["a"]
    assert [call["s"] for call in parsed].count(config) == 1
    assert hashed.count(weights) == 1


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}')
    model_folders.read_object(path)["a"] = 5  # the caller's own
    assert model_folders.read_object(path) == {"a": 1}
    path.write_text('{"a": 22}')
    assert model_folders.read_object(path) == {"a": 22}
