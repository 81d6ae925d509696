"""Float8 on plain torch: what is rounded, what it costs, and that a model can be switched to it and back."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch

from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.kernels import dispatch, float8
from aveyb_retrieval.kernels.enrich import enrich
from aveyb_retrieval.kernels.fuse import fuse_reference
from tests.encoder.models import PRESETS, small_model

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.network.model import AveyBModel

IDS = torch.randint(0, 97, (2, 60), generator=torch.Generator().manual_seed(2))


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def encode(model: AveyBModel) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).last_hidden_state.float()


def test_rows_are_scaled_by_their_own_largest_magnitude() -> None:
    rows = torch.tensor([[1.0, -4.0, 0.0], [0.0, 0.0, 0.0], [1e-30, 2e-30, -1e-30], [1e30, 3e30, 2e30]])
    quantized = float8.quantize_reference(rows)
    assert quantized.values.dtype == torch.float8_e4m3fn
    assert quantized.values.float().abs().amax(1).tolist() == [448, 0, 448, 448]
    torch.testing.assert_close(quantized.wide(), rows, rtol=2**-4, atol=0)
    assert quantized.scales[1] == 0


def test_every_value_is_the_nearest_that_float8_has() -> None:
    rows = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    quantized = float8.quantize_reference(rows)
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    numbers = numbers[numbers.isfinite()]
    exact = rows.double() / rows.double().abs().amax(1, keepdim=True) * 448
    nearest = (exact[..., None] - numbers).abs().amin(-1)
    # The quotient is float32: a value next to a tie may go either way.
    assert bool(((quantized.values.double() - exact).abs() <= nearest + 1e-4).all())


def test_not_a_number_and_infinity_stay_visible() -> None:
    for odd in (float("nan"), float("inf")):
        assert not float8.quantize_reference(torch.tensor([1.0, odd])).wide().isfinite().all()


@pytest.mark.parametrize("activation", ["gelu", "relu2"])
def test_enricher_and_fuser_are_near_their_exact_forms(activation: str) -> None:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x, scale, weight, bias = 5 * normal(2, 9, 64), 1 + 0.3 * normal(64), normal(256, 64) / 8, normal(256)
    got = float8.enrich_float8(
        x, float8.quantize_weight(weight, scale), bias, eps=1e-6, activation=activation, backend="torch"
    )
    wanted = enrich(x, scale, weight, bias, eps=1e-6, activation=activation, backend="torch")
    assert relative_error(got, wanted) < 0.06
    parts = normal(2, 9, 64), normal(2, 9, 128)
    matrix, out_bias, alpha = normal(64, 192) / 14, normal(64), torch.tensor(0.7)
    got = float8.fuse_float8(parts, float8.quantize_weight(matrix), out_bias, x, alpha, backend="torch")
    assert relative_error(got, fuse_reference(*parts, *matrix.split((64, 128), 1), out_bias, x, alpha)) < 0.02


def test_products_are_those_of_torch_s_own_operator() -> None:
    """`torch._scaled_mm`, which calls the vendor's library on a GPU, on the same operands."""
    if not hasattr(torch, "_scaled_mm"):
        pytest.skip("this torch has no _scaled_mm")
    rows, weight = torch.randn(32, 64), torch.randn(48, 64)
    a, b = float8.quantize_reference(rows), float8.quantize_weight(weight)
    wanted = torch._scaled_mm(a.values, b.values.t(), a.scales[:, None], b.scales[None], out_dtype=torch.float32)
    torch.testing.assert_close(a.wide() @ b.wide().t(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_in_float8_and_back(preset: str, dtype: torch.dtype) -> None:
    model = small_model(preset, initializer_range=0.1).to(dtype)
    exact = encode(model)
    model.use_float8()
    rounded = encode(model)
    assert 1e-3 < relative_error(rounded, exact) < 0.1
    assert torch.equal(rounded, encode(model))
    model.use_float8(False)
    assert torch.equal(encode(model), exact)


def test_a_text_alone_and_in_a_batch() -> None:
    model = small_model("paper", initializer_range=0.1)
    model.use_float8()
    together = encode(model)
    with torch.inference_mode():
        alone = model(IDS[1:]).last_hidden_state
    torch.testing.assert_close(alone[0], together[1], atol=1e-5, rtol=0)


def test_a_changed_weight_is_rounded_again() -> None:
    model = small_model("paper")
    model.use_float8()
    before = encode(model)
    with torch.no_grad():
        model.layers[1].fuser.weight.mul_(2)  # type: ignore[operator, union-attr]
    after = encode(model)
    assert relative_error(after, before) > 1e-2
    assert torch.equal(encode(copy.deepcopy(model)), after)


def test_what_cannot_run_in_float8_says_so() -> None:
    model = small_model("paper")
    model.use_float8()
    with pytest.raises(BackendError, match="float8 has no gradient"):
        model(IDS)
    model.layers[0].compile(backend="eager")
    with torch.inference_mode(), pytest.raises(BackendError, match="cannot be compiled"):
        model(IDS)
    with torch.inference_mode():
        made_here = small_model("paper")
        made_here.use_float8()
        with pytest.raises(BackendError, match="made outside"):
            made_here(IDS)


def test_an_older_device_is_refused_and_one_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_TRITON_INSTALLED", False)
    assert "Triton is not installed (pip install" in (float8.lacking(torch.device("cuda")) or "")
    monkeypatch.setattr(dispatch, "_TRITON_INSTALLED", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert float8.lacking(torch.device("cuda")) == "float8 products need compute capability 8.9 or newer; cuda has 8.6"
    assert float8.lacking(torch.device("cpu")) is None
