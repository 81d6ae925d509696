"""Changes of documents over HTTP, one after the other: what `Index` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from aveyb_retrieval.documents import reading
from aveyb_retrieval.documents.records import Rejected
from aveyb_retrieval.errors import ConfigError, IndexLockedError, InputError
from aveyb_retrieval.server.answer_types import Changed
from aveyb_retrieval.server.context import context, json_answer
from aveyb_retrieval.server.fields import (
    JSON,
    JSON_LINES,
    read,
    read_body,
    read_parameters,
    take,
)
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.request_types import MetadataChange, OfIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.changes.change import Report
    from aveyb_retrieval.indexes.index import Index


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
    documents: list[Any] = []
    for item in reading.read_json([data], "the body", reading.Reading()):
        if isinstance(item, Rejected):
            raise InputError(f"{item.location}: {item.reason}; nothing was changed")
        if len(documents) == most:
            raise Refusal(
                413, f"more than {most:,} documents, which are allowed at once; send them in parts"
            )
        documents.append(item)
    if not documents:
        raise InputError("the body holds no document; send an object with a text, and an _id")
    return documents


async def delete_document(request: Request) -> Response:
    """Remove a document."""
    document_id = request.path_params["id"]
    return await _change(request, lambda index: index.delete([document_id], missing_ok=True))


async def change_metadata(request: Request) -> Response:
    """Set and remove metadata fields of a document, for good; the others stay, and nothing is
    encoded.
    """
    fields = await read(request, MetadataChange)
    ids = [request.path_params["id"]]
    return await _change(
        request,
        lambda index: index.update_metadata(
            fields.metadata or {},
            ids,
            remove=fields.remove or (),
            clear=fields.clear,
            missing_ok=True,
        ),
    )


async def _change(request: Request, change: Callable[[Index], Report]) -> Response:
    """Change the index that the URL names, and open its new version."""
    server, document_id = context(request), request.path_params.get("id")
    fields = take(OfIndex, read_parameters(request, OfIndex))
    name, index = server.indexes.named(fields.index)

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
        changed = Changed(
            index=name,
            version=report.version,
            documents=report.documents,
            added=report.added,
            replaced=report.replaced,
            updated=report.updated,
            unchanged=report.unchanged,
            deleted=report.deleted,
        )
        return msgspec.json.encode(changed)

    return json_answer(await server.writing.run(work, request.state.ticket))
