"""`/embed`, `/similarity`, `/rerank`, `/tokenize` and `/info`, as clients of text-embeddings-inference know them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import JSONResponse

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.server.answers import Room, joined, json_answer, to_json
from aveyb_retrieval.server.batching import MAX_BATCH
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.encoding import DOCUMENT, QUERY, check_dimensions, encode, parts, score
from aveyb_retrieval.server.reading import (
    read_json,
    refuse_others,
    take_choice,
    take_flag,
    take_list,
    take_needed_text,
    take_texts,
)
from aveyb_retrieval.version import package_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.types import FloatArray
    from aveyb_retrieval.server.batching import BatchedModel
    from aveyb_retrieval.server.context import Context
    from aveyb_retrieval.server.limits import Limits
    from aveyb_retrieval.server.ticket import Ticket

_PROMPTS = (DOCUMENT, QUERY)
_DIRECTIONS = (None, "left", "right", "Left", "Right")
_EMBED = ("inputs", "normalize", "truncate", "truncation_direction", "prompt_name", "dimensions")
_RERANK = ("query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction")


async def embed(request: Request) -> Response:
    """Encode one text or several into a list of vectors; `prompt_name` "query" encodes queries, else documents.

    At `/`, where Hugging Face's client sends everything, an object of `source_sentence` and `sentences` is compared.
    """
    server = context(request)
    ticket = server.ticket(request)
    model = server.indexes.needed_model()
    fields = await read_json(request, server.limits.max_body, ticket)
    if request.url.path == "/" and isinstance(fields.get("inputs"), dict):
        return await _similarity(server, fields, ticket)
    prompt = take_choice(fields, "prompt_name", _PROMPTS)
    texts, _ = take_texts(fields, "inputs", server.limits.max_batch, server.limits.longest(prompt))
    if not take_flag(fields, "normalize", default=True):
        raise ConfigError("normalize=False: vectors of this server have unit length; leave it out")
    check_dimensions(fields.pop("dimensions", None), model.dim)
    _take_truncation(fields)
    refuse_others(fields, _EMBED)
    written, _ = await encode(server, texts, prompt, ticket, _write_rows)
    return json_answer(b"[" + written + b"]")


async def similarity(request: Request) -> Response:
    """Compare one text with others: cosines of their vectors."""
    server = context(request)
    ticket = server.ticket(request)
    server.indexes.needed_model()
    return await _similarity(server, await read_json(request, server.limits.max_body, ticket), ticket)


async def _similarity(server: Context, fields: dict[str, Any], ticket: Ticket) -> Response:
    inputs, parameters = fields.pop("inputs", None), fields.pop("parameters", {})
    refuse_others(fields, ("inputs", "parameters"))
    if not (isinstance(inputs, dict) and isinstance(parameters, dict)):
        raise InputError("inputs and parameters: objects are needed; inputs of source_sentence and sentences")
    prompt = take_choice(parameters, "prompt_name", _PROMPTS)
    _take_truncation(parameters)
    refuse_others(parameters, ("prompt_name", "truncate", "truncation_direction"))
    length = server.limits.longest(prompt)
    source = take_needed_text(inputs, "source_sentence", length)
    texts = take_list(inputs, "sentences", server.limits.max_batch, length)
    refuse_others(inputs, ("source_sentence", "sentences"))
    kept: list[FloatArray] = []

    def keep(rows: FloatArray, first: int) -> bytes:  # parts come one after the other
        kept.append(rows)
        return b""

    await encode(server, [source, *texts], prompt, ticket, keep)
    first, *others = np.concatenate(kept)
    return json_answer(to_json([float(first @ other) for other in others]))


async def rerank(request: Request) -> Response:
    """Order texts by late interaction with a query: the mean over its tokens of the best cosine with a text's token."""
    server = context(request)
    ticket = server.ticket(request)
    server.indexes.needed_model()
    fields = await read_json(request, server.limits.max_body, ticket)
    query, texts = take_pair(fields, "texts", server.limits)
    take_flag(fields, "raw_scores", default=False)  # scores are cosines either way
    with_text = take_flag(fields, "return_text", default=False)
    _take_truncation(fields)
    refuse_others(fields, _RERANK)
    scores = await score(server, query, texts, ticket)
    ranked = [{"index": i, "score": scores[i], **({"text": texts[i]} if with_text else {})} for i in ranking(scores)]
    return json_answer(to_json(ranked))


async def tokenize(request: Request) -> Response:
    """Cut texts into the tokens that the model reads, without a prompt."""
    server = context(request)
    ticket = server.ticket(request)
    model = server.indexes.needed_model()
    fields = await read_json(request, server.limits.max_body, ticket)
    texts, _ = take_texts(fields, "inputs", server.limits.max_batch, server.limits.max_text)
    special = take_flag(fields, "add_special_tokens", default=True)
    refuse_others(fields, ("inputs", "add_special_tokens"))
    room = Room(server.limits.max_answer, ticket)
    written: list[bytes] = []
    for number, part in enumerate(parts(texts, MAX_BATCH)):
        found = await server.encoding.run(partial(_tokens, model, part, special), ticket, part=number)
        room.take(len(found))
        written.append(found)
    return json_answer(joined(written))


def _tokens(model: BatchedModel, texts: Sequence[str], special: bool) -> bytes:
    rows = []
    for text in texts:
        ids, offsets, specials = (array.tolist() for array in model.tokens(text, special=special))
        rows.append(
            [
                {"id": number, "text": text[start:stop], "special": is_special, "start": start, "stop": stop}
                for number, (start, stop), is_special in zip(ids, offsets, specials, strict=True)
            ]
        )
    return to_json(rows)[1:-1]


def take_pair(fields: dict[str, Any], name: str, limits: Limits) -> tuple[str, list[str]]:
    """Take a query, and the texts that are ordered for it.

    Raises:
        InputError: one of them is missing, or no text and list of texts.
        Refusal: 413 where they are too many or too long.
    """
    query = take_needed_text(fields, "query", limits.max_query)
    return query, take_list(fields, name, limits.max_batch, limits.max_rerank_text)


def ranking(scores: Sequence[float]) -> list[int]:
    """Return the places of scores, best first."""
    order: list[int] = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return order


async def info(request: Request) -> JSONResponse:
    """Describe the model and the limits."""
    server = context(request)
    model, limits = server.indexes.needed_model(), server.limits
    return JSONResponse(
        {
            "model_id": Path(model.model_name).name,
            "model_sha": model.fingerprint,
            "model_dtype": getattr(model.model, "precision", "float32"),
            "model_type": {"embedding": {"pooling": "mean"}},
            "max_concurrent_requests": limits.threads + limits.max_waiting,
            # a text is read whole; it has no more tokens than bytes, of which a character has at most 4
            "max_input_length": model.max_tokens or 4 * limits.max_text,
            "max_batch_tokens": limits.max_body,
            "max_client_batch_size": limits.max_batch,
            "auto_truncate": False,
            "version": package_version(),
        }
    )


def _write_rows(vectors: FloatArray, first: int) -> bytes:
    return to_json(vectors.tolist())[1:-1]


def _take_truncation(fields: dict[str, Any]) -> None:
    """Take what says how long texts are cut: they are read whole, so both answers to it are granted."""
    take_flag(fields, "truncate", default=False)
    direction = fields.pop("truncation_direction", None)
    if direction not in _DIRECTIONS:
        raise ConfigError(f"truncation_direction={direction!r}: must be 'Left' or 'Right'")
