"""EncodedShards: complete shards as a source of documents and vectors for `build_index`, `add` and `upsert`."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.shards.parts import EncodedRow, Part
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.shard import PartInfo, ShardManifest, complete_shards, shard_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.input.documents import Record, Rejected


class EncodedShards:
    """All shards of a corpus, in the order of their numbers.

    Attributes:
        name: path or URL.
        encoding: what they were encoded with; the same for all.
        dim: d.
    """

    def __init__(self, place: Place, manifests: list[ShardManifest]) -> None:
        """Read the shards of these manifests, which `open` has checked."""
        self.name = str(place)
        self.encoding = manifests[0].encoding
        self.dim = self.encoding.dim
        self._place = place
        self._manifests = manifests
        self._parts = [(manifest, part) for manifest in manifests for part in manifest.parts]
        self._ends = list(accumulate(part.documents for _, part in self._parts))
        self._open: tuple[int, Part] | None = None

    @classmethod
    def open(cls, url: str | Path) -> EncodedShards:
        """Open the shards at a path or URL.

        Raises:
            InputError: there are none, one is missing or damaged, or they do not belong together.
        """
        place = Place(url)
        found = complete_shards(place)
        if not found:
            raise InputError(f"{place}: no complete shards here; make them with `aveyb-index encode ... -o {place}`")
        sizes = sorted({of for _, of in found})
        if len(sizes) > 1:
            raise InputError(
                f"{place}: shards of {sizes[0]} and shards of {sizes[1]}; keep one division of the corpus in a folder"
            )
        of = sizes[0]
        missing = sorted(set(range(1, of + 1)) - {shard for shard, _ in found})
        if missing:
            some = ", ".join(str(shard) for shard in missing[:10])
            raise InputError(
                f"{place}: {len(missing)} of {of} shards are missing or not complete: {some}"
                f"{', ...' if len(missing) > 10 else ''}; encode them with --shard {missing[0]}/{of}"
            )
        manifests = [_manifest(place, shard, of) for shard, of in found]
        for manifest in manifests[1:]:
            _check_same(place, manifests[0], manifest)
        return cls(place, manifests)

    def __len__(self) -> int:
        """Number of documents."""
        return self._ends[-1] if self._ends else 0

    @property
    def passages(self) -> int:
        """Number of passages."""
        return sum(manifest.passages for manifest in self._manifests)

    def describe(self) -> str:
        """The name with a hash of all parts: an interrupted change must not continue with other vectors."""
        digest = hashlib.sha256("".join(part.sha256 for _, part in self._parts).encode())
        return f"{self.name} (sha256 {digest.hexdigest()[:16]})"

    def documents(self) -> Iterator[Record | Rejected]:
        """The documents as a corpus. Those that were files count as files of the folder of the shards.

        Raises:
            InputError: a part is damaged, an id comes twice, or is not one of its shard.
        """
        ids: set[str] = set()
        for number, (manifest, info) in enumerate(self._parts):
            if info.name == manifest.parts[0].name:
                ids.clear()  # one id has one shard
            part = self._part(number)
            for row, document in enumerate(part.documents(self._place.absolute), start=1):
                document_id = part.ids[row - 1]
                wanted = shard_of(document_id, manifest.of)
                if wanted != manifest.shard:
                    raise InputError(
                        f"{part.name}, row {row}: the document {document_id!r} belongs to shard {wanted} of "
                        f"{manifest.of}; encode this shard again"
                    )
                if document_id in ids:
                    raise InputError(f"{part.name}, row {row}: the id {document_id!r} is in this shard twice")
                ids.add(document_id)
                yield document

    def document(self, position: int, document_id: str) -> EncodedRow:
        """What was encoded of the document at `position`, counted from 0, of `documents()`.

        Raises:
            InputError: there is none, or it is that of another id.
        """
        if position >= len(self):
            raise InputError(f"{self.name}: {len(self)} documents, but one at position {position + 1} is asked for")
        number = bisect_right(self._ends, position)
        part = self._part(number)
        row = position - (self._ends[number] - len(part))
        found = part.ids[row]
        if found != document_id:
            raise InputError(f"{part.name}, row {row + 1}: the document {found!r}, not {document_id!r}")
        return part.row(row)

    def _part(self, number: int) -> Part:
        """Read a part, keeping the last one that was read."""
        if self._open is None or self._open[0] != number:
            manifest, info = self._parts[number]
            self._open = number, _read_part(self._place, manifest, info)
        return self._open[1]


def _manifest(place: Place, shard: int, of: int) -> ShardManifest:
    manifest = ShardManifest.read(place, shard, of)
    if manifest is None:
        raise InputError(f"{place}: shard {shard} of {of} was removed while it was read")
    return manifest


def _check_same(place: Place, first: ShardManifest, other: ShardManifest) -> None:
    where = f"{place}: shard {first.shard} and shard {other.shard}"
    ours, theirs = first.encoding, other.encoding
    if ours.digest != theirs.digest:
        if ours.model and theirs.model and ours.model["fingerprint"] != theirs.model["fingerprint"]:
            raise InputError(
                f"{where} were encoded by different models: {ours.model['name']} (fingerprint "
                f"{ours.model['fingerprint'][:16]}) and {theirs.model['name']} ({theirs.model['fingerprint'][:16]})"
            )
        raise InputError(f"{where} were encoded with different settings: {ours} and {theirs}")
    if first.corpus != other.corpus:
        raise InputError(f"{where} are of different corpora; encode all shards of one corpus")


def _read_part(place: Place, manifest: ShardManifest, info: PartInfo) -> Part:
    name = f"{manifest.folder}/{info.name}"
    where = f"{place}/{name}"
    try:
        data = place.read(name)
    except FileNotFoundError as error:
        raise InputError(f"{where}: missing; encode shard {manifest.shard}/{manifest.of} again") from error
    if len(data) != info.bytes or hashlib.sha256(data).hexdigest() != info.sha256:
        raise InputError(
            f"{where}: damaged ({len(data):,} bytes, {info.bytes:,} expected, or other contents); encode shard "
            f"{manifest.shard}/{manifest.of} again"
        )
    part = Part(data, where, manifest.encoding.dim, manifest.encoding.storage_dtype)
    if len(part) != info.documents:
        raise InputError(f"{where}: {len(part)} documents, its manifest says {info.documents}")
    return part
