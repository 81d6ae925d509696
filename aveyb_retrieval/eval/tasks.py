"""The two protocols, and the task that a system is given: queries, corpus and judgements under one
protocol.

`standard` is the one to quote: every document of the corpus competes, the model's own prompts are
used, texts are read up to the model's limit, nDCG is trec_eval's.

`paper` repeats the evaluation behind table 2 of the Avey-B paper (the code it builds on measures
all models this way): prefixes "Query: " and "Document: ", title and text joined by ". ", the corpus
cut down to the documents judged in the dev and test splits, binary relevance, and nDCG over the ten
retrieved documents only. MS MARCO is measured on TREC DL 2019, which that code calls its test
split. The numbers are much higher than standard ones and comparable only with each other.

Where a set has a single judged split (NQ), the original halves its queries with an unseeded
shuffle, so its halves cannot be had again; here the shuffle is seeded, and the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError, plural
from aveyb_retrieval.eval.base import fingerprint_of

if TYPE_CHECKING:
    from aveyb_retrieval.eval.base import Judgements
    from aveyb_retrieval.eval.data import Corpus, Dataset, Document, Spans


@dataclass(frozen=True)
class EvalProtocol:
    """How texts are presented and how the ranking is scored.

    Prefixes of None mean the model's own prompts.
    """

    name: str
    main_metric: str
    query_prefix: str | None
    document_prefix: str | None
    title_separator: str


STANDARD = EvalProtocol(
    "standard", "ndcg@10", query_prefix=None, document_prefix=None, title_separator=" "
)
PAPER = EvalProtocol("paper", "retrieved-ndcg@10", "Query: ", "Document: ", title_separator=". ")
# the first that is there; dl19 is what the paper's code calls MS MARCO's test split
_PAPER_SPLITS = ("test", "dl19")
PROTOCOLS = {protocol.name: protocol for protocol in (STANDARD, PAPER)}


@dataclass(frozen=True)
class Task:
    """Queries to search a corpus for under a protocol, and the judgements to score the
    answers by.
    """

    dataset: str
    source: str
    split: str
    protocol: EvalProtocol
    corpus: Corpus
    queries: dict[str, str]
    judgements: Judgements
    full_corpus_size: int
    spans: Spans = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) over corpus, queries, judgements and protocol."""
        return fingerprint_of(
            [self.corpus.fingerprint, self.queries, self.judgements, self.protocol.__dict__]
        )


def make_task(
    dataset: Dataset,
    protocol: EvalProtocol = STANDARD,
    split: str | None = None,
    *,
    max_queries: int | None = None,
    seed: int = 0,
) -> Task:
    """Apply a protocol to a data set's split.

    `max_queries` draws that many of the judged queries, in file order, by
    `numpy.random.default_rng(seed).permutation`.
    """
    chosen = _paper(dataset, split, seed) if protocol is PAPER else _standard(dataset, split)
    split, corpus, queries, judgements, notices = chosen
    if max_queries is not None and max_queries < len(judgements):
        if max_queries < 1:
            raise ConfigError(f"max_queries must be at least 1, not {max_queries}")
        judged = list(judgements)
        drawn = [
            judged[i] for i in np.random.default_rng(seed).permutation(len(judged))[:max_queries]
        ]
        queries, judgements = {q: queries[q] for q in drawn}, {q: judgements[q] for q in drawn}
        count = plural(len(judged), "judged query", "judged queries")
        notices.append(f"{max_queries} of {count} drawn with seed {seed}")
    return Task(
        dataset=dataset.name,
        source=dataset.source,
        split=split,
        protocol=protocol,
        corpus=corpus,
        queries=queries,
        judgements=judgements,
        full_corpus_size=len(dataset.corpus),
        spans={} if protocol is PAPER else dataset.spans,
        notices=tuple(notices),
    )


# also the split, and notices
_Chosen = tuple[str, "Corpus", dict[str, str], "Judgements", list[str]]


def _standard(dataset: Dataset, split: str | None) -> _Chosen:
    split, qrels = dataset.split(split)
    queries = {query: dataset.queries[split][query] for query in qrels.judgements}
    notices = list(qrels.notices)
    empty = sum(
        all(grade < 1 for grade in documents.values()) for documents in qrels.judgements.values()
    )
    if empty:
        noun = plural(empty, "judged query", "judged queries")
        notices.append(f"{noun} without a relevant document: scored 0")
    return split, dataset.corpus, queries, qrels.judgements, notices


def _paper(dataset: Dataset, split: str | None, seed: int) -> _Chosen:
    judged_splits = {
        name: qrels.judgements for name, qrels in dataset.splits.items() if name != "train"
    }
    texts = dataset.queries
    notices = [notice for qrels in dataset.splits.values() for notice in qrels.notices]
    if len(judged_splits) == 1:
        only_split, judgements = next(iter(judged_splits.items()))
        order = sorted(judgements)  # as the original samples from
        dev = {
            *np.random.default_rng(seed).permutation(len(order))[: round(0.5 * len(order))].tolist()
        }
        judged_splits = {"dev": {}, "test": {}}
        for i, query in enumerate(order):
            judged_splits["dev" if i in dev else "test"][query] = judgements[query]
        texts = dict.fromkeys(judged_splits, texts[only_split])
        notices.append(
            f"{dataset.name} has one judged split ({only_split}): halved at random with seed"
            f" {seed}. The paper's code does not seed this shuffle, so its halves cannot be"
            " reproduced"
        )
    split = split or next(
        (name for name in _PAPER_SPLITS if name in judged_splits), next(iter(judged_splits))
    )
    if split not in judged_splits:
        raise InputError(
            f"{dataset.source}: no split {split!r} under the paper protocol; there are"
            f" {sorted(judged_splits)}"
        )
    judged = {
        doc
        for judgements in judged_splits.values()
        for documents in judgements.values()
        for doc in documents
    }
    corpus = dataset.corpus.subset(judged)
    judgements = {
        query: binary
        for query, documents in judged_splits[split].items()
        if (binary := {doc: 1 for doc, grade in documents.items() if grade >= 1})
    }
    if not judgements:
        raise InputError(f"{dataset.source}: split {split!r} has no relevant document")
    notices.append(
        f"corpus reduced to {plural(len(corpus), 'judged document')} of {len(dataset.corpus):,}:"
        " not comparable with standard scores"
    )
    queries = {query: texts[split][query] for query in judgements}
    return split, corpus, queries, judgements, notices


def joined_text(document: Document, protocol: EvalProtocol) -> str:
    """Join title and text, without the protocol's prefix; an empty title leaves no separator
    behind.
    """
    return (
        f"{document.title}{protocol.title_separator}{document.text}"
        if document.title
        else document.text
    )
