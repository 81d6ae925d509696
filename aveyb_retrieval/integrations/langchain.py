"""LangChain: a retriever over an index, a vector store that is an index, and our embeddings (extra
`langchain`).
"""

from __future__ import annotations

import copy
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aveyb_retrieval import ConfigError, Embedder, Index, InputError, Retriever
from aveyb_retrieval.errors import extra_for, no_option
from aveyb_retrieval.indexes.store.manifest import is_stored
from aveyb_retrieval.integrations.adapting import VectorsOnly, passage, row, with_place

with extra_for("the adapter of LangChain", "langchain"):
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore
    from pydantic import Field, PrivateAttr

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
    )

    from aveyb_retrieval import Document as Stored
    from aveyb_retrieval import Hit
    from aveyb_retrieval.indexes.search.retriever import Place


class AveyBEmbeddings(Embeddings):
    """Our model as LangChain embeddings: it reads texts of any length whole, into unit vectors.

    `model` is a folder or name, opened with these options of `Embedder.load`, or a loaded model;
    None is the embedded one.
    """

    def __init__(self, model: str | Path | Embedder | None = None, **options: Any) -> None:
        self._again = partial(type(self), model, **options)
        self.embedder = model if isinstance(model, Embedder) else Embedder.load(model, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [
            encoded.vector.tolist()
            for encoded in self.embedder.encode_documents(("", text) for text in texts)
        ]

    def embed_query(self, text: str) -> list[float]:
        return self.embedder.encode_queries([text])[0].tolist()


class AveyBRetriever(BaseRetriever):
    """Finds the best passages of an index, always in its newest version.

    Each hit is a `Document` whose content is the passage; its metadata are the document's as they
    are, `title`, and `aveyb`: `title`, `heading`, `headings`, `span` (characters of the passage in
    the document), `duplicates` (the documents that have the same passage), `score`, `confidence`
    (None but in a hybrid search), and of a PDF `page` and `page_label`.

    `path` and `model` are as in `Retriever.load`; `path` may also be a `Retriever` that is open,
    such as one that `visible` gave, or several (a list, or a mapping from names). These keep to
    their version until they are reopened. `k` is how many passages, which `invoke(query,
    k=...)` overrides; `search_options` are those of `Retriever.search`, such as `{"filter": ...,
    "unit": "document"}`.
    """

    path: Any
    k: int = 4
    search_options: dict[str, Any] = Field(default_factory=dict)
    model: Any = None
    _index: Retriever = PrivateAttr()

    def __init__(
        self,
        path: Place | Sequence[Place] | Mapping[str, Place],
        k: int = 4,
        **fields: Any,
    ) -> None:
        """Open the index at a path, or take what is open; ConfigError: there is no such field."""
        if unknown := fields.keys() - type(self).model_fields.keys():
            raise ConfigError(
                no_option(type(self).__name__, min(unknown), [*type(self).model_fields])
            )
        super().__init__(path=str(path) if isinstance(path, Path) else path, k=k, **fields)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> AveyBRetriever:
        """Copy the options; the index and the model are open once, and shared."""
        return self.model_copy(update={"search_options": copy.deepcopy(self.search_options, memo)})

    def model_post_init(self, context: Any, /) -> None:
        if isinstance(self.path, Retriever):
            self._index = self.path
        elif isinstance(self.path, str):
            self._index = Index.open(self.path, model=self.model)
            if not is_stored(self.path):
                self.path = str(Path(self.path).absolute())  # also for copies made by pickle
        else:
            self._index = Retriever.load(self.path, model=self.model)

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Open the index again with the same model; that of an open `Retriever` is the recorded
        one.
        """
        super().__setstate__(state)
        self.model_post_init(None)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        **options: Any,
    ) -> list[Document]:
        return [_passage(hit) for hit in self._index.search(query, **self._options(k, options))]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **options: Any,
    ) -> list[Document]:
        return [
            _passage(hit) for hit in await self._index.asearch(query, **self._options(k, options))
        ]

    def _options(self, k: int | None, options: dict[str, Any]) -> Any:
        own = {"unit": "passage", "k": self.k, **self.search_options}
        return {**own, **options, **({"k": k} if k else {})}


def _passage(hit: Hit) -> Document:
    text, start, stop = passage(hit)
    metadata = with_place(hit, hit.metadata, (start, stop))
    return Document(id=hit.id, page_content=text, metadata=metadata)


class AveyBVectorStore(VectorStore):
    """An index directory as a vector store; made empty where there is none.

    Texts are encoded as whole documents, of any length: they need not be cut into chunks. With
    `embedding`, another model makes the vectors, one for each text, and there are no passages.

    `search_options` of `Retriever.search` are for every search; `{"mode": "hybrid"}` also finds by
    words. By default vectors alone rank, scores are cosines, and texts that say the same are all
    given. Other options are those of `build_index`, where the index is made.
    """

    def __init__(
        self,
        path: str | Path,
        embedding: Embeddings | None = None,
        *,
        search_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._embedding = embedding
        if embedding is not None:
            options["model"] = _model(embedding)
        if isinstance(options.get("model"), VectorsOnly):
            options.setdefault("granularity", "document")
        self._index = Index.open(path, create=True, **options)
        self._search_options: Any = {"mode": "dense", "fold": False, **(search_options or {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the index again with the same embedding; without one the copy of the index has the
        model that it records.
        """
        self.__dict__.update(state)
        if self._embedding is not None:
            self._index = Index.open(
                **{**vars(self._index._opening), "model": _model(self._embedding)}
            )

    @property
    def embeddings(self) -> Embeddings | None:
        return self._embedding

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, replacing those whose ids are there; return the ids.

        All of one call become one new version.
        """
        if isinstance(texts, str):
            raise InputError(f"add_texts: texts={texts[:40]!r} is one string; give a list, [text]")
        texts = list(texts)
        own_ids = [own_id or str(uuid.uuid4()) for own_id in ids or [None] * len(texts)]
        documents = zip(own_ids, texts, metadatas or [{}] * len(texts), strict=True)
        self._index.upsert([row(*document) for document in documents])
        return own_ids

    def delete(
        self, ids: list[str] | None = None, *, filter: dict[str, Any] | None = None, **kwargs: Any
    ) -> bool:
        """Delete by ids or by a filter; ids that are not there are ignored."""
        if ids or filter is not None:
            self._index.delete(ids or [], where=filter, missing_ok=True)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        return [_document(stored) for stored in self._index.get(ids, missing_ok=True)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        """Return the best documents with their scores, higher is better.

        `options` are those of `Retriever.search`.
        """
        return [(_document(hit), hit.score) for hit in self._search(query, k, **options)]

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        return [_document(hit) for hit in self._search(query, k, **options)]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **options: Any
    ) -> list[Document]:
        """Return documents whose best passages, of `fetch_k`, resemble each other little: the
        `diversity` of the search is 1 - `lambda_mult`.
        """
        return self.similarity_search(
            query,
            k,
            unit="passage",
            per_document=1,
            candidates=max(k, fetch_k),
            diversity=1 - lambda_mult,
            **options,
        )

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        """Return the best documents with their relevance, 0 to 1."""
        hits = self._search(query, k, **options)
        return [(_document(hit), _relevance(hit)) for hit in hits]

    def _search(self, query: str, k: int, **options: Any) -> list[Hit]:
        return self._index.search(query, k, **{**self._search_options, **options})

    @classmethod
    def from_documents(
        cls, documents: list[Document], embedding: Embeddings | None = None, **kwargs: Any
    ) -> Self:
        """Make a store, or open one, and add documents; `path=` says where. Without `embedding` the
        index's own model encodes them.
        """
        return super().from_documents(documents, cast("Embeddings", embedding), **kwargs)

    @classmethod
    async def afrom_documents(
        cls, documents: list[Document], embedding: Embeddings | None = None, **kwargs: Any
    ) -> Self:
        """Do the same in a thread, for asynchronous programs."""
        return await super().afrom_documents(documents, cast("Embeddings", embedding), **kwargs)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> AveyBVectorStore:
        """Make a store, or open one, and add texts; `path=` says where."""
        if "path" not in kwargs:
            raise ConfigError("from_texts: give path=, the directory of the index")
        store = cls(embedding=embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store


def _model(embedding: Embeddings) -> Embedder | VectorsOnly:
    if isinstance(embedding, AveyBEmbeddings):
        return embedding.embedder
    return VectorsOnly(embedding, embedding.embed_documents, embedding.embed_query)


def _relevance(hit: Hit) -> float:
    """Return the confidence of a hit, without one its cosine, else its score, within 0 to 1."""
    score = hit.confidence
    if score is None:
        score = hit.scores.get("dense", hit.score)
    return min(max(score, 0.0), 1.0)


def _document(source: Hit | Stored) -> Document:
    return Document(id=source.id, page_content=source.text, metadata=source.metadata)
