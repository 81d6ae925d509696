"""The ranker against a loop written straight from the papers."""

from __future__ import annotations

import functools

import pytest
import torch

from aveyb_retrieval.encoder.network import ranker as ranker_module
from aveyb_retrieval.encoder.network.ranker import Ranker
from aveyb_retrieval.encoder.network.splits import split_table
from tests.encoder.models import PRESETS, small_config


def by_the_book(ranker: Ranker, ids: torch.Tensor, embedding: torch.Tensor) -> list[torch.Tensor]:
    """The compressed splits of one document in float64: score, choose, weigh, concatenate,
    multiply.
    """
    config = ranker.config
    size, k = config.split_size, config.num_retrieved
    x = embedding[ids].double()
    unit = x / (x.norm(dim=-1, keepdim=True) + config.similarity_eps)
    projection = ranker.down_proj.double()
    out = []
    for start in range(0, len(ids), size):
        current = x[start : start + size]
        scores = [
            ((unit[start : start + size] @ unit[j : j + size].T).amax(1).sum().item(), j)
            for j in range(0, start, size)
        ]
        chosen = sorted(scores, key=lambda pair: (-pair[0], pair[1]))[:k]
        if config.retrieved_order == "sequence":
            chosen = sorted(chosen, key=lambda pair: pair[1])
        divisor = (
            {"max": max, "min": min}[config.weight_norm](s for s, _ in chosen) if chosen else 1.0
        )
        blocks = [torch.zeros(size, x.shape[1], dtype=torch.float64)] * (k - len(chosen))
        blocks += [x[j : j + size] * (score / divisor) for score, j in chosen]
        padded = torch.zeros(size, x.shape[1], dtype=torch.float64)
        padded[: len(current)] = current
        out.append((projection @ torch.cat([*blocks, padded]) + padded)[: len(current)])
    return out


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_compressed_splits_are_those_of_the_papers(preset: str, k: int) -> None:
    torch.manual_seed(k)
    config = small_config(preset, num_retrieved=k)
    ranker = Ranker(config)
    torch.nn.init.xavier_normal_(ranker.down_proj)
    embedding = torch.randn(97, 32)
    documents = [torch.randint(0, 97, (n,)) for n in (5, 100, 16, 41)]
    table = split_table(torch.cat(documents), [len(d) for d in documents], 16)
    retrieved = ranker.retrieve(table, embedding)
    got: list[torch.Tensor] = [torch.empty(0)] * len(table.lengths)
    for group in table.groups(full_width=config.tail == "zero_slots", max_tokens=64):
        found = ranker.compress(*ranker.inputs(table, retrieved, group), embedding)
        for row, compressed in zip(group.rows.tolist(), found, strict=True):
            got[row] = compressed[: table.lengths[row]]
    expected = [
        split for document in documents for split in by_the_book(ranker, document, embedding)
    ]
    assert len(got) == len(expected)
    for mine, book in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), book, atol=1e-5, rtol=0)


def test_ties_go_to_the_lower_index() -> None:
    ranker = Ranker(small_config("released", num_retrieved=2))
    repeated = torch.arange(16).repeat(5)  # five equal splits: every score ties
    table = split_table(repeated, [80], 16)
    with torch.no_grad():
        rows = ranker.retrieve(table, torch.randn(97, 32)).rows
    assert rows.tolist() == [[-1, -1], [-1, 0], [0, 1], [0, 1], [0, 1]]


def test_weights_stay_finite_where_scores_vanish_or_turn_negative() -> None:
    ranker = Ranker(small_config("released", num_retrieved=2))
    embedding = torch.zeros(4, 32)
    embedding[1, 0], embedding[2, 0], embedding[3, 1] = 1.0, -1.0, 1.0
    ids = torch.cat([torch.full((16,), i) for i in (1, 3, 0, 2)])
    table = split_table(ids, [64], 16)
    with torch.no_grad():
        weights = ranker.retrieve(table, embedding).weights
    assert torch.isfinite(weights).all()
    assert weights.abs().max() <= ranker.config.max_split_weight


def test_gradient_flows_through_the_weights_of_retrieved_splits() -> None:
    torch.manual_seed(0)
    ranker = Ranker(small_config("paper"))
    embedding = torch.randn(97, 32, dtype=torch.float32, requires_grad=True)
    table = split_table(torch.randint(0, 97, (80,)), [80], 16)
    retrieved = ranker.retrieve(table, embedding)
    probe = torch.randn_like(retrieved.weights)
    (retrieved.weights * probe).sum().backward()
    grad = embedding.grad
    assert grad is not None

    direction = torch.randn_like(embedding)
    step = 1e-3

    def shifted(sign: float) -> torch.Tensor:
        with torch.no_grad():
            moved = ranker.retrieve(table, embedding + sign * step * direction)
            assert torch.equal(moved.rows, retrieved.rows)
            return (moved.weights * probe).sum()

    slope = (shifted(1) - shifted(-1)) / (2 * step)
    torch.testing.assert_close((grad * direction).sum(), slope, atol=0, rtol=0.02)


@torch.no_grad()
def test_scores_and_choice_are_float32_in_a_bfloat16_model() -> None:
    torch.manual_seed(0)
    ranker = Ranker(small_config("paper"))
    embedding = torch.randn(97, 32).to(torch.bfloat16)
    table = split_table(torch.randint(0, 97, (160,)), [160], 16)
    low, full = ranker.retrieve(table, embedding), ranker.retrieve(table, embedding.float())
    assert low.weights.dtype == torch.float32
    assert torch.equal(low.rows, full.rows)
    assert torch.equal(low.weights, full.weights)


@torch.no_grad()
def test_a_document_of_100_000_tokens_is_ranked_without_a_token_by_token_matrix() -> None:
    ranker = Ranker(small_config("paper", split_size=256, vocab_size=5000))
    torch.manual_seed(0)
    torch.nn.init.xavier_normal_(ranker.down_proj)
    frequencies = 1 / torch.arange(1, 5001).float()
    ids = torch.multinomial(frequencies, 100_000, replacement=True)
    table = split_table(ids, [100_000], 256)
    retrieved = ranker.retrieve(table, torch.randn(5000, 8))
    assert retrieved.rows.shape == (391, 3)
    assert (retrieved.rows < torch.arange(391)[:, None]).all()


@pytest.mark.parametrize("retrieved", [1, 3])
def test_a_long_document_is_ranked_block_by_block_with_equal_results(
    retrieved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few distinct tokens, so that many scores are equal: the lower split wins also
    across blocks.
    """
    torch.manual_seed(3)
    ranker = Ranker(small_config("paper", num_retrieved=retrieved))
    size = ranker.split_size
    counts = [size * 70 + 3, 2, size * 9, size * 40]
    tokens = torch.randint(0, 6, (sum(counts),))
    embedding = torch.randn(97, 32)
    table = split_table(tokens, counts, size)
    whole = ranker.retrieve(table, embedding)
    monkeypatch.setattr(ranker_module, "LONG_SPLITS", 20)
    for block in (1, 7, 128):
        monkeypatch.setattr(
            ranker_module,
            "best_of_long",
            functools.partial(ranker_module.best_of_long, block=block),
        )
        blocks = ranker.retrieve(table, embedding)
        assert torch.equal(blocks.rows, whole.rows)
        assert torch.equal(blocks.weights, whole.weights)


def test_memory_of_ranking_is_linear_in_the_document() -> None:
    """No tensor of the blockwise path has more elements than a block of columns for every split or
    distinct id.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor) and not tensor.is_sparse:
                    largest = max(largest, tensor.numel())
            return out

    splits, size, block = 600, 4, 16
    ids = torch.randint(0, 50, (splits, size))
    with Watch():
        ranker_module.best_of_long(
            ids, torch.full((splits,), size), torch.randn(50, 8), 1e-6, 3, block
        )
    assert largest <= splits * max(block + 3, size * 2 + 2)
