"""Every command that changes an index, on a small index of every type, of the present format and of format 1."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from aveyb_retrieval import Retriever, build_index, compact_index
from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.nearest import faiss_check
from aveyb_retrieval.indexes.store.directory import IndexDirectory
from aveyb_retrieval.indexes.changes.maintain import tune_index, upgrade_index
from aveyb_retrieval.indexes.changes.update import add_documents, delete_documents, upsert_documents
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests.faults.forks import forked
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FORMAT_1 = Path(__file__).parents[1] / "data" / "format1"
DOCUMENTS = 40
FACTORIES = ("Flat", "HNSW8", "SQ8", "IVF4,Flat", "PQ4x4", "PCA8,IVF4_HNSW4,SQ8")
COMMANDS: dict[str, Callable[[Path, str], object]] = {
    "build": lambda root, factory: build_index(make_documents(DOCUMENTS), root, model=FakeEmbedder(), index=factory),
    "add": lambda root, _: add_documents(make_documents(15, seed=5, first=DOCUMENTS), root, model=FakeEmbedder()),
    "upsert": lambda root, _: upsert_documents(make_documents(20, seed=6, first=30), root, model=FakeEmbedder()),
    "delete": lambda root, _: delete_documents(root, where={"year": {"$in": [2003, 2007, 2021]}}),
    "compact": lambda root, _: compact_index(root),
    "tune": lambda root, _: tune_index(root, 0.9),
    "repair": lambda root, _: verify_index(root, repair=True),
    "upgrade": lambda root, _: upgrade_index(root),
}
OLD = ("flat", "hnsw")  # names of the indexes of format 1
# what must be encoded needs the model that made the index, which is not kept beside those of format 1
OLD_COMMANDS = ("delete", "compact", "tune", "repair", "upgrade")

Answers = list[list[tuple[str, float]]]


@dataclass(frozen=True)
class Case:
    """A command on one type of index, a FAISS factory string or one of `OLD`."""

    command: str
    index: str

    def run(self, root: Path) -> None:
        """Give the command as a user would after a crash, who may find that it was done already."""
        try:
            COMMANDS[self.command](root, self.index)
        except AveyBError as error:
            if "already" not in str(error):
                raise

    def prepare(self, root: Path, folder: Path) -> None:
        """Put at `root` what the command starts from; it is made once in `folder`."""
        if self.command != "build":
            shutil.copytree(_base(self, folder), root)


CASES = [Case(c, f) for f in FACTORIES for c in COMMANDS if c != "upgrade"] + [
    Case(c, f) for f in OLD for c in OLD_COMMANDS
]


@cache
def _base(case: Case, folder: Path) -> Path:
    root = folder / f"{case.command}-{case.index.replace(',', '-')}"
    if case.index in OLD:
        shutil.copytree(FORMAT_1 / case.index, root)
    else:
        COMMANDS["build"](root, case.index)
    if case.command == "compact":
        COMMANDS["delete"](root, case.index)
    if case.command == "repair":
        next(root.glob("v*/document.faiss")).write_bytes(b"nonsense")
    return root


@cache
def expected(case: Case, folder: Path) -> tuple[Answers | None, Answers]:
    """What readers see before the command and after it; before a build, or with damage, nothing."""
    root = folder / "expected"
    case.prepare(root, folder)
    before = answers(root)
    case.run(root)
    after = answers(root)
    shutil.rmtree(root)
    assert after is not None
    return before, after


def answers(root: Path) -> Answers | None:
    """The answers of an index to some vectors and words; None where there is none, or where it is known as damaged."""
    try:
        with Retriever.load(root, verify=True) as retriever:
            dim = retriever._engine.snapshot.manifest.dim
            vectors = np.random.default_rng(0).normal(size=(8, dim))
            found = retriever.search_vectors(vectors, k=10)
            found += [retriever.search(f"word{i} word{3 * i} pump rent month", k=10, mode="lexical") for i in range(8)]
            return [[(hit.id, hit.score) for hit in hits] for hits in found]
    except IndexFormatError as error:
        known = ("no index here", "damaged", "the manifest says", "sha256 in the manifest")
        assert any(words in str(error) for words in known), error
        return None


def same(one: Answers | None, other: Answers | None) -> bool:
    """Whether answers are equal; the last digits of scores depend on where a vector lies in memory."""
    if one is None or other is None:
        return one is other
    pairs = [pair for rows in zip(one, other, strict=True) for pair in zip_longest(*rows)]
    return all(a is not None and b is not None and a[0] == b[0] and abs(a[1] - b[1]) < 1e-5 for a, b in pairs)


@contextmanager
def forked_checks() -> Iterator[None]:
    """Have `verify` read FAISS files in a fork of this process, which is faster than a new one."""

    def child(items: Sequence[faiss_check.Expected]) -> tuple[list[list[str]], str]:
        found, refused, died = forked(lambda: map(faiss_check.problems_here, items))
        return found, refused or f"signal {died}"

    with mock.patch.object(faiss_check, "_in_child", child):
        yield


def check_whole(case: Case, root: Path, after: Any) -> None:
    """The index is the one that a run from start to end makes."""
    assert same(answers(root), after), f"{case}: the answers are not those of a run from start to end"
    with forked_checks():
        assert verify_index(root, deep=True).problems == []
    index_dir = IndexDirectory(root)
    assert not index_dir.building.exists()
    # where nothing was left to do, the version before is removed by the next change
    assert index_dir.versions()[-1] == index_dir.current()
    assert len(index_dir.versions()) <= 2
