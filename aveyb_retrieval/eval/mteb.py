"""Our models and indexes inside MTEB (extra `mteb`).

    import mteb
    from aveyb_retrieval.eval.mteb import EmbedderModel, IndexModel

    tasks = mteb.get_tasks(["NQ", "MSMARCO", "MultiLongDocRetrieval"], languages=["eng"])
    mteb.evaluate(EmbedderModel(embedder), tasks)      # the vectors, searched exactly by MTEB
    mteb.evaluate(IndexModel(embedder), tasks)         # our index end to end: build, then Retriever.rank

A saved model also works as `SentenceTransformer(path)`, which MTEB wraps by itself; `EmbedderModel` is the way to
documents of any length, in constant memory. Both carry `mteb_model_meta`: without it MTEB would file the scores under
an empty name.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, extra_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mteb.models.model_meta import ModelMeta

    from aveyb_retrieval.indexes.search.retriever import Retriever
    from aveyb_retrieval.indexes.types import EmbedderLike


class EmbedderModel:
    """MTEB's `EncoderProtocol` over an `Embedder`: document vectors, query and document prompts by prompt type."""

    def __init__(self, embedder: EmbedderLike) -> None:
        self._embedder = embedder
        self._meta = _meta(embedder.model_name, embedder.fingerprint, embedder.dim)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name and revision under which MTEB files the scores."""
        return self._meta

    def encode(self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **_: Any) -> np.ndarray:
        """Encode MTEB's batches (dicts with the key `text`; documents also `title` and `body`) to `[n, d]` float32."""
        rows = []
        for batch in inputs:
            if prompt_type is not None and str(getattr(prompt_type, "value", prompt_type)) == "query":
                rows.append(self._embedder.encode_queries(list(batch["text"])))
            else:
                rows.append(np.stack([e.vector for e in self._embedder.encode_documents(_pairs(batch))]))
        return np.concatenate(rows) if rows else np.zeros((0, self._embedder.dim), dtype=np.float32)

    def similarity(self, a: Any, b: Any) -> np.ndarray:
        """Return the cosine similarities `[n, m]` of unit rows."""
        return np.atleast_2d(np.asarray(a)) @ np.atleast_2d(np.asarray(b)).T

    def similarity_pairwise(self, a: Any, b: Any) -> np.ndarray:
        """Return the cosine similarities `[n]` of matching unit rows."""
        return np.einsum("nd,nd->n", np.asarray(a), np.asarray(b))


class IndexModel:
    """MTEB's `SearchProtocol`: the corpus becomes one of our indexes, queries are ranked by `Retriever`.

    The indexes lie in a temporary folder that lives as long as this object.
    """

    def __init__(self, embedder: EmbedderLike, *, index: str = "auto") -> None:
        """Prepare to index with an embedder; `index` is the type of index."""
        self._meta = _meta(embedder.model_name, embedder.fingerprint, embedder.dim, suffix=f"-index-{index}")
        self._embedder, self._type = embedder, index
        self._folder = tempfile.TemporaryDirectory(prefix="aveyb-mteb-")
        self._retriever: Retriever | None = None
        self._builds = 0

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name and revision under which MTEB files the scores."""
        return self._meta

    def index(self, corpus: Iterable[Mapping[str, Any]], **_: Any) -> None:
        """Build an index of MTEB's corpus (rows with `id`, `text`, optionally `title`)."""
        from aveyb_retrieval.indexes.changes.build import build_index
        from aveyb_retrieval.indexes.search.retriever import Retriever

        rows = ({"_id": str(r["id"]), "title": r.get("title") or "", "text": r.get("text") or ""} for r in corpus)
        self._builds += 1
        folder = Path(self._folder.name) / f"corpus-{self._builds}"
        build_index(rows, folder, model=self._embedder, index=self._type)
        self._retriever = Retriever.load(folder, model=self._embedder)

    def search(
        self, queries: Iterable[Mapping[str, Any]], *, top_k: int, top_ranked: Any = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Return the scores of the best `top_k` documents of each query (rows with `id`, `text`).

        Raises:
            ConfigError: `index` was not called, or the task asks to rerank given documents.
        """
        if top_ranked is not None:
            raise ConfigError("a reranking task gives the documents to order; an index searches the whole corpus")
        if self._retriever is None:
            raise ConfigError("IndexModel.search was called before IndexModel.index")
        rows = [(str(row["id"]), str(row["text"])) for row in queries]
        answers = self._retriever.rank([text for _, text in rows], top_k)
        return {query: dict(answer) for (query, _), answer in zip(rows, answers, strict=True)}


def _pairs(batch: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (prefix, text) of each document; titles go on a line of their own, as the index builds them."""
    if "title" in batch and "body" in batch:
        for title, body in zip(batch["title"], batch["body"], strict=True):
            yield f"{title}\n" if title else "", body
    else:
        yield from (("", text) for text in batch["text"])


def _meta(name: str, fingerprint: str, dim: int, suffix: str = "") -> ModelMeta:
    with extra_for("evaluation through MTEB", "mteb"):
        from mteb.models.model_meta import ModelMeta
    label = name if name.count("/") == 1 else f"aveyb-retrieval/{Path(name).name}"
    values = {"name": label + suffix, "revision": fingerprint[:12], "embed_dim": dim, "similarity_fn_name": "cosine"}
    return ModelMeta.create_empty(overwrites=values)
