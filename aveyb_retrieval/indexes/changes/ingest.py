"""Documents on their way into a change: read, checked, encoded, committed batch by batch; bounded in memory.

The position in the input and a running hash of everything read so far are part of each commit. A continued change
reads the input again up to that position and compares the hash, so that it never mixes two inputs; what comes after
the position may have been corrected meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from aveyb_retrieval.encoder.token_codec import TokenCodec, TokenCodes
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.indexes.input.documents import Notice, Record, Rejected, chain_digest, prefix_of
from aveyb_retrieval.indexes.store import directory, origins
from aveyb_retrieval.indexes.store.numbering import MAX_PASSAGES, PASSAGE_BITS
from aveyb_retrieval.indexes.store.vectors import VectorTable, open_table, write_shard
from aveyb_retrieval.indexes.store.store import Shard, content_digest
from aveyb_retrieval.indexes.store.tokens import TokenBlock, TokenTable, open_token_table, token_owner
from aveyb_retrieval.indexes.types import Encoded, FloatArray, IntArray, Kind, Progress

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.input.rows import Item
    from aveyb_retrieval.indexes.changes.transaction import Transaction

BATCH_BYTES = 32 << 20
BATCH_DOCUMENTS = 8192
BATCH_SECONDS = 30.0
TELL_SECONDS = 0.2


Action = Literal["encode", "grow", "metadata", "reject"]


@dataclass(frozen=True)
class Step:
    """One item of the input, where it stands, the hash of the input up to and with it, and what is to be done.

    "grow" encodes a document from the first passage that differs from the stored one, after `unchanged` passages.
    """

    item: Record | Rejected
    position: int
    digest: str
    action: Action
    unchanged: int = 0

    @property
    def record(self) -> Record:
        """The document; only where the item is one."""
        assert isinstance(self.item, Record)
        return self.item


Encode = Callable[[Iterator[Step]], Iterator[Encoded]]
"""Encodes the documents of steps, in order. It may read ahead, but only in the calling thread:
pulling a step may write to the store, whose connection belongs to that thread."""


@runtime_checkable
class GrowingEmbedder(Protocol):
    """A model whose passages depend on earlier ones only, so that a document that grew keeps its first vectors."""

    def unchanged_passages(self, old: tuple[str, str], new: tuple[str, str]) -> int:
        """How many leading passages of two (prefix, text) pairs have the same vectors."""
        ...

    def encode_grown(self, prefix: str, text: str, passages: FloatArray, norms: FloatArray) -> Encoded:
        """Encode a document whose first passages, unit vectors `[m, d]` and their norms `[m]`, are known."""
        ...


class Ingestion:
    """Feeds one stream of documents into a change.

    `mode` "add" takes only new ids; "upsert" replaces documents whose id is known, and encodes only what has changed.
    """

    def __init__(
        self,
        transaction: Transaction,
        encode: Encode,
        *,
        kinds: tuple[Kind, ...],
        dim: int,
        storage_dtype: str,
        mode: Literal["add", "upsert"],
        on_error: Literal["stop", "skip"],
        progress: Progress,
        growing: GrowingEmbedder | None = None,
        codec: TokenCodec | None = None,
        total: int | None = None,
    ) -> None:
        self.transaction = transaction
        self.store = transaction.store
        self._encode = encode
        self._kinds = kinds
        self._dim = dim
        self._storage_dtype = storage_dtype
        self._mode = mode
        self._on_error = on_error
        self._progress = progress
        self._growing = growing if "passage" in kinds else None
        self._first_doc: int = self.store.get("first_doc")
        self._next_doc: int = self.store.get("next_doc")
        self._codec = codec
        self._uncommitted: Counter[str] = Counter()  # ids that were read and whose documents wait for a commit
        self._waiting: deque[Step] = deque()  # read, not yet encoded
        self._batch: list[tuple[Step, Encoded | None]] = []
        self._batch_bytes = 0
        self._last_commit = time.monotonic()
        self._last_told = 0.0
        self._tokens = 0
        self._total = total
        self._changes: Counter[str] = Counter(self.store.get("changes") or {})
        self.notices: list[Notice] = []

    def run(self, items: Iterable[Item]) -> int:
        """Take the whole input in; returns how many items it had. Its notices are kept and change nothing.

        Raises:
            InputError: an item is no document (with `on_error` "stop"), or the model's vectors are not finite.
            ConfigError: the input is not the one that the interrupted change had read.
        """
        self._progress("encoding", self.store.get("consumed"), self._total, 0)
        for encoded in self._encode(self._to_encode(self._steps(items))):
            while self._waiting[0].action != "encode":
                self._take(self._waiting.popleft())
            step = self._waiting.popleft()
            self._take(step, _checked(encoded, self._dim, step))
        for step in self._waiting:
            if step.action == "encode":
                raise ModelError(
                    f"the model gave no vectors for the document {step.record.id!r}; it must give one result each"
                )
            self._take(step)
        self._commit()
        return int(self.store.get("consumed"))

    # --- reading -----------------------------------------------------------------------------------------------------

    def _steps(self, items: Iterable[Item]) -> Iterator[Step]:
        consumed, expected = self.store.get("consumed"), self.store.get("digest")
        position, digest = 0, ""
        for position, item in enumerate(self._without_notices(items), start=1):  # used after the loop
            digest = chain_digest(digest, item)
            if position < consumed:
                continue
            if position == consumed:
                self._check_same_input(digest == expected, consumed)
                continue
            yield self._step(item, position, digest)
        self._check_same_input(position >= consumed, consumed)

    def _without_notices(self, items: Iterable[Item]) -> Iterator[Record | Rejected]:
        for item in items:
            if isinstance(item, Notice):
                self.notices.append(item)
            else:
                yield item

    def _check_same_input(self, same: bool, consumed: int) -> None:
        if not same:
            raise ConfigError(
                f"{self.transaction.index_dir.root}: the first {consumed:,} documents of the input are not those that "
                "the interrupted change had read; give it the same input, or discard its work with --restart"
            )

    def _step(self, item: Record | Rejected, position: int, digest: str) -> Step:
        if isinstance(item, Record):
            # an id that waits for its commit is known, but what is stored of it is no longer what it will be
            waiting = self._uncommitted[item.id] > 0
            known = None if waiting else self.store.find(item.id)
            if item.id_is_made and (waiting or known):  # the very same document
                self._uncommitted[item.id] += 1
                return Step(item, position, digest, "metadata")
            if self._mode == "add" and (waiting or known):
                item = Rejected(
                    item.location, f"the id {item.id!r} is already in use by an earlier document", item.raw()
                )
            else:
                self._uncommitted[item.id] += 1
                action, unchanged = self._least_work(item, known)
                return Step(item, position, digest, action, unchanged)
        if self._on_error == "stop":
            raise item.error()
        return Step(item, position, digest, "reject")

    def _least_work(self, record: Record, known: tuple[int, bytes] | None) -> tuple[Action, int]:
        """The cheapest way to have this document's vectors, given the stored document of the same id."""
        if known is None:
            return "encode", 0
        doc, content = known
        if content == content_digest(record.title, record.text):
            return "metadata", 0
        if self._growing is None or doc >= self._first_doc:
            return "encode", 0
        old = self.store.documents([doc])[doc]
        prefix = prefix_of(old.title)
        unchanged = self._growing.unchanged_passages((prefix, old.text), (record.prefix, record.text))
        unchanged = min(unchanged, len(self.store.norms(doc)))
        return ("grow", unchanged) if unchanged else ("encode", 0)

    def _to_encode(self, steps: Iterable[Step]) -> Iterator[Step]:
        for step in steps:
            if step.action != "encode" and not self._waiting:
                self._take(step)
                continue
            self._waiting.append(step)
            if step.action == "encode":
                yield step

    # --- committing --------------------------------------------------------------------------------------------------

    def _take(self, step: Step, encoded: Encoded | None = None) -> None:
        if step.action == "grow":
            encoded = _checked(self._grow(step), self._dim, step)
        self._batch.append((step, encoded))
        if encoded is not None:
            self._batch_bytes += len(step.record.text) + encoded.vector.nbytes + encoded.passages.nbytes
            self._batch_bytes += _tokens(encoded, step).codes.nbytes if self._codec else 0
            self._tokens += encoded.n_tokens
        full = self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_DOCUMENTS
        if full or time.monotonic() - self._last_commit > BATCH_SECONDS:
            self._commit()
        else:
            self._tell(step.position)

    def _tell(self, position: int) -> None:
        if time.monotonic() - self._last_told >= TELL_SECONDS:
            self._progress("encoding", position, self._total, self._tokens)
            self._last_told = time.monotonic()

    def _commit(self) -> None:
        """Make the batch durable: first its vectors, then its rows and the position, in one transaction."""
        if not self._batch:
            return
        last = self._batch[-1][0]
        encoded = [(step, e) for step, e in self._batch if e is not None]
        shard = self._write_shard(encoded) if encoded else None
        with self.store.transaction():
            doc = self._next_doc
            for step, e in self._batch:
                if e is not None:
                    self._changes["replaced" if self._replace(step.record) else "added"] += 1
                    spans, norms = (e.spans, _norms(e)) if "passage" in self._kinds else (e.spans[:0], [])
                    headings = getattr(e, "headings", None) if len(spans) else None  # not every model finds them
                    self.store.add_document(doc, step.record, (e.n_tokens, e.n_cut), spans, norms, headings)
                    doc += 1
                elif step.action == "metadata":
                    self._changes["unchanged"] += 1
                    self._update_metadata(step.record)
            if shard:
                self.store.add_shard(shard)
            rejected = [step.item for step, _ in self._batch if isinstance(step.item, Rejected)]
            self.store.add_rejected(rejected, self.transaction.version)
            self.store.put("next_doc", doc)
            self.store.put("consumed", last.position)
            self.store.put("digest", last.digest)
            self.store.put("changes", self._changes)
        self._next_doc = doc
        self._uncommitted -= Counter(step.record.id for step, _ in self._batch if isinstance(step.item, Record))
        self._batch, self._batch_bytes, self._last_commit = [], 0, time.monotonic()
        self._progress("encoding", last.position, self._total, self._tokens)

    def _write_shard(self, batch: list[tuple[Step, Encoded]]) -> Shard:
        encoded = [e for _, e in batch]
        docs = np.arange(self._next_doc, self._next_doc + len(encoded), dtype=np.int64)
        vectors: dict[Kind, tuple[IntArray, FloatArray]] = {}
        if "document" in self._kinds:
            vectors["document"] = docs, np.stack([e.vector for e in encoded])
        if "passage" in self._kinds:
            ids = [
                (int(doc) << PASSAGE_BITS) + np.arange(len(e.passages)) for doc, e in zip(docs, encoded, strict=True)
            ]
            vectors["passage"] = np.concatenate(ids), np.concatenate([e.passages for e in encoded])
        for kind, (numbers, rows) in vectors.items():  # the whole batch at once: a tenth of the time of one by one
            broken = numbers[~np.isfinite(rows).all(axis=1)]
            if len(broken):
                doc = int(broken[0]) >> (PASSAGE_BITS if kind == "passage" else 0)
                step, _ = batch[doc - self._next_doc]
                raise _unusable(step, "its vector holds NaN or infinity; the model or the vectors given are broken")
        name = directory.shard_file(self.transaction.version, int(docs[0]))
        tokens = None if self._codec is None else self._tokens_of(batch, docs, self._codec).tensors()
        info = write_shard(self.transaction.folder / name, vectors, self._storage_dtype, tokens)
        return Shard(int(docs[0]), int(docs[-1]), name, info.bytes, info.sha256)

    def _tokens_of(self, batch: list[tuple[Step, Encoded]], docs: IntArray, codec: TokenCodec) -> TokenBlock:
        """The token vectors of a batch, with those of documents that grew, whose first passages are stored already."""
        ids, parts = [np.empty(0, dtype=np.int64)], []
        for doc, (step, encoded) in zip(docs.tolist(), batch, strict=True):
            tokens = _tokens(encoded, step)
            if step.action == "grow":
                first = self._known_doc(step) << PASSAGE_BITS
                kept = self._base_tokens.gather(first + np.arange(step.unchanged, dtype=np.int64))
                tokens = codec.concatenate([TokenCodes(kept.codes, kept.ranges), tokens])
            if token_owner(self._kinds) == "document":
                tokens = TokenCodes(tokens.codes, np.array([[0, len(tokens.codes)]], dtype=np.int64))
                ids.append(np.array([doc], dtype=np.int64))
            else:
                ids.append((doc << PASSAGE_BITS) + np.arange(len(tokens.ranges)))
            parts.append(tokens)
        found = codec.concatenate(parts)
        return TokenBlock(np.concatenate(ids), found.ranges, found.codes)

    def _known_doc(self, step: Step) -> int:
        """The number of the stored document that a step replaces."""
        known = self.store.find(step.record.id)
        assert known is not None  # seen by `_least_work`, and nothing commits the same id twice in a batch
        return known[0]

    def _grow(self, step: Step) -> Encoded:
        assert self._growing is not None
        doc = self._known_doc(step)
        first = doc << PASSAGE_BITS
        passages = self._base_passages.gather(first + np.arange(step.unchanged, dtype=np.int64))
        norms = np.array(self.store.norms(doc)[: step.unchanged], dtype=np.float32)
        return self._growing.encode_grown(step.record.prefix, step.record.text, passages, norms)

    @property
    def _base_shards(self) -> list[Shard]:
        return [s for s in self.store.shards() if s.first < self._first_doc]

    @cached_property
    def _base_passages(self) -> VectorTable:
        return open_table(self.transaction.folder, self._base_shards, "passage", self._dim)

    @cached_property
    def _base_tokens(self) -> TokenTable:
        assert self._codec is not None  # else no tokens are kept
        return open_token_table(self.transaction.folder, self._base_shards, self._codec)

    def _replace(self, record: Record) -> bool:
        """Remove the document of the same id; whether there was one."""
        if self._mode == "upsert" and (known := self.store.find(record.id)):
            self.store.remove_document(known[0], self.transaction.version)
            return True
        return False

    def _update_metadata(self, record: Record) -> None:
        known = self.store.find(record.id)
        assert known is not None  # nothing but this pipeline writes, and the id is not among the uncommitted
        self.store.set_metadata(known[0], record.metadata_json)
        origins.set_origin(self.store, known[0], record.origin)


def _tokens(encoded: Encoded, step: Step) -> TokenCodes:
    tokens: TokenCodes | None = getattr(encoded, "tokens", None)
    if tokens is None:
        raise ModelError(f"the model gave no token vectors of the document {step.record.id!r}; leave token_vectors out")
    return tokens


def _norms(encoded: Encoded) -> list[float | None]:
    norms: FloatArray | None = getattr(encoded, "norms", None)  # not every model tells
    return [None] * len(encoded.spans) if norms is None else norms.tolist()


def _checked(encoded: Encoded, dim: int, step: Step) -> Encoded:
    if encoded.vector.shape != (dim,) or encoded.passages.shape != (len(encoded.spans), dim):
        raise _unusable(
            step,
            f"vectors of shapes {encoded.vector.shape} and {encoded.passages.shape} for dimension {dim} "
            f"and {len(encoded.spans)} passages",
        )
    if len(encoded.spans) >= MAX_PASSAGES:
        raise _unusable(step, f"{len(encoded.spans)} passages, at most {MAX_PASSAGES - 1} are possible; cut it in two")
    return encoded


def _unusable(step: Step, what: str) -> InputError:
    return InputError(f"{step.item.location}: document {step.record.id!r}: {what}")
