"""MTEB runs a mock task through both adapters; skipped where mteb is not installed."""

from __future__ import annotations

import numpy as np
import pytest

from aveyb_retrieval.errors import ConfigError
from tests.eval.toys import DOCUMENTS, JUDGEMENTS, QUERIES, ToyEmbedder

mteb = pytest.importorskip("mteb", reason="mteb is not installed (extra `mteb`)")


def _task(titles=True):
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class ToyRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="ToyRetrieval", dataset={"path": "none/none", "revision": "1"}, description="A toy.", reference=None,
            type="Retrieval", category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="ndcg_at_10", date=("2024-01-01", "2024-01-02"), domains=[], task_subtypes=[], license="mit",
            annotations_creators="derived", dialect=[], sample_creation="found", bibtex_citation="",
        )  # fmt: skip

        def load_data(self, *args, **kwargs):
            corpus = Dataset.from_list([{"id": d, "title": t if titles else "", "text": x} for d, t, x in DOCUMENTS])
            queries = Dataset.from_list([{"id": q, "text": t} for q, t in QUERIES.items()])
            split = {"corpus": corpus, "queries": queries, "relevant_docs": JUDGEMENTS, "top_ranked": None}
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return ToyRetrieval()


class ToySearcher:
    def __init__(self, embedder, rows):
        rows = list(rows)
        self.embedder = embedder
        self.ids = [row["_id"] for row in rows]
        pairs = [(f"{row['title']}\n" if row["title"] else "", row["text"]) for row in rows]
        self.vectors = np.stack([item.vector for item in embedder.encode_documents(pairs)])

    def rank(self, queries, k):
        scores = self.embedder.encode_queries(queries) @ self.vectors.T
        return [[(self.ids[i], float(row[i])) for i in np.argsort(-row)[:k]] for row in scores]


def _main_score(model, titles=True):
    results = mteb.evaluate(model, _task(titles), cache=None, show_progress_bar=False)
    return results.task_results[0].get_score()


def test_both_ways_through_mteb_agree():
    """Vectors searched by MTEB and our search protocol give the same score, and it is the one our metrics give."""
    from aveyb_retrieval.eval.metrics import evaluate
    from aveyb_retrieval.eval.mteb import EmbedderModel, IndexModel

    embedder = ToyEmbedder()
    encoder_score = _main_score(EmbedderModel(embedder))
    assert _main_score(IndexModel(embedder, build=lambda rows, folder: ToySearcher(embedder, rows))) == pytest.approx(
        encoder_score, abs=1e-5
    )

    rows = [{"_id": d, "title": t, "text": x} for d, t, x in DOCUMENTS]
    answers = ToySearcher(embedder, rows).rank(list(QUERIES.values()), 10)
    run = {query: dict(answer) for query, answer in zip(QUERIES, answers, strict=True)}
    assert encoder_score == pytest.approx(evaluate(JUDGEMENTS, run).mean["ndcg@10"], abs=1e-5)


def test_our_index_end_to_end():
    """A real index, built by `build_index` and searched by `Retriever`, inside MTEB."""
    pytest.importorskip("faiss")
    from aveyb_retrieval.eval.mteb import EmbedderModel, IndexModel

    embedder = ToyEmbedder()
    assert 0.5 < _main_score(IndexModel(embedder, index="Flat")) <= 1.0
    assert 0.5 < _main_score(EmbedderModel(embedder)) <= 1.0


def test_a_saved_model_passes_as_sentence_transformer_and_as_embedder(model_folder):
    """MTEB wraps the folder by itself; without titles (which it joins in its own way) the scores are the same."""
    from sentence_transformers import SentenceTransformer

    from aveyb_retrieval.encoder.embedder import Embedder
    from aveyb_retrieval.eval.mteb import EmbedderModel

    ours = _main_score(EmbedderModel(Embedder.load(model_folder)), titles=False)
    assert _main_score(SentenceTransformer(str(model_folder)), titles=False) == pytest.approx(ours, abs=1e-6)


def test_meta_names_the_weights():
    from aveyb_retrieval.eval.mteb import EmbedderModel, IndexModel

    meta = EmbedderModel(ToyEmbedder()).mteb_model_meta
    assert meta.name == "aveyb-retrieval/toy"
    assert meta.revision == "0" * 12
    assert IndexModel(ToyEmbedder(), index="Flat").mteb_model_meta.name == "aveyb-retrieval/toy-index-Flat"


def test_prompts_follow_the_prompt_type():
    from aveyb_retrieval.eval.mteb import EmbedderModel

    embedder = ToyEmbedder()
    embedder.prompts = {"query": "Q: ", "document": "D: "}
    model = EmbedderModel(embedder)
    model.encode([{"text": ["one"]}], prompt_type=mteb.types.PromptType.query)
    model.encode([{"text": ["T two"], "title": ["T"], "body": ["two"]}], prompt_type=mteb.types.PromptType.document)
    assert embedder.seen == ["Q: one", "D: T\ntwo"]


def test_misuse_is_refused():
    from aveyb_retrieval.eval.mteb import IndexModel

    model = IndexModel(ToyEmbedder(), build=lambda rows, folder: ToySearcher(ToyEmbedder(), rows))
    with pytest.raises(ConfigError, match=r"before IndexModel.index"):
        model.search([{"id": "q", "text": "x"}], top_k=3)
    with pytest.raises(ConfigError, match=r"reranking"):
        model.search([{"id": "q", "text": "x"}], top_k=3, top_ranked={"q": ["d1"]})
