"""The plain loop: it learns, stops in time, and a killed run ends with the weights of an unbroken one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training import packed_loop
from aveyb_retrieval.training.losses import fit_head
from aveyb_retrieval.training.packed import PackedTexts
from aveyb_retrieval.training.packed_loop import train_packed
from aveyb_retrieval.training.run_folder import read_metrics
from aveyb_retrieval.training.settings import PackedSettings

from .conftest import tiny_config
from .test_mlm import same
from .test_packed import pack

SETTINGS = PackedSettings(
    steps=9, batch_size=4, learning_rate=3e-3, precision="float32", log_every=1, save_every=2, seed=1
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> PackedTexts:
    folder = tmp_path_factory.mktemp("packed")
    pack(folder)
    return PackedTexts.load(folder)


def fresh(**changes: object) -> AveyBModel:
    torch.manual_seed(0)
    return AveyBModel(tiny_config(**changes))


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the run as a kill would, after the forward pass of a step."""
    check = packed_loop.check_loss

    def killed(loss: torch.Tensor, number: int, checkpoints: Path) -> None:
        if number == step:
            raise KeyboardInterrupt
        check(loss, number, checkpoints)

    monkeypatch.setattr(packed_loop, "check_loss", killed)


@pytest.mark.parametrize("optimizer", ["adamw", "stable_adamw"])
def test_killed_and_continued_equals_unbroken(texts: PackedTexts, tmp_path: Path, optimizer: str) -> None:
    settings = replace(SETTINGS, optimizer=optimizer)
    whole = fresh()
    assert train_packed(whole, texts, tmp_path / "whole", settings=settings) == 9
    for step in (2, 6):  # before the first checkpoint after the start, and between two
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, step)
            with pytest.raises(KeyboardInterrupt):
                train_packed(fresh(), texts, tmp_path / "broken", settings=settings)
        assert not (tmp_path / "broken" / "model").exists()
    assert train_packed(fresh(), texts, tmp_path / "broken", settings=settings, minutes=0) == 4
    continued = fresh()
    assert train_packed(continued, texts, tmp_path / "broken", settings=settings) == 9
    assert same(whole, continued)
    names = ("model/model.safetensors", "model/head.safetensors")
    for left, right in ((load_file(tmp_path / run / name) for run in ("whole", "broken")) for name in names):
        assert all(left[key].equal(right[key]) for key in left)
    losses = [[m["loss"] for m in read_metrics(tmp_path / run / "metrics.jsonl")] for run in ("whole", "broken")]
    assert losses[0] == losses[1] and len(losses[0]) == 9
    kept = sorted(path.name for path in (tmp_path / "broken" / "checkpoints").iterdir())
    assert kept == ["checkpoint-8", "checkpoint-9"]


def test_it_learns(texts: PackedTexts, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=120, learning_rate=1e-2, log_every=20, save_every=200)
    train_packed(fresh(), texts, tmp_path, settings=settings)
    losses = [m["loss"] for m in read_metrics(tmp_path / "metrics.jsonl")]
    assert losses[-1] < 0.8 * losses[0]


def test_another_run_is_refused(texts: PackedTexts, tmp_path: Path) -> None:
    train_packed(fresh(), texts, tmp_path, settings=SETTINGS, minutes=0)
    with pytest.raises(ConfigError, match=r"learning_rate = 0\.003, now it is 0\.1"):
        train_packed(fresh(), texts, tmp_path, settings=replace(SETTINGS, learning_rate=0.1))
    with pytest.raises(InputError, match="data texts"):
        train_packed(fresh(), replace(texts, facts={**texts.facts, "texts": "others"}), tmp_path, settings=SETTINGS)
    with pytest.raises(InputError, match="belongs to a model of other sizes"):
        train_packed(fresh(hidden_size=48), texts, tmp_path, settings=SETTINGS)
    train_packed(fresh(), texts, tmp_path, settings=replace(SETTINGS, save_every=5, keep=1))


def test_the_head_is_the_ridge_solution() -> None:
    generator = torch.Generator().manual_seed(0)
    students, true = torch.randn(200, 6, generator=generator), torch.randn(9, 6, generator=generator)
    assert torch.allclose(fit_head(students, students @ true.T, ridge=1e-9), true, atol=1e-4)
    assert fit_head(students, students @ true.T, ridge=10.0).norm() < true.norm()
