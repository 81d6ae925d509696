"""An Avey-B model with BERT's kind of vocabulary: the same ids and vectors wherever it
is opened.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from aveyb_retrieval import Embedder, Retriever, build_index
from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.wordpiece import WordPieceTokenizer, read_vocabulary
from aveyb_retrieval.errors import InputError, ModelError
from tests.refusals import Refusal, refusals

from ..wordpiece import save_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    "The heron crosses the river at noon.",
    "A tired clerk repairs the wooden gate; nobody pays.",
    "Señor Müller WATCHES [MASK] and the Öresund bridge",
    "the far hill " * 30,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wordpiece")
    save_vocabulary(root / "bert", TEXTS)
    tokenizer = WordPieceTokenizer.load(root / "bert")
    torch.manual_seed(0)
    config = AveyBConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        split_size=16,
        num_retrieved=1,
        final_norm=False,
        initializer_range=0.3,
    )
    sentence_transformer(AveyBModel(config).eval(), tokenizer, root / "model")
    return root / "model"


def test_embedder_sentence_transformers_and_an_index_give_the_same_vectors(
    folder: Path, tmp_path: Path
) -> None:
    embedder, sentences = Embedder.load(folder), SentenceTransformer(str(folder), device="cpu")
    own = np.stack(
        [document.vector for document in embedder.encode_documents(("", text) for text in TEXTS)]
    )
    theirs = sentences.encode_document(TEXTS)
    np.testing.assert_allclose(own, theirs, atol=1e-5)
    np.testing.assert_allclose(
        embedder.encode_queries(TEXTS), sentences.encode_query(TEXTS), atol=1e-5
    )
    records = [{"id": str(i), "text": text} for i, text in enumerate(TEXTS)]
    build_index(records, tmp_path / "index", model=folder)
    retriever = Retriever.load(tmp_path / "index", model=folder)
    for query in TEXTS[:3]:
        wanted = embedder.encode_queries([query])[0] @ own.T
        hits = {hit.id: hit.score for hit in retriever.search(query, k=len(TEXTS), mode="dense")}
        # single passages
        assert [hits[str(i)] for i in range(3)] == pytest.approx(wanted[:3].tolist(), abs=1e-3)


def test_ids_are_those_of_the_words_alone(folder: Path) -> None:
    tokenizer, theirs = WordPieceTokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids, offsets = tokenizer.encode(text)
        assert ids.tolist() == tokenizer.encode_ids(text).tolist() == theirs(text)["input_ids"]
        assert offsets.shape == (len(ids), 2) and (offsets[1:, 0] >= offsets[:-1, 1]).all()
        assert not set(ids.tolist()) & {
            tokenizer.cls_id,
            tokenizer.sep_id,
            tokenizer.mask_id,
            tokenizer.pad_id,
        }
    ids, offsets = tokenizer.encode(TEXTS[0])
    first = ids[offsets[:, 1] <= len("The heron")]
    assert tokenizer.decode(first) == "the heron"
    assert tokenizer.encode("")[1].shape == (0, 2)
    with pytest.raises(InputError, match="lone surrogate"):
        tokenizer.encode("a \ud800")


def test_saved_again_it_is_the_same_vocabulary(folder: Path, tmp_path: Path) -> None:
    WordPieceTokenizer.load(folder).save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (
        read_vocabulary(tmp_path).encode_ids(TEXTS[1]).tolist()
        == read_vocabulary(folder).encode_ids(TEXTS[1]).tolist()
    )


def test_the_fingerprint_knows_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    path.write_text(path.read_text().replace('"heron"', '"noreh"'))
    assert Embedder.load(tmp_path / "other").fingerprint != Embedder.load(folder).fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda kept: kept["model"].update(type="WordLevel"),
            "no WordPiece vocabulary|describes no tokenizer",
        ),
        (lambda kept: kept.update(model=7), "describes no tokenizer"),
        (lambda kept: kept["model"]["vocab"].pop("[MASK]"), "MASK"),
    ],
)
def test_damaged_vocabularies_are_refused_in_a_line(
    folder: Path, tmp_path: Path, change, message: str
) -> None:  # type: ignore[no-untyped-def]
    kept = json.loads((folder / "tokenizer.json").read_text())
    change(kept)
    kept["added_tokens"] = [token for token in kept["added_tokens"] if token["content"] != "[MASK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(kept))
    with pytest.raises(ModelError, match=message) as found:
        WordPieceTokenizer.load(tmp_path)
    assert "\n" not in str(found.value)


@refusals(
    {
        ModelError: {
            "is missing": lambda folder: read_vocabulary(folder.parent),
            "different models": lambda folder: WordPieceTokenizer.load(folder).check_embeddings(
                7, "a model"
            ),
        },
    }
)
def test_a_vocabulary_that_lacks_or_does_not_fit_is_refused(folder: Path, refused: Refusal) -> None:
    refused(folder)
