"""MaxSim and late interaction as kernels against their references."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from aveyb_retrieval.kernels import maxsim
from aveyb_retrieval.kernels.host_maxsim import best_splits
from aveyb_retrieval.kernels.maxsim import late_interaction

EPS = 1e-12


def batch(
    documents: list[int], split: int, vocabulary: int = 60
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """ids `[n, S]`, lengths and starts of documents with these numbers of tokens; ids repeat as
    words do.
    """
    ids, lengths, starts = [], [], [0]
    for tokens in documents:
        n = -(-tokens // split)
        starts.append(starts[-1] + n)
        lengths += [split] * (n - 1) + [tokens - split * (n - 1)]
        for _ in range(n):
            ids.append((torch.rand(split) ** 2 * vocabulary).long())
    return torch.stack(ids), torch.tensor(lengths), starts


@pytest.mark.parametrize("split", [16, 24])
def test_all_documents_of_a_batch_at_once(split: int) -> None:
    ids, lengths, starts = batch([3 * split + 1, 5, 2 * split, 4 * split - 1], split)
    table = torch.randn(60, 20)
    got = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="triton")
    wanted = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="torch")
    assert torch.equal(got.isneginf(), wanted.isneginf())
    assert torch.allclose(got, wanted, rtol=1e-6, atol=1e-5)


def test_full_size_splits() -> None:
    ids, lengths, starts = batch([2 * 256 + 17, 256 + 255], 256, vocabulary=900)
    table = torch.randn(900, 16)
    got = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="triton")
    wanted = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="torch")
    assert torch.allclose(got, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 16, 17, 150])
def test_by_token(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    monkeypatch.setattr(maxsim, "SHORTCUT_SPLITS", 0)
    ids, lengths, starts = batch([tokens], 16)
    table = torch.randn(60, 20)
    got = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="triton")
    wanted = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="torch")
    assert torch.equal(got.isneginf(), wanted.isneginf())
    assert torch.allclose(got, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("elements", [1 << 28, 1000], ids=["one pass", "several passes"])
def test_long_documents_take_the_shortcut_together(
    monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    monkeypatch.setattr(maxsim, "SHORTCUT_SPLITS", 3)
    monkeypatch.setattr(maxsim, "_PASS_ELEMENTS", elements)
    ids, lengths, starts = batch([20, 16 * 5 + 2, 40, 16 * 7, 16 * 3 + 1], 16)
    table = torch.randn(60, 12)
    got = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="triton")
    wanted = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="torch")
    assert torch.equal(got.isneginf(), wanted.isneginf())
    assert torch.allclose(got, wanted, rtol=1e-6, atol=1e-5)


def test_a_long_document_does_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maxsim, "SHORTCUT_SPLITS", 3)
    ids, lengths, starts = batch([16 * 5 + 2, 16 * 6, 16 * 4 + 9], 16)
    table = torch.randn(60, 12)
    together = maxsim.split_scores(ids, lengths, starts, table, EPS, backend="triton")
    for start, stop in pairwise(starts):
        own = ids[start:stop], lengths[start:stop], [0, stop - start]
        alone = maxsim.split_scores(*own, table, EPS, backend="triton")
        assert torch.equal(together[start:stop, : stop - start], alone)


@pytest.mark.parametrize("block", [1, 3, 128])
def test_a_document_is_ranked_by_blocks_of_columns(block: int) -> None:
    """The cosines are exact, so that equal scores are equal in every form."""
    ids, lengths, _ = batch([16 * 9 + 5], 16, vocabulary=20)
    table = torch.randint(0, 2, (60, 16)).float() * 2 - 1
    scores, chosen = maxsim.best_of_long(ids, lengths, table, EPS, 3, block)
    splits = [row[:length].numpy() for row, length in zip(ids, lengths.tolist(), strict=True)]
    best, numbers = best_splits(splits, maxsim.rows_on_host(table), EPS, 3)
    assert torch.equal(scores, torch.from_numpy(best))
    there = ~scores.isneginf()
    assert torch.equal(chosen[there], torch.from_numpy(numbers)[there])


@pytest.mark.parametrize("query", [1, 7, 70])
def test_late_interaction(query: int) -> None:
    own = [1, 0, 65, 16, 130]
    starts = torch.tensor([0, *own]).cumsum(0)
    # rows are a view: their stride is not their width
    documents = torch.randn(int(starts[-1]), 48)[:, :40]
    vectors = torch.randn(query, 40)
    got = late_interaction(vectors, documents, starts, backend="triton")
    wanted = late_interaction(vectors, documents, starts, backend="torch")
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-5)
