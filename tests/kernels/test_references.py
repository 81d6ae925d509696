"""The plain torch operations against their equations, written again in float64, and against
numerical gradients.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from aveyb_retrieval.kernels import host_maxsim, maxsim
from aveyb_retrieval.kernels.host_maxsim import SplitVocabulary
from aveyb_retrieval.kernels.maxsim import batch_vocabulary, most_ids
from aveyb_retrieval.kernels.mixing import dynamic_mix, static_mix
from aveyb_retrieval.kernels.positionwise import (
    activate,
    activate_around,
    add_norm,
    enrich,
    enricher_activation,
    fuse,
)

PRESETS = pytest.mark.parametrize("preset", ["released", "paper"])
LENGTHS = pytest.mark.parametrize("length", [1, 15, 16, 17, 40], ids="length{}".format)
EPS = 1e-6


def sigma(x: torch.Tensor, preset: str) -> torch.Tensor:
    return x.clamp_min(0) if preset == "paper" else x


def tail(preset: str, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """mixed and gate as the enricher would give them: ReLU squared in the paper, GELU in the
    released code.
    """
    mixed, gate = torch.randn(2, *shape, dtype=torch.float64)
    act = (lambda x: x.relu().square()) if preset == "paper" else torch.nn.functional.gelu
    return act(mixed) + (1e-3 if preset == "paper" else 0), act(gate)


def settings(preset: str, rows: int) -> dict:
    bias = 0.1 * torch.randn(rows, dtype=torch.float64) if preset == "paper" else None
    return {"bias": bias, "activation": "relu" if preset == "paper" else "none"}


@PRESETS
@LENGTHS
def test_static_mix_is_equation_4(preset: str, length: int) -> None:
    torch.manual_seed(length)
    mixed, gate = tail(preset, 2, 40, 8)
    weight = torch.randn(40, 40, dtype=torch.float64)
    options = settings(preset, 40)
    got = static_mix(mixed, gate, weight, lengths=torch.tensor([length, 40]), **options)
    bias = 0 if options["bias"] is None else options["bias"][:length, None]
    wanted = gate[0, :length] * sigma(weight[:length, :length] @ mixed[0, :length] + bias, preset)
    assert torch.allclose(got[0, :length], wanted)
    assert not got[0, length:].any()


@PRESETS
@LENGTHS
def test_dynamic_mix_is_equations_5_to_7(preset: str, length: int) -> None:
    torch.manual_seed(length)
    mixed, gate = tail(preset, 2, 40, 8)
    options = settings(preset, 40)
    normalization = "sum" if preset == "paper" else "l1"
    got = dynamic_mix(
        mixed,
        gate,
        normalization=normalization,
        eps=EPS,
        lengths=torch.tensor([length, 40]),
        **options,
    )
    z = mixed[0, :length]
    cosine = torch.stack(
        [torch.stack([torch.dot(a, b) / (a.norm() * b.norm()) for b in z]) for a in z]
    )
    shares = cosine / (
        cosine.sum(1, True) + EPS if preset == "paper" else cosine.abs().sum(1, True)
    )
    bias = 0 if options["bias"] is None else options["bias"][:length, None]
    assert torch.allclose(got[0, :length], gate[0, :length] * sigma(shares @ z + bias, preset))
    assert not got[0, length:].any()


@PRESETS
def test_enrich_is_equation_1(preset: str) -> None:
    x, weight = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(32, 8, dtype=torch.float64)
    scale, bias = torch.randn(8, dtype=torch.float64), torch.randn(32, dtype=torch.float64)
    name = "relu2" if preset == "paper" else "gelu"
    linear = (x / (x.square().mean(-1, True) + EPS).sqrt() * scale) @ weight.T + bias
    gelu = linear * 0.5 * (1 + torch.erf(linear / 2**0.5))
    wanted = linear.clamp_min(0) ** 2 if preset == "paper" else gelu
    assert torch.allclose(enrich(x, scale, weight, bias, eps=EPS, activation=name), wanted)


@pytest.mark.parametrize("name", ["gelu", "relu2"])
@torch.no_grad()
def test_an_activation_leaves_its_argument_alone(name: str) -> None:
    x = torch.tensor([-1.0, 2.0])
    for apply in (activate, enricher_activation):
        assert apply(x, name).data_ptr() != x.data_ptr()
        assert x.tolist() == [-1.0, 2.0]


@PRESETS
@torch.no_grad()
def test_activation_around_the_gate(preset: str) -> None:
    name = "relu2" if preset == "paper" else "gelu"
    x = torch.randn(2, 5, 32)
    x[0, 1, 20:] = -1e9  # a part without direction
    wanted = enricher_activation(x.clone(), name)
    got = x.clone()
    inverse = activate_around(got, name, 8, 20)
    assert torch.equal(got[..., 8:20], x[..., 8:20])
    torch.testing.assert_close(got[..., :8], wanted[..., :8])
    torch.testing.assert_close(got[..., 20:], wanted[..., 20:])
    norm = wanted[..., 20:].norm(dim=-1)
    assert torch.allclose(inverse, torch.where(norm > 0, 1 / norm, 0.0))


@pytest.mark.parametrize("alpha", [None, 0.7])
def test_residual_and_norm(alpha: float | None) -> None:
    branch, residual = torch.randn(2, 2, 5, 8, dtype=torch.float64)
    weight = torch.randn(8, dtype=torch.float64)
    scale = None if alpha is None else torch.tensor(alpha, dtype=torch.float64)
    x, normed = add_norm(branch, residual, scale, weight, eps=EPS)
    assert torch.allclose(x, branch + (alpha or 1) * residual)
    assert torch.allclose(normed, x / (x.square().mean(-1, True) + EPS).sqrt() * weight)


@pytest.mark.parametrize("alpha", [None, 0.7])
def test_fuse_is_equation_3(alpha: float | None) -> None:
    context, bypass = (
        torch.randn(2, 5, 8, dtype=torch.float64),
        torch.randn(2, 5, 16, dtype=torch.float64),
    )
    weight, bias = torch.randn(8, 24, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    residual = torch.randn(2, 5, 8, dtype=torch.float64)
    scale = None if alpha is None else torch.tensor(alpha, dtype=torch.float64)
    got = fuse(context, bypass, weight[:, :8], weight[:, 8:], bias, residual, scale)
    wanted = (
        torch.cat([context, bypass], -1) @ weight.T
        + bias
        + (1 if alpha is None else alpha) * residual
    )
    assert torch.allclose(got, wanted)


@PRESETS
def test_gradients_of_the_mixing_operations(preset: str) -> None:
    torch.manual_seed(1)
    leaves = [x.requires_grad_() for x in tail(preset, 2, 5, 4)]
    weight = torch.randn(5, 5, dtype=torch.float64).requires_grad_()
    options = settings(preset, 5) | {"lengths": torch.tensor([5, 3])}
    assert torch.autograd.gradcheck(
        lambda m, g, v: static_mix(m, g, v, **options), (*leaves, weight)
    )
    normalization = "sum" if preset == "paper" else "l1"
    mix = partial(dynamic_mix, normalization=normalization, eps=EPS, **options)
    assert torch.autograd.gradcheck(mix, leaves)


def splits(n: int, size: int, last: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, vocabulary, (n, size)), torch.tensor([size] * (n - 1) + [last])


def by_definition(ids: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """float64 `[n, n]`: sum over tokens of the best cosine, one pair of splits after another."""
    unit = torch.nn.functional.normalize(table.double(), dim=-1)
    scores = torch.full((len(ids), len(ids)), float("-inf"), dtype=torch.float64)
    for i in range(len(ids)):
        for j in range(i):
            scores[i, j] = (unit[ids[i, : lengths[i]]] @ unit[ids[j]].T).amax(1).sum()
    return scores


@pytest.mark.parametrize(("n", "last"), [(1, 3), (2, 1), (7, 16), (9, 15)])
@pytest.mark.parametrize("block", [1, 3, 128])
def test_scores_by_token_are_the_definition(
    n: int, last: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_maxsim, "BLOCK_COLUMNS", block)
    torch.manual_seed(n)
    ids, lengths = splits(n, 16, last, 50)
    table = torch.randn(50, 12)
    wanted = by_definition(ids, lengths, table)
    shortcut = maxsim.split_scores(ids, lengths, [0, n], table, 1e-12, backend="torch")
    assert shortcut.dtype == torch.float32
    assert torch.allclose(shortcut.double(), wanted, rtol=1e-6, atol=1e-5)


def test_a_batch_scores_each_document_as_if_alone() -> None:
    torch.manual_seed(5)
    table = torch.randn(50, 12)
    documents = [splits(n, 16, last, 50) for n, last in ((3, 7), (1, 2), (5, 16))]
    ids, lengths = (torch.cat(parts) for parts in zip(*documents, strict=True))
    scores = maxsim.split_scores(ids, lengths, [0, 3, 4, 9], table, 1e-12)
    assert scores.shape == (9, 5)
    for start, (own_ids, own_lengths) in zip((0, 3, 4), documents, strict=True):
        n = len(own_ids)
        alone = maxsim.split_scores(own_ids, own_lengths, [0, n], table, 1e-12)
        assert torch.equal(scores[start : start + n, :n], alone)
        assert bool(scores[start : start + n, n:].isneginf().all())


@pytest.mark.parametrize("documents", [[1], [5], [7, 1, 3], [2, 9]])
@pytest.mark.parametrize("vocabulary", [12, 48, 500])
def test_the_vocabulary_of_a_batch_is_that_of_each_document(
    documents: list[int], vocabulary: int
) -> None:
    torch.manual_seed(len(documents))
    starts = [sum(documents[:i]) for i in range(len(documents) + 1)]
    parts = [splits(n, 16, 1 + 5 * i, vocabulary) for i, n in enumerate(documents)]
    ids, lengths = (torch.cat(columns) for columns in zip(*parts, strict=True))
    batch = batch_vocabulary(ids, lengths, starts, vocabulary)
    assert len(batch.ids) == most_ids(starts, 16, vocabulary)
    assert int(batch.ids.max()) < vocabulary
    for first, (own_ids, own_lengths) in zip(starts, parts, strict=False):
        n = len(own_ids)
        pairs = zip(own_ids.numpy(), own_lengths.tolist(), strict=True)
        exact = SplitVocabulary.of([row[:length] for row, length in pairs])
        position, entry = int(batch.asked_from[first]), int(batch.starts[first])
        assert batch.first[first : first + n].tolist() == [first] * n
        here = slice(position, position + len(exact.ids))
        assert batch.ids[here].tolist() == exact.ids.tolist()
        for split, (positions, counts) in enumerate(exact.held):
            held = slice(entry, entry + len(positions))
            pairs = zip(
                (batch.entries[held] - position).tolist(), batch.counts[held].tolist(), strict=True
            )
            assert dict(pairs) == dict(zip(positions.tolist(), counts, strict=True))
            assert int(batch.starts[first + split]) == entry
            assert bool((batch.last_seen[batch.entries[held]] >= first + split).all())
            entry += len(positions)
        assert int(batch.starts[first + n]) == entry
        assert batch.asked_from[first : first + n].tolist() == [position] * n
        assert (batch.asked_to[first : first + n] - position).tolist() == exact.asked.tolist()
    used = position + len(exact.ids)
    assert bool((batch.last_seen[used:] == -1).all())


def test_documents_share_a_pass_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maxsim, "_PASS_ELEMENTS", 1000)
    documents = [slice(0, 3), slice(3, 5), slice(5, 25), slice(25, 26)]
    # 16 tokens a split, 40 rows of the table, 10 columns: at most 99 ids in a pass
    groups = list(maxsim._passes(documents, 16, 40, 10))
    assert groups == [documents[:2], documents[2:]]
    assert list(maxsim._passes(documents, 16, 40, 50)) == [[d] for d in documents]


def test_no_split_has_no_scores() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    scores = maxsim.split_scores(nothing.view(0, 16), nothing, [0], torch.randn(5, 4), 1e-12)
    assert scores.shape == (0, 0)


def test_autocast_does_not_round_the_scores() -> None:
    ids, lengths = splits(3, 16, 16, 50)
    table = torch.randn(50, 12)
    wanted = maxsim.split_scores(ids, lengths, [0, 3], table, 1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(maxsim.split_scores(ids, lengths, [0, 3], table, 1e-12), wanted)


def test_chosen_pairs_have_the_scores_of_all_pairs_and_exact_gradients() -> None:
    torch.manual_seed(6)
    ids, lengths = splits(4, 6, 5, 40)
    table = torch.randn(40, 5, dtype=torch.float64)
    unit = torch.nn.functional.normalize(table[ids], dim=-1).requires_grad_()
    current, earlier = torch.tensor([3, 1, 3]), torch.tensor([0, 0, 2])
    scores = maxsim.maxsim_selected(unit, lengths, current, earlier)
    assert torch.allclose(scores, by_definition(ids, lengths, table)[current, earlier])
    # Only distinct cosines have a derivative: move every row by its own small step.
    apart = (unit + 1e-2 * torch.randn_like(unit)).detach().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda u: maxsim.maxsim_selected(u, lengths, current, earlier), apart
    )
