"""`/v1/rerank` and `/v2/rerank`, as clients of Cohere's and Jina's servers know them."""

from __future__ import annotations

import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.server.answers import json_answer, to_json
from aveyb_retrieval.server.encoding import score
from aveyb_retrieval.server.fields import Field, Fields, flag, take_fields, text, texts, whole, word
from aveyb_retrieval.server.reading import read_json
from aveyb_retrieval.server.tei import ranking

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.server.limits import Limits

_MANY = 1 << 40
_GRANTED = ("max_tokens_per_doc", "max_chunks_per_doc", "priority")  # texts are read whole, and in turn


@cache
def rerank_fields(limits: Limits) -> Fields:
    """The fields of a request."""
    documents = texts(limits.max_batch, limits.max_rerank_text)
    one = documents.schema["items"]
    as_object = {"type": "object", "properties": {"text": one}, "required": ["text"]}

    def take(name: str, value: Any) -> Any:
        if isinstance(value, list):  # both servers also take objects with a field `text`
            value = [each.get("text") if isinstance(each, dict) else each for each in value]
        return documents.take(name, value)

    return {
        "query": text(limits.max_query),
        "documents": Field({**documents.schema, "items": {"anyOf": [one, as_object]}}, take),
        "model": word(),
        "top_n": whole(1, _MANY, None, or_null=True),
        "return_documents": flag(default=False),
        **{name: whole(0, _MANY, None, or_null=True) for name in _GRANTED},
    }


async def rerank(request: Request) -> Response:
    """Order documents by late interaction with a query."""
    server, ticket, given = await read_json(request)
    model = server.indexes.needed_model()
    asked = take_fields(given, rerank_fields(server.limits))
    found = asked["documents"]
    scores = await score(server, asked["query"], found, ticket)
    best = ranking(scores)[: asked["top_n"]]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in best]
    if asked["return_documents"]:
        results = [{**each, "document": {"text": found[each["index"]]}} for each in results]
    name = Path(model.model_name).name
    return json_answer(to_json({"id": str(uuid.uuid4()), "model": name, "results": results}))
