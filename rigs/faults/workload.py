"""Commands of every kind, drawn at random but always the same for a seed, and what an index must
hold after each.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Index, build_index
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.changes.sync import sync_index
from aveyb_retrieval.indexes.nearest import faiss_file
from aveyb_retrieval.indexes.store import dataset, lance_session, rows
from tests import one_change
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 7  # documents of a commit: several in most commands
FRAGMENTS = 5  # that are merged: merges come every few commands
VERSIONS = 16  # after which Lance's caches are begun anew
EXACT = 40  # vectors that are searched without FAISS
WORDS = [f"word{i}" for i in range(60)]
KINDS = ("add", "upsert", "delete", "metadata", "compact", "sync", "shards", "batch", "build")


@dataclass(frozen=True)
class Document:
    """What an index must hold of a document; `file`: it came from a file, which has metadata of its
    own.
    """

    text: str
    title: str = ""
    year: int = 0
    file: bool = False

    def row(self, name: str) -> dict[str, Any]:
        return {"_id": name, "text": self.text, "title": self.title, "year": self.year}


Documents = dict[str, Document]


@dataclass(frozen=True)
class Command:
    """One call: its kind, the documents it is given by id, and the ids that it removes
    or changes.
    """

    kind: str
    number: int
    given: Documents
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.number} {self.kind}"

    def after(self, before: Documents) -> Documents:
        """What the index holds when the call has returned."""
        after = {} if self.kind == "build" else dict(before)
        if self.kind == "sync":
            after = {name: each for name, each in after.items() if not each.file}
        after.update(self.given)
        if self.kind in ("delete", "batch"):
            after = {name: each for name, each in after.items() if name not in self.names}
        if self.kind == "metadata":
            for name in self.names:
                after[name] = Document(
                    after[name].text, after[name].title, self.number, after[name].file
                )
        return after

    def prepare(self, root: Path) -> None:
        """Put beside the index what the call reads: the folder that is to be in step; nothing of an
        earlier call.
        """
        folder = root.parent / "folder"
        for old in (folder, self._shards(root)):
            shutil.rmtree(old, ignore_errors=True)
        if self.kind == "sync":
            folder.mkdir()
            for name, each in self.given.items():
                (folder / name).write_text(each.text)

    def _shards(self, root: Path) -> Path:
        return root.parent / f"shards-{self.number}"

    def _build_shards(self, rows: list[dict[str, Any]], root: Path) -> Path:
        for number in (1, 2):
            shard = self._shards(root) / str(number)
            build_index(
                rows, shard, model=FakeEmbedder(), share=(number, 2), index="none", overwrite=True
            )
        return self._shards(root)

    def run(self, root: Path, *, done: bool = False) -> None:
        """Make the call; `done`: it may have been made before, of which some kinds complain."""
        model, rows = FakeEmbedder(), [each.row(name) for name, each in self.given.items()]
        match self.kind:
            case "build":
                build_index(
                    rows,
                    root,
                    model=model,
                    index=("HNSW8", "auto")[self.number % 2],
                    overwrite=True,
                )
            case "add":
                self._add(done, rows, root, model=model)
            case "upsert":
                one_change.upsert(rows, root, model=model)
            case "delete":
                one_change.delete(root, self.names, missing_ok=True)
            case "metadata":
                one_change.update_metadata(root, {"year": self.number}, self.names)
            case "compact":
                one_change.compact(root)
            case "sync":
                sync_index(root.parent / "folder", root, model=model)
            case "shards":
                self._add(done, None, root, vectors=self._build_shards(rows, root))
            case "batch":
                with Index.open(root, model=model) as index, index.batch() as batch:
                    batch.upsert(rows)
                    batch.delete(self.names, missing_ok=True)

    def _add(self, done: bool, *arguments: Any, **options: Any) -> None:
        try:
            one_change.add(*arguments, **options)
        except InputError as error:
            if not done or "already in use" not in str(error):
                raise


def draw(seed: int, number: int, before: Documents, kinds: tuple[str, ...] = KINDS) -> Command:
    """Command `number` of a run, given what the index holds before it; the first one builds."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(kinds) if before else "build"
    if kind == "build" and before and rng.random() < 0.7:
        kind = "upsert"
    rows = [name for name, each in before.items() if not each.file]
    some = tuple(rng.sample(rows, min(len(rows), rng.randint(1, 12))))
    if kind in ("delete", "metadata", "batch") and not some:
        kind = "add"
    many = rng.choice((1, 1, rng.randint(2, 30)))
    given: Documents = {}
    match kind:
        case "build":
            given = {f"doc-{i}": _document(rng) for i in range(30)}
        case "add" | "shards":
            given = {f"new-{number}-{i}": _document(rng) for i in range(many)}
        case "upsert" | "batch":
            given = {f"new-{number}-{i}": _document(rng) for i in range(many // 2)}
            for name in some:
                old = before[name]
                given[name] = rng.choice(
                    (old, Document(old.text + " " + _text(rng), old.title, 1), _document(rng))
                )
            given = {f"one-{number}": _document(rng), **given}
        case "sync":
            files = {
                name: each for name, each in before.items() if each.file and rng.random() < 0.7
            }
            texts = [each.text for name, each in before.items() if each.file and name not in files]
            moved = {
                f"moved-{number}-{i}.txt": Document(text, file=True)
                for i, text in enumerate(texts[::2])
            }
            fresh = {
                f"file-{number}-{i}.txt": Document(_text(rng), file=True)
                for i in range(rng.randint(1, 9))
            }
            given = files | moved | fresh
    return Command(kind, number, given, some if kind in ("delete", "metadata", "batch") else ())


def _document(rng: random.Random) -> Document:
    return Document(_text(rng), rng.choice(("", "Title of word1")), rng.randint(2000, 2020))


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.choice((3, 10, 40))))


def small_steps() -> None:
    """In this process: many small commits, merges and FAISS files, so that there is much to
    interrupt.
    """
    ingest.BATCH_DOCUMENTS = BATCH
    dataset.MAX_SMALL_PIECES = rows.MAX_SMALL_PIECES = FRAGMENTS
    lance_session.MAX_CACHED_VERSIONS = VERSIONS
    faiss_file.exact_limit = lambda dim: EXACT  # type: ignore[assignment]
