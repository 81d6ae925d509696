"""Late interaction against the definition written as loops."""

from __future__ import annotations

import pytest
import torch

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.kernels import late_interaction_numpy as module
from aveyb_retrieval.kernels.late_interaction import late_interaction

LENGTHS = pytest.mark.parametrize("lengths", [[3], [1, 7, 2], [0, 5, 0, 0, 2], [0], []], ids=str)


def by_definition(query: torch.Tensor, documents: list[torch.Tensor]) -> list[float]:
    return [
        sum(max(float(q.double() @ d.double()) for d in document) for q in query) if len(document) else 0.0
        for document in documents
    ]


def random_documents(lengths: list[int], dim: int = 8) -> list[torch.Tensor]:
    return [torch.randn(length, dim) for length in lengths]


def packed(documents: list[torch.Tensor], dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.tensor([0, *(len(d) for d in documents)]).cumsum(0)
    return torch.cat([torch.zeros(0, dim), *documents]), starts


def padded(documents: list[torch.Tensor], dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """With not-a-number where no token is."""
    width = max((len(d) for d in documents), default=0) + 1
    rows = torch.full((len(documents), width, dim), float("nan"))
    for row, document in zip(rows, documents, strict=True):
        row[: len(document)] = document
    return rows, torch.tensor([len(d) for d in documents], dtype=torch.int64)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


@LENGTHS
def test_both_forms_equal_the_definition(lengths: list[int]) -> None:
    query, documents = torch.randn(4, 8), random_documents(lengths)
    wanted = pytest.approx(by_definition(query, documents), rel=1e-5, abs=1e-6)
    rows, starts = packed(documents)
    got = late_interaction(query, rows, starts=starts)
    assert got.dtype == torch.float32
    assert got.tolist() == wanted
    rows, own = padded(documents)
    assert late_interaction(query, rows, lengths=own).tolist() == wanted


@LENGTHS
def test_with_a_gradient_as_without(lengths: list[int]) -> None:
    query, documents = torch.randn(4, 8), random_documents(lengths)
    for (rows, own), name in ((packed(documents), "starts"), (padded(documents), "lengths")):
        wanted = late_interaction(query, rows, **{name: own})
        leaf = rows.clone().requires_grad_()
        got = late_interaction(query, leaf, **{name: own})
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        got.sum().backward()
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())


def test_gradient() -> None:
    query, rows = torch.randn(2, 3), torch.randn(7, 3)
    leaf, own = rows.clone().requires_grad_(), query.clone().requires_grad_()
    late_interaction(own, leaf, starts=torch.tensor([0, 4, 7])).backward(torch.tensor([1.0, 2.0]))
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
    for (rows, own), name in ((packed(documents), "starts"), (padded(documents), "lengths")):
        assert late_interaction(query, rows, **{name: own}).tolist() == wanted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_are_multiplied_in_float32(dtype: torch.dtype) -> None:
    query, documents = torch.randn(3, 8).to(dtype), [d.to(dtype) for d in random_documents([5, 1, 9])]
    rows, starts = torch.cat(documents), torch.tensor([0, 5, 6, 15])
    got = late_interaction(query, rows, starts=starts)
    assert got.tolist() == pytest.approx(by_definition(query, documents), rel=1e-6)


def test_all_tokens_exist_without_lengths() -> None:
    query, documents = torch.randn(3, 8), torch.randn(2, 6, 8)
    assert late_interaction(query, documents).tolist() == pytest.approx(by_definition(query, list(documents)), rel=1e-5)


def test_a_query_without_tokens_scores_zero() -> None:
    assert late_interaction(torch.zeros(0, 8), torch.randn(2, 6, 8)).tolist() == [0, 0]


def test_not_a_number_stays_visible() -> None:
    documents = torch.randn(3, 6, 8)
    documents[1, 2, 3] = float("nan")
    assert late_interaction(torch.randn(3, 8), documents).isnan().tolist() == [False, True, False]


def test_a_document_does_not_depend_on_its_neighbors() -> None:
    query, documents = torch.randn(3, 8), random_documents([5, 1, 9])
    rows, starts = packed(documents)
    alone = [float(late_interaction(query, d[None])[0]) for d in documents]
    assert late_interaction(query, rows, starts=starts).tolist() == pytest.approx(alone, rel=1e-6)


PACKED, PADDED = torch.zeros(4, 8), torch.zeros(2, 3, 8)


@pytest.mark.parametrize(
    ("query", "documents", "more", "what"),
    [
        (7, PACKED, {"starts": torch.tensor([0, 4])}, "one width D"),
        (8, PACKED[0], {"starts": torch.tensor([0, 4])}, "one width D"),
        (8, PACKED, {}, "need starts"),
        (8, PACKED, {"starts": torch.tensor([0, 4]), "lengths": torch.tensor([4])}, "and no lengths"),
        (8, PACKED, {"starts": torch.tensor([0, 3])}, r"number of document rows \(4\); they are from 0 to 3"),
        (8, PACKED, {"starts": torch.zeros(0, dtype=torch.int64)}, "they are empty"),
        (8, PACKED, {"starts": torch.tensor([0, 3, 2, 4])}, r"starts\[1\] is 3, starts\[2\] 2"),
        (8, PACKED, {"starts": torch.tensor([0.0, 4.0])}, r"starts must be integers \[n \+ 1\]"),
        (8, PADDED, {"starts": torch.tensor([0, 4])}, "take lengths"),
        (8, PADDED, {"lengths": torch.tensor([3])}, "2 padded documents need 2 lengths, not 1"),
        (8, PADDED, {"lengths": torch.tensor([3, 4])}, "padded to 3 tokens go from 3 to 4"),
        (8, PADDED, {"lengths": torch.tensor([-1, 3])}, "go from -1 to 3"),
    ],
)
def test_shapes_that_do_not_fit_raise(query: int, documents: torch.Tensor, more: dict, what: str) -> None:
    with pytest.raises(InputError, match=what):
        late_interaction(torch.zeros(2, query), documents, **more)
