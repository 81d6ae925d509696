"""Routes of the model: embeddings as OpenAI's clients ask for them, reranking as Cohere's do.

OpenAI's server makes no difference between queries and documents; here the name of the model does:
`NAME` encodes documents, `NAME:query` queries.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import JSONResponse

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.search.rerank import maxsim
from aveyb_retrieval.server import requests
from aveyb_retrieval.server.http import Refusal, context, json_answer, to_json
from aveyb_retrieval.server.indexes import MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.types import FloatArray
    from aveyb_retrieval.server.http import Context, Limits
    from aveyb_retrieval.server.work import Ticket

QUERY, DOCUMENT = "query", "document"
PART_CHARACTERS = 65_536  # characters that are encoded before others have their turn
_RERANKED = 32  # texts whose token vectors are in memory at once

Write = Callable[["FloatArray"], bytes]


async def encode(
    server: Context, texts: Sequence[str], prompt: str, ticket: Ticket, write: Write
) -> tuple[bytes, int]:
    """Encode texts as queries or as documents; return what is written of them, with commas between,
    and tokens read.

    `write` gets the float32 unit rows `[n, d]` of all texts, part after part.
    """
    model = server.indexes.needed_model()

    def work(part: list[str]) -> tuple[bytes, int]:
        if prompt == QUERY:
            return write(model.encode_queries(part)), sum(
                model.model.count_tokens(part, prompt=QUERY)
            )
        encoded = list(model.encode_documents(("", text) for text in part))
        return write(np.stack([each.vector for each in encoded])), sum(
            each.n_tokens for each in encoded
        )

    if prompt == QUERY:
        for number, text in enumerate(texts, start=1):
            requests.check_length(f"query {number} of {len(texts)}", text, server.limits.max_query)
    written: list[bytes] = []
    n_tokens = 0
    async for found, read in server.encoding.each(work, parts(texts, MAX_BATCH), ticket):
        ticket.answer(len(found) + 1)
        written.append(found)
        n_tokens += read
    return b",".join(written), n_tokens


def parts(
    texts: Sequence[str], most: int, characters: int = PART_CHARACTERS
) -> Iterator[list[str]]:
    """Cut a list of texts into lists of at most `most` texts and, but for a single longer one, so
    many characters.
    """
    part: list[str] = []
    size = 0
    for text in texts:
        if part and (len(part) == most or size + len(text) > characters):
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


_STARTED = int(time.time())


@cache
def embeddings_fields(limits: Limits) -> requests.Fields:
    """The fields of `/v1/embeddings`."""
    return {
        "input": requests.text_or_texts(limits.max_batch, limits.max_text),
        "model": requests.word(),
        "encoding_format": requests.choice("float", "base64"),
        "dimensions": requests.passed_on({"type": ["integer", "null"]}),
        "user": requests.word(),
    }


async def embeddings(request: Request) -> Response:
    """Encode one text or several."""
    server, ticket, given = await requests.read_json(request)
    model = server.indexes.needed_model()
    value = given.get("input")
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, int):
        raise InputError(
            "input: ids of tokens cannot be used, since they are those of another tokenizer; send"
            " texts (in LangChain OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )
    asked = requests.take_fields(given, embeddings_fields(server.limits))
    names = _model_names(model.model_name)
    name = asked["model"] or next(iter(names))
    if name not in names:
        raise _no_model(name, names)
    dimensions = asked.get("dimensions")
    if dimensions is not None and (isinstance(dimensions, bool) or dimensions != model.dim):
        raise ConfigError(
            f"dimensions={dimensions!r}: this model's vectors have {model.dim} and cannot be"
            " shortened"
        )
    numbers = count()

    def write(vectors: FloatArray) -> bytes:
        rows: list[Any] = vectors.tolist()
        if asked["encoding_format"] == "base64":
            rows = [
                base64.b64encode(row.tobytes()).decode("ascii")
                for row in np.asarray(vectors, dtype="<f4")
            ]
        return to_json(
            [{"object": "embedding", "index": next(numbers), "embedding": row} for row in rows]
        )[1:-1]

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
    name = Path(loaded).name
    return {name: DOCUMENT, f"{name}:{QUERY}": QUERY}


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "aveyb-retrieval"}


def _no_model(name: str, names: dict[str, str]) -> Refusal:
    known = ", ".join(map(repr, names))
    return Refusal(404, f"model={name!r}: no such model; there are {known}", "model_not_found")


_MANY = 1 << 40
# texts are read whole, and in turn
_GRANTED = ("max_tokens_per_doc", "max_chunks_per_doc", "priority")


@cache
def cohere_rerank_fields(limits: Limits) -> requests.Fields:
    """The fields of a request."""
    documents = requests.texts(limits.max_batch, limits.max_rerank_text)
    one = documents.schema["items"]
    as_object = {"type": "object", "properties": {"text": one}, "required": ["text"]}

    def take(name: str, value: Any) -> Any:
        if isinstance(value, list):  # both servers also take objects with a field `text`
            value = [each.get("text") if isinstance(each, dict) else each for each in value]
        return documents.take(name, value)

    return {
        "query": requests.text(limits.max_query),
        "documents": requests.Field(
            {**documents.schema, "items": {"anyOf": [one, as_object]}}, take
        ),
        "model": requests.word(),
        "top_n": requests.whole(1, _MANY, None, or_null=True),
        "return_documents": requests.flag(default=False),
        **{name: requests.whole(0, _MANY, None, or_null=True) for name in _GRANTED},
    }


async def cohere_rerank(request: Request) -> Response:
    """Order documents by late interaction with a query."""
    server, ticket, given = await requests.read_json(request)
    model = server.indexes.needed_model()
    asked = requests.take_fields(given, cohere_rerank_fields(server.limits))
    query, found, scores = asked["query"], asked["documents"], list[float]()
    in_parts = server.encoding.each(
        lambda part: maxsim(model, "cpu", query, part), parts(found, _RERANKED), ticket
    )
    async for some in in_parts:
        scores += some
    best = np.argsort(-np.asarray(scores), kind="stable").tolist()[: asked["top_n"]]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in best]
    if asked["return_documents"]:
        results = [{**each, "document": {"text": found[each["index"]]}} for each in results]
    return json_answer(
        to_json({"id": str(uuid.uuid4()), "model": Path(model.model_name).name, "results": results})
    )
