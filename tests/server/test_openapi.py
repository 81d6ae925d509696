"""`/openapi.json` is true: it has every route; they take what it declares, refuse the rest, and
answer as it says.
"""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_origin
from urllib.parse import quote

import jsonschema
import pytest
from msgspec import Struct
from msgspec.structs import fields

from aveyb_retrieval.checks import alternatives, unwrap
from aveyb_retrieval.indexes.search.options import SearchOptions
from aveyb_retrieval.server import app, openapi, request_types
from aveyb_retrieval.server.keys import Keys
from aveyb_retrieval.server.limits import ServerLimits

ROOT = Path(__file__).parents[2]
DOCUMENT = openapi.describe(ServerLimits())
OPERATIONS = [
    (path, method) for path, operations in DOCUMENT["paths"].items() for method in operations
]
POSTS = [path for path, method in OPERATIONS if method == "post"]
# in the order to ask them
CHANGES = {"put": "/documents", "patch": "/documents/{id}", "delete": "/documents/{id}"}
PLACES = {"id": "doc-3", "name": "fake-a"}
# A value of each declared field, by which it is asked for.
VALUES = {
    # /search: what is searched for, and where
    "query": "word1",
    "index": "words",
    "indexes": ["words"],
    "filter": {"year": {"$gte": 2000}},
    "ids": ["doc-3", "doc-4"],
    # which hits
    "k": 3,
    "offset": 1,
    "unit": "document",
    "per_document": 1,
    "diversity": 0.3,
    "fold": False,
    "min_score": 0.0,
    "operators": False,
    # in which order
    "mode": "dense",
    "granularity": "passage",
    "fusion": "rrf",
    "weight": 0.4,
    "candidates": 50,
    "exact": True,
    "rerank": "maxsim",
    "boost": {"year": 0.1},
    "sort": "-year",
    # what is shown with them
    "passages": 2,
    "context": 1,
    "text": True,
    "facets": ["year", "tags"],
    "facets_of": "found",
    # /check, /grep
    "answer": 'It says "word1 word2".',
    "pattern": "word1",
    "ignore_case": True,
    "limit": 3,
    # /boxes, /pages
    "page": 1,
    "start": 0,
    "stop": 9,
    # /v1/embeddings
    "input": ["word1", "word2"],
    "model": "fake-a:query",
    "encoding_format": "base64",
    "dimensions": 16,
    "user": "me",
    # /v1/rerank
    "documents": ["word1", {"text": "word2"}],
    "top_n": 1,
    "max_tokens_per_doc": 512,
    "max_chunks_per_doc": 10,
    "priority": 0,
    "return_documents": True,
}
OF_FILES = ("/originals/{id}", "/boxes/{id}", "/pages/{id}")
OF_PASSAGES = ("per_document", "diversity")


def is_valid(schema, value):
    whole = {"components": DOCUMENT["components"], **schema}
    return jsonschema.Draft202012Validator(whole).is_valid(value)


def check_answer(operation, answer):
    declared = operation["responses"][str(answer.status_code)]["content"]
    ((kind, content),) = declared.items()
    assert answer.headers["content-type"].startswith(kind)
    if kind == "application/json":
        whole = {"components": DOCUMENT["components"], **content["schema"]}
        jsonschema.Draft202012Validator(whole).validate(answer.json())


def resolve(schema):
    return DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]


def body_schema(path):
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]
    return resolve(content["application/json"]["schema"])


def least(path):
    return {name: VALUES[name] for name in body_schema(path)["required"]}


def test_every_route_is_declared_and_nothing_else(client):
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in client.app.routes
        for method in route.methods - {"HEAD"}
        if not (route.path in app.PAGE_PATHS and method == "GET")
    }
    assert routes == set(OPERATIONS)
    assert client.get("/openapi.json").json() == json.loads(json.dumps(DOCUMENT))


def test_spans_are_lists_of_two_numbers():
    """Programs that make clients know no tuples."""
    assert "prefixItems" not in json.dumps(DOCUMENT)
    span = {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}}
    assert span.items() <= DOCUMENT["components"]["schemas"]["Match"]["properties"]["span"].items()


def test_what_changes_documents_needs_the_right_to_write():
    for operation in openapi.OPERATIONS:
        changes = operation.method in {"PUT", "PATCH", "DELETE"}
        assert (operation.right == "write") == changes, operation.path


def test_it_has_every_option_of_a_search():
    declared = set(body_schema("/search")["properties"])
    assert declared == {
        *SearchOptions.__annotations__,
        "query",
        "index",
        "indexes",
        "k",
        "offset",
        "cursor",
        "text",
        "facets",
        "facets_of",
    }


def test_every_field_has_a_meaning_which_the_page_shows():
    schemas = DOCUMENT["components"]["schemas"]
    fields = [
        (name, field, schema["properties"][field].get("description"))
        for name, schema in schemas.items()
        for field in schema["properties"]
    ]
    for path, method in OPERATIONS:
        parameters = DOCUMENT["paths"][path][method].get("parameters", ())
        fields += [(path, parameter["name"], parameter["description"]) for parameter in parameters]
    text = runpy.run_path(str(ROOT / "docs" / "make_http.py"))["page"]()
    assert [
        (name, field)
        for name, field, meaning in fields
        if not meaning or "\n" in meaning or meaning not in text
    ] == []


def test_every_type_is_referred_to():
    text = json.dumps(DOCUMENT)
    names = DOCUMENT["components"]["schemas"]
    assert [name for name in names if f'"#/components/schemas/{name}"' not in text] == []


def test_no_type_joins_a_list_with_a_text_that_has_a_pattern():
    """msgspec 0.22 frees memory twice when it lets go of such a type."""
    requests = [each for each in vars(request_types).values() if isinstance(each, type)]
    unions = [
        alternatives(field.type)
        for request in requests
        if issubclass(request, Struct)
        for field in fields(request)
    ]
    patterns = [
        [note.pattern for kind in kinds for note in unwrap(kind)[1] if note.pattern]
        for kinds in unions
        if any(get_origin(unwrap(kind)[0]) is list for kind in kinds)
    ]
    assert len(patterns) > 3
    assert not any(patterns)


def test_limits_of_a_server_are_declared():
    declared = openapi.describe(ServerLimits(max_k=7, max_query=9, max_batch=2))["components"][
        "schemas"
    ]
    text, texts = declared["Search"]["properties"]["query"]["anyOf"]
    assert (text["maxLength"], texts["items"]["maxLength"], texts["maxItems"]) == (9, 9, 2)
    number, null = declared["Search"]["properties"]["k"]["anyOf"]
    assert (number["maximum"], null["type"]) == (7, "null")
    assert declared["Search"]["properties"]["candidates"]["maximum"] == 70


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=str)
def test_routes_answer_as_declared(client, path, method):
    operation = DOCUMENT["paths"][path][method]
    if method in CHANGES:
        refused = client.request(method, path.format(**PLACES))
        assert refused.status_code == 403
        check_answer(operation, refused)
        return
    if method == "post":
        for fields in (least(path), {**least(path), "no such field": 1}, {}):
            answer = client.post(path, json=fields)
            assert is_valid(body_schema(path), fields) is (answer.status_code == 200), fields
            check_answer(operation, answer)
        return
    needed = {
        parameter["name"]: parameter
        for parameter in operation.get("parameters", ())
        if parameter["required"]
    }
    asked = path.format(**PLACES)
    params = {
        name: VALUES[name] for name, parameter in needed.items() if parameter["in"] == "query"
    }
    answer = client.get(asked, params=params)
    assert answer.status_code == (404 if path in OF_FILES else 200)  # it was no file
    check_answer(operation, answer)
    if operation.get("parameters"):
        answer = client.get(asked, params={**params, "no such field": "1"})
        if path != "/v1/models/{name}":
            assert answer.status_code == 422
            check_answer(operation, answer)


FIELDS = [(path, name) for path in POSTS for name in body_schema(path)["properties"]]


@pytest.mark.parametrize(("path", "name"), FIELDS, ids=str)
def test_every_declared_field_is_taken_and_checked(client, path, name):
    schema, fields = body_schema(path), least(path)
    fields[name] = (
        VALUES[name] if name != "cursor" else client.post(path, json=fields).json()["next"]
    )
    if name in OF_PASSAGES:
        fields["unit"] = "passage"
    assert is_valid(schema, fields)
    answer = client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    check_answer(DOCUMENT["paths"][path]["post"], answer)
    for wrong in ([], {}, 10**9, -1, "", True, 1.5, "no such value"):
        given = {**fields, name: wrong}
        if not is_valid(schema, given) and not (path == "/" and name == "inputs"):
            refused = client.post(path, json=given)
            assert refused.status_code in (404, 413, 422), (wrong, refused.text)
            check_answer(DOCUMENT["paths"][path]["post"], refused)


def test_parameters_of_a_url_are_those_of_a_body(client):
    operation = DOCUMENT["paths"]["/search"]["get"]
    for parameter in operation["parameters"]:
        name = parameter["name"]
        if name == "cursor":
            VALUES[name] = client.get("/search", params={"query": "word1"}).json()["next"]
        value = VALUES[name] if isinstance(VALUES[name], str) else json.dumps(VALUES[name])
        given = {"query": "word1", name: value} | (
            {"unit": "passage"} if name in OF_PASSAGES else {}
        )
        answer = client.get("/search", params=given)
        assert answer.status_code == 200, (name, answer.text)
        check_answer(operation, answer)
    part = client.get(
        "/documents/" + quote("doc-3"), params={"start": 2, "stop": 9, "index": "words"}
    )
    check_answer(DOCUMENT["paths"]["/documents/{id}"]["get"], part)


def test_keys_are_declared_where_there_are_some(open_client):
    client = open_client(keys=Keys(["key"]))
    declared = client.get("/openapi.json").json()
    assert declared["security"] == [{"key": []}]
    for path, method in OPERATIONS:
        operation = declared["paths"][path][method]
        answer = client.request(
            method, path.format(**PLACES), json={} if method == "post" else None
        )
        open_to_all = operation.get("security") == []
        assert (answer.status_code == 401) is not (open_to_all or method in CHANGES), (path, method)
        check_answer(operation, answer)


def test_changes_answer_as_declared(open_client, folder, tmp_path):
    client = open_client(
        {"words": shutil.copytree(folder, tmp_path / "words")}, keys=Keys(writing=["writer"])
    )
    client.headers["Authorization"] = "Bearer writer"
    declared = client.get("/openapi.json").json()["paths"]
    fields = {
        "put": {"_id": "doc-3", "text": "word1"},
        "patch": {"metadata": {"a": 1}, "remove": ["year"]},
    }
    for method, path in CHANGES.items():
        operation, body = declared[path][method], fields.get(method)
        assert operation["security"] == [{"key": []}]
        if body is not None:
            assert is_valid(operation["requestBody"]["content"]["application/json"]["schema"], body)
        for wrong in ({"params": {"no such field": "1"}}, {"json": {"no such field": 1}}):
            if method in ("put", "delete" if "params" in wrong else "patch"):
                refused = client.request(method, path.format(**PLACES), **{"json": body, **wrong})
                assert refused.status_code == 422, refused.text
                check_answer(operation, refused)
        answer = client.request(method, path.format(**PLACES), json=body)
        assert answer.status_code == 200, answer.text
        check_answer(operation, answer)


@pytest.mark.slow
def test_schemathesis_finds_nothing(server, tmp_path):
    """Requests that are drawn from the document: no error of the server, and every answer as
    declared.
    """
    command = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("schemathesis is not installed")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"  # noqa: E501
    options = [
        "--phases",
        "fuzzing",
        "--max-examples",
        "25",
        "--checks",
        checks,
        "--suppress-health-check",
        "all",
    ]
    done = subprocess.run(
        [
            command,
            "run",
            f"{server.url}/openapi.json",
            *options,
            "--request-timeout",
            "60",
            "--no-color",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-5000:]
