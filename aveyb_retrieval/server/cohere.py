"""`/v1/rerank` and `/v2/rerank`, as clients of Cohere's and Jina's servers know them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.server.answers import json_answer, to_json
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.encoding import score
from aveyb_retrieval.server.reading import read_json, refuse_others, take_flag, take_text, take_whole
from aveyb_retrieval.server.tei import ranking, take_pair

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_FIELDS = ("query", "documents", "model", "top_n", "return_documents")


async def rerank(request: Request) -> Response:
    """Order documents by late interaction with a query; the `model` is always the one that is served."""
    server = context(request)
    ticket = server.ticket(request)
    model = server.indexes.needed_model()
    fields = await read_json(request, server.limits.max_body, ticket)
    fields["documents"] = _texts(fields.get("documents"))
    query, texts = take_pair(fields, "documents", server.limits)
    top = take_whole(fields, "top_n", len(texts), least=1, most=1 << 40)
    with_text = take_flag(fields, "return_documents", default=False)
    take_text(fields, "model")
    refuse_others(fields, _FIELDS)
    scores = await score(server, query, texts, ticket)
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in ranking(scores)[:top]]
    if with_text:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    name = Path(model.model_name).name
    return json_answer(to_json({"id": str(uuid.uuid4()), "model": name, "results": results}))


def _texts(documents: Any) -> Any:
    """Return documents as texts: both servers also take objects with a field `text`."""
    if not isinstance(documents, list):
        return documents
    if any(isinstance(each, dict) and not isinstance(each.get("text"), str) for each in documents):
        raise InputError("documents: an object without a field text that is a text")
    return [each["text"] if isinstance(each, dict) else each for each in documents]
