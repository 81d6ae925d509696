"""`/search`, `/documents/{id}` and `/indexes`: what `Retriever` does, over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import JSONResponse

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.options import SearchOptions, unknown_option
from aveyb_retrieval.indexes.search.rerank import MAXSIM
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.reading import (
    check_whole,
    read_json,
    read_parameters,
    refuse_others,
    take_flag,
    take_text,
    take_texts,
    take_whole,
)
from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

    from aveyb_retrieval.indexes.search.hits import Hit
    from aveyb_retrieval.server.limits import Limits

K = 10
LONGEST_PART = 1 << 20  # characters of a document in one answer, unless more are asked for
_TEXTS = ("query", "index", "id")  # parameters of a URL that are never JSON


async def search(request: Request) -> JSONResponse:
    """Search an index for one query or several, by GET or by POST."""
    server = context(request)
    deadline = server.deadline()
    if request.method == "POST":
        fields = await read_json(request, server.limits.max_body, deadline)
    else:
        fields = read_parameters(request, _TEXTS)
    queries, single = take_texts(fields, "query", server.limits.max_batch)
    name, retriever = server.indexes.named(take_text(fields, "index"))
    k, offset = _take_range(fields, server.limits)
    with_text = take_flag(fields, "text", default=False)
    options = _options(fields, server.limits)
    # one more than is shown says whether there are more
    wanted = min(offset + k + 1, server.limits.max_k)

    def work() -> list[dict[str, Any]]:
        found = retriever.search(queries, wanted, **options)
        words = [retriever.words(query) for query in queries]
        return [
            {"query": query, "words": looked_up, **_page(hits, offset, k, with_text)}
            for query, looked_up, hits in zip(queries, words, found, strict=True)
        ]

    results = await server.searching.run(work, deadline)
    return JSONResponse({"index": name, **results[0]} if single else {"index": name, "results": results})


async def document(request: Request) -> JSONResponse:
    """Return one document, or the characters `start` to `stop` of it."""
    server = context(request)
    document_id = request.path_params["id"]
    fields = read_parameters(request, _TEXTS)
    name, retriever = server.indexes.named(take_text(fields, "index"))
    start = take_whole(fields, "start", 0, least=0, most=1 << 40)
    stop = take_whole(fields, "stop", start + LONGEST_PART, least=0, most=1 << 40)
    refuse_others(fields, ("index", "start", "stop"))
    found = await server.searching.run(lambda: retriever.get([document_id], missing_ok=True), server.deadline())
    if not found:
        raise Refusal(404, f"index {name!r}: no document has the id {document_id!r}")
    text = found[0].text
    start, stop = min(start, len(text)), min(stop, len(text))
    return JSONResponse(
        {
            "index": name,
            "id": found[0].id,
            "title": found[0].title,
            "metadata": found[0].metadata,
            "text": text[start:stop],
            "span": [start, max(start, stop)],
            "length": len(text),
        }
    )


async def indexes(request: Request) -> JSONResponse:
    """List the indexes and what can be asked of them."""
    server = context(request)
    refuse_others(read_parameters(request, ()), ())
    return JSONResponse(
        {
            "indexes": [
                {"name": name, "version": retriever.version, "documents": len(retriever)}
                for name, retriever in server.indexes.retrievers.items()
            ],
            "model": server.indexes.model.model_name if server.indexes.model else None,
            "max_k": server.limits.max_k,
        }
    )


def _take_range(fields: dict[str, Any], limits: Limits) -> tuple[int, int]:
    """Take `k` and `offset`, together at most `max_k`."""
    k = take_whole(fields, "k", min(K, limits.max_k), least=1, most=limits.max_k)
    offset = take_whole(fields, "offset", 0, least=0, most=limits.max_k)
    if offset + k > limits.max_k:
        raise ConfigError(f"offset={offset} and k={k}: together they must be at most {limits.max_k}")
    return k, offset


def _options(fields: dict[str, Any], limits: Limits) -> SearchOptions:
    """What is left are options of the search: it checks them itself, but for what a server must not allow."""
    if unknown := fields.keys() - SearchOptions.__annotations__.keys():
        raise ConfigError(unknown_option(min(unknown)))
    rerank = fields.get("rerank")
    if rerank not in (None, MAXSIM):
        raise ConfigError(f"rerank={rerank!r}: must be {MAXSIM!r}; a server loads no models that requests name")
    if "candidates" in fields:
        check_whole("candidates", fields["candidates"], least=1, most=limits.max_candidates)
    where = fields.get("filter")
    if where is not None and not isinstance(where, dict):
        raise ConfigError(f"filter: {where!r} is not an object; write it as {json.dumps({'year': {'$gte': 2020}})}")
    return cast("SearchOptions", fields)


def _page(hits: list[Hit], offset: int, k: int, with_text: bool) -> dict[str, Any]:
    more = len(hits) > offset + k
    return {
        "hits": [hit.to_dict(text=with_text) for hit in hits[offset : offset + k]],
        "next": offset + k if more else None,
    }
