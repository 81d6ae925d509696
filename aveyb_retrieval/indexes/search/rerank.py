"""Order candidates again by a closer look at their texts: late interaction, or a cross-encoder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from aveyb_retrieval.encoder.model_folders import read_object
from aveyb_retrieval.encoder.network.token_codec import late_interaction_numpy
from aveyb_retrieval.errors import ConfigError, extra_for, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from aveyb_retrieval.indexes.store.tables import StoredTokens
    from aveyb_retrieval.indexes.types import EmbedderLike

MAXSIM = "maxsim"
STORED_MAXSIM = "token-vectors"
LATE_INTERACTION = (MAXSIM, STORED_MAXSIM)


@runtime_checkable
class CrossEncoderLike(Protocol):
    """A model that scores pairs of texts; `sentence_transformers.CrossEncoder` is one."""

    def predict(self, sentences: Any) -> Any:
        """Score (query, text) pairs: an array `[n]`, higher is better."""


def maxsim(embedder: EmbedderLike, device: str, query: str, texts: Sequence[str]) -> list[float]:
    """Score texts against a query by late interaction (ColBERT, Khattab and Zaharia 2020), with
    token vectors made now.

    For each token of the query the highest cosine with any token of the text, averaged; 0 for a
    text without tokens.
    """
    if not texts:
        return []
    (query_tokens,) = embedder.token_vectors([query], prompt="query")
    text_tokens = embedder.token_vectors(texts, prompt="document")
    return _mean_best(
        device,
        query_tokens,
        np.concatenate(text_tokens),
        np.cumsum([0, *(len(tokens) for tokens in text_tokens)]),
    )


def stored_maxsim(
    embedder: EmbedderLike, tokens: StoredTokens, device: str, query: str, ids: Sequence[int]
) -> list[float]:
    """Score passages (or documents) as `maxsim`, but by the rounded token vectors that an index
    keeps of them.
    """
    (query_tokens,) = embedder.token_vectors([query], prompt="query")
    block, codec = tokens.gather(np.array(ids, dtype=np.int64)), tokens.codec
    return _mean_best(
        device,
        codec.query(query_tokens),
        codec.decode(block.codes),
        np.append(0, block.ranges[:, 1]),
    )


def _mean_best(
    device: str,
    query: npt.NDArray[np.float32],
    rows: npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
) -> list[float]:
    """Return the mean over a query's tokens of the highest product with a row of each text; on a
    CPU without torch.
    """
    if not len(query):
        return [0.0] * (len(starts) - 1)
    if device == "cpu":
        scores = late_interaction_numpy(query, rows, starts[:-1], starts[1:])
        return (scores / len(query)).tolist()
    import torch

    from aveyb_retrieval.kernels.maxsim import late_interaction

    query_rows, text_rows = torch.from_numpy(query).to(device), torch.from_numpy(rows).to(device)
    text_rows = (
        text_rows if text_rows.is_floating_point() else text_rows.half()
    )  # kernels take floating types
    return (late_interaction(query_rows, text_rows, torch.from_numpy(starts)) / len(query)).tolist()


def cross_encode(
    encoder: CrossEncoderLike | str, device: str, query: str, texts: Sequence[str]
) -> list[float]:
    """Score texts against a query with a cross-encoder, or with the one of a name or folder."""
    if not texts:
        return []
    model = load_cross_encoder(encoder, device) if isinstance(encoder, str) else encoder
    scores = np.asarray(model.predict([(query, text) for text in texts]), dtype=np.float64)
    if scores.shape != (len(texts),):
        raise ConfigError(
            f"rerank={encoder!r}: gives scores of shape {list(scores.shape)} for {len(texts)}"
            " texts; a cross-encoder with one output is needed"
        )
    return scores.tolist()


@lru_cache(maxsize=4)
def load_cross_encoder(name: str, device: str) -> CrossEncoderLike:
    """Load a cross-encoder of sentence-transformers; kept, so that the next search has it."""
    with extra_for(f"the cross-encoder {name}"):
        from sentence_transformers import CrossEncoder

    saved_as = next(iter(read_object(Path(name) / "config.json").get("architectures") or [""]))
    if saved_as.startswith("AveyB") and saved_as != "AveyBForSequenceClassification":
        raise ConfigError(
            f"rerank={name!r}: saved as {saved_as}, which does not score pairs of texts; train one"
            " that does with `aveyb-train classify --loss bce`"
        )
    try:
        return CrossEncoder(name, device=device)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"rerank={name!r}: must be 'maxsim', or a sentence-transformers cross-encoder, its name"
            f" or its folder ({first_line(error)})"
        ) from error
