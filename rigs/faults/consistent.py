"""Content changed together with its hashes: does `problems_of` see it, wherever answers change?

    python -m rigs.faults.consistent [--tries N] [--seed N]

A try changes one file of a small index (some bytes), or a row of a dataset with care (a text, a
span, an id), and gives the manifest the hashes and versions that fit. The index may be refused, may
verify with problems, or may answer as before. Anything else is missed. Vectors, their norms and
what FAISS holds of them are compared with nothing. A changed row is no longer in its full-text
index, as after an upsert: Lance searches it apart, and scores by words move in the second digit
even where the row was written as it was. So answers after the change of a row are also compared
with those of a sound index once both have made their full-text indexes anew.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from aveyb_retrieval import Retriever
from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.changes.change import FinishOptions, run_change
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.indexes.store.tables import Tables
from rigs.faults.processes import child, quiet
from rigs.fuzz.indexes import FACTORIES, damaged, listed, seal, sound
from tests.contents import problems_of
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

# metadata have no second copy, nor a digest, so nobody can know
SQL = (
    {"id": "'elsewhere'"},
    {"title": "'word2'"},
    {"digest": "X'ZEROS'"},
    {"rank": "rank + 1"},
    {"passages": "passages + 1"},
    {"characters": "characters + 1"},
    {"tokens": "tokens + 1"},
    {"doc": "doc + 1000"},
)
CHANGED: dict[str, Callable[[Any], Any]] = {  # of columns of our own files
    "text": lambda text: f"{text} word1",
    "words": lambda words: f"{words}word3 ",
    "heading": lambda heading: f"{heading}word4",
    "stop": lambda place: place - 2,
    "start": lambda place: place + 2,
}


def row(rng: random.Random, root: Path) -> str:
    """Change a column of one row, or delete the row: as files, or a new version, that the manifest
    then names.
    """
    import lance

    if rng.random() < 0.6:
        column = rng.choice(list(CHANGED))
        table = "texts" if column == "text" else "passages"
        return f"{table}: {change_row(root, table, column, CHANGED[column], rng)}"
    table = "documents"
    key = "doc"
    manifest = read_manifest(root)
    opened = lance.dataset(str(root / f"{table}.lance"), version=manifest.tables.documents)
    number = rng.choice(opened.to_table(columns=[key])[key].to_pylist())
    if rng.random() < 0.15:
        opened.delete(f"{key} = {number}")
        change = "a row deleted"
    else:
        values = {name: sql.replace("ZEROS", "00" * 32) for name, sql in rng.choice(SQL).items()}
        opened.update(values, where=f"{key} = {number}")
        change = str(values)
    reseal(root, {table: opened.version})
    return f"{table}: {change}"


def change_row(
    root: Path, table: str, column: str, change: Callable[[Any], Any], rng: random.Random
) -> str:
    """Change a column of one row of a file of ours, whose hash is then that in the manifest."""
    name = rng.choice(listed(root, f"{table}/"))
    with pa.ipc.open_file(root / name) as opened:
        rows = opened.read_all()
    values = rows[column].to_pylist()
    place = rng.randrange(len(values))
    values[place] = change(values[place])
    number = rows.schema.get_field_index(column)
    changed = rows.set_column(
        number, rows.schema.field(column), pa.array(values, rows[column].type)
    )
    with pa.OSFile(str(root / name), "w") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(changed)
    seal(root)
    return f"{column} of row {place} of {name}"


def reseal(root: Path, versions: dict[str, int]) -> None:
    """Have the manifest name other versions of datasets, with the files that they are made of."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        body["tables"].update(versions)
        return body

    seal(root, change)
    made_of = Tables.open(root, read_manifest(root)).files()

    def name_files(body: dict[str, Any]) -> dict[str, Any]:
        kept = {
            name: info
            for name, info in body["files"].items()
            if name.partition("/")[0] in ("faiss", "rejected")
        }
        body["files"] = kept | {name: {"bytes": 0, "sha256": ""} for name in made_of}
        return body

    seal(root, name_files)
    seal(root)


def _bytes(part: str) -> Callable[[random.Random, Path], str]:
    def change(rng: random.Random, root: Path) -> str:
        name = rng.choice(listed(root, part))
        data = bytearray((root / name).read_bytes())
        for _ in range(rng.choice((1, 4, 32))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (root / name).write_bytes(data)
        seal(root)
        return name

    return change


CHANGES: tuple[Callable[[random.Random, Path], str], ...] = (
    row, _bytes(".lance/data/"), _bytes(".lance/_indices/"), _bytes(".lance/_versions/"),
    row, _bytes("passages/"), _bytes(".lance/_deletions/"), _bytes("texts/"), _bytes("words/"),
)  # fmt: skip


@cache
def right(folder: Path, factory: str) -> Any:
    return answers(sound(folder, factory))


@cache
def right_anew(folder: Path, factory: str) -> Any:
    with damaged(folder, random.Random(0), sound(folder, factory)) as root:
        return answers_anew(root)


def answers_anew(root: Path) -> Any:
    """Answers once the full-text indexes are made anew."""
    run_change(root, {"command": "repair"}, lambda transaction: FinishOptions(reindex=True))
    return answers(root)


def answers(root: Path) -> Any:
    queries = np.random.default_rng(0).normal(size=(20, 16))
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        found = retriever.search_vectors(queries, granularity="document")
        found += retriever.search_vectors(queries, granularity="passage")
        found += [retriever.search(f"word{i}", mode="lexical") for i in range(20)]
        found += [retriever.search(f"word{i} word{2 * i}", k=5) for i in range(20)]
        listed = sorted(
            (each.id, each.title, each.text, str(each.metadata)) for each in retriever.documents()
        )
        return [
            [(hit.id, round(hit.score, 4), hit.passage) for hit in hits] for hits in found
        ], listed


def is_harmless(root: Path, folder: Path, factory: str, *, moved: bool) -> bool:
    same = answers(root) == right(folder, factory)
    return same or (moved and answers_anew(root) == right_anew(folder, factory))


def attempts(connection: Connection, first: int, seed: int, folder: Path) -> None:
    """Make changes one after the other; say of each what it was and what became of it."""
    quiet()
    number = first
    while True:
        rng, change = random.Random(f"{seed} {number}"), CHANGES[number % len(CHANGES)]
        factory = rng.choice(FACTORIES)
        with damaged(folder, rng, sound(folder, factory)) as root:
            what, outcome = "", "refused"
            try:
                what = change(rng, root)
                outcome = "found" if problems_of(root) else "missed"
                if outcome == "missed" and is_harmless(root, folder, factory, moved=change is row):
                    outcome = "harmless"
            except AveyBError:
                pass
            except Exception as error:  # a finding of its own
                outcome = "escaped"
                what = f"{what} ({error!r})"
        connection.send((number, outcome, f"{factory}: {what}"))
        number += 1


def run(tries: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """All outcomes, and which changes were missed."""
    outcomes, missed, number = Counter[str](), list[str](), 0
    while number < tries:
        with child(attempts, number, seed, folder / f"from-{number}") as process:
            try:
                while number < tries:
                    number, outcome, what = process.answer()
                    number += 1
                    outcomes[outcome] += 1
                    if outcome in ("missed", "escaped"):
                        missed.append(f"{number - 1}: {what}")
                        print(missed[-1], flush=True)
            except EOFError:
                outcomes["crashed"] += 1
                missed.append(f"{number}: the process died")
                number += 1
    return outcomes, missed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rigs.faults.consistent")
    parser.add_argument("--tries", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, missed = run(arguments.tries, arguments.seed, Path(folder))
    print(f"{arguments.tries} changes with their hashes: {dict(outcomes)}; missed {len(missed)}")


if __name__ == "__main__":
    main()
