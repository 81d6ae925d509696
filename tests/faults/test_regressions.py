"""What the campaigns found once, each in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aveyb_retrieval import build_index
from aveyb_retrieval.indexes.store.manifest import read_manifest
from aveyb_retrieval.indexes.store.tables import Tables
from aveyb_retrieval.indexes.store.vectors import StoredVectors
from tests.indexes.conftest import make_documents
from tests.indexes.fake import FakeEmbedder

if TYPE_CHECKING:
    from pathlib import Path


def test_blocks_of_vectors_are_never_empty(tmp_path: Path) -> None:
    """FAISS's RaBitQ refuses to add nothing: a merge of the first documents of an index came to a block of later ones."""
    build_index(make_documents(40), tmp_path / "ix", model=FakeEmbedder())
    tables = Tables.open(tmp_path / "ix", read_manifest(tmp_path / "ix").tables)
    blocks = list(StoredVectors(tables, "document", 16).blocks(1, 9, rows=4))
    assert [numbers.tolist() for numbers, _ in blocks] == [[1, 2, 3, 4], [5, 6, 7, 8]]
