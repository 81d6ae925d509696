"""Hard negatives for contrastive training: texts that a search puts near an anchor though they do not answer it.

The rules bear the names they have in sentence-transformers' `mine_hard_negatives`. The margins are those of
NV-Retriever (Moreira et al., 2024): a text that the model finds nearly as good as the known positive is more often an
answer that nobody marked than a negative. `mode` only proposes texts; whether one is kept is decided by cosines in
every mode, because a BM25 score says nothing about a positive that shares no word with its anchor.

Texts of the corpus are cut into passages, as an index cuts them: a negative is no longer than what a search would find.
A passage that is a positive of its question, a part of one or around one, case and white space aside, is no negative.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.encoder.text.passages import cut_passages
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.files import write_atomic
from aveyb_retrieval.indexes.changes.build import build_index
from aveyb_retrieval.indexes.model import load_model
from aveyb_retrieval.indexes.search.options import Options
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.types import silent
from aveyb_retrieval.training.settings import MiningRules
from aveyb_retrieval.training.texts import text_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from datasets import Dataset

    from aveyb_retrieval.indexes.model import Model
    from aveyb_retrieval.indexes.search.options import Mode
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray, Progress

_ANCHORS = 256  # per search


@dataclass(frozen=True)
class Mined:
    """The triplets found, and what was missing.

    triplets: columns `anchor`, `positive`, `negative`; a row for each negative of each distinct pair.
    texts: number of distinct texts searched.
    anchors: number of distinct anchors.
    short: anchors with some negatives, but fewer than asked for.
    left_out: anchors without a negative, and so without a row.
    """

    triplets: Dataset
    texts: int
    anchors: int
    short: list[str]
    left_out: list[str]

    def save(self, path: str | Path) -> None:
        """Write the triplets as JSON Lines, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.triplets).encode())


def mine_negatives(
    pairs: Dataset,
    rules: MiningRules | None = None,
    *,
    model: Model = None,
    corpus: Iterable[str] = (),
    mode: Mode = "dense",
    device: str = "cpu",
    progress: Progress = silent,
) -> Mined:
    """Search an index of all positives with every anchor, and keep what the rules allow.

    The index is made in a temporary folder; the texts' vectors `[n, d]` float32 are held in memory as well.

    Args:
        pairs: rows with `anchor` and `positive`; all positives of the same anchor are its own. A column `negative` is
            ignored, so that triplets can be mined again with a better model.
        rules: None: the defaults.
        model: model folder or name, or a loaded `Embedder`; None: the embedded default.
        corpus: more texts whose passages may be negatives; blank and repeated ones are left out, and so is a text equal
            to the anchor, from which nothing can be learned.
        mode: what proposes texts: "dense" (vectors), "lexical" (BM25) or "hybrid".
        device: where the model runs and vectors are searched.
        progress: called as the work goes on.

    Raises:
        ConfigError: a rule is out of range, or the mode unknown.
        InputError: none of the anchors has a negative.
    """
    rules = rules or MiningRules()
    rules.check()
    Options.parse("document", rules.range_max, mode=mode)  # now, not after the encoding
    embedder = load_model(model, device=device)
    own: dict[str, list[str]] = {}
    for anchor, positive in dict.fromkeys(zip(pairs["anchor"], pairs["positive"], strict=True)):
        own.setdefault(anchor, []).append(positive)
    answers: dict[str, set[str]] = {}  # of all anchors with the same words
    for anchor, positives in own.items():
        answers.setdefault(text_key(anchor), set()).update(map(text_key, positives))
    more = (passage for text in corpus for passage in _passages(text, embedder) if passage.strip())
    texts = list(dict.fromkeys([*pairs["positive"], *more]))
    number, keys = {text: i for i, text in enumerate(texts)}, [text_key(text) for text in texts]
    vectors = _encode(embedder, texts, progress)
    anchors, found = list(own), {}
    with TemporaryDirectory(prefix="aveyb-mine-") as folder:
        documents = ({"_id": str(i), "text": text} for i, text in enumerate(texts))
        build_index(documents, folder, vectors=vectors, granularity="document", model=embedder, progress=progress)
        with Retriever.load(folder, model=embedder, device=device) as retriever:
            for start in range(0, len(anchors), _ANCHORS):
                some = anchors[start : start + _ANCHORS]
                depth = rules.range_max + max(len(answers[text_key(anchor)]) for anchor in some) + 1  # 1: itself
                rankings = retriever.rank(some, depth, mode=mode)
                for anchor, query, ranking in zip(some, embedder.encode_queries(some), rankings, strict=True):
                    asked = text_key(anchor)
                    ids = (int(text) for text, _ in ranking)
                    ranked = [i for i in ids if keys[i] != asked and not _is_answer(keys[i], answers[asked])]
                    marked = [number[text] for text in own[anchor]]
                    found[anchor] = [texts[i] for i in _choose(ranked, marked, vectors, query, rules)]
                progress("anchors", len(found), len(anchors), 0)
    return _mined(own, found, len(texts), rules)


def _passages(text: str, embedder: EmbedderLike) -> list[str]:
    """Cut a text as an index of the model would; a model that does not say how leaves it whole."""
    size, tokens = getattr(embedder, "passage_size", None), getattr(embedder, "tokens", None)
    if size is None or tokens is None:
        return [text]
    spans = cut_passages(text, tokens(text, special=False)[1], size).spans
    return [text] if len(spans) == 1 else [text[start:end] for start, end in spans]


def _is_answer(text: str, answers: set[str]) -> bool:
    """Whether a text is one of the answers, some words of one, or the words around one; all by `text_key`."""
    return text in answers or any(f" {text} " in f" {own} " or f" {own} " in f" {text} " for own in answers)


def _encode(embedder: EmbedderLike, texts: list[str], progress: Progress) -> FloatArray:
    vectors, tokens = np.empty((len(texts), embedder.dim), np.float32), 0
    for i, encoded in enumerate(embedder.encode_documents(("", text) for text in texts)):
        vectors[i] = encoded.vector
        tokens += encoded.n_tokens
        progress("texts", i + 1, len(texts), tokens)
    return vectors


def _choose(
    ranked: list[int], positives: list[int], vectors: FloatArray, query: FloatArray, rules: MiningRules
) -> list[int]:
    """Choose the negatives among texts in their order, none of them an answer, for the query `[d]` of an anchor."""
    considered = ranked[rules.range_min : rules.range_max]
    limit = rules.limit(float((vectors[positives] @ query).min()))
    near = vectors[considered] @ query
    return [i for i, cosine in zip(considered, near.tolist(), strict=True) if cosine <= limit][: rules.negatives]


def _mined(own: dict[str, list[str]], found: dict[str, list[str]], texts: int, rules: MiningRules) -> Mined:
    from datasets import Dataset

    rows = [
        {"anchor": anchor, "positive": positive, "negative": negative}
        for anchor, positives in own.items()
        for positive in positives
        for negative in found[anchor]
    ]
    if not rows:
        raise InputError(
            f"none of {len(own)} anchors has a negative among {texts} texts, ranks {rules.range_min} to "
            f"{rules.range_max}: give more texts (a corpus), a higher range_max, or smaller margins"
        )
    short = [anchor for anchor, negatives in found.items() if 0 < len(negatives) < rules.negatives]
    left_out = [anchor for anchor, negatives in found.items() if not negatives]
    return Mined(Dataset.from_list(rows), texts, len(own), short, left_out)
