"""Where the compressor is zero, nothing is retrieved, and the vectors are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aveyb_retrieval import Embedder
from aveyb_retrieval.encoder.network.ranker import Ranker
from aveyb_retrieval.encoder.network.splits import split_table
from aveyb_retrieval.encoder.onnx import model as onnx_model
from aveyb_retrieval.encoder.onnx.export import export_onnx
from aveyb_retrieval.encoder.onnx.model import OnnxModel
from tests.encoder.models import small_model
from tests.encoder.onnx.forms import save_model, texts, with_form
from tests.recorder import record_calls

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.encoder.network.model import AveyBModel

LENGTHS = [0, 5, 16, 300, 33, 17]
PRESETS = ("paper", "released")


def zero_model(preset: str = "paper") -> AveyBModel:
    """A small model whose compressor takes nothing from retrieved splits."""
    model = small_model(preset)
    with torch.no_grad():
        model.ranker.down_proj[:, : 3 * 16] = 0
    return model


def save_zeros(folder: Path, preset: str, *, value: float = 0.0) -> Path:
    """Save a model and its ONNX forms, the compressor filled with one value."""
    save_model(folder, preset, forms=())
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["ranker.down_proj"].fill_(value)
    save_file(tensors, path, metadata={"format": "pt"})
    for precision in ("float32", "int8"):
        export_onnx(folder, precision=precision)
    return folder


@pytest.mark.parametrize("preset", PRESETS)
def test_torch_retrieves_nothing_and_gives_the_same_vectors(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zero_model(preset)
    ids = torch.randint(0, 97, (sum(LENGTHS),))
    calls = record_calls(monkeypatch, Ranker, "retrieve")
    with torch.inference_mode():
        skipped = model.token_rows(ids.numpy(), LENGTHS)
        assert calls == []
        monkeypatch.setattr(Ranker, "takes_nothing", lambda _: False)
        retrieved = model.token_rows(ids.numpy(), LENGTHS)
    assert len(calls) == 1
    np.testing.assert_array_equal(skipped, retrieved)


def test_the_own_block_of_the_compressor_still_counts() -> None:
    model = zero_model()
    ids = torch.randint(0, 97, (1, 40))
    with torch.inference_mode():
        before = model(ids)[0]
        model.ranker.down_proj[:, 3 * 16 :] = 0
        assert not torch.equal(model(ids)[0], before)


def test_a_compressor_that_is_written_to_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, other = zero_model(), small_model("paper", seed=1)
    ids = torch.randint(0, 97, (1, 40))
    calls = record_calls(monkeypatch, Ranker, "retrieve")
    with torch.no_grad():
        model(ids)
        assert calls == []
        model.ranker.down_proj[3, 7] = 0.5
        model(ids)
        assert len(calls) == 1
        model.ranker.down_proj[3, 7] = -0.0
        model(ids)
        assert len(calls) == 1
        model.load_state_dict(other.state_dict())
        assert torch.equal(model(ids)[0], other(ids)[0])
    assert len(calls) == 3


def test_training_retrieves_so_that_the_compressor_can_learn() -> None:
    model = zero_model().train()
    model(torch.randint(0, 97, (1, 40)))[0].square().sum().backward()
    gradient = model.ranker.down_proj.grad[:, : 3 * 16]
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("preset", PRESETS)
def test_onnx_retrieves_nothing_and_gives_the_same_vectors(
    preset: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = with_form(save_zeros(tmp_path, preset), precision)
    calls = record_calls(monkeypatch, onnx_model, "choose")
    skipped = list(embedder.encode_documents(texts(LENGTHS)))
    assert calls == []
    monkeypatch.setattr(onnx_model, "compressor_is_zero", lambda *_: False)
    embedder.model = OnnxModel.load(tmp_path, precision)
    retrieved = list(embedder.encode_documents(texts(LENGTHS)))
    assert calls
    for one, other in zip(skipped, retrieved, strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        np.testing.assert_array_equal(one.passages, other.passages)


def test_vectors_of_the_embedded_model_are_equal_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = np.random.default_rng(0).integers(0, 900, 12).tolist()
    words = [
        ("A title" * (i % 2), " ".join(f"w{j % 97}" for j in range(n)))
        for i, n in enumerate(lengths)
    ]
    embedder = Embedder.load(precision="int8", batch_tokens=3000)
    skipped = list(embedder.encode_documents(words))
    monkeypatch.setattr(onnx_model, "compressor_is_zero", lambda *_: False)
    retrieving = Embedder.load(precision="int8", batch_tokens=3000)
    calls = record_calls(monkeypatch, onnx_model, "choose")
    for one, other in zip(skipped, retrieving.encode_documents(words), strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        np.testing.assert_array_equal(one.passages, other.passages)
    assert calls


def test_onnx_retrieves_for_the_smallest_number_in_the_compressor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = with_form(save_zeros(tmp_path, "paper", value=1e-30), "float32")
    calls = record_calls(monkeypatch, onnx_model, "choose")
    list(embedder.encode_documents(texts([40])))
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_compressor_of_a_checkpoint_is_read_in_every_type(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = zero_model()
    model.ranker.down_proj.data.mul_(-1)  # zeros have a sign
    path = tmp_path / "model.safetensors"
    for value, zero in ((0.0, True), (0.25, False)):
        model.ranker.down_proj.data[15, 3 * 16 - 1] = value
        model.to(dtype).save_pretrained(tmp_path)
        assert onnx_model.compressor_is_zero(path, model.config) is zero


def test_the_ranker_itself_chooses_as_before() -> None:
    model = zero_model()
    table = split_table(torch.randint(0, 97, (64,)), [64], 16)
    with torch.no_grad():
        rows = model.ranker.retrieve(table, model.embed.weight).rows
    assert rows.tolist() == [[-1, -1, -1], [-1, -1, 0], [-1, 0, 1], [0, 1, 2]]


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_a_passage_of_the_embedded_model_has_seen_its_split_and_the_title(precision: str) -> None:
    """What pages say: far passages of documents that differ only at their beginning are equal, and
    differ with the title.
    """
    embedder = Embedder.load(precision=precision, device="cpu")
    ends = " ".join(f"House {i} has a red roof." for i in range(200))
    first, second = "The pump is closed. " * 60, "A tenant pays rent. " * 60
    assert len(embedder.tokenizer.encode_ids(first)) == len(embedder.tokenizer.encode_ids(second))
    one, other, titled = embedder.encode_documents(
        [("Leases", first + ends), ("Leases", second + ends), ("Pumps", first + ends)]
    )
    assert not np.array_equal(one.passages[0], other.passages[0])
    np.testing.assert_array_equal(one.passages[3:], other.passages[3:])
    assert len(one.passages) > 6
    assert np.abs(one.passages - titled.passages).max(axis=1).min() > 1e-4
