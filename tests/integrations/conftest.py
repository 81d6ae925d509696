"""Tests of adapters: each file is skipped, with a reason, where its framework is not installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aveyb_retrieval import Embedder, build_index

if TYPE_CHECKING:
    from pathlib import Path

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before haystack is imported

DOCUMENTS = [
    {
        "_id": "lease",
        "title": "Lease",
        "text": "# Notice\n\nThe tenant may end the lease with three months' notice.\n\n# Rent\n\nIt is due monthly.",
        "year": 2021,
        "tags": ["rent", "notice"],
    },
    {"_id": "manual", "title": "Pump manual", "text": "Close the valve before opening the filter.", "year": 2019},
    {"_id": "minutes", "title": "Minutes", "text": "The budget was moved to the next meeting.", "year": 2023},
    {"_id": "memo", "title": "", "text": "Visitors sign in at the north gate.", "year": 2024},
]


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    """The embedded model, loaded once."""
    return Embedder.load()


@pytest.fixture
def index(tmp_path: Path, embedder: Embedder) -> Path:
    """A small index."""
    build_index(DOCUMENTS, tmp_path / "index", model=embedder)
    return tmp_path / "index"
