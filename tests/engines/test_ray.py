"""An index built by tasks on two Ray nodes: that of one process, also where a task's
process dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aveyb_retrieval import Retriever, build_index, build_on_ray
from aveyb_retrieval.errors import InputError
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from aveyb_retrieval.encoder.embedders.embedder import EncodedDocument

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'aveyb-retrieval[ray]'")
pytestmark = pytest.mark.engine


class Mortal(FakeEmbedder):
    """A model whose process dies in the middle of the first shard that it meets, once."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedDocument]:
        for number, each in enumerate(super().encode_documents(documents)):
            if number == 10 and not self.mark.exists():
                self.mark.touch()
                os._exit(1)
            yield each


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes in processes of this machine, one CPU each, and this process connected to them."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=small)
    made.add_node(num_cpus=1, object_store_memory=100 << 20)
    ray.init(address=made.address, logging_level="warning", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def answers(root: Path) -> list[Any]:
    with Retriever.load(root, model=FakeEmbedder()) as retriever:
        hits = retriever.search(["word7 word1", "word3 word1", "title 11"], k=100, mode="dense")
        return [sorted((h.id, round(h.score, 5)) for h in found) for found in hits]


@pytest.mark.parametrize("dies", [False, True], ids=["undisturbed", "a process dies"])
def test_the_index_is_that_of_one_process(dies: bool, cluster: Any, tmp_path: Path) -> None:
    rows, mark = make_documents(100), tmp_path / "dead"
    if not dies:
        mark.touch()
    report = build_on_ray(rows, tmp_path / "ix", of=4, model=Mortal(mark))
    assert (report.documents, mark.exists()) == (100, True)
    build_index(rows, tmp_path / "here", model=FakeEmbedder())
    assert answers(tmp_path / "ix") == answers(tmp_path / "here")


def test_what_a_task_says_names_its_node(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"node .*, shard \d/3: .*nowhere.jsonl: no such file"):
        build_on_ray(tmp_path / "nowhere.jsonl", tmp_path / "ix", of=3, model=FakeEmbedder())


def test_the_command_on_a_cluster_of_its_own(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(
        "".join(f'{{"_id": "{i}", "text": "number{i} word{i % 7}"}}\n' for i in range(40))
    )
    command = [
        sys.executable,
        "-m",
        "aveyb_retrieval.cli.index",
        "build",
        "c.jsonl",
        "-o",
        "ix",
        "--quiet",
    ]
    done = subprocess.run(
        [*command, "--ray", "local", "--of", "3", "--cpus", "0.5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "40 documents" in done.stdout
