"""A token embedding to start from, made of the teacher's vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.teacher import encode_with

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer


def token_embeddings_from_teacher(
    tokenizer: AveyBTokenizer,
    teacher: Any,
    dim: int,
    *,
    counts: np.ndarray,
    smoothing: float = 2e-4,
    precision: str = "float32",
) -> tuple[np.ndarray, np.ndarray]:
    """Make a token embedding to start from: the teacher's vector of each token alone.

    Every token's text is encoded by the teacher, the vectors are centered and reduced by principal components, and
    frequent tokens are weighted down by `a / (a + p)` (SIF: Arora et al., 2017), so that already the plain mean of a
    text's token embeddings is a fair sentence vector. Special tokens, and pieces of characters, start at zero.

    Args:
        tokenizer: gives the text of each token.
        teacher: a SentenceTransformer.
        dim: width of the embedding.
        counts: `[vocab_size]`, how often each id occurs in the training text.
        smoothing: SIF's a.
        precision: of the teacher's matrix products, "float32" or "bfloat16".

    Returns:
        The embedding `[vocab_size, dim]` and the principal axes `[D_teacher, dim]` that lead back to the teacher's
        space, both float32.

    Raises:
        ConfigError: `dim` is larger than the teacher's dimension, or `counts` has another length than the vocabulary.
    """
    width = teacher.get_embedding_dimension()
    if dim > width:
        raise ConfigError(f"hidden_size {dim} is larger than the teacher's {width} dimensions: nothing to reduce")
    if len(counts) != tokenizer.vocab_size:
        raise ConfigError(f"{len(counts)} token counts are given for a vocabulary of {tokenizer.vocab_size}")
    texts: list[str] = []
    ids: list[int] = []
    for token, i in tokenizer.ranks.items():
        text = token.decode("utf-8", errors="ignore").strip()
        if text:
            texts.append(text)
            ids.append(i)
    distinct = sorted(set(texts))
    row = {text: i for i, text in enumerate(distinct)}
    vectors = encode_with(teacher, distinct, precision=precision)[[row[text] for text in texts]]
    vectors -= vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(vectors, full_matrices=False)
    probability = counts[ids] / max(1, counts.sum())
    weights = smoothing / (smoothing + probability)
    embedding = np.zeros((tokenizer.vocab_size, dim), dtype=np.float32)
    embedding[ids] = (vectors @ axes[:dim].T) * weights[:, None]
    return embedding, np.ascontiguousarray(axes[:dim].T)
