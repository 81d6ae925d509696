"""EncodeReport: what an encoding or an export left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.shards.place import Place
    from aveyb_retrieval.indexes.shards.shard import ShardManifest


@dataclass(frozen=True)
class EncodeReport:
    """Shards that are complete.

    Attributes:
        place: path or URL.
        shards: their numbers, from 1.
        of: how many shards there are in all.
        documents, passages, tokens: what they hold.
        rejected: items of the corpus that are no documents and were left out of them.
        encoded: documents that this call encoded; the others were there.
        seconds: how long it took.
    """

    place: str
    shards: tuple[int, ...]
    of: int
    documents: int
    passages: int
    tokens: int
    rejected: int
    encoded: int
    seconds: float

    @classmethod
    def of_shards(cls, place: Place, made: Sequence[ShardManifest], encoded: int, seconds: float) -> EncodeReport:
        """Sum up shards of one corpus."""
        return cls(
            place=str(place),
            shards=tuple(manifest.shard for manifest in made),
            of=made[0].of,
            documents=sum(manifest.documents for manifest in made),
            passages=sum(manifest.passages for manifest in made),
            tokens=sum(manifest.tokens for manifest in made),
            rejected=sum(manifest.rejected for manifest in made),
            encoded=encoded,
            seconds=seconds,
        )
