"""`/search`: what `Retriever.search` finds, with facets, a page at a time."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.options import SearchOptions
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.server.answer_types import (
    HitAnswer,
    ResultAnswer,
    SearchAnswer,
    SearchListAnswer,
    Value,
)
from aveyb_retrieval.server.context import context, json_answer, raw_list
from aveyb_retrieval.server.fields import read
from aveyb_retrieval.server.keys import note_on
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.request_types import (
    CURSOR,
    DEFAULT_K,
    MAX_COUNTED,
    MAX_VALUES,
    Search,
    SearchInUrl,
)
from aveyb_retrieval.server.work import parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.search.hit import Result
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.server.indexes import Indexes
    from aveyb_retrieval.server.limits import ServerLimits
    from aveyb_retrieval.server.tickets import Ticket

QUERIES_AT_ONCE = 8  # in one turn: others have theirs in between
HITS_AT_ONCE = 512  # passages and contexts counted as hits
CHARACTERS_AT_ONCE = 16_384  # of queries in one turn


@dataclass(frozen=True)
class _Page:
    """What is searched for each query of a request, as a process that searches gets it.

    `depth` is how many hits are searched from the offset on: one more than `k` says whether there
    are more. `search` names the search that a cursor continues (see `_name_of`); None without one.
    """

    name: str | None
    several: Sequence[str] | None
    options: SearchOptions
    k: int
    depth: int
    search: str | None
    with_text: bool


async def search(request: Request) -> Response:
    """Search an index, or several in one ranking, for one query or several, by GET or by POST."""
    server, ticket = context(request), request.state.ticket
    fields = await read(request, Search if request.method == "POST" else SearchInUrl)
    is_single = isinstance(fields.query, str)
    queries = [fields.query] if isinstance(fields.query, str) else fields.query
    name, index = _open(server.indexes, fields.index, fields.indexes, ticket.only)
    ticket.questions = queries
    page = _page(fields, name, server.limits)
    if len(queries) * (page.options["offset"] + page.k) > server.limits.max_hits:
        raise Refusal(
            413,
            f"{len(queries)} queries, {page.options['offset'] + page.k} hits each: at most"
            f" {server.limits.max_hits:,} hits at once",
        )

    results: list[bytes] = []
    at_once = 1 if page.with_text else _queries_at_once(page)
    async for written in server.searching.each(
        partial(server.processes.call, _search_part, ticket, page),
        parts(queries, at_once, CHARACTERS_AT_ONCE),
        ticket,
    ):
        ticket.answer(sum(map(len, written)))
        results += written
    facets = b"{}"
    if fields.facets:
        count = partial(_count_values, index, fields, queries)
        facets = await server.searching.run(count, ticket)
        ticket.answer(len(facets))
    head: dict[str, Any] = {"index": name, "facets": msgspec.Raw(facets)}
    if is_single:
        result: dict[str, Any] = msgspec.json.decode(results[0], type=dict[str, msgspec.Raw])
        return json_answer(msgspec.json.encode(SearchAnswer(**head, **result)))
    return json_answer(msgspec.json.encode(SearchListAnswer(**head, results=raw_list(results))))


def _open(
    indexes: Indexes, name: str | None, several: Sequence[str] | None, only: Filter | None
) -> tuple[str | None, Retriever]:
    """Return the index of a name with its name, or several as one, without a name."""
    if several is None:
        return indexes.named(name, only)
    if name is not None:
        raise ConfigError("index and indexes: give one of them")
    retrievers = {index_name: indexes.named(index_name, only)[1] for index_name in several}
    return None, Retriever.load(retrievers)


def _page(fields: Search, name: str | None, limits: ServerLimits) -> _Page:
    """Return the page that is asked for; ConfigError if it is beyond the limits."""
    k = min(DEFAULT_K, limits.max_k) if fields.k is None else fields.k
    offset, continued = fields.offset, None
    if fields.cursor is not None:
        offset, continued = _beginning(fields.cursor, fields)
        k = min(k, max(1, limits.max_k - offset))  # the last page is shorter
    if offset + k > limits.max_k:
        raise ConfigError(
            f"offset={offset} and k={k}: together they must be at most {limits.max_k}"
        )
    options = {option: getattr(fields, option) for option in SearchOptions.__annotations__}
    return _Page(
        name=name,
        several=fields.indexes,
        options=cast("SearchOptions", {**options, "offset": offset}),
        k=k,
        depth=min(k + 1, limits.max_k - offset),
        search=continued,
        with_text=fields.text,
    )


def _beginning(cursor: str, fields: Search) -> tuple[int, str]:
    """Return where the page of a cursor begins, and the search that it continues."""
    parsed = re.fullmatch(CURSOR, cursor, re.ASCII)
    if parsed is None or fields.offset or not isinstance(fields.query, str):
        raise ConfigError(
            f"cursor={cursor[:80]!r}: give the `next` of an answer to one query, and no offset"
        )
    return int(parsed[1]), parsed[2]


def _queries_at_once(page: _Page) -> int:
    """Return how many queries are searched in one turn: their hits are in memory together."""
    neighbors = 2 * (page.options["context"] or 0)
    hits = (page.options["offset"] + page.depth) * page.options["passages"] * (1 + neighbors)
    return max(1, min(QUERIES_AT_ONCE, HITS_AT_ONCE // hits))


def _search_part(indexes: Indexes, ticket: Ticket, page: _Page, queries: list[str]) -> list[bytes]:
    """Search for some queries of a request; return the JSON of a `ResultAnswer` for each."""
    name, index = _open(indexes, page.name, page.several, ticket.only)
    version, offset = index.version, page.options["offset"]
    results = index.search(queries, page.depth, **page.options)
    note = "" if any(results) else note_on(index, page.options["filter"])
    written = []
    for query, hits in zip(queries, results, strict=True):
        search = _name_of(page.options, query, page.several or name, version)
        if page.search not in (None, search):
            raise Refusal(
                409,
                f"cursor='{offset}-{page.search}': of another search, or the index has changed"
                f" since (it is at version {version}); ask for the first page again",
            )
        following = f"{offset + page.k}-{search}" if len(hits) > page.k else None
        written.append(_write(query, hits, page, following, note, ticket))
    return written


def _name_of(options: Mapping[str, Any], query: str, index: Any, version: str) -> str:
    """Return a name of a search: a hash of the query, the options but the offset, and the version
    of the index.
    """
    parts = [{**options, "offset": 0}, query, index, version]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _write(
    query: str, hits: Result, page: _Page, following: str | None, note: str, ticket: Ticket
) -> bytes:
    """Write a result as JSON; Refusal (413) as soon as its hits are too large for an answer."""
    written: list[bytes] = []
    size = 0
    for hit in hits[: page.k]:
        written.append(msgspec.json.encode(HitAnswer.of(hit, text=page.with_text)))
        size += len(written[-1])
        ticket.check_answer(size)
    result = ResultAnswer(
        query=query,
        words=hits.words,
        unmet=hits.unmet,
        suggestions=hits.suggestions,
        hits=raw_list(written),
        next=following,
        note=note,
    )
    return msgspec.json.encode(result)


def _count_values(index: Retriever, fields: Search, queries: list[str]) -> bytes:
    """Count the values of the fields that are asked for; return them as JSON."""
    ids = fields.ids
    if fields.facets_of == "found":
        conditions: Any = {name: getattr(fields, name) for name in ("filter", "ids", "operators")}
        ranked = index.rank(queries, MAX_COUNTED, mode="lexical", **conditions)
        ids = list({document_id for ranking in ranked for document_id, _ in ranking})
    facets = {
        field: [
            Value(value=cast("str | float | bool", value), count=count)
            for value, count in index.values(field, fields.filter, ids=ids, limit=MAX_VALUES)
        ]
        for field in fields.facets or ()
    }
    return msgspec.json.encode(facets)
