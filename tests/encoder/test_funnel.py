"""Funnel: rows of pooled tokens between layers, and what becomes of them in vectors of texts, passages and tokens.

That batches, padding, inference forms and graphs change nothing is tested with the other variants (`models.PRESETS`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from aveyb_retrieval.cli.index import main as index_main
from aveyb_retrieval.cli.train import main
from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.funnel import Funnel, pooled_bias, pooled_matrix
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.network.token_codec import TokenCodec
from aveyb_retrieval.encoder.text.passages import PassageSize, cut_passages
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.model import pooling
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.training.models import add_funnel
from tests.encoder.models import small_config, small_model
from tests.encoder.onnx.forms import save_model
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

RECOVERIES = ("sum_first", "sum_last", "sum_max", "sum_mean", "average_last", "max_last")
SENTENCES = "".join(f"Sentence {i} is about {'xyz'[i % 3] * (i % 11)}. " for i in range(40))


def ids_of(length: int, batch: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_a_factor_of_1_is_the_identity_bit_for_bit(preset: str) -> None:
    plain, funneled = small_model(preset), small_model(preset, funnel_after=2, funnel_factor=1)
    ids = ids_of(75, 3)
    mask = torch.ones_like(ids)
    mask[1, 33:] = 0
    assert torch.equal(plain(ids, mask).last_hidden_state, funneled(ids, mask).last_hidden_state)
    with torch.no_grad():
        for recover in (False, True):
            assert torch.equal(plain.encode_batch(ids, mask), funneled.encode_batch(ids, mask, recover=recover))


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_pooling_by_hand(pool: str, factor: int) -> None:
    funnel = Funnel(1, factor, pool, "average_last")
    x = torch.randn(3, 11, 5, generator=torch.Generator().manual_seed(0)) - 2  # a padded zero would win a maximum
    lengths = torch.tensor([11, 7, 1])
    spoiled = x.clone()
    spoiled[1, 7:], spoiled[2, 1:] = float("nan"), 100
    rows, valid = funnel.pooled(spoiled, lengths)
    assert valid is not None and valid.tolist() == [-(-n // factor) for n in (11, 7, 1)]
    tiled = funnel.tiled(rows, 11)
    for i, length in enumerate(lengths.tolist()):
        for t in range(length):
            start = t // factor * factor
            group = x[i, start : min(start + factor, length)]
            torch.testing.assert_close(tiled[i, t], group.mean(0) if pool == "mean" else group.amax(0))
    whole, none = funnel.pooled(x[:1], None)
    assert none is None
    torch.testing.assert_close(whole, rows[:1])


@pytest.mark.parametrize("factor", [2, 4])
def test_the_mixing_of_rows_is_the_mean_of_the_mixing_of_equal_tokens(factor: int) -> None:
    model = small_model("paper", mix_activation="none", funnel_after=1, funnel_factor=factor)
    rows, gate = torch.randn(2, 3, 16 // factor, 32)
    tokens, gates = (part.repeat_interleave(factor, dim=1) for part in (rows, gate))
    for layer in model.layers[1:3]:  # dynamic, static
        full = layer.mix(tokens, gates, None)  # type: ignore[operator]
        got = layer.mix(rows, gate, None, factor)  # type: ignore[operator]
        torch.testing.assert_close(got, full.unflatten(1, (-1, factor)).mean(2), atol=1e-5, rtol=1e-5)
    weight = torch.arange(16.0).view(4, 4)
    assert pooled_matrix(weight, 2).tolist() == [[5.0, 9.0], [21.0, 25.0]]
    assert pooled_bias(weight[0], 2).tolist() == [0.5, 2.5]


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("after", [1, 3])
@torch.no_grad()
def test_recoveries_by_hand(recovery: str, after: int) -> None:
    model = small_model("paper", funnel_after=after, funnel_recovery=recovery)
    ids = ids_of(13)
    x = model.ranker.compress_alone(model.embed.weight[ids])
    outputs = []
    for layer in model.layers[:after]:
        x = layer(x, None)
        outputs.append(x)
    assert model.funnel is not None
    rows, _ = model.funnel.pooled(x, None)
    for layer in model.layers[after:]:
        rows = layer(rows, None, 2)
    tiled = rows.repeat_interleave(2, dim=1)[:, :13]
    expected = {
        "sum_first": tiled + outputs[0],
        "sum_last": tiled + outputs[-1],
        "sum_max": tiled + torch.stack(outputs).amax(0),
        "sum_mean": tiled + sum(outputs) / len(outputs),
        "average_last": (tiled + outputs[-1]) / 2,
        "max_last": torch.maximum(tiled, outputs[-1]),
    }[recovery]
    assert model.ln_f is not None
    torch.testing.assert_close(model.encode_batch(ids, recover=True), model.ln_f(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.encode_batch(ids), model.ln_f(tiled), atol=1e-5, rtol=0)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_recovered_tokens_depend_on_their_text_alone_and_have_gradients(recovery: str) -> None:
    model = small_model("paper", funnel_after=2, funnel_recovery=recovery)
    ids = ids_of(41, 2)
    mask = torch.ones_like(ids)
    mask[1, 19:] = 0
    together = model(ids, mask, recover=True).last_hidden_state
    for i, length in enumerate((41, 19)):
        alone = model(ids[i : i + 1, :length], recover=True).last_hidden_state[0]
        torch.testing.assert_close(together[i, :length], alone, atol=1e-5, rtol=0)
    assert not together[1, 19:].any()
    with torch.inference_mode():
        prepared = model(ids, mask, recover=True).last_hidden_state
    torch.testing.assert_close(prepared, together, atol=1e-5, rtol=0)
    together.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_numerical_gradients_through_a_funnel() -> None:
    funnel = Funnel(1, 2, "mean", "average_last")
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([5, 2])

    def through(x: torch.Tensor) -> torch.Tensor:
        return funnel.recovered(funnel.tiled(funnel.pooled(x, lengths)[0].square(), 5), [x])

    assert torch.autograd.gradcheck(through, x)


def test_masked_language_modelling_predicts_each_token_by_itself() -> None:
    torch.manual_seed(0)
    model = AveyBForMaskedLM(small_config("paper", funnel_after=2))
    logits = model(ids_of(20)).logits
    assert (logits[0, 0] - logits[0, 1]).abs().max() > 1e-3, "two tokens of one row"
    tiled = model.model(ids_of(20)).last_hidden_state
    assert torch.equal(tiled[0, 0], tiled[0, 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of one token a byte, S = 32, with prompts, without a funnel."""
    torch.manual_seed(0)
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 4, "split_size": 32, "initializer_range": 0.2}
    config = AveyBConfig.mini(vocab_size=tokenizer.vocab_size, **sizes)
    path = tmp_path_factory.mktemp("model")
    sentence_transformer(AveyBModel(config), tokenizer, path, prompts={"query": "query: ", "document": "text: "})
    return path


@pytest.fixture(scope="module")
def funneled(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("funneled") / "model"
    arguments = [str(folder), "-o", str(path), "--after", "1"]
    result = CliRunner().invoke(main, ["funnel", *arguments])
    assert result.exit_code == 0, result.output
    return path


def test_conversion_keeps_the_weights_and_changes_the_fingerprint(folder: Path, funneled: Path, tmp_path: Path) -> None:
    assert (folder / "model.safetensors").read_bytes() == (funneled / "model.safetensors").read_bytes()
    config = AveyBModel.from_pretrained(funneled).config
    assert (config.funnel_after, config.funnel_factor) == (1, 2)
    assert (config.funnel_pool, config.funnel_recovery) == ("mean", "average_last")
    assert Embedder.load(folder).fingerprint != Embedder.load(funneled).fingerprint
    for arguments, words in (
        ((folder, funneled), "exists"),
        ((funneled, tmp_path / "twice"), "funnel_after is 1 already"),
        ((folder, tmp_path / "deep"), "funnel_after is 4 and num_hidden_layers 4"),
    ):
        with pytest.raises(ConfigError, match=words):
            add_funnel(*arguments, after=4)
    assert not any(tmp_path.iterdir())


def test_queries_are_not_pooled_here_or_by_sentence_transformers(folder: Path, funneled: Path) -> None:
    from sentence_transformers import SentenceTransformer

    plain, pooled = Embedder.load(folder), Embedder.load(funneled)
    texts = ["a query", "x" * 70, SENTENCES[:100]]
    queries = pooled.encode_queries(texts)
    assert np.array_equal(queries, plain.encode_queries(texts))
    tokens = (embedder.token_vectors(texts, prompt="query") for embedder in (pooled, plain))
    assert all(np.array_equal(one, other) for one, other in zip(*tokens, strict=True))
    documents = np.stack([d.vector for d in pooled.encode_documents(("", text) for text in texts)])
    assert np.abs(documents - np.stack([d.vector for d in plain.encode_documents(("", t) for t in texts)])).max() > 1e-4
    model = SentenceTransformer(str(funneled), device="cpu")
    assert np.abs(model.encode_query(texts) - queries).max() <= 1e-5
    assert np.abs(model.encode_document(texts) - documents).max() <= 1e-5


def test_a_copy_is_without_the_onnx_form_that_has_no_funnel(tmp_path: Path) -> None:
    save_model(tmp_path / "plain", forms=("int8",))
    add_funnel(tmp_path / "plain", tmp_path / "funneled", after=1)
    plain, pooled = (Embedder.load(tmp_path / name) for name in ("plain", "funneled"))
    assert (plain.precision, pooled.precision, pooled.model.config.funnel_after) == ("int8", "float32", 1)


def test_an_index_of_pooled_documents_is_searched_by_the_model_itself(
    folder: Path, funneled: Path, tmp_path: Path
) -> None:
    corpus = [{"_id": str(i), "text": text} for i, text in enumerate([SENTENCES, "x" * 70, SENTENCES[200:300]])]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    arguments = ["build", str(tmp_path / "corpus.jsonl"), "-o", str(tmp_path / "index"), "--model", str(folder)]
    result = CliRunner().invoke(index_main, [*arguments, "--funnel", "1", "--quiet"])
    assert result.exit_code == 0, result.output
    expected = [d.vector for d in Embedder.load(funneled).encode_documents(("", row["text"]) for row in corpus)]
    plain = Embedder.load(folder)
    with Retriever.load(tmp_path / "index") as retriever:
        hits = retriever.search("sentence", 3, mode="dense", granularity="document", exact=True)
    (query,) = plain.encode_queries(["sentence"])
    for hit in hits:
        assert hit.score == pytest.approx(float(query @ expected[int(hit.id)]), abs=1e-5)
    assert not np.allclose(expected[0], next(plain.encode_documents([("", SENTENCES)])).vector, atol=1e-4)
    with pytest.raises(ConfigError, match="has a funnel already"):
        Embedder.load(funneled).with_funnel(1)
    with pytest.raises(ConfigError, match="funnel_after is 4 and num_hidden_layers 4"):
        plain.with_funnel(4)
    with pytest.raises(ConfigError, match="funnel=1: only Avey-B models have one, not fake"):
        pooling(FakeEmbedder(), 1)


@pytest.mark.parametrize("length", [1, 2, 31, 33, 70])
def test_a_text_is_the_mean_of_its_rows_weighted_by_their_tokens(funneled: Path, length: int) -> None:
    embedder = Embedder.load(funneled)
    embedder.prompts = {"query": "", "document": ""}
    text = SENTENCES[:length]
    (document,) = embedder.encode_documents([("", text)])
    ids = torch.from_numpy(embedder.tokenizer.encode_ids(text).astype(np.int64))[None]
    with torch.inference_mode():
        tiled = embedder.model.encode_batch(ids)[0].numpy()
    starts = [start + inner for start in range(0, length, 32) for inner in range(0, min(32, length - start), 2)]
    rows, weights = tiled[starts], np.diff([*starts, length])
    assert weights.max(initial=0) <= 2
    expected = (rows * weights[:, None]).sum(0) / length
    assert np.abs(document.vector - expected / np.linalg.norm(expected)).max() <= 1e-5


@pytest.mark.parametrize("size", [PassageSize(24, titled=False), PassageSize(40, 15, titled=False)])
def test_a_passage_is_the_mean_over_its_own_tokens(funneled: Path, size: PassageSize) -> None:
    embedder = Embedder.load(funneled).with_passage_size(size)
    (document,) = embedder.encode_documents([("T\n", SENTENCES)])
    before = embedder.prompts["document"] + "T\n"
    ids, offsets = embedder.tokenizer.encode(before + SENTENCES)
    cuts = cut_passages(SENTENCES, offsets - len(before), size)
    assert (cuts.ranges[1:] % 2).any(), "a border within a row"
    with torch.inference_mode():
        tiled = embedder.model.encode_batch(torch.from_numpy(ids.astype(np.int64))[None])[0].numpy()
    means = np.stack([tiled[first:end].mean(axis=0) for first, end in cuts.ranges])
    assert np.abs(document.passages * document.norms[:, None] - means).max() <= 1e-5


def test_a_grown_text_keeps_its_passages(funneled: Path) -> None:
    embedder = Embedder.load(funneled).with_passage_size(PassageSize(24))
    (before,) = embedder.encode_documents([("", SENTENCES[:-100])])
    (whole,) = embedder.encode_documents([("", SENTENCES)])
    kept = embedder.unchanged_passages(("", SENTENCES[:-100]), ("", SENTENCES))
    assert kept > 10
    grown = embedder.encode_grown("", SENTENCES, before.passages[:kept], before.norms[:kept])
    assert np.abs(grown.passages - whole.passages).max() <= 1e-5
    assert np.abs(grown.vector - whole.vector).max() <= 1e-5


def test_stored_tokens_are_recovered_ones(funneled: Path) -> None:
    plain = Embedder.load(funneled)
    plain.prompts = {"query": "", "document": ""}
    text = SENTENCES[:90]
    (expected,) = plain.token_vectors([text], prompt="document")
    assert (expected[0] - expected[1]).max() > 1e-3
    (document,) = plain.with_token_codec(TokenCodec(32, "int8")).encode_documents([("", text)])
    assert document.tokens is not None
    assert len(document.tokens.codes) == len(expected)
    (without,) = plain.encode_documents([("", text)])
    assert np.abs(document.vector - without.vector).max() <= 1e-6


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"funnel_factor": 2}, "funnel_factor is 2 and funnel_after None"),
        ({"funnel_recovery": "sum_last"}, "funnel_recovery is 'sum_last' and funnel_after None"),
        ({"funnel_pool": "mean"}, "funnel_pool is 'mean' and funnel_after None"),
        ({"funnel_after": 4}, "funnel_after is 4 and num_hidden_layers 4"),
        ({"funnel_after": 0}, "funnel_after is 0 and num_hidden_layers 4"),
        ({"funnel_after": True}, "funnel_after is True"),
        ({"funnel_after": 1, "funnel_factor": 3}, "funnel_factor is 3 and split_size 16"),
        ({"funnel_after": 1, "funnel_factor": 2.0}, "funnel_factor is 2.0"),
        ({"funnel_after": 1, "funnel_pool": "sum"}, "funnel_pool is 'sum'; choose one of mean, max"),
        ({"funnel_after": 1, "funnel_recovery": []}, r"funnel_recovery is \[\]"),
        ({"funnel_after": 1, "funnel_factor": 1, "funnel_recovery": "sum_max"}, "funnel_recovery is.*funnel_factor 1"),
    ],
)
def test_combinations_that_mean_nothing_name_both_fields(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small_config("paper", **fields)


def test_a_configuration_survives_its_file() -> None:
    for fields in ({"funnel_after": 2}, {"funnel_after": 1, "funnel_factor": 1}):
        config = small_config("paper", **fields)
        assert AveyBConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
