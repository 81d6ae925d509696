"""An ONNX file that is cut, damaged or of another model is refused in one line."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.onnx import model as file
from aveyb_retrieval.encoder.onnx.export import export_onnx
from aveyb_retrieval.encoder.onnx.model import METADATA
from aveyb_retrieval.errors import ConfigError, ModelError
from tests.encoder.onnx.forms import save_model, store_table_in_int8

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(saved, copy)
    return copy


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Embedder.load(folder)
    message = str(caught.value)
    assert "\n" not in message and "model_int8.onnx" in message and not message.endswith(".")
    return message


def change(folder: Path, edit: Callable[[Any], None]) -> None:
    path = folder / "onnx/model_int8.onnx"
    model = onnx.load_from_string(path.read_bytes())
    edit(model)
    path.write_bytes(model.SerializeToString())


def test_one_that_is_cut_anywhere(folder: Path) -> None:
    path = folder / "onnx/model_int8.onnx"
    whole = path.read_bytes()
    for length in [0, 1, 5, *range(100, len(whole), len(whole) // 40)]:
        path.write_bytes(whole[:length])
        assert refusal(folder)


def test_one_of_noise(folder: Path) -> None:
    path = folder / "onnx/model_int8.onnx"
    rng = np.random.default_rng(0)
    for _ in range(50):
        path.write_bytes(rng.bytes(500))
        assert refusal(folder)


def test_one_of_other_weights(folder: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", seed=1)
    shutil.copy(other / "onnx/model_int8.onnx", folder / "onnx/model_int8.onnx")
    assert (
        "made from other weights than model.safetensors beside it; export it again, or remove it"
        in refusal(folder)
    )


@pytest.mark.parametrize(("field", "value"), [("num_retrieved", 2), ("weight_norm", "min")])
def test_one_of_another_configuration(folder: Path, field: str, value: object) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    assert settings[field] != value
    path.write_text(json.dumps(settings | {field: value}))
    assert (
        f"config.json beside the weights says {value!r}; export it again, or remove it"
        in refusal(folder)
    )


def test_one_of_another_precision(folder: Path) -> None:
    shutil.copy(folder / "onnx/model.onnx", folder / "onnx/model_int8.onnx")
    assert "holds the float32 form, not int8" in refusal(folder)


def test_one_of_another_kind_of_model(folder: Path) -> None:
    change(folder, lambda model: model.ClearField("metadata_props"))
    assert "not an ONNX file of an Avey-B model" in refusal(folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('{"format": 1}', "format 1, this version of aveyb-retrieval reads 2"),
        ('{"format": 2}', "its settings are damaged"),
        ("[]", "not an ONNX file of an Avey-B model"),
        ("{", "not an ONNX file of an Avey-B model"),
    ],
)
def test_one_whose_settings_are_damaged(folder: Path, settings: str, said: str) -> None:
    def edit(model: Any) -> None:
        helper.set_model_props(model, {METADATA: settings})

    change(folder, edit)
    assert said in refusal(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("split_size", -1),
        ("hidden_size", 1 << 40),
        ("weight_norm", 3),
        ("layer_pattern", ["static"]),
    ],
)
def test_one_with_sizes_that_cannot_be(folder: Path, field: str, value: object) -> None:
    def edit(model: Any) -> None:
        content = json.loads(model.metadata_props[0].value)
        content["settings"][field] = value
        helper.set_model_props(model, {METADATA: json.dumps(content)})

    change(folder, edit)
    assert "its settings are damaged" in refusal(folder)


def test_one_with_data_in_another_file(folder: Path) -> None:
    def edit(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="/etc/passwd")

    change(folder, edit)
    assert "ONNX Runtime cannot read it" in refusal(folder)


@pytest.mark.parametrize("said", ["location", "offset", "name"])
def test_embeddings_come_from_the_checkpoint_whatever_the_file_says(
    said: str, folder: Path
) -> None:
    store_table_in_int8(folder)
    export_onnx(folder)
    before = Embedder.load(folder).encode_queries(["some words"])

    def edit(model: Any) -> None:
        (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == "embedding")
        assert [entry.key for entry in tensor.external_data] == ["location", "offset", "length"]
        if said == "location":
            tensor.external_data[0].value = "../config.json"
        elif said == "offset":
            tensor.external_data[1].value = "8"
        else:
            tensor.name = "embedding_scale"

    change(folder, edit)
    if said == "name":
        assert "ONNX Runtime cannot read it" in refusal(folder)
    else:
        np.testing.assert_array_equal(Embedder.load(folder).encode_queries(["some words"]), before)


def test_one_that_is_larger_than_its_weights_allow(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_GRAPH_BYTES", 0)
    path = folder / "onnx/model_int8.onnx"
    path.write_bytes(path.read_bytes() + bytes(10 * (folder / "model.safetensors").stat().st_size))
    assert "a form of these weights has at most" in refusal(folder)


def test_one_that_onnx_runtime_refuses(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    change(folder, lambda model: model.graph.node[0].ClearField("input"))
    assert "ONNX Runtime cannot read it" in refusal(folder)


def test_a_graph_is_a_valid_one(saved: Path) -> None:
    onnx.checker.check_model(onnx.load(saved / "onnx/model.onnx"), full_check=True)


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="precision is 'int4'; an ONNX form has one of float32, int8"
    ):
        export_onnx(tmp_path, precision="int4")
    assert not (tmp_path / "onnx").exists()
