"""`verify`: recompute every hash and count of an index; `repair`: make anew what can be made from
the rest.

    python -m aveyb_retrieval.indexes.changes.verify ROOT REPAIR

is the other process of `verify_apart`: it prints the verdict, or the error, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import AveyBError, IndexFormatError, how_it_ended
from aveyb_retrieval.indexes.changes.change import FinishOptions, run_change
from aveyb_retrieval.indexes.nearest.faiss_file import FaissSearcher
from aveyb_retrieval.indexes.store.manifest import (
    FAISS,
    REJECTED,
    WORD_LISTS,
    IndexDirectory,
    Manifest,
    file_problems,
    writer_lock,
)
from aveyb_retrieval.indexes.store.place import hold_visible, open_directory
from aveyb_retrieval.indexes.store.tables import (
    CODES,
    COUNTS,
    StoredVectors,
    Tables,
    ids_of,
)
from aveyb_retrieval.indexes.types import (
    PASSAGE_BITS,
    Progress,
    expand_passages,
    number_range,
    silent,
)
from aveyb_retrieval.interpreter import python_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.store.manifest import Tier
    from aveyb_retrieval.indexes.types import IntArray, Kind

_MAX_LENGTH_ERROR = 1e-2  # float16 keeps a unit vector's length to 1e-3


@dataclass(frozen=True)
class Verdict:
    """What was found wrong, one sentence each, and whether it has been repaired."""

    problems: list[str]
    repaired: bool = False


def verify_index(
    root: str | Path | IndexDirectory,
    *,
    repair: bool = False,
    progress: Progress = silent,
) -> Verdict:
    """Check an index: hashes, sizes, counts, numbers, vectors of every kind.

    `repair` makes damaged FAISS files and indexes of words again, leaves a damaged list of rejected
    items behind, and points to the newest complete version where the pointer is lost. Documents,
    vectors and manifests have no second copy: an index with damage there stays as it is. Raises
    IndexFormatError where there is nothing to verify.

    >>> verify_index("handbook").problems
    []
    """
    index_dir = open_directory(root)
    pointer = _pointer_problem(index_dir)
    if pointer:
        if not repair:
            return Verdict([pointer])
        complete = index_dir.versions()
        if not complete:
            raise IndexFormatError(
                f"{index_dir}: no complete version to point to; build the index again"
            )
        with writer_lock(index_dir.lock):
            index_dir.publish(complete[-1])
    index_dir.visible()
    try:
        manifest, held = hold_visible(index_dir)
        with held:
            problems, damaged = _problems(index_dir, manifest, progress)
    except IndexFormatError as error:
        return Verdict([str(error)])
    repaired = (
        _rebuild(index_dir, damaged, progress)
        if problems and repair
        else bool(pointer) and not problems
    )
    return Verdict([*filter(None, [pointer]), *problems], repaired=repaired)


def verify_apart(root: str | Path, *, repair: bool = False) -> Verdict:
    """Check an index in another process: Lance and FAISS trust what they read, and a file made to
    harm can end it.
    """
    command = [python_program(), "-m", __name__, str(root), str(int(repair))]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RUST_BACKTRACE": "0",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)  # this module  # noqa: S603
    if done.returncode:
        how = how_it_ended(done.returncode, done.stderr)
        return Verdict(
            [f"{root}: reading it ends the process ({how}); do not open it, restore it from a copy"]
        )
    sys.stderr.write(done.stderr)
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise AveyBError(answer["error"])
    return Verdict(**answer)


def _pointer_problem(index_dir: IndexDirectory) -> str | None:
    try:
        name = index_dir.current()
    except IndexFormatError as error:
        if not index_dir.versions():  # of an older format, or nothing that could be pointed to
            raise
        return str(error)
    if name is None and not index_dir.versions():
        raise index_dir.missing()
    if name is None or not index_dir.has(name):
        return f"{index_dir.pointer}: names {name!r}, which is not there"
    return None


def _problems(
    index_dir: IndexDirectory, manifest: Manifest, progress: Progress
) -> tuple[list[str], set[str]]:
    """What is wrong with a version, and the names of damaged files."""
    root = index_dir.root
    progress("hashing files", 0, len(manifest.files), 0)
    damaged = file_problems(manifest.files, root, full=True) | index_dir.problems(manifest.files)
    problems = list(damaged.values())
    if not all(map(_can_be_made_again, damaged)):
        return problems, set(damaged)  # what follows compares with these files
    try:
        tables = Tables.open(root, manifest)
        if differing := list(_count_problems(tables, manifest)):
            return problems + differing, set(damaged)  # what follows compares rows with rows
        for kind in manifest.encoding.kinds:
            progress(f"checking {kind}s", 0, None, 0)
            problems += _vector_problems(tables, manifest, kind, ids_of(tables, kind))
            stored = StoredVectors(tables, kind, manifest.encoding.dim)
            for tier in manifest.tiers_of(kind):
                if tier.file not in damaged:
                    problems += _faiss_problems(root, tier, stored)
    except AveyBError as error:
        problems.append(str(error))
    return problems, set(damaged)


def _count_problems(tables: Tables, manifest: Manifest) -> Iterator[str]:
    """Differences between the datasets, and between them and the manifest's counts."""
    rows = tables.documents.scan(["doc", "id", *COUNTS])
    docs = np.sort(rows["doc"].to_numpy())
    totals = {name: int(rows[name].to_numpy().sum()) for name in COUNTS} | {
        "documents": len(docs),
        "cut_documents": int((rows["cut_tokens"].to_numpy() > 0).sum()),
    }
    for name, value in totals.items():
        if value != getattr(manifest.counts, name):
            yield (
                f"{tables.root}: {value} {name}, the manifest says {getattr(manifest.counts, name)}"
            )
    if len(np.unique(docs)) != len(docs) or len(set(rows["id"].to_pylist())) != len(docs):
        yield f"{tables.documents.path}: a number or an id of two documents"
    if len(docs) and not (docs[0] >= 1 and docs[-1] < manifest.next_doc):
        yield (
            f"{tables.documents.path}: the number {docs[-1]}, and the next document would get"
            f" {manifest.next_doc}"
        )
    if not np.array_equal(ids_of(tables, "document"), docs):
        yield f"{tables.texts.path}: the texts are not those of the documents"
    counts = np.stack([rows["doc"].to_numpy(), rows["passages"].to_numpy()], axis=1)
    if not np.array_equal(
        ids_of(tables, "passage"), np.sort(expand_passages(counts[np.argsort(counts[:, 0])]))
    ):
        yield f"{tables.passages.path}: the passages are not those of the documents"


def _vector_problems(
    tables: Tables, manifest: Manifest, kind: Kind, numbers: IntArray
) -> Iterator[str]:
    encoding = manifest.encoding
    for vector_numbers, vectors in StoredVectors(tables, kind, encoding.dim).blocks(
        0, manifest.next_doc
    ):
        with np.errstate(over="ignore", invalid="ignore"):  # of a damaged vector
            lengths = np.linalg.norm(vectors, axis=1)
        wrong = ~np.isfinite(lengths) | (
            (np.abs(lengths - 1) > _MAX_LENGTH_ERROR) & (lengths > 1e-6)
        )
        if wrong.any():
            number = int(vector_numbers[wrong][0])
            doc = number if kind == "document" else number >> PASSAGE_BITS
            yield f"{tables.root}: the {kind} vector of document number {doc} is not of unit length"
    for tier in manifest.tiers_of(kind):
        low, high = number_range(kind, tier.first, tier.stop)
        live = int(((numbers >= low) & (numbers < high)).sum())
        if live != tier.count - tier.dead:
            yield (
                f"{tables.root}: {live} stored {kind} vectors in the range of {tier.file}, the"
                f" manifest says {tier.count - tier.dead}"
            )
    codec = encoding.token_codec
    if codec is not None and encoding.tokens_of == kind:
        dataset = tables.of(kind)
        for batch in dataset.batches([dataset.key, CODES]):
            sizes = np.array([len(value) for value in batch[CODES].to_pylist()], dtype=np.int64)
            if (sizes % codec.row_bytes).any():
                yield (
                    f"{dataset.path}: codes of tokens that are not whole rows of {codec.row_bytes}"
                    " bytes"
                )
                return


def _faiss_problems(root: Path, tier: Tier, stored: StoredVectors) -> Iterator[str]:
    """What is wrong with a file whose hash is right."""
    try:
        file = FaissSearcher.open(root, tier)
    except AveyBError as error:
        yield str(error)
        return
    if file.index.d != stored.dim:
        yield (
            f"{root / tier.file}: vectors of dimension {file.index.d}, the manifest says"
            f" {stored.dim}"
        )


def _rebuild(index_dir: IndexDirectory, damaged: set[str], progress: Progress) -> bool:
    """Make FAISS files and indexes of words anew as a new version, if everything they are made from
    is sound.
    """
    if not all(map(_can_be_made_again, damaged)):
        return False
    anew = FinishOptions(rebuild=True, reindex=True)
    run_change(index_dir, {"command": "repair"}, lambda transaction: anew, progress=progress)
    manifest, held = hold_visible(index_dir)
    with held:
        return not _problems(index_dir, manifest, progress)[0]


def _can_be_made_again(name: str) -> bool:
    return name.startswith((f"{FAISS}/", f"{REJECTED}/", f"{WORD_LISTS}/")) or "/_indices/" in name


def main() -> None:
    """Verify in this process."""
    root, repair = sys.argv[1:]
    try:
        answer = asdict(verify_index(root, repair=repair == "1"))
    except AveyBError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
