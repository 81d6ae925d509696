"""What a text's vectors may depend on: the text, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.errors import InputError
from tests.encoder.models import PRESETS, small_config, small_model
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [1, 100, 16, 0, 17, 33, 64, 15, 3]


def padded(
    texts: list[torch.Tensor], width: int, *, left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.full((len(texts), width), 5)
    mask = torch.zeros(len(texts), width, dtype=torch.long)
    for i, text in enumerate(texts):
        where = slice(width - len(text), width) if left else slice(0, len(text))
        ids[i, where], mask[i, where] = text, 1
    return ids, mask


def random_texts(lengths: list[int], seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 97, (n,), generator=generator) for n in lengths]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_a_batch_equals_each_text_alone(preset: str, left: bool) -> None:
    model = small_model(preset)
    texts = random_texts(LENGTHS)
    ids, mask = padded(texts, 120, left=left)
    together = model(ids, mask).last_hidden_state
    for i, text in enumerate(texts):
        alone = model(text[None]).last_hidden_state[0]
        torch.testing.assert_close(together[i][mask[i] == 1], alone, atol=1e-5, rtol=0)
        assert (together[i][mask[i] == 0] == 0).all()


@torch.no_grad()
def test_what_stands_in_padding_or_in_a_group_limit_changes_nothing() -> None:
    model = small_model("paper")
    ids, mask = padded(random_texts(LENGTHS), 100)
    expected = model(ids, mask).last_hidden_state
    torch.testing.assert_close(
        model(ids.where(mask == 1, 96), mask).last_hidden_state, expected, atol=0, rtol=0
    )
    model.max_group_tokens = 20
    torch.testing.assert_close(model(ids, mask).last_hidden_state, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_a_split_depends_on_itself_and_on_earlier_splits_only(preset: str) -> None:
    model = small_model(preset, num_retrieved=5)  # the last of six splits retrieves all others
    long = random_texts([90])[0]
    short = long[:64]
    torch.testing.assert_close(
        model(long[None]).last_hidden_state[0, :64],
        model(short[None]).last_hidden_state[0],
        atol=1e-5,
        rtol=0,
    )
    other = long.clone()
    other[:16] = 3
    changed = (
        (model(long[None]).last_hidden_state - model(other[None]).last_hidden_state)[0]
        .abs()
        .amax(-1)
    )
    assert (changed[80:] > 1e-6).any(), "later splits must see what they retrieved"


@pytest.mark.parametrize("preset", PRESETS)
def test_gradients_do_not_depend_on_padding(preset: str) -> None:
    model = small_model(preset)
    texts = random_texts([50, 20, 3])
    ids, mask = padded(texts, 70)
    probe = torch.randn(32, generator=torch.Generator().manual_seed(3))

    def gradients(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        sum((model(i, m).last_hidden_state @ probe).sum() for i, m in batches).backward()  # type: ignore[union-attr]
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    together = gradients([(ids, mask)])
    alone = gradients([(t[None], torch.ones_like(t[None])) for t in texts])
    assert together.keys() == alone.keys() == {n for n, _ in model.named_parameters()}
    for name, grad in together.items():
        torch.testing.assert_close(
            grad, alone[name], atol=1e-4 * alone[name].abs().max().item(), rtol=0, msg=name
        )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 70), min_size=1, max_size=6), st.sampled_from(sorted(PRESETS)))
def test_any_batch_equals_each_text_alone(lengths: list[int], preset: str) -> None:
    model = small_model(preset)
    texts = random_texts(lengths)
    ids, mask = (
        padded(texts, max(1, *lengths) + 3) if len(lengths) > 1 else padded(texts, lengths[0] + 3)
    )
    with torch.no_grad():
        together = model(ids, mask).last_hidden_state
        for i, text in enumerate(texts):
            alone = model(text[None]).last_hidden_state[0]
            torch.testing.assert_close(together[i, : len(text)], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("preset", ["paper", "released"])
@torch.no_grad()
def test_bfloat16_stays_near_float32(preset: str) -> None:
    # The usual scale of weights: errors of a network blown up on purpose would say nothing about
    # bfloat16.
    model = small_model(preset, initializer_range=0.1)
    ids = random_texts([100])[0][None]
    expected = model(ids).last_hidden_state
    got = model.to(torch.bfloat16)(ids).last_hidden_state
    assert got.dtype == torch.bfloat16
    assert ((got.float() - expected).norm() / expected.norm()) < 0.03


def test_masked_lm_computes_logits_only_where_labels_stand() -> None:
    torch.manual_seed(0)
    model = AveyBForMaskedLM(small_config("paper"))
    ids = random_texts([40])[0][None]
    labels = torch.full_like(ids, -100)
    labels[0, [3, 20, 39]] = ids[0, [3, 20, 39]]
    out = model(ids, labels=labels)
    everywhere = model(ids).logits
    assert out.logits.shape == (3, 97)
    assert everywhere.shape == (1, 40, 97)
    torch.testing.assert_close(out.logits, everywhere[0, [3, 20, 39]])
    expected = torch.nn.functional.cross_entropy(everywhere[0], labels[0])
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=6).loss, expected / 2)
    assert model.lm_head.weight is model.model.embed.weight
    nothing_asked = model(ids, labels=torch.full_like(ids, -100)).loss
    assert nothing_asked.item() == 0


def test_gradient_checkpointing_changes_no_gradient() -> None:
    model = small_model("paper").train()
    ids = random_texts([50])[0][None]

    def gradient() -> torch.Tensor:
        model.zero_grad()
        model(ids).last_hidden_state.square().sum().backward()
        grad = model.embed.weight.grad
        assert grad is not None
        return grad.clone()

    plain = gradient()
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(gradient(), plain)


def test_save_and_load_keep_every_output(tmp_path: Path) -> None:
    model = small_model("released")
    ids = random_texts([60])[0][None]
    model.save_pretrained(tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.suffix in {".bin", ".pt", ".pkl"}] == []
    with torch.no_grad():
        loaded = AveyBModel.from_pretrained(tmp_path)(ids).last_hidden_state
        torch.testing.assert_close(loaded, model(ids).last_hidden_state, atol=0, rtol=0)


def ids_of(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


@refusals(
    {
        InputError: {
            r"\[B, T\]": lambda: small_model("paper")(ids_of(3)),
            r"\(1, 4\).*\(1, 3\)": lambda: small_model("paper")(ids_of(1, 3), torch.ones(1, 4)),
            "labels": lambda: AveyBForMaskedLM(small_config("paper"))(
                ids_of(1, 3), labels=torch.zeros(1, 4)
            ),
            "either input_ids or inputs_embeds": [
                lambda: small_model("paper")(),
                lambda: small_model("paper")(ids_of(2, 5), inputs_embeds=torch.zeros(2, 5, 32)),
            ],
            r"inputs_embeds must be \[B, T, 32\]; .* \(2, 5, 31\)": lambda: small_model("paper")(
                inputs_embeds=torch.zeros(2, 5, 31)
            ),
        },
    }
)
def test_what_cannot_be_a_batch_is_refused(refused: Refusal) -> None:
    refused()


def test_a_local_start_weighs_near_tokens_alike_around_every_position() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 4, "split_size": 32}

    def along(matrix: torch.Tensor | None, offset: int) -> float:
        assert matrix is not None
        return torch.diagonal(matrix, offset).mean().item()

    first, second = (
        layer.spatial_proj for layer in AveyBModel(AveyBConfig.mini(**sizes)).layers[::2]
    )
    assert along(first, -1) == pytest.approx(0.562, abs=0.05) and along(first, 1) == pytest.approx(
        -0.562, abs=0.05
    )
    assert along(second, -1) == pytest.approx(0.711, abs=0.05) and along(
        second, 1
    ) == pytest.approx(0.356, abs=0.05)
    assert along(first, 0) == pytest.approx(0, abs=0.05) and along(first, -12) == pytest.approx(
        0, abs=0.05
    )
    random = AveyBModel(AveyBConfig.mini(**sizes, static_init="xavier")).layers[0].spatial_proj
    assert along(random, -1) == pytest.approx(0, abs=0.15)


def test_the_released_start_is_xavier_normal() -> None:
    torch.manual_seed(0)
    model = AveyBModel(AveyBConfig.released_base(vocab_size=1000, num_hidden_layers=1))
    layer = model.layers[0]
    for weight, std in (
        (model.embed.weight, (2 / 1768) ** 0.5),
        (layer.enricher.weight, (2 / 3840) ** 0.5),
        (layer.fuser.weight, (2 / 3072) ** 0.5),
    ):
        assert weight.std().item() == pytest.approx(std, rel=0.02)


def test_a_local_start_never_overwrites_loaded_weights(tmp_path: Path) -> None:
    model = AveyBModel(
        AveyBConfig.mini(vocab_size=64, hidden_size=8, num_hidden_layers=2, split_size=16)
    )
    model.layers[0].spatial_proj.data.fill_(0.25)
    model.save_pretrained(tmp_path)
    assert torch.equal(
        AveyBModel.from_pretrained(tmp_path).layers[0].spatial_proj, model.layers[0].spatial_proj
    )


@pytest.mark.parametrize("lengths", [[1, 15, 16], [40, 3, 33], [64, 64]])
@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_hidden_states_are_embeddings_and_each_layers_output(
    preset: str, lengths: list[int]
) -> None:
    model = small_model(preset)
    ids, mask = padded(random_texts(lengths), 70)
    expected = model(ids, mask).last_hidden_state
    out = model(ids, mask, output_hidden_states=True)
    torch.testing.assert_close(out.last_hidden_state, expected, atol=1e-6, rtol=0)
    assert len(out.hidden_states) == 1 + len(model.layers)
    assert {states.shape for states in out.hidden_states} == {(len(lengths), 70, 32)}
    assert all((states[mask == 0] == 0).all() for states in out.hidden_states)
    assert torch.equal(out.hidden_states[0][mask == 1], model.embed(ids)[mask == 1])
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    assert model(ids, mask).hidden_states is None


@torch.no_grad()
def test_hidden_states_are_what_a_hook_on_the_layer_sees() -> None:
    model = small_model("paper")
    seen = []
    ids = random_texts([16])[0][None]
    for layer in model.layers:
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    out = model(ids, output_hidden_states=True)
    states = [*out.hidden_states[1:-1]]
    for found, at_the_layer in zip(states, seen[:-1], strict=True):
        torch.testing.assert_close(found, at_the_layer, atol=0, rtol=0)


@torch.no_grad()
def test_hidden_states_that_the_configuration_asks_for() -> None:
    model = small_model("paper")
    ids = random_texts([40])[0][None]
    model.config.output_hidden_states = True
    assert len(model(ids).hidden_states) == 5
    assert model(ids, output_hidden_states=False).hidden_states is None


@pytest.mark.parametrize("lengths", [[1, 15, 16], [40, 3, 33], [64, 64]])
@pytest.mark.parametrize("preset", PRESETS)
@torch.no_grad()
def test_embeddings_instead_of_ids(preset: str, lengths: list[int]) -> None:
    model = small_model(preset)
    ids, mask = padded(random_texts(lengths), 70)
    found = model(inputs_embeds=model.embed(ids), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found, model(ids, mask).last_hidden_state, atol=1e-5, rtol=0)
    head = AveyBForMaskedLM(small_config(preset)).eval()
    logits = head(inputs_embeds=head.model.embed(ids), attention_mask=mask).logits
    torch.testing.assert_close(logits, head(ids, mask).logits, atol=1e-5, rtol=0)


def test_gradients_reach_given_embeddings() -> None:
    model = small_model("paper")
    ids = random_texts([40])[0][None]
    embedded = model.embed(ids).detach().requires_grad_()
    model(inputs_embeds=embedded).last_hidden_state.square().sum().backward()
    model(ids).last_hidden_state.square().sum().backward()
    assert embedded.grad is not None and model.embed.weight.grad is not None
    rows = torch.zeros_like(model.embed.weight).index_add_(0, ids[0], embedded.grad[0])
    torch.testing.assert_close(rows, model.embed.weight.grad, atol=1e-3, rtol=1e-3)
