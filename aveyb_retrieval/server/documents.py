"""Documents without a search, over HTTP: texts, quotations, matches, headings, and the indexes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.search.stored_documents import excerpt, sections
from aveyb_retrieval.server.answer_types import (
    Checked,
    DocumentAnswer,
    DocumentName,
    Folder,
    Headings,
    IndexList,
    Matches,
    Outline,
    SectionAnswer,
    ServedIndex,
)
from aveyb_retrieval.server.calls import answer, read_call
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.fields import read
from aveyb_retrieval.server.keys import find, seen
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.request_types import (
    DEFAULT_CHARACTERS,
    MAX_WHOLE_NUMBER,
    Check,
    DocumentPart,
    Grep,
    Nothing,
    OfIndex,
    OutlinePage,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.search.stored_documents import Document
    from aveyb_retrieval.server.calls import Call


async def document(request: Request) -> Response:
    """Return one document, or the characters `start` to `stop` of it."""
    call = await read_call(request, DocumentPart)
    document_id = request.path_params["id"]

    def work() -> DocumentAnswer:
        stored = _find(call, document_id)
        first, last = _part(stored, call.fields)
        text = stored.text[first:last]
        call.ticket.check_answer(len(text))  # before it is written
        return DocumentAnswer(
            index=call.name,
            id=stored.id,
            title=stored.title,
            metadata=stored.metadata,
            text=text,
            span=(first, last),
            length=len(stored.text),
            original=call.server.originals and stored.origin is not None,
        )

    return await answer(call.server, call.ticket, work)


def _part(stored: Document, fields: DocumentPart) -> tuple[int, int]:
    """Return the characters of a document that a request is about, `[first, last)`."""
    length = len(stored.text)
    stop = fields.start + DEFAULT_CHARACTERS if fields.stop is None else fields.stop
    first, last = min(fields.start, length), min(stop, length)
    if fields.heading:
        first, last = excerpt(stored, heading=fields.heading, max_tokens=MAX_WHOLE_NUMBER).span
    last = max(first, last)
    if fields.max_tokens:
        last = excerpt(stored, span=(first, last), max_tokens=fields.max_tokens).span[1]
    return first, last


def _find(call: Call[OfIndex], document_id: str) -> Document:
    stored = find(call.index, document_id)
    if stored is None:
        raise Refusal(404, f"index {call.name!r}: no document has the id {document_id!r}")
    return stored


async def check(request: Request) -> Response:
    """Look for the quotations of an answer in the documents, word for word."""
    call = await read_call(request, Check)
    call.ticket.questions = [call.fields.answer]

    def work() -> Checked:
        quotes = call.index.check_quotes(call.fields.answer, filter=call.fields.filter)
        return Checked(index=call.name, quotes=quotes)

    return await answer(call.server, call.ticket, work)


async def grep(request: Request) -> Response:
    """Find where a regular expression matches in the texts."""
    call = await read_call(request, Grep)
    call.ticket.questions = [call.fields.pattern]

    def work() -> Matches:
        matches = call.index.grep(
            call.fields.pattern,
            filter=call.fields.filter,
            limit=call.fields.limit,
            ignore_case=call.fields.ignore_case,
        )
        return Matches(index=call.name, matches=matches)

    return await answer(call.server, call.ticket, work)


async def outline(request: Request) -> Response:
    """List the documents with their names, oldest first; above 200, their folders with counts."""
    call = await read_call(request, OutlinePage)

    def work() -> Outline:
        contents = call.index.contents(call.fields.under or "", offset=call.fields.offset)
        folders = [Folder(under=path, documents=count) for path, count in contents.folders]
        documents = [DocumentName(id=stored.id, name=stored.name) for stored in contents.documents]
        return Outline(
            index=call.name,
            folders=folders,
            documents=documents,
            next=call.fields.offset + contents.entry_count if contents.left else None,
        )

    return await answer(call.server, call.ticket, work)


async def headings(request: Request) -> Response:
    """List the headings of a document, each with the characters up to the next one."""
    call = await read_call(request, OfIndex)
    document_id = request.path_params["id"]

    def work() -> Headings:
        stored = _find(call, document_id)
        listed = [SectionAnswer(**section._asdict()) for section in sections(stored)]
        return Headings(index=call.name, id=stored.id, sections=listed)

    return await answer(call.server, call.ticket, work)


async def indexes(request: Request) -> Response:
    """List the indexes and what can be asked of them."""
    server, ticket = context(request), request.state.ticket
    await read(request, Nothing)
    retrievers, model = server.indexes.retrievers, server.indexes.model

    def work() -> IndexList:
        served = [
            ServedIndex(
                name=name,
                version=retriever.version,
                documents=seen(retriever, ticket.only).count(),
            )
            for name, retriever in retrievers.items()
        ]
        model_name = Path(model.model_name).name if model else None
        return IndexList(indexes=served, model=model_name, max_k=server.limits.max_k)

    return await answer(server, ticket, work)
