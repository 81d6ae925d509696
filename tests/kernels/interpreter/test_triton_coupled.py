"""Coupled mixing as kernels: forward and all gradients against the reference, contexts longer than a tile too."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.encoder.config import AveyConfig
from aveyb_retrieval.encoder.network.avey import AveyForCausalLM
from aveyb_retrieval.kernels.dispatch import force_backend
from aveyb_retrieval.kernels.mixing import coupled_mix
from aveyb_retrieval.kernels.triton.coupled_mix import coupled_mix_op
from tests.kernels.interpreter.test_triton_mixing import TOLERANCE, relative_error

EPS = 1e-3
SHAPES = pytest.mark.parametrize(
    ("n", "tokens", "width"), [(1, 1, 16), (2, 15, 24), (3, 16, 40), (2, 17, 80), (1, 150, 24)]
)


def leaves(n: int, tokens: int, width: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """The enricher's output, of which `mixed` and `gate` are views, and a V larger than the context."""
    enriched = torch.randn(n, tokens, 4 * width).relu().square()  # what ReLU squared gives: half of it is zero
    enriched[:, 0] = 0  # a vector without direction
    matrix = torch.randn(tokens + 3, tokens + 3) / tokens**0.5
    return [enriched.to(dtype).requires_grad_(), matrix.to(dtype).requires_grad_()]


def run(inputs: list[torch.Tensor], backend: str, upstream: torch.Tensor) -> list[torch.Tensor]:
    enriched, matrix = inputs
    tokens, width = enriched.shape[1], enriched.shape[2] // 4
    mixed, gate = enriched[..., :width], enriched[..., width : 2 * width]
    out = coupled_mix(mixed, gate, matrix[:tokens, :tokens], eps=EPS, backend=backend)
    return [out, *torch.autograd.grad(out, inputs, upstream)]


@SHAPES
def test_forward_and_gradients(n: int, tokens: int, width: int) -> None:
    inputs = leaves(n, tokens, width)
    upstream = torch.randn(n, tokens, width)
    got, wanted = (run(inputs, backend, upstream) for backend in ("triton", "torch"))
    for name, a, b in zip(("out", "enriched", "matrix"), got, wanted, strict=True):
        assert relative_error(a, b) < TOLERANCE[torch.float32], name


def test_half_precision() -> None:
    inputs = leaves(2, 70, 32, torch.float16)
    wide = [v.detach().float().requires_grad_() for v in inputs]
    upstream = torch.randn(2, 70, 32)
    got, wanted = run(inputs, "triton", upstream.half()), run(wide, "torch", upstream)
    assert max(relative_error(a, b) for a, b in zip(got, wanted, strict=True)) < TOLERANCE[torch.float16]


def test_a_context_does_not_depend_on_the_batch() -> None:
    enriched, matrix = (v.detach() for v in leaves(3, 40, 24))
    parts = [enriched[..., :24], enriched[..., 24:48]]
    together = coupled_mix(*parts, matrix[:40, :40], eps=EPS, backend="triton")
    for i in range(3):
        alone = coupled_mix(*(p[i : i + 1] for p in parts), matrix[:40, :40], eps=EPS, backend="triton")
        assert torch.equal(alone[0], together[i])


def test_a_row_depends_on_no_later_row() -> None:
    enriched, matrix = (v.detach() for v in leaves(1, 40, 24))
    other = enriched.clone()
    other[:, 25:] = torch.randn_like(other[:, 25:])
    found = [
        coupled_mix(e[..., :24], e[..., 24:48], matrix[:40, :40], eps=EPS, backend="triton") for e in (enriched, other)
    ]
    assert torch.equal(found[0][:, :25], found[1][:, :25])


def test_more_contexts_than_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aveyb_retrieval.kernels.triton.coupled_mix._MAX_PARTIALS", 2)
    inputs, upstream = leaves(5, 20, 16), torch.randn(5, 20, 16)
    got, wanted = (run(inputs, backend, upstream) for backend in ("triton", "torch"))
    assert relative_error(got[2], wanted[2]) < TOLERANCE[torch.float32]


def test_no_contexts() -> None:
    inputs = [torch.zeros(0, 5, 64).requires_grad_(), torch.zeros(8, 8).requires_grad_()]
    out, *grads = run(inputs, "triton", torch.zeros(0, 5, 16))
    assert out.shape == (0, 5, 16) and [g.shape for g in grads] == [v.shape for v in inputs]


def test_the_operator_is_registered_in_full() -> None:
    enriched, matrix = leaves(2, 17, 16)
    arguments = (enriched[..., :16], enriched[..., 16:32], matrix[:17, :17].contiguous(), EPS)
    torch.library.opcheck(
        coupled_mix_op, arguments, test_utils=("test_schema", "test_faketensor", "test_autograd_registration")
    )


def test_the_whole_model() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "split_size": 8, "num_retrieved": 2}
    model = AveyForCausalLM(AveyConfig(**sizes, initializer_range=0.3))
    ids, labels = torch.randint(0, 40, (2, 2, 29))
    found = {}
    for backend in ("triton", "torch"):
        model.zero_grad()
        with force_backend(backend):
            loss = model(ids, labels=labels).loss
            loss.backward()
        found[backend] = [loss, *(p.grad.clone() for p in model.parameters())]
    for got, wanted in zip(found["triton"], found["torch"], strict=True):
        assert relative_error(got, wanted) < 1e-5
