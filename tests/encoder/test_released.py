"""Outputs, loss and gradients of the authors' released modules, met from their own weights.

The `authors_*` fixtures come from the released modules and lie beside a checkout; they are skipped
where absent. The others are kept in `tests/data`, made by our modules while those met the first
ones (`tests/data/make_released.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.network.tensors import released_tensors
from aveyb_retrieval.errors import ModelError
from tests.refusals import Refusal, refusals

Fixture = tuple[dict[str, torch.Tensor], dict]
DATA = Path(__file__).parents[1] / "data"


def read_fixture(path: Path) -> Fixture:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(  # noqa: SIM118
            file.metadata()["config"]
        )


def weights(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("weights."): t
        for name, t in tensors.items()
        if name.startswith("weights.")
    }


OWN = ["small", "one_retrieved"]


def open_fixture(name: str, request: pytest.FixtureRequest) -> Fixture:
    if name.startswith("authors_"):
        folder = request.getfixturevalue("shared") / "fixtures"
        return read_fixture(folder / f"avey_b_released_{name.removeprefix('authors_')}.safetensors")
    return read_fixture(DATA / f"released_{name}.safetensors")


@pytest.fixture(params=[*OWN, "authors_small", "authors_s256"])
def fixture(request: pytest.FixtureRequest) -> Fixture:
    return open_fixture(request.param, request)


@pytest.fixture(params=[*OWN, "authors_small"])
def with_gradients(request: pytest.FixtureRequest) -> Fixture:
    return open_fixture(request.param, request)


@pytest.fixture
def small(request: pytest.FixtureRequest) -> Fixture:
    return open_fixture("small", request)


def test_every_case_is_met(fixture: Fixture) -> None:
    tensors, config = fixture
    model = AveyBModel.from_released(weights(tensors), **config)
    cases = [
        name.removesuffix(".input_ids")
        for name in tensors
        if name.startswith("case") and "input_ids" in name
    ]
    assert cases
    for case in cases:
        with torch.no_grad():
            hidden = model(tensors[f"{case}.input_ids"]).last_hidden_state
        torch.testing.assert_close(
            hidden, tensors[f"{case}.last_hidden_state"], atol=1e-4, rtol=0, msg=case
        )


def test_loss_and_every_gradient_are_met(with_gradients: Fixture) -> None:
    tensors, config = with_gradients
    model = AveyBForMaskedLM.from_released(weights(tensors), **config)
    loss = model(tensors["mlm.input_ids"], labels=tensors["mlm.labels"]).loss
    assert abs(loss.item() - tensors["mlm.loss"].item()) < 1e-5
    loss.backward()
    start = "mlm.grad."
    gradients = released_tensors(
        {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
    )
    for name, parameter in model.model.named_parameters():
        expected = gradients[name]
        assert parameter.grad is not None, name
        assert (parameter.grad - expected).norm() < 1e-4 * expected.norm(), name


@pytest.mark.parametrize("prefix", ["", "base_avey_model."])
def test_a_folder_in_the_authors_format_loads_with_from_pretrained(
    small: Fixture, tmp_path: Path, prefix: str
) -> None:
    tensors, config = small
    stored = {prefix + name: tensor for name, tensor in weights(tensors).items()}
    save_file(
        {**stored, "lm_head.weight": tensors["weights.embed.weight"].clone()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "avey-b", **config}))
    case = "case.b2_t101"
    for loaded in (
        AveyBModel.from_pretrained(tmp_path),
        AveyBForMaskedLM.from_pretrained(tmp_path).model,
    ):
        with torch.no_grad():
            hidden = loaded(tensors[f"{case}.input_ids"]).last_hidden_state
        torch.testing.assert_close(hidden, tensors[f"{case}.last_hidden_state"], atol=1e-4, rtol=0)
    for dtype in (torch.bfloat16, "bfloat16"):
        assert AveyBModel.from_pretrained(tmp_path, dtype=dtype).dtype == torch.bfloat16
    assert AveyBModel.from_pretrained(tmp_path, dtype="auto").dtype == torch.float32
    loaded, info = AveyBForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(loaded, AveyBForMaskedLM) and not any(info.values())


def without(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {other: tensor for other, tensor in tensors.items() if other != name}


@refusals(
    {
        ModelError: {
            r"lacks 1 parameter, first 'layers.2.spatial_proj'": lambda stored, config: (
                AveyBModel.from_released(without(stored, "layers.2.spatial_proj"), **config)
            ),
            "no place in the model": lambda stored, config: AveyBModel.from_released(
                stored, **{**config, "n_layers": 3}
            ),
            r"ranker.down_proj has shape \(16, 64\) .* \(16, 48\)": lambda stored, config: (
                AveyBModel.from_released(stored, **{**config, "k": 2})
            ),
        },
    }
)
def test_checkpoints_that_do_not_fit_are_refused(small: Fixture, refused: Refusal) -> None:
    tensors, config = small
    refused(weights(tensors), config)


@pytest.mark.parametrize("lacking", ["tensors", "fields"])
def test_a_folder_of_a_checkpoint_that_lacks_something_is_refused(
    small: Fixture, tmp_path: Path, lacking: str
) -> None:
    config = small[1] if lacking == "tensors" else {"d_embed": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = "safetensors only" if lacking == "tensors" else "lacks"
    with pytest.raises(ModelError, match=words):
        AveyBModel.from_pretrained(tmp_path)
