"""Attacks on model folders: the tokenizer's files, the configuration, the weights, and how they are
put together.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.loading import load_encoder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import SETTINGS_FILE, VOCAB_FILE, AveyBTokenizer
from rigs.fuzz import mutate

if TYPE_CHECKING:
    import random
    from pathlib import Path

TEXT = "Some words, SOME more; \u6771\u4eac and \U0001f986."
# the files that decide, and whether they are JSON
FILES = {
    "config.json": True,
    "model.safetensors": False,
    "modules.json": True,
    "1_Pooling/config.json": True,
    "config_sentence_transformers.json": True,
    SETTINGS_FILE: True,
    VOCAB_FILE: False,
}


@cache
def sound(folder: Path) -> Path:
    """A model folder in order, of a few thousand parameters."""
    torch.manual_seed(0)
    tokenizer = AveyBTokenizer.from_ranks([*(bytes([i]) for i in range(256)), b"so", b"or", b"me"])
    config = AveyBConfig.mini(
        vocab_size=tokenizer.vocab_size, hidden_size=16, num_hidden_layers=2, split_size=8
    )
    path = folder / "sound-model"
    sentence_transformer(
        AveyBModel(config), tokenizer, path, prompts={"query": "query: ", "document": "text: "}
    )
    return path


@contextlib.contextmanager
def damaged(folder: Path) -> Any:
    root = folder / "model"
    shutil.copytree(sound(folder), root)
    try:
        yield root
    finally:
        shutil.rmtree(root)


def harm(rng: random.Random, path: Path, *, is_json: bool) -> None:
    data = path.read_bytes()
    if is_json and rng.random() < 0.8:
        path.write_text(json.dumps(mutate.mutate_json(rng, json.loads(data))))
    else:
        path.write_bytes(mutate.mutate_bytes(rng, data))


def tokenizer(rng: random.Random, folder: Path) -> None:
    with damaged(folder) as root:
        name = rng.choice((SETTINGS_FILE, VOCAB_FILE))
        harm(rng, root / name, is_json=name == SETTINGS_FILE)
        if name == VOCAB_FILE:
            settings = json.loads((root / SETTINGS_FILE).read_bytes())
            settings["vocab_sha256"] = hashlib.sha256((root / VOCAB_FILE).read_bytes()).hexdigest()
            (root / SETTINGS_FILE).write_text(json.dumps(settings))
        loaded = AveyBTokenizer.load(root)
        ids, offsets = loaded.encode(TEXT)
        assert len(ids) == len(offsets)
        assert (ids >= 0).all()
        assert (ids < loaded.vocab_size).all()


def model(rng: random.Random, folder: Path) -> None:
    with damaged(folder) as root:
        name = rng.choice(list(FILES))
        harm(rng, root / name, is_json=FILES[name])
        encoder = load_encoder(root)
        (document,) = encoder.encode_documents([("Title\n", TEXT)])
        assert document.vector.shape == encoder.encode_queries(["words"])[0].shape
        assert np.isfinite(document.passages).all() or name == "model.safetensors"
