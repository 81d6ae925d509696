"""The design choices that the paper compares, as fields: by hand, gradients, padding, batches, contradictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.network.ranker import Ranker
from aveyb_retrieval.encoder.network.splits import split_table
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import BackendError, ConfigError
from aveyb_retrieval.kernels.maxsim import maxsim_by_token, maxsim_selected, split_scores, unit_rows
from aveyb_retrieval.kernels.mixing import coupled_mix_both_ways, dynamic_mix
from tests.encoder.models import small_config, small_model
from tests.encoder.test_model import padded, random_texts

if TYPE_CHECKING:
    from pathlib import Path

NORMS = ("none", "rms", "softmax", "scaled_softmax")
EPS = 1e-6
COUPLED = ["static", "coupled", "dynamic", "coupled"]
SWITCHES: dict[str, dict[str, Any]] = {
    **{norm: {"similarity_norm": norm} for norm in NORMS},
    "coupled": {"layer_pattern": COUPLED},
    "both ways": {"ranker_direction": "both"},
    "no compressor": {"compressor": "none"},
    "no compressor, both ways": {"compressor": "none", "ranker_direction": "both", "tail": "zero_slots"},
    "no ranker": {"num_retrieved": 0},
    "tail of a quarter": {"tail_share": 0.25},
    "tail of 7/8": {"tail_share": 0.875, "enriched_order": "mixed_gate_bypass", "fuser_order": "context_bypass"},
    "all of it in a funnel": {
        "similarity_norm": "none", "layer_pattern": COUPLED, "ranker_direction": "both", "compressor": "none",
        "tail_share": 0.75, "funnel_after": 1,
    },
    "splits of 512": {"split_size": 512},
}  # fmt: skip
by_switch = pytest.mark.parametrize("switch", SWITCHES)


@by_switch
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_batch_and_an_inference_form_change_nothing(switch: str, preset: str) -> None:
    model = small_model(preset, **SWITCHES[switch])
    texts = random_texts([1, 60, 16, 0, 17, 33, 3])
    ids, mask = padded(texts, 64)
    with torch.inference_mode():
        together = model(ids, mask).last_hidden_state
    trained = model(ids, mask).last_hidden_state
    torch.testing.assert_close(trained, together, atol=2e-5, rtol=1e-5)
    for i, text in enumerate(texts):
        with torch.no_grad():
            alone = model(text[None]).last_hidden_state[0]
        torch.testing.assert_close(together[i][mask[i] == 1], alone, atol=2e-5, rtol=1e-5)
        assert not together[i][mask[i] == 0].any()


@by_switch
def test_every_parameter_has_a_gradient_which_padding_does_not_change(switch: str) -> None:
    model = small_model("paper", **SWITCHES[switch])
    texts = random_texts([50, 20, 3])
    probe = torch.randn(32, generator=torch.Generator().manual_seed(3))

    def gradients(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        model.zero_grad()
        torch.stack([(model(i, m).last_hidden_state @ probe).sum() for i, m in batches]).sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    together = gradients([padded(texts, 70)])
    alone = gradients([(t[None], torch.ones_like(t[None])) for t in texts])
    assert together.keys() == alone.keys() == {n for n, _ in model.named_parameters()}
    for name, grad in together.items():
        torch.testing.assert_close(grad, alone[name], atol=1e-4 * alone[name].abs().max().item(), rtol=0, msg=name)


@by_switch
def test_a_saved_model_is_the_same(switch: str, tmp_path: Path) -> None:
    model = small_model("paper", **SWITCHES[switch])
    model.save_pretrained(tmp_path)
    ids = random_texts([60])[0][None]
    with torch.no_grad():
        assert torch.equal(AveyBModel.from_pretrained(tmp_path)(ids).last_hidden_state, model(ids).last_hidden_state)


# similarity_norm


def normalized(norm: str, row: list[float], dim: int) -> torch.Tensor:
    values = torch.tensor(row, dtype=torch.float64)
    if norm == "none":
        return values
    if norm == "rms":
        return values / (values.square().mean().sqrt() + EPS)
    exponents = (values / dim**0.5 if norm == "scaled_softmax" else values).exp()
    return exponents / exponents.sum()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("length", [1, 9, 20])
def test_rows_are_normalized_over_the_tokens_that_exist(norm: str, length: int) -> None:
    torch.manual_seed(length)
    mixed, gate = torch.randn(2, 2, 20, 6, dtype=torch.float64)
    lengths = torch.tensor([length, 20])
    got = dynamic_mix(mixed, gate, normalization=norm, eps=EPS, lengths=lengths)
    z = mixed[0, :length]
    for i in range(length):
        cosines = [float(z[i].dot(other) / (z[i].norm() * other.norm())) for other in z]
        torch.testing.assert_close(got[0, i], gate[0, i] * (normalized(norm, cosines, 6) @ z))
    assert not got[0, length:].any()


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_of_normalizations(norm: str) -> None:
    torch.manual_seed(0)
    leaves = [v.requires_grad_() for v in torch.randn(2, 2, 6, 4, dtype=torch.float64)]
    lengths = torch.tensor([4, 6])
    assert torch.autograd.gradcheck(lambda *v: dynamic_mix(*v, normalization=norm, eps=EPS, lengths=lengths), leaves)
    with pytest.raises(BackendError, match="dynamic_mix"):
        dynamic_mix(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), normalization=norm, eps=EPS, backend="triton")


@pytest.mark.parametrize("norm", [*NORMS, "sum"])
def test_rows_of_a_funnel_count_as_their_tokens_do(norm: str) -> None:
    pattern = COUPLED if norm in ("none", "sum") else ["static", "static", "dynamic", "dynamic"]
    model = small_model("paper", similarity_norm=norm, layer_pattern=pattern, mix_activation="none", funnel_after=1)
    rows, gate = torch.randn(2, 3, 8, 32)
    tokens, gates = (part.repeat_interleave(2, dim=1) for part in (rows, gate))
    for layer in model.layers[1:3]:
        full = layer.mix(tokens, gates, None)  # type: ignore[operator]
        got = layer.mix(rows, gate, None, 2)  # type: ignore[operator]
        torch.testing.assert_close(got, full.unflatten(1, (-1, 2)).mean(2), atol=1e-5, rtol=1e-4)


# coupled layers


@pytest.mark.parametrize("length", [1, 7])
def test_equation_2_in_both_directions(length: int) -> None:
    torch.manual_seed(length)
    mixed, gate = torch.randn(2, 2, 9, 5, dtype=torch.float64)
    weight, bias = torch.randn(9, 9, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    lengths = torch.tensor([length, 9])
    got = coupled_mix_both_ways(mixed, gate, weight, eps=EPS, lengths=lengths, bias=bias, activation="relu")
    z = mixed[0, :length]
    for i in range(length):
        norms = [(other.dot(other) + EPS).sqrt() for other in z]
        total = sum(weight[i, j] * z[i].dot(z[j]) / (norms[i] * norms[j]) * z[j] for j in range(length)) + bias[i]
        torch.testing.assert_close(got[0, i], gate[0, i] * total.relu())
    assert not got[0, length:].any()
    leaves = [v.requires_grad_() for v in (mixed, gate, weight, bias)]
    assert torch.autograd.gradcheck(
        lambda m, g, w, b: coupled_mix_both_ways(m, g, w, eps=1e-2, lengths=lengths, bias=b), leaves
    )


# ranker_direction and compressor


@pytest.mark.parametrize("k", [1, 3])
@torch.no_grad()
def test_splits_of_both_directions_by_hand(k: int) -> None:
    torch.manual_seed(k)
    config = small_config("paper", num_retrieved=k, ranker_direction="both", compressor="none")
    ranker = Ranker(config)
    embedding = torch.randn(97, 32)
    documents = [torch.randint(0, 97, (n,)) for n in (5, 70, 16, 41)]
    table = split_table(torch.cat(documents), [len(d) for d in documents], 16)
    retrieved = ranker.retrieve(table, embedding)
    got: dict[int, torch.Tensor] = {}
    for group in table.groups(full_width=False, max_tokens=64, both_ways=True):
        found = ranker.compress(*ranker.inputs(table, retrieved, group), embedding)
        for row, context in zip(group.rows.tolist(), found, strict=True):
            got[row] = context[: k * 16 + int(table.lengths[row])]
    number = 0
    for document in documents:
        splits = [embedding[part] for part in document.split(16)]
        for i, current in enumerate(splits):
            scores = {j: float((unit(current) @ unit(s).T).amax(1).sum()) for j, s in enumerate(splits) if j != i}
            chosen = sorted(sorted(scores, key=lambda j: (-scores[j], j))[:k])
            blocks = [torch.zeros(16, 32)] * (k - len(chosen))
            for j in chosen:
                block = torch.zeros(16, 32)
                block[: len(splits[j])] = splits[j] * scores[j] / max(scores[c] for c in chosen)
                blocks.append(block)
            torch.testing.assert_close(got[number], torch.cat([*blocks, current]), atol=1e-5, rtol=1e-5)
            number += 1


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def test_selected_scores_of_both_directions_are_those_of_the_ranking() -> None:
    ids = torch.randint(0, 97, (4, 16), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([16, 16, 16, 3])
    embedding = -torch.rand(97, 32) - torch.eye(97)[:, :32]  # no cosine is negative by chance: padding would win
    embedding[0] = 1
    scores = maxsim_by_token(ids, lengths, embedding, EPS, both_ways=True)
    current, other = torch.nonzero(~torch.eye(4, dtype=torch.bool), as_tuple=True)
    rows = unit_rows(embedding[ids], EPS)
    torch.testing.assert_close(maxsim_selected(rows, lengths, current, other, both_ways=True), scores[current, other])
    assert torch.isneginf(scores.diagonal()).all()
    assert torch.equal(split_scores(ids, lengths, [0, 4], embedding, EPS, both_ways=True), scores)
    with pytest.raises(BackendError, match="split_scores"):
        split_scores(ids, lengths, [0, 4], embedding.cuda() if torch.cuda.is_available() else embedding, EPS,
                     both_ways=True, backend="triton")  # fmt: skip


@torch.no_grad()
def test_later_splits_count_only_where_they_are_asked_for() -> None:
    text = random_texts([64])[0]
    other = text.clone()
    other[48:] = 3
    for direction, changes in (("past", False), ("both", True)):
        model = small_model("paper", ranker_direction=direction)
        moved = (model(text[None]).last_hidden_state - model(other[None]).last_hidden_state)[0, :48].abs().max()
        assert (moved > 1e-4) == changes


@torch.no_grad()
def test_without_a_compressor_the_layers_see_all_retrieved_tokens() -> None:
    model = small_model("paper", compressor="none", num_retrieved=2)
    assert model.ranker.down_proj is None
    assert {layer.spatial_proj.shape for layer in model.layers if layer.spatial_proj is not None} == {(48, 48)}
    text = random_texts([37])[0]
    x = torch.cat([torch.zeros(32, 32), model.embed.weight[text[:16]]])[None]
    for layer in model.layers:
        x = layer(x, None)
    assert model.ln_f is not None
    expected = model.ln_f(x)[0, 32:]
    torch.testing.assert_close(model(text[None]).last_hidden_state[0, :16], expected, atol=1e-5, rtol=0)


def test_a_document_that_grows_is_encoded_anew_where_later_splits_count(tmp_path: Path) -> None:
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "split_size": 16}
    config = AveyBConfig.mini(vocab_size=tokenizer.vocab_size, ranker_direction="both", **sizes)
    sentence_transformer(AveyBModel(config), tokenizer, tmp_path)
    embedder = Embedder.load(tmp_path, passage_size=None)
    text = "abcdefgh " * 20
    (before,) = embedder.encode_documents([("", text)])
    assert embedder.unchanged_passages(("", text), ("", text + "more")) == 0
    with pytest.raises(ConfigError, match="ranker_direction 'both'"):
        embedder.encode_grown("", text, before.passages[:1], before.norms[:1])
    assert np.isfinite(before.vector).all()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"similarity_norm": "max"}, "similarity_norm is 'max'"),
        ({"ranker_direction": "future"}, "ranker_direction is 'future'; choose one of past, both"),
        ({"compressor": "mean"}, "compressor is 'mean'; choose one of linear, none"),
        ({"layer_pattern": COUPLED, "similarity_norm": "softmax"}, "layer_pattern.*similarity_norm is 'softmax'"),
        ({"num_retrieved": 0, "compressor": "linear"}, "num_retrieved is 0 and compressor 'linear'"),
        ({"num_retrieved": 0, "ranker_direction": "both"}, "num_retrieved is 0 and ranker_direction 'both'"),
        ({"tail_share": 1}, "tail_share is 1: of expansion_factor 4"),
        ({"tail_share": 0.0}, "tail_share is 0.0"),
        ({"tail_share": 0.51}, "hidden_size 32 that is a tail of 65.28"),
    ],
)
def test_contradictions_name_both_fields(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small_config("paper", **fields)
