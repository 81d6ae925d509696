"""ShardEncoder: one shard of a corpus, continued where an earlier run of it was cut off."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.indexes.input.documents import Record, chain_digest
from aveyb_retrieval.indexes.shards.parts import EncodedRow, Reach
from aveyb_retrieval.indexes.shards.shard import ShardManifest, shard_of
from aveyb_retrieval.indexes.shards.shard_writer import PartEnds, ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.input.documents import OnError, Rejected
    from aveyb_retrieval.indexes.shards.place import Place
    from aveyb_retrieval.indexes.types import EmbedderLike, Encoded, Progress

_TELL_SECONDS = 0.2


class ShardEncoder:
    """Encodes shards of one corpus with one model.

    The model is given one part after the other, each from its beginning: a shard that is continued has the vectors of
    one that was never interrupted, to the last bit.

    Attributes:
        encoded: documents encoded so far; those of parts that were there are not counted.
        tokens: tokens of these documents.
        at: the document whose vectors come next; None: none is being encoded.
    """

    def __init__(
        self,
        place: Place,
        encoding: Encoding,
        embedder: EmbedderLike,
        *,
        on_error: OnError,
        restart: bool,
        progress: Progress,
    ) -> None:
        """Encode with a loaded model, as `encoding` says, into `place`."""
        self._place = place
        self._encoding = encoding
        self._embedder = embedder
        self._on_error: OnError = on_error
        self._restart = restart
        self._progress = progress
        self._corpus: str | None = None
        self.encoded = self.tokens = 0
        self.at: Record | None = None

    def encode(self, items: Iterable[Record | Rejected], shard: int, of: int) -> ShardManifest:
        """Encode one shard of the corpus `items`, or find it complete.

        Raises:
            ConfigError: what is there was made with other settings, or of another corpus.
            InputError: an item is no document (with `on_error="stop"`), or an id comes twice.
            ModelError: the model's answer has vectors of another width, or not finite, or is missing.
        """
        writer = ShardWriter(self._place, self._encoding, shard, of)
        if self._restart:
            writer.discard()
        elif known := ShardManifest.read(self._place, shard, of):
            self._check_complete(known, items)
            return known
        writer.read_parts(self._check_settings)
        share = _Share(items, shard, of, writer, self._on_error, self._other_corpus)
        started, before = time.monotonic(), self.tokens
        for part in _parts(share, PartEnds(self._encoding)):
            self.at = part[0]
            for encoded in self._embedder.encode_documents((r.prefix, r.text) for r in part):
                record, reach = share.waiting.popleft()
                writer.add(record, self._row(record, encoded), reach)
                self.encoded += 1
                self.tokens += encoded.n_tokens
                self.at = share.waiting[0][0] if share.waiting else None
                if time.monotonic() - started >= _TELL_SECONDS:
                    started = time.monotonic()
                    self._progress(f"shard {shard}/{of}", reach.consumed, None, self.tokens - before)
            if self.at is not None:
                raise ModelError(
                    f"the model gave no vectors for the document {self.at.id!r}; it must give one result each"
                )
        manifest = writer.finish(share.reach)
        self._progress(f"shard {shard}/{of}", manifest.consumed, manifest.consumed, self.tokens - before)
        self._corpus = manifest.corpus
        return manifest

    def _check_complete(self, known: ShardManifest, items: Iterable[Record | Rejected]) -> None:
        self._check_settings(known.encoding.digest, f"{known.folder}.json")
        if self._corpus is None:
            self._corpus = corpus_digest(items)
        if self._corpus != known.corpus:
            raise self._other_corpus(f"{known.folder}.json")

    def _check_settings(self, digest: str, name: str) -> None:
        if digest != self._encoding.digest:
            raise self._other("encoded by another model or with other settings", name)

    def _other_corpus(self, name: str) -> ConfigError:
        return self._other("encoded from another corpus", name)

    def _other(self, what: str, name: str) -> ConfigError:
        return ConfigError(
            f"{self._place}/{name}: {what}; give the same as before, another folder, or --restart (restart=True) to "
            "encode it again"
        )

    def _row(self, record: Record, encoded: Encoded) -> EncodedRow:
        """Return what a shard keeps of a model's answer."""
        dim, granularity = self._encoding.dim, self._encoding.granularity
        kept = slice(0, 0) if granularity == "document" else slice(None)
        vector = np.zeros_like(encoded.vector) if granularity == "passage" else encoded.vector
        passages, spans = encoded.passages[kept], encoded.spans[kept]
        where = f"{record.location}: document {record.id!r}"
        if vector.shape != (dim,) or passages.shape != (len(spans), dim):
            raise ModelError(
                f"{where}: vectors of shapes {vector.shape} and {passages.shape} for dimension {dim} and {len(spans)} "
                "passages"
            )
        if not (np.isfinite(vector).all() and np.isfinite(passages).all()):
            raise ModelError(f"{where}: its vectors hold NaN or infinity")
        norms = getattr(encoded, "norms", None)  # not every model tells
        headings = tuple(getattr(encoded, "headings", ())) or ("",) * len(encoded.spans)
        return EncodedRow(
            vector=vector,
            passages=passages,
            spans=spans,
            norms=None if norms is None else norms[kept],
            headings=headings[kept],
            n_tokens=encoded.n_tokens,
            n_cut=encoded.n_cut,
        )


def _parts(records: Iterable[Record], ends: PartEnds) -> Iterator[list[Record]]:
    """Yield the documents of one part after the other."""
    part: list[Record] = []
    for record in records:
        part.append(record)
        if ends.after(record.text):
            yield part
            part = []
    if part:
        yield part


def corpus_digest(items: Iterable[Record | Rejected]) -> str:
    """Return the hash of a whole corpus, as the manifests of its shards hold it."""
    digest = ""
    for item in items:
        digest = chain_digest(digest, item)
    return digest


class _Share:
    """The documents of one shard in a corpus that its parts do not hold yet, and how far the corpus was read."""

    def __init__(
        self,
        items: Iterable[Record | Rejected],
        shard: int,
        of: int,
        writer: ShardWriter,
        on_error: OnError,
        other_corpus: Callable[[str], ConfigError],
    ) -> None:
        self._items = items
        self._shard, self._of = shard, of
        self._writer = writer
        self._on_error = on_error
        self._other_corpus = other_corpus
        self.reach = writer.reach
        self.waiting: deque[tuple[Record, Reach]] = deque()  # read, not yet encoded

    def __iter__(self) -> Iterator[Record]:
        written, ids = self.reach, self._writer.ids  # the writer moves on while this reads
        position, digest, rejected = 0, "", written.rejected
        for position, item in enumerate(self._items, start=1):  # used after the loop
            digest = chain_digest(digest, item)
            if position <= written.consumed:
                if position == written.consumed and digest != written.digest:
                    raise self._other_corpus(self._writer.folder)
                continue
            if not isinstance(item, Record):
                if item.stops(self._on_error):
                    raise item.error()
                rejected += position % self._of + 1 == self._shard  # counted by one shard only
            elif shard_of(item.id, self._of) == self._shard:
                if item.id in ids:
                    raise InputError(f"{item.location}: the id {item.id!r} is already in use by an earlier document")
                ids.add(item.id)
                self.waiting.append((item, Reach(written.settings, position, digest, rejected)))
                yield item
        if position < written.consumed:
            raise self._other_corpus(self._writer.folder)
        if position == 0:
            raise InputError("the input holds no documents: nothing to encode")
        self.reach = Reach(written.settings, position, digest, rejected)
