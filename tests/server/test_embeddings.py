"""OpenAI's and TEI's endpoints: their shapes, the model's vectors, clear refusals."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from aveyb_retrieval.encoder.folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.onnx.model import OnnxModel
from aveyb_retrieval.server.http import Limits
from aveyb_retrieval.server.indexes import Indexes

TEXTS = ["word1 word2", "word3"]


def document_vectors(model):
    return np.stack([encoded.vector for encoded in model.encode_documents(("", text) for text in TEXTS)])


def test_openai_embeddings(client, model):
    answer = client.post("/v1/embeddings", json={"model": "fake-a", "input": TEXTS, "user": "me"}).json()
    assert (answer["object"], answer["model"]) == ("list", "fake-a")
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [(item["object"], item["index"]) for item in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    np.testing.assert_array_equal([item["embedding"] for item in answer["data"]], document_vectors(model))


def test_openai_base64_and_the_name_for_queries(client, model):
    fields = {"model": "fake-a:query", "input": TEXTS[1], "encoding_format": "base64", "dimensions": 16}
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
        ({"input": "a", "model": "text-embedding-3-small"}, 404, "there are 'fake-a', 'fake-a:query'"),
        ({"input": "a", "dimensions": 8}, 422, "dimensions=8: this model's vectors have 16 and cannot be shortened"),
        ({"input": "a", "encoding_format": "int8"}, 422, "encoding_format='int8': must be 'float' or 'base64'"),
        ({"input": [1, 2, 3]}, 422, "ids of tokens cannot be used"),
        ({"input": [[1, 2], [3]]}, 422, "ids of tokens cannot be used"),
        ({"input": ""}, 422, "input: empty"),
        ({"model": "fake-a"}, 422, "input: missing"),
        ({"input": "a", "colour": 1}, 422, "'colour' is not a field"),
        ({"input": ["a"] * 4}, 413, "at most 3"),
    ],
    ids=str,
)
def test_openai_refusals_have_its_shape(open_client, fields, status, message):
    client = open_client(limits=Limits(max_batch=3))
    answer = client.post("/v1/embeddings", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, set(error)) == (status, {"message", "type", "param", "code"})
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_tei_embed(client, model):
    got = client.post("/embed", json={"inputs": TEXTS, "normalize": True, "truncate": True}).json()
    np.testing.assert_array_equal(got, document_vectors(model))
    got = client.post("/embed", json={"inputs": TEXTS[0], "prompt_name": "query"}).json()
    np.testing.assert_array_equal(got, model.encode_queries(TEXTS[:1]))


def test_tei_rerank(client):
    texts = ["word9 word8", "word1 word2", "word1 word7"]
    ranked = client.post("/rerank", json={"query": "word1 word2", "texts": texts, "return_text": True}).json()
    assert [item["index"] for item in ranked] == [1, 2, 0]
    assert ranked[0]["score"] == pytest.approx(1.0, abs=1e-5)
    assert ranked[0]["text"] == texts[1]
    plain = client.post("/rerank", json={"query": "word1 word2", "texts": texts, "raw_scores": True}).json()
    assert plain == [{"index": item["index"], "score": item["score"]} for item in ranked]


def test_tei_info_and_health(client, model):
    info = client.get("/info").json()
    assert (info["model_id"], info["model_sha"], info["max_client_batch_size"]) == ("fake-a", model.fingerprint, 1024)
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("/embed", {"inputs": "a", "normalize": False}, 422, "normalize=False"),
        (
            "/embed",
            {"inputs": "a", "prompt_name": "passage"},
            422,
            "must be 'document' or 'query'",
        ),
        ("/embed", {"inputs": "a", "dimensions": 4}, 422, "dimensions=4"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 422, "truncation_direction='up'"),
        ("/embed", {"inputs": ["a"] * 4}, 413, "inputs: 4 texts; at most 3"),
        ("/rerank", {"query": "a", "texts": []}, 422, "texts: an empty list"),
        ("/rerank", {"query": "a", "texts": "b"}, 422, "texts: a string; a list of texts is needed"),
        ("/rerank", {"texts": ["a"]}, 422, "query: missing"),
        ("/rerank", {"query": "a", "texts": ["b"], "top_n": 1}, 422, "'top_n' is not a field"),
    ],
    ids=str,
)
def test_tei_refusals_have_its_shape(open_client, path, fields, status, message):
    client = open_client(limits=Limits(max_batch=3))
    answer = client.post(path, json=fields)
    assert (answer.status_code, set(answer.json())) == (status, {"error", "error_type"})
    assert message in answer.json()["error"]


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


def test_hugging_faces_root_embeds_and_compares(client, model):
    got = client.post("/", json={"inputs": "word1 word2"}).json()
    np.testing.assert_array_equal(got, document_vectors(model)[:1])
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS}
    first, second = document_vectors(model)
    for path in ("/", "/similarity"):
        cosines = client.post(path, json={"inputs": inputs}).json()
        assert cosines == pytest.approx([1.0, float(first @ second)], abs=1e-6)
    as_query = client.post("/similarity", json={"inputs": inputs, "parameters": {"prompt_name": "query"}})
    assert as_query.status_code == 200
    for wrong in ({}, {"source_sentence": "a"}, {"source_sentence": ["a"], "sentences": ["b"]}, "a"):
        assert client.post("/similarity", json={"inputs": wrong}).status_code == 422


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_cohere_and_jina_rerank(client, path):
    documents = ["word9 word8", {"text": "word1 word2"}, "word1 word7"]
    fields = {"model": "any", "query": "word1 word2", "documents": documents, "top_n": 2, "return_documents": True}
    answer = client.post(path, json=fields).json()
    assert [result["index"] for result in answer["results"]] == [1, 2]
    assert answer["results"][0]["relevance_score"] == pytest.approx(1.0, abs=1e-5)
    assert answer["results"][0]["document"] == {"text": "word1 word2"}
    assert "document" not in client.post(path, json={"query": "a", "documents": ["b"]}).json()["results"][0]
    nothing = dict.fromkeys(("top_n", "max_tokens_per_doc", "max_chunks_per_doc", "priority"))  # as LangChain sends it
    assert len(client.post(path, json={**fields, **nothing}).json()["results"]) == 3
    for wrong in ({"documents": [{"title": "a"}]}, {"documents": "a"}, {"top_n": 0}, {"documents": [1]}):
        refused = client.post(path, json={**fields, **wrong})
        assert refused.status_code == 422


def test_tei_tokenize(client):
    (tokens,) = client.post("/tokenize", json={"inputs": "word1  word2"}).json()
    assert [token["text"] for token in tokens] == ["", "word1", "word2"]
    assert tokens[0] == {"id": 0, "text": "", "special": True, "start": 0, "stop": 0}
    two = client.post("/tokenize", json={"inputs": ["word1", "word2"], "add_special_tokens": False}).json()
    assert [[token["text"] for token in each] for each in two] == [["word1"], ["word2"]]


def test_tokens_of_the_embedded_model_cover_the_text():
    from aveyb_retrieval import Embedder

    embedder = Embedder.load()
    text = "The gate: Größe, 通知"
    ids, offsets, special = embedder.tokens(text)
    assert len(ids) == embedder.count_tokens([text], prompt="document")[0]
    assert (offsets[0, 0], offsets[-1, 1], special.any()) == (0, len(text), False)
