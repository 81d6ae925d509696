"""What a model folder holds beside its encoder is kept or refused: in training, in `Embedder`, in
other tools.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.loading import load_encoder
from aveyb_retrieval.encoder.text.tokenizer import SETTINGS_FILE, VOCAB_FILE
from aveyb_retrieval.encoder.text.wordpiece import tokenizer_files
from aveyb_retrieval.errors import InputError, ModelError
from aveyb_retrieval.training.sentence_trainer import sentence_model
from tests.refusals import Refusal, refusals

from .conftest import SENTENCES, make_student

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

LONG = " ".join(SENTENCES[:9])


@pytest.fixture(scope="module")
def saved(tokenizer: AveyBTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "m"
    make_student(folder, tokenizer, prompts={"query": "q: ", "document": "d: "})
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A model that a test may change."""
    return shutil.copytree(saved, tmp_path / "m")


def opened(folder: Path):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_folder_that_sentence_transformers_saved_again_opens(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    make_student(tmp_path / "m", tokenizer, prompts={"query": "q: "})
    opened(tmp_path / "m").save(str(tmp_path / "again"), create_model_card=False)
    first, again = (load_encoder(tmp_path / name) for name in ("m", "again"))
    assert (
        tokenizer_files(tmp_path / "again") == ("tokenizer.json",)
        and again.fingerprint != first.fingerprint
    )
    assert (
        load_encoder(tmp_path / "again", recorded=again.fingerprint).fingerprint
        == again.fingerprint
    )
    texts = [*SENTENCES[:3], "McDonald's  NASA\n\u00e9\U0001f600"]
    assert np.array_equal(first.encode_queries(texts), again.encode_queries(texts))
    (tmp_path / "again" / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"vocab.tiktoken is missing.*360 embeddings"):
        load_encoder(tmp_path / "again")


def test_a_tokenizer_that_changes_texts_is_refused(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    """Its ids would not be those of the text."""
    make_student(tmp_path / "m", tokenizer, prompts={})
    for name in (VOCAB_FILE, SETTINGS_FILE):
        (tmp_path / "m" / name).unlink()
    edit(tmp_path / "m" / "tokenizer.json", normalizer={"type": "Lowercase"})
    with pytest.raises(ModelError, match=r"tokenizer\.json: its normalizer changes texts"):
        load_encoder(tmp_path / "m")


@pytest.mark.parametrize(
    ("file", "fields", "named"),
    [
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim is 8"),
        ("1_Pooling/config.json", {"pooling_mode": "cls"}, "pooling_mode is 'cls'"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt False"),
    ],
)
@pytest.mark.parametrize(
    "load",
    [
        Embedder.load,
        load_encoder,
        lambda folder: sentence_model(folder, folder.with_name("start"), {}),
    ],
    ids=["Embedder", "load_encoder", "training"],
)
def test_what_changes_vectors_is_refused_everywhere(
    folder: Path, file: str, fields: dict[str, Any], named: str, load: Callable[[Path], object]
) -> None:
    edit(folder / file, **fields)
    with pytest.raises(ModelError, match=named):
        load(folder)


def test_a_layer_behind_the_pooling_is_refused_in_training(folder: Path, tmp_path: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(ModelError, match=r"Dense"):
        sentence_model(folder, tmp_path / "start", {})


def test_a_saved_limit_of_tokens_is_kept(folder: Path, tmp_path: Path) -> None:
    model, whole = opened(folder), Embedder.load(folder)
    model.max_seq_length = 10
    limited = tmp_path / "limited"
    shutil.copytree(folder, limited)
    edit(limited / "tokenizer_config.json", model_max_length=10)
    embedder = load_encoder(limited)
    [encoded] = embedder.encode_documents([("", LONG)])
    assert (
        embedder.max_tokens == 10
        and encoded.n_cut > 0
        and embedder.fingerprint != whole.fingerprint
    )
    assert np.allclose(encoded.vector, model.encode_document([LONG])[0], atol=1e-5)
    assert Embedder.load(limited, max_tokens=1000).max_tokens == 1000
    assert load_encoder(limited, recorded=embedder.fingerprint).max_tokens == 10
    student, tokenizer = sentence_model(limited, tmp_path / "start", {})
    assert student.max_seq_length == 10
    from aveyb_retrieval.encoder.embedders.sentence_transformers import save_again

    save_again(student, tokenizer, tmp_path / "saved")
    assert (
        Embedder.load(tmp_path / "saved").max_tokens
        == opened(tmp_path / "saved").max_seq_length
        == 10
    )


def test_one_text_is_one_text(folder: Path) -> None:
    embedder = Embedder.load(folder)
    assert np.array_equal(
        embedder.encode_queries("which river?"), embedder.encode_queries(["which river?"])
    )
    assert len(embedder.token_vectors("which river?", prompt="query")) == 1
    assert len(embedder.count_tokens("which river?", prompt="query")) == 1


@refusals(
    {
        InputError: {
            r"queries.* must be a": [
                partial(Embedder.encode_queries, queries=queries)
                for queries in (None, 3, [None], ["a", 1])
            ],
            r"documents\[0\] must be a pair of texts": [
                lambda embedder, pairs=pairs: list(embedder.encode_documents(pairs))
                for pairs in ("text", ["text"], [("a",)], [("a", None)])
            ],
        },
    }
)
def test_what_is_no_text_is_not_encoded(saved: Path, refused: Refusal) -> None:
    refused(Embedder.load(saved))
