"""Late interaction against the definition written as loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from aveyb_retrieval.encoder.network import token_codec as module
from aveyb_retrieval.kernels.maxsim import late_interaction

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTHS = pytest.mark.parametrize("lengths", [[3], [1, 7, 2], [0, 5, 0, 0, 2], [0], []], ids=str)


def by_definition(query: torch.Tensor, documents: list[torch.Tensor]) -> list[float]:
    return [
        (
            sum(max(float(q.double() @ d.double()) for d in document) for q in query)
            if len(document)
            else 0.0
        )
        for document in documents
    ]


def random_documents(lengths: list[int], dim: int = 8) -> list[torch.Tensor]:
    return [torch.randn(length, dim) for length in lengths]


def packed(documents: list[torch.Tensor], dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.tensor([0, *(len(d) for d in documents)]).cumsum(0)
    return torch.cat([torch.zeros(0, dim), *documents]), starts


def by_numpy(query: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    bounds = starts.numpy()
    return torch.from_numpy(
        module.late_interaction_numpy(query.float().numpy(), rows.numpy(), bounds[:-1], bounds[1:])
    )


FORMS = pytest.mark.parametrize("score", [late_interaction, by_numpy], ids=["torch", "numpy"])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


@LENGTHS
@FORMS
def test_both_forms_equal_the_definition(
    score: Callable[..., torch.Tensor], lengths: list[int]
) -> None:
    query, documents = torch.randn(4, 8), random_documents(lengths)
    got = score(query, *packed(documents))
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx(by_definition(query, documents), rel=1e-5, abs=1e-6)


@LENGTHS
def test_every_row_has_a_finite_gradient(lengths: list[int]) -> None:
    rows, starts = packed(random_documents(lengths))
    late_interaction(torch.randn(4, 8), rows.requires_grad_(), starts).sum().backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())


def test_gradient() -> None:
    query, rows = torch.randn(2, 3), torch.randn(7, 3)
    leaf, own = rows.clone().requires_grad_(), query.clone().requires_grad_()
    late_interaction(own, leaf, torch.tensor([0, 4, 7])).backward(torch.tensor([1.0, 2.0]))
    wanted, wanted_query = torch.zeros(7, 3), torch.zeros(2, 3)
    for weight, start, stop in ((1.0, 0, 4), (2.0, 4, 7)):
        for i, q in enumerate(query):
            met = start + int((rows[start:stop] @ q).argmax())
            wanted[met] += weight * q
            wanted_query[i] += weight * rows[met]
    torch.testing.assert_close(leaf.grad, wanted)
    torch.testing.assert_close(own.grad, wanted_query)


@pytest.mark.parametrize("block", [1, 4, 17])
def test_blocks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    query, documents = torch.randn(3, 8), random_documents([5, 1, 0, 9, 2, 2, 30, 1])
    wanted = pytest.approx(by_definition(query, documents), rel=1e-5, abs=1e-6)
    monkeypatch.setattr(module, "_BLOCK_ROWS", block)
    assert by_numpy(query, *packed(documents)).tolist() == wanted


@pytest.mark.parametrize(
    ("score", "dtype"),
    [
        (late_interaction, torch.float16),
        (late_interaction, torch.bfloat16),
        (by_numpy, torch.float16),
    ],
)
def test_half_precision_rows_are_multiplied_in_float32(
    score: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    query, documents = (
        torch.randn(3, 8).to(dtype),
        [d.to(dtype) for d in random_documents([5, 1, 9])],
    )
    got = score(query, torch.cat(documents), torch.tensor([0, 5, 6, 15]))
    assert got.tolist() == pytest.approx(by_definition(query, documents), rel=1e-6)


@FORMS
def test_a_query_without_tokens_scores_zero(score: Callable[..., torch.Tensor]) -> None:
    assert score(torch.zeros(0, 8), torch.randn(12, 8), torch.tensor([0, 6, 12])).tolist() == [0, 0]


@FORMS
def test_not_a_number_stays_visible(score: Callable[..., torch.Tensor]) -> None:
    documents = torch.randn(18, 8)
    documents[8, 3] = float("nan")
    found = score(torch.randn(3, 8), documents, torch.tensor([0, 6, 12, 18]))
    assert found.isnan().tolist() == [False, True, False]


@FORMS
def test_a_document_does_not_depend_on_its_neighbors(score: Callable[..., torch.Tensor]) -> None:
    query, documents = torch.randn(3, 8), random_documents([5, 1, 9])
    alone = [float(score(query, *packed([document]))[0]) for document in documents]
    assert score(query, *packed(documents)).tolist() == pytest.approx(alone, rel=1e-6)
