"""The reference: it agrees with the encoder, and its choices do what the paper says of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.family import ReferenceAveyB
from tests.encoder.models import small_model
from tests.refusals import Refusal, refusals


def ids_of(length: int, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(length))


def encode(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out = model(ids)
    return out if isinstance(out, torch.Tensor) else out.last_hidden_state


def moved(model: Any, place: int, length: int = 64) -> torch.Tensor:
    """How far each token's vector moves where the token at `place` is another one, `[T]`."""
    ids = ids_of(length, 1)
    other = ids.clone()
    other[0, place] = (ids[0, place] + 1) % 97
    return (encode(model, ids) - encode(model, other))[0].abs().amax(-1)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 48, 101, 160])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tail": "zero_slots"},
        {"final_norm": False, "mix_bias": False},
        {"num_retrieved": 0},
        {"num_retrieved": 1, "tail_share": 0.25, "expansion_factor": 3},
        {"layer_pattern": ["dynamic", "dynamic", "static", "static"]},
    ],
    ids=str,
)
def test_the_encoder_is_the_reference(fields: dict[str, Any], length: int) -> None:
    model = small_model("paper", **fields)
    ids = ids_of(length)
    torch.testing.assert_close(
        encode(ReferenceAveyB.of(model), ids), encode(model, ids), atol=2e-5, rtol=1e-4
    )


def test_gradients_are_the_encoders() -> None:
    model = small_model("paper")
    reference = ReferenceAveyB.of(model)
    ids = ids_of(70)
    direction = torch.randn(2, 70, 32, generator=torch.Generator().manual_seed(1))
    (model(ids).last_hidden_state * direction).sum().backward()
    (reference(ids) * direction).sum().backward()
    for ours, theirs in (
        (reference.embedding, model.embed.weight),
        (reference.P, model.ranker.down_proj),
        (reference.layers[0].V, model.layers[0].spatial_proj),
        (reference.layers[3].U, model.layers[3].enricher.weight),
    ):
        scale = theirs.grad.abs().max()
        torch.testing.assert_close(ours.grad / scale, theirs.grad / scale, atol=1e-4, rtol=0)


CHOICES: list[dict[str, Any]] = [
    {"ranker_direction": "both"},
    {"compressor": "none"},
    {"similarity_norm": "none"},
    {"similarity_norm": "rms"},
    {"similarity_norm": "softmax"},
    {"similarity_norm": "scaled_softmax"},
    {"coupled": True},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_a_choice_changes_vectors_and_has_gradients(choices: dict[str, Any]) -> None:
    model = small_model("paper")
    ids = ids_of(70)
    reference = ReferenceAveyB.of(model, **choices)
    out = reference(ids)
    assert out.shape == (2, 70, 32)
    assert (out - encode(model, ids)).abs().max() > 1e-3
    out.square().sum().backward()
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    again = ReferenceAveyB.of(model, **choices)
    assert torch.equal(encode(again, ids), out.detach())
    texts = [encode(reference, ids[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(torch.cat(texts), out.detach(), atol=1e-5, rtol=1e-4)


def test_a_ranker_in_both_directions_looks_ahead_and_one_of_the_past_does_not() -> None:
    model = small_model("paper")
    assert moved(ReferenceAveyB.of(model), 40)[:32].max() == 0
    assert moved(ReferenceAveyB.of(model, ranker_direction="both"), 40)[:32].max() > 0


def test_without_a_compressor_layers_see_every_token() -> None:
    model = small_model("paper", num_retrieved=3)
    reference = ReferenceAveyB.of(model, compressor="none")
    widths = []
    for layer in reference.layers:
        layer.register_forward_hook(lambda _, args, out: widths.append((args[0].shape, out.shape)))
    encode(reference, ids_of(40))
    assert {shape[1] for pair in widths for shape in pair} == {64, 56}
    seeds = [ReferenceAveyB.of(model, compressor="none", seed=seed) for seed in (0, 1)]
    assert not torch.equal(seeds[0].layers[0].V, seeds[1].layers[0].V)
    assert torch.equal(seeds[0].layers[0].U, seeds[1].layers[0].U)


def test_norms_by_hand() -> None:
    layer = ReferenceAveyB.of(small_model("paper")).layers[1]
    cosines = torch.tensor([[[1.0, 0.6], [0.6, 1.0]]])
    rms = ((1 + 0.36) / 2) ** 0.5
    high, low = torch.tensor([1.0, 0.6]).exp()
    scaled_high, scaled_low = torch.tensor([0.5, 0.3]).exp()
    for name, first_row in {
        "sum": [1 / 1.6, 0.6 / 1.6],
        "none": [1.0, 0.6],
        "rms": [1 / rms, 0.6 / rms],
        "softmax": [high / (high + low), low / (high + low)],
        "scaled_softmax": [
            scaled_high / (scaled_high + scaled_low),
            scaled_low / (scaled_high + scaled_low),
        ],
    }.items():
        layer.similarity_norm = name
        row = layer.normalized(cosines, 4)[0, 0]
        torch.testing.assert_close(row, torch.tensor(first_row), atol=1e-6, rtol=0)


def test_a_dynamic_layer_keeps_the_order_of_similarities() -> None:
    """Appendix A: no weight is negative, a row's sum is at most 1, and a more similar token has no
    smaller weight, as the enricher's output is never negative.
    """
    layer = ReferenceAveyB.of(small_model("paper")).layers[1]
    tokens = torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(0)).relu()
    unit = torch.nn.functional.normalize(tokens, dim=-1)
    cosines = unit @ unit.transpose(1, 2)
    weights = layer.normalized(cosines, 32)
    assert weights.min() >= 0
    assert weights.sum(-1).max() <= 1 + 1e-6
    ordered = weights.gather(-1, cosines.argsort(dim=-1))
    assert (ordered.diff(dim=-1) >= 0).all()


def test_a_coupled_layer_is_the_product_of_both() -> None:
    model = small_model("paper")
    layer = ReferenceAveyB.of(model, coupled=True).layers[0]
    tokens = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(5, 32)
    for i in range(5):
        for j in range(5):
            cosine = torch.cosine_similarity(tokens[0, i], tokens[0, j], dim=0)
            expected[i] += layer.V[i, j] * cosine * tokens[0, j]
    torch.testing.assert_close(layer.mix(tokens)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("score", [2.0, -2.0])
def test_one_retrieved_split_has_the_weight_1_whatever_its_score(score: float) -> None:
    """A weight is the score over the highest one, as in the paper, also where both are negative."""
    model = small_model("paper", num_retrieved=1)
    with torch.no_grad():
        model.embed.weight[5] = -model.embed.weight[6] if score < 0 else model.embed.weight[6]
    reference = ReferenceAveyB.of(model)
    splits = reference.splits(reference.embedding[torch.tensor([[5] * 16 + [6] * 16])])
    torch.testing.assert_close(reference.retrieved(splits)[0, 1], splits[0, 0])


@refusals(
    {
        ConfigError: {
            r"AveyBConfig\.enricher_activation is 'gelu'": lambda _: ReferenceAveyB.of(
                small_model("released")
            ),
            "similarity_norm is 'l1'; choose one of sum, none": lambda model: ReferenceAveyB.of(
                model, similarity_norm="l1"
            ),
            "coupled is 1; choose one of False, True": lambda model: ReferenceAveyB.of(
                model, coupled=1
            ),
            "ranker is no choice of the reference; choose among": lambda model: ReferenceAveyB.of(
                model, ranker="both"
            ),
            "coupled is True and similarity_norm 'softmax'": lambda model: ReferenceAveyB.of(
                model, coupled=True, similarity_norm="softmax"
            ),
        },
    }
)
def test_what_the_paper_does_not_have_is_refused(refused: Refusal) -> None:
    refused(small_model("paper"))
