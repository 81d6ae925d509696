"""A shard: the encoded documents of one share of a corpus, in parts, and the manifest that completes it.

    shard-0001-of-0004/part-00001.parquet
    shard-0001-of-0004/part-00002.parquet
    shard-0001-of-0004.json                 written last: only then does the shard exist

A document belongs to the shard that the hash of its id names, so shards may be made by any processes, in any order,
twice or again: each has one content only. What `shard i of n` holds never depends on the other shards.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.encoding import Encoding  # noqa: TC001  # msgspec reads it
from aveyb_retrieval.indexes.shards.parts import Reach, encoded_of, read_part, write_part
from aveyb_retrieval.indexes.store.numbering import id_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aveyb_retrieval.documents.records import Record
    from aveyb_retrieval.indexes.shards.place import Place

MOST_SHARDS = 9999
PART_BYTES = 8 << 20
PART_DOCUMENTS = 4096
_TOKEN_CHARACTERS = 4
_PASSAGE_TOKENS = 256  # where a model cuts in a way of its own
_MANIFEST = re.compile(r"shard-(\d{4})-of-(\d{4})\.json")
_Count = Annotated[int, msgspec.Meta(ge=0)]


class PartInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a part holds, its size and sha256."""

    documents: _Count
    passages: _Count
    tokens: _Count
    bytes: _Count
    sha256: str


class ShardManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a complete shard says about itself.

    Attributes:
        shard, of: its number, from 1, and how many there are.
        corpus: hash of the whole corpus, as all shards of it read it; "" for an exported index.
        consumed: items of the corpus, those of all shards and those that are no documents.
        rejected: items of this shard that are no documents.
        parts: in their order.
    """

    format: Literal[4]
    shard: int
    of: int
    encoding: Encoding
    corpus: str
    consumed: _Count
    rejected: _Count
    parts: tuple[PartInfo, ...]

    def __post_init__(self) -> None:
        if self.encoding.dim < 1:
            raise ValueError(f"dimension {self.encoding.dim}")
        if self.encoding.model is not None and not isinstance(self.encoding.model.get("fingerprint"), str):
            raise ValueError("a model without a fingerprint")

    @property
    def name(self) -> str:
        """The name of the folder of its parts, and with ".json" its own."""
        return shard_name(self.shard, self.of)

    def total(self, what: Literal["documents", "passages", "tokens"]) -> int:
        """How many documents, passages or tokens there are in all parts."""
        return sum(getattr(part, what) for part in self.parts)

    @classmethod
    def read(cls, place: Place, shard: int, of: int) -> ShardManifest | None:
        """Return the manifest of a shard; None where it is not complete.

        Raises:
            InputError: it is damaged, or of a format that is not known.
        """
        name = f"{shard_name(shard, of)}.json"
        try:
            made = msgspec.json.decode(place.read(name), type=cls)
            if (made.shard, made.of) != (shard, of):
                raise ValueError(f"shard {made.shard} of {made.of} under the name of shard {shard} of {of}")
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:  # msgspec's errors are of the first
            raise InputError(f"{place}/{name}: damaged manifest ({error}); encode this shard again") from error
        return made

    def read_part(self, place: Place, number: int) -> list[Record]:
        """Return the documents of a part, counted from 0.

        Raises:
            InputError: it is missing or damaged, or holds documents of another shard.
            ConfigError: it was encoded otherwise.
        """
        name, info = f"{self.name}/{part_name(number)}", self.parts[number]
        where = f"{place}/{name}"
        try:
            data = place.read(name)
        except FileNotFoundError as error:
            raise InputError(f"{where}: missing; encode shard {self.shard}/{self.of} again") from error
        if len(data) != info.bytes or hashlib.sha256(data).hexdigest() != info.sha256:
            raise InputError(
                f"{where}: damaged ({len(data):,} bytes, {info.bytes:,} expected, or other contents); encode shard "
                f"{self.shard}/{self.of} again"
            )
        records, _ = read_part(data, where, self.encoding, place.url)
        if len(records) != info.documents:
            raise InputError(f"{where}: {len(records)} documents, its manifest says {info.documents}")
        for record in records:
            if (wanted := shard_of(record.id, self.of)) != self.shard:
                raise InputError(
                    f"{record.location}: the document {record.id!r} belongs to shard {wanted} of {self.of}; encode "
                    "this shard again"
                )
        return records


class ShardWriter:
    """Writes the parts of one shard, one after the other, and at the end its manifest.

    Attributes:
        shard, of: its number, from 1, and how many there are.
        where: its place and name.
        reach: how far whoever gives the documents has read the corpus.
    """

    def __init__(self, place: Place, encoding: Encoding, shard: int, of: int) -> None:
        self._place, self._encoding, self.shard, self.of = place, encoding, shard, of
        self._parts: list[PartInfo] = []
        self._name = shard_name(shard, of)
        self.where = f"{place}/{self._name}"
        self.reach = Reach(encoding.digest)

    @property
    def documents(self) -> int:
        """How many are written."""
        return sum(part.documents for part in self._parts)

    def resume(self) -> set[str]:
        """Take over the parts that an interrupted run left; return the ids of their documents.

        Raises:
            ConfigError: they were encoded with other settings.
            InputError: one is damaged.
        """
        names, ids = set(self._place.names(self._name)), set[str]()  # with temporary files, where a run was killed
        while (name := part_name(len(self._parts))) in names:
            data = self._place.read(f"{self._name}/{name}")
            records, self.reach = read_part(data, f"{self.where}/{name}", self._encoding, "")
            ids.update(record.id for record in records)
            self._count(records, data)
        return ids

    def discard(self) -> None:
        """Remove what is there of this shard."""
        self._place.remove(f"{self._name}.json")  # first: a manifest must never name parts that are gone
        for name in self._place.names(self._name):
            self._place.remove(f"{self._name}/{name}")

    def write(self, records: Sequence[Record]) -> None:
        """Write encoded documents as the next part; it has the reach of now."""
        data = write_part(records, self._encoding, self.reach)
        self._place.write(f"{self._name}/{part_name(len(self._parts))}", data)
        self._count(records, data)

    def finish(self) -> ShardManifest:
        """Write the manifest; the reach is the end of the corpus."""
        end = self.reach
        made = ShardManifest(
            4, self.shard, self.of, self._encoding, end.digest, end.consumed, end.rejected, tuple(self._parts)
        )
        self._place.write(f"{self._name}.json", msgspec.json.format(msgspec.json.encode(made), indent=1))
        return made

    def _count(self, records: Sequence[Record], data: bytes) -> None:
        rows, digest = [encoded_of(record) for record in records], hashlib.sha256(data).hexdigest()
        passages, tokens = sum(len(row.spans) for row in rows), sum(row.n_tokens for row in rows)
        self._parts.append(PartInfo(len(records), passages, tokens, len(data), digest))


def cut_into_parts(records: Iterable[Record], encoding: Encoding) -> Iterator[list[Record]]:
    """Yield the documents of one part after the other: each about 8 MiB, or 4,096 documents.

    It goes by the texts alone, never by time or by what a model answers: so a part is known before it is encoded, and a
    shard that is encoded again has the same parts.
    """
    vector = encoding.dim * (2 if encoding.storage_dtype == "float16" else 4)
    passage = _TOKEN_CHARACTERS * (encoding.passage_tokens or _PASSAGE_TOKENS)
    part: list[Record] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record.text) + (2 + len(record.text) // passage) * vector
        if size >= PART_BYTES or len(part) >= PART_DOCUMENTS:
            yield part
            part, size = [], 0
    if part:
        yield part


def shard_name(shard: int, of: int) -> str:
    """Return the name of a shard: of its folder, and with ".json" of its manifest."""
    return f"shard-{shard:04}-of-{of:04}"


def part_name(number: int) -> str:
    """Return the name of a part, counted from 0."""
    return f"part-{number + 1:05}.parquet"


def shard_of(document_id: str, of: int) -> int:
    """Return the shard, from 1, that a document belongs to: the first eight bytes of SHA-256 of its id, modulo `of`."""
    return int.from_bytes(id_digest(document_id)[:8], "big") % of + 1


def check_shard(shard: int, of: int) -> None:
    """Raise ConfigError where "shard i of n" means nothing."""
    if not 1 <= shard <= of <= MOST_SHARDS:
        raise ConfigError(f"shard {shard}/{of}: shards are counted from 1/N to N/N, at most {MOST_SHARDS:,}")


def complete_shards(place: Place) -> list[tuple[int, int]]:
    """Return (shard, of) of the shards in a place that have a manifest."""
    matches = (_MANIFEST.fullmatch(name) for name in place.names())
    return [(int(match[1]), int(match[2])) for match in matches if match]
