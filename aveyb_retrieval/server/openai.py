"""`/v1/embeddings` and `/v1/models`, as clients of OpenAI's server know them.

That server makes no difference between queries and documents; here the name of the model does: `NAME` encodes
documents, `NAME:query` queries.
"""

from __future__ import annotations

import base64
import time
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import JSONResponse

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.server.answers import json_answer, to_json
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.encoding import DOCUMENT, QUERY, check_dimensions, encode
from aveyb_retrieval.server.fields import Fields, choice, take_fields, text_or_texts, word
from aveyb_retrieval.server.reading import read_json
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.tei import DIMENSIONS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.types import FloatArray
    from aveyb_retrieval.server.limits import Limits

_STARTED = int(time.time())


@cache
def embeddings_fields(limits: Limits) -> Fields:
    """The fields of `/v1/embeddings`."""
    return {
        "input": text_or_texts(limits.max_batch, limits.max_text),
        "model": word(),
        "encoding_format": choice("float", "base64"),
        "dimensions": DIMENSIONS,
        "user": word(),
    }


async def embeddings(request: Request) -> Response:
    """Encode one text or several."""
    server, ticket, given = await read_json(request)
    model = server.indexes.needed_model()
    _refuse_tokens(given.get("input"))
    asked = take_fields(given, embeddings_fields(server.limits))
    names = _model_names(model.model_name)
    name = asked["model"] or next(iter(names))
    if name not in names:
        raise _no_model(name, names)
    check_dimensions(asked.get("dimensions"), model.dim)
    numbers = count()

    def write(vectors: FloatArray) -> bytes:
        """Write items of a list, without its brackets."""
        rows: list[Any] = vectors.tolist()
        if asked["encoding_format"] == "base64":
            rows = [base64.b64encode(row.tobytes()).decode("ascii") for row in np.asarray(vectors, dtype="<f4")]
        return to_json([{"object": "embedding", "index": next(numbers), "embedding": row} for row in rows])[1:-1]

    written, n_tokens = await encode(server, asked["input"], names[name], ticket, write)
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
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, int):
        raise InputError(
            "input: ids of tokens cannot be used, since they are those of another tokenizer; send texts (in LangChain "
            "OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )
