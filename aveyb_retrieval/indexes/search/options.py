"""The options of a search and what they may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack

import numpy as np
from msgspec import Meta, Struct

from aveyb_retrieval.checks import check_attributes
from aveyb_retrieval.errors import ConfigError, no_option
from aveyb_retrieval.indexes.encoding import GRANULARITIES
from aveyb_retrieval.indexes.search.boost import read_boost
from aveyb_retrieval.indexes.search.rerank import CrossEncoderLike
from aveyb_retrieval.indexes.search.sorting import Sort
from aveyb_retrieval.indexes.types import check_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.types import Kind

Mode = Literal["dense", "lexical", "hybrid"]
Fusion = Literal["rrf", "weighted"]
Granularity = Literal["document", "passage", "both"]
Unit = Literal["document", "passage"]
AtLeast0 = Annotated[int, Meta(ge=0)]
AtLeast1 = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]

CANDIDATES = 100  # per ranking, before fusion or reranking
ALONE_CANDIDATES = 25  # candidates of a single ranking that nothing orders again
WEIGHT = (
    0.5  # of the vectors in weighted fusion: the best on queries that the embedded model never saw
)


class SearchOptions(TypedDict, total=False):
    """The options of `Retriever.search`, by name.

    Attributes:
        filter: Only documents that satisfy this: see `aveyb_retrieval.indexes.store.filters`.
        ids: Only the documents of these ids, up to 10,000. Unknown ids are ignored.
        offset: Number of the best hits to skip; the next `k` are returned. Default 0.
        mode: "hybrid" (vectors and words, fused; default), "dense" (vectors) or "lexical" (words,
            BM25).
        granularity: The vectors that rank: "document", "passage" or "both" (the better of the two).
            None: all that the index has.
        fusion: "weighted" (default): the scores by vectors and by words, each divided by its
            maximum, and the score of the best passage. "rrf": reciprocal ranks.
        weight: Weight of the vectors in weighted fusion, 0 to 1; the words have the rest. It ranks
            documents, and chooses no passage of theirs. Default 0.5.
        rerank: Orders the candidates again. "maxsim": late interaction, added to the score of a
            hybrid search, with the token vectors of the index, or else the candidates are encoded
            again. "token-vectors": the same, but an error if the index has none. Or a
            sentence-transformers `CrossEncoder`, its name or its folder. None (default): nothing.
        unit: "document" (default) finds documents, "passage" the best passages of all documents.
        per_document: With passages, at most this many of one document. None (default): no limit.
        diversity: With passages, 0 (default) to 1: how much a passage is lowered that resembles a
            better one (maximal marginal relevance, Carbonell and Goldstein 1998, over passage
            vectors).
        fold: Whether copies of a better document or passage are left out and named in
            `Hit.duplicates`. Copies have the same words, whatever their case, spaces and
            punctuation. If several mails of one conversation state the same matter, the newest is
            the hit, and `Hit.earlier` names the others. Default True.
        min_score: Leave out hits with a lower `Hit.confidence` (0 to 1) in a hybrid search without
            `rerank`, or else with a lower `Hit.score`. If the confidence is not known, none are
            left out.
        passages: Number of passages of each document. Default 1.
        context: Number of neighbors on each side that `Hit.context` adds to the passage. None
            (default): no context.
        candidates: Number of documents or passages that each ranking, by vectors and by words,
            gives to the first step of fusion and reranking. If it leaves fewer hits than needed,
            each further step takes four times as many, and ranks the new ones after the others. A
            search by words alone that nothing reorders ignores it, and such a search for documents
            by vectors takes at most 25. Default 100.
        exact: Score every vector instead of searching FAISS's files. Default False.
        operators: Whether signs in the query are conditions: "a phrase", +must, -mustnot, begin*
            and typo~, as `aveyb_retrieval.indexes.search.operators` says. Default False: they are
            text.
        boost: Weights of fields of numbers or, with half-lives, of dates, that move the candidates
            after `rerank` and `min_score`: see `aveyb_retrieval.indexes.search.boost`.
        sort: A field that orders the matching hits in place of their scores: "date" for the oldest
            first, "-date" for the newest. `aveyb_retrieval.indexes.search.sorting` says which hits
            match. None (default): the order of scores.
    """

    filter: Filter | None
    ids: Sequence[str] | None
    offset: int
    mode: Mode
    granularity: Granularity | None
    fusion: Fusion
    weight: float
    rerank: str | CrossEncoderLike | None
    unit: Unit
    per_document: int | None
    diversity: float
    fold: bool
    min_score: float | None
    passages: int
    context: int | None
    candidates: int
    exact: bool
    operators: bool
    boost: Mapping[str, Any] | None
    sort: str | None


_ELSEWHERE = dict.fromkeys(("top_k", "topk", "n", "limit", "n_results", "num_results"), "k") | {
    "q": "query",
    "where": "filter",
    "filters": "filter",
}
_OF_PASSAGES = ("per_document", "diversity")


class _Types(Struct):
    """Types and ranges that do not depend on the index; they are checked in this order."""

    mode: Mode
    fusion: Fusion
    granularity: Granularity | None
    unit: Unit
    k: AtLeast1
    passages: AtLeast1
    candidates: AtLeast1
    context: AtLeast0 | None
    per_document: AtLeast1 | None
    offset: AtLeast0
    weight: Share
    diversity: Share
    fold: bool
    exact: bool
    operators: bool
    min_score: float | None


@dataclass(frozen=True)
class Options:
    """The checked options of one search, as `SearchOptions` says, and the kinds of vectors that
    rank.
    """

    k: int
    filter: Filter | None = None
    ids: Sequence[str] | None = None
    offset: int = 0
    mode: Mode = "hybrid"
    granularity: Granularity | None = None
    fusion: Fusion = "weighted"
    weight: float = WEIGHT
    rerank: str | CrossEncoderLike | None = None
    unit: Unit = "document"
    per_document: int | None = None
    diversity: float = 0.0
    fold: bool = True
    min_score: float | None = None
    passages: int = 1
    context: int | None = None
    candidates: int = CANDIDATES
    exact: bool = False
    operators: bool = False
    boost: Mapping[str, Any] | None = None
    sort: str | None = None
    kinds: tuple[Kind, ...] = field(init=False, default=())

    @classmethod
    def parse(cls, built: str, k: int, **given: Unpack[SearchOptions]) -> Options:
        """Check the options of a search of an index built with granularity `built`, or raise
        ConfigError.
        """
        if unknown := given.keys() - SearchOptions.__annotations__.keys():
            raise ConfigError(unknown_option(min(unknown)))
        options = cls(k=k, **given)
        check_attributes(options, _Types)
        options._check(built)
        options._check_least()
        read_boost({} if options.boost is None else options.boost)  # only for its errors
        options._check_sort()
        options._check_unit(built)
        object.__setattr__(options, "kinds", GRANULARITIES[options.granularity or built])
        return options

    @property
    def where(self) -> Filter | None:
        """What documents have to satisfy; raises InputError where `ids` is not a list
        of strings.
        """
        return within(self.filter, self.ids)

    @property
    def last(self) -> int:
        return self.offset + self.k

    @property
    def depth(self) -> int:
        """How many documents or passages each ranking gives to the first step.

        It does not depend on the page, so that pages are slices of one ranking. Only a search by
        words alone takes more for a later page: its ranking begins alike however long it is.
        """
        reads_more = (self.rerank, self.boost, self.sort) != (None, None, None)
        if self.diversity or reads_more:
            return self.candidates
        if self.mode == "lexical":
            return max(ALONE_CANDIDATES, self.last)
        if self.mode == "dense" and self.unit == "document":
            return min(ALONE_CANDIDATES, self.candidates)
        return self.candidates

    @property
    def needs_text(self) -> bool:
        """Whether vectors alone cannot be searched for."""
        return self.mode != "dense" or self.rerank is not None or self.operators

    def _check(self, built: str) -> None:
        rerank = self.rerank
        named = isinstance(rerank, str) and rerank.strip()
        if not (rerank is None or isinstance(rerank, CrossEncoderLike) or named):
            raise ConfigError(
                f"rerank={self.rerank!r}: must be 'maxsim', a CrossEncoder, or the name of one"
            )
        if not set(GRANULARITIES[self.granularity or built]) <= set(GRANULARITIES[built]):
            raise ConfigError(
                f"granularity={self.granularity!r}: this index was built with granularity {built!r}"
            )

    def _check_least(self) -> None:
        if self.min_score is None:
            return
        if np.isnan(self.min_score):
            raise ConfigError(f"min_score={self.min_score!r}: must be a number")
        if self.min_score > 1 and self.mode != "lexical" and self.rerank is None:
            what = "confidence" if self.mode == "hybrid" else "cosine"
            raise ConfigError(
                f"min_score={self.min_score!r}: a {what} is at most 1, so nothing could be found"
            )

    def _check_sort(self) -> None:
        if self.sort is None:
            return
        Sort.parse(self.sort)
        if self.diversity:
            raise ConfigError(
                f"sort={self.sort!r}: not with diversity, which puts hits in an order of its own"
            )

    def _check_unit(self, built: str) -> None:
        if self.unit == "document":
            if wrong := [
                name for name in _OF_PASSAGES if getattr(self, name) != getattr(Options, name)
            ]:
                raise ConfigError(
                    f"{wrong[0]}={getattr(self, wrong[0])!r}: only with unit='passage'"
                )
            if (
                self.min_score is not None
                and self.mode == "hybrid"
                and self.rerank is None
                and built == "document"
            ):
                raise ConfigError(
                    "min_score: a hybrid search has comparable scores only with passages, but"
                    " this index was built with granularity 'document'; use mode='dense' or"
                    " mode='lexical'"
                )
        elif built == "document":
            raise ConfigError("unit='passage': this index was built with granularity 'document'")
        elif self.granularity is not None:
            raise ConfigError(f"granularity={self.granularity!r}: only with unit='document'")
        elif self.fusion != "weighted" or self.weight != WEIGHT:
            raise ConfigError(
                "fusion and weight: only with unit='document'; passages have one calibrated scale"
            )


def unknown_option(name: str, known: Iterable[str] = ("k", *SearchOptions.__annotations__)) -> str:
    """Say that a search has no option of a name, and which of those `known` may be meant."""
    names = list(known)
    near = _ELSEWHERE.get(name)
    return no_option("a search", name, names, near if near in names else None)


def within(where: Filter | None, ids: Iterable[str] | None) -> Filter | None:
    """A filter that also keeps to some ids, where they are given; raises InputError as `check_ids`
    does.
    """
    if ids is None:
        return where
    among = {"_id": {"$in": check_ids(ids)}}
    return among if where is None else {"$and": [among, where]}
