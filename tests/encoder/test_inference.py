"""Layers prepared for inference on a CPU: the same results, never a stale one, and no trace in copies or files."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch

from aveyb_retrieval.kernels import cpu
from tests.encoder.models import PRESETS, small_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.encoder.network.model import AveyBModel

IDS = torch.randint(0, 97, (3, 11), generator=torch.Generator().manual_seed(1))
LONG = torch.randint(0, 97, (2, 60), generator=torch.Generator().manual_seed(2))  # S = 16: ragged groups, retrieval


def can_pack(dtype: torch.dtype) -> bool:
    with torch.inference_mode():
        return cpu.usable(torch.empty(1, 1, dtype=dtype))


needs_operators = pytest.mark.skipif(
    not can_pack(torch.float32), reason="this torch or processor cannot pack float32 weights"
)
needs_bfloat16 = pytest.mark.skipif(
    not can_pack(torch.bfloat16), reason="this torch or processor cannot pack bfloat16 weights"
)


def encode(model: AveyBModel, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).last_hidden_state


def plainly(model: AveyBModel, ids: torch.Tensor = IDS) -> torch.Tensor:
    with mock.patch.object(cpu, "_AVAILABLE", False):
        return encode(model, ids)


def is_prepared(model: AveyBModel) -> bool:
    return model._inference is not None


@needs_operators
@pytest.mark.parametrize("orders", [("mixed_gate_bypass", "bypass_context"), ("bypass_gate_mixed", "context_bypass")])
@pytest.mark.parametrize("preset", PRESETS)
def test_prepared_layers_give_what_plain_ones_give(preset: str, orders: tuple[str, str]) -> None:
    model = small_model(preset, enriched_order=orders[0], fuser_order=orders[1])
    with torch.no_grad():
        for layer in model.layers:
            layer.norm.weight.add_(0.3 * torch.randn_like(layer.norm.weight))  # type: ignore[operator, union-attr]
    for ids in (IDS, IDS[:, :1], LONG):
        expected = plainly(model, ids)
        assert not is_prepared(model)
        torch.testing.assert_close(encode(model, ids), expected, atol=1e-5, rtol=0)
        assert is_prepared(model)
        model.train().eval()


@needs_bfloat16
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_prepared_bfloat16_layers_are_as_near_to_float32_as_plain_ones(preset: str) -> None:
    model = small_model(preset, initializer_range=0.1)
    low = copy.deepcopy(model).to(torch.bfloat16)
    for ids in (IDS, LONG):
        expected = plainly(model, ids)
        plain, got = plainly(low, ids), encode(low, ids)
        assert got.dtype == torch.bfloat16
        assert is_prepared(low)
        assert (got - expected).norm() < 1.2 * (plain - expected).norm()


def optimizer_step(model: AveyBModel) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(IDS).last_hidden_state.square().sum().backward()
    optimizer.step()


def other_weights(model: AveyBModel, **how: bool) -> None:
    model.load_state_dict(small_model("paper", seed=5).state_dict(), **how)


def new_parameter(model: AveyBModel) -> None:
    fuser = model.layers[1].fuser
    assert isinstance(fuser, torch.nn.Linear)
    fuser.weight = torch.nn.Parameter(2 * fuser.weight.detach())


def new_part(model: AveyBModel) -> None:
    model.layers[0].enricher = copy.deepcopy(model.layers[1].enricher)


def new_storage(model: AveyBModel) -> None:
    for layer in model.layers:
        layer.norm.weight.data = layer.norm.weight.data * 2  # type: ignore[operator, union-attr]


def in_inference_mode(model: AveyBModel) -> None:
    with torch.inference_mode():
        model.layers[2].enricher.weight.mul_(2)  # type: ignore[operator, union-attr]


def by_data_in_training(model: AveyBModel) -> None:
    model.train()
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    model.eval()


def without_a_layer(model: AveyBModel) -> None:
    del model.layers[2]


def hook_on_a_layer(model: AveyBModel) -> None:
    model.layers[2].register_forward_hook(lambda _module, _args, out: 2 * out)


def there_and_back(model: AveyBModel) -> None:
    model.to(torch.bfloat16).to(torch.float32)


CHANGES: list[Callable[[AveyBModel], None]] = [
    optimizer_step,
    other_weights,
    lambda m: other_weights(m, assign=True),
    new_parameter,
    new_part,
    new_storage,
    in_inference_mode,
    by_data_in_training,
    without_a_layer,
    hook_on_a_layer,
    there_and_back,
]


@needs_operators
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_weight_is_prepared_again(change: Callable[[AveyBModel], None]) -> None:
    model = small_model("paper")
    before = encode(model)
    assert is_prepared(model)
    change(model)
    got = encode(model)
    assert (got - before).abs().max() > 1e-4
    torch.testing.assert_close(got, plainly(model), atol=2e-5 * got.abs().max().item(), rtol=0)


@needs_operators
def test_what_one_mode_prepared_serves_the_other() -> None:
    model = small_model("paper")
    with torch.inference_mode():
        expected = model(IDS).last_hidden_state
    prepared = model._inference
    got = encode(model)
    assert model._inference is prepared
    assert not got.is_inference()
    torch.testing.assert_close(got, expected, atol=0, rtol=0)


@needs_operators
def test_another_dtype_does_not_meet_weights_prepared_for_the_last_one() -> None:
    model = small_model("paper")
    encode(model)
    for dtype in (torch.bfloat16, torch.float64, torch.float32):  # float64: packed weights cannot serve it
        assert encode(model.to(dtype)).dtype == dtype


def test_what_is_prepared_is_not_part_of_the_model() -> None:
    model = small_model("released")
    names = list(model.state_dict())
    expected = encode(model)
    assert list(model.state_dict()) == names
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not is_prepared(other)
        torch.testing.assert_close(encode(other), expected, atol=0, rtol=0)
        with torch.no_grad():
            other.layers[0].fuser.weight.zero_()
        assert (encode(other) - expected).abs().max() > 1e-4
    torch.testing.assert_close(encode(model), expected, atol=0, rtol=0)


def test_gradients_are_those_of_a_model_that_was_never_prepared() -> None:
    def gradients(model: AveyBModel) -> list[torch.Tensor | None]:
        model(LONG).last_hidden_state.square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    used = small_model("paper")
    encode(used, LONG)
    for got, expected in zip(gradients(used), gradients(small_model("paper")), strict=True):
        assert got is not None
        torch.testing.assert_close(got, expected, atol=0, rtol=0)


@needs_operators
def test_training_frees_what_was_prepared() -> None:
    model = small_model("paper")
    encode(model)
    model.train()
    assert not is_prepared(model)


def test_weights_without_a_version_counter_are_not_prepared() -> None:
    with torch.inference_mode():
        model = small_model("paper")
        before = model(IDS).last_hidden_state
        assert not is_prepared(model)
        for layer in model.layers:
            layer.fuser.weight.mul_(2)  # type: ignore[operator, union-attr]
        assert (model(IDS).last_hidden_state - before).abs().max() > 1e-4


def test_autocast_and_a_torch_without_the_operators_take_the_plain_form() -> None:
    model = small_model("paper")
    with torch.autocast("cpu", torch.bfloat16):
        encode(model)
    assert not is_prepared(model)
    plainly(model)
    assert not is_prepared(model)
