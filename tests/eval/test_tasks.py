"""The paper's protocol against an independent few-line computation, on a toy set where it differs
from the standard.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import AsMeasured, PeerModel
from aveyb_retrieval.eval.named_systems import exact_system
from aveyb_retrieval.eval.runner import run_system
from aveyb_retrieval.eval.tasks import PAPER, STANDARD, make_task
from tests.eval.toys import DOCUMENTS, JUDGEMENTS, QUERIES, ToyEmbedder, write_folder
from tests.jsonl import write_jsonl

WORDS = [
    "are",
    "flowers",
    "bees",
    "rise",
    "dough",
    "moon",
    "tides",
    "sand",
    "glass",
    "honey",
    "tell",
    "dance",
]
FILLER = [
    (f"x{i:02}", "", f"{w} and the {w}, where how to tell and what makes a {w}")
    for i, w in enumerate(WORDS)
]


@pytest.fixture
def folder(tmp_path):
    """The toy set with distractors that only the standard protocol keeps."""
    folder = write_folder(tmp_path / "toy")
    rows = [{"_id": d, "title": t, "text": x} for d, t, x in [*DOCUMENTS, *FILLER]]
    write_jsonl(folder / "corpus.jsonl", rows)
    return folder


def _paper_in_a_few_lines(queries, judgements, titled_texts, embedder):
    """Prefixes, judged documents of dev + test only, binary relevance, nDCG over the
    retrieved ten.
    """
    judged = [d for d in titled_texts if any(d in judgements[q] for q in judgements)]
    unit = lambda text: embedder._vector(text)
    matrix = np.stack([unit("Document: " + titled_texts[d]) for d in judged])
    total = 0.0
    for q in queries:
        scores = matrix @ unit("Query: " + QUERIES[q])
        gains = [float(judgements[q].get(judged[i], 0) >= 1) for i in np.argsort(-scores)[:10]]
        dcg = sum(g / math.log2(i + 2) for i, g in enumerate(gains))
        best = sum(g / math.log2(i + 2) for i, g in enumerate(sorted(gains, reverse=True)))
        total += dcg / best if best else 0.0
    return total / len(queries)


def test_paper_protocol(folder, tmp_path):
    dataset = load_dataset(str(folder))
    titled = {d: f"{t}. {x}" if t else x for d, t, x in [*DOCUMENTS, *FILLER]}
    embedder = ToyEmbedder()
    scores = {}
    for protocol in (STANDARD, PAPER):
        task = make_task(dataset, protocol)
        system = exact_system(
            AsMeasured(embedder, protocol), task.corpus, tmp_path, granularity="document"
        )
        scores[protocol.name], _ = run_system(system, task)
    paper, standard = scores["paper"], scores["standard"]
    assert paper.score == pytest.approx(
        _paper_in_a_few_lines(["q1", "q2", "q3"], JUDGEMENTS, titled, embedder), abs=1e-6
    )
    assert paper.main_metric == "retrieved-ndcg@10" != standard.main_metric
    assert paper.score > standard.score + 0.05  # this is the difference that must never be mistaken
    assert (paper.corpus_size, paper.full_corpus_size) == (5, 17)
    assert standard.corpus_size == standard.full_corpus_size == 17
    assert any("not comparable with standard" in notice for notice in paper.notices)
    assert paper.system.prompts == {"query": "Query: ", "document": "Document: "}
    assert embedder.prompts == {"query": "", "document": ""}  # the caller's model is left as it was


def test_one_judged_split_is_halved_by_seed(tmp_path):
    dataset = load_dataset(str(write_folder(tmp_path / "toy", dev=False)))
    first, again = make_task(dataset, PAPER, seed=3), make_task(dataset, PAPER, seed=3)
    assert list(first.judgements) == list(again.judgements)
    dev = make_task(dataset, PAPER, "dev", seed=3)
    assert set(first.judgements) | set(dev.judgements) == {"q1", "q2", "q3"}
    assert not set(first.judgements) & set(dev.judgements)
    assert len(dev.judgements) == 2
    assert any("halved at random with seed 3" in notice for notice in first.notices)
    assert set(first.corpus.ids) == {"d1", "d2", "d3"}  # the corpus is that of both halves


def test_protocols_choose_prompts_and_keep_the_limit():
    class Model:
        max_seq_length = 256

        def __init__(self):
            self.tokenizer = lambda texts, **_: {"input_ids": [text.split() for text in texts]}

        def encode(self, texts, prompt=None, **_):
            assert prompt == ""
            self.texts = texts
            return np.ones((len(texts), 2), dtype=np.float32)

        def encode_query(self, texts, **options):
            return self.encode(["find: " + text for text in texts], prompt="", **options)

    model, prompts = Model(), {"query": "find: ", "document": ""}
    embedder = SimpleNamespace(
        model=model, model_name="m", dim=2, prompts=prompts, fingerprint="f", precision="float32"
    )
    paper = PeerModel(embedder, PAPER)
    assert paper.max_tokens == 256
    paper.encode_queries(["x"])
    assert model.texts == ["Query: x"]
    standard = PeerModel(embedder)
    standard.encode_queries(["x"])
    assert model.texts == ["find: x"]
    assert standard.max_tokens == 256
    assert standard.prompts == prompts
