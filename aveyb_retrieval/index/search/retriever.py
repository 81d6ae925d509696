"""`Retriever`: the one face of an index that an application sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from aveyb_retrieval.index.model import Model, check_loaded, load_model
from aveyb_retrieval.index.search import fusion, rerank
from aveyb_retrieval.index.search.hits import Hit, Passage
from aveyb_retrieval.index.search.lexical import best_passage
from aveyb_retrieval.index.search.options import Options
from aveyb_retrieval.index.search.snapshot import Allowed, Match, Snapshot
from aveyb_retrieval.index.storage.directory import IndexDirectory
from aveyb_retrieval.index.storage.store import StoredDocument
from aveyb_retrieval.index.types import EmbedderLike, FloatArray, check_fingerprint, unit_rows


class Retriever:
    """Searches an index directory. Safe to use from many threads; several processes may open the same index.

    A retriever keeps to the version that was visible when it was loaded, however the index is changed meanwhile;
    `reopen` moves to the newest one.
    """

    def __init__(self, path: str | Path, snapshot: Snapshot, embedder: EmbedderLike | None, load: _Load) -> None:
        self.path = Path(path)
        self._snapshot = snapshot
        self._embedder = embedder
        self._load = load
        self._model_lock = threading.Lock()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: Model = None,
        device: str = "cpu",
        precision: str = "float32",
        mapped: bool = True,
        verify: bool = False,
    ) -> Retriever:
        """Open an index.

        Args:
            path: The index directory.
            model: The model that made the index: a loaded `Embedder`, or where it is now; None looks where it was at
                the build, at the first search that needs it.
            device: Where the model runs and vectors are searched.
            precision: What the model computes in, as in `build_index`.
            mapped: Leave vectors on disk, shared with other processes, instead of reading them into memory.
            verify: Recompute the hash of every file first, also of a large index.

        Raises:
            IndexFormatError: there is no index, it is damaged, or it was made by another model.
            BackendError: the device is not there.
        """
        source, embedder = (model, None) if model is None or isinstance(model, (str, Path)) else (None, model)
        if embedder is not None:
            check_loaded(embedder, device="cpu", precision=precision, max_tokens=None)
        load = _Load(source, device, precision, mapped)
        retriever = cls(path, Snapshot.open(path, mapped=mapped, full_check=verify, device=device), None, load)
        if embedder is not None:
            _check_model(retriever._snapshot, embedder)
            retriever._embedder = embedder
        elif source is not None:
            retriever._model()
        return retriever

    @property
    def version(self) -> str:
        """Name of the version that is open."""
        return self._snapshot.manifest.version

    @property
    def is_stale(self) -> bool:
        """Whether a newer version is there to be reopened."""
        return IndexDirectory(self.path).current() != self.version

    def reopen(self) -> None:
        """Move to the newest version. Searches that are running end on the one they began with."""
        if self.is_stale:
            snapshot = Snapshot.open(self.path, mapped=self._load.mapped, device=self._load.device)
            if self._embedder is not None:
                _check_model(snapshot, self._embedder)
            self._snapshot = snapshot  # the old one lets go of its files when the last search on it ends

    def close(self) -> None:
        """Let go of the index's files. Searching afterwards is an error."""
        self._snapshot.close()

    def __enter__(self) -> Retriever:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of documents."""
        return self._snapshot.manifest.counts["documents"]

    # --- searching ---------------------------------------------------------------------------------------------------

    @overload
    def search(self, query: str, k: int = ..., **options: Any) -> list[Hit]: ...
    @overload
    def search(self, query: Sequence[str], k: int = ..., **options: Any) -> list[list[Hit]]: ...

    def search(self, query: str | Sequence[str], k: int = 10, **options: Any) -> list[Hit] | list[list[Hit]]:
        """Find the `k` best documents for a query, or for each query of a list (then a list of lists).

        Args:
            query: Text, or several.
            k: How many documents; fewer come back only where fewer exist (or, lexically, hold any of the words).
            filter: Only documents whose metadata satisfy this: see `aveyb_retrieval.index.storage.filters`.
            mode: "hybrid" (vectors and words, fused; default), "dense" (vectors) or "lexical" (words, BM25).
            granularity: Which vectors rank: "document", "passage" or "both" (the better of the two); None is what
                the index has.
            fusion: "weighted" (scores, each scaled to 0..1; default) or "rrf" (reciprocal ranks).
            weight: Of the vectors in weighted fusion, 0 to 1; the words get the rest.
            rerank: "maxsim" orders the candidates by late interaction over token vectors; None does not.
            passages: How many passages to give with each document.
            context: Also give the passage with this many neighbours on each side.
            candidates: How many documents fusion and reranking choose from.
            exact: Score every vector instead of asking the index.

        Raises:
            InputError: a query is empty.
            ConfigError: an option is out of range or the index has not what it asks for.
            IndexFormatError: the model is not the one that made the index.
        """
        queries = _as_list(query)
        snapshot = self._snapshot
        parsed = Options.check(snapshot.manifest.granularity, k, **options)
        hits = self._search(snapshot, queries, parsed)
        return hits[0] if isinstance(query, str) else hits

    async def asearch(self, query: str | Sequence[str], k: int = 10, **options: Any) -> list[Hit] | list[list[Hit]]:
        """`search` for asynchronous programs: runs in a thread, as the work is done outside of Python."""
        return await asyncio.to_thread(lambda: self.search(query, k, **options))

    def search_vectors(self, vectors: npt.NDArray[np.floating], k: int = 10, **options: Any) -> list[list[Hit]]:
        """`search` with queries that are vectors already, `[n, d]`; they are scaled to unit length.

        Raises:
            InputError: they are of another dimension, or not finite.
            ConfigError: an option needs the text of a query.
        """
        parsed = Options.check(self._snapshot.manifest.granularity, k, **{"mode": "dense", **options})
        if parsed.mode != "dense" or parsed.rerank:
            raise ConfigError("search_vectors: lexical search, fusion and reranking need queries of text; use search")
        snapshot = self._snapshot
        unit = _unit_rows(vectors, snapshot.manifest.dim)
        found = snapshot.documents(parsed.kinds, unit, parsed.k, snapshot.allowed(parsed.where), exact=parsed.exact)
        return [
            self._hits(snapshot, matches, parsed, vector, None, {}) for matches, vector in zip(found, unit, strict=True)
        ]

    def rank(self, queries: Sequence[str], k: int = 10, **options: Any) -> list[list[tuple[str, float]]]:
        """Like `search` for a list, but only (id, score) pairs: what an evaluation of many queries needs."""
        snapshot = self._snapshot
        parsed = Options.check(snapshot.manifest.granularity, k, **options)
        rankings = []
        for matches, *_ in self._ranked(snapshot, _as_list(list(queries)), parsed):
            with snapshot.store() as store:
                ids = store.documents([m.doc for m in matches], texts=False)
            rankings.append([(ids[m.doc].id, m.score) for m in matches])
        return rankings

    # --- inside ------------------------------------------------------------------------------------------------------

    def _search(self, snapshot: Snapshot, queries: list[str], options: Options) -> list[list[Hit]]:
        return [
            self._hits(snapshot, matches, options, vector, text, scores)
            for text, (matches, vector, scores) in zip(queries, self._ranked(snapshot, queries, options), strict=True)
        ]

    def _ranked(
        self, snapshot: Snapshot, queries: list[str], options: Options
    ) -> list[tuple[list[Match], FloatArray | None, dict[str, dict[int, float]]]]:
        """Per query: its documents, its vector where one was needed, and the scores that led to the order."""
        allowed = snapshot.allowed(options.where)
        vectors = None
        dense: list[list[Match]] = [[] for _ in queries]
        if options.mode != "lexical":
            vectors = _unit_rows(self._model().encode_queries(queries), snapshot.manifest.dim)
            dense = snapshot.documents(options.kinds, vectors, options.depth, allowed, exact=options.exact)
        results = []
        for row, text in enumerate(queries):
            vector = None if vectors is None else vectors[row]
            matches, scores = self._order(snapshot, text, vector, dense[row], allowed, options)
            results.append((matches[: options.k], vector, scores))
        return results

    def _order(
        self,
        snapshot: Snapshot,
        text: str,
        vector: FloatArray | None,
        dense: list[Match],
        allowed: Allowed | None,
        options: Options,
    ) -> tuple[list[Match], dict[str, dict[int, float]]]:
        rankings = {"dense": dense}
        if options.mode != "dense":
            rankings["lexical"] = snapshot.lexical(text, options.depth, allowed)
        scores = {name: {m.doc: m.score for m in matches} for name, matches in rankings.items()}
        passage = {m.doc: m.passage for m in dense}
        if options.mode == "hybrid":
            if options.fusion == "rrf":
                fused = fusion.reciprocal_rank([[(m.doc, m.score) for m in found] for found in rankings.values()])
            else:
                assert vector is not None  # every mode but the lexical one has encoded the query
                unscored = [doc for doc in scores["lexical"] if doc not in scores["dense"]]
                for match in snapshot.scored(options.kinds, unscored, vector):
                    scores["dense"][match.doc], passage[match.doc] = match.score, match.passage
                background = float(snapshot.mean_vector @ vector)
                fused = fusion.weighted(
                    scores["dense"], scores["lexical"], background=background, weight=options.weight
                )
            matches = [Match(doc, score, passage.get(doc, -1)) for doc, score in fusion.ranked(fused)]
        else:
            matches = rankings[options.mode]
        if options.rerank:
            candidates = matches[: options.depth]
            found = self._rerank(snapshot, text, vector, candidates)
            scores["maxsim"] = found
            matches = [Match(doc, score, passage.get(doc, -1)) for doc, score in fusion.ranked(found)]
        return matches, scores

    def _rerank(
        self, snapshot: Snapshot, text: str, vector: FloatArray | None, matches: list[Match]
    ) -> dict[int, float]:
        documents = _fetch(snapshot, matches)
        texts = []
        for match, document in zip(matches, documents, strict=True):
            best = self._best_passages(snapshot, match, document, vector, text, 1)
            texts.append(best[0].text if best else document.text)
        scores = rerank.score(self._model(), text, texts)
        return {match.doc: score for match, score in zip(matches, scores, strict=True)}

    def _hits(
        self,
        snapshot: Snapshot,
        matches: list[Match],
        options: Options,
        vector: FloatArray | None,
        text: str | None,
        scores: dict[str, dict[int, float]],
    ) -> list[Hit]:
        hits = []
        for match, document in zip(matches, _fetch(snapshot, matches), strict=True):
            cosine = scores.get("dense", {}).get(match.doc, match.score)
            best = self._best_passages(snapshot, match._replace(score=cosine), document, vector, text, options.passages)
            hit = Hit(
                id=document.id,
                score=match.score,
                text=document.text,
                title=document.title,
                metadata=document.metadata,
                passage=best[0].text if best else None,
                span=best[0].span if best else None,
                passages=tuple(best),
                scores={name: found[match.doc] for name, found in scores.items() if match.doc in found},
            )
            if options.context is not None and best:
                hit = _with_context(snapshot, match.doc, hit, options.context)
            hits.append(hit)
        return hits

    def _best_passages(
        self,
        snapshot: Snapshot,
        match: Match,
        document: StoredDocument,
        vector: FloatArray | None,
        text: str | None,
        count: int,
    ) -> list[Passage]:
        """The best passages of a document: by their vectors, or by the query's words where no vector was made.

        The match's score is the cosine of its passage, where it has one.
        """
        if "passage" not in snapshot.kinds:
            return []
        if vector is not None and match.passage >= 0 and count == 1:
            with snapshot.store() as store:
                start, stop = store.span(match.passage)
            return [Passage(document.text[start:stop], (start, stop), match.score)]
        scores: list[float | None]
        if vector is not None:
            found, spans = snapshot.passages(match.doc, vector)
            order, scores = np.argsort(-found, kind="stable")[:count].tolist(), found.tolist()
        else:
            with snapshot.store() as store:
                spans = store.spans(match.doc)
            order = [best_passage(document.text, spans, text or "")] if len(spans) else []
            scores = [None] * len(spans)
        return [
            Passage(document.text[start:stop], (start, stop), scores[i])
            for i, (start, stop) in zip(order, spans[order].tolist(), strict=True)
        ]

    def _model(self) -> EmbedderLike:
        """The model, loaded when it is first needed."""
        with self._model_lock:
            if self._embedder is None:
                embedder = self._load.embedder(self._snapshot)
                _check_model(self._snapshot, embedder)
                self._embedder = embedder
            return self._embedder


@dataclass(frozen=True)
class _Load:
    """How to open the model and later versions."""

    model: str | Path | None
    device: str
    precision: str
    mapped: bool

    def embedder(self, snapshot: Snapshot) -> EmbedderLike:
        manifest = snapshot.manifest
        if manifest.model is None:
            raise ConfigError(
                f"{snapshot.folder.parent}: made from ready-made vectors of a model that was not named; search it with "
                "search_vectors, lexically, or give the model (build it with --model next time)"
            )
        source = self.model if self.model is not None else manifest.settings["model_source"]
        return load_model(source, device=self.device, precision=self.precision)


def _check_model(snapshot: Snapshot, embedder: EmbedderLike) -> None:
    check_fingerprint(snapshot.manifest.model, snapshot.manifest.dim, embedder, snapshot.folder.parent)


def _as_list(query: str | Sequence[str]) -> list[str]:
    if not isinstance(query, Iterable):
        raise InputError(f"the query is of type {type(query).__name__}; a string or a list of strings is needed")
    queries = [query] if isinstance(query, str) else list(query)
    for number, text in enumerate(queries, start=1):
        where = "the query" if isinstance(query, str) else f"query {number} of {len(queries)}"
        if not isinstance(text, str):
            raise InputError(f"{where} is of type {type(text).__name__}; a string is needed")
        if not text.strip():
            raise InputError(f"{where} is empty; there is nothing to search for")
    return queries


def _unit_rows(vectors: npt.NDArray[np.floating], dim: int) -> FloatArray:
    try:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"query vectors are not an array of numbers ({error}); this index needs [n, {dim}]") from error
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise InputError(f"query vectors of shape {rows.shape}; this index needs [n, {dim}]")
    if not np.isfinite(rows).all():
        raise InputError("a query vector holds NaN or infinity")
    return unit_rows(rows)


def _fetch(snapshot: Snapshot, matches: list[Match]) -> list[StoredDocument]:
    with snapshot.store() as store:
        found = store.documents([m.doc for m in matches])
    missing = [m.doc for m in matches if m.doc not in found]
    if missing:
        raise IndexFormatError(
            f"{snapshot.folder}: a vector belongs to document number {missing[0]}, which the store does not have; "
            f"run `aveyb-index verify {snapshot.folder.parent}`"
        )
    return [found[m.doc] for m in matches]


def _with_context(snapshot: Snapshot, doc: int, hit: Hit, neighbours: int) -> Hit:
    with snapshot.store() as store:
        spans = store.spans(doc)
    at = int(np.flatnonzero((spans == hit.span).all(axis=1))[0])
    start = int(spans[max(at - neighbours, 0), 0])
    stop = int(spans[min(at + neighbours, len(spans) - 1), 1])
    return replace(hit, context=hit.text[start:stop], context_span=(start, stop))
