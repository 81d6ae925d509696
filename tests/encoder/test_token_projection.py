"""A token projection: what it makes of a model's tokens, in the index and in queries, and files that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from aveyb_retrieval import Embedder, Retriever, build_index
from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.encoder.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.token_codec import TokenCodec
from aveyb_retrieval.encoder.token_projection import FILE, TokenProjection
from aveyb_retrieval.errors import AveyBError, ModelError
from aveyb_retrieval.training.vocabulary import train_vocabulary
from tests.training.conftest import SENTENCES, tiny_config

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 16
TEXTS = [SENTENCES[0], SENTENCES[50], SENTENCES[100]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model of our own."""
    torch.manual_seed(0)
    tokenizer = train_vocabulary(SENTENCES, 360, name="tiny")
    sentence_transformer(AveyBModel(tiny_config()), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def project(folder: Path, seed: int = 0) -> torch.Tensor:
    weight = torch.randn(WIDTH, 32, generator=torch.Generator().manual_seed(seed))
    save_file({"weight": weight.half()}, folder / FILE)
    return weight.half().float()


def test_documents_have_unit_rows_and_queries_lengths_that_weigh(folder: Path) -> None:
    plain = Embedder.load(folder)
    weight = project(folder)
    embedder = Embedder.load(folder)
    assert (plain.token_dim, embedder.token_dim, embedder.dim) == (32, WIDTH, 32)
    assert embedder.fingerprint != plain.fingerprint
    np.testing.assert_array_equal(embedder.encode_queries(TEXTS), plain.encode_queries(TEXTS))

    for text, one, other in zip(
        TEXTS, embedder.token_vectors(TEXTS, prompt="document"), plain.token_vectors(TEXTS, prompt="document"),
        strict=True,
    ):  # fmt: skip
        wanted = torch.nn.functional.normalize(torch.from_numpy(other) @ weight.T, dim=-1)
        np.testing.assert_allclose(one, wanted, atol=1e-5, err_msg=text)
    (query,) = embedder.token_vectors(TEXTS[:1], prompt="query")
    lengths = np.linalg.norm(query, axis=1)
    assert lengths.mean() == pytest.approx(1, abs=1e-5) and lengths.std() > 0.01


@pytest.mark.parametrize("storage", ["int8", "1bit"])
def test_codes_of_an_index_are_those_of_the_projected_tokens(folder: Path, tmp_path: Path, storage: str) -> None:
    project(folder)
    embedder = Embedder.load(folder)
    codec = TokenCodec(WIDTH, storage)
    (document,) = embedder.with_token_codec(codec).encode_documents([("", TEXTS[0])])
    (tokens,) = embedder.token_vectors(TEXTS[:1], prompt="document")
    assert document.tokens is not None
    apart = document.tokens.codes.astype(int) - codec.encode(torch.from_numpy(tokens)).astype(int)
    assert document.tokens.codes.shape[1] == codec.row_bytes and (abs(apart) > 1).mean() < 0.01

    (query,) = embedder.token_vectors(TEXTS[:1], prompt="query")
    found = codec.query(torch.from_numpy(query)) @ codec.decode(document.tokens.codes).float().T
    exact = torch.from_numpy(query @ tokens.T)
    assert (found - exact).abs().max() < (0.03 if storage == "int8" else 2.0)

    build_index(TEXTS, tmp_path / "index", model=str(folder), token_vectors=storage)
    with Retriever.load(tmp_path / "index") as retriever:
        (hit,) = retriever.search(TEXTS[1], k=1, mode="dense", rerank="token-vectors")
    assert hit.text == TEXTS[1]
    project(folder, seed=1)  # another model now
    with Retriever.load(tmp_path / "index") as retriever, pytest.raises(AveyBError, match="fingerprint"):
        retriever.search(TEXTS[1])


@pytest.mark.parametrize(
    "tensors",
    [
        {"other": torch.zeros(WIDTH, 32)},
        {"weight": torch.zeros(WIDTH, 31)},
        {"weight": torch.zeros(4, 32)},
        {"weight": torch.zeros(33, 32)},
        {"weight": torch.zeros(32)},
        {"weight": torch.zeros(WIDTH, 32, dtype=torch.int32)},
        {"weight": torch.zeros(WIDTH, 32), "bias": torch.zeros(WIDTH)},
        {"weight": torch.full((WIDTH, 32), float("nan"))},
    ],
)
def test_a_file_that_does_not_fit_is_refused(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / FILE)
    with pytest.raises(ModelError, match=FILE):
        Embedder.load(folder)


def test_a_file_that_is_cut_short_is_refused(folder: Path) -> None:
    project(folder)
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-9])
    with pytest.raises(ModelError, match="damaged or cut short"):
        Embedder.load(folder)


def test_a_query_of_zeros_stays_zero() -> None:
    projection = TokenProjection(torch.eye(8, 12))
    assert not projection.query(torch.zeros(3, 12)).any()
    assert projection.query(torch.zeros(0, 12)).shape == (0, 8)
