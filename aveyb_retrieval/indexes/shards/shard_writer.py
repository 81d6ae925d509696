"""ShardWriter: documents in, the parts of one shard out, and at its end the manifest that completes it."""

from __future__ import annotations

import hashlib
from itertools import count
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.shards.parts import EncodedRow, Part, Reach, read_reach, write_part
from aveyb_retrieval.indexes.shards.shard import PartInfo, ShardManifest, part_name, shard_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.indexes.encoding import Encoding
    from aveyb_retrieval.indexes.input.documents import Record
    from aveyb_retrieval.indexes.shards.place import Place

PART_BYTES = 8 << 20
PART_DOCUMENTS = 4096
_TOKEN_CHARACTERS = 4
_PASSAGE_TOKENS = 256  # where a model cuts in a way of its own


class PartEnds:
    """Tells after which document a part ends: after about 8 MiB, or 4,096 documents.

    It goes by the texts alone, never by time or by what a model answers: so a part is known before it is encoded, and
    a shard that is encoded again has the same parts.
    """

    def __init__(self, encoding: Encoding) -> None:
        """Count from the beginning of a part."""
        self._vector_bytes = encoding.dim * (2 if encoding.storage_dtype == "float16" else 4)
        self._passage_characters = _TOKEN_CHARACTERS * (encoding.passage_tokens or _PASSAGE_TOKENS)
        self._documents = self._bytes = 0

    def after(self, text: str) -> bool:
        """Count a document; return whether the part ends with it."""
        passages = 1 + len(text) // self._passage_characters
        self._documents += 1
        self._bytes += len(text) + (1 + passages) * self._vector_bytes
        if self._bytes < PART_BYTES and self._documents < PART_DOCUMENTS:
            return False
        self._documents = self._bytes = 0
        return True


class ShardWriter:
    """Collects documents into parts.

    Attributes:
        ids: the ids of all documents of the shard so far.
        reach: how far the parts that are written reach into the corpus.
    """

    def __init__(self, place: Place, encoding: Encoding, shard: int, of: int) -> None:
        """Write shard `shard` of `of` into `place`."""
        self._place, self._encoding, self._shard, self._of = place, encoding, shard, of
        self.folder = shard_name(shard, of)
        self.ids: set[str] = set()
        self.reach = Reach(encoding.digest, 0, "", 0)
        self._parts: list[PartInfo] = []
        self._batch: list[tuple[Record, EncodedRow]] = []
        self._ends = PartEnds(encoding)
        self._passages = self._tokens = 0

    def read_parts(self, check_settings: Callable[[str, str], None]) -> None:
        """Take over the parts that an interrupted run left, after `check_settings(digest, name)` of each.

        Raises:
            InputError: one is damaged.
        """
        names = set(self._place.names(self.folder))  # with temporary files, where a run was killed
        for number in count(1):
            name = part_name(number)
            if name not in names:
                return
            data = self._place.read(f"{self.folder}/{name}")
            where = f"{self._place}/{self.folder}/{name}"
            reach = read_reach(data, where)
            check_settings(reach.settings, f"{self.folder}/{name}")
            part = Part(data, where, self._encoding.dim, self._encoding.storage_dtype)
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
        """Take a document; a part is written when it ends, and reaches to its last document."""
        self._batch.append((record, row))
        self._passages += len(row.passages)
        self._tokens += row.n_tokens
        if self._ends.after(record.text):
            self._write(reach)

    def finish(self, reach: Reach) -> ShardManifest:
        """Write the last part and the manifest. `reach` is the end of the corpus."""
        if self._batch:
            self._write(reach)
        manifest = ShardManifest(
            shard=self._shard,
            of=self._of,
            encoding=self._encoding,
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
        data = write_part(self._batch, self._encoding.dim, self._encoding.storage_dtype, reach)
        self._place.write(f"{self.folder}/{part_name(len(self._parts) + 1)}", data)
        self._count_part(data, len(self._batch))
        self.reach, self._batch = reach, []

    def _count_part(self, data: bytes, documents: int) -> None:
        name = part_name(len(self._parts) + 1)
        self._parts.append(PartInfo(name, documents, len(data), hashlib.sha256(data).hexdigest()))
