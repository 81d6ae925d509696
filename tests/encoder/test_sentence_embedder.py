"""Any sentence-transformers model in place of ours, and folders that are refused in one line."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from aveyb_retrieval.encoder.embedders.loading import load_encoder
from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder
from aveyb_retrieval.encoder.text.passages import PassageSize
from aveyb_retrieval.errors import AveyBError, BackendError, ConfigError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = [
    "the",
    "pump",
    "stops",
    "at",
    "noon",
    "and",
    "a",
    "heron",
    "stands",
    "still",
    "in",
    "rivers",
    "title",
    "long",
]
SENTENCES = "".join(f"The {WORDS[i % 13]} stops at {WORDS[i * 5 % 13]}. " for i in range(60))


def word_tokenizer() -> Tokenizer:
    """Words and stops as tokens, between [CLS] and [SEP]."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", ":", *WORDS, "query", "passage"]
    tokenizer = Tokenizer(
        models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def save_bert(path: Path, *, pooling: str = "mean", prompts: dict[str, str] | None = None) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    bert = path / "bert"
    BertModel(config).save_pretrained(bert)
    PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    ).save_pretrained(bert)
    modules = [Transformer(str(bert)), Pooling(32, pooling_mode=pooling), Normalize()]
    model = SentenceTransformer(modules=modules, prompts=prompts or {}, device="cpu")
    model.max_seq_length = 40
    model.save(str(path / "model"), create_model_card=False)
    return path / "model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = {"query": "query: ", "document": "passage: "}
    return save_bert(tmp_path_factory.mktemp("bert"), prompts=prompts)


@pytest.fixture(scope="module")
def embedder(folder: Path) -> SentenceEmbedder:
    loaded = load_encoder(folder)
    assert isinstance(loaded, SentenceEmbedder)
    return loaded.with_passage_size(PassageSize(24))


def test_a_short_text_has_the_models_own_vector(folder: Path, embedder: SentenceEmbedder) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    texts = ["The pump stops.", "A heron stands still in rivers. The pump stops at noon."]
    documents = list(embedder.encode_documents([("", texts[0]), ("Title\n", texts[1])]))
    expected = model.encode_document([texts[0], "Title\n" + texts[1]], normalize_embeddings=True)
    assert np.abs(np.stack([d.vector for d in documents]) - expected).max() <= 1e-6
    assert np.abs(documents[0].passages - expected[:1]).max() <= 1e-6
    assert (
        np.abs(
            embedder.encode_queries(texts) - model.encode_query(texts, normalize_embeddings=True)
        ).max()
        <= 1e-6
    )
    assert embedder.prompts == {"query": "query: ", "document": "passage: "}
    assert (embedder.dim, embedder.window) == (32, 40)


def test_passages_are_encoded_one_by_one_and_nothing_is_cut(
    folder: Path, embedder: SentenceEmbedder
) -> None:
    from sentence_transformers import SentenceTransformer

    (document,) = embedder.encode_documents([("Title\n", "# Long\n" + SENTENCES)])
    assert document.n_cut == 0
    assert document.n_tokens > 300
    assert set(document.headings) == {"Long"}
    texts = [("# Long\n" + SENTENCES)[start:stop] for start, stop in document.spans.tolist()]
    assert all(text.endswith(".") for text in texts)
    texts[0] = "Title\n" + texts[0]
    model = SentenceTransformer(str(folder), device="cpu")
    assert (
        np.abs(document.passages - model.encode_document(texts, normalize_embeddings=True)).max()
        <= 1e-6
    )
    assert np.linalg.norm(document.vector) == pytest.approx(1, abs=1e-6)
    near = document.passages @ document.vector
    assert near.mean() > 0.5


def test_an_empty_text_is_a_document_of_zeros(embedder: SentenceEmbedder) -> None:
    (document,) = embedder.encode_documents([("", "")])
    assert not document.vector.any()
    assert document.passages.shape == (0, 32)
    assert embedder.encode_queries([]).shape == (0, 32)


def test_late_passages_are_means_within_their_window(embedder: SentenceEmbedder) -> None:
    late = embedder.with_passage_size(PassageSize(16, late=True))
    (short,) = late.encode_documents([("", "The pump stops at noon.")])
    (alone,) = embedder.encode_documents([("", "The pump stops at noon.")])
    assert np.abs(short.passages - alone.passages).max() <= 1e-6, (
        "a window that is one passage is the model's own"
    )
    (document,) = late.encode_documents([("Title\n", SENTENCES)])
    (one_by_one,) = embedder.with_passage_size(PassageSize(16)).encode_documents(
        [("Title\n", SENTENCES)]
    )
    assert document.spans.tolist() == one_by_one.spans.tolist()
    cosines = (document.passages * one_by_one.passages).sum(axis=1)
    assert cosines.min() > 0.3
    assert cosines.mean() < 0.999, "they see their neighbours"
    outputs = late.token_vectors(["The pump stops."], prompt="document")[0]
    assert outputs.shape == (8, 32)
    assert np.linalg.norm(outputs, axis=1) == pytest.approx(np.ones(8), abs=1e-5)


def test_overlapping_passages(embedder: SentenceEmbedder) -> None:
    for late in (False, True):
        overlapping = embedder.with_passage_size(PassageSize(24, 8, late))
        (document,) = overlapping.encode_documents([("", SENTENCES)])
        assert (document.spans[1:, 0] < document.spans[:-1, 1]).mean() > 0.5
        assert document.n_cut == 0


def test_what_max_tokens_cuts_is_counted(folder: Path) -> None:
    loaded = SentenceEmbedder.load(folder, max_tokens=10, passage_size=PassageSize(16))
    (document,) = loaded.encode_documents(
        [("", "The pump stops at noon. A heron stands still in rivers.")]
    )
    assert (document.n_tokens, document.n_cut) == (10, 3)


def test_static_embeddings(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    rng = np.random.default_rng(0)
    tokenizer = word_tokenizer()
    weights = rng.standard_normal((tokenizer.get_vocab_size(), 24)).astype(np.float32)
    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu"
    )
    model.save(str(tmp_path / "static"), create_model_card=False)
    embedder = load_encoder(tmp_path / "static")
    assert isinstance(embedder, SentenceEmbedder)
    assert embedder.window is None
    (document,) = embedder.encode_documents([("", SENTENCES)])
    assert len(document.passages) > 1
    assert (
        np.abs(document.vector - model.encode([SENTENCES], normalize_embeddings=True)[0]).max()
        <= 1e-6
    )
    with pytest.raises(ConfigError, match="no token outputs"):
        embedder.with_passage_size(PassageSize(24, late=True))
    with pytest.raises(ConfigError, match="late interaction"):
        embedder.token_vectors(["the pump"], prompt="query")


def test_a_model_that_pools_in_another_way_is_encoded_one_by_one_only(tmp_path: Path) -> None:
    embedder = SentenceEmbedder.load(
        save_bert(tmp_path, pooling="cls"), passage_size=PassageSize(24)
    )
    (document,) = embedder.encode_documents([("", SENTENCES)])
    assert len(document.passages) > 5
    with pytest.raises(ConfigError, match=r"late=True: .* pools by .*cls"):
        embedder.with_passage_size(PassageSize(24, late=True))


def test_only_splits_repeat_a_title(embedder: SentenceEmbedder) -> None:
    with pytest.raises(ConfigError, match=r"titled=True: .* no Avey-B model"):
        embedder.with_passage_size(PassageSize(24, titled=True))
    for size in (PassageSize(24), PassageSize(24, titled=False)):
        assert embedder.with_passage_size(size).passage_size == PassageSize(24, titled=False)


def test_passages_must_fit_into_the_window(folder: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"passage_tokens is 128; .* reads 40 tokens at once, 4 of them .*at most 36",
    ):
        SentenceEmbedder.load(folder, passage_size=PassageSize(128))
    with pytest.raises(ConfigError, match=r"is 32, passage_overlap 8; .*at most 36 together"):
        SentenceEmbedder.load(folder, passage_size=PassageSize(32, overlap=8))
    fitted = SentenceEmbedder.load(folder).passage_size
    assert fitted.tokens == 36, "the default gives way"


def test_first_components_only(folder: Path) -> None:
    cut = SentenceEmbedder.load(folder, truncate_dim=8)
    assert cut.dim == 8
    assert cut.fingerprint != SentenceEmbedder.load(folder).fingerprint
    (document,) = cut.encode_documents([("", SENTENCES)])
    assert document.passages.shape[1] == 8
    assert np.linalg.norm(document.passages, axis=1) == pytest.approx(
        np.ones(len(document.passages)), abs=1e-5
    )


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "config_sentence_transformers.json"],
)
def test_the_fingerprint_covers_weights_configuration_tokenizer_and_prompts(
    folder: Path, tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    before = load_encoder(copy).fingerprint
    assert before == load_encoder(folder).fingerprint
    (copy / "README.md").write_text("other words")
    assert load_encoder(copy).fingerprint == before
    path = copy / name
    if name == "model.safetensors":
        from safetensors.torch import load_file, save_file

        tensors = load_file(path)
        tensors["embeddings.word_embeddings.weight"] += 1
        save_file(tensors, path, metadata={"format": "pt"})
    else:
        path.write_text(path.read_text() + "\n")
    assert load_encoder(copy).fingerprint != before


def without_modules(folder: Path) -> None:
    (folder / "modules.json").unlink()


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def incomplete(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")


def cross_encoder(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertForSequenceClassification"]})
    )
    (folder / "modules.json").unlink()


def sparse_encoder(folder: Path) -> None:
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "SparseEncoder"}))


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("x")


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def bag_of_words(folder: Path) -> None:
    """A model without weights, which reads words and keeps no places of characters."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW

    shutil.rmtree(folder)
    SentenceTransformer(modules=[BoW(vocab=["pump", "valve"])], device="cpu").save(str(folder))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_modules, "a plain bert model without modules.json"),
        (truncated, "cannot load it"),
        (incomplete, "lacks 1 of the model's tensors, first 'encoder.layer.1.output.dense.weight'"),
        (another_shape, "cannot load it"),
        (without_weights, "cannot load it"),
        (pickled, "pytorch_model.bin: a pickled file"),
        (cross_encoder, "a cross-encoder, which scores pairs"),
        (sparse_encoder, "a sparse encoder"),
        (emptied, "no model here .*notes.txt"),
        (no_json, "config.json is not JSON"),
        (bag_of_words, "characters"),
    ],
)
def test_other_folders_are_refused_in_one_line(
    folder: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    damage(copy)
    with pytest.raises(ModelError, match=message) as caught:
        load_encoder(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"device": "gpu"}, ConfigError),
        ({"device": "cuda:99"}, BackendError),
        ({"precision": "int4"}, ConfigError),
        ({"max_tokens": 0}, ConfigError),
    ],
)
def test_options_out_of_range_are_refused_in_one_line(
    folder: Path, options: dict, kind: type[AveyBError]
) -> None:
    with pytest.raises(kind) as caught:
        load_encoder(folder, **options)
    assert "\n" not in str(caught.value)
    if "device" in options:
        with pytest.raises(kind):
            load_encoder(None, **options)


def test_minilm_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AveyBError, match=r"pip install .*\[minilm\]"):
        load_encoder("minilm")
