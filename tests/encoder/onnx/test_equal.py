"""An ONNX form gives the vectors of the torch model, whatever the variant, the lengths and the
batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.network.token_codec import TokenCodec
from aveyb_retrieval.encoder.onnx import graph
from aveyb_retrieval.encoder.onnx.export import export_onnx
from aveyb_retrieval.encoder.text.passages import PassageSize
from aveyb_retrieval.errors import ConfigError, ModelError
from tests.encoder.models import PRESETS
from tests.encoder.onnx.forms import (
    PRECISIONS,
    byte_tokenizer,
    cosines,
    save_model,
    store_table_in_int8,
    texts,
    with_form,
)
from tests.encoder.test_switches import SWITCHES

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [1, 60, 16, 0, 17, 33, 3, 300]  # of splits of 16
SIZE = PassageSize(tokens=16)
by_precision = pytest.mark.parametrize("precision", PRECISIONS)
by_switch = pytest.mark.parametrize("switch", SWITCHES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def encoded(embedder: Embedder, documents: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of documents and of their passages."""
    found = list(embedder.with_passage_size(SIZE).encode_documents(documents))
    return np.stack([one.vector for one in found]), np.concatenate([one.passages for one in found])


@pytest.mark.parametrize("preset", PRESETS)
def test_float32_is_the_torch_model(preset: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, preset)
    ours, torchs = with_form(folder, "float32"), Embedder.load(folder, precision="float32")
    assert ours.fingerprint == torchs.fingerprint
    for left, right in zip(
        encoded(ours, texts(LENGTHS)), encoded(torchs, texts(LENGTHS)), strict=True
    ):
        np.testing.assert_allclose(left, right, atol=1e-5)
    queries = ["a", "what is it?", "a question that is longer than one split of this model"]
    np.testing.assert_allclose(
        ours.encode_queries(queries), torchs.encode_queries(queries), atol=1e-5
    )
    for left, right in zip(
        *(e.token_vectors(queries, prompt="query") for e in (ours, torchs)), strict=True
    ):
        np.testing.assert_allclose(left, right, atol=1e-5)


@by_switch
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_float32_is_the_torch_model_with_every_switch(
    switch: str, preset: str, tmp_path: Path
) -> None:
    folder = save_model(tmp_path, preset, forms=("float32", "int8"), **SWITCHES[switch])
    ours, torchs = with_form(folder, "float32"), Embedder.load(folder, precision="float32")
    for left, right in zip(
        encoded(ours, texts(LENGTHS)), encoded(torchs, texts(LENGTHS)), strict=True
    ):
        np.testing.assert_allclose(left, right, atol=2e-5)


def test_a_checkpoint_with_a_table_in_int8_has_the_same_forms_and_its_rows_are_kept_once(
    tmp_path: Path,
) -> None:
    shared, whole = save_model(tmp_path / "shared", forms=()), tmp_path / "whole"
    store_table_in_int8(shared)
    AveyBModel.from_pretrained(shared).save_pretrained(whole)  # the same embeddings in float32
    byte_tokenizer().save(whole)
    sizes = {
        form: [export_onnx(to, precision=form).stat().st_size for to in (shared, whole)]
        for form in PRECISIONS
    }
    for form in PRECISIONS:
        for left, right in zip(
            *(encoded(with_form(to, form), texts(LENGTHS)) for to in (shared, whole)), strict=True
        ):
            np.testing.assert_allclose(left, right, atol=1e-6)
    rows = len(byte_tokenizer()) * 32
    assert (
        sizes["float32"][0] == sizes["float32"][1]
        and rows - 300 < sizes["int8"][1] - sizes["int8"][0] <= rows
    )


def test_what_a_column_loses_others_and_the_biases_make_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, documents = save_model(tmp_path), texts([200] * 8)
    exact, better = (
        encoded(with_form(folder, precision), documents)[0] for precision in PRECISIONS
    )
    rounded = graph.round_weight
    # to the nearest
    monkeypatch.setattr(
        graph, "round_weight", lambda weight, rows: rounded(weight, np.zeros_like(rows))
    )
    export_onnx(folder)
    plain = encoded(with_form(folder, "int8"), documents)[0]
    errors = [np.linalg.norm(vectors - exact) for vectors in (plain, better)]
    assert errors[1] < 0.9 * errors[0], errors


@by_switch
def test_int8_is_near_it_with_every_switch(switch: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, **SWITCHES[switch])
    exact, rounded = (
        encoded(with_form(folder, precision), texts([40, 100, 9])) for precision in PRECISIONS
    )
    assert cosines(exact[0], rounded[0]).min() > 0.99
    # a random model, whose tokens add up to little
    assert cosines(exact[1], rounded[1]).min() > 0.97


@by_precision
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_vector_does_not_depend_on_its_batch(preset: str, precision: str, tmp_path: Path) -> None:
    embedder = with_form(save_model(tmp_path, preset), precision).with_passage_size(SIZE)
    documents = texts(LENGTHS)
    together = list(embedder.encode_documents(documents))
    for document, mate in zip(documents, together, strict=True):
        (alone,) = embedder.encode_documents([document])
        np.testing.assert_allclose(mate.vector, alone.vector, atol=1e-5)
        np.testing.assert_allclose(mate.passages, alone.passages, atol=1e-5)
    few = Embedder(
        embedder.model,
        embedder.tokenizer,
        prompts=embedder.prompts,
        model_name="",
        fingerprint="",
        batch_tokens=1,
    ).with_passage_size(SIZE)
    np.testing.assert_allclose(
        encoded(few, documents)[1], encoded(embedder, documents)[1], atol=1e-5
    )


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_row_of_other_size_does_not_change_how_a_row_is_rounded(
    preset: str, tmp_path: Path
) -> None:
    model = with_form(save_model(tmp_path, preset), "int8").model
    ids = np.array([[5, 6, 7, 8] * 4, [9, 10, 200, 250] * 4], np.int32)
    none = {"retrieved": np.zeros((2, 0, 16), np.int32), "weights": np.zeros((2, 0), np.float32)}
    session = model._session  # type: ignore[union-attr]
    both = session.run(None, {"ids": ids, **none})[0]
    one = session.run(None, {"ids": ids[:1], **{name: array[:1] for name, array in none.items()}})[
        0
    ]
    assert np.array_equal(both[:1], one)


@pytest.mark.parametrize("storage", ["int8", "1bit"])
def test_tokens_are_made_small_as_in_torch(folder: Path, storage: str) -> None:
    codec = TokenCodec(32, storage)
    ours, torchs = with_form(folder, "float32"), Embedder.load(folder, precision="float32")
    left, right = (
        next(iter(e.with_token_codec(codec).encode_documents(texts([60])))).tokens
        for e in (ours, torchs)
    )
    assert left is not None and right is not None and len(left.codes) == 60
    assert (left.codes == right.codes).mean() > 0.99
    assert np.array_equal(left.ranges, right.ranges)


def test_the_form_is_chosen_by_precision(folder: Path, tmp_path: Path) -> None:
    assert (
        Embedder.load(folder).precision
        == Embedder.load(folder, precision="int8").precision
        == "int8"
    )
    assert Embedder.load(folder, precision="float32").precision == "float32"
    plain = save_model(tmp_path, forms=())
    assert Embedder.load(plain).precision == "float32"
    with pytest.raises(
        ModelError,
        match=r"model_int8.onnx: no such file; make the ONNX form with aveyb-train export",
    ):
        Embedder.load(plain, precision="int8")
    with pytest.raises(ConfigError, match="int8 runs on a CPU"):
        Embedder.load(folder, precision="int8", device="cuda")


@by_precision
def test_runs_side_by_side_change_nothing(
    precision: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, documents = with_form(folder, precision), texts([3000, *LENGTHS, 2000])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = encoded(embedder, documents)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for left, right in zip(encoded(embedder, documents), alone, strict=True):
        np.testing.assert_array_equal(left, right)


@by_precision
def test_an_error_of_one_run_is_raised(
    precision: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def run(self, names: None, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            raise MemoryError

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    embedder = with_form(folder, precision)
    monkeypatch.setattr(embedder.model, "_session", Failing())
    with pytest.raises(MemoryError):
        encoded(embedder, texts([3000, 5]))


def test_warm_up_runs_every_kind_of_length(folder: Path) -> None:
    assert Embedder.load(folder, warm=True).model.warm_up() >= 3
