"""Coupled mixing in plain torch against its equation, written again in float64, and against numerical gradients."""

from __future__ import annotations

import pytest
import torch

from aveyb_retrieval.errors import BackendError
from aveyb_retrieval.kernels.mixing import coupled_mix

EPS = 1e-6


@pytest.mark.parametrize("length", [1, 7, 16])
def test_equation_2_of_avey(length: int) -> None:
    torch.manual_seed(length)
    mixed, gate = torch.randn(2, 2, length, 5, dtype=torch.float64)
    weight = torch.randn(length, length, dtype=torch.float64)
    got = coupled_mix(mixed, gate, weight, eps=EPS)
    for n in range(2):
        for i in range(length):
            total = torch.zeros(5, dtype=torch.float64)
            for j in range(i + 1):
                norms = [(z.dot(z) + EPS).sqrt() for z in (mixed[n, i], mixed[n, j])]
                total += weight[i, j] * mixed[n, i].dot(mixed[n, j]) / (norms[0] * norms[1]) * mixed[n, j]
            torch.testing.assert_close(got[n, i], gate[n, i] * total)


def test_gradients() -> None:
    torch.manual_seed(0)
    mixed, gate = torch.randn(2, 2, 6, 4, dtype=torch.float64)
    mixed[0, 2] = 0
    weight = torch.randn(6, 6, dtype=torch.float64)
    leaves = [v.requires_grad_() for v in (mixed, gate, weight)]
    assert torch.autograd.gradcheck(lambda *v: coupled_mix(*v, eps=1e-2), leaves)


def test_half_precision_sums_in_float32() -> None:
    torch.manual_seed(0)
    mixed, gate, weight = 60 * torch.randn(1, 9, 300), torch.randn(1, 9, 300), torch.randn(9, 9)
    wanted = coupled_mix(mixed, gate, weight, eps=EPS)
    got = coupled_mix(mixed.half(), gate.half(), weight.half(), eps=EPS)  # squares overflow float16
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), wanted, rtol=2e-2, atol=1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_kernel_without_a_gpu_is_refused() -> None:
    with pytest.raises(BackendError, match="coupled_mix"):
        coupled_mix(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), torch.zeros(2, 2), eps=EPS, backend="triton")
