"""The routes of the server, and `/openapi.json`, which describes them in OpenAPI 3.1."""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.routing import Route

from aveyb_retrieval.indexes.search import hit, quotes, stored_documents
from aveyb_retrieval.indexes.search.options import SearchOptions
from aveyb_retrieval.server import (
    answer_types,
    changes,
    documents,
    models,
    originals,
    request_types,
    search,
)
from aveyb_retrieval.server.context import context, json_answer
from aveyb_retrieval.server.counters import metrics
from aveyb_retrieval.server.fields import JSON, JSON_LINES
from aveyb_retrieval.server.refusals import STATUSES
from aveyb_retrieval.server.request_types import OfIndex, with_limits
from aveyb_retrieval.system import package_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.server.keys import Right
    from aveyb_retrieval.server.limits import ServerLimits

Schema = dict[str, Any]


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document that describes these requests."""
    return json_answer(context(request).openapi)


async def health(request: Request) -> Response:
    """Answer that the server is ready; it listens only after indexes and model are loaded."""
    return json_answer(msgspec.json.encode(answer_types.Health(status="ok")))


@dataclass(frozen=True)
class Operation:
    """A request that the server answers; its summary is the docstring of its endpoint.

    A part of the path in braces may hold slashes. The fields of `request` are in the body of a POST
    or PATCH, else in the URL. An answer is one of several types, or content of another `media` type
    than JSON. A key must have the `right`; None: it needs no key.
    """

    method: str
    path: str
    endpoint: Callable[[Any], Any]
    answers: tuple[type[msgspec.Struct], ...] = ()
    request: type[request_types.Request] | None = None
    media: str = JSON
    right: Right | None = "search"


_OCTETS, _PNG, _PLAIN = "application/octet-stream", "image/png", "text/plain"
OPERATIONS = (
    Operation(
        "GET",
        "/search",
        search.search,
        (answer_types.SearchAnswer, answer_types.SearchListAnswer),
        request_types.SearchInUrl,
    ),
    Operation(
        "POST",
        "/search",
        search.search,
        (answer_types.SearchAnswer, answer_types.SearchListAnswer),
        request_types.Search,
    ),
    Operation("POST", "/check", documents.check, (answer_types.Checked,), request_types.Check),
    Operation(
        "POST",
        "/grep",
        documents.grep,
        (answer_types.Matches,),
        request_types.Grep,
        right="read",
    ),
    Operation(
        "GET",
        "/outline",
        documents.outline,
        (answer_types.Outline,),
        request_types.OutlinePage,
        right="read",
    ),
    Operation(
        "GET",
        "/outline/{id}",
        documents.headings,
        (answer_types.Headings,),
        OfIndex,
        right="read",
    ),
    Operation(
        "GET",
        "/documents/{id}",
        documents.document,
        (answer_types.DocumentAnswer,),
        request_types.DocumentPart,
        right="read",
    ),
    Operation(
        "GET",
        "/originals/{id}",
        originals.original,
        request=OfIndex,
        media=_OCTETS,
        right="read",
    ),
    Operation(
        "GET",
        "/boxes/{id}",
        originals.boxes,
        (answer_types.Boxes,),
        request_types.BoxesOf,
        right="read",
    ),
    Operation(
        "GET",
        "/pages/{id}",
        originals.page,
        request=request_types.PageOf,
        media=_PNG,
        right="read",
    ),
    Operation("PUT", "/documents", changes.put_documents, (answer_types.Changed,), right="write"),
    Operation(
        "PATCH",
        "/documents/{id}",
        changes.change_metadata,
        (answer_types.Changed,),
        request_types.MetadataChange,
        right="write",
    ),
    Operation(
        "DELETE",
        "/documents/{id}",
        changes.delete_document,
        (answer_types.Changed,),
        right="write",
    ),
    Operation("GET", "/indexes", documents.indexes, (answer_types.IndexList,)),
    Operation(
        "POST", "/v1/embeddings", models.embeddings, (answer_types.Embeddings,), request_types.Embed
    ),
    Operation("GET", "/v1/models", models.models, (answer_types.Models,)),
    Operation("GET", "/v1/models/{name}", models.model, (answer_types.Model,)),
    Operation(
        "POST",
        "/v1/rerank",
        models.cohere_rerank,
        (answer_types.Reranked,),
        request_types.Rerank,
    ),
    Operation(
        "POST",
        "/v2/rerank",
        models.cohere_rerank,
        (answer_types.Reranked,),
        request_types.Rerank,
    ),
    Operation("GET", "/openapi.json", openapi, (), right=None),
    Operation("GET", "/metrics", metrics, media=_PLAIN, right="admin"),
    Operation("GET", "/health", health, (answer_types.Health,), right=None),
)


def routes() -> list[Route]:
    """Make the routes of all operations."""
    methods: dict[tuple[str, Callable[[Any], Any]], list[str]] = {}
    for operation in OPERATIONS:
        path = operation.path.replace("}", ":path}")
        methods.setdefault((path, operation.endpoint), []).append(operation.method)
    return [Route(path, endpoint, methods=names) for (path, endpoint), names in methods.items()]


def describe(limits: ServerLimits, *, has_keys: bool = False) -> Schema:
    """Return the OpenAPI document of a server."""
    schemas = _schemas(limits)
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        described = _describe(operation, schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    for operation in OPERATIONS:
        if operation.request is not None and operation.method == "GET":
            schemas.pop(operation.request.__name__, None)  # its parameters have it
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "aveyb-serve", "version": package_version()},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    if has_keys:
        document["security"] = [{"key": []}]
    return document


# --- types


# the classes of the library whose docstrings describe the fields of types
_DESCRIBED = {
    "Search": SearchOptions,
    "SearchInUrl": SearchOptions,
    "HitAnswer": hit.Hit,
    "PassageAnswer": hit.Passage,
    "QuoteCheck": quotes.QuoteCheck,
    "Match": stored_documents.Match,
}


def _schemas(limits: ServerLimits) -> dict[str, Schema]:
    """Return the schemas of all types of requests and answers, by name."""
    requests = {operation.request for operation in OPERATIONS if operation.request is not None}
    answers = {answer for operation in OPERATIONS for answer in operation.answers}
    types = [
        *(with_limits(request, limits) for request in requests),
        request_types.NewDocument,
        *answers,
        answer_types.Error,
        answer_types.OpenAIError,
    ]
    _, schemas = msgspec.json.schema_components(types, ref_template=_reference("{name}")["$ref"])
    schemas = _with_plain_lists(schemas)
    for name, schema in schemas.items():
        if "description" in schema:  # the whole docstring
            schema["description"] = _one_line(schema["description"].partition("\n\n")[0])
        meanings = attributes(_DESCRIBED[name]) if name in _DESCRIBED else {}
        for field, property in schema["properties"].items():
            if field in meanings:
                property.setdefault("description", meanings[field])
    # both are given whole, whatever their defaults are
    for answer in (quotes.QuoteCheck, stored_documents.Match):
        schema = schemas[answer.__name__]
        schema["required"] = list(schema["properties"])
    return dict(sorted(schemas.items()))


def _with_plain_lists(schema: Any) -> Any:
    """Write tuples whose elements are of one type as lists of their length: many programs that read
    schemas know no tuples.
    """
    if isinstance(schema, list):
        return [_with_plain_lists(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _with_plain_lists(part) for name, part in schema.items()}
    elements = plain.get("prefixItems")
    if elements and all(element == elements[0] for element in elements):
        del plain["prefixItems"]
        plain["items"] = elements[0]
    return plain


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_IN_JSON = {"None": "null", "True": "true", "False": "false"}


def attributes(described: type) -> dict[str, str]:
    """Return the descriptions of attributes in the docstring of a class, in the words of JSON."""
    _, _, section = cleandoc(described.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: _one_line(meaning).removesuffix(".") for name, meaning in entries}


def _one_line(text: str) -> str:
    words = re.sub("None|True|False", lambda word: _IN_JSON[word[0]], text)
    return " ".join(words.split())


# --- operations


_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_ERROR: Schema = {JSON: {"schema": {"anyOf": [_reference("Error"), _reference("OpenAIError")]}}}
_PATH_FIELDS = {"id": "Id of the document", "name": "NAME or NAME:query"}


def _describe(operation: Operation, schemas: dict[str, Schema]) -> Schema:
    described: Schema = {
        "summary": _one_line((operation.endpoint.__doc__ or "").partition("\n\n")[0]),
        "responses": {"200": _answer(operation)} | dict(_errors()),
    }
    if operation.right is None:
        described["security"] = []
    elif operation.right == "write":
        described["security"] = [{"key": []}]
    if operation.method != "POST":
        described["parameters"] = list(_parameters(operation, schemas))
    if operation.method in ("POST", "PUT", "PATCH"):
        described["requestBody"] = {"required": True, "content": _body(operation)}
    return described


def _answer(operation: Operation) -> Schema:
    references = [_reference(answer.__name__) for answer in operation.answers]
    if len(references) == 1:
        schema = references[0]
    elif references:
        schema = {"oneOf": references}
    else:
        schema = _OBJECT if operation.media == JSON else _TEXT
    return {"description": "The answer", "content": {operation.media: {"schema": schema}}}


def _errors() -> Iterator[tuple[str, Schema]]:
    for status, (_, reason) in STATUSES.items():
        if reason:
            # what is no HTTP, or too long a URL, does not get to the routes
            early = {_PLAIN: {"schema": _TEXT}} if status == 400 else {}
            yield str(status), {"description": reason, "content": _ERROR | early}


def _parameters(operation: Operation, schemas: dict[str, Schema]) -> Iterator[Schema]:
    _, brace, name = operation.path.rstrip("}").partition("{")
    if brace:
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_FIELDS[name],
            "schema": {**_TEXT, "minLength": 1},
        }
    request = OfIndex if operation.right == "write" else operation.request
    if request is None:
        return
    schema = schemas[request.__name__]
    for field, property in schema["properties"].items():
        kinds = property.get("anyOf", [property])
        in_json = any(kind.get("type") in ("array", "object") for kind in kinds)
        yield {
            "name": field,
            "in": "query",
            "required": field in schema.get("required", ()),
            "description": property["description"],
            **({"content": {JSON: {"schema": property}}} if in_json else {"schema": property}),
        }


def _body(operation: Operation) -> Schema:
    if operation.request is not None:
        return {JSON: {"schema": _reference(operation.request.__name__)}}
    document = _reference(request_types.NewDocument.__name__)
    several = {"type": "array", "items": document}
    return {
        JSON: {"schema": {"anyOf": [document, several]}},
        JSON_LINES: {"schema": _TEXT},
    }
