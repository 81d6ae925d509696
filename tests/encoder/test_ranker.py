"""The ranker against a loop written straight from the papers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from aveyb_retrieval.encoder.network.host_ranker import Choice, split_weights
from aveyb_retrieval.encoder.network.ranker import Ranker
from aveyb_retrieval.encoder.network.splits import split_table
from aveyb_retrieval.kernels import host_maxsim
from aveyb_retrieval.kernels.host_maxsim import best_splits
from tests.encoder.models import PRESETS, small_config
from tests.encoder.onnx.forms import settings_of


def by_the_book(ranker: Ranker, ids: torch.Tensor, embedding: torch.Tensor) -> list[torch.Tensor]:
    """The compressed splits of one document in float64: score, choose, weigh, concatenate,
    multiply.
    """
    config = ranker.settings
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


def weights_of(scores: list[float], weight_norm: str = "max", limit: float = 1e4) -> list[float]:
    """The weights of chosen splits with these scores, the same in torch and NumPy."""
    config = small_config(
        "paper", num_retrieved=len(scores), weight_norm=weight_norm, max_split_weight=limit
    )
    rows = torch.arange(len(scores))[None]
    weights = Ranker(config).weights(rows, torch.tensor([scores]))
    settings = settings_of(
        num_retrieved=len(scores), weight_norm=weight_norm, max_split_weight=limit
    )
    choice = Choice(rows.numpy(), np.array([scores], np.float32))
    in_numpy = split_weights(choice, settings)
    assert in_numpy.dtype == np.float32
    np.testing.assert_allclose(in_numpy, weights.numpy(), rtol=1e-6, atol=0)
    return weights[0].tolist()


@pytest.mark.parametrize(
    ("weight_norm", "scores", "weights"),
    [
        ("max", [-2.0], [1.0]),
        ("max", [3.0, -6.0, 1.5], [1.0, -2.0, 0.5]),
        ("max", [-4.0, -2.0], [2.0, 1.0]),
        ("max", [-2.0, -2.0, -7.0], [1.0, 1.0, 3.5]),
        ("max", [1e-30], [1.0]),
        ("max", [0.0, 0.0], [0.0, 0.0]),
        ("min", [-2.0], [1.0]),
        ("min", [-4.0, -2.0], [1.0, 0.5]),
        ("min", [5.0, -2.0], [-2.5, 1.0]),
        ("min", [0.0], [0.0]),
        ("min", [6.0, 2.0, 4.0], [3.0, 1.0, 2.0]),
    ],
)
def test_weights_are_score_over_highest_or_lowest_score(
    weight_norm: str, scores: list[float], weights: list[float]
) -> None:
    assert weights_of(scores, weight_norm) == pytest.approx(weights, rel=1e-6)


@pytest.mark.parametrize("limit", [1e4, 50.0])
@pytest.mark.parametrize("weight_norm", ["max", "min"])
def test_weights_stay_small_and_change_their_sign_without_a_jump(
    weight_norm: str, limit: float
) -> None:
    """One score passes through zero in small steps, the other stays: the weights are bounded, and
    follow it.
    """
    other = -3.0 if weight_norm == "max" else 3.0
    steps = np.linspace(-3 / limit, 3 / limit, 601)
    weights = np.array([weights_of([step, other], weight_norm, limit) for step in steps])
    assert np.isfinite(weights).all()
    assert np.abs(weights).max() <= limit * (1 + 1e-6)
    assert (np.sign(weights[:, 1]) == np.sign(steps * other))[np.abs(steps) > 1e-9].all()
    assert np.abs(np.diff(weights, axis=0)).max() < limit / 50


def test_the_gradient_of_weights_is_finite_at_zero() -> None:
    for scores in ([0.0], [0.0, -2.0], [0.0, 0.0], [-1e-9, -2.0]):
        ranker = Ranker(small_config("paper", num_retrieved=len(scores)))
        leaf = torch.tensor([scores], requires_grad=True)
        rows = torch.stack([torch.arange(len(scores)), torch.full((len(scores),), -1)])
        ranker.weights(rows, leaf.expand(2, -1)).sum().backward()
        assert torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("preset", ["paper", "released"])
@torch.no_grad()
def test_a_split_behind_an_unlike_one_takes_it_as_it_is(preset: str) -> None:
    """Of one candidate the weight is 1, whether its cosine is positive or negative."""
    ranker = Ranker(small_config(preset, num_retrieved=1))
    embedding = torch.eye(3, 32)
    embedding[1], embedding[2, 0] = -embedding[0], 0.5
    for unlike in (1, 2):
        table = split_table(torch.tensor([0] * 16 + [unlike] * 16), [32], 16)
        assert ranker.retrieve(table, embedding).weights.tolist() == [[0.0], [pytest.approx(1.0)]]


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
def test_blocks_of_columns_change_no_choice(
    retrieved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few distinct tokens, whose cosines are exact, so that many scores are equal: the lower split
    wins also across blocks.
    """
    torch.manual_seed(3)
    ranker = Ranker(small_config("paper", num_retrieved=retrieved))
    size = ranker.split_size
    counts = [size * 70 + 3, 2, size * 9, size * 40]
    tokens = torch.randint(0, 6, (sum(counts),))
    embedding = torch.randint(0, 2, (97, 16)).float() * 2 - 1
    table = split_table(tokens, counts, size)
    whole = ranker.retrieve(table, embedding)
    for block in (1, 7, 1000):
        monkeypatch.setattr(host_maxsim, "BLOCK_COLUMNS", block)
        blocks = ranker.retrieve(table, embedding)
        assert torch.equal(blocks.rows, whole.rows)
        assert torch.equal(blocks.weights, whole.weights)


def test_memory_of_ranking_is_linear_in_the_document() -> None:
    """Ten times the splits take about ten times the memory, not a hundred times."""
    peaks = []
    for n in (300, 3000):
        splits = list(np.random.default_rng(0).integers(0, 50, (n, 4)))
        rows = np.random.default_rng(1).standard_normal((50, 8)).astype(np.float32)
        tracemalloc.start()
        best_splits(splits, rows.__getitem__, 1e-6, 3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 15 * peaks[0]
    assert peaks[1] < 3000 * 3000 * 4
