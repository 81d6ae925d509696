"""Avey: the released module's logits and loss, strict mode, caches, folders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from aveyb_retrieval import AveyBModel, AveyConfig, AveyForCausalLM
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from tests.encoder.models import small_config
from tests.encoder.test_released import read_fixture, weights

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {"vocab_size": 53, "hidden_size": 16, "num_hidden_layers": 3, "split_size": 4, "num_retrieved": 2,
         "initializer_range": 0.3}  # fmt: skip


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
    cases = [name.removesuffix(".input_ids") for name in tensors if name.startswith("case") and "input_ids" in name]
    assert len(cases) == 5
    for case in cases:
        with torch.no_grad():
            logits = model(tensors[f"{case}.input_ids"]).logits
        torch.testing.assert_close(logits, tensors[f"{case}.logits"], atol=1e-4, rtol=0, msg=case)


def test_the_released_loss_is_met(released: tuple[dict[str, torch.Tensor], dict]) -> None:
    tensors, config = released
    model = AveyForCausalLM.from_released(weights(tensors), **config)
    loss = model(tensors["clm.input_ids"], labels=tensors["clm.labels"]).loss
    assert abs(loss.item() - tensors["clm.loss"].item()) < 1e-5
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_folder_in_the_authors_format(
    released: tuple[dict[str, torch.Tensor], dict], tmp_path: Path, prefix: str
) -> None:
    tensors, config = released
    save_file({prefix + name: tensor for name, tensor in weights(tensors).items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        logits = AveyForCausalLM.from_pretrained(tmp_path)(tensors["case.b2_t101.input_ids"]).logits
    torch.testing.assert_close(logits, tensors["case.b2_t101.logits"], atol=1e-4, rtol=0)
    with pytest.raises(ModelError, match="lacks"):
        AveyBModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_blocks": 2}))
    with pytest.raises(ModelError, match="no place in the model"):
        AveyForCausalLM.from_pretrained(tmp_path)


# No token twice: equal scores of two splits are ties that the last bit of a product decides.
TOKENS = st.lists(st.integers(0, 52), min_size=2, max_size=22, unique=True)


@settings(max_examples=40, deadline=None)
@given(ids=TOKENS, data=st.data())
def test_strict_changing_a_token_changes_no_logit_before_it(ids: list[int], data: st.DataObject) -> None:
    t = data.draw(st.integers(0, len(ids) - 1))
    other = [*ids[:t], data.draw(st.integers(0, 52)), *ids[t + 1 :]]
    model = small()
    with torch.no_grad():
        before, after = (model(torch.tensor([own]), strict=True).logits[0, :t] for own in (ids, other))
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)


def test_as_trained_a_token_can_change_logits_before_it() -> None:
    ids = torch.arange(12)[None]
    model = small()
    other = ids.clone()
    other[0, 11] = 50
    with torch.no_grad():
        moved = (model(ids).logits - model(other).logits)[0, :11].abs().amax(-1)
    assert moved[:8].max() == 0 and moved[8:].max() > 1e-3


@settings(max_examples=20, deadline=None)
@given(ids=TOKENS, norm=st.sampled_from(["max", "first"]), retrieved=st.integers(0, 3))
def test_strict_is_what_each_prefix_gives(ids: list[int], norm: str, retrieved: int) -> None:
    model = small(weight_norm=norm, num_retrieved=retrieved)
    with torch.no_grad():
        strict = model(torch.tensor([ids]), strict=True).logits[0]
        for t in range(len(ids)):
            alone = model(torch.tensor([ids[: t + 1]])).logits[0, -1]
            torch.testing.assert_close(strict[t], alone, atol=1e-5, rtol=1e-5)
        some = torch.tensor([len(ids) - 1, 0])
        torch.testing.assert_close(model.strict_logits(torch.tensor(ids), some), strict[some], atol=1e-5, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(ids=TOKENS, cuts=st.lists(st.integers(1, 9), max_size=6), norm=st.sampled_from(["max", "first"]))
def test_a_cache_gives_what_the_whole_text_gives(ids: list[int], cuts: list[int], norm: str) -> None:
    model = small(weight_norm=norm)
    cache, start = None, 0
    with torch.no_grad():
        for cut in [*cuts, len(ids)]:
            if start >= len(ids):
                break
            out = model(torch.tensor([ids[start : start + cut]]), past_key_values=cache, use_cache=True)
            cache, start = out.past_key_values, min(len(ids), start + cut)
            assert cache.get_seq_length() == start
            whole = model(torch.tensor([ids[:start]]), logits_to_keep=1).logits
            torch.testing.assert_close(out.logits, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=str)
def test_generation_with_caches_equals_without(options: dict) -> None:
    model = small()
    ids = torch.randint(0, 53, (3, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0  # padding on the left, as `generate` wants it
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        found.append(model.generate(ids, attention_mask=mask, max_new_tokens=21, use_cache=use_cache, pad_token_id=0,
                                    **options))  # fmt: skip
    assert found[0].shape == (3, 30)
    assert torch.equal(*found)
    if not options:  # greedy: a text of the batch is what it is alone
        alone = model.generate(ids[1:2, 4:], max_new_tokens=21, pad_token_id=0)
        assert torch.equal(alone[0, 5:], found[0][1, 9:])


def test_padding_and_the_batch_change_nothing() -> None:
    model = small()
    ids = torch.randint(0, 53, (2, 15), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3], mask[0, 11:] = 0, 0
    with torch.no_grad():
        together = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(together[0, 3:11], model(ids[:1, 3:11]).logits[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(together[1], model(ids[1:]).logits[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model(ids, attention_mask=mask, logits_to_keep=6).logits, together[:, -6:])
        model.max_group_tokens = 12  # one split at a time
        torch.testing.assert_close(model(ids, attention_mask=mask).logits, together, atol=1e-5, rtol=1e-5)


def test_gradients_are_those_of_differences() -> None:
    model = small(num_hidden_layers=2).double()
    ids, labels = torch.randint(0, 53, (2, 1, 11), generator=torch.Generator().manual_seed(4))
    model(ids, labels=labels).loss.backward()
    for parameter in (model.embed.weight, model.layers[0].spatial_proj, model.layers[1].enricher.weight):
        flat, grad = parameter.data.view(-1), parameter.grad.view(-1)
        index = int(grad.abs().argmax())
        start, losses = flat[index].item(), []
        for step in (1e-4, -1e-4):
            flat[index] = start + step
            losses.append(model(ids, labels=labels).loss.item())
        flat[index] = start
        assert grad[index].item() == pytest.approx((losses[0] - losses[1]) / 2e-4, rel=2e-2)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = small()
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is AveyConfig
    ids = torch.arange(10)[None]
    with torch.no_grad():
        for loaded in (AveyForCausalLM.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
            assert type(loaded) is AveyForCausalLM
            assert torch.equal(loaded(ids).logits, model(ids).logits)
    with pytest.raises(ModelError, match=r"model_type is 'avey', only 'avey-b' can be loaded.*an Avey language model"):
        AveyBModel.from_pretrained(tmp_path)
    AveyBModel(small_config("paper")).save_pretrained(tmp_path / "encoder")
    with pytest.raises(ModelError, match="model_type is 'avey-b', only 'avey' can be loaded"):
        AveyForCausalLM.from_pretrained(tmp_path / "encoder")


def test_bad_input() -> None:
    model = small()
    ids = torch.arange(10)[None]
    with pytest.raises(InputError, match=r"labels have shape \(1, 9\), input_ids \(1, 10\)"):
        model(ids, labels=ids[:, 1:])
    with pytest.raises(InputError, match="labels need the logits of every position"):
        model(ids, labels=ids, logits_to_keep=1)
    with pytest.raises(InputError, match="a cache scores the last position only"):
        model(ids, labels=ids, use_cache=True)
    with pytest.raises(InputError, match="attention_mask has shape"):
        model(ids, attention_mask=torch.ones(1, 9))
    with pytest.raises(InputError, match="positions go from 3 to 10; the text has 10"):
        model.strict_logits(ids[0], torch.tensor([3, 10]))
    for field, value in (("weight_norm", "min"), ("tail_share", 0.01), ("tail_share", 1.0), ("num_retrieved", -1),
                         ("split_size", 0)):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"AveyConfig.{field} is {value!r}"):
            AveyConfig(**{**SMALL, field: value})


@pytest.mark.parametrize(("preset", "millions"), [("small", 153), ("medium", 496), ("large", 1525)])
def test_the_papers_sizes(preset: str, millions: int) -> None:
    with torch.device("meta"):
        model = AveyForCausalLM(getattr(AveyConfig, preset)())
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == pytest.approx(millions, abs=2)
