"""The files that documents were read from, over HTTP: whole, or pages of a PDF."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from aveyb_retrieval.documents.readers.file_limits import Limits as FileLimits
from aveyb_retrieval.documents.readers.filetext import Unreadable
from aveyb_retrieval.documents.readers.originals import read_original
from aveyb_retrieval.documents.readers.process import FileReader
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.server.answer_types import BoxAnswer, Boxes
from aveyb_retrieval.server.calls import read_call
from aveyb_retrieval.server.context import json_answer
from aveyb_retrieval.server.keys import find
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.request_types import MAX_MARKED, BoxesOf, OfIndex, PageOf

if TYPE_CHECKING:
    from starlette.requests import Request

    from aveyb_retrieval.server.calls import Call

LOOK_SECONDS = 20  # of processor time for pages


async def original(request: Request) -> Response:
    """Give the file that a document was read from, byte by byte as it was read."""
    call = await read_call(request, OfIndex)
    document_id = request.path_params["id"]

    def work() -> bytes:
        stored = find(call.index, document_id) if call.server.originals else None
        origin = stored.origin if stored else None
        try:
            return read_original(document_id, origin, call.server.limits.max_answer)
        except InputError:  # which names folders of this machine
            reason = "it has changed, is too large, or --originals is not given"
            raise Refusal(
                404, f"index {call.name!r}: no file of {document_id!r} is given out: {reason}"
            ) from None

    data = await call.server.searching.run(work, call.ticket)
    call.ticket.answer(len(data))
    # to be saved, not shown: a page among them would be one of this server's
    return Response(
        data, media_type="application/octet-stream", headers={"Content-Disposition": "attachment"}
    )


async def boxes(request: Request) -> Response:
    """Give the rectangles of characters on the pages of the PDF that a document was read from."""
    call = await read_call(request, BoxesOf)
    document_id = request.path_params["id"]
    looked = await _look(call, document_id, (call.fields.start, call.fields.stop), None)
    rectangles = [BoxAnswer(**box) for box in looked["boxes"]]
    return json_answer(
        msgspec.json.encode(Boxes(index=call.name, id=document_id, boxes=rectangles))
    )


async def page(request: Request) -> Response:
    """Give a page of the PDF that a document was read from as a picture, with characters marked."""
    call = await read_call(request, PageOf)
    document_id, marked = request.path_params["id"], (call.fields.start, call.fields.stop)
    looked = await _look(call, document_id, marked, call.fields.page)
    return Response(base64.b64decode(looked["picture"]), media_type="image/png")


async def _look(
    call: Call[OfIndex], document_id: str, span: tuple[int, int], page: int | None
) -> dict[str, Any]:
    """Look into an original in another process, which a hostile file may crash.

    Returns `boxes`, the rectangles of the characters `span`, and `picture`, a page as PNG in
    base64, if a page is asked for.
    """
    start, stop = span
    if stop - start > MAX_MARKED:
        raise ConfigError(
            f"start={start} and stop={stop}: at most {MAX_MARKED:,} characters can be marked at"
            " once"
        )

    def work() -> dict[str, Any]:
        stored = find(call.index, document_id) if call.server.originals else None
        try:
            if stored is None or (origin := stored.origin) is None or origin.pages is None:
                raise Unreadable("no document of a PDF")
            length = len(stored.text)
            with FileReader(FileLimits(), LOOK_SECONDS) as reader:
                looked = reader.look(
                    name=stored.id,
                    text=stored.text,
                    span=[min(start, length), min(stop, length)],
                    origin=[origin.sha256, origin.folder, origin.pages.to_dict()],
                    page=page,
                    most=call.server.limits.max_answer,
                )
        except Unreadable:  # which names folders of this machine
            reason = (
                "it is no PDF, has changed or no such page, is too large, or --originals is not"
                " given"
            )
            raise Refusal(
                404, f"index {call.name!r}: no page of {document_id!r} is given out: {reason}"
            ) from None
        call.ticket.check_answer(len(looked.get("picture", "")))
        return looked

    looked = await call.server.searching.run(work, call.ticket)
    call.ticket.answer(len(looked.get("picture", "")))
    return looked
