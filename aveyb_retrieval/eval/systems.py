"""Systems under test: BM25, and an index directory, end to end or with every vector scored.

Constructing a system is cheap enough to ask for its `info`; the work (tokenizing, encoding) happens
at the first search, so that a result which is already known costs nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError, InputError, extra_for, plural
from aveyb_retrieval.eval.base import DEFAULT_MODE, Run, SystemInfo, fingerprint_of
from aveyb_retrieval.eval.encoders import LoadOptions
from aveyb_retrieval.eval.tasks import STANDARD, EvalProtocol, joined_text
from aveyb_retrieval.indexes.store.place import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aveyb_retrieval.eval.data import Corpus
    from aveyb_retrieval.indexes.search.retriever import Retriever
    from aveyb_retrieval.indexes.types import EmbedderLike


class BM25System:
    """BM25 (Lucene's variant) over English stems without stop words, by bm25s; titles are joined to
    the text.
    """

    def __init__(
        self, corpus: Corpus, protocol: EvalProtocol = STANDARD, *, k1: float = 0.9, b: float = 0.4
    ) -> None:
        """Measure BM25 on a corpus; the index is made at the first search."""
        self._corpus, self._protocol = corpus, protocol
        self._index: Any = None
        self.notices: list[str] = []
        settings = {"k1": k1, "b": b, "stemmer": "english", "stopwords": "en"}
        settings["title_separator"] = protocol.title_separator
        self.info = SystemInfo(
            name="BM25",
            kind="lexical",
            model="bm25s",
            fingerprint=fingerprint_of(settings),
            settings=settings,
        )

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Return at most `k` documents per query; those that share no term with it are left out."""
        bm25s, stemmer = bm25_modules()
        if self._index is None:
            texts = [joined_text(document, self._protocol) for document in self._corpus]
            tokens = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)
            if not tokens.vocab:
                raise InputError(
                    f"{self._corpus.source}: BM25 finds no word in the corpus that is not a stop"
                    " word"
                )
            self._index = bm25s.BM25(k1=self.info.settings["k1"], b=self.info.settings["b"])
            self._index.index(tokens, show_progress=False)
        tokens = bm25s.tokenize(
            list(queries.values()), stopwords="en", stemmer=stemmer, show_progress=False
        )
        k = min(k, len(self._corpus))
        positions, scores = self._index.retrieve(tokens, k=k, show_progress=False)
        ids = self._corpus.ids
        return {
            query: {ids[p]: float(s) for p, s in zip(row, values, strict=True) if s > 0}
            for query, row, values in zip(queries, positions, scores, strict=True)
        }


def bm25_modules() -> tuple[Any, Any]:
    """Return the module bm25s and an English stemmer; OptionalDependencyError: one of them is not
    installed.
    """
    with extra_for("the BM25 baseline", "bm25"):
        import bm25s
        import Stemmer
    return bm25s, Stemmer.Stemmer("english")


def index_info(
    path: Path,
    *,
    mode: str,
    granularity: str | None = None,
    rerank: str | None = None,
    options: LoadOptions,
    name: str = "",
) -> SystemInfo:
    """Describe an index directory that is searched in a mode; a hybrid one depends on the weights
    of passages, too.
    """
    from aveyb_retrieval.files import hash_file
    from aveyb_retrieval.indexes.search.ranking import WEIGHTS
    from aveyb_retrieval.indexes.store.manifest import IndexDirectory

    facts, index_dir = describe(path), IndexDirectory(path)
    model = facts["model"] or {}
    limit = model.get("max_tokens")
    if options.max_tokens not in (None, limit):
        raise ConfigError(
            f"{path}: built with max_tokens {limit}, and {options.max_tokens} is asked for; leave"
            " it out, or build another index"
        )
    return SystemInfo(
        name=name or f"index {path.name}",
        kind="index",
        model=str(model.get("name", "unknown")),
        fingerprint=hash_file(index_dir.manifest(index_dir.visible())).sha256,
        max_tokens=limit,
        prompts=dict(model.get("prompts") or {}),
        precision=options.precision,
        storage_dtype=facts["storage_dtype"],
        settings={
            "mode": mode,
            "granularity": granularity or facts["granularity"],
            "factory": {
                kind: [tier["factory"] for tier in tiers]
                for kind, tiers in facts["indexes"].items()
            },
            "params": {
                kind: [tier["params"] for tier in tiers] for kind, tiers in facts["indexes"].items()
            },
            **({"relevance": WEIGHTS} if mode == "hybrid" else {}),
            **({"rerank": rerank} if rerank is not None else {}),
        },
    )


class SearchedIndex:
    """An index directory that is opened, with its model, at the first search."""

    def __init__(
        self,
        path: str | Path,
        *,
        mode: str = DEFAULT_MODE,
        granularity: str | None = None,
        rerank: str | None = None,
        options: LoadOptions | None = None,
        model: EmbedderLike | None = None,
        name: str = "",
        exact: bool = False,
    ) -> None:
        """Describe an index; mode, granularity, rerank and exact are those of `Retriever.search`.

        Args:
            options: Where and in which precision queries are encoded and searched.
            model: The model that made the index, loaded as `options` say; None loads the one that
                the index names.
            name: What reports call it; default: the directory's name.
        """
        self._path, self._model, self._options = Path(path), model, options or LoadOptions()
        how: dict[str, Any] = {"mode": mode, "granularity": granularity, "rerank": rerank}
        self.search_options = {**how, "exact": exact}
        self.info = index_info(self._path, **how, options=self._options, name=name)

    @cached_property
    def retriever(self) -> Retriever:
        """The index, opened when it is first searched."""
        from aveyb_retrieval.indexes.search.retriever import Retriever

        # a loaded model keeps its own
        precision = self._options.precision if self._model is None else "auto"
        return Retriever.load(
            self._path, model=self._model, device=self._options.device, precision=precision
        )


class IndexSystem(SearchedIndex):
    """An index directory, searched end to end through `Retriever`: its approximation and its search
    mode included.
    """

    def __init__(self, path: str | Path, *, documents: int | None = None, **search: Any) -> None:
        """Describe an index, as `SearchedIndex`; a notice says where it does not hold as many
        `documents`.
        """
        from aveyb_retrieval.indexes.search.options import WEIGHT
        from aveyb_retrieval.indexes.search.ranking import MAXSIM_WEIGHT

        super().__init__(path, **search)
        self._documents = documents
        self.notices: list[str] = []
        weights: dict[str, Any] = (
            {"weight": WEIGHT} if self.search_options["mode"] == "hybrid" else {}
        )
        if self.search_options["rerank"] is not None:
            weights["maxsim_weight"] = MAXSIM_WEIGHT
        if self.search_options["exact"]:
            weights["exact"] = True
        self.info = replace(self.info, settings=self.info.settings | weights)

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Return at most `k` documents per query, by `Retriever.rank`."""
        answers = self.retriever.rank(list(queries.values()), k=k, **self.search_options)
        return {query: dict(ranking) for query, ranking in zip(queries, answers, strict=True)}

    @cached_property
    def retriever(self) -> Retriever:
        """Also note what is known of an index only once it is open."""
        opened = super().retriever
        if self.search_options["mode"] != "lexical":
            # a stand-in of the caller's may not say
            precision = getattr(opened.model, "precision", None)
            self.info = replace(self.info, precision=precision)
        if cut := (facts := describe(self._path))["cut_documents"]:
            where = (
                "the model's limit"
                if self.info.max_tokens is None
                else f"{self.info.max_tokens} tokens"
            )
            self.notices.append(
                f"{self.info.name}: {cut:,} of {plural(facts['documents'], 'text')} cut at {where}"
            )
        if self._documents not in (None, len(opened)):
            held = plural(len(opened), "document")
            self.notices.append(f"{self.info.name} holds {held}, the corpus {self._documents:,}")
        return opened
