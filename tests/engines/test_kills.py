"""The process that publishes or updates is killed (`kill -9`): nothing that it acknowledged is
lost, on any server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import build_index, publish_index
from aveyb_retrieval.errors import IndexFormatError
from tests.engines.stands import EMBEDDER
from tests.indexes.conftest import make_documents

if TYPE_CHECKING:
    from aveyb_retrieval import Retriever
    from tests.engines.stands import Documents, PublishedCollection, Stand

ROOT = Path(__file__).parents[2]
BATCH, COUNT, KILLED_AT = 5, 300, 40
WORK = """
import sys
from aveyb_retrieval import publish_index
from aveyb_retrieval.engines import publish

if sys.argv[2].startswith("milvus:"):
    import milvus_engine
    from aveyb_retrieval.indexes.engine import register_engine

    register_engine("milvus", milvus_engine.MilvusCollection)
publish.BATCH_DOCUMENTS = int(sys.argv[4])
publish_index(sys.argv[1], sys.argv[2], update=sys.argv[3] == "update",
    progress=lambda stage, done, total, tokens: print(stage, done, flush=True))
"""


@pytest.fixture
def one(stand: Stand) -> PublishedCollection:
    if not hasattr(stand.collection(), "address"):
        pytest.skip("an index directory has tests of its own")
    return stand.collection()  # type: ignore[return-value]


def killed(shards: Path, address: str, how: str) -> int:
    """Publish in a process that is killed on the way; returns how many documents it had
    acknowledged.
    """
    command = [sys.executable, "-c", WORK, str(shards), address, how, str(BATCH)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "examples")))}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(KILLED_AT // BATCH)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines()
    done = [int(line.split()[1]) for line in lines if line.startswith("publishing")]
    assert KILLED_AT <= max(done) < COUNT
    return max(done)


def check(retriever: Retriever, rows: Documents) -> None:
    """All documents are there once, each with its passages and no others."""
    assert sorted(document.id for document in retriever.documents()) == sorted(
        row["_id"] for row in rows
    )
    hits = retriever.search("word1 word2", 5000, mode="dense", unit="passage", fold=False)
    encoded = EMBEDDER.encode_documents(
        ((f"{row['title']}\n" if row["title"] else ""), row["text"]) for row in rows
    )
    assert len(hits) == sum(len(each.passages) for each in encoded)


def test_a_publication_that_is_killed_goes_on(one: PublishedCollection, tmp_path: Path) -> None:
    rows = make_documents(COUNT)
    build_index(rows, tmp_path / "made", model=EMBEDDER)
    done = killed(tmp_path, one.address, "publish")
    with pytest.raises(IndexFormatError, match="only in part; run the same"):
        one.load()
    report = publish_index(tmp_path, one.address)
    assert report.documents - report.written >= done
    with one.load() as retriever:
        check(retriever, rows)


def test_an_update_that_is_killed_keeps_what_it_acknowledged(
    one: PublishedCollection, tmp_path: Path
) -> None:
    rows = make_documents(COUNT)
    one.publish(make_documents(COUNT, seed=9))
    build_index(rows, tmp_path / "made", model=EMBEDDER)
    done = killed(tmp_path, one.address, "update")
    with one.load() as retriever:
        held = {document.id: document.text for document in retriever.documents()}
    assert set(held) == {row["_id"] for row in rows}
    assert sum(held[row["_id"]] == row["text"] for row in rows) >= done
    publish_index(tmp_path, one.address, update=True)
    with one.load() as retriever:
        check(retriever, rows)
