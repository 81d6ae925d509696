"""ShardEncoder: one shard of a corpus after the other, each continued where an earlier run of it was cut off."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.documents.corpus import Source, read_corpus
from aveyb_retrieval.documents.records import Notice, Record, Rejected, chain_digest
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.indexes.model import load_as_asked, reading_of
from aveyb_retrieval.indexes.shards.parts import OTHER_CORPUS, OTHER_SETTINGS, Reach, made_otherwise
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.shard import ShardManifest, ShardWriter, check_shard, cut_into_parts, shard_of
from aveyb_retrieval.indexes.types import EncodedRow, unusable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.types import Encoded, Progress

logger = logging.getLogger(__name__)

_TELL_SECONDS = 0.2


@dataclass(frozen=True)
class EncodeJob:
    """What is encoded, how, and into how many shards: all that decides what they hold, for any process that makes some.

    Attributes:
        options: Those of `encode_corpus` by name, which are checked already, without `progress`.

    Raises:
        ConfigError: `of` is out of range.
    """

    corpus: Source | Sequence[str | Path]
    out: str
    of: int
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check what can be checked without the model and the corpus."""
        if isinstance(self.of, bool) or not isinstance(self.of, int):
            raise ConfigError(f"of={self.of!r}: must be a whole number")
        check_shard(1, self.of)

    def items(self, *, log: bool = False) -> Iterator[Record | Rejected]:
        """Read the corpus; `log` why files were left out, or which part of one holds no text."""
        for item in read_corpus(self.corpus, reading_of(self.options)):
            if not isinstance(item, Notice):
                yield item
            elif log:
                logger.warning("%s: %s", item.path, item.reason)


class ShardEncoder:
    """Encodes shards of one corpus with one model.

    The model is given one part after the other, each from its beginning: a shard that is continued has the vectors of
    one that was never interrupted, to the last bit.

    Attributes:
        encoded: documents encoded so far; those of parts that were there are not counted.
        tokens: tokens of these documents.
        at: the document whose vectors come next; None: none is being encoded.
    """

    def __init__(self, job: EncodeJob, progress: Progress) -> None:
        """Load the model.

        Raises:
            ModelError: there is no usable model.
            ConfigError: the model has no such option.
        """
        self._job, self._progress, self._place = job, progress, Place(job.out)
        self._embedder, self._encoding = load_as_asked(job.options, batch_tokens=job.options.get("batch_tokens"))
        self._corpus: str | None = None
        self.encoded = self.tokens = 0
        self.at: Record | None = None

    def encode(self, shard: int, *, log: bool) -> ShardManifest:
        """Encode one shard, or find it complete; `log` why files of the corpus are left out.

        Raises:
            ConfigError: what is there was made with other settings, or of another corpus.
            InputError: an item is no document (with `on_error="stop"`), or an id comes twice.
            ModelError: the model's answer has vectors of another width, or not finite, or is missing.
        """
        of, restart = self._job.of, self._job.options.get("restart", False)
        if not restart and (known := ShardManifest.read(self._place, shard, of)):
            self._check_complete(known, log=log)
            return known
        writer = ShardWriter(self._place, self._encoding, shard, of)
        if restart:
            writer.discard()
        before, told = self.tokens, time.monotonic()
        for part in cut_into_parts(self._share(writer, log=log), self._encoding):
            done = []
            for record in self._encode(part):
                done.append(record)
                if time.monotonic() - told >= _TELL_SECONDS:
                    told = time.monotonic()
                    self._progress(f"shard {shard}/{of}", writer.documents + len(done), None, self.tokens - before)
            writer.write(done)
        self._progress(f"shard {shard}/{of}", writer.documents, writer.documents, self.tokens - before)
        self._corpus = writer.reach.digest
        return writer.finish()

    def _check_complete(self, known: ShardManifest, *, log: bool) -> None:
        where = f"{self._place}/{known.name}.json"
        if known.encoding.digest != self._encoding.digest:
            raise made_otherwise(where, OTHER_SETTINGS)
        if self._corpus is None:
            self._corpus = reduce(chain_digest, self._job.items(log=log), "")
        if self._corpus != known.corpus:
            raise made_otherwise(where, OTHER_CORPUS)

    def _share(self, writer: ShardWriter, *, log: bool) -> Iterator[Record]:
        """Yield the documents of a shard that its parts do not hold yet, and keep the writer's reach."""
        ids, written = writer.resume(), writer.reach
        position, digest, rejected = 0, "", written.rejected
        for position, item in enumerate(self._job.items(log=log), start=1):  # used after the loop
            digest = chain_digest(digest, item)
            if position <= written.consumed:
                if position == written.consumed and digest != written.digest:
                    raise made_otherwise(writer.where, OTHER_CORPUS)
                continue
            mine = isinstance(item, Record) and shard_of(item.id, writer.of) == writer.shard
            if isinstance(item, Record) and mine and item.id in ids and not item.id_is_made:
                item = Rejected(
                    item.location, f"the id {item.id!r} is already in use by an earlier document", item.raw()
                )
            if isinstance(item, Rejected):
                if item.stops(self._job.options.get("on_error", "auto")):
                    raise item.error()
                rejected += mine or position % writer.of + 1 == writer.shard  # counted by one shard only
            writer.reach = Reach(written.settings, position, digest, rejected)
            if isinstance(item, Record) and mine and item.id not in ids:  # of the very same document, one is enough
                ids.add(item.id)
                yield item
        if position < written.consumed:
            raise made_otherwise(writer.where, OTHER_CORPUS)
        if position == 0:
            raise InputError("the input holds no documents: nothing to encode")

    def _encode(self, part: Sequence[Record]) -> Iterator[Record]:
        """Yield the documents of a part with what the model makes of them."""
        answers = iter(self._embedder.encode_documents((record.prefix, record.text) for record in part))
        for record in part:
            self.at = record
            encoded = next(answers, None)
            if encoded is None:
                raise ModelError(
                    f"the model gave no vectors for the document {record.id!r}; it must give one result each"
                )
            self.encoded += 1
            self.tokens += encoded.n_tokens
            yield replace(record, encoded=self._row(record, encoded))
        self.at = None

    def _row(self, record: Record, encoded: Encoded) -> EncodedRow:
        """Return what a shard keeps of a model's answer."""
        wrong = unusable(encoded, self._encoding.dim)
        if wrong is not None:
            raise ModelError(f"{record.location}: document {record.id!r}: {wrong}")
        granularity = self._encoding.granularity
        kept = slice(0, 0) if granularity == "document" else slice(None)
        norms = getattr(encoded, "norms", None)  # not every model tells
        headings = tuple(getattr(encoded, "headings", ())) or ("",) * len(encoded.spans)
        return EncodedRow(
            vector=np.zeros_like(encoded.vector) if granularity == "passage" else encoded.vector,
            passages=encoded.passages[kept],
            spans=encoded.spans[kept],
            norms=None if norms is None else norms[kept],
            headings=headings[kept],
            n_tokens=encoded.n_tokens,
            n_cut=encoded.n_cut,
        )
