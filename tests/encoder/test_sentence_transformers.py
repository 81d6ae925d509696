"""The model as a sentence-transformers folder, and the streaming Embedder beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.sentence_transformers import (
    read_modules,
)
from aveyb_retrieval.encoder.text.passages import PassageSize, cut_passages, repeat_title
from aveyb_retrieval.errors import ConfigError, ModelError
from tests.encoder.models import save_byte_model
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    "hello world",
    "",
    "é" * 50 + "abc" * 60,
    "x" * 500,
    "short",
    "A tail of\nseveral lines.\n" * 9,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_model(
        tmp_path_factory.mktemp("model"), query="query: ", document="text: ", split_size=32
    )


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Embedder:
    return Embedder.load(folder)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sentence_transformers_loads_saves_reloads_and_spreads_without_trust_remote_code(
    folder: Path, embedder: Embedder, tmp_path: Path, processes: int
) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    documents, queries = model.encode_document(TEXTS), model.encode_query(TEXTS)
    model.save(str(tmp_path))
    reloaded = SentenceTransformer(str(tmp_path), device="cpu")
    assert np.abs(reloaded.encode_document(TEXTS) - documents).max() == 0
    # new ones
    spread = model.encode_document(TEXTS, device=["cpu"] * processes, chunk_size=2, batch_size=2)
    ours = np.stack([d.vector for d in embedder.encode_documents([("", text) for text in TEXTS])])
    assert np.abs(documents - ours).max() <= 1e-5
    assert np.abs(queries - embedder.encode_queries(TEXTS)).max() <= 1e-5
    assert np.abs(spread - ours).max() <= 1e-5
    assert np.abs(documents - queries).max() > 1e-3, "prompts must reach the model"


FIRST = ("aveyb_retrieval", "transformers.modeling_utils")
FIRST_OF_ALL = (*FIRST, "transformers", "sentence_transformers")
# What these import: done once, before a process for each of them is forked.
NEEDED = ("torch._dynamo", "torch.distributed.tensor", "sklearn.metrics", "accelerate", "datasets")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "firsts", [FIRST, pytest.param(FIRST_OF_ALL, marks=pytest.mark.slow)], ids=len
)
def test_auto_classes_know_the_model_whatever_is_imported_first(
    folder: Path, firsts: tuple[str, ...]
) -> None:
    code = f"""
import contextlib, importlib, os, sys
for name in {NEEDED}:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
assert not {{"aveyb_retrieval", "transformers"}} & set(sys.modules)
for first in {firsts}:
    if not os.fork():
        importlib.import_module(first)
        import aveyb_retrieval
        from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer
        folder = {str(folder)!r}
        assert type(AutoConfig.from_pretrained(folder)).__name__ == "AveyBConfig"
        assert type(AutoModel.from_pretrained(folder)).__name__ == "AveyBModel"
        assert type(AutoModelForMaskedLM.from_pretrained(folder)).__name__ == "AveyBForMaskedLM"
        assert AutoTokenizer.from_pretrained(folder)("hi")["input_ids"] == [104, 105]
        os._exit(0)
    assert os.wait()[1] == 0, first
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_spans_are_the_characters_of_each_split(embedder: Embedder) -> None:
    text = "naïve café " * 20
    (document,) = embedder.with_passage_size(None).encode_documents([("Title\n", text)])
    data = ("text: Title\n" + text).encode()
    assert document.n_tokens == len(data)
    assert len(document.passages) == len(document.spans) == -(-len(data) // 32)
    covered = [text[start:end] for start, end in document.spans.tolist()]
    assert covered[0] == data[:32].decode(errors="ignore").removeprefix("text: Title\n")
    assert document.spans[0, 0] == 0
    assert document.spans[-1, 1] == len(text)
    for left, right in zip(document.spans[:-1], document.spans[1:], strict=True):
        assert right[0] in (
            left[1],
            left[1] - 1,
        ), "splits touch, or share the character that a cut went through"


def test_results_do_not_depend_on_the_stream_around_them(folder: Path, embedder: Embedder) -> None:
    pairs = [("", text) for text in TEXTS]
    together = list(embedder.encode_documents(pairs))
    tiny = list(Embedder.load(folder, batch_tokens=1).encode_documents(pairs))
    for a, b in zip(together, tiny, strict=True):
        assert np.abs(a.vector - b.vector).max() <= 1e-5
        assert a.passages.shape == b.passages.shape
        assert np.abs(a.passages - b.passages).max(initial=0) <= 1e-5
        assert np.array_equal(a.spans, b.spans)


def test_the_stream_is_consumed_no_further_than_one_batch(folder: Path) -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield "", "word " * 10

    stream = Embedder.load(folder, batch_tokens=200).encode_documents(endless())  # type: ignore[arg-type]
    for _ in range(3):
        next(stream)
    assert taken <= 8


def test_an_empty_text_is_a_document_of_zeros(folder: Path) -> None:
    bare = Embedder.load(folder)
    bare.prompts = {"query": "", "document": ""}
    (document,) = bare.encode_documents([("", "")])
    assert document.n_tokens == 0
    assert not document.vector.any()
    assert document.passages.shape == (0, 32)
    assert document.spans.shape == (0, 2)
    assert bare.encode_queries([]).shape == (0, 32)


SENTENCES = "".join(f"Sentence {i} is about {'xyz'[i % 3] * (i % 11)}. " for i in range(40))


@pytest.mark.parametrize("titled", [None, False])
@pytest.mark.parametrize("size", [PassageSize(24), PassageSize(40, 15), PassageSize(200)])
def test_a_passage_is_the_mean_of_its_own_token_vectors(
    embedder: Embedder, size: PassageSize, titled: bool | None
) -> None:
    """Unit token vectors would lose their lengths, so the outputs themselves are taken from the
    model.
    """
    size = replace(size, titled=titled)
    embedder = embedder.with_passage_size(size)
    (document,) = embedder.encode_documents([("T\n", SENTENCES)])
    before = embedder.prompts["document"] + "T\n"
    ids, offsets = embedder.tokenizer.encode(before + SENTENCES)
    cuts = cut_passages(SENTENCES, offsets - len(before), size)
    if titled is None:
        n_tokens = len(ids)
        ids, cuts = repeat_title(
            ids, cuts, len(embedder.tokenizer.encode_ids(before)), embedder.split_size
        )
        assert len(ids) > n_tokens
    with torch.inference_mode():
        outputs = embedder.model.encode_batch(torch.from_numpy(ids.astype(np.int64))[None])[
            0
        ].numpy()
    assert document.spans.tolist() == cuts.spans.tolist()
    assert len(document.passages) > 3
    means = np.stack([outputs[first:end].mean(axis=0) for first, end in cuts.ranges])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    assert np.abs(document.passages * lengths - means).max() <= 1e-5
    whole = outputs.mean(axis=0)
    assert np.abs(document.vector - whole / np.linalg.norm(whole)).max() <= 1e-5


def test_headings_come_with_the_passages(embedder: Embedder) -> None:
    (document,) = embedder.with_passage_size(PassageSize(24)).encode_documents(
        [("", "# One\n\nA first sentence. A second one.\n\n# Two\n\nThe end of it.")]
    )
    assert document.headings == ("One", "One", "Two")


def test_what_max_tokens_cuts_is_counted(folder: Path) -> None:
    (document,) = Embedder.load(folder, max_tokens=40).encode_documents([("", "x" * 100)])
    assert (document.n_tokens, document.n_cut) == (40, 66)
    assert document.spans.tolist() == [[0, 34]]
    (document,) = Embedder.load(folder, max_tokens=40, passage_size=None).encode_documents(
        [("", "x" * 100)]
    )
    assert document.spans.tolist() == [[0, 26], [26, 34]]


def test_token_vectors_pool_to_the_document_vector(embedder: Embedder) -> None:
    vectors = embedder.token_vectors(TEXTS, prompt="document")
    assert [len(v) for v in vectors] == [len(("text: " + t).encode()) for t in TEXTS]
    for rows in vectors:
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    alone = embedder.token_vectors([TEXTS[2]], prompt="document")[0]
    assert np.abs(alone - vectors[2]).max() <= 1e-5


def test_the_fingerprint_follows_weights_tokenizer_and_prompts(
    folder: Path, embedder: Embedder, tmp_path: Path
) -> None:
    assert Embedder.load(folder).fingerprint == embedder.fingerprint
    for name, change in {
        "model.safetensors": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        "config_sentence_transformers.json": lambda data: data.replace(b"query: ", b"ask: "),
    }.items():
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        (copy / name).write_bytes(change((copy / name).read_bytes()))
        assert Embedder.load(copy).fingerprint != embedder.fingerprint


@refusals(
    {
        ModelError: {
            "no such model folder": lambda folder: Embedder.load(folder / "nothing"),
            "owner/name": lambda folder: Embedder.load("some-model"),
        },
        ConfigError: {
            "precision is 'int4'; choose one of auto, int8, float32": lambda folder: Embedder.load(
                folder, precision="int4"
            ),
            "max_tokens is 0": lambda folder: Embedder.load(folder, max_tokens=0),
        },
    }
)
def test_what_cannot_be_loaded_is_refused(folder: Path, refused: Refusal) -> None:
    refused(folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pooling_mode": "cls"}, "pooling_mode is 'cls'"),
        ({"pooling_mode": ["cls", "mean"]}, r"pooling_mode is \['cls', 'mean'\]"),
        ({"pooling_mode_cls_token": True}, r"pooling_mode is \['cls_token'\]"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt False"),
        ({"pooling_mode": ["mean"]}, None),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, None),
    ],
)
def test_only_the_mean_over_all_tokens_is_a_vector(
    folder: Path, tmp_path: Path, settings: dict[str, object], said: str | None
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    modules = json.loads((copy / "modules.json").read_text())
    modules[1]["path"] = "1_Other"
    (copy / "modules.json").write_text(json.dumps(modules))
    (copy / "1_Pooling").rename(copy / "1_Other")
    (copy / "1_Other" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, **settings})
    )
    if said is None:
        Embedder.load(copy)
    else:
        with pytest.raises(ModelError, match=rf"1_Other.config.json: .*{said}"):
            Embedder.load(copy)


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (
            [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}],
            "a module of type 'sentence_.*Dense'",
        ),
        ([{"type": "mine.Normalize", "path": ""}], "a module of type 'mine.Normalize'"),
        ([{"type": "sentence_transformers.models.Pooling", "path": "a" * 3000}], "damaged"),
        ([{"type": "sentence_transformers.models.Normalize", "path": "a/b"}], "damaged"),
        ([{"path": ""}], "damaged"),
        ({}, "damaged"),
    ],
)
def test_other_modules_are_not_left_out_in_silence(
    folder: Path, tmp_path: Path, modules: object, said: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=f"modules.json: {said}"):
        Embedder.load(copy)


@pytest.mark.parametrize(("precision", "cosine"), [("bfloat16", 0.999), ("float16", 0.999)])
def test_lower_precisions_give_nearly_the_same_vectors(
    folder: Path, embedder: Embedder, precision: str, cosine: float
) -> None:
    pairs = [("", text) for text in TEXTS]
    low = list(Embedder.load(folder, precision=precision).encode_documents(pairs))
    for got, exact in zip(low, embedder.encode_documents(pairs), strict=True):
        assert got.vector.dtype == np.float32
        assert np.array_equal(got.spans, exact.spans)
        if exact.n_tokens:
            assert cosine < float(got.vector @ exact.vector) < 1.0001


@pytest.mark.parametrize(
    ("path", "good"), [("a b/1_Pool", True), ("", True), ("../1_Pool", False), ("/x", False)]
)
def test_modules_are_in_the_folder_of_their_model(path: str, good: bool, tmp_path: Path) -> None:
    module = {"idx": 0, "type": "sentence_transformers.models.Pooling", "path": path}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    if good:
        assert [each.path for each in read_modules(tmp_path, {"Pooling"}, "")] == [path]
    else:
        with pytest.raises(ModelError, match="damaged or missing"):
            read_modules(tmp_path, {"Pooling"}, "")
