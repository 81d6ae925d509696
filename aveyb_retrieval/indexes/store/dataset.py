"""One Lance dataset at one of its versions, whose rows are known by a number of ours.

Lance's own addresses of rows change when fragments are merged. Rows are taken by their positions
among the rows that are not deleted, which the numbers of all of them give.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store.lance_session import damage, guarded, session
from aveyb_retrieval.indexes.types import MAX_PASSAGES, find_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance

    from aveyb_retrieval.indexes.types import IntArray

HELD = "passages"  # a column of integers that is kept in memory
FILES: Final = "2.2"  # the version of Lance's file format
MAX_SMALL_PIECES = 16  # not indexed or merged yet: more are put together within a change
MAX_UNINDEXED_ROWS = 128  # looked through by every search, which costs about a millisecond
LARGE_PIECE_ROWS = 1 << 16  # a piece of so many is merged only to drop deleted rows
MAX_DELETED_SHARE = 0.2  # a piece with a larger share of deleted rows is written again
_LISTED_NUMBERS = 4096  # numbers in one condition
Fragment: TypeAlias = tuple[int, str, str]
"""A fragment of a dataset: its id, its first file, and the file of its deleted rows."""


class KeptColumns:
    """Columns of fragments in memory, which all versions of a dataset share.

    Versions may ask from many threads: what one has forgotten, another one reads again.
    """

    def __init__(self) -> None:
        self._columns: dict[tuple[Fragment, str], pa.ChunkedArray] = {}

    def get(self, fragment: Fragment, name: str) -> pa.ChunkedArray | None:
        return self._columns.get((fragment, name))

    def keep(self, columns: Mapping[tuple[Fragment, str], pa.ChunkedArray]) -> None:
        """Keep columns of all fragments of a version, and of no others."""
        names = {name for _, name in columns}
        others = {key: column for key, column in self._columns.items() if key[1] not in names}
        self._columns = {**others, **columns}


class LanceTable:
    """A Lance dataset, open at one version.

    Reading is safe from many threads; one writer moves it on.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        opened: lance.LanceDataset,
        before: LanceTable | None = None,
    ) -> None:
        self.path = path
        self.key = key  # the column of our numbers, int64
        self._lance = opened
        self._kept: KeptColumns = KeptColumns() if before is None else before._kept
        # that were checked
        self._deletions: frozenset[Path] = frozenset() if before is None else before._deletions

    @classmethod
    def open(
        cls,
        path: Path,
        version: int,
        key: str,
        before: LanceTable | None = None,
        address: str | None = None,
    ) -> LanceTable:
        """Open a version; `before` is the same dataset at another one, whose fragments need not be
        read again, `address` where Lance reads it if not all of its files are at `path`.
        """
        import lance

        with damage(path):
            version_opened = lance.dataset(
                address or str(path), version=version, session=session(path, version)
            )
            opened = cls(path, key, version_opened, before)
            opened._check_deletions()
        return opened

    def _check_deletions(self) -> None:
        """Read the lists of deleted rows: one that lies about its size ends the process in Lance,
        and raises here.
        """
        fragments = [
            fragment
            for fragment in self._lance.get_fragments()
            if fragment.metadata.deletion_file is not None
        ]
        named = {
            self.path / "_deletions" / Path(str(fragment.deletion_file())).name
            for fragment in fragments
        }
        for file in named - self._deletions:
            if file.suffix == ".arrow":
                with pa.memory_map(str(file)) as source:
                    pa.ipc.open_file(source).read_all().validate(full=True)
        self._deletions = frozenset(named)

    @classmethod
    def create(cls, path: Path, schema: pa.Schema, key: str) -> LanceTable:
        """Make an empty dataset; one that is there gets a new version, and its old ones stay."""
        import lance

        lance.write_dataset(
            schema.empty_table(), str(path), mode="overwrite", data_storage_version=FILES
        )
        return cls(path, key, lance.dataset(str(path), session=session(path)))

    @property
    def version(self) -> int:
        return int(self._lance.version)

    @cached_property
    def schema(self) -> pa.Schema:
        return self._lance.schema

    def __len__(self) -> int:
        return int(self._lance.count_rows())

    # --- reading ---------------------------------------------------------------------------------

    @guarded
    def take(self, numbers: IntArray, columns: Sequence[str]) -> pa.Table:
        """Rows of numbers `[n]`, in their order, with the key; those that are not there are left
        out.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        stored, positions = self._positions
        places, is_stored = find_in(stored, numbers)
        rows = positions[places[is_stored]] if len(stored) else places[:0]
        return self._lance.take(rows.tolist(), columns=[self.key, *columns])

    @guarded
    def scan(
        self,
        columns: list[str] | dict[str, str],
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Columns, or expressions by name, of (the first) rows that satisfy a condition, in the
        dataset's order.
        """
        return self._lance.to_table(columns=columns, filter=where, limit=limit)

    @guarded
    def columns(self, *names: str) -> list[pa.ChunkedArray]:
        """Columns of all rows in the dataset's order, kept in memory: each fragment is read once,
        for all versions that have it.
        """
        columns = dict[tuple[Fragment, str], pa.ChunkedArray]()
        for fragment in self._lance.get_fragments():
            described = fragment.metadata
            # the list of deleted rows by its file: it only says how many there are
            deletions = str(fragment.deletion_file()) if described.deletion_file else ""
            place = (int(fragment.fragment_id), described.files[0].path, deletions)
            kept = {name: self._kept.get(place, name) for name in names}
            missing = [name for name, column in kept.items() if column is None]
            if missing:
                scanner = self._lance.scanner(
                    columns=missing, fragments=[fragment], scan_in_order=True
                )
                read = scanner.to_table()
                kept |= {name: read[name] for name in missing}
            columns |= {(place, name): column for name, column in kept.items()}
        self._kept.keep(columns)
        chunks = {name: list[pa.Array]() for name in names}
        for (_, name), column in columns.items():
            chunks[name] += column.chunks
        return [pa.chunked_array(chunks[name], self.schema.field(name).type) for name in names]

    @cached_property
    @guarded
    def held(self) -> tuple[IntArray, IntArray]:
        """The numbers `[n]` of all stored rows, ascending, and the column `HELD` `[n]`: kept in
        memory.
        """
        numbers, values = self._numbers_and_counts
        if (np.diff(numbers) > 0).all():
            return numbers, values
        order = np.argsort(numbers, kind="stable")
        return numbers[order], values[order]

    @cached_property
    def _numbers_and_counts(self) -> tuple[IntArray, IntArray]:
        """The numbers `[n]` and the column `HELD` `[n]` of all stored rows in their order."""
        numbers, values = (column.to_numpy() for column in self.columns(self.key, HELD))
        if any(column.dtype != np.int64 for column in (numbers, values)):
            raise ValueError("documents without numbers, or counts of passages")
        if ((values < 0) | (values > MAX_PASSAGES)).any():
            raise ValueError("numbers of passages that no document has")
        return numbers, values

    @cached_property
    def _positions(self) -> tuple[IntArray, IntArray]:
        """The numbers of all rows, ascending `[n]`, and their positions in the dataset's order."""
        numbers, _ = self._numbers_and_counts
        if (np.diff(numbers) > 0).all():
            return numbers, np.arange(len(numbers))
        order = np.argsort(numbers, kind="stable")
        return numbers[order], order

    # --- writing ---------------------------------------------------------------------------------

    def append(self, rows: pa.Table) -> None:
        """Add rows as a new version."""
        import lance

        if rows.num_rows:
            self._moved(lance.write_dataset(rows, self._lance, mode="append"))

    def delete(self, numbers: IntArray) -> None:
        """Delete the rows of these numbers; those that are not there are fine."""
        for start in range(0, len(numbers), _LISTED_NUMBERS):
            listed = ",".join(map(str, numbers[start : start + _LISTED_NUMBERS].tolist()))
            self._lance.delete(f"{self.key} IN ({listed})")
        self._moved(self._lance)

    def index(self, column: str) -> None:
        """Make the index of a column whose values are looked up."""
        self._lance.create_scalar_index(column, "BTREE")
        self._moved(self._lance)

    def settle(self, *, whole: bool = False) -> None:
        """Index and merge what has gathered, if that is due (`whole`: everything).

        Pieces are merged by tiers: how often a row is written again grows with the logarithm of the
        rows.
        """
        indexes = self._lance.describe_indices()
        rows = {
            fragment.fragment_id: fragment.physical_rows for fragment in self._lance.get_fragments()
        }
        covered = [
            {int(i) for s in described.segments for i in s.fragment_ids} for described in indexes
        ]
        indexed = set.intersection(*covered) if covered else set()
        sizes = [size for fragment, size in rows.items() if fragment not in indexed]
        if indexes and is_due(sizes, whole=whole):
            for described in indexes:
                segments = [
                    sum(rows.get(int(i), 0) for i in s.fragment_ids) for s in described.segments
                ]
                # None: as Lance likes, all
                merged = None if whole else last_tier(segments, sum(sizes))
                self._lance.optimize.optimize_indices(
                    index_names=[described.name], num_indices_to_merge=merged
                )
            self._moved(self._lance)
        self._merge_fragments(whole=whole)

    def _merge_fragments(self, *, whole: bool) -> None:
        fragments = self._lance.get_fragments()
        sizes = [f.physical_rows for f in fragments]
        small = [f for f in fragments if f.physical_rows < LARGE_PIECE_ROWS]
        if not whole and len(small) < MAX_SMALL_PIECES:
            return
        merged = len(fragments) if whole else last_tier(sizes, 0)
        left_alone = [
            int(f.fragment_id)
            for f in fragments[: len(fragments) - merged]
            if f.num_deletions <= MAX_DELETED_SHARE * f.physical_rows
        ]
        self._lance.optimize.compact_files(
            target_rows_per_fragment=1 << 20,
            excluded_fragment_ids=left_alone,
            materialize_deletions_threshold=0.0 if whole else MAX_DELETED_SHARE,
            compaction_mode="try_binary_copy",  # pages as they are, where no row was deleted
        )
        self._moved(self._lance)

    def _moved(self, opened: lance.LanceDataset) -> None:
        """Take over what a write made of the dataset."""
        self._lance = opened
        for name in ("_numbers_and_counts", "_positions", "held"):
            self.__dict__.pop(name, None)

    # --- files -----------------------------------------------------------------------------------

    def files(self) -> set[str]:
        """All files that this version is made of, relative to the folder of the dataset."""
        paths = {f"_versions/{_manifest_name(self.path, self.version)}"}
        for fragment in self._lance.get_fragments():
            made_of = fragment.metadata
            paths.update(f"data/{file.path}" for file in made_of.files)
            if made_of.deletion_file is not None:
                paths.add(f"_deletions/{Path(str(fragment.deletion_file())).name}")
        for described in self._lance.describe_indices():
            for segment in described.segments:
                folder = self.path / "_indices" / str(segment.uuid)
                paths.update(f"_indices/{segment.uuid}/{file.name}" for file in folder.iterdir())
        return paths


def is_due(sizes: Sequence[int], *, whole: bool) -> bool:
    """Whether pieces of so many rows, which are not indexed yet, are to be indexed."""
    is_large = len(sizes) >= MAX_SMALL_PIECES or sum(sizes) > MAX_UNINDEXED_ROWS
    return is_large or (whole and bool(sizes))


def last_tier(sizes: Sequence[int], rows: int) -> int:
    """How many of the last pieces are merged with `rows` new rows: those not twice as large as what
    follows them.
    """
    merged = 0
    for size in reversed(sizes):
        if size > 2 * rows and merged and size > MAX_SMALL_PIECES:
            break
        if merged == 0 and rows and size > 2 * rows:
            break
        merged, rows = merged + 1, rows + size
    return merged


def _manifest_name(path: Path, version: int) -> str:
    for name in (f"{(1 << 64) - 1 - version}.manifest", f"{version}.manifest"):
        if (path / "_versions" / name).exists():
            return name
    raise IndexFormatError(
        f"{path}: version {version} of this dataset is missing; run `aveyb-index verify`"
    )


def newer_versions(path: Path, version: int) -> list[Path]:
    """The manifests of a dataset that are newer than one of its versions: what an unfinished change
    left.
    """
    return [
        manifest
        for manifest in (path / "_versions").glob("*.manifest")
        if manifest.stem.isdigit() and (1 << 64) - 1 - int(manifest.stem) > version
    ]
