"""Routes of the model: embeddings as OpenAI's clients ask for them, reranking as Cohere's do.

OpenAI's server does not tell queries from documents; here the name of the model does: `NAME`
encodes documents, `NAME:query` queries.
"""

from __future__ import annotations

import base64
import time
import uuid
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.search.rerank import maxsim
from aveyb_retrieval.server.answer_types import (
    Embedding,
    Embeddings,
    Model,
    Models,
    Ranked,
    RankedText,
    Reranked,
    Usage,
)
from aveyb_retrieval.server.batching import MAX_BATCH_QUERIES
from aveyb_retrieval.server.context import context, json_answer, raw_list
from aveyb_retrieval.server.fields import check_length, read_object, take
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.request_types import Embed, Rerank, with_limits
from aveyb_retrieval.server.work import parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.types import FloatArray
    from aveyb_retrieval.server.batching import BatchedModel

QUERY, DOCUMENT = "query", "document"
RERANKED_TEXTS = 32  # texts whose token vectors are in memory at once
_STARTED = int(time.time())


async def embeddings(request: Request) -> Response:
    """Encode one text or several."""
    server, ticket = context(request), request.state.ticket
    body = await read_object(request)
    model = server.indexes.needed_model()
    _refuse_token_ids(body.get("input"))
    fields = take(with_limits(Embed, server.limits), body)
    prompts = _prompts_by_name(model.model_name)
    name = fields.model or next(iter(prompts))
    if name not in prompts:
        raise _no_model(name, prompts)
    if fields.dimensions not in (None, model.dim):
        raise ConfigError(
            f"dimensions={fields.dimensions!r}: this model's vectors have {model.dim} and cannot be"
            " shortened"
        )
    texts = [fields.input] if isinstance(fields.input, str) else fields.input
    if prompts[name] == QUERY:
        for number, text in enumerate(texts, start=1):
            check_length(f"query {number} of {len(texts)}", text, server.limits.max_query)
    encode = _encode_queries if prompts[name] == QUERY else _encode_documents
    write: Callable[[FloatArray], list[float] | str] = _numbers
    if fields.encoding_format == "base64":
        write = _base64
    numbers = count()

    def work(part: list[str]) -> tuple[list[bytes], int]:
        vectors, n_tokens = encode(model, part)
        written = [
            msgspec.json.encode(
                Embedding(object="embedding", index=next(numbers), embedding=write(vector))
            )
            for vector in vectors
        ]
        return written, n_tokens

    data: list[bytes] = []
    n_tokens = 0
    async for written, read in server.encoding.each(work, parts(texts, MAX_BATCH_QUERIES), ticket):
        ticket.answer(sum(map(len, written)) + len(written))
        data += written
        n_tokens += read
    answer = Embeddings(
        object="list",
        model=name,
        usage=Usage(prompt_tokens=n_tokens, total_tokens=n_tokens),
        data=raw_list(data),
    )
    return json_answer(msgspec.json.encode(answer))


def _refuse_token_ids(texts: Any) -> None:
    """Raise InputError if a client sends ids of tokens."""
    first = texts[0] if isinstance(texts, list) and texts else None
    if isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, int):
        raise InputError(
            "input: ids of tokens cannot be used, since they are those of another tokenizer; send"
            " texts (in LangChain OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )


def _encode_queries(model: BatchedModel, texts: list[str]) -> tuple[FloatArray, int]:
    """Return the float32 unit rows `[n, d]` of queries, and how many tokens were read."""
    return model.encode_queries(texts), sum(model.model.count_tokens(texts, prompt=QUERY))


def _encode_documents(model: BatchedModel, texts: list[str]) -> tuple[FloatArray, int]:
    """Return the float32 unit rows `[n, d]` of documents, and how many tokens were read."""
    encoded = list(model.encode_documents(("", text) for text in texts))
    return np.stack([row.vector for row in encoded]), sum(row.n_tokens for row in encoded)


def _numbers(vector: FloatArray) -> list[float]:
    return vector.tolist()


def _base64(vector: FloatArray) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode("ascii")


async def models(request: Request) -> Response:
    """List the names of the model."""
    model = context(request).indexes.model
    names = _prompts_by_name(model.model_name) if model else {}
    listed = Models(object="list", data=[_describe(name) for name in names])
    return json_answer(msgspec.json.encode(listed))


async def model(request: Request) -> Response:
    """Describe one of the names."""
    names = _prompts_by_name(context(request).indexes.needed_model().model_name)
    name = request.path_params["name"]
    if name not in names:
        raise _no_model(name, names)
    return json_answer(msgspec.json.encode(_describe(name)))


def _prompts_by_name(loaded: str) -> dict[str, str]:
    name = Path(loaded).name
    return {name: DOCUMENT, f"{name}:{QUERY}": QUERY}


def _describe(name: str) -> Model:
    return Model(id=name, object="model", created=_STARTED, owned_by="aveyb-retrieval")


def _no_model(name: str, names: dict[str, str]) -> Refusal:
    message = f"model={name!r}: no such model; there are {', '.join(map(repr, names))}"
    return Refusal(404, message, "model_not_found")


async def cohere_rerank(request: Request) -> Response:
    """Order documents by late interaction with a query."""
    server, ticket = context(request), request.state.ticket
    body = await read_object(request)
    model = server.indexes.needed_model()
    if isinstance(body.get("documents"), list):
        body["documents"] = [_text_of(document) for document in body["documents"]]
    fields = take(with_limits(Rerank, server.limits), body)
    texts: list[Any] = fields.documents
    score = partial(maxsim, model, "cpu", fields.query)
    scores: list[float] = []
    async for part in server.encoding.each(score, parts(texts, RERANKED_TEXTS), ticket):
        scores += part
    best = np.argsort(-np.asarray(scores), kind="stable").tolist()[: fields.top_n]
    ranked = [
        Ranked(
            index=place,
            relevance_score=scores[place],
            document=RankedText(text=texts[place]) if fields.return_documents else msgspec.UNSET,
        )
        for place in best
    ]
    answer = Reranked(id=str(uuid.uuid4()), model=Path(model.model_name).name, results=ranked)
    return json_answer(msgspec.json.encode(answer))


def _text_of(document: Any) -> Any:
    """Return the text of an object that has one; clients of both services may send objects."""
    return document.get("text") if isinstance(document, dict) else document
