"""Attacks on an open index and on its folder: queries, filters, manifests, journals, Lance's files
and FAISS's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.changes import ingest
from aveyb_retrieval.indexes.changes.verify import verify_apart, verify_index
from aveyb_retrieval.indexes.store.manifest import IndexDirectory
from rigs.fuzz import mutate
from tests import one_change
from tests.contents import is_sound_apart, problems_of
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

DOCUMENTS = 40
FACTORIES = ("Flat", "HNSW8", "SQ8", "IVF4,Flat", "PQ4x4", "PCA8,IVF4_HNSW4,SQ8", "IVF4,RaBitQfs")
_ADDED = make_documents(20, seed=5, first=DOCUMENTS)


@cache
def sound(folder: Path, factory: str = "Flat") -> Path:
    """An index in order, with a few changes behind it, made once in a folder of the process."""
    root = folder / f"sound-{factory.replace(',', '-')}"
    build_index(make_documents(DOCUMENTS), root, model=FakeEmbedder(), index=factory)
    one_change.upsert(make_documents(5, seed=3), root, model=FakeEmbedder())
    one_change.delete(root, ["doc-7"])
    return root


@cache
def interrupted(folder: Path) -> Path:
    """An index that a change has left unfinished, with its journal."""
    root = folder / "interrupted"
    shutil.copytree(sound(folder), root)
    full = mock.patch.object(
        IndexDirectory, "publish", side_effect=OSError(28, "No space left on device")
    )
    with full, mock.patch.object(ingest, "BATCH_DOCUMENTS", 7), contextlib.suppress(AveyBError):
        one_change.add(_ADDED, root, model=FakeEmbedder())
    assert IndexDirectory(root).journal.exists()
    return root


@contextlib.contextmanager
def damaged(folder: Path, rng: random.Random, of: Path) -> Iterator[Path]:
    """A copy of an index to damage, never twice at the same place; nothing beside it may be
    touched.
    """
    place = folder / f"try-{rng.randrange(1 << 60):x}"
    root, outside = place / "ix", place / "outside.json"
    shutil.copytree(of, root)
    outside.write_text("precious")
    try:
        yield root
    finally:
        beside = sorted(path.name for path in place.iterdir())
        untouched = beside == ["ix", "outside.json"] and outside.read_text() == "precious"
        shutil.rmtree(place)
        assert untouched, f"beside the index: {beside}"


def version(root: Path) -> Path:
    """The manifest of the visible version."""
    index_dir = IndexDirectory(root)
    return index_dir.manifest(index_dir.visible())


def seal(root: Path, change: Callable[[dict[str, Any]], Any] = lambda body: body) -> None:
    """Change the manifest, give it the hashes that its files now have, and itself the checksum that
    fits.
    """
    path = version(root)
    body = json.loads(path.read_bytes())
    for name in body["files"]:
        data = (root / name).read_bytes()
        body["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_sealed(path, change(body))


def write_sealed(path: Path, body: dict[str, Any]) -> None:
    """Write a manifest or a journal with the checksum that fits it."""
    body.pop("checksum", None)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), **body}))


def listed(root: Path, part: str = "") -> list[str]:
    """The files of the visible version whose names hold `part`."""
    return [name for name in json.loads(version(root).read_bytes())["files"] if part in name]


def use(root: Path) -> None:
    """What a reader does with an index."""
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        for mode in ("dense", "lexical", "hybrid"):
            retriever.search(
                "word1 word2", k=5, mode=mode, filter={"year": {"$gte": 2001}}, context=1
            )  # type: ignore[arg-type]
        retriever.get(["doc-1"], missing_ok=True)
        list(retriever.documents())


def change(root: Path) -> None:
    """What a writer does with it."""
    one_change.upsert(make_documents(3, seed=9, first=DOCUMENTS - 2), root, model=FakeEmbedder())
    one_change.delete(root, ["doc-2"], missing_ok=True)


def attempt(*steps: Callable[[], object]) -> None:
    """Each of them may end with an error of ours."""
    for step in steps:
        with contextlib.suppress(AveyBError):
            step()


@cache
def retriever(folder: Path) -> Retriever:
    return Retriever.load(sound(folder), model=FakeEmbedder())


def query(rng: random.Random, folder: Path) -> None:
    text = " ".join(mutate.text(rng) for _ in range(rng.randrange(1, 5)))
    options: dict[str, Any] = {
        "mode": rng.choice(("dense", "lexical", "hybrid")),
        "k": rng.choice((1, 3, 1000)),
    }
    if rng.random() < 0.3:
        name = rng.choice(
            (
                "k",
                "mode",
                "fusion",
                "weight",
                "passages",
                "context",
                "candidates",
                "granularity",
                "rerank",
            )
        )
        options[name] = mutate.value(rng)
    hits = retriever(folder).search(text, **options)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True), "hits are not in order"
    assert len({hit.id for hit in hits}) == len(hits), "a document was found twice"


def where(rng: random.Random, depth: int = 0) -> Any:
    """A filter that is one more often than not."""
    if depth > 3 or rng.random() < 0.1:
        return mutate.value(rng)
    operators = (
        "$eq",
        "$ne",
        "$gt",
        "$gte",
        "$lt",
        "$lte",
        "$in",
        "$nin",
        "$exists",
        "$not",
        mutate.text(rng),
    )
    out: dict[str, Any] = {}
    for _ in range(rng.randrange(1, 4)):
        if rng.random() < 0.3:
            size = 600 if depth == 0 and rng.random() < 0.02 else rng.choice((1, 2, 3))
            joined = [where(rng, depth + 1) for _ in range(size)]
            out[rng.choice(("$and", "$or"))] = joined
        else:
            field = rng.choice(("year", "tags", "a.b", mutate.text(rng)))
            operator = rng.choice(operators)
            operand = (
                [mutate.value(rng) for _ in range(3)]
                if operator in ("$in", "$nin")
                else mutate.value(rng)
            )
            out[field] = {operator: operand} if rng.random() < 0.8 else operand
    return out


def filter_(rng: random.Random, folder: Path) -> None:
    condition = where(rng)
    found = {
        hit.id
        for hit in retriever(folder).search("word1", k=DOCUMENTS, mode="dense", filter=condition)
    }
    others = {
        hit.id
        for hit in retriever(folder).search(
            "word1", k=DOCUMENTS, mode="dense", filter={"$not": condition}
        )
    }
    assert not found & others, "a document satisfies a filter and its opposite"
    assert len(found | others) == DOCUMENTS - 1, (
        "a document satisfies neither a filter nor its opposite"
    )


def manifest(rng: random.Random, folder: Path) -> None:
    with damaged(folder, rng, sound(folder)) as root:
        if rng.random() < 0.8:
            seal(root, lambda body: mutate.mutate_json(rng, body))
        else:
            version(root).write_bytes(mutate.mutate_bytes(rng, version(root).read_bytes()))
        attempt(lambda: use(root), lambda: verify_index(root), lambda: change(root))


def pointer(rng: random.Random, folder: Path) -> None:
    with damaged(folder, rng, sound(folder)) as root:
        path = root / "current"
        path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        attempt(lambda: use(root), lambda: verify_index(root, repair=True), lambda: change(root))


def journal(rng: random.Random, folder: Path) -> None:
    """Of a change that was interrupted: what it continues must be what it was, and the visible
    version stays.

    A journal with a checksum that fits was written to deceive, like a manifest: it may do no more
    than end the change.
    """
    with damaged(folder, rng, interrupted(folder)) as root:
        path = root / "journal.json"
        written = json.loads(path.read_bytes())
        how = rng.random()
        if how < 0.4:
            path.write_text(json.dumps(mutate.mutate_json(rng, written)))
        elif how < 0.6:
            path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        else:
            changed = mutate.mutate_json(rng, written)
            if isinstance(changed, dict):
                write_sealed(path, changed)
            attempt(lambda: one_change.add(_ADDED, root, model=FakeEmbedder()), lambda: use(root))
            return
        before = version(root)
        with contextlib.suppress(AveyBError), mock.patch.object(ingest, "BATCH_DOCUMENTS", 7):
            one_change.add(_ADDED, root, model=FakeEmbedder())
        use(root)
        if version(root) != before:
            problems = problems_of(root)
            assert problems == [], f"continued to something unsound: {problems}"


def lance_file(rng: random.Random, folder: Path) -> None:
    """Any file of Lance's or of rows and words: versions, indexes, deletions, too.

    One that was made to harm may end the process that reads it first.
    """
    with damaged(folder, rng, sound(folder)) as root:
        part = rng.choice(
            (
                *(".lance/data/", ".lance/_versions/", ".lance/_indices/", ".lance/_deletions/"),
                *("texts/", "passages/", "words/"),
            )
        )
        path = root / rng.choice(listed(root, part))
        path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        if rng.random() < 0.8:
            seal(root)
        else:
            changed = path.read_bytes() != (sound(folder) / path.relative_to(root)).read_bytes()
            assert verify_index(root).problems or not changed, (
                "a change without its hash was not found"
            )
        if is_sound_apart(root):
            attempt(lambda: use(root), lambda: change(root), lambda: verify_index(root))


def faiss_file(rng: random.Random, folder: Path) -> None:
    """For `verify`, which reads it in another process, where a crash is a finding like
    any other.
    """
    with damaged(folder, rng, sound(folder, rng.choice(FACTORIES))) as root:
        path = root / rng.choice(listed(root, "faiss/"))
        path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        seal(root)
        verify_apart(root)
        is_sound_apart(root)
