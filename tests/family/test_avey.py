"""Avey: the released module's logits and loss, strict scores, caches, folders."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from aveyb_retrieval import AveyBModel, AveyConfig, AveyForCausalLM
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.family.avey import choose_splits
from tests.encoder.models import small_config
from tests.encoder.test_released import read_fixture, weights
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {
    "vocab_size": 53,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "split_size": 4,
    "num_retrieved": 2,
    "initializer_range": 0.3,
}


SHAPES = (
    {"vocab_size": 61, "hidden_size": 18, "split_size": 7},
    {"vocab_size": 2, "hidden_size": 1, "num_hidden_layers": 1, "split_size": 7},
    {"split_size": 1, "num_retrieved": 3},
    {"split_size": 7, "num_retrieved": 0},
    {"split_size": 5, "expansion_factor": 3, "tail_share": 0.7, "weight_norm": "first"},
    {"split_size": 6, "tail_share": 1.0, "num_retrieved": 1},
)


def small(seed: int = 0, **changes: Any) -> AveyForCausalLM:
    """A random model whose biases are not zero, S = 4."""
    torch.manual_seed(seed)
    model = AveyForCausalLM(AveyConfig(**{**SMALL, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture
def released(shared: Path) -> tuple[dict[str, torch.Tensor], dict]:
    return read_fixture(shared / "fixtures" / "avey_causal_small.safetensors")


def test_every_released_case_is_met(released: tuple[dict[str, torch.Tensor], dict]) -> None:
    tensors, config = released
    model = AveyForCausalLM.from_released(weights(tensors), **config)
    ids = [name for name in tensors if name.startswith("case") and name.endswith("input_ids")]
    assert len(ids) == 5
    for name in ids:
        with torch.no_grad():
            logits = model(tensors[name]).logits
        expected = tensors[name.replace("input_ids", "logits")]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0, msg=name)


def test_the_released_loss_is_met(released: tuple[dict[str, torch.Tensor], dict]) -> None:
    tensors, config = released
    model = AveyForCausalLM.from_released(weights(tensors), **config)
    loss = model(tensors["clm.input_ids"], labels=tensors["clm.labels"]).loss
    assert abs(loss.item() - tensors["clm.loss"].item()) < 1e-5
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


RELEASED_SIZES = {"vocab_size": 53, "d_embed": 16, "n_blocks": 3, "chunk_size": 4, "k": 3}


def test_a_folder_in_the_authors_format(
    released: tuple[dict[str, torch.Tensor], dict], tmp_path: Path
) -> None:
    tensors, config = released
    save_file(weights(tensors), tmp_path / "model.safetensors")
    written = {**config, "model_type": "avey", "architectures": ["Avey"], "extended_len": 64}
    (tmp_path / "config.json").write_text(json.dumps(written))
    name = "case.b2_t101"
    with torch.no_grad():
        logits = AveyForCausalLM.from_pretrained(tmp_path)(tensors[f"{name}.input_ids"]).logits
    torch.testing.assert_close(logits, tensors[f"{name}.logits"], atol=1e-4, rtol=0)
    (tmp_path / "config.json").write_text(json.dumps({**written, "n_blocks": 2}))
    with pytest.raises(ModelError, match=r"blocks\.2.*has no place in the model"):
        AveyForCausalLM.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**written, "n_blocks": 4}))
    with pytest.raises(ModelError, match=r"lacks \d+ parameters, first 'blocks\.3"):
        AveyForCausalLM.from_pretrained(tmp_path)


def test_released_tensors_with_a_prefix_fill_the_model() -> None:
    model = small(weight_norm="first")
    tensors = model.state_dict()
    again = AveyForCausalLM.from_released(
        {f"avey.{n}": t for n, t in tensors.items()}, **RELEASED_SIZES
    )
    ids = torch.arange(30)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


@refusals(
    {
        ModelError: {
            r"lacks 1 parameter, first 'ln_f\.weight'": lambda tensors: (
                AveyForCausalLM.from_released(
                    {name: tensor for name, tensor in tensors.items() if name != "ln_f.weight"},
                    **RELEASED_SIZES,
                )
            ),
            "has shape": lambda tensors: AveyForCausalLM.from_released(
                tensors, **{**RELEASED_SIZES, "vocab_size": 54}
            ),
            "has no place in the model": lambda tensors: AveyForCausalLM.from_released(
                tensors, **{**RELEASED_SIZES, "n_blocks": 2}
            ),
        },
    }
)
def test_released_tensors_that_do_not_fill_the_model_are_refused(refused: Refusal) -> None:
    refused(small(weight_norm="first").state_dict())


@pytest.mark.parametrize(
    ("expansion", "share", "tail"), [(4, 0.5, 32), (3, 0.7, 34), (2, 1.0, 32), (5, 0.33, 26)]
)
def test_a_tail_is_as_wide_as_the_authors_make_it(expansion: int, share: float, tail: int) -> None:
    config = AveyConfig.from_released(
        d_embed=16, expansion_factor=expansion, context_proportion=share
    )
    assert config.settings.tail_size == tail
    assert (
        small(expansion_factor=expansion, tail_share=share)(torch.arange(9)[None])
        .logits.isfinite()
        .all()
    )


def test_weights_by_hand() -> None:
    none = float("-inf")
    scores = torch.tensor([[none, none, none, none], [3.0, none, none, none], [2.0, 4.0, 1.0, 3.0]])
    chosen, weights = choose_splits(scores, 2, "max")
    assert weights.tolist() == [[0, 0], [0, 1], [1, 0.75]]
    assert chosen[2].tolist() == [1, 3] and chosen[1, 1] == 0
    _, weights = choose_splits(scores, 3, "first")
    assert weights[2].tolist() == [1.0, 2.0, 1.5]
    negative = torch.tensor([[-2.0, -4.0, none]])
    assert choose_splits(negative, 2, "max")[1].tolist() == [[1.0, 2.0]]
    assert choose_splits(negative, 1, "max")[1].tolist() == [[1.0]]
    assert choose_splits(torch.zeros(1, 2), 1, "max")[1].tolist() == [[0.0]]
    tied = torch.tensor([[1.0, 1.0 + 1e-6, 1.0]])
    assert choose_splits(tied, 2, "max")[0].tolist() == [[0, 1]]


TOKENS = st.lists(st.integers(0, 52), min_size=1, max_size=22)


@settings(max_examples=30, deadline=None)
@given(ids=TOKENS, data=st.data())
def test_strict_changing_a_token_changes_no_logit_before_it(
    ids: list[int], data: st.DataObject
) -> None:
    t = data.draw(st.integers(0, len(ids) - 1))
    other = [*ids[:t], data.draw(st.integers(0, 52)), *ids[t + 1 :]]
    model = small()
    with torch.no_grad():
        before, after = (
            model(torch.tensor([own]), strict=True).logits[0, :t] for own in (ids, other)
        )
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)


def test_as_trained_a_token_can_change_logits_before_it() -> None:
    ids = torch.arange(12)[None]
    model = small()
    other = ids.clone()
    other[0, 11] = 50
    with torch.no_grad():
        moved = (model(ids).logits - model(other).logits)[0, :11].abs().amax(-1)
    assert moved[:8].max() == 0
    assert moved[8:].max() > 1e-3


@settings(max_examples=15, deadline=None)
@given(ids=TOKENS, norm=st.sampled_from(["max", "first"]), retrieved=st.integers(0, 3))
def test_strict_is_what_each_prefix_gives(ids: list[int], norm: str, retrieved: int) -> None:
    model = small(weight_norm=norm, num_retrieved=retrieved)
    with torch.no_grad():
        strict = model(torch.tensor([ids]), strict=True).logits[0]
        for t in range(len(ids)):
            alone = model(torch.tensor([ids[: t + 1]])).logits[0, -1]
            torch.testing.assert_close(strict[t], alone, atol=1e-5, rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    ids=TOKENS,
    cuts=st.lists(st.integers(1, 9), max_size=6),
    norm=st.sampled_from(["max", "first"]),
)
def test_a_cache_gives_what_the_whole_text_gives(
    ids: list[int], cuts: list[int], norm: str
) -> None:
    model = small(weight_norm=norm)
    cache, start = None, 0
    for cut in [*cuts, len(ids)]:
        if start >= len(ids):
            break
        piece = torch.tensor([ids[start : start + cut]])
        out = model(piece, past_key_values=cache, use_cache=True)
        cache, start = out.past_key_values, min(len(ids), start + cut)
        assert cache.get_seq_length() == start
        with torch.no_grad():
            whole = model(torch.tensor([ids[:start]]), logits_to_keep=1).logits
        torch.testing.assert_close(out.logits, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=str
)
def test_generation_with_caches_equals_without(options: dict) -> None:
    model = small()
    ids = torch.randint(0, 53, (3, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0  # padding on the left, as `generate` wants it
    texts = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        made = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=21,
            use_cache=use_cache,
            pad_token_id=0,
            **options,
        )
        texts.append(made)
    assert texts[0].shape == (3, 30)
    assert torch.equal(*texts)
    if not options:  # greedy: a text of the batch is what it is alone
        alone = model.generate(ids[1:2, 4:], max_new_tokens=21, pad_token_id=0)
        assert torch.equal(alone[0, 5:], texts[0][1, 9:])


@pytest.mark.parametrize("length", [1, 6, 7, 8, 13, 14, 15, 29])
@pytest.mark.parametrize("fields", SHAPES, ids=str)
def test_generation_crosses_splits_alike_with_caches_and_without(fields: dict, length: int) -> None:
    """The prompt ends with the padding token, which `generate` then takes for padding."""
    model = small(**fields)
    ids = torch.randint(0, 2, (2, length), generator=torch.Generator().manual_seed(length))
    ids[1, -1] = 0
    made = [
        model.generate(
            ids, max_new_tokens=16, use_cache=use_cache, pad_token_id=0, eos_token_id=None
        )
        for use_cache in (True, False)
    ]
    assert torch.equal(*made)


@pytest.mark.parametrize("norm", ["max", "first"])
@pytest.mark.parametrize("fields", SHAPES, ids=str)
@torch.no_grad()
def test_logits_of_odd_shapes_are_the_papers(fields: dict, norm: str) -> None:
    model = small(**{**fields, "weight_norm": norm}).double()
    for length in (1, 6, 7, 8, 30):
        ids = torch.randint(0, model.config.vocab_size, (length,))
        torch.testing.assert_close(model(ids[None]).logits[0], by_the_book(model, ids))


def by_the_book(model: AveyForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """The logits of one text in float64, split by split: score, choose, weigh, mix, keep the last
    S.
    """
    settings = model.settings
    size, k = settings.split_size, settings.num_retrieved
    x = model.wte.weight[ids]
    x = torch.nn.functional.pad(x, (0, 0, 0, -len(ids) % size)).view(-1, size, x.shape[1])
    unit = x / (x.norm(dim=-1, keepdim=True) + settings.similarity_eps)
    hidden = []
    for i, current in enumerate(x):
        scores = [float((unit[i] @ unit[j].T).amax(1).sum()) for j in range(i)]
        best = sorted(range(i), key=lambda j: -scores[j])[:k]
        chosen = sorted(best)
        divisor = 1.0
        if chosen:
            divisor = scores[best[0] if settings.weight_norm == "max" else chosen[0]]
        retrieved = [x[j] * (scores[j] / divisor) for j in chosen]
        context = torch.cat([torch.zeros_like(current)] * (k - len(chosen)) + [*retrieved, current])
        for layer in model.blocks:
            context = context + layer_by_the_book(layer, context, settings)
        hidden.append(context[-size:])
    weight = model.wte.weight
    return model.ln_f(torch.cat(hidden)[: len(ids)]) @ weight.T


def layer_by_the_book(layer: Any, x: torch.Tensor, settings: Any) -> torch.Tensor:
    """Equations 1 to 3 of Avey on one context."""
    normed = x / (x.square().mean(-1, keepdim=True) + settings.norm_eps).sqrt()
    normed = normed * layer.rms_norm.weight
    processor, m = layer.ctxt, settings.tail_size // 2
    z = (normed @ processor.enricher.weight.T + processor.enricher.bias).clamp_min(0) ** 2
    mixed, gate, bypass = z[:, :m], z[:, m : 2 * m], z[:, 2 * m :]
    unit = mixed / (mixed.square().sum(-1, keepdim=True) + settings.similarity_eps).sqrt()
    matrix = processor.contextualizer.spatial_proj[: len(x), : len(x)].tril()
    context = gate * ((matrix * (unit @ unit.T)) @ mixed)
    return torch.cat([context, bypass], -1) @ processor.fuser.weight.T + processor.fuser.bias


def test_generation_repeats_itself_alike_with_caches_and_without() -> None:
    """Splits of the same tokens have equal scores, which rounding must not tell apart."""
    model = small(num_retrieved=1)
    ids = torch.tensor([[7] * 11])
    made = [
        model.generate(ids, max_new_tokens=40, use_cache=use_cache, pad_token_id=0, do_sample=False)
        for use_cache in (True, False)
    ]
    assert torch.equal(*made)


def test_padding_and_the_batch_change_nothing() -> None:
    model = small()
    ids = torch.randint(0, 53, (2, 15), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3], mask[0, 11:] = 0, 0
    for strict in (False, True):
        with torch.no_grad():
            together = model(ids, attention_mask=mask, strict=strict).logits
            first = model(ids[:1, 3:11], strict=strict).logits[0]
            second = model(ids[1:], strict=strict).logits[0]
            last = model(ids, attention_mask=mask, logits_to_keep=6, strict=strict).logits
            model.max_group_tokens = 12  # one context at a time
            in_parts = model(ids, attention_mask=mask, strict=strict).logits
        model.max_group_tokens = AveyForCausalLM.max_group_tokens
        torch.testing.assert_close(together[0, 3:11], first, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(together[1], second, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(last, together[:, -6:])
        torch.testing.assert_close(in_parts, together, atol=1e-5, rtol=1e-5)
    nothing = torch.zeros_like(mask)
    assert model(ids, attention_mask=nothing).logits.shape == (2, 15, 53)


def test_gradients_are_those_of_differences() -> None:
    model = small(num_hidden_layers=2).double()
    ids, labels = torch.randint(0, 53, (2, 1, 11), generator=torch.Generator().manual_seed(4))
    model(ids, labels=labels).loss.backward()
    block = model.blocks[0].ctxt
    for parameter in (
        model.wte.weight,
        block.contextualizer.spatial_proj,
        model.blocks[1].ctxt.enricher.weight,
    ):
        flat, grad = parameter.data.view(-1), parameter.grad.view(-1)
        index = int(grad.abs().argmax())
        start, losses = flat[index].item(), []
        for step in (1e-3, -1e-3):
            flat[index] = start + step
            losses.append(model(ids, labels=labels).loss.item())
        flat[index] = start
        difference = (losses[0] - losses[1]) / 2e-3
        assert grad[index].item() == pytest.approx(difference, rel=1e-2)


def test_the_loss_of_an_accumulated_batch_is_the_sum_over_its_labels() -> None:
    model = small()
    ids = torch.arange(20).view(2, 10)
    labels = ids + 1
    labels[0, :4] = -100
    mean = model(ids, labels=labels).loss
    whole = model(ids, labels=labels, num_items_in_batch=torch.tensor(32)).loss
    assert whole.item() == pytest.approx(mean.item() * 16 / 32)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = small()
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is AveyConfig
    ids = torch.arange(10)[None]
    for cls in (AveyForCausalLM, AutoModelForCausalLM):
        loaded = cls.from_pretrained(tmp_path)
        assert type(loaded) is AveyForCausalLM
        with torch.no_grad():
            assert torch.equal(loaded(ids).logits, model(ids).logits)


def load_after(model: Any, folder: Path, cls: Any) -> None:
    model.save_pretrained(folder)
    cls.from_pretrained(folder)


@refusals(
    {
        ModelError: {
            "model_type is 'avey', only 'avey-b' can be loaded": lambda folder: load_after(
                small(), folder, AveyBModel
            ),
            "model_type is 'avey-b', only 'avey'": lambda folder: load_after(
                AveyBModel(small_config("paper")), folder, AveyForCausalLM
            ),
            "no Avey language model can be read there": lambda folder: (
                AveyForCausalLM.from_pretrained(folder / "nowhere")
            ),
        },
    }
)
def test_a_folder_of_another_model_is_refused(tmp_path: Path, refused: Refusal) -> None:
    refused(tmp_path)


TEN = torch.arange(10)[None]


@refusals(
    {
        InputError: {
            r"labels have shape \(1, 9\), input_ids \(1, 10\)": lambda: small()(
                TEN, labels=TEN[:, 1:]
            ),
            "labels need the logits of every position": lambda: small()(
                TEN, labels=TEN, logits_to_keep=1
            ),
            "a cache scores the last position only": lambda: small()(
                TEN, labels=TEN, use_cache=True
            ),
            "attention_mask has shape": lambda: small()(TEN, attention_mask=torch.ones(1, 9)),
            r"input_ids must be \[B, T\]": lambda: small()(TEN[0]),
        },
        ConfigError: {
            **{
                rf"AveyConfig.{field} is {value!r}": partial(AveyConfig, **{**SMALL, field: value})
                for field, value in (
                    ("weight_norm", "min"),
                    ("tail_share", 0.0),
                    ("tail_share", 1.5),
                    ("num_retrieved", -1),
                    ("split_size", 0),
                    ("hidden_size", 16.0),
                )
            },
        },
    }
)
def test_bad_input_is_refused(refused: Refusal) -> None:
    refused()


@pytest.mark.parametrize(("preset", "millions"), [("small", 153), ("medium", 496), ("large", 1525)])
def test_the_papers_sizes(preset: str, millions: int) -> None:
    with torch.device("meta"):
        model = AveyForCausalLM(getattr(AveyConfig, preset)())
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=2)
