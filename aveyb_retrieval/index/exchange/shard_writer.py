"""ShardWriter: documents in, the parts of one shard out, and at its end the manifest that completes it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from aveyb_retrieval.index.exchange.parts import EncodedRow, Part, Reach, read_reach, write_part
from aveyb_retrieval.index.exchange.shard import PartInfo, ShardManifest, part_name, shard_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.index.exchange.place import Place
    from aveyb_retrieval.index.exchange.shard import EncodeSettings
    from aveyb_retrieval.index.input.documents import Record

# By size alone, never by time: a shard that is encoded again has the same parts, byte for byte.
PART_BYTES = 8 << 20
PART_DOCUMENTS = 4096


class ShardWriter:
    """Collects documents into parts of about 8 MiB.

    Attributes:
        ids: the ids of all documents of the shard so far.
        reach: how far the parts that are written reach into the corpus.
    """

    def __init__(self, place: Place, settings: EncodeSettings, shard: int, of: int) -> None:
        """Write shard `shard` of `of` into `place`."""
        self._place, self._settings, self._shard, self._of = place, settings, shard, of
        self.folder = shard_name(shard, of)
        self.ids: set[str] = set()
        self.reach = Reach(settings.digest, 0, "", 0)
        self._parts: list[PartInfo] = []
        self._batch: list[tuple[Record, EncodedRow]] = []
        self._batch_bytes = self._passages = self._tokens = 0

    def read_parts(self, check_settings: Callable[[str, str], None]) -> None:
        """Take over the parts that an interrupted run left, after `check_settings(digest, name)` of each.

        Raises:
            InputError: one is damaged.
        """
        for number, name in enumerate(self._place.names(self.folder), start=1):
            if name != part_name(number):  # a part is missing, or this is a temporary file of a killed run
                return
            data = self._place.read(f"{self.folder}/{name}")
            where = f"{self._place}/{self.folder}/{name}"
            reach = read_reach(data, where)
            check_settings(reach.settings, f"{self.folder}/{name}")
            part = Part(data, where, self._settings.dim, self._settings.storage_dtype)
            self.reach = reach
            self.ids.update(part.ids)
            self._passages += part.passages
            self._tokens += part.tokens
            self._count_part(data, len(part))

    def discard(self) -> None:
        """Remove what is there of this shard."""
        self._place.remove(f"{self.folder}.json")  # first: a manifest must never name parts that are gone
        for name in self._place.names(self.folder):
            self._place.remove(f"{self.folder}/{name}")

    def add(self, record: Record, row: EncodedRow, reach: Reach) -> None:
        """Take a document; a part is written when it is large enough, and reaches to its last document."""
        self._batch.append((record, row))
        self._batch_bytes += len(record.text) + row.vector.nbytes + row.passages.nbytes
        self._passages += len(row.passages)
        self._tokens += row.n_tokens
        if self._batch_bytes >= PART_BYTES or len(self._batch) >= PART_DOCUMENTS:
            self._write(reach)

    def finish(self, reach: Reach, model_source: str | None) -> ShardManifest:
        """Write the last part and the manifest. `reach` is the end of the corpus."""
        if self._batch:
            self._write(reach)
        manifest = ShardManifest(
            shard=self._shard,
            of=self._of,
            settings=self._settings,
            model_source=model_source,
            corpus=reach.digest,
            consumed=reach.consumed,
            documents=sum(part.documents for part in self._parts),
            passages=self._passages,
            tokens=self._tokens,
            rejected=reach.rejected,
            parts=tuple(self._parts),
        )
        manifest.write(self._place)
        return manifest

    def _write(self, reach: Reach) -> None:
        data = write_part(self._batch, self._settings.dim, self._settings.storage_dtype, reach)
        self._place.write(f"{self.folder}/{part_name(len(self._parts) + 1)}", data)
        self._count_part(data, len(self._batch))
        self.reach, self._batch, self._batch_bytes = reach, [], 0

    def _count_part(self, data: bytes, documents: int) -> None:
        name = part_name(len(self._parts) + 1)
        self._parts.append(PartInfo(name, documents, len(data), hashlib.sha256(data).hexdigest()))
