"""Score retrieved passages against true spans of text, in characters.

For a query with true ranges T (of one document) and the k passages that a system returned, P their union:

    precision@k = |P n T| / |P|      recall@k = |P n T| / |T|      IoU@k = |P n T| / |P u T|

all in characters, macro-averaged over queries. Overlapping passages count once. In scope `document` the system searches
inside the document that holds the answer; in scope `corpus` everywhere, and characters of other documents count as
retrieved and wrong. hit@k is the share of queries with any overlap.

Rank passages by their vectors, exactly: every passage gets a score for every query.

Ties go to the passage that comes first in the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.eval.base import SystemInfo
    from aveyb_retrieval.eval.data import Corpus, Document
    from aveyb_retrieval.eval.encoders import Chunker, CorpusEncoder
    from aveyb_retrieval.eval.systems import VectorCache
    from aveyb_retrieval.eval.tasks import Task
    from aveyb_retrieval.eval.vectors import EncodedCorpus

Range = tuple[int, int]
Passage = tuple[str, int, int]
"""Document id, start, end: characters [start, end) of the document's text."""

SCOPES = ("document", "corpus")
CUTOFFS = (1, 3, 5, 10)


class PassageSystem(Protocol):
    """Anything that ranks passages for queries; `passage_systems` holds ours and the peers."""

    @property
    def info(self) -> SystemInfo:
        """Everything that decides the ranking."""

    def search(
        self, queries: Mapping[str, str], k: int, within: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[Passage]]:
        """Return at most `k` passages per query, best first.

        `queries` maps query ids to texts; `within` maps query ids to the documents to search, None searches them all.
        """


@dataclass(frozen=True)
class PassageScores:
    """Means over queries, keyed `precision@k`, `recall@k`, `iou@k`, `hit@k`; per_query holds them by query id."""

    name: str
    scope: str
    queries: int
    mean_passage_characters: float
    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def merge(ranges: Sequence[Range]) -> list[Range]:
    """Return the union of character ranges as disjoint, sorted ranges; empty ranges vanish."""
    merged: list[Range] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def overlap(a: Sequence[Range], b: Sequence[Range]) -> int:
    """Count the characters in both of two unions of ranges."""
    left, right = merge(a), merge(b)
    return sum(max(0, min(e1, e2) - max(s1, s2)) for s1, e1 in left for s2, e2 in right)


def score_passages(truth: Mapping[str, Sequence[Range]], retrieved: Sequence[Passage]) -> dict[str, float]:
    """Return precision, recall, IoU and hit of one query's passages; `truth` maps document ids to true ranges."""
    by_document: dict[str, list[Range]] = {}
    for doc, start, end in retrieved:
        by_document.setdefault(doc, []).append((start, end))
    size = sum(end - start for ranges in by_document.values() for start, end in merge(ranges))
    true_size = sum(end - start for ranges in truth.values() for start, end in merge(ranges))
    common = sum(overlap(ranges, truth.get(doc, ())) for doc, ranges in by_document.items())
    return {
        "precision": common / size if size else 0.0,
        "recall": common / true_size,
        "iou": common / (size + true_size - common),
        "hit": float(common > 0),
    }


def evaluate_passages(
    system: PassageSystem, task: Task, *, ks: Sequence[int] = CUTOFFS, scope: str = "document"
) -> PassageScores:
    """Score a system's passages for every judged query that has true spans.

    Raises:
        ConfigError: an unknown scope.
        InputError: the data set has no spans for these queries.
    """
    if scope not in SCOPES:
        raise ConfigError(f"unknown scope {scope!r}: use one of {', '.join(SCOPES)}")
    queries = {query: text for query, text in task.queries.items() if task.spans.get(query)}
    if not queries:
        raise InputError(f"{task.source}: no spans.jsonl for the {len(task.queries)} queries of split {task.split!r}")
    within = {query: list(task.spans[query]) for query in queries} if scope == "document" else None
    found = system.search(queries, max(ks), within)
    per_query: dict[str, dict[str, float]] = {}
    for query in queries:
        for k in ks:
            for measure, value in score_passages(task.spans[query], found[query][:k]).items():
                per_query.setdefault(f"{measure}@{k}", {})[query] = value
    lengths = [end - start for passages in found.values() for _, start, end in passages]
    return PassageScores(
        name=system.info.name,
        scope=scope,
        queries=len(queries),
        mean_passage_characters=float(np.mean(lengths)) if lengths else 0.0,
        mean={key: float(np.mean(list(values.values()))) for key, values in per_query.items()},
        per_query=per_query,
    )


Scores = npt.NDArray[np.float32]


class PassageTable:
    """The passages of a corpus: row i is characters `spans[i]` of document `owners[i]`.

    owners: `[m]` int64, positions in the corpus; spans: `[m, 2]` int64; offsets: `[n + 1]` int64, document j owns
    rows offsets[j] to offsets[j + 1].
    """

    def __init__(self, corpus: Corpus, offsets: np.ndarray, spans: np.ndarray) -> None:
        self._corpus = corpus
        self.offsets = np.asarray(offsets)
        self.spans = np.asarray(spans)
        self.owners = np.repeat(np.arange(len(corpus)), np.diff(self.offsets))

    def rows(self, documents: Iterable[str] | None) -> np.ndarray:
        """Return the rows of some documents, or of all; a passage without text is left out, it cannot be shown."""
        if documents is None:
            rows = np.arange(len(self.spans))
        else:
            positions = sorted(self._corpus.positions[doc] for doc in documents)
            rows = np.concatenate([np.arange(self.offsets[p], self.offsets[p + 1]) for p in positions])
        return rows[self.spans[rows, 0] < self.spans[rows, 1]]

    def passage(self, row: int) -> Passage:
        """Return the passage of a row."""
        start, end = (int(value) for value in self.spans[row])
        return self._corpus.ids[self.owners[row]], start, end


class Scorer(Protocol):
    """Gives every passage of a table a score for a query."""

    info: SystemInfo

    @property
    def table(self) -> PassageTable:
        """The passages."""

    def scores(self, queries: Sequence[str]) -> Iterator[Scores]:
        """Yield the scores `[m]` of all passages for each query; -inf for a passage that is not found at all."""


class VectorScorer:
    """Cosines of an encoder's passages: late chunking's, or chunks encoded one by one."""

    def __init__(self, encoder: CorpusEncoder, corpus: Corpus, cache: VectorCache, *, name: str = "") -> None:
        self.info = replace(encoder.info, name=name or encoder.info.name)
        self._encoder = encoder
        self._corpus = corpus
        self._cache = cache

    @cached_property
    def _encoded(self) -> EncodedCorpus:
        return self._cache.encoded(self._encoder, self._corpus)

    @cached_property
    def table(self) -> PassageTable:
        """The passages that the encoder made."""
        return PassageTable(self._corpus, self._encoded.offsets, self._encoded.spans)

    def scores(self, queries: Sequence[str]) -> Iterator[Scores]:
        """Yield the cosines of all passages with each query."""
        vectors = np.asarray(self._encoded.passages)
        for query in self._encoder.encode_queries(list(queries)):
            yield vectors @ query


class ExactPassages:
    """Rank passages by one scorer, exactly."""

    def __init__(self, scorer: Scorer, *, name: str = "") -> None:
        """Rank by a scorer; reports call it `name`, else as the scorer is called."""
        self._scorer = scorer
        self.info = replace(scorer.info, name=name or scorer.info.name)

    def search(
        self, queries: Mapping[str, str], k: int, within: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, list[Passage]]:
        """Return at most `k` passages per query, best first; see `PassageSystem`."""
        table = self._scorer.table
        found = {}
        for query, scores in zip(queries, self._scorer.scores(list(queries.values())), strict=True):
            best = best_rows(scores, table.rows(within[query] if within else None), k)
            found[query] = [table.passage(row) for row in best]
        return found


def chunks_of(encoded: EncodedCorpus, positions: Mapping[str, int]) -> Chunker:
    """Return a chunker that repeats the passages of an encoded corpus, to read exactly those in another way."""

    def chunk(document: Document) -> list[Range]:
        position = positions[document.id]
        rows = encoded.spans[encoded.offsets[position] : encoded.offsets[position + 1]]
        return [(int(start), int(end)) for start, end in rows]

    return chunk


def late_against_fixed(
    make_encoder: Callable[[Chunker | None], CorpusEncoder], corpus: Corpus, cache: VectorCache
) -> list[PassageSystem]:
    """Return late chunking and the same spans encoded one by one; `make_encoder(None)` is the late-chunking encoder."""
    late = make_encoder(None)
    chunker = chunks_of(cache.encoded(late, corpus), corpus.positions)
    fixed = make_encoder(chunker)
    return [
        ExactPassages(VectorScorer(late, corpus, cache), name=f"{late.info.name}, late chunking"),
        ExactPassages(VectorScorer(fixed, corpus, cache), name=f"{fixed.info.name}, chunks one by one"),
    ]


def best_rows(scores: Scores, rows: np.ndarray, k: int) -> list[int]:
    """Return the `k` best of some rows by their scores, best first, ties by the lower row."""
    from aveyb_retrieval.indexes.nearest.tiers import top

    _, ids = top(scores[rows][None], rows[None], k)
    return [int(row) for row in ids[0] if row >= 0]
