"""A shard: the encoded documents of one share of a corpus, in parts, and the manifest that completes it.

    shard-0001-of-0004/part-00001.parquet
    shard-0001-of-0004/part-00002.parquet
    shard-0001-of-0004.json                 written last: only then does the shard exist

A document belongs to the shard that the hash of its id names, so shards may be made by any processes, in any order,
twice or again: each has one content only. What `shard i of n` holds never depends on the other shards.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.encoding import Encoding  # noqa: TC001  # msgspec reads it
from aveyb_retrieval.indexes.store.numbering import id_digest

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.shards.place import Place

FORMAT = 3
MOST_SHARDS = 9999
_MANIFEST = re.compile(r"shard-(\d{4})-of-(\d{4})\.json")


@dataclass(frozen=True)
class PartInfo:
    """A part's name within its shard's folder, its documents, size and sha256."""

    name: str
    documents: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardManifest:
    """What a complete shard says about itself.

    Attributes:
        shard, of: its number, from 1, and how many there are.
        corpus: hash of the whole corpus, as all shards of it read it; "" for an exported index.
        consumed: items of the corpus, those of all shards and those that are no documents.
        rejected: items of this shard that are no documents.
    """

    shard: int
    of: int
    encoding: Encoding
    corpus: str
    consumed: int
    documents: int
    passages: int
    tokens: int
    rejected: int
    parts: tuple[PartInfo, ...]
    format: int = field(default=FORMAT)

    @property
    def folder(self) -> str:
        """The name of the folder of its parts."""
        return shard_name(self.shard, self.of)

    def write(self, place: Place) -> None:
        """Complete the shard."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=1)
        place.write(f"{self.folder}.json", text.encode())

    @classmethod
    def read(cls, place: Place, shard: int, of: int) -> ShardManifest | None:
        """Return the manifest of a shard; None where it is not complete.

        Raises:
            InputError: it is damaged, or of a format that is not known.
        """
        name = f"{shard_name(shard, of)}.json"
        try:
            data = place.read(name)
        except FileNotFoundError:
            return None
        try:
            return cls._parsed(json.loads(data), shard, of)
        except (KeyError, TypeError, ValueError, RecursionError, msgspec.ValidationError) as error:
            raise InputError(f"{place}/{name}: damaged manifest ({error}); encode this shard again") from error

    @classmethod
    def _parsed(cls, values: dict[str, Any], shard: int, of: int) -> ShardManifest:
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']!r}, this version reads {FORMAT}")
        made = msgspec.convert(values, cls, strict=True)
        if (made.shard, made.of) != (shard, of):
            raise ValueError(f"shard {made.shard} of {made.of} under the name of shard {shard} of {of}")
        numbers = (made.consumed, made.documents, made.passages, made.tokens, made.rejected)
        if made.encoding.dim < 1 or min(*numbers, *(min(part.documents, part.bytes) for part in made.parts)) < 0:
            raise ValueError(f"dimension {made.encoding.dim}, or a negative count")
        model = made.encoding.model
        if model is not None and not isinstance(model.get("fingerprint"), str):
            raise ValueError("a model without a fingerprint")
        if [part.name for part in made.parts] != [part_name(n) for n in range(1, len(made.parts) + 1)]:
            raise ValueError("its parts are not numbered from 1")
        if sum(part.documents for part in made.parts) != made.documents:
            raise ValueError(f"{made.documents} documents, but its parts hold others")
        return made


def shard_name(shard: int, of: int) -> str:
    """Return the name of a shard: of its folder, and with ".json" of its manifest."""
    return f"shard-{shard:04}-of-{of:04}"


def part_name(number: int) -> str:
    """Return the name of a part, counted from 1."""
    return f"part-{number:05}.parquet"


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
