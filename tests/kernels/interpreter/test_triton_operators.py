"""The kernels as torch operators: what `torch.compile` and autograd are told about them is true."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.kernels.mixing import dynamic_mix
from aveyb_retrieval.kernels.triton.dynamic_mix import dynamic_mix_op, dynamic_mix_over_gate_op
from aveyb_retrieval.kernels.triton.positionwise import activate_around_op, add_norm_op, relu2_op
from aveyb_retrieval.kernels.triton.static_mix import static_mix_op, static_mix_over_gate_op

# AOT dispatch, the fourth, compares compiled with eager runs: too slow in the interpreter.
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


def test_relu2() -> None:
    torch.library.opcheck(relu2_op, (leaf(3, 17, 16),), test_utils=CHECKS)


def test_operators_for_inference() -> None:
    checks = ("test_schema", "test_faketensor")
    enriched, norms = torch.randn(2, 17, 64), torch.rand(2, 17)
    mixed, gate, lengths = enriched[..., :16], enriched[..., 16:32], torch.tensor([17, 3])
    for operator, arguments in (
        (activate_around_op, (enriched, "gelu", 16, 32)),
        (add_norm_op, (norms, norms, None, norms[0], 1e-6)),
        (
            static_mix_over_gate_op,
            (mixed, gate, torch.randn(17, 17), lengths, torch.randn(17), True, "relu2"),
        ),
        (dynamic_mix_over_gate_op, (mixed, gate, norms, lengths, None, 1e-6, True, False, "gelu")),
    ):
        torch.library.opcheck(operator, arguments, test_utils=checks)


def test_static_mix() -> None:
    arguments = (
        leaf(2, 17, 16),
        leaf(2, 17, 16),
        leaf(17, 17),
        torch.tensor([17, 3]),
        leaf(17),
        True,
    )
    torch.library.opcheck(static_mix_op, arguments, test_utils=CHECKS)


def test_dynamic_mix() -> None:
    arguments = (leaf(2, 17, 16), leaf(2, 17, 16), torch.tensor([17, 3]), None, 1e-6, True, False)
    torch.library.opcheck(dynamic_mix_op, arguments, test_utils=CHECKS)


def test_no_new_graph_for_a_new_number_of_splits() -> None:
    graphs = []

    def layer(mixed: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return dynamic_mix(mixed, gate, normalization="l1", eps=1e-12, backend="triton") + 1

    def count(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, backend=count, fullgraph=True)
    for n in (2, 3, 5, 4):
        mixed, gate = torch.randn(n, 16, 16), torch.randn(n, 16, 16)
        assert torch.equal(compiled(mixed, gate), layer(mixed, gate))
    assert len(graphs) <= 2  # one for the first shape, one for any number of splits
