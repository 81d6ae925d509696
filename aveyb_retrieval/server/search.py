"""`/search`, `/documents/{id}` and `/indexes`: what `Retriever` does, over HTTP."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import JSONResponse

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.options import SearchOptions, unknown_option
from aveyb_retrieval.indexes.search.rerank import MAXSIM
from aveyb_retrieval.server.answers import Room, joined, json_answer, to_json
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.encoding import parts
from aveyb_retrieval.server.reading import (
    check_flag,
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
    from starlette.responses import Response

    from aveyb_retrieval.indexes.search.hits import Hit
    from aveyb_retrieval.server.limits import Limits

K = 10
LONGEST_PART = 1 << 20  # characters of a document in one answer, unless more are asked for
QUERIES_AT_ONCE = 8  # in one turn: others have theirs in between
HITS_AT_ONCE = 512  # passages and contexts counted as hits
PART_OF_QUERIES = 16_384  # characters of queries in one turn
_TEXTS = ("query", "index", "id")  # parameters of a URL that are never JSON


async def search(request: Request) -> Response:
    """Search an index for one query or several, by GET or by POST."""
    server = context(request)
    limits, ticket = server.limits, server.ticket(request)
    if request.method == "POST":
        fields = await read_json(request, limits.max_body, ticket)
    else:
        fields = read_parameters(request, _TEXTS)
    queries, single = take_texts(fields, "query", limits.max_batch, limits.max_query)
    name, retriever = server.indexes.named(take_text(fields, "index"))
    k, offset = _take_range(fields, limits)
    if len(queries) * (offset + k) > limits.max_hits:
        raise Refusal(413, f"{len(queries)} queries, {offset + k} hits each: at most {limits.max_hits:,} hits at once")
    with_text = take_flag(fields, "text", default=False)
    options = _options(fields, limits)
    # one more than is shown says whether there are more
    wanted = min(offset + k + 1, limits.max_k)
    room = Room(limits.max_answer, ticket)

    def work(part: list[str]) -> list[bytes]:
        found = zip(part, retriever.search(part, wanted, **options), strict=True)
        return [_result(query, retriever.words(query), hits, offset, k, with_text, room) for query, hits in found]

    results: list[bytes] = []
    at_once = 1 if with_text else _queries_at_once(wanted, options)
    for number, part in enumerate(parts(queries, at_once, PART_OF_QUERIES)):
        found = await server.searching.run(partial(work, part), ticket, part=number)
        room.take(sum(map(len, found)))
        results += found
    head = b'{"index":' + to_json(name) + b","
    return json_answer(head + results[0][1:] if single else head + b'"results":' + joined(results) + b"}")


def _queries_at_once(wanted: int, options: SearchOptions) -> int:
    """How many queries are searched in one turn: what is found for them is in memory at once."""
    passages = options.get("passages", 1) * (1 + 2 * (options.get("context") or 0))
    return max(1, min(QUERIES_AT_ONCE, HITS_AT_ONCE // (wanted * passages)))


def _result(query: str, words: list[str], hits: list[Hit], offset: int, k: int, with_text: bool, room: Room) -> bytes:
    """Write what was found for a query, as an object."""
    written: list[bytes] = []
    size = 0
    for hit in hits[offset : offset + k]:
        written.append(to_json(hit.to_dict(text=with_text)))
        size += len(written[-1])
        room.check(size)
    head = to_json({"query": query, "words": words, "next": offset + k if len(hits) > offset + k else None})
    return head[:-1] + b',"hits":' + joined(written) + b"}"


async def document(request: Request) -> Response:
    """Return one document, or the characters `start` to `stop` of it."""
    server = context(request)
    ticket = server.ticket(request)
    document_id = request.path_params["id"]
    fields = read_parameters(request, _TEXTS)
    name, retriever = server.indexes.named(take_text(fields, "index"))
    start = take_whole(fields, "start", 0, least=0, most=1 << 40)
    stop = take_whole(fields, "stop", start + LONGEST_PART, least=0, most=1 << 40)
    refuse_others(fields, ("index", "start", "stop"))
    room = Room(server.limits.max_answer, ticket)

    def work() -> bytes:
        found = retriever.get([document_id], missing_ok=True)
        if not found:
            raise Refusal(404, f"index {name!r}: no document has the id {document_id!r}")
        length = len(found[0].text)
        first, last = min(start, length), min(stop, length)
        text = found[0].text[first:last]
        room.check(len(text))  # before it is written
        content = {
            "index": name,
            "id": found[0].id,
            "title": found[0].title,
            "metadata": found[0].metadata,
            "text": text,
            "span": [first, max(first, last)],
            "length": length,
        }
        return to_json(content)

    written = await server.searching.run(work, ticket)
    room.take(len(written))
    return json_answer(written)


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
            "model": Path(server.indexes.model.model_name).name if server.indexes.model else None,
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
    bounds = {
        "candidates": (1, limits.max_candidates),
        "passages": (1, limits.max_passages),
        "context": (0, limits.max_context),
    }
    for name, (least, most) in bounds.items():
        if fields.get(name) is not None:
            check_whole(name, fields[name], least=least, most=most)
    for name in ("fold", "exact"):
        check_flag(name, fields.get(name, False))
    where = fields.get("filter")
    if where is not None and not isinstance(where, dict):
        raise ConfigError(f"filter: {where!r} is not an object; write it as {json.dumps({'year': {'$gte': 2020}})}")
    return cast("SearchOptions", fields)
