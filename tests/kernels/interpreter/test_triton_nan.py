"""Not-a-number goes through every kernel as through plain torch: a diverged run must
look like one.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from typing import TYPE_CHECKING

from aveyb_retrieval.kernels import maxsim
from aveyb_retrieval.kernels.maxsim import late_interaction
from aveyb_retrieval.kernels.mixing import dynamic_mix, static_mix
from aveyb_retrieval.kernels.positionwise import activate

if TYPE_CHECKING:
    from collections.abc import Callable

NAN = float("nan")


def activated(backend: str) -> torch.Tensor:
    x = torch.ones(1, 20, 16)
    x[0, 3, 5] = NAN
    return activate(x, "relu2", backend=backend)


def mixed(backend: str, operation: str) -> torch.Tensor:
    x, gate = torch.ones(2, 20, 16), torch.ones(2, 20, 16)
    x[0, 3, 5], gate[1, 4, 6] = NAN, NAN
    if operation == "static_mix":
        return static_mix(x, gate, torch.eye(20), activation="relu", backend=backend)
    return dynamic_mix(x, gate, normalization="sum", eps=1e-6, activation="relu", backend=backend)


def scores(backend: str) -> torch.Tensor:
    table = torch.eye(20, 16) + 1
    table[7] = NAN
    ids, lengths = torch.arange(64).view(4, 16) % 20, torch.tensor([16, 16, 16, 5])
    return maxsim.split_scores(ids, lengths, [0, 4], table, 1e-12, backend=backend)


def reranked(backend: str) -> torch.Tensor:
    documents = torch.ones(60, 16)
    documents[27, 3] = NAN
    return late_interaction(
        torch.ones(4, 16), documents, torch.tensor([0, 20, 40, 60]), backend=backend
    )


@pytest.mark.parametrize(
    "run",
    [
        activated,
        lambda backend: mixed(backend, "static_mix"),
        lambda backend: mixed(backend, "dynamic_mix"),
        scores,
        reranked,
    ],
    ids=["relu2", "static_mix", "dynamic_mix", "split_scores", "late_interaction"],
)
def test_not_a_number_stays_visible(run: Callable[[str], torch.Tensor]) -> None:
    got, wanted = run("triton"), run("torch")
    assert bool(wanted.isnan().any())
    assert torch.equal(got.isnan(), wanted.isnan())
