"""OpenAI's and Cohere's endpoints: their shapes, the model's vectors, clear refusals."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.onnx.model import OnnxModel
from aveyb_retrieval.server.indexes import Indexes
from aveyb_retrieval.server.limits import ServerLimits

TEXTS = ["word1 word2", "word3"]


def document_vectors(model):
    return np.stack(
        [encoded.vector for encoded in model.encode_documents(("", text) for text in TEXTS)]
    )


def test_openai_embeddings(client, model):
    answer = client.post(
        "/v1/embeddings", json={"model": "fake-a", "input": TEXTS, "user": "me"}
    ).json()
    assert (answer["object"], answer["model"]) == ("list", "fake-a")
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [(item["object"], item["index"]) for item in answer["data"]] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    np.testing.assert_array_equal(
        [item["embedding"] for item in answer["data"]], document_vectors(model)
    )


def test_openai_base64_and_the_name_for_queries(client, model):
    fields = {
        "model": "fake-a:query",
        "input": TEXTS[1],
        "encoding_format": "base64",
        "dimensions": 16,
    }
    (item,) = client.post("/v1/embeddings", json=fields).json()["data"]
    vector = np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4")
    np.testing.assert_array_equal(vector, model.encode_queries(TEXTS[1:])[0])


def test_openai_models(client):
    names = [item["id"] for item in client.get("/v1/models").json()["data"]]
    assert names == ["fake-a", "fake-a:query"]
    assert client.get("/v1/models/fake-a:query").json()["object"] == "model"
    missing = client.get("/v1/models/gpt")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        (
            {"input": "a", "model": "text-embedding-3-small"},
            404,
            "there are 'fake-a', 'fake-a:query'",
        ),
        (
            {"input": "a", "dimensions": 8},
            422,
            "dimensions=8: this model's vectors have 16 and cannot be shortened",
        ),
        (
            {"input": "a", "encoding_format": "int8"},
            422,
            "encoding_format='int8': must be one of 'float', 'base64', null",
        ),
        ({"input": [1, 2, 3]}, 422, "ids of tokens cannot be used"),
        ({"input": [[1, 2], [3]]}, 422, "ids of tokens cannot be used"),
        ({"input": ""}, 422, "input: empty"),
        ({"model": "fake-a"}, 422, "input: missing"),
        ({"input": "a", "models": 1}, 422, "no field 'models'; did you mean 'model'? Known are"),
        ({"input": ["a"] * 4}, 413, "at most 3"),
    ],
    ids=str,
)
def test_openai_refusals_have_its_shape(open_client, fields, status, message):
    client = open_client(limits=ServerLimits(max_batch=3))
    answer = client.post("/v1/embeddings", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_health(client):
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, 422, "documents: an empty list"),
        (
            "/v1/rerank",
            {"query": "a", "documents": "b"},
            422,
            "documents: a string; a list of texts is needed",
        ),
        ("/v1/rerank", {"documents": ["a"]}, 422, "query: missing"),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b"], "return_text": True},
            422,
            "this request has no field 'return_text'; did you mean 'return_documents'?",
        ),
        (
            "/v2/rerank",
            {"query": "a", "documents": ["b"] * 4},
            413,
            "documents: 4 texts; at most 3",
        ),
    ],
    ids=str,
)
def test_refusals_of_reranking(open_client, path, fields, status, message):
    client = open_client(limits=ServerLimits(max_batch=3))
    answer = client.post(path, json=fields)
    assert answer.status_code == status
    assert message in json.dumps(answer.json()["error"])


def test_indexes_of_foreign_vectors_are_searched_by_words_and_serve_no_model(tmp_path):
    from starlette.testclient import TestClient

    from aveyb_retrieval import build_index
    from aveyb_retrieval.server.app import create_app

    vectors = np.eye(2, 8, dtype=np.float32)
    documents = [{"_id": "a", "text": "notice period"}, {"_id": "b", "text": "valve"}]
    build_index(documents, tmp_path / "foreign", vectors=vectors, granularity="document")
    with TestClient(create_app(Indexes.open({"foreign": tmp_path / "foreign"}))) as client:
        found = client.post("/search", json={"query": "notice", "mode": "lexical"}).json()["hits"]
        assert [hit["id"] for hit in found] == ["a"]
        assert client.post("/search", json={"query": "notice"}).status_code == 422
        assert client.get("/v1/models").json()["data"] == []
        refused = client.post("/v1/embeddings", json={"input": "a"})
        assert (refused.status_code, "--model" in json.dumps(refused.json())) == (404, True)


def test_the_model_is_warm_before_the_first_request(monkeypatch):
    warmed = []
    monkeypatch.setattr(OnnxModel, "warm_up", lambda self: warmed.append(self))
    opened = Indexes.open({}, model=DEFAULT_MODEL)
    opened.close()
    assert opened.model is not None
    assert warmed == [opened.model.model.model]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_cohere_and_jina_rerank(client, path):
    documents = ["word9 word8", {"text": "word1 word2"}, "word1 word7"]
    fields = {
        "model": "any",
        "query": "word1 word2",
        "documents": documents,
        "top_n": 2,
        "return_documents": True,
    }
    answer = client.post(path, json=fields).json()
    assert [result["index"] for result in answer["results"]] == [1, 2]
    assert answer["results"][0]["relevance_score"] == pytest.approx(1.0, abs=1e-5)
    assert answer["results"][0]["document"] == {"text": "word1 word2"}
    assert (
        "document"
        not in client.post(path, json={"query": "a", "documents": ["b"]}).json()["results"][0]
    )
    # as LangChain sends it
    nothing = dict.fromkeys(("top_n", "max_tokens_per_doc", "max_chunks_per_doc", "priority"))
    assert len(client.post(path, json={**fields, **nothing}).json()["results"]) == 3
    for wrong in (
        {"documents": [{"title": "a"}]},
        {"documents": "a"},
        {"top_n": 0},
        {"documents": [1]},
    ):
        refused = client.post(path, json={**fields, **wrong})
        assert refused.status_code == 422


def test_tokens_of_the_embedded_model_cover_the_text():
    from aveyb_retrieval import Embedder

    embedder = Embedder.load()
    text = "The gate: Größe, 通知"
    rows, ((numbers, places), _) = embedder.word_vectors([text, "the gate"])
    assert len(numbers) == embedder.count_tokens([text], prompt="document")[0]
    assert (places.tolist()[:3], len(rows)) == ([0, 4, 8], len({*numbers.tolist()}))
