"""Torch and ONNX choose by one ranker; the table that it reads in an ONNX form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aveyb_retrieval.encoder.network.host_ranker import choose, split_weights
from aveyb_retrieval.encoder.network.splits import split_table
from aveyb_retrieval.encoder.onnx.model import EmbeddingTable
from aveyb_retrieval.errors import ModelError
from tests.encoder.models import small_model
from tests.encoder.onnx.forms import settings_of, store_table_in_int8

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNTS = [0, 5, 16, 500, 33, 2100, 17]  # tokens of documents in splits of 16
CHOICES = (
    {},
    {"weight_norm": "min", "retrieved_order": "score"},
    {"num_retrieved": 1},
    {"max_split_weight": 1.01, "weight_norm": "min"},
)


@pytest.mark.parametrize(
    "overrides", CHOICES, ids=lambda overrides: " ".join(map(str, overrides.values())) or "plain"
)
@pytest.mark.parametrize("distinct", [97, 20], ids=["many ids", "few ids"])
def test_the_choice_is_that_of_torch(
    overrides: dict[str, object], distinct: int, tmp_path: Path
) -> None:
    model = small_model("paper", **overrides)
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(distinct).integers(0, distinct, sum(COUNTS))
    table = split_table(ids, COUNTS, 16)
    with torch.inference_mode():
        expected = model.ranker.retrieve(table, model.embed.weight)
    settings = settings_of(**overrides)
    embeddings = EmbeddingTable(tmp_path / "model.safetensors")
    found = choose(table.layout, table.ids.numpy(), embeddings.__getitem__, settings)
    np.testing.assert_array_equal(found.rows, expected.rows.numpy())
    np.testing.assert_allclose(
        split_weights(found, settings), expected.weights.numpy(), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_table_has_the_rows_of_the_checkpoint(dtype: torch.dtype, tmp_path: Path) -> None:
    model = small_model("paper").to(dtype)
    model.save_pretrained(tmp_path)
    table = EmbeddingTable(tmp_path / "model.safetensors")
    ids = np.array([3, 96, 3, 0])
    np.testing.assert_array_equal(
        table[ids], model.embed.weight[torch.from_numpy(ids)].detach().float().numpy()
    )


def test_the_table_has_int8_rows_times_their_scales(tmp_path: Path) -> None:
    small_model("paper").save_pretrained(tmp_path)
    store_table_in_int8(tmp_path)
    table, stored = (
        EmbeddingTable(tmp_path / "model.safetensors"),
        load_file(tmp_path / "model.safetensors"),
    )
    ids = np.array([3, 96, 3, 0])
    wanted = stored["embed.weight"].float() * stored["embed.scale"]
    np.testing.assert_array_equal(table[ids], wanted[torch.from_numpy(ids)].numpy())


DAMAGED = r"model\.safetensors: .*(cut short|copy it again)"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", DAMAGED),
        (lambda data: data[:7], DAMAGED),
        (lambda data: data[:40], DAMAGED),
        (lambda data: data[: len(data) // 2], DAMAGED),
        (lambda data: (1 << 40).to_bytes(8, "little") + data[8:], ""),
    ],
    ids=["empty", "7 bytes", "40 bytes", "half", "an endless header"],
)
def test_a_damaged_checkpoint_is_named(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    small_model("paper").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=message):
        EmbeddingTable(path)
