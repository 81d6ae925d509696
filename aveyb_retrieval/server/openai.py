"""`/v1/embeddings` and `/v1/models`, as clients of OpenAI's server know them.

That server makes no difference between queries and documents; here the name of the model does: `NAME` encodes
documents, `NAME:query` queries.
"""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import JSONResponse

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.server.answers import json_answer, to_json
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.encoding import DOCUMENT, QUERY, check_dimensions, encode
from aveyb_retrieval.server.reading import read_json, refuse_others, take_choice, take_text, take_texts
from aveyb_retrieval.server.refusals import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.types import FloatArray

_FIELDS = ("input", "model", "encoding_format", "dimensions", "user")
_STARTED = int(time.time())


async def embeddings(request: Request) -> Response:
    """Encode one text or several."""
    server = context(request)
    ticket = server.ticket(request)
    model = server.indexes.needed_model()
    fields = await read_json(request, server.limits.max_body, ticket)
    _refuse_tokens(fields.get("input"))
    names = _model_names(model.model_name)
    name = take_text(fields, "model") or next(iter(names))
    if name not in names:
        raise _no_model(name, names)
    texts, _ = take_texts(fields, "input", server.limits.max_batch, server.limits.longest(names[name]))
    encoding = take_choice(fields, "encoding_format", tuple(_WRITERS))
    check_dimensions(fields.pop("dimensions", None), model.dim)
    take_text(fields, "user")  # whose request it is makes no difference here
    refuse_others(fields, _FIELDS)
    written, n_tokens = await encode(server, texts, names[name], ticket, _WRITERS[encoding])
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    head = to_json({"object": "list", "model": name, "usage": usage})
    return json_answer(head[:-1] + b',"data":[' + written + b"]}")


async def models(request: Request) -> JSONResponse:
    """List the names of the model."""
    model = context(request).indexes.model
    names = _model_names(model.model_name) if model else {}
    return JSONResponse({"object": "list", "data": [_described(name) for name in names]})


async def model(request: Request) -> JSONResponse:
    """Describe one of the names."""
    names = _model_names(context(request).indexes.needed_model().model_name)
    name = request.path_params["name"]
    if name not in names:
        raise _no_model(name, names)
    return JSONResponse(_described(name))


def _model_names(loaded: str) -> dict[str, str]:
    """Return the names that a model has here, each with the prompt that it stands for."""
    name = Path(loaded).name
    return {name: DOCUMENT, f"{name}:{QUERY}": QUERY}


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "aveyb-retrieval"}


def _no_model(name: str, names: dict[str, str]) -> Refusal:
    known = ", ".join(map(repr, names))
    return Refusal(404, f"model={name!r}: no such model; there are {known}", code="model_not_found")


def _refuse_tokens(value: Any) -> None:
    """Raise InputError for ids of tokens, which are those of another model's tokenizer."""
    if isinstance(value, list) and value and (isinstance(value[0], int) or _is_numbers(value[0])):
        raise InputError(
            "input: ids of tokens cannot be used, since they are those of another tokenizer; send texts (in LangChain "
            "OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)


def _write_floats(vectors: FloatArray, first: int) -> bytes:
    return _write(vectors.tolist(), first)


def _write_base64(vectors: FloatArray, first: int) -> bytes:
    rows = np.asarray(vectors, dtype="<f4")
    return _write([base64.b64encode(row.tobytes()).decode("ascii") for row in rows], first)


def _write(rows: list[Any], first: int) -> bytes:
    """Write items of a list, without its brackets."""
    return to_json([{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows, first)])[1:-1]


_WRITERS = {"float": _write_floats, "base64": _write_base64}
