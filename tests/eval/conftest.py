"""A real model, small and random, for the tests that must go through `Embedder`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# what only the benchmarks measure
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "cpu"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Avey-B of one token a byte, S = 16, with prompts."""
    from tests.encoder.models import save_byte_model

    path = tmp_path_factory.mktemp("models") / "random-avey"
    return save_byte_model(path, query="find: ", document="text: ", split_size=16)
