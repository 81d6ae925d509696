"""`/embed`, `/similarity`, `/rerank`, `/tokenize` and `/info`, as clients of text-embeddings-inference know them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import JSONResponse

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.server import fields
from aveyb_retrieval.server.answers import joined, json_answer, to_json
from aveyb_retrieval.server.batching import MAX_BATCH
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.encoding import DOCUMENT, QUERY, check_dimensions, encode, parts, score
from aveyb_retrieval.server.reading import read_json
from aveyb_retrieval.version import package_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aveyb_retrieval.indexes.types import FloatArray
    from aveyb_retrieval.server.limits import Limits

DIMENSIONS = fields.passed_on({"type": ["integer", "null"]})


# texts are read whole, so whatever is said of cutting them is granted
_TRUNCATION = {
    "truncate": fields.flag(default=False),
    "truncation_direction": fields.choice("Left", "Right", "left", "right"),
}
_PROMPT = fields.choice(DOCUMENT, QUERY)


@cache
def embed_fields(limits: Limits) -> fields.Fields:
    """The fields of `/embed`."""
    return {
        "inputs": fields.text_or_texts(limits.max_batch, limits.max_text),
        "normalize": fields.Field({"const": True}, fields.flag(default=True).take, default=True),
        "prompt_name": _PROMPT,
        "dimensions": DIMENSIONS,
        **_TRUNCATION,
    }


@cache
def similarity_fields(limits: Limits) -> fields.Fields:
    """The fields of `/similarity`."""
    compared = {
        "source_sentence": fields.text(limits.max_text),
        "sentences": fields.texts(limits.max_batch, limits.max_text),
    }
    parameters = {"prompt_name": _PROMPT, **_TRUNCATION}
    return {
        "inputs": fields.objects(compared),
        "parameters": fields.objects(parameters, default={"prompt_name": DOCUMENT}),
    }


@cache
def rerank_fields(limits: Limits) -> fields.Fields:
    """The fields of `/rerank`."""
    return {
        "query": fields.text(limits.max_query),
        "texts": fields.texts(limits.max_batch, limits.max_rerank_text),
        "raw_scores": fields.flag(default=False),  # scores are cosines either way
        "return_text": fields.flag(default=False),
        **_TRUNCATION,
    }


@cache
def tokenize_fields(limits: Limits) -> fields.Fields:
    """The fields of `/tokenize`."""
    return {
        "inputs": fields.text_or_texts(limits.max_batch, limits.max_text),
        "add_special_tokens": fields.flag(default=True),
    }


async def embed(request: Request) -> Response:
    """Encode one text or several into a list of vectors; `prompt_name` "query" encodes queries, else documents.

    At `/`, where Hugging Face's client sends everything, an object of `source_sentence` and `sentences` is compared.
    """
    server, ticket, given = await read_json(request)
    if request.url.path == "/" and isinstance(given.get("inputs"), dict):
        return await similarity(request, given)
    asked = fields.take_fields(given, embed_fields(server.limits))
    if not asked["normalize"]:
        raise ConfigError("normalize=False: vectors of this server have unit length; leave it out")
    check_dimensions(asked.get("dimensions"), server.indexes.needed_model().dim)
    written, _ = await encode(server, asked["inputs"], asked["prompt_name"], ticket, _write_rows)
    return json_answer(b"[" + written + b"]")


async def similarity(request: Request, given: dict[str, Any] | None = None) -> Response:
    """Compare one text with others: cosines of their vectors."""
    if given is None:
        _, _, given = await read_json(request)
    server, ticket = context(request), request.state.ticket
    asked = fields.take_fields(given, similarity_fields(server.limits))
    inputs = asked["inputs"]
    kept: list[FloatArray] = []

    def keep(rows: FloatArray) -> bytes:
        kept.append(rows)
        return b""

    await encode(
        server, [inputs["source_sentence"], *inputs["sentences"]], asked["parameters"]["prompt_name"], ticket, keep
    )
    first, *others = np.concatenate(kept)
    return json_answer(to_json([float(first @ other) for other in others]))


async def rerank(request: Request) -> Response:
    """Order texts by late interaction with a query: the mean over its tokens of the best cosine with a text's token."""
    server, ticket, given = await read_json(request)
    asked = fields.take_fields(given, rerank_fields(server.limits))
    found = asked["texts"]
    scores = await score(server, asked["query"], found, ticket)
    ranked: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in ranking(scores)]
    if asked["return_text"]:
        ranked = [{**each, "text": found[each["index"]]} for each in ranked]
    return json_answer(to_json(ranked))


async def tokenize(request: Request) -> Response:
    """Cut texts into the tokens that the model reads, without a prompt."""
    server, ticket, given = await read_json(request)
    model = server.indexes.needed_model().model
    asked = fields.take_fields(given, tokenize_fields(server.limits))

    def work(part: Sequence[str]) -> bytes:
        rows = []
        for each in part:
            cut = (array.tolist() for array in model.tokens(each, special=asked["add_special_tokens"]))
            rows.append(
                [
                    {"id": number, "text": each[start:stop], "special": special, "start": start, "stop": stop}
                    for number, (start, stop), special in zip(*cut, strict=True)
                ]
            )
        return to_json(rows)[1:-1]

    written: list[bytes] = []
    async for found in server.encoding.each(work, parts(asked["inputs"], MAX_BATCH), ticket):
        ticket.answer(len(found))
        written.append(found)
    return json_answer(joined(written))


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
            "max_input_length": model.model.max_tokens or 4 * limits.max_text,
            "max_batch_tokens": limits.max_body,
            "max_client_batch_size": limits.max_batch,
            "auto_truncate": False,
            "version": package_version(),
        }
    )


def ranking(scores: Sequence[float]) -> list[int]:
    """Return the places of scores, best first."""
    order: list[int] = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return order


def _write_rows(vectors: FloatArray) -> bytes:
    return to_json(vectors.tolist())[1:-1]
