"""`/embed`, `/rerank` and `/info`, as clients of text-embeddings-inference know them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import JSONResponse

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.index.search.rerank import maxsim
from aveyb_retrieval.server.context import context
from aveyb_retrieval.server.encoding import DOCUMENT, QUERY, check_dimensions, encode
from aveyb_retrieval.server.reading import read_json, refuse_others, take_flag, take_text, take_texts
from aveyb_retrieval.version import package_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from aveyb_retrieval.server.batching import BatchedModel
    from aveyb_retrieval.server.work import Deadline

TEXTS_AT_ONCE = 32  # between two looks at the clock
_DIRECTIONS = (None, "left", "right", "Left", "Right")
_EMBED = ("inputs", "normalize", "truncate", "truncation_direction", "prompt_name", "dimensions")
_RERANK = ("query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction")


async def embed(request: Request) -> JSONResponse:
    """Encode one text or several into a list of vectors; `prompt_name` "query" encodes queries, else documents."""
    server = context(request)
    deadline = server.deadline()
    model = server.indexes.needed_model()
    fields = await read_json(request, server.limits.max_body, deadline)
    texts, _ = take_texts(fields, "inputs", server.limits.max_batch)
    prompt = take_text(fields, "prompt_name") or DOCUMENT
    if prompt not in (QUERY, DOCUMENT):
        raise ConfigError(f"prompt_name={prompt!r}: must be {QUERY!r} or {DOCUMENT!r}")
    if not take_flag(fields, "normalize", default=True):
        raise ConfigError("normalize=False: vectors of this server have unit length; leave it out")
    check_dimensions(fields.pop("dimensions", None), model.dim)
    _take_truncation(fields)
    refuse_others(fields, _EMBED)
    found = await server.encoding.run(lambda: encode(model, texts, prompt, deadline), deadline)
    return JSONResponse(found.vectors.tolist())


async def rerank(request: Request) -> JSONResponse:
    """Order texts by late interaction with a query: the mean over its tokens of the best cosine with a text's token."""
    server = context(request)
    deadline = server.deadline()
    model = server.indexes.needed_model()
    fields = await read_json(request, server.limits.max_body, deadline)
    query = take_text(fields, "query")
    if query is None or not query.strip():
        raise InputError("query: missing or empty; a text is needed")
    texts, single = take_texts(fields, "texts", server.limits.max_batch)
    if single:
        raise InputError("texts: a string; a list of texts is needed")
    take_flag(fields, "raw_scores", default=False)  # scores are cosines either way
    with_text = take_flag(fields, "return_text", default=False)
    _take_truncation(fields)
    refuse_others(fields, _RERANK)
    scores = await server.encoding.run(lambda: _scores(model, query, texts, deadline), deadline)
    order = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return JSONResponse([{"index": i, "score": scores[i], **({"text": texts[i]} if with_text else {})} for i in order])


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
            # a text is read whole; it cannot have more tokens than the body has bytes
            "max_input_length": model.max_tokens or limits.max_body,
            "max_batch_tokens": limits.max_body,
            "max_client_batch_size": limits.max_batch,
            "auto_truncate": False,
            "version": package_version(),
        }
    )


def _scores(model: BatchedModel, query: str, texts: Sequence[str], deadline: Deadline) -> list[float]:
    scores: list[float] = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        deadline.check()
        scores += maxsim(model, "cpu", query, texts[start : start + TEXTS_AT_ONCE])
    return scores


def _take_truncation(fields: dict[str, Any]) -> None:
    """Take what says how long texts are cut: they are read whole, so both answers to it are granted."""
    take_flag(fields, "truncate", default=False)
    direction = fields.pop("truncation_direction", None)
    if direction not in _DIRECTIONS:
        raise ConfigError(f"truncation_direction={direction!r}: must be 'Left' or 'Right'")
