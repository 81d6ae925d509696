"""What an index or a model folder of somebody else may cause: nothing is fetched, and nothing odd
is loaded.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import huggingface_hub
import numpy as np
import pytest

from aveyb_retrieval import Embedder, Retriever, build_index
from aveyb_retrieval.encoder.embedders.loading import load_encoder
from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, ModelError
from aveyb_retrieval.indexes.nearest import faiss_file
from aveyb_retrieval.server.indexes import Indexes
from tests import one_change
from tests.contents import problems_of
from tests.encoder.test_sentence_embedder import save_bert
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder, load_instead
from tests.recorder import record_calls
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ATTACKER = "attacker/beacon"


def search(root: Path) -> None:
    with Retriever.load(root) as retriever:
        retriever.search("word1")


def add(root: Path) -> None:
    one_change.add([{"_id": "new", "text": "word1"}], root)


def serve(root: Path) -> None:
    Indexes.open({"words": root}).close()


def built_by(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> Path:
    """An index whose manifest says that its model is loaded by `source`."""
    with monkeypatch.context() as patch:
        load_instead(patch, lambda *_, **__: FakeEmbedder())
        build_index(make_documents(5), folder, model=source)
    return folder


@pytest.mark.parametrize("use", [search, add, serve])
def test_nothing_is_fetched_because_an_index_names_it(
    use: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches = record_calls(monkeypatch, huggingface_hub, "snapshot_download")
    root = built_by(monkeypatch, tmp_path / "ix", ATTACKER)
    with pytest.raises(ModelError, match=rf"{ATTACKER}: not on this machine.*--model {ATTACKER}"):
        use(root)
    assert [call["local_files_only"] for call in fetches] == [True]
    # the user names it: the hub is asked
    with pytest.raises(ModelError, match="not available from the hub"):
        Retriever.load(root, model=ATTACKER)
    assert [call["local_files_only"] for call in fetches] == [True, False]


@pytest.mark.parametrize("use", [search, add, serve])
@pytest.mark.parametrize("kind", ["ours", "sentence-transformers"])
def test_another_model_at_the_path_of_an_index_is_not_loaded(
    use: Callable[[Path], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DEFAULT_MODEL if kind == "ours" else save_bert(tmp_path)
    root = built_by(monkeypatch, tmp_path / "ix", str(model))
    monkeypatch.setattr(Embedder, "__init__", None)
    monkeypatch.setattr(
        "aveyb_retrieval.encoder.embedders.sentence_embedder.load_sentence_transformer", None
    )
    with pytest.raises(IndexFormatError, match="but the index was made by the model with"):
        use(root)


@pytest.mark.parametrize("kind", ["ours", "sentence-transformers"])
def test_the_model_at_the_path_of_an_index_is_loaded(kind: str, tmp_path: Path) -> None:
    model = DEFAULT_MODEL if kind == "ours" else save_bert(tmp_path)
    build_index(make_documents(5), tmp_path / "ix", model=str(model))
    search(tmp_path / "ix")
    add(tmp_path / "ix")


@pytest.mark.parametrize(
    "kind",
    [
        "sentence_transformers.base.model.torch",
        "sentence_transformers.util.misc.import_from_string",
        "sentence_transformers.models.Router",
        "os.system",
        "modeling_evil.Transformer",
    ],
)
def test_a_model_folder_is_made_of_stock_modules(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_bert(tmp_path)
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    load_encoder(folder)
    modules[1]["type"] = kind
    path.write_text(json.dumps(modules))
    monkeypatch.setattr("sentence_transformers.SentenceTransformer", None)  # it is not reached
    with pytest.raises(ModelError, match=rf"modules\.json: a module of type '{kind}'"):
        load_encoder(folder)


@pytest.mark.parametrize("damaged", ["{}", "[1]", '[{"type": 1}]', "["])
def test_a_damaged_list_of_modules_is_refused(damaged: str, tmp_path: Path) -> None:
    folder = save_bert(tmp_path)
    (folder / "modules.json").write_text(damaged)
    with pytest.raises(ModelError):
        load_encoder(folder)


@pytest.mark.parametrize("factory", ["RaBitQfs", "NSG8", "RQ2x4"])
def test_any_type_of_faiss_is_written_and_read(factory: str, tmp_path: Path) -> None:
    made = faiss_file.create(factory, 16)
    rows = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    faiss_file.train(made, rows, factory)
    faiss_file.fill(made, np.arange(300), rows)
    faiss_file.write(made, tmp_path / "x.faiss")
    assert faiss_file.read(tmp_path / "x.faiss", mapped=True).ntotal == 300


def test_verify_reads_every_type(tmp_path: Path) -> None:
    build_index(make_documents(60), tmp_path / "ix", model=FakeEmbedder(), index="IVF4,PQ4x4fs")
    assert problems_of(tmp_path / "ix") == []


@refusals(
    {
        ConfigError: {
            "at least 2 links": [
                partial(build_index, index=factory)
                for factory in ("HNSW0", "HNSW1", "IVF4_HNSW0,Flat", "PCA8,HNSW0")
            ],
        },
        AveyBError: {"cannot take 10 vectors": partial(build_index, index="NSG16")},
    }
)
def test_a_type_that_faiss_cannot_fill_is_refused(tmp_path: Path, refused: Refusal) -> None:
    refused(make_documents(10), tmp_path / "ix", model=FakeEmbedder())


def test_an_id_that_is_no_unicode_is_an_error_of_ours(tmp_path: Path) -> None:
    build_index(make_documents(5), tmp_path / "ix", model=FakeEmbedder())
    with (
        Retriever.load(tmp_path / "ix", model=FakeEmbedder()) as retriever,
        pytest.raises(AveyBError),
    ):
        retriever.get(["\ud800"])
