"""Documents with their vectors, read from indexes: of one, or of all shards of a corpus.

A shard is an index that a build made of one share of a corpus. A document belongs to the share that the hash of its id
names, so shards may be made by any processes, in any order, twice or again: each has one content only.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.documents.records import Record, SourceLocation
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.store.manifest import IndexDirectory, Manifest, hold_visible, read_manifest
from aveyb_retrieval.indexes.store.numbering import expand_passages, id_digest
from aveyb_retrieval.indexes.store.tables import StoredTokens, Tables
from aveyb_retrieval.indexes.types import EncodedRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.indexes.types import IntArray

MOST_SHARDS = 9999
_DOCUMENTS = 256  # read at a time


def shard_of(document_id: str, of: int) -> int:
    """Return the shard, from 1, that a document belongs to: the first eight bytes of SHA-256 of its id, modulo `of`."""
    return int.from_bytes(id_digest(document_id)[:8], "big") % of + 1


def check_share(share: tuple[int, int]) -> tuple[int, int]:
    """Return the number of a share, from 1, and how many there are.

    Raises:
        ConfigError: they are not such numbers.
    """
    try:
        number, of = share
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in share):
            raise TypeError
    except (TypeError, ValueError):
        raise ConfigError(f"share={share!r}: must be two whole numbers, as (1, 4) for the first of four") from None
    if not 1 <= number <= of <= MOST_SHARDS:
        raise ConfigError(f"share {number}/{of}: shares are counted from 1/N to N/N, at most {MOST_SHARDS:,}")
    return number, of


class StoredShards:
    """All documents of an index, or of several that belong together, index by index.

    Attributes:
        name: the path as given.
        encoding: what they were encoded with; the same for all.
        dim: d.
        passages: how many there are.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]) -> None:
        """Open an index, a folder of indexes, or several indexes.

        Raises:
            InputError: there are none, a shard is missing, or they do not belong together.
            IndexFormatError: one is damaged.
        """
        given = [paths] if isinstance(paths, (str, Path)) else list(paths)
        self.name = ", ".join(map(str, given))
        self._roots = [root for path in given for root in _indexes_in(Path(path))]
        self._manifests = [read_manifest(root) for root in self._roots]
        self._check_complete()
        for root, manifest in zip(self._roots[1:], self._manifests[1:], strict=True):
            self._check_same(root, manifest)
        self.encoding = self._manifests[0].encoding
        self.dim = self.encoding.dim
        self.passages = sum(manifest.counts.passages for manifest in self._manifests)

    def __len__(self) -> int:
        """Number of documents."""
        return sum(manifest.counts.documents for manifest in self._manifests)

    def describe(self) -> str:
        """The name with a hash of all versions: an interrupted change must not continue with other vectors."""
        names = "\n".join(manifest.name for manifest in self._manifests)
        return f"{self.name} (sha256 {hashlib.sha256(names.encode()).hexdigest()[:16]})"

    def documents(self, start: int = 0) -> Iterator[Record]:
        """The documents with what was encoded of them, without the first `start`.

        Raises:
            InputError: an index was changed since it was opened here.
            IndexFormatError: one is damaged.
        """
        for root, opened in zip(self._roots, self._manifests, strict=True):
            manifest, held = hold_visible(IndexDirectory(root))
            with held:
                if manifest.name != opened.name:
                    raise InputError(f"{root}: was changed while it was read; give the command again")
                tables = Tables.open(root, manifest.tables)
                yield from stored_documents(root, tables, manifest, tables.numbers("document")[start:])
            start = max(0, start - manifest.counts.documents)

    def texts(self) -> Iterator[Record]:
        """The same documents to be encoded anew: texts, metadata with what people set in it, and files."""
        return (replace(record, encoded=None) for record in self.documents())

    def _check_complete(self) -> None:
        shares = [manifest.share for manifest in self._manifests]
        if all(share is None for share in shares):
            return
        found = dict(zip(shares, self._roots, strict=True))
        if None in found:
            raise InputError(
                f"{found[None]}: no shard, or changed since it was one, beside shards; keep the shards of one corpus "
                "in a folder of their own"
            )
        sizes = sorted({share[1] for share in shares if share is not None})
        if len(sizes) > 1:
            raise InputError(
                f"{self.name}: shards of {sizes[0]} and shards of {sizes[1]}; keep one division of the corpus in a "
                "folder"
            )
        missing = [number for number in range(1, sizes[0] + 1) if (number, sizes[0]) not in found]
        if missing:
            some = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            raise InputError(
                f"{self.name}: {len(missing)} of {sizes[0]} shards are missing or not complete: {some}; build them "
                f"with --share {missing[0]}/{sizes[0]}"
            )

    def _check_same(self, root: Path, manifest: Manifest) -> None:
        first, ours, theirs = self._roots[0], self._manifests[0].encoding, manifest.encoding
        if ours.digest != theirs.digest:
            but = ("model",) if ours.fingerprint == theirs.fingerprint else ()  # the same one by another name
            name, (one, another) = next(iter(ours.differences(theirs, but=but).items()))
            raise InputError(
                f"{first} and {root} were encoded differently: {name} is {one!r} and {another!r}; build one again"
            )
        if manifest.share is not None and manifest.corpus != self._manifests[0].corpus:
            raise InputError(f"{first} and {root} are of different corpora; build all shards of one corpus")


def _indexes_in(path: Path) -> list[Path]:
    """The path, where it is an index; else the indexes in this folder, by their names."""
    if IndexDirectory(path).current() is not None:
        return [path]
    inside = sorted(path.iterdir()) if path.is_dir() else []
    found = [each for each in inside if each.is_dir() and IndexDirectory(each).current() is not None]
    if not found:
        raise InputError(f"{path}: no index here, and no folder of indexes; make them with `aveyb-index build`")
    return found


def stored_documents(root: Path, tables: Tables, manifest: Manifest, numbers: IntArray) -> Iterator[Record]:
    """Yield documents of a version by their numbers `[n]`, with their vectors, and the codes of their tokens."""
    encoding = manifest.encoding
    empty = np.zeros((0, encoding.dim), dtype=np.float32)
    tokens = StoredTokens(tables, encoding.tokens_of, codec) if (codec := encoding.token_codec) is not None else None
    for first in range(0, len(numbers), _DOCUMENTS):
        docs = numbers[first : first + _DOCUMENTS]
        found, (stored, counts) = tables.read_documents(docs.tolist()), tables.counted(docs)
        edits = tables.edits(docs.tolist())
        vectors = np.zeros((len(docs), encoding.dim), dtype=np.float32)
        if "document" in encoding.kinds:
            vectors = tables.vectors("document", docs)
        passage_numbers = expand_passages(np.stack([stored, counts["passages"]], axis=1))
        about = tables.passages.take(passage_numbers, ["start", "stop", "heading", "norm"])
        passages = tables.vectors("passage", passage_numbers) if "passage" in encoding.kinds else empty
        spans = np.stack([about["start"].to_numpy(), about["stop"].to_numpy()], axis=1)
        headings, norms = about["heading"].to_pylist(), about["norm"].to_numpy().astype(np.float32)
        ends = np.cumsum(counts["passages"]).tolist()
        for row, doc in enumerate(docs.tolist()):
            mine, document = slice(ends[row] - int(counts["passages"][row]), ends[row]), found[doc]
            owners = passage_numbers[mine] if encoding.tokens_of == "passage" else docs[row : row + 1]
            encoded = EncodedRow(
                vector=vectors[row],
                passages=passages[mine],
                spans=spans[mine],
                norms=norms[mine] if np.isfinite(norms[mine]).all() else None,
                headings=tuple(headings[mine]),
                n_tokens=int(counts["tokens"][row]),
                n_cut=int(counts["cut_tokens"][row]),
                tokens=None if tokens is None else tokens.gather(owners),
            )
            about_it = (document.id, document.title, document.text, document.metadata)
            location = SourceLocation(str(root), doc, "document")
            edited = edits.get(document.id)
            yield Record(*about_it, location, origin=document.origin, encoded=encoded, edits=edited)


def encoded_of(record: Record) -> EncodedRow:
    """Return what was encoded of a document that comes out of an index."""
    assert record.encoded is not None
    return record.encoded
