"""`/openapi.json`: what the server answers, in OpenAPI 3.1. A test asks every route with what this declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from aveyb_retrieval.indexes.search.options import Fusion, Granularity, Mode, Unit
from aveyb_retrieval.indexes.search.rerank import MAXSIM
from aveyb_retrieval.server.answers import json_answer
from aveyb_retrieval.server.context import context
from aveyb_retrieval.version import package_version

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.server.limits import Limits

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "pattern": r"\S"}
_FLAG: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number"}
_SPAN: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_VECTOR: Schema = {"type": "array", "items": _NUMBER}
_REASONS = {
    400: "The request is not HTTP, or a path is not valid",
    401: "No key, or a wrong one",
    403: "A page of another origin asks",
    404: "No such index, document or model",
    413: "More than a limit allows",
    415: "The body does not say that it is JSON",
    421: "The server has another name",
    422: "A field is missing, unknown or out of range",
    429: "Too many requests run and wait",
    500: "An index cannot be read, or a bug",
    503: "It took too long",
}


async def openapi(request: Request) -> Response:
    """Answer with the document."""
    return json_answer(context(request).openapi)


def document(limits: Limits, *, has_keys: bool = False) -> Schema:
    """Describe a server with certain limits."""
    described: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "aveyb-serve", "version": package_version()},
        "paths": _paths(limits),
        "components": {"schemas": _schemas(), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }
    if has_keys:
        described["security"] = [{"key": []}]
    return described


def _paths(limits: Limits) -> dict[str, Schema]:
    query = {**_TEXT, "maxLength": limits.max_query}
    text = {**_TEXT, "maxLength": limits.max_text}
    several = _some(text, limits)
    index = _parameter("index", {"type": "string"}, "Name of the index; needed where several are served")
    options = _options(limits)
    reranked = {"type": "array", "items": {**_TEXT, "maxLength": limits.max_rerank_text}, **_batch(limits)}
    truncation = {"truncate": _FLAG, "truncation_direction": {"enum": ["left", "right", "Left", "Right", None]}}
    embed = _object(
        {
            "inputs": several,
            "prompt_name": {"enum": ["query", "document", None]},
            "normalize": {"const": True},
            "dimensions": {"type": ["integer", "null"], "description": "Those of the model"},
            **truncation,
        },
        "inputs",
    )
    similar = _object(
        {
            "inputs": _object(
                {"source_sentence": text, "sentences": {"type": "array", "items": text, **_batch(limits)}},
                "source_sentence",
                "sentences",
            ),
            "parameters": _object({"prompt_name": {"enum": ["query", "document", None]}, **truncation}),
        },
        "inputs",
    )
    vectors = {"type": "array", "items": _VECTOR}
    searched = {"oneOf": [_reference("Found"), _reference("FoundForEach")]}
    cohere = _post(
        "Order documents by late interaction with a query (Cohere, Jina)",
        _object(
            {
                "query": query,
                "documents": _list_of_texts_or_objects(limits),
                "model": {"type": ["string", "null"]},
                "top_n": {"type": "integer", "minimum": 1},
                "return_documents": _FLAG,
            },
            "query",
            "documents",
        ),
        _reference("Reranked"),
    )
    return {
        "/search": {
            "get": _get(
                "Search for one query; values are JSON where they are JSON",
                searched,
                _parameter("query", query, "What is searched for", required=True),
                index,
                *(_parameter(name, schema, json=name == "filter") for name, schema in options.items()),
            ),
            "post": _post(
                "Search for one query or several",
                _object({"query": _some(query, limits), "index": {"type": ["string", "null"]}, **options}, "query"),
                searched,
            ),
        },
        "/documents/{id}": {
            "get": _get(
                "Read a document, or a part of it",
                _reference("Document"),
                {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
                index,
                _parameter("start", {"type": "integer", "minimum": 0, "maximum": 1 << 40}, "First character"),
                _parameter("stop", {"type": "integer", "minimum": 0, "maximum": 1 << 40}, "Character after the last"),
            )
        },
        "/indexes": {"get": _get("List the indexes", _reference("Indexes"))},
        "/v1/embeddings": {
            "post": _post(
                "Encode texts (OpenAI)",
                _object(
                    {
                        "input": several,
                        "model": {"type": ["string", "null"], "description": "NAME for documents, NAME:query"},
                        "encoding_format": {"enum": ["float", "base64", None]},
                        "dimensions": {"type": ["integer", "null"], "description": "Those of the model"},
                        "user": {"type": ["string", "null"]},
                    },
                    "input",
                ),
                _reference("Embeddings"),
            )
        },
        "/v1/models": {"get": _get("List the names of the model (OpenAI)", _reference("Models"))},
        "/v1/models/{name}": {
            "get": _get(
                "Describe one name of the model (OpenAI)",
                _reference("Model"),
                {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
            )
        },
        "/v1/rerank": {"post": cohere},
        "/v2/rerank": {"post": cohere},
        "/": {
            "post": _post(
                "Encode or compare texts (Hugging Face's client)",
                {"anyOf": [embed, similar]},
                {"anyOf": [vectors, _VECTOR]},
            )
        },
        "/embed": {"post": _post("Encode texts (text-embeddings-inference)", embed, vectors)},
        "/similarity": {"post": _post("Compare a text with others (text-embeddings-inference)", similar, _VECTOR)},
        "/rerank": {
            "post": _post(
                "Order texts by late interaction with a query (text-embeddings-inference)",
                _object(
                    {"query": query, "texts": reranked, "raw_scores": _FLAG, "return_text": _FLAG, **truncation},
                    "query",
                    "texts",
                ),
                {"type": "array", "items": _reference("Rank")},
            )
        },
        "/tokenize": {
            "post": _post(
                "Cut texts into tokens (text-embeddings-inference)",
                _object({"inputs": several, "add_special_tokens": _FLAG}, "inputs"),
                {"type": "array", "items": {"type": "array", "items": _reference("Token")}},
            )
        },
        "/info": {"get": _get("Describe the model and the limits (text-embeddings-inference)", _reference("Info"))},
        "/health": {
            "get": _open(_get("Answer once the model is loaded", _object({"status": {"const": "ok"}}, "status")))
        },
        "/metrics": {"get": _text_answer("Prometheus' metrics", "text/plain")},
        "/openapi.json": {"get": _open(_get("This document", {"type": "object"}))},
    }


def _options(limits: Limits) -> Schema:
    """Describe the options of a search."""
    share = {"type": "number", "minimum": 0, "maximum": 1}
    return {
        "k": {"type": "integer", "minimum": 1, "maximum": limits.max_k, "description": "How many hits"},
        "offset": {"type": "integer", "minimum": 0, "maximum": limits.max_k, "description": "After how many"},
        "text": {**_FLAG, "description": "Whether the whole text of each document is added"},
        "filter": {"type": ["object", "null"], "description": "A condition on metadata"},
        "mode": {"enum": list(get_args(Mode))},
        "granularity": {"enum": [*get_args(Granularity), None]},
        "fusion": {"enum": list(get_args(Fusion))},
        "weight": share,
        "rerank": {"enum": [MAXSIM, None]},
        "unit": {"enum": list(get_args(Unit))},
        "per_document": {"type": ["integer", "null"], "minimum": 1},
        "diversity": share,
        "fold": _FLAG,
        "min_score": {"type": ["number", "null"]},
        "passages": {"type": "integer", "minimum": 1, "maximum": limits.max_passages},
        "context": {"type": ["integer", "null"], "minimum": 0, "maximum": limits.max_context},
        "candidates": {"type": "integer", "minimum": 1, "maximum": limits.max_candidates},
        "exact": _FLAG,
    }


def _schemas() -> dict[str, Schema]:
    """Describe the answers."""
    scores = {"type": "object", "additionalProperties": _NUMBER}
    maybe_text, maybe_page = {"type": ["string", "null"]}, {"type": ["integer", "null"]}
    maybe_span = {**_SPAN, "type": ["array", "null"]}
    place = {"heading": {"type": "string"}, "scores": scores, "page": maybe_page, "page_label": maybe_text}
    place |= {"page_unit": maybe_text, "pages": maybe_span}
    passage = _closed({"text": {"type": "string"}, "span": _SPAN, "score": _NUMBER, **place})
    hit = {
        "id": {"type": "string"},
        "score": _NUMBER,
        "title": {"type": "string"},
        "metadata": {"type": "object"},
        "passage": maybe_text,
        "span": maybe_span,
        "passages": {"type": "array", "items": _reference("Passage")},
        "context": maybe_text,
        "context_span": maybe_span,
        "confidence": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "duplicates": {"type": "array", "items": {"type": "string"}},
        **place,
    }
    hit_schema = _closed(hit)
    hit_schema["properties"]["text"] = {"type": "string"}  # only where it is asked for
    result = {
        "query": {"type": "string"},
        "words": {"type": "array", "items": {"type": "string"}},
        "hits": {"type": "array", "items": _reference("Hit")},
        "next": {"type": ["integer", "null"], "description": "The offset of the next page"},
    }
    name = {"type": "string"}
    model = {"id": name, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": name}
    embedding = {
        "object": {"const": "embedding"},
        "index": {"type": "integer"},
        "embedding": {"type": ["array", "string"]},
    }
    ranked = _object(
        {"index": {"type": "integer"}, "relevance_score": _NUMBER, "document": {"type": "object"}}, "index"
    )
    whole = {"type": "integer", "minimum": 0}
    return {
        "Passage": passage,
        "Hit": hit_schema,
        "Result": _closed(result),
        "Found": _closed({"index": name, **result}),
        "FoundForEach": _closed({"index": name, "results": {"type": "array", "items": _reference("Result")}}),
        "Document": _closed(
            {"index": name, "id": name, "title": name, "metadata": {"type": "object"}, "text": name, "span": _SPAN}
            | {"length": whole}
        ),
        "Indexes": _closed(
            {
                "indexes": {
                    "type": "array",
                    "items": _closed({"name": name, "version": name, "documents": whole}),
                },
                "model": maybe_text,
                "max_k": whole,
            }
        ),
        "Embeddings": _closed(
            {
                "object": {"const": "list"},
                "model": name,
                "usage": _closed({"prompt_tokens": whole, "total_tokens": whole}),
                "data": {"type": "array", "items": _closed(embedding)},
            }
        ),
        "Model": _closed(model),
        "Models": _closed({"object": {"const": "list"}, "data": {"type": "array", "items": _reference("Model")}}),
        "Reranked": _closed({"id": name, "model": name, "results": {"type": "array", "items": ranked}}),
        "Rank": _object({"index": whole, "score": _NUMBER, "text": name}, "index", "score"),
        "Token": _closed({"id": whole, "text": name, "special": _FLAG, "start": whole, "stop": whole}),
        "Info": {"type": "object", "required": ["model_id", "model_sha", "max_client_batch_size", "version"]},
        "Error": _closed({"error": name, "error_type": name}),
        "OpenAIError": _closed(
            {"error": _closed({"message": name, "type": name, "param": maybe_text, "code": maybe_text})}
        ),
    }


# --- the shapes that they share ---------------------------------------------------------------------------------------


def _object(properties: Schema, *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _closed(properties: Schema) -> Schema:
    return _object(properties, *properties)


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _batch(limits: Limits) -> Schema:
    return {"minItems": 1, "maxItems": limits.max_batch}


def _some(text: Schema, limits: Limits) -> Schema:
    return {"anyOf": [text, {"type": "array", "items": text, **_batch(limits)}]}


def _list_of_texts_or_objects(limits: Limits) -> Schema:
    text = {**_TEXT, "maxLength": limits.max_rerank_text}
    as_object = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    return {"type": "array", "items": {"anyOf": [text, as_object]}, **_batch(limits)}


def _parameter(
    name: str, schema: Schema, description: str = "", *, required: bool = False, json: bool = False
) -> Schema:
    described: Schema = {"name": name, "in": "query", "required": required, "description": description}
    if json:
        return {**described, "content": {"application/json": {"schema": schema}}}
    return {**described, "schema": schema}


def _get(summary: str, answer: Schema, *parameters: Schema) -> Schema:
    return {"summary": summary, "parameters": list(parameters), "responses": _responses(answer)}


def _post(summary: str, body: Schema, answer: Schema) -> Schema:
    content = {"application/json": {"schema": body}}
    return {"summary": summary, "requestBody": {"required": True, "content": content}, "responses": _responses(answer)}


def _text_answer(summary: str, kind: str) -> Schema:
    operation = _get(summary, {})
    operation["responses"]["200"]["content"] = {kind: {"schema": {"type": "string"}}}
    return operation


def _open(operation: Schema) -> Schema:
    """Say that an operation needs no key."""
    return {**operation, "security": []}


def _responses(answer: Schema) -> Schema:
    error = {"application/json": {"schema": {"anyOf": [_reference("Error"), _reference("OpenAIError")]}}}
    responses: Schema = {"200": {"description": "The answer", "content": {"application/json": {"schema": answer}}}}
    for status, reason in _REASONS.items():
        responses[str(status)] = {"description": reason, "content": error}
    return responses
