"""A real build with the fake model, to be killed: run in a process of its own.

    python -m tests.faults.workload build|update|metadata DIR [--die-at N]

With `--die-at N` the process kills itself at the N-th operation on the disk (write, flush, rename, link or commit).
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import build_index
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.store import files
from aveyb_retrieval.indexes.store.store import Store
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.changes.metadata import update_metadata
from aveyb_retrieval.indexes.changes.update import upsert_documents
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCUMENTS = 400
OPERATIONS = ("write", "fsync", "fsync_folder", "rename", "link")


def corpus(mode: str) -> list[dict[str, Any]]:
    return make_documents(DOCUMENTS) if mode == "build" else make_documents(120, seed=5, first=DOCUMENTS - 60)


def run(mode: str, root: Path) -> None:
    """Give the command once, as a user would after a crash: a build that is complete already is none to repeat."""
    if mode == "build":
        try:
            build_index(corpus(mode), root, model=FakeEmbedder())
        except ConfigError as error:
            if "already there" not in str(error):
                raise
    elif mode == "metadata":
        update_metadata(root, {"year": 1999, "note": "changed"}, where={"year": {"$lt": 2010}}, remove=["tags"])
    else:
        upsert_documents(corpus(mode), root, model=FakeEmbedder())


def intercept(hook: Callable[[str], None]) -> None:
    """Call `hook` with its name before every operation of ours on the disk, and before every commit."""
    for name in OPERATIONS:
        original = getattr(files, name)

        def replacement(*arguments: Any, _name: str = name, _original: Any = original) -> Any:
            hook(_name)
            return _original(*arguments)

        setattr(files, name, replacement)
    transaction = Store.transaction

    def watched(self: Store) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def inner() -> Iterator[None]:
            with transaction(self):
                yield
                hook("commit")

        return inner()

    Store.transaction = watched  # type: ignore[method-assign]


def small_steps() -> None:
    """Many small commits instead of one, so that there is something to interrupt."""
    ingest.BATCH_DOCUMENTS = 25


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["build", "update", "metadata"])
    parser.add_argument("root", type=Path)
    parser.add_argument("--die-at", type=int)
    arguments = parser.parse_args()
    small_steps()
    if arguments.die_at is not None:
        count = 0

        def hook(name: str) -> None:
            nonlocal count
            count += 1
            if count == arguments.die_at:
                os.kill(os.getpid(), signal.SIGKILL)

        intercept(hook)
    run(arguments.mode, arguments.root)


if __name__ == "__main__":
    try:
        main()
    except sqlite3.Error as error:
        raise SystemExit(f"unexpected {error!r}") from error
