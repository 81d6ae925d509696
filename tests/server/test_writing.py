"""Changes over HTTP: only with a key that may write, made whole or not at all, and found by the
next search.
"""

from __future__ import annotations

import json
import shutil

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, writer_lock
from aveyb_retrieval.server.app import create_app
from aveyb_retrieval.server.indexes import Indexes
from aveyb_retrieval.server.keys import Keys
from aveyb_retrieval.server.limits import ServerLimits
from tests.server.conftest import running

WRITER = {"Authorization": "Bearer writer"}
READER = {"Authorization": "Bearer reader"}
LINES = {"Content-Type": "application/x-ndjson"}
CHANGES = [("PUT", "/documents"), ("PATCH", "/documents/doc-3"), ("DELETE", "/documents/doc-3")]
NEW = {"_id": "new", "title": "Aardvarks", "text": "zyzzyva zyzzyva", "year": 2031}


@pytest.fixture
def index(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "words")


@pytest.fixture
def writer(open_client, index):
    client = open_client({"words": index}, keys=Keys(writing=["writer"]))
    client.headers.update(WRITER)
    return client


def ids_of(client, query, **fields):
    found = client.post("/search", json={"query": query, "mode": "lexical", **fields}).json()
    return [hit["id"] for hit in found["hits"]]


def test_the_next_search_finds_what_was_written(writer, index):
    assert ids_of(writer, "zyzzyva") == []
    answer = writer.put("/documents", json=NEW).json()
    assert (answer["index"], answer["documents"], answer["added"], answer["replaced"]) == (
        "words",
        121,
        1,
        0,
    )
    assert ids_of(writer, "zyzzyva") == ["new"]
    assert writer.get("/documents/new").json()["metadata"] == {"year": 2031}
    changed = writer.put(
        "/documents", json=[{**NEW, "text": "quokka"}, {"_id": "x/y", "text": "numbat"}]
    ).json()
    assert (changed["added"], changed["replaced"]) == (1, 1)
    assert (ids_of(writer, "zyzzyva"), ids_of(writer, "quokka"), ids_of(writer, "numbat")) == (
        [],
        ["new"],
        ["x/y"],
    )
    assert writer.put("/documents", json={"_id": "x/y", "text": "numbat"}).json()["unchanged"] == 1
    assert writer.delete("/documents/x/y").json()["deleted"] == 1
    assert ids_of(writer, "numbat") == []
    with Retriever.load(index) as retriever:  # it is on the disk
        assert (len(retriever), retriever.get(["new"])[0].text) == (121, "quokka")


def test_a_folder_that_is_moved_away_fails_in_a_line_until_it_is_back(writer, index, caplog):
    index.rename(index.with_name("gone"))
    for path in ("/search?query=a&mode=lexical", "/documents/doc-3"):
        answer = writer.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
        assert answer.json()["error"].startswith("the index is not in its place, or damaged")
        assert str(index.parent) not in answer.text
    assert caplog.text.count("\n") <= 3  # and one of the thread that looks for newer versions
    index.with_name("gone").rename(index)
    assert writer.get("/documents/doc-3").status_code == 200


def test_json_lines_are_documents(writer):
    lines = "".join(
        json.dumps({"_id": f"line-{i}", "text": f"wombat {i}"}) + "\n" for i in range(3)
    )
    assert writer.put("/documents", content=lines, headers=LINES).json()["added"] == 3
    assert sorted(ids_of(writer, "wombat")) == ["line-0", "line-1", "line-2"]


def test_metadata_are_set_and_removed_and_filtered_by(writer):
    before = writer.get("/documents/doc-3").json()
    changed = writer.patch(
        "/documents/doc-3", json={"metadata": {"shelf": [1, 2]}, "remove": ["year"]}
    ).json()
    assert (changed["updated"], changed["replaced"]) == (1, 0)
    after = writer.get("/documents/doc-3").json()
    expected = {name: value for name, value in before["metadata"].items() if name != "year"} | {
        "shelf": [1, 2]
    }
    assert (after["text"], after["metadata"]) == (before["text"], expected)
    query = before["text"].split()[0]
    assert ids_of(writer, query, filter={"shelf": {"$contains": 2}}) == ["doc-3"]


REFUSED = [
    ("PUT", "/documents", b"", 422, "the body holds no document"),
    ("PUT", "/documents", b'{"_id": "a"}', 422, "the body, line 1: no text"),
    (
        "PUT",
        "/documents",
        b'{"_id": "a", "text": "b"}\n{"_id": "a"}',
        422,
        "the body, line 2: no text",
    ),
    ("PUT", "/documents", b'{"_id": "a", "text": NaN}', 422, "NaN is not a JSON number"),
    ("PUT", "/documents", b'["text"]', 422, "element 1: not one"),
    ("PUT", "/documents", b"\xff", 422, "invalid UTF-8 at byte 0"),
    ("PUT", "/documents?index=other", b'{"text": "b"}', 404, "no such index; there are 'words'"),
    ("PUT", "/documents?key=1", b'{"text": "b"}', 422, "no field 'key'; known are index"),
    ("PUT", "/documents", b'{"text": "b"}\n' * 4, 413, "more than 3 documents"),
    ("PUT", "/documents", b'{"text": "%s"}' % (b"b" * 5000), 413, "larger than the 4,000 bytes"),
    ("DELETE", "/documents/none", b"", 404, "no document has the id 'none'"),
    ("DELETE", "/documents/doc-3?index=other", b"", 404, "no such index"),
    ("PATCH", "/documents/none", b'{"metadata": {"a": 1}}', 404, "no document has the id 'none'"),
    ("PATCH", "/documents/doc-3", b"{}", 422, "nothing to change"),
    ("PATCH", "/documents/doc-3", b'{"metadata": 3}', 422, "metadata=3: must be an object of"),
    (
        "PATCH",
        "/documents/doc-3",
        b'{"metadata": {"a": 1}, "remove": ["a"]}',
        422,
        "both set and removed",
    ),
    (
        "PATCH",
        "/documents/doc-3",
        b'{"metadata": {"title": "New"}}',
        422,
        "'title' is a field of the document",
    ),
    ("PATCH", "/documents/doc-3", b'{"text": "b"}', 422, "no field 'text'; known are metadata"),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"), REFUSED, ids=[row[-1] for row in REFUSED]
)
def test_a_change_that_is_none_changes_nothing(
    open_client, index, method, path, body, status, message
):
    limits = ServerLimits(max_body=4000, max_batch=3)
    client = open_client({"words": index}, keys=Keys(writing=["writer"]), limits=limits)
    headers = {**WRITER, "Content-Type": "application/json"}
    answer = client.request(method, path, content=body, headers=headers)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text
    assert str(index) not in answer.text
    with Retriever.load(index) as retriever:
        assert (retriever.version, len(retriever)) == (
            client.app.state.context.indexes.retrievers["words"].version,
            120,
        )


@pytest.mark.parametrize(("method", "path"), CHANGES, ids=str)
def test_only_a_key_that_may_write_changes_something(open_client, index, method, path):
    def ask(keys, headers):
        answer = open_client({"words": index}, keys=keys).request(
            method, path, json=NEW, headers=headers
        )
        return answer.status_code, answer.json()["error"]

    keys = Keys(["reader"], ["writer"])
    assert ask(keys, {}) == (401, "no key; send the header Authorization: Bearer KEY")
    assert ask(keys, {"Authorization": "Bearer x"}) == (
        401,
        "wrong key; send the header Authorization: Bearer KEY",
    )
    assert ask(keys, READER) == (403, "this key has no right to write")
    none = (
        "this server takes no changes, as none of its keys may: --write-key-file, or the right to"
        " write in --keys"
    )
    for off in (Keys(), Keys(["reader"])):
        assert ask(off, READER) == (403, none)
    with Retriever.load(index) as retriever:
        assert (len(retriever), retriever.version.split("-")[0]) == (120, "v000001")


def test_a_key_that_may_write_also_reads(open_client, index):
    client = open_client({"words": index}, keys=Keys(["reader"], ["writer"]))
    assert [client.get("/indexes", headers=h).status_code for h in ({}, READER, WRITER)] == [
        401,
        200,
        200,
    ]
    client = open_client({"words": index}, keys=Keys(writing=["writer"]))
    # reading needs a key only where there are keys to read with
    assert client.get("/indexes").status_code == 200


def test_while_another_process_writes_a_change_is_refused_and_searches_go_on(
    writer, index, monkeypatch
):
    monkeypatch.setattr("aveyb_retrieval.server.indexes.WAIT_SECONDS", 0.05)
    with writer_lock(IndexDirectory(index).lock):
        for method, path in CHANGES:
            fields = {"metadata": {"a": 1}} if method == "PATCH" else NEW
            answer = writer.request(method, path, json=fields)
            assert (answer.status_code, answer.json()["error_type"]) == (409, "Conflict")
            assert (
                answer.json()["error"]
                == "index 'words': another process is writing to it; try again later"
            )
        assert "doc-37" in ids_of(writer, "word1")
    assert writer.put("/documents", json=NEW).status_code == 200


def test_a_document_of_an_index_of_vectors_cannot_be_encoded(handbook, tmp_path):
    documents = [{"_id": "a", "text": "one"}, {"_id": "b", "text": "two"}]
    path = tmp_path / "vectors"
    build_index(documents, path, vectors=np.eye(2, 3, dtype=np.float32), granularity="document")
    # the model is that of the other index
    indexes = Indexes.open({"handbook": handbook, "vectors": path})
    client = TestClient(
        create_app(indexes, keys=Keys(writing=["writer"])), raise_server_exceptions=False
    )
    refused = client.put("/documents?index=vectors", json=NEW, headers=WRITER)
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("vectors: made from ready-made vectors")
    assert client.delete("/documents/a?index=vectors", headers=WRITER).json()["documents"] == 1
    indexes.close()


def test_a_running_server_takes_changes_with_a_key_of_its_file(handbook, tmp_path):
    index = shutil.copytree(handbook, tmp_path / "handbook")
    (tmp_path / "keys").write_text("writer\n")
    with running(index, "--write-key-file", tmp_path / "keys") as server:
        document = {
            "_id": "zoo",
            "title": "Zoo",
            "text": "Visitors see the zebras from nine in the morning.",
        }
        put = httpx2.put(f"{server.url}/documents", json=document, headers=WRITER, timeout=60)
        assert (put.status_code, put.json()["added"]) == (200, 1)
        query = {"query": "when can I look at zebras?", "k": 1}
        found = httpx2.post(f"{server.url}/search", json=query, timeout=60).json()
        assert found["hits"][0]["id"] == "zoo"
        assert httpx2.delete(f"{server.url}/documents/zoo", timeout=60).status_code == 401
