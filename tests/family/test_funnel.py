"""Funnel: rows of pooled tokens between layers, and what becomes of them in vectors of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from aveyb_retrieval import Embedder, Retriever, build_index
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, ModelError
from aveyb_retrieval.family import FunnelAveyBConfig, FunnelAveyBModel
from aveyb_retrieval.family.config import RECOVERIES
from aveyb_retrieval.family.funnel import pool, pooled_matrix
from tests.encoder.models import small_config, small_model

if TYPE_CHECKING:
    from pathlib import Path


def ids_of(length: int, batch: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(length))


def encode(model: AveyBModel, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, mask).last_hidden_state


@pytest.mark.parametrize("recovery", [None, *RECOVERIES])
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_factor_of_1_is_the_identity_bit_for_bit(preset: str, recovery: str | None) -> None:
    plain = small_model(preset)
    funneled = FunnelAveyBModel.of(plain, funnel_after=2, funnel_factor=1, funnel_recovery=recovery)
    ids = ids_of(75, 3)
    mask = torch.ones_like(ids)
    mask[1, 33:] = 0
    assert torch.equal(encode(plain, ids, mask), encode(funneled, ids, mask))


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_pooling_by_hand(how: str, factor: int) -> None:
    x = torch.randn(3, 11, 5, generator=torch.Generator().manual_seed(0)) - 2  # a 0 wins a maximum
    lengths = torch.tensor([11, 7, 1])
    spoiled = x.clone()
    spoiled[1, 7:], spoiled[2, 1:] = float("nan"), 100
    rows, counts = pool(spoiled, lengths, factor, how)
    assert counts is not None
    assert counts.tolist() == [-(-n // factor) for n in (11, 7, 1)]
    for i, length in enumerate(lengths.tolist()):
        for row in range(rows.shape[1]):
            group = x[i, row * factor : min((row + 1) * factor, length)]
            if not len(group):
                assert not rows[i, row].any()
                continue
            torch.testing.assert_close(
                rows[i, row], group.mean(0) if how == "mean" else group.amax(0)
            )
    whole, none = pool(x[:1], None, factor, how)
    assert none is None
    torch.testing.assert_close(whole, rows[:1])


@pytest.mark.parametrize("preset", ["paper", "released_masked"])
@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("factor", [2, 4])
def test_rows_of_equal_tokens_meet_the_unpooled_model(preset: str, how: str, factor: int) -> None:
    """Of static layers the mean over a row's tokens is met, of dynamic ones each token."""
    plain = small_model(preset, mix_activation="none", mix_bias=False)
    model = FunnelAveyBModel.of(plain, funnel_after=1, funnel_factor=factor, funnel_pool=how)
    rows = torch.randn(3, 16 // factor, 32, generator=torch.Generator().manual_seed(0))
    tokens = rows.repeat_interleave(factor, dim=1)
    pooled, _ = pool(tokens, None, factor, how)
    torch.testing.assert_close(pooled, rows)
    for number in (1, 2, 3):
        with torch.no_grad():
            full = plain.layers[number](tokens, None)
            found = model.layers[number](rows, None)
        expected = full.unflatten(1, (-1, factor)).mean(2)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weight = torch.arange(16.0).view(4, 4)
    assert pooled_matrix(weight, 2).tolist() == [[5.0, 9.0], [21.0, 25.0]]


@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_text_of_pairs_meets_the_unpooled_model(how: str) -> None:
    """With dynamic layers alone, equal neighbours stay equal through the whole model."""
    plain = small_model("paper", layer_pattern=["dynamic"] * 4, num_retrieved=0, mix_bias=False)
    ids = ids_of(45).repeat_interleave(2, dim=1)
    model = FunnelAveyBModel.of(plain, funnel_after=2, funnel_pool=how)
    torch.testing.assert_close(encode(model, ids), encode(plain, ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("after", [1, 3])
@torch.no_grad()
def test_recoveries_by_hand(recovery: str, after: int) -> None:
    plain = small_model("paper")
    model = FunnelAveyBModel.of(plain, funnel_after=after, funnel_recovery=recovery)
    ids = ids_of(13)
    x = model.ranker.compress_alone(model.embed.weight[ids])
    outputs = []
    for layer in model.layers[:after]:
        x = layer(x, None)
        outputs.append(x)
    rows, _ = pool(x, None, 2, "mean")
    for layer in model.layers[after:]:
        rows = layer(rows, None)
    tiled = rows.repeat_interleave(2, dim=1)[:, :13]
    expected = {
        "sum_first": tiled + outputs[0],
        "sum_last": tiled + outputs[-1],
        "sum_max": tiled + torch.stack(outputs).amax(0),
        "sum_mean": tiled + sum(outputs) / len(outputs),
        "average_last": (tiled + outputs[-1]) / 2,
        "max_last": torch.maximum(tiled, outputs[-1]),
    }[recovery]
    torch.testing.assert_close(encode(model, ids), model.ln_f(expected), atol=1e-5, rtol=0)
    model.config.funnel_recovery = None
    torch.testing.assert_close(encode(model, ids), model.ln_f(tiled), atol=1e-5, rtol=0)


@pytest.mark.parametrize("recovery", [None, *RECOVERIES])
@pytest.mark.parametrize("how", ["mean", "max"])
def test_a_text_does_not_depend_on_its_batch_and_has_gradients(
    how: str, recovery: str | None
) -> None:
    plain = small_model("paper")
    model = FunnelAveyBModel.of(plain, funnel_after=2, funnel_pool=how, funnel_recovery=recovery)
    ids = ids_of(41, 2)
    mask = torch.ones_like(ids)
    mask[1, 19:] = 0
    together = model(ids, mask).last_hidden_state
    for i, length in enumerate((41, 19)):
        alone = model(ids[i : i + 1, :length]).last_hidden_state[0]
        torch.testing.assert_close(together[i, :length], alone, atol=1e-5, rtol=0)
    assert not together[1, 19:].any()
    together.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_later_layers_see_fewer_rows() -> None:
    model = FunnelAveyBModel.of(small_model("paper"), funnel_after=1, funnel_factor=4)
    seen = []
    for layer in model.layers:
        layer.register_forward_hook(lambda _, args, out: seen.append(args[0].shape[1]))
    encode(model, ids_of(16))
    assert seen == [16, 4, 4, 4]


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = FunnelAveyBModel.of(small_model("paper"), funnel_after=2, funnel_pool="max")
    model.save_pretrained(tmp_path)
    ids = ids_of(40)
    for cls in (FunnelAveyBModel, AutoModel):
        loaded = cls.from_pretrained(tmp_path)
        assert type(loaded) is FunnelAveyBModel
        assert torch.equal(encode(loaded, ids), encode(model, ids))
    with pytest.raises(ModelError, match="model_type is 'avey-b-funnel', only 'avey-b' can be"):
        AveyBModel.from_pretrained(tmp_path)


def embedder_of(model: AveyBModel) -> Embedder:
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    return Embedder(
        model,
        tokenizer,
        prompts={"query": "", "document": ""},
        model_name="funnel",
        fingerprint="0" * 64,
    )


def test_an_index_is_built_and_passages_weigh_rows_by_their_tokens(tmp_path: Path) -> None:
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    torch.manual_seed(0)
    plain = AveyBModel(small_config("paper", vocab_size=tokenizer.vocab_size)).eval()
    model = FunnelAveyBModel.of(plain, funnel_after=1, funnel_factor=4)
    embedder = embedder_of(model)
    text = "The pump is closed before the filter is opened, and then it runs."
    (document,) = embedder.encode_documents([("", text)])
    hidden = encode(model, torch.tensor([list(text.encode())]))[0]
    mean = hidden.mean(0)
    assert np.allclose(document.vector, mean / mean.norm(), atol=1e-5)
    for vector, (start, stop) in zip(document.passages, document.spans, strict=True):
        of_passage = hidden[start:stop].mean(0)
        assert np.allclose(vector, of_passage / of_passage.norm(), atol=1e-5)
    documents = [{"_id": "pump", "text": text}, {"_id": "lease", "text": "Three months' notice."}]
    build_index(documents, tmp_path / "index", model=embedder)
    retriever = Retriever.load(tmp_path / "index", model=embedder)
    assert retriever.search(text, mode="dense")[0].id == "pump"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("funnel_after", 0),
        ("funnel_after", 4),
        ("funnel_factor", 3),
        ("funnel_factor", 0),
        ("funnel_pool", "sum"),
        ("funnel_recovery", "tile"),
    ],
)
def test_fields_out_of_range_are_refused(field: str, value: object) -> None:
    sizes: dict[str, Any] = {"num_hidden_layers": 4, "split_size": 16}
    with pytest.raises(ConfigError, match=rf"FunnelAveyBConfig\.{field} is {value!r}"):
        FunnelAveyBConfig(**sizes, **{field: value})


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("after", [1, 2, 3])
@torch.no_grad()
def test_hidden_states_have_each_tokens_row(recovery: str | None, after: int) -> None:
    plain = small_model("paper")
    model = FunnelAveyBModel.of(
        plain, funnel_after=after, funnel_factor=4, funnel_recovery=recovery
    )
    ids = ids_of(39, 2)
    states = model(ids, output_hidden_states=True).hidden_states
    without = plain(ids, output_hidden_states=True).hidden_states
    assert len(states) == 5
    torch.testing.assert_close(states[-1], model(ids).last_hidden_state, atol=1e-6, rtol=0)
    for found, expected in zip(states[: after + 1], without, strict=False):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    for behind in states[after + 1 : -1]:
        assert torch.equal(behind[:, 0], behind[:, 3])
        assert not torch.equal(behind[:, 3], behind[:, 4])
