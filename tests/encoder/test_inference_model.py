"""The encoder of a search: loaded without transformers' model classes, and equal to
`AveyBModel`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file, save_file

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.network.split_encoder import InferenceModel
from aveyb_retrieval.errors import BackendError, ModelError
from tests.encoder.models import PRESETS, small_config, small_model
from tests.encoder.onnx.forms import save_model
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

SEARCH = """
import sys
from aveyb_retrieval import Embedder
import aveyb_retrieval.indexes.search.retriever
assert Embedder.load(precision="float32").encode_queries(["which notice period applies?"]).shape == (1, 384)
print(*[name for name in ("torch._dynamo", "torch.distributed.tensor", "sympy", "transformers.modeling_utils")
        if name in sys.modules])
"""  # noqa: E501


def test_a_search_loads_neither_transformers_models_nor_the_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEARCH], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_the_model_that_transformers_loads(preset: str, tmp_path: Path) -> None:
    model = small_model(preset)
    model.save_pretrained(tmp_path)
    loaded = InferenceModel.load(tmp_path)
    ids = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    with torch.inference_mode():
        assert torch.equal(loaded.encode_batch(ids, mask), model(ids, mask).last_hidden_state)
    assert loaded.state_dict().keys() == model.state_dict().keys()


def test_a_masked_language_model_gives_its_encoder(tmp_path: Path) -> None:
    model = AveyBForMaskedLM(small_config("paper")).eval()
    model.save_pretrained(tmp_path)
    loaded = InferenceModel.load(tmp_path)
    assert torch.equal(loaded.embed.weight, model.model.embed.weight)


def test_the_embedded_model_in_float16_becomes_float32() -> None:
    model = Embedder.load(precision="float32").model
    assert isinstance(model, InferenceModel)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    ids = torch.arange(300)[None]
    with torch.inference_mode():
        expected = AveyBModel.from_pretrained(DEFAULT_MODEL, dtype=torch.float32)(
            ids
        ).last_hidden_state
        assert torch.equal(model.encode_batch(ids), expected)


def change_tensors(path: Path, leave_out: str = "", **tensors: torch.Tensor) -> None:
    """Write a checkpoint again with other tensors."""
    # a copy: the file is written over, and load_file maps it in older releases
    stored = load(path.read_bytes())
    stored.pop(leave_out, None)
    save_file({**stored, **tensors}, path)


@refusals(
    {
        ModelError: {
            "damaged or cut short": lambda path: path.write_bytes(path.read_bytes()[:-10]),
            r"lacks 1 parameter, first 'ranker.down_proj'": lambda path: change_tensors(
                path, "ranker.down_proj"
            ),
            "no place in the model": lambda path: change_tensors(
                path, **{"layers.9.fuser.weight": torch.zeros(1)}
            ),
            r"embed.weight has shape": lambda path: change_tensors(
                path, **{"embed.weight": torch.zeros(96, 32)}
            ),
            r"no model.safetensors": lambda path: path.unlink(),
        },
    }
)
def test_a_checkpoint_that_does_not_fill_it_is_refused(tmp_path: Path, refused: Refusal) -> None:
    small_model("paper").save_pretrained(tmp_path)
    refused.then(lambda path: InferenceModel.load(path.parent), tmp_path / "model.safetensors")


def test_overflow_in_float16_is_an_error(tmp_path: Path) -> None:
    save_model(tmp_path, forms=())
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["layers.0.enricher.bias"].fill_(300.0)  # its square is above 65,504
    save_file(tensors, path, metadata={"format": "pt"})
    half = Embedder.load(tmp_path, device="cpu", precision="float16")
    for encode in (
        lambda: half.encode_queries(["x"]),
        lambda: list(half.encode_documents([("", "x")])),
    ):
        with pytest.raises(BackendError, match=r"not finite in float16.*bfloat16"):
            encode()
    wide = Embedder.load(tmp_path, device="cpu", precision="bfloat16")
    assert np.isfinite(wide.encode_queries(["x"])).all()
