"""EncodedShards: complete shards as documents with their vectors, for `build_index`, `add`, `upsert` and publishing."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.shard import ShardManifest, complete_shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.documents.records import Record


class EncodedShards:
    """All shards of a corpus, in the order of their numbers.

    Attributes:
        name: path or URL.
        encoding: what they were encoded with; the same for all.
        dim: d.
        passages: how many there are.
    """

    def __init__(self, url: str | Path) -> None:
        """Open the shards at a path or URL.

        Raises:
            InputError: there are none, one is missing or damaged, or they do not belong together.
        """
        self._place = place = Place(url)
        found = complete_shards(place)
        if not found:
            raise InputError(f"{place}: no complete shards here; make them with `aveyb-index encode ... -o {place}`")
        sizes = sorted({of for _, of in found})
        if len(sizes) > 1:
            raise InputError(
                f"{place}: shards of {sizes[0]} and shards of {sizes[1]}; keep one division of the corpus in a folder"
            )
        self._manifests = [m for shard, of in found if (m := ShardManifest.read(place, shard, of)) is not None]
        missing = sorted(set(range(1, sizes[0] + 1)) - {manifest.shard for manifest in self._manifests})
        if missing:
            some = ", ".join(str(shard) for shard in missing[:10])
            raise InputError(
                f"{place}: {len(missing)} of {sizes[0]} shards are missing or not complete: {some}"
                f"{', ...' if len(missing) > 10 else ''}; encode them with --shard {missing[0]}/{sizes[0]}"
            )
        for manifest in self._manifests[1:]:
            _check_same(place, self._manifests[0], manifest)
        self.name = str(place)
        self.encoding = self._manifests[0].encoding
        self.dim = self.encoding.dim
        self.passages = sum(manifest.total("passages") for manifest in self._manifests)

    def __len__(self) -> int:
        """Number of documents."""
        return sum(manifest.total("documents") for manifest in self._manifests)

    def describe(self) -> str:
        """The name with a hash of all parts: an interrupted change must not continue with other vectors."""
        hashes = "".join(part.sha256 for manifest in self._manifests for part in manifest.parts)
        return f"{self.name} (sha256 {hashlib.sha256(hashes.encode()).hexdigest()[:16]})"

    def documents(self, start: int = 0) -> Iterator[Record]:
        """The documents, with what was encoded of them, without the first `start`.

        Those that were files count as files of the folder of the shards.

        Raises:
            InputError: a part is missing or damaged, or holds what is not of its shard.
        """
        for manifest in self._manifests:
            for number, part in enumerate(manifest.parts):
                if start < part.documents:
                    yield from manifest.read_part(self._place, number)[start:]
                start = max(0, start - part.documents)


def _check_same(place: Place, first: ShardManifest, other: ShardManifest) -> None:
    where = f"{place}: shard {first.shard} and shard {other.shard}"
    ours, theirs = first.encoding, other.encoding
    if ours.digest != theirs.digest:
        but = ("model",) if ours.fingerprint == theirs.fingerprint else ()  # the same one by another name
        name, (one, another) = next(iter(ours.differences(theirs, but=but).items()))
        raise InputError(
            f"{where} were encoded differently: {name} is {one!r} and {another!r}; encode one of them again"
        )
    if first.corpus != other.corpus:
        raise InputError(f"{where} are of different corpora; encode all shards of one corpus")
