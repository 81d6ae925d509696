"""A real model, small and random, for the tests that must go through `Embedder`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# what only the benchmarks measure
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "cpu"))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Avey-B of one token a byte, S = 16, with prompts, as a
    sentence-transformers folder.
    """
    import torch

    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
    from aveyb_retrieval.encoder.network.model import AveyBModel
    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

    torch.manual_seed(0)
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    config = AveyBConfig.mini(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=4,
        split_size=16,
        initializer_range=0.2,
    )
    path = tmp_path_factory.mktemp("models") / "random-avey"
    sentence_transformer(
        AveyBModel(config), tokenizer, path, prompts={"query": "find: ", "document": "text: "}
    )
    return path
