"""The plain loop: it learns, stops in time, and a killed run ends with the weights of an unbroken one."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import packed_loop
import pytest
import torch
from heads import fit_head
from packed import BatchOrder, PackedTexts
from packed_loop import train_packed
from packed_settings import PackedSettings
from pairs import pair_loss
from safetensors.torch import load_file
from teacher_tokens import TokenVectors
from torch import nn

from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.run_folder import read_metrics

from .conftest import RECIPES, tiny_config
from .test_mlm import same
from .test_packed import DIM, pack

SETTINGS = PackedSettings(
    steps=9, batch_size=4, learning_rate=3e-3, precision="float32", log_every=1, save_every=2, seed=1
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> PackedTexts:
    folder = tmp_path_factory.mktemp("packed")
    pack(folder)
    return PackedTexts.load(folder)


@pytest.fixture(scope="module")
def labelled(texts: PackedTexts) -> PackedTexts:
    """The texts with a vector for every token, the same wherever it occurs; every seventh has none."""
    table = np.random.default_rng(1).normal(size=(300, DIM))
    scales, tokens = np.full(len(texts.ids), 0.01, np.float16), np.rint(table * 40).clip(-127, 127).astype(np.int8)
    scales[::7] = 0
    half = len(scales) // 2
    parts = [slice(0, half), slice(half, None)]
    found = [tokens[texts.ids[part]] for part in parts], [scales[part] for part in parts]
    return texts.with_tokens(TokenVectors(*found, np.array([0, half, len(scales)])))


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


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": "stable_adamw"}, {"embedding_rate": 4.0, "similar": True}], ids=str
)
def test_killed_and_continued_equals_unbroken(texts: PackedTexts, tmp_path: Path, changes: dict) -> None:
    settings = replace(SETTINGS, **changes)
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


def test_tokens_are_learnt_where_the_head_is_a_rotation(labelled: PackedTexts, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=80, learning_rate=1e-2, log_every=20, head="rotation", token_weight=5.0)
    settings = replace(settings, vector_weight=0.0, score_weight=0.0, pair_weight=0.0)
    train_packed(fresh(hidden_size=16), labelled, tmp_path / "run", settings=settings)
    losses = [m["loss"] for m in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert losses[-1] < 0.7 * losses[0]
    head = load_file(tmp_path / "run" / "model" / "head.safetensors")["head"]
    assert torch.allclose(head.T @ head, torch.eye(16), atol=1e-5)  # a rotation, and still the one that it began with
    for bad, texts in (({"head": "linear"}, labelled), ({}, replace(labelled, tokens=None))):
        with pytest.raises(ConfigError, match=r"token_weight is 5\.0, which needs"):
            train_packed(fresh(hidden_size=16), texts, tmp_path / "bad", settings=replace(settings, **bad))


def test_batches_keep_to_their_tokens(texts: PackedTexts, tmp_path: Path) -> None:
    order = BatchOrder(texts, 64, seed=0, batch_tokens=60)
    batches = [order[number] for number in range(order.epoch_end(0))]
    sizes = [int(texts.lengths[rows].sum()) for rows in batches]
    assert max(sizes) <= 60 and len(batches) > 5
    assert sorted(row for rows in batches for row in rows.ravel().tolist()) == list(range(50))
    again = BatchOrder(texts, 64, seed=0, batch_tokens=60)
    later = order.epoch_end(0) + 2
    assert again[later].tolist() == order[later].tolist()


@pytest.mark.slow
def test_two_processes_agree_and_continue_as_they_began(tmp_path: Path) -> None:
    pack(tmp_path / "packed")
    fresh().save_pretrained(tmp_path / "model")
    script = Path(__file__).with_name("two_processes.py")

    def train(name: str, minutes: str = "") -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
        folders = (tmp_path / "model", tmp_path / "packed", tmp_path / name)
        path = os.pathsep.join([str(RECIPES / "aveyb-small-en"), str(RECIPES.parent)])
        environment = os.environ | {"PYTHONPATH": path}
        subprocess.run([*command, *map(str, folders), minutes], check=True, capture_output=True, env=environment)

    train("whole")
    train("broken", "0.0")
    assert not (tmp_path / "broken" / "model").exists()
    train("broken")
    left, right = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "broken"))
    assert all(left[key].equal(right[key]) for key in left)
    losses = [m["loss"] for m in read_metrics(tmp_path / "whole" / "metrics.jsonl")]
    assert len(losses) == 6 and losses == [m["loss"] for m in read_metrics(tmp_path / "broken" / "metrics.jsonl")]
    with pytest.raises(ConfigError, match="processes = 2, now it is 1"):
        settings = PackedSettings(
            steps=6, batch_size=6, learning_rate=3e-3, precision="float32", log_every=1, save_every=2, seed=1
        )
        train_packed(fresh(), PackedTexts.load(tmp_path / "packed"), tmp_path / "whole", settings=settings)


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


def test_a_token_embedding_may_have_a_rate_of_its_own() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))
    matrices, vectors, tables = packed_loop.rated_groups(model, replace(SETTINGS, embedding_rate=5.0))
    assert tables["params"] == [model[0].weight] and matrices["params"] == [model[1].weight]
    assert vectors["params"] == [model[1].bias]
    assert [group["rate"] for group in (matrices, vectors, tables)] == [1.0, 1.0, 5.0]
    assert [group["weight_decay"] for group in (matrices, vectors, tables)] == [0.01, 0.0, 0.01]
    assert len(packed_loop.rated_groups(model, SETTINGS)) == 2


def test_the_head_is_the_ridge_solution() -> None:
    generator = torch.Generator().manual_seed(0)
    students, true = torch.randn(200, 6, generator=generator), torch.randn(9, 6, generator=generator)
    assert torch.allclose(fit_head(students, students @ true.T, ridge=1e-9), true, atol=1e-4)
    assert fit_head(students, students @ true.T, ridge=10.0).norm() < true.norm()


def test_a_passage_of_two_questions_is_no_negative() -> None:
    students, teachers = torch.eye(3), torch.eye(3)
    apart = pair_loss(students, teachers, 0.1)
    teachers[0, 1] = 1.0  # the second passage is as near to the first question as its own
    students[0, 1] = 1.0
    assert pair_loss(students, teachers, 0.1) == pytest.approx(apart.item(), abs=1e-4)
    teachers[0, 1] = 0.5
    assert pair_loss(students, teachers, 0.1) > 0.2
