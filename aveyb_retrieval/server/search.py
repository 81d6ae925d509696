"""Search, documents, originals and changes: what `Retriever` and `Index` do, over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from starlette.responses import Response

from aveyb_retrieval.documents import reading
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.limits import Limits as FileLimits
from aveyb_retrieval.documents.readers.originals import read_original
from aveyb_retrieval.documents.readers.process import FileReader
from aveyb_retrieval.documents.records import MAX_PAGES, Rejected
from aveyb_retrieval.errors import ConfigError, IndexLockedError, InputError
from aveyb_retrieval.indexes.search.options import (
    Fusion,
    Granularity,
    Mode,
    SearchOptions,
    Unit,
    unknown_option,
)
from aveyb_retrieval.indexes.search.reading import LONGEST_PATTERN, MOST_MATCHES, excerpt, sections
from aveyb_retrieval.indexes.search.rerank import MAXSIM
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.search.several import MAX_INDEXES
from aveyb_retrieval.server import requests
from aveyb_retrieval.server.http import Refusal, context, json_answer, to_json
from aveyb_retrieval.server.keys import find, note_on, seen
from aveyb_retrieval.server.models import parts
from aveyb_retrieval.server.requests import JSON, JSON_LINES, read_body, read_json, read_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request

    from aveyb_retrieval.indexes.changes.change import Report
    from aveyb_retrieval.indexes.index import Index
    from aveyb_retrieval.indexes.search.hit import Result
    from aveyb_retrieval.indexes.search.reading import Document
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.server.http import Context, Limits
    from aveyb_retrieval.server.indexes import Indexes
    from aveyb_retrieval.server.work import Ticket

K = 10
MOST_FOUND = 10_000  # documents whose values are counted for a query
FACETS = 20  # fields whose values are counted, by a request
SYNONYMS, LONGEST_SYNONYM = 100, 1_000  # lines of a request, and their characters
LONGEST_FIELD = 200  # characters of the name of a field: twenty of them fit into a URL
LONGEST_PART = 1 << 20  # characters of a document in one answer, unless more are asked for
QUERIES_AT_ONCE = 8  # in one turn: others have theirs in between
HITS_AT_ONCE = 512  # passages and contexts counted as hits
PART_OF_QUERIES = 16_384  # characters of queries in one turn
LONGEST_MARKED = 20_000  # characters that are looked for on pages
LOOK_SECONDS = 20  # of processor time for pages
_LONGEST = 1 << 40  # characters
_CURSOR = "([0-9]{1,9})-([0-9a-f]{16})"


@cache
def search_fields(limits: Limits) -> requests.Fields:
    """The fields of `/search`: options go to the search, which checks them, but for what a server
    must not allow.
    """
    share = {"type": "number", "minimum": 0, "maximum": 1}
    return {
        "query": requests.text_or_texts(limits.max_batch, limits.max_query),
        "index": requests.word(),
        "indexes": replace(requests.texts(MAX_INDEXES, LONGEST_FIELD), default=None),
        "k": requests.whole(1, limits.max_k, min(K, limits.max_k)),
        "offset": requests.whole(0, limits.max_k, 0),
        "cursor": replace(
            requests.word(), schema={"type": ["string", "null"], "pattern": f"^{_CURSOR}$"}
        ),
        "text": requests.flag(default=False),
        "filter": requests.Field({"type": ["object", "null"]}, _filter, requests.ABSENT),
        "ids": requests.passed_on(
            {"type": ["array", "null"], "items": {"type": "string"}, "maxItems": 10_000}
        ),
        "facets": replace(requests.texts(FACETS, LONGEST_FIELD), default=()),
        "facets_of": requests.choice("all", "found"),
        "mode": requests.passed_on({"enum": list(get_args(Mode))}),
        "granularity": requests.passed_on({"enum": [*get_args(Granularity), None]}),
        "fusion": requests.passed_on({"enum": list(get_args(Fusion))}),
        "weight": requests.passed_on(share),
        "rerank": requests.Field({"enum": [MAXSIM, None]}, _rerank, requests.ABSENT),
        "unit": requests.passed_on({"enum": list(get_args(Unit))}),
        "per_document": requests.passed_on({"type": ["integer", "null"], "minimum": 1}),
        "diversity": requests.passed_on(share),
        "fold": requests.flag(requests.ABSENT),
        "min_score": requests.passed_on({"type": ["number", "null"]}),
        "passages": requests.whole(1, limits.max_passages, requests.ABSENT),
        "context": requests.whole(0, limits.max_context, requests.ABSENT, or_null=True),
        "candidates": requests.whole(1, limits.max_candidates, requests.ABSENT),
        "exact": requests.flag(requests.ABSENT),
        "operators": requests.flag(requests.ABSENT),
        "synonyms": replace(requests.texts(SYNONYMS, LONGEST_SYNONYM), default=requests.ABSENT),
        "boost": requests.passed_on({"type": ["object", "null"]}),
    }


def search_parameters(limits: Limits) -> requests.Fields:
    """The fields of `/search` in a URL: one query only."""
    return {**search_fields(limits), "query": requests.text(limits.max_query)}


def _filter(name: str, value: Any) -> Any:
    if not (value is None or isinstance(value, dict)):
        example = json.dumps({"year": {"$gte": 2020}})
        raise ConfigError(f"{name}: {value!r} is not an object; write it as {example}")
    return value


def _rerank(name: str, value: Any) -> Any:
    if value not in (None, MAXSIM):
        raise ConfigError(
            f"{name}={value!r}: must be {MAXSIM!r}; a server loads no models that requests name"
        )
    return value


def document_parameters(limits: Limits) -> requests.Fields:
    """The fields of `/documents/{id}`."""
    return {
        **index_field(limits),
        "start": requests.whole(0, _LONGEST, 0),
        "stop": requests.whole(0, _LONGEST, None),
        "heading": requests.word(),
        "max_tokens": requests.whole(1, _LONGEST, None),
    }


async def search(request: Request) -> Response:
    """Search an index, or several in one ranking, for one query or several, by GET or by POST."""
    server, ticket = context(request), request.state.ticket
    limits = server.limits
    given = await _given(request)
    if unknown := given.keys() - search_fields(limits).keys():
        raise ConfigError(unknown_option(min(unknown), search_fields(limits)))
    asked = requests.take_fields(given, search_fields(limits))
    single, queries = isinstance(given["query"], str), asked.pop("query")
    name, several = asked.pop("index"), asked.pop("indexes")
    name, index = _searched(server.indexes, name, several, ticket.only)
    ticket.asked = queries
    k, with_text, facets = asked.pop("k"), asked.pop("text"), asked.pop("facets")
    follow = asked.pop("facets_of") == "found"
    offset, of_search = _beginning(asked.pop("cursor"), asked.pop("offset"), single=single)
    if of_search is not None:  # the last page is shorter
        k = min(k, max(1, limits.max_k - offset))
    if offset + k > limits.max_k:
        raise ConfigError(
            f"offset={offset} and k={k}: together they must be at most {limits.max_k}"
        )
    if len(queries) * (offset + k) > limits.max_hits:
        raise Refusal(
            413,
            f"{len(queries)} queries, {offset + k} hits each: at most {limits.max_hits:,} hits at"
            " once",
        )
    options = cast("SearchOptions", {**asked, "offset": offset})
    # one more than is shown says whether there are more
    wanted = min(k + 1, limits.max_k - offset)

    page = _Page(name, several, options, k, wanted, of_search, with_text)
    work = partial(server.processes.call, _search_part, ticket, page)
    results: list[bytes] = []
    at_once = 1 if with_text else _queries_at_once(offset + wanted, options)
    async for found in server.searching.each(
        work, parts(queries, at_once, PART_OF_QUERIES), ticket
    ):
        ticket.answer(sum(map(len, found)))
        results += found
    among, ids = options.get("filter"), options.get("ids")

    def count() -> bytes:
        within = _found_by_words(index, queries, options) if follow else ids
        counted = {field: index.values(field, among, ids=within) for field in facets}
        return to_json(
            {f: [{"value": v, "count": n} for v, n in found] for f, found in counted.items()}
        )

    counted = await server.searching.run(count, ticket) if facets else b"{}"
    ticket.answer(len(counted))
    head = b'{"index":' + to_json(name) + b',"facets":' + counted + b","
    return json_answer(
        head + results[0][1:] if single else head + b'"results":[' + b",".join(results) + b"]}"
    )


@dataclass(frozen=True)
class _Page:
    """What is asked for of each query, as it is told to a process that searches."""

    name: str | None
    several: Sequence[str] | None
    options: SearchOptions
    k: int
    wanted: int
    of_search: str | None
    with_text: bool


def _search_part(indexes: Indexes, ticket: Ticket, page: _Page, part: list[str]) -> list[bytes]:
    """Search for some queries of a request; return what is written of each."""
    name, index = _searched(indexes, page.name, page.several, ticket.only)
    version, offset = index.version, page.options["offset"]
    found = index.search(part, page.wanted, **page.options)
    note = "" if any(found) else note_on(index, page.options.get("filter"))
    results = []
    for query, result in zip(part, found, strict=True):
        searched = _searched_for(page.options, query, page.several or name, version)
        if page.of_search not in (None, searched):
            raise Refusal(
                409,
                f"cursor='{offset}-{page.of_search}': of another search, or the index has changed"
                f" since (it is at version {version}); ask for the first page again",
            )
        told = {
            "note": note,
            "next": f"{offset + page.k}-{searched}" if len(result) > page.k else None,
        }
        results.append(_result(query, result, page.k, told, page.with_text, ticket))
    return results


def _searched(
    indexes: Indexes, name: str | None, several: Sequence[str] | None, only: Filter | None
) -> tuple[str | None, Retriever]:
    if several is None:
        return indexes.named(name, only)
    if name is not None:
        raise ConfigError("index and indexes: give one of them")
    return None, Retriever.load({each: indexes.named(each, only)[1] for each in several})


def _found_by_words(index: Retriever, queries: list[str], options: SearchOptions) -> list[str]:
    """The ids of the best documents that hold words of the queries, at most
    `MOST_FOUND` for each.
    """
    conditions: Any = {
        name: options[name]
        for name in ("filter", "ids", "operators", "synonyms")
        if name in options
    }
    found = index.rank(queries, MOST_FOUND, mode="lexical", **conditions)
    return list({document_id for ranked in found for document_id, _ in ranked})


def _queries_at_once(wanted: int, options: SearchOptions) -> int:
    """How many queries are searched in one turn: what is found for them is in memory at once."""
    passages = options.get("passages", 1) * (1 + 2 * (options.get("context") or 0))
    return max(1, min(QUERIES_AT_ONCE, HITS_AT_ONCE // (wanted * passages)))


def _beginning(cursor: str | None, offset: int, *, single: bool) -> tuple[int, str | None]:
    """Where a page begins, and which search (see `_searched_for`) its cursor is of."""
    if cursor is None:
        return offset, None
    found = re.fullmatch(_CURSOR, cursor, re.ASCII)
    if found is None or offset or not single:
        raise ConfigError(
            f"cursor={cursor[:80]!r}: give the `next` of an answer to one query, and no offset"
        )
    return int(found[1]), found[2]


def _searched_for(options: Mapping[str, Any], query: str, index: Any, version: str) -> str:
    """What tells a search from others: the query, the options but for the offset, and the version
    of the index.
    """
    told = json.dumps(
        [{**options, "offset": 0}, query, index, version], sort_keys=True, default=str
    )
    return hashlib.sha256(told.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _result(
    query: str, result: Result, k: int, told: Mapping[str, Any], with_text: bool, ticket: Ticket
) -> bytes:
    written: list[bytes] = []
    size = 0
    for hit in result[:k]:
        written.append(to_json(hit.to_dict(text=with_text)))
        size += len(written[-1])
        ticket.check_answer(size)
    beside = {"words": result.words, "unmet": result.unmet, "suggestions": result.suggestions}
    head = to_json({"query": query, **beside, **told})
    return head[:-1] + b',"hits":[' + b",".join(written) + b"]}"


def index_field(limits: Limits) -> requests.Fields:
    """The field that says which index is meant, where that is all."""
    return {"index": search_fields(limits)["index"]}


async def document(request: Request) -> Response:
    """Return one document, or the characters `start` to `stop` of it."""
    server, ticket, asked, name, index = await _ask(request, document_parameters)
    start, stop = asked["start"], asked["stop"]

    def work() -> bytes:
        found = _found(name, index, request.path_params["id"])
        length = len(found.text)
        first, last = (
            min(start, length),
            min(start + LONGEST_PART if stop is None else stop, length),
        )
        if heading := asked["heading"]:
            first, last = excerpt(found, heading=heading, max_tokens=_LONGEST).span
        last = max(first, last)
        if budget := asked["max_tokens"]:
            last = excerpt(found, span=(first, last), max_tokens=budget).span[1]
        shown = found.text[first:last]
        ticket.check_answer(len(shown))  # before it is written
        own = {"index": name, "id": found.id, "title": found.title, "metadata": found.metadata}
        original = server.originals and found.origin is not None
        return to_json(
            {**own, "text": shown, "span": [first, last], "length": length, "original": original}
        )

    return await _answered(server, work, ticket)


Asked = tuple["Context", "Ticket", dict[str, Any], str, Retriever]


async def _ask(request: Request, fields: Callable[[Limits], requests.Fields]) -> Asked:
    server, ticket = context(request), request.state.ticket
    asked = requests.take_fields(await _given(request), fields(server.limits))
    name, index = server.indexes.named(asked.pop("index"), ticket.only)
    return server, ticket, asked, name, index


async def _given(request: Request) -> dict[str, Any]:
    return (await read_json(request))[2] if request.method == "POST" else read_parameters(request)


def _found(name: str, index: Retriever, document_id: str) -> Document:
    if (found := find(index, document_id)) is None:
        raise Refusal(404, f"index {name!r}: no document has the id {document_id!r}")
    return found


async def _answered(server: Context, work: Callable[[], bytes], ticket: Ticket) -> Response:
    written = await server.searching.run(work, ticket)
    ticket.answer(len(written))
    return json_answer(written)


def check_fields(limits: Limits) -> requests.Fields:
    """The fields of `/check`."""
    known = search_fields(limits)
    return {
        "answer": requests.text(limits.max_text),
        "index": known["index"],
        "filter": known["filter"],
    }


async def check(request: Request) -> Response:
    """Look for the quotations of an answer in the documents, word for word."""
    server, ticket, asked, name, index = await _ask(request, check_fields)
    ticket.asked = [asked["answer"]]

    def work() -> bytes:
        found = index.check_quotes(asked["answer"], filter=asked.get("filter"))
        return to_json({"index": name, "quotes": [each.to_dict() for each in found]})

    return await _answered(server, work, ticket)


def grep_fields(limits: Limits) -> requests.Fields:
    """The fields of `/grep`."""
    known, limit = search_fields(limits), requests.whole(1, MOST_MATCHES, 100)
    how = {
        "pattern": requests.text(LONGEST_PATTERN),
        "ignore_case": requests.flag(default=False),
        "limit": limit,
    }
    return {**how, "index": known["index"], "filter": known["filter"]}


async def grep(request: Request) -> Response:
    """Find where a regular expression matches in the texts."""
    server, ticket, asked, name, index = await _ask(request, grep_fields)
    pattern = asked.pop("pattern")
    ticket.asked = [pattern]

    def work() -> bytes:
        return to_json(
            {"index": name, "matches": [vars(each) for each in index.grep(pattern, **asked)]}
        )

    return await _answered(server, work, ticket)


def outline_parameters(limits: Limits) -> requests.Fields:
    """The fields of `/outline`."""
    return {
        **index_field(limits),
        "under": requests.word(),
        "offset": requests.whole(0, _LONGEST, 0),
    }


async def outline(request: Request) -> Response:
    """List the documents with what they are called, oldest first; where they are many, folders and
    their numbers.
    """
    server, ticket, asked, name, index = await _ask(request, outline_parameters)
    under, offset = asked["under"] or "", asked["offset"]

    def work() -> bytes:
        found = index.contents(under, offset=offset)
        folders = [{"under": path, "documents": count} for path, count in found.folders]
        listed = [{"id": each.id, "name": each.name} for each in found.documents]
        following = offset + len(folders) + len(listed) if found.left else None
        return to_json({"index": name, "folders": folders, "documents": listed, "next": following})

    return await _answered(server, work, ticket)


async def headings(request: Request) -> Response:
    """List the headings of a document, each with the characters up to the next one."""
    server, ticket, _, name, index = await _ask(request, index_field)

    def work() -> bytes:
        found = _found(name, index, request.path_params["id"])
        return to_json(
            {
                "index": name,
                "id": found.id,
                "sections": [each._asdict() for each in sections(found)],
            }
        )

    return await _answered(server, work, ticket)


async def original(request: Request) -> Response:
    """Give the file that a document was read from, byte by byte as it was read."""
    server, ticket, _, name, index = await _ask(request, index_field)
    document_id = request.path_params["id"]

    def work() -> bytes:
        found = find(index, document_id) if server.originals else None
        try:
            return read_original(
                document_id, found.origin if found else None, server.limits.max_answer
            )
        except InputError:  # which names folders of this machine
            why = "it has changed, is too large, or --originals is not given"
            raise Refusal(
                404, f"index {name!r}: no file of {document_id!r} is given out: {why}"
            ) from None

    data = await server.searching.run(work, ticket)
    ticket.answer(len(data))
    # to be kept, not shown: a page among them would be one of this server's
    return Response(
        data, media_type="application/octet-stream", headers={"Content-Disposition": "attachment"}
    )


def boxes_parameters(limits: Limits) -> requests.Fields:
    """The fields of `/boxes/{id}`."""
    place = replace(requests.whole(0, _LONGEST, 0), default=requests.NEEDED)
    return {**index_field(limits), "start": place, "stop": place}


def page_parameters(limits: Limits) -> requests.Fields:
    """The fields of `/pages/{id}`."""
    place = requests.whole(0, _LONGEST, 0)
    page = replace(requests.whole(1, MAX_PAGES, 1), default=requests.NEEDED)
    return {**index_field(limits), "page": page, "start": place, "stop": place}


async def boxes(request: Request) -> Response:
    """Give the rectangles of characters on the pages of the PDF that a document was read from."""
    name, looked = await _look(request, boxes_parameters)
    return json_answer(
        to_json({"index": name, "id": request.path_params["id"], "boxes": looked["boxes"]})
    )


async def page(request: Request) -> Response:
    """Give a page of the PDF that a document was read from as a picture, with characters marked."""
    _, looked = await _look(request, page_parameters)
    return Response(base64.b64decode(looked["picture"]), media_type="image/png")


async def _look(
    request: Request, fields: Callable[[Limits], requests.Fields]
) -> tuple[str, dict[str, Any]]:
    """Look into an original in another process, which a file that is made for it may end."""
    server, ticket, asked, name, index = await _ask(request, fields)
    document_id, start, stop = request.path_params["id"], asked["start"], asked["stop"]
    if stop - start > LONGEST_MARKED:
        raise ConfigError(
            f"start={start} and stop={stop}: at most {LONGEST_MARKED:,} characters can be marked at"
            " once"
        )

    def work() -> dict[str, Any]:
        found = find(index, document_id) if server.originals else None
        try:
            if found is None or (origin := found.origin) is None or origin.pages is None:
                raise Unreadable("no document of a PDF")
            told = [origin.sha256, origin.folder, origin.pages.to_dict()]
            most, span = (
                server.limits.max_answer,
                [min(place, len(found.text)) for place in (start, stop)],
            )
            with FileReader(FileLimits(), LOOK_SECONDS) as reader:
                looked = reader.look(
                    name=found.id,
                    text=found.text,
                    span=span,
                    origin=told,
                    page=asked.get("page"),
                    most=most,
                )
        except Unreadable:  # which names folders of this machine
            why = (
                "it is no PDF, has changed or no such page, is too large, or --originals is not"
                " given"
            )
            raise Refusal(
                404, f"index {name!r}: no page of {document_id!r} is given out: {why}"
            ) from None
        ticket.check_answer(len(looked.get("picture", "")))
        return looked

    looked = await server.searching.run(work, ticket)
    ticket.answer(len(looked.get("picture", "")))
    return name, looked


async def indexes(request: Request) -> Response:
    """List the indexes and what can be asked of them."""
    server, ticket = context(request), request.state.ticket
    requests.take_fields(read_parameters(request), {})
    retrievers, model = server.indexes.retrievers, server.indexes.model

    def work() -> bytes:
        listed = [
            {"name": name, "version": each.version, "documents": seen(each, ticket.only).count()}
            for name, each in retrievers.items()
        ]
        name = Path(model.model_name).name if model else None
        return to_json({"indexes": listed, "model": name, "max_k": server.limits.max_k})

    return await _answered(server, work, ticket)


COUNTS = ("documents", "added", "replaced", "updated", "unchanged", "deleted")


def metadata_fields(limits: Limits) -> requests.Fields:
    """The fields of `PATCH /documents/{id}`."""
    return {
        "metadata": requests.Field({"type": "object"}, _metadata, {}),
        "remove": replace(requests.texts(limits.max_batch, limits.max_query), default=()),
        "clear": requests.flag(default=False),
    }


def _metadata(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise InputError(
            f"{name}: a {requests.kind_of(value)}; an object of fields with their new values is"
            " needed"
        )
    return value


async def put_documents(request: Request) -> Response:
    """Add documents, and replace those whose ids are there: one object, a list of them, or JSON
    lines.
    """
    data, most = await read_body(request, JSON, JSON_LINES), context(request).limits.max_batch

    def change(index: Index) -> Report:
        with index.batch() as batch:  # made whole or not at all
            batch.upsert(_documents(data, most))
        return batch.report

    return await _change(request, change)


def _documents(data: bytes, most: int) -> list[Any]:
    found: list[Any] = []
    for item in reading.read_json([data], "the body", reading.Reading()):
        if isinstance(item, Rejected):
            raise InputError(f"{item.location}: {item.reason}; nothing was changed")
        if len(found) == most:
            raise Refusal(
                413, f"more than {most:,} documents, which are allowed at once; send them in parts"
            )
        found.append(item)
    if not found:
        raise InputError("the body holds no document; send an object with a text, and an _id")
    return found


async def delete_document(request: Request) -> Response:
    """Remove a document."""
    return await _change(
        request, lambda index: index.delete([request.path_params["id"]], missing_ok=True)
    )


async def change_metadata(request: Request) -> Response:
    """Set and remove metadata fields of a document, for good; the others stay, and nothing is
    encoded.
    """
    server, _, given = await read_json(request)
    asked, ids = (
        requests.take_fields(given, metadata_fields(server.limits)),
        [request.path_params["id"]],
    )
    changes: dict[str, Any] = asked.pop("metadata")
    return await _change(
        request, lambda index: index.update_metadata(changes, ids, **asked, missing_ok=True)
    )


async def _change(request: Request, change: Callable[[Index], Report]) -> Response:
    server, document_id = context(request), request.path_params.get("id")
    asked = requests.take_fields(read_parameters(request), index_field(server.limits))
    name, index = server.indexes.named(asked["index"])

    def work() -> bytes:
        try:
            report = change(server.indexes.writer(name))
        except IndexLockedError:
            raise Refusal(
                409, f"index {name!r}: another process is writing to it; try again later"
            ) from None
        except (ConfigError, InputError) as error:
            raise Refusal(422, str(error).replace(str(index.path), name)) from None
        server.indexes.reopen(name)
        concerned = report.deleted + report.replaced + report.updated + report.unchanged
        if document_id is not None and not concerned:
            raise Refusal(404, f"index {name!r}: no document has the id {document_id!r}")
        counts = {count: getattr(report, count) for count in COUNTS}
        return to_json({"index": name, "version": report.version, **counts})

    return json_answer(await server.writing.run(work, request.state.ticket))
