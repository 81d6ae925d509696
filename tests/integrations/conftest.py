"""Tests of adapters: each file is skipped, with a reason, where its framework is not installed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Embedder, build_index
from tests.indexes.files import make_pdf

if TYPE_CHECKING:
    from pathlib import Path

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before haystack is imported

DOCUMENTS = [
    {
        "_id": "lease",
        "title": "Lease",
        "text": (
            "# Notice\n\nThe tenant may end the lease with three months' notice.\n\n# Rent\n\nIt is"
            " due monthly."
        ),
        "year": 2021,
        "tags": ["rent", "notice"],
    },
    {
        "_id": "manual",
        "title": "Pump manual",
        "text": "Close the valve before opening the filter.",
        "year": 2019,
    },
    {
        "_id": "minutes",
        "title": "Minutes",
        "text": "The budget was moved to the next meeting.",
        "year": 2023,
    },
    {"_id": "memo", "title": "", "text": "Visitors sign in at the north gate.", "year": 2024},
]


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    """The embedded model, loaded once."""
    return Embedder.load()


@pytest.fixture
def pdf_index(tmp_path: Path, embedder: Embedder) -> Path:
    """An index of a PDF whose second page, called "i", says where visitors sign in."""
    pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed: pip install '.[files]'")
    (tmp_path / "folder").mkdir()
    pages = [
        ["The tenant may end the lease with three months' notice."] * 4,
        ["Visitors sign in at the north gate."],
    ]
    labels = "/Nums [0 << /S /D >> 1 << /S /r >>]"
    (tmp_path / "folder" / "rules.pdf").write_bytes(make_pdf(pages, title="Rules", labels=labels))
    build_index(tmp_path / "folder", tmp_path / "pdf", model=embedder, passage_tokens=16)
    return tmp_path / "pdf"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Path:
    """A small index, which nobody changes."""
    path = tmp_path_factory.mktemp("built") / "index"
    build_index(DOCUMENTS, path, model=embedder)
    return path


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    """The same, a test's own."""
    return shutil.copytree(built, tmp_path / "index")
