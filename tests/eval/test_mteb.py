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


def _main_score(model, titles=True):
    results = mteb.evaluate(model, _task(titles), cache=None, show_progress_bar=False)
    return results.task_results[0].get_score()


def test_both_ways_through_mteb_agree():
    """What MTEB finds through our search protocol is what its vectors find, and scored as by our metrics."""
    from aveyb_retrieval.eval.encoders import EmbedderModel, IndexModel
    from aveyb_retrieval.eval.metrics import evaluate

    embedder = ToyEmbedder()
    pairs = [(f"{title}\n" if title else "", text) for _, title, text in DOCUMENTS]
    vectors = np.stack([item.vector for item in embedder.encode_documents(pairs)])
    scores = embedder.encode_queries(list(QUERIES.values())) @ vectors.T
    ids = [doc for doc, *_ in DOCUMENTS]
    run = {q: dict(zip(ids, row.tolist(), strict=True)) for q, row in zip(QUERIES, scores, strict=True)}
    assert _main_score(EmbedderModel(embedder)) == pytest.approx(evaluate(JUDGEMENTS, run).mean["ndcg@10"], abs=1e-5)

    index = IndexModel(embedder, index="Flat")
    searched = _main_score(index)
    found = index.search([{"id": q, "text": t} for q, t in QUERIES.items()], top_k=10)
    assert searched == pytest.approx(evaluate(JUDGEMENTS, found).mean["ndcg@10"], abs=1e-5)


def test_our_index_end_to_end():
    """A real index, built by `build_index` and searched by `Retriever`, inside MTEB."""
    pytest.importorskip("faiss")
    from aveyb_retrieval.eval.encoders import EmbedderModel, IndexModel

    embedder = ToyEmbedder()
    assert 0.5 < _main_score(IndexModel(embedder, index="Flat")) <= 1.0
    assert 0.5 < _main_score(EmbedderModel(embedder)) <= 1.0


def test_a_saved_model_passes_as_sentence_transformer_and_as_embedder(model_folder):
    """MTEB wraps the folder by itself; without titles (which it joins in its own way) the scores are the same."""
    from sentence_transformers import SentenceTransformer

    from aveyb_retrieval.encoder.embedders.embedder import Embedder
    from aveyb_retrieval.eval.encoders import EmbedderModel

    ours = _main_score(EmbedderModel(Embedder.load(model_folder)), titles=False)
    assert _main_score(SentenceTransformer(str(model_folder)), titles=False) == pytest.approx(ours, abs=1e-6)


def test_meta_names_the_weights():
    from aveyb_retrieval.eval.encoders import EmbedderModel, IndexModel

    meta = EmbedderModel(ToyEmbedder()).mteb_model_meta
    assert meta.name == "aveyb-retrieval/toy"
    assert meta.revision == "0" * 12
    assert IndexModel(ToyEmbedder(), index="Flat").mteb_model_meta.name == "aveyb-retrieval/toy-index-Flat"


def test_prompts_follow_the_prompt_type():
    from aveyb_retrieval.eval.encoders import EmbedderModel

    embedder = ToyEmbedder()
    embedder.prompts = {"query": "Q: ", "document": "D: "}
    model = EmbedderModel(embedder)
    model.encode([{"text": ["one"]}], prompt_type=mteb.types.PromptType.query)
    model.encode([{"text": ["T two"], "title": ["T"], "body": ["two"]}], prompt_type=mteb.types.PromptType.document)
    assert embedder.seen == ["Q: one", "D: T\ntwo"]


def test_misuse_is_refused():
    from aveyb_retrieval.eval.encoders import IndexModel

    model = IndexModel(ToyEmbedder())
    with pytest.raises(ConfigError, match=r"before IndexModel.index"):
        model.search([{"id": "q", "text": "x"}], top_k=3)
    with pytest.raises(ConfigError, match=r"reranking"):
        model.search([{"id": "q", "text": "x"}], top_k=3, top_ranked={"q": ["d1"]})
