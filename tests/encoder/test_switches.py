"""Sizes and orders that presets do not have, as fields: gradients, padding, batches,
contradictions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.network.split_encoder import InferenceModel
from aveyb_retrieval.encoder.settings import settings_of
from aveyb_retrieval.errors import ModelError
from tests.encoder.models import small_model
from tests.encoder.test_model import padded, random_texts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SWITCHES: dict[str, dict[str, Any]] = {
    "dynamic layers first": {"layer_pattern": ["dynamic", "dynamic", "static", "static"]},
    "no ranker": {"num_retrieved": 0},
    "tail of a quarter": {"tail_share": 0.25},
    "tail of 7/8": {"tail_share": 0.875},
    "splits of 512": {"split_size": 512},
}
by_switch = pytest.mark.parametrize("switch", SWITCHES)


@by_switch
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_batch_and_an_inference_form_change_nothing(switch: str, preset: str) -> None:
    model = small_model(preset, **SWITCHES[switch])
    texts = random_texts([1, 60, 16, 0, 17, 33, 3])
    ids, mask = padded(texts, 64)
    with torch.inference_mode():
        together = model(ids, mask).last_hidden_state
    trained = model(ids, mask).last_hidden_state
    torch.testing.assert_close(trained, together, atol=2e-5, rtol=1e-5)
    for i, text in enumerate(texts):
        with torch.no_grad():
            alone = model(text[None]).last_hidden_state[0]
        torch.testing.assert_close(together[i][mask[i] == 1], alone, atol=2e-5, rtol=1e-5)
        assert not together[i][mask[i] == 0].any()


@by_switch
def test_every_parameter_has_a_gradient_which_padding_does_not_change(switch: str) -> None:
    model = small_model("paper", **SWITCHES[switch])
    texts = random_texts([50, 20, 3])
    probe = torch.randn(32, generator=torch.Generator().manual_seed(3))

    def gradients(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        torch.stack(
            [(model(i, m).last_hidden_state @ probe).sum() for i, m in batches]
        ).sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    together = gradients([padded(texts, 70)])
    alone = gradients([(t[None], torch.ones_like(t[None])) for t in texts])
    assert together.keys() == alone.keys() == {n for n, _ in model.named_parameters()}
    for name, grad in together.items():
        torch.testing.assert_close(
            grad, alone[name], atol=1e-4 * alone[name].abs().max().item(), rtol=0, msg=name
        )


@by_switch
def test_a_saved_model_is_the_same(switch: str, tmp_path: Path) -> None:
    model = small_model("paper", **SWITCHES[switch])
    model.save_pretrained(tmp_path)
    ids = random_texts([60])[0][None]
    with torch.no_grad():
        assert torch.equal(
            AveyBModel.from_pretrained(tmp_path)(ids).last_hidden_state,
            model(ids).last_hidden_state,
        )


@pytest.mark.parametrize("read", [InferenceModel.load, settings_of])
@pytest.mark.parametrize(
    ("name", "value", "owner"),
    [("compressor", "none", "ReferenceAveyB"), ("funnel_after", 1, "FunnelAveyBConfig")],
)
def test_a_folder_with_a_choice_of_others_is_not_read_without_it(
    name: str, value: Any, owner: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    small_model("paper").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
    words = f"{name} is {value!r}, a choice that {owner} alone has"
    with pytest.raises(ModelError, match=words):
        read(tmp_path)
