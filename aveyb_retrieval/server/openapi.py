"""All that can be asked: the routes, and `/openapi.json`, which tells of them in OpenAPI 3.1."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse
from starlette.routing import Route

from aveyb_retrieval.indexes.search.hit import Hit, Passage
from aveyb_retrieval.indexes.search.quotes import QuoteCheck
from aveyb_retrieval.indexes.search.reading import Match
from aveyb_retrieval.server import models, requests, search
from aveyb_retrieval.server.gate import CHANGES, metrics
from aveyb_retrieval.server.http import STATUSES, context, json_answer
from aveyb_retrieval.system import package_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.server.http import Limits
    from aveyb_retrieval.server.keys import Right
    from aveyb_retrieval.server.requests import Schema


async def openapi(request: Request) -> Response:
    """Describe all of this as an OpenAPI document."""
    return json_answer(context(request).openapi)


async def health(request: Request) -> JSONResponse:
    """Answer that the server is there; it only listens once indexes and model are loaded."""
    return JSONResponse({"status": "ok"})


_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_JSON = ("filter", "ids", "facets", "indexes", "boost")  # fields that are JSON in a URL
_FIELDS: Schema = {"_id": {"type": ["string", "integer"]}, "title": _TEXT, "text": _TEXT}
# what else it has are metadata
_DOCUMENT: Schema = {**_OBJECT, "properties": _FIELDS, "required": ["text"]}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked; the docstring of its endpoint begins with what that does.

    A part of the path in braces may hold slashes. Fields are in the URL of GET, in the body of POST
    and PATCH. A key must have the `right`; None: it needs no key.
    """

    method: str
    path: str
    endpoint: Callable[[Any], Any]
    answer: Schema
    fields: Callable[[Limits], requests.Fields] | None = None
    kind: str = "application/json"
    right: Right | None = "search"

    def describe(self, limits: Limits) -> Schema:
        """Describe it to clients of a server with certain limits."""
        error = {
            "application/json": {
                "schema": {"anyOf": [_reference("Error"), _reference("OpenAIError")]}
            }
        }
        # what is no HTTP, or too long a URL, does not get here
        no_head = {"text/plain": {"schema": _TEXT}}
        described: Schema = {
            "summary": (self.endpoint.__doc__ or "").partition("\n")[0],
            "responses": (
                {
                    "200": {
                        "description": "The answer",
                        "content": {self.kind: {"schema": self.answer}},
                    }
                }
                | {
                    str(status): {
                        "description": reason,
                        "content": error | (no_head if status == 400 else {}),
                    }
                    for status, (_, reason) in STATUSES.items()
                    if reason
                }
            ),
        }
        if self.right is None or self.method in CHANGES:
            described["security"] = [] if self.right is None else [{"key": []}]
        if self.method != "POST":
            described["parameters"] = self._parameters(limits)
        if self.method == "PUT":
            body: Schema = {"anyOf": [_DOCUMENT, {"type": "array", "items": _DOCUMENT}]}
        elif self.fields and self.method != "GET":
            body = requests.schema_of(self.fields(limits))
        else:
            return described
        content = {requests.JSON: {"schema": requests.explain(body, self.path)}}
        content |= {requests.JSON_LINES: {"schema": _TEXT}} if self.method == "PUT" else {}
        return described | {"requestBody": {"required": True, "content": content}}

    def _parameters(self, limits: Limits) -> list[Schema]:
        _, brace, name = self.path.rstrip("}").partition("{")
        found: list[Schema] = []
        if brace:
            found.append(
                {"name": name, "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}
            )
        fields = search.index_field if self.method in CHANGES else self.fields
        for name, field in fields(limits).items() if fields else ():
            shown = {"schema": field.schema}
            how: Schema = {"content": {"application/json": shown}} if name in _JSON else shown
            found.append(
                {"name": name, "in": "query", "required": field.default is requests.NEEDED, **how}
            )
        return [
            {**each, "description": requests.meaning(each["name"], self.path)} for each in found
        ]


_FOUND: Schema = {"oneOf": [_reference("Found"), _reference("FoundForEach")]}
_CHANGED = _reference("Changed")
_RERANKED = _reference("Reranked")
OPERATIONS = (
    Operation("GET", "/search", search.search, _FOUND, search.search_parameters),
    Operation("POST", "/search", search.search, _FOUND, search.search_fields),
    Operation("POST", "/check", search.check, _reference("Checked"), search.check_fields),
    Operation(
        "POST", "/grep", search.grep, _reference("Matches"), search.grep_fields, right="read"
    ),
    Operation(
        "GET",
        "/outline",
        search.outline,
        _reference("Outline"),
        search.outline_parameters,
        right="read",
    ),
    Operation(
        "GET",
        "/outline/{id}",
        search.headings,
        _reference("Headings"),
        search.index_field,
        right="read",
    ),
    Operation(
        "GET",
        "/documents/{id}",
        search.document,
        _reference("Document"),
        search.document_parameters,
        right="read",
    ),
    Operation(
        "GET",
        "/originals/{id}",
        search.original,
        _TEXT,
        search.index_field,
        "application/octet-stream",
        "read",
    ),
    Operation(
        "GET",
        "/boxes/{id}",
        search.boxes,
        _reference("Boxes"),
        search.boxes_parameters,
        right="read",
    ),
    Operation(
        "GET", "/pages/{id}", search.page, _TEXT, search.page_parameters, "image/png", "read"
    ),
    Operation("PUT", "/documents", search.put_documents, _CHANGED),
    Operation("PATCH", "/documents/{id}", search.change_metadata, _CHANGED, search.metadata_fields),
    Operation("DELETE", "/documents/{id}", search.delete_document, _CHANGED),
    Operation("GET", "/indexes", search.indexes, _reference("Indexes")),
    Operation(
        "POST",
        "/v1/embeddings",
        models.embeddings,
        _reference("Embeddings"),
        models.embeddings_fields,
    ),
    Operation("GET", "/v1/models", models.models, _reference("Models")),
    Operation("GET", "/v1/models/{name}", models.model, _reference("Model")),
    Operation("POST", "/v1/rerank", models.cohere_rerank, _RERANKED, models.cohere_rerank_fields),
    Operation("POST", "/v2/rerank", models.cohere_rerank, _RERANKED, models.cohere_rerank_fields),
    Operation("GET", "/openapi.json", openapi, _OBJECT, right=None),
    Operation("GET", "/metrics", metrics, _TEXT, kind="text/plain", right="admin"),
    Operation("GET", "/health", health, _reference("Health"), right=None),
)


def routes() -> list[Route]:
    """Make the routes of all operations."""
    methods: dict[tuple[str, Callable[[Any], Any]], list[str]] = {}
    for operation in OPERATIONS:
        path = operation.path.replace("}", ":path}")
        methods.setdefault((path, operation.endpoint), []).append(operation.method)
    return [Route(path, endpoint, methods=some) for (path, endpoint), some in methods.items()]


def document(limits: Limits, *, has_keys: bool = False) -> Schema:
    """Describe a server with certain limits."""
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = operation.describe(limits)
    described: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "aveyb-serve", "version": package_version()},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    if has_keys:
        described["security"] = [{"key": []}]
    return described


@cache
def _schemas() -> dict[str, Schema]:
    """Describe the answers; what Python has, too, by the docstrings of its classes."""
    found: dict[str, Schema] = json.loads(
        Path(__file__).with_name("answers.json").read_text(encoding="utf-8")
    )
    for described in (Hit, Passage, QuoteCheck, Match):
        for name, told in requests.attributes(described).items():
            found[described.__name__]["properties"].get(name, {}).setdefault("description", told)
    return found
