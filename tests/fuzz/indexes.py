"""Attacks on an open index and on its folder: queries, filters, manifests, stores, vectors, FAISS files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import AveyBError
from aveyb_retrieval.indexes.store.vectors import open_shard
from aveyb_retrieval.indexes.changes.verify import verify_index
from tests.faults.commands import FACTORIES, forked_checks
from tests.faults.forks import forked
from tests.fuzz import mutate
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

DOCUMENTS = 40


@cache
def sound(folder: Path, factory: str = "Flat") -> Path:
    """An index in order, made once in a folder of the process."""
    root = folder / f"sound-{factory.replace(',', '-')}"
    build_index(make_documents(DOCUMENTS), root, model=FakeEmbedder(), index=factory)
    return root


@contextlib.contextmanager
def damaged(folder: Path, factory: str = "Flat") -> Any:
    """A copy of the index to damage."""
    root = folder / "damaged"
    shutil.copytree(sound(folder, factory), root)
    try:
        yield root
    finally:
        shutil.rmtree(root)


def seal(version: Path, change: Callable[[dict[str, Any]], Any] = lambda body: body) -> None:
    """Change a manifest, give it the hashes that its files now have, and itself the checksum that fits."""
    path = version / "manifest.json"
    body = json.loads(path.read_bytes())
    body.pop("checksum")
    for name in body["files"]:
        data = (version / name).read_bytes()
        body["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    body = change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), **body}))


def use(root: Path) -> None:
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        for mode in ("dense", "lexical", "hybrid"):
            retriever.search("word1 word2", k=5, mode=mode, filter={"year": {"$gte": 2001}}, context=1)


def verified(root: Path) -> list[str]:
    """What `verify --deep` finds."""
    with forked_checks():
        return verify_index(root, deep=True).problems


@cache
def retriever(folder: Path) -> Retriever:
    return Retriever.load(sound(folder), model=FakeEmbedder())


def query(rng: random.Random, folder: Path) -> None:
    text = " ".join(mutate.text(rng) for _ in range(rng.randrange(1, 5)))
    options: dict[str, Any] = {"mode": rng.choice(("dense", "lexical", "hybrid")), "k": rng.choice((1, 3, 1000))}
    if rng.random() < 0.3:
        name = rng.choice(
            ("k", "mode", "fusion", "weight", "passages", "context", "candidates", "granularity", "rerank")
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
    operators = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$not", mutate.text(rng))
    out: dict[str, Any] = {}
    for _ in range(rng.randrange(1, 4)):
        if rng.random() < 0.3:
            size = 600 if depth == 0 and rng.random() < 0.02 else rng.choice((1, 2, 3))
            joined = [where(rng, depth + 1) for _ in range(size)]
            out[rng.choice(("$and", "$or"))] = joined
        else:
            field = rng.choice(("year", "tags", "a.b", mutate.text(rng)))
            operator = rng.choice(operators)
            operand = [mutate.value(rng) for _ in range(3)] if operator in ("$in", "$nin") else mutate.value(rng)
            out[field] = {operator: operand} if rng.random() < 0.8 else operand
    return out


def filter_(rng: random.Random, folder: Path) -> None:
    condition = where(rng)
    found = {hit.id for hit in retriever(folder).search("word1", k=DOCUMENTS, mode="dense", filter=condition)}
    others = {
        hit.id for hit in retriever(folder).search("word1", k=DOCUMENTS, mode="dense", filter={"$not": condition})
    }
    assert not found & others, "a document satisfies a filter and its opposite"
    assert len(found | others) == DOCUMENTS, "a document satisfies neither a filter nor its opposite"


def manifest(rng: random.Random, folder: Path) -> None:
    with damaged(folder) as root:
        seal(root / "v000001", lambda body: mutate.mutate_json(rng, body))
        if rng.random() < 0.2:
            path = root / "v000001" / "manifest.json"
            path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        use(root)


def store(rng: random.Random, folder: Path) -> None:
    with damaged(folder) as root:
        path = root / "v000001" / "store.sqlite"
        path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        seal(root / "v000001")
        with contextlib.suppress(AveyBError):
            use(root)
        verified(root)


def shard(rng: random.Random, folder: Path) -> None:
    data = next((sound(folder) / "v000001" / "vectors").iterdir()).read_bytes()
    path = folder / "shard.safetensors"
    path.write_bytes(mutate.mutate_bytes(rng, data))
    for view in open_shard(path, 16).values():
        np.array(view.rows).sum()


def faiss_file(rng: random.Random, folder: Path) -> None:
    """For `verify`, which reads it in another process, where a crash is a finding like any other."""
    with damaged(folder, rng.choice(FACTORIES)) as root:
        path = root / "v000001" / "document.faiss"
        path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        seal(root / "v000001")
        verified(root)


def faiss_open(rng: random.Random, folder: Path) -> None:
    """For a reader: `Retriever.load` checks the structure of the file before FAISS reads it in this process."""
    with damaged(folder, rng.choice(FACTORIES)) as root:
        path = root / "v000001" / "document.faiss"
        path.write_bytes(mutate.mutate_bytes(rng, path.read_bytes()))
        seal(root / "v000001")
        _, _, died = forked(lambda: [use(root)])
        assert not died, f"signal {died} while a reader opened or searched it"
