"""Late interaction against the definition written as loops."""

import pytest
import torch

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.kernels.late_interaction import late_interaction


def by_definition(query: torch.Tensor, documents: list[torch.Tensor]) -> list[float]:
    return [
        sum(max(float(q.double() @ d.double()) for d in document) for q in query) if len(document) else 0.0
        for document in documents
    ]


def ragged(lengths: list[int], dim: int = 8) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    documents = [torch.randn(length, dim) for length in lengths]
    return torch.cat(documents), torch.tensor([0, *lengths]).cumsum(0), documents


@pytest.mark.parametrize("lengths", [[3], [1, 7, 2], [0, 5, 0], [0], []], ids=str)
def test_equals_the_definition(lengths: list[int]) -> None:
    torch.manual_seed(1)
    query = torch.randn(4, 8)
    rows, starts, documents = ragged(lengths) if lengths else (torch.zeros(0, 8), torch.tensor([0]), [])
    got = late_interaction(query, rows, starts)
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx(by_definition(query, documents), rel=1e-5, abs=1e-6)


def test_a_document_does_not_depend_on_its_neighbors() -> None:
    torch.manual_seed(2)
    query = torch.randn(3, 8)
    rows, starts, documents = ragged([5, 1, 9])
    alone = [float(late_interaction(query, d, torch.tensor([0, len(d)]))[0]) for d in documents]
    assert late_interaction(query, rows, starts).tolist() == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize(
    ("query", "starts", "what"),
    [
        (torch.zeros(2, 7), torch.tensor([0, 4]), "one width D"),
        (torch.zeros(2, 8), torch.tensor([0, 3]), "number of document rows"),
        (torch.zeros(2, 8), torch.tensor([0, 3, 2, 4]), "a fall in between"),
        (torch.zeros(2, 8), torch.tensor([0.0, 4.0]), "integers"),
    ],
)
def test_shapes_that_do_not_fit_raise(query: torch.Tensor, starts: torch.Tensor, what: str) -> None:
    with pytest.raises(InputError, match=what):
        late_interaction(query, torch.zeros(4, 8), starts)
