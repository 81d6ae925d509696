"""Changes over HTTP, for keys that may write: documents put and deleted, metadata changed, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents import json_lines
from aveyb_retrieval.documents.reading import Reading
from aveyb_retrieval.documents.records import Rejected
from aveyb_retrieval.errors import ConfigError, IndexLockedError, InputError
from aveyb_retrieval.server import requests
from aveyb_retrieval.server.http import Refusal, context, json_answer, to_json
from aveyb_retrieval.server.requests import JSON, JSON_LINES, read_body, read_json, read_parameters
from aveyb_retrieval.server.search import index_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.changes.change import Report
    from aveyb_retrieval.indexes.index import Index
    from aveyb_retrieval.server.http import Limits

COUNTS = ("documents", "added", "replaced", "unchanged", "deleted")


def metadata_fields(limits: Limits) -> requests.Fields:
    """The fields of `PATCH /documents/{id}`."""
    return {
        "metadata": requests.Field({"type": "object"}, _metadata, {}),
        "remove": replace(requests.texts(limits.max_batch, limits.max_query), default=()),
        "clear": requests.flag(default=False),
    }


def _metadata(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{name}: a {requests.kind_of(value)}; an object of fields with their new values is needed")
    return value


async def put_documents(request: Request) -> Response:
    """Add documents, and replace those whose ids are there: one object, a list of them, or JSON lines."""
    data, most = await read_body(request, JSON, JSON_LINES), context(request).limits.max_batch

    def change(index: Index) -> Report:
        with index.batch() as batch:  # made whole or not at all
            batch.upsert(_documents(data, most))
        return batch.report

    return await _change(request, change)


def _documents(data: bytes, most: int) -> list[Any]:
    """Read the documents of a body; one that is none refuses them all."""
    found: list[Any] = []
    for item in json_lines.read_json([data], "the body", Reading()):
        if isinstance(item, Rejected):
            raise InputError(f"{item.location}: {item.reason}; nothing was changed")
        if len(found) == most:
            raise Refusal(413, f"more than {most:,} documents, which are allowed at once; send them in parts")
        found.append(item)
    if not found:
        raise InputError("the body holds no document; send an object with a text, and an _id")
    return found


async def delete_document(request: Request) -> Response:
    """Remove a document."""
    return await _change(request, lambda index: index.delete([request.path_params["id"]], missing_ok=True))


async def change_metadata(request: Request) -> Response:
    """Set and remove metadata fields of a document, for good; the others stay, and nothing is encoded."""
    server, _, given = await read_json(request)
    asked, ids = requests.take_fields(given, metadata_fields(server.limits)), [request.path_params["id"]]
    changes: dict[str, Any] = asked.pop("metadata")
    return await _change(request, lambda index: index.update_metadata(changes, ids, **asked, missing_ok=True))


async def _change(request: Request, change: Callable[[Index], Report]) -> Response:
    """Change an index, and search its new version from now on; say what was changed."""
    server, document_id = context(request), request.path_params.get("id")
    asked = requests.take_fields(read_parameters(request), index_field(server.limits))
    name, retriever = server.indexes.named(asked["index"])

    def work() -> bytes:
        try:
            report = change(server.indexes.writer(name))
        except IndexLockedError:
            raise Refusal(409, f"index {name!r}: another process is writing to it; try again later") from None
        except (ConfigError, InputError) as error:
            raise Refusal(422, str(error).replace(str(retriever.path), name)) from None
        server.indexes.reopen(name)
        if document_id is not None and not report.deleted + report.replaced:
            raise Refusal(404, f"index {name!r}: no document has the id {document_id!r}")
        counts = {count: getattr(report, count) for count in COUNTS}
        return to_json({"index": name, "version": report.version, **counts})

    return json_answer(await server.writing.run(work, request.state.ticket))
