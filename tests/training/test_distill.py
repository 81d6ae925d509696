import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import TrainerState

from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training import distill
from aveyb_retrieval.training.distill import DistillationLoss, batch_scores, train_distill
from aveyb_retrieval.training.run_folder import TrainingRun, last_checkpoint
from aveyb_retrieval.training.sentence_trainer import sentence_model, train_sentence_model
from aveyb_retrieval.training.settings import DistillSettings
from tests.refusals import Refusal, refusals

from .conftest import SENTENCES, in_two_processes, make_student
from .test_mlm import StopAfter, same, same_to

TEXTS = SENTENCES[:48]
SETTINGS = DistillSettings(
    steps=6,
    batch_size=8,
    learning_rate=3e-3,
    schedule="linear",
    precision="float32",
    log_every=1,
    save_every=100,
)
DATA = {"text": "written in the tests"}


@pytest.fixture(scope="module")
def teacher(tokenizer: AveyBTokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("teacher")
    make_student(folder, tokenizer, seed=9, hidden_size=48)
    return str(folder)


class Echo(torch.nn.Module):
    """A student whose vectors are given."""

    device = torch.device("cpu")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def get_embedding_dimension(self) -> int:
        return self.dim

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": torch.nn.functional.normalize(features["given"], dim=-1)}


def unit(rows: int, dim: int, seed: int) -> torch.Tensor:
    return torch.nn.functional.normalize(
        torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)), dim=-1
    )


def with_identity(loss: DistillationLoss) -> DistillationLoss:
    """The loss with a head that changes nothing."""
    torch.nn.init.eye_(loss.head.weight)
    return loss


def distilled(
    tokenizer: AveyBTokenizer,
    teacher: str,
    folder: Path,
    settings: DistillSettings,
    *,
    resume: bool = False,
) -> SentenceTransformer:
    """A new student that learned TEXTS of a teacher, in a run folder."""
    student = make_student(folder.with_name(f"{folder.name}-start"), tokenizer)
    run = TrainingRun(folder, DATA, resume=resume, device="cpu")
    train_distill(student, TEXTS, teacher, run, settings=settings)
    return student


def test_a_perfect_student_has_no_loss() -> None:
    teachers = unit(6, 5, seed=0)
    loss = with_identity(DistillationLoss(Echo(5), teachers.numpy()))
    labels = torch.arange(6)[:, None]
    assert loss([{"given": teachers}], labels).item() == pytest.approx(0.0, abs=1e-6)
    pairs = torch.tensor([[0, 1], [2, 3], [4, 5]])
    features = [{"given": teachers[pairs[:, i]]} for i in (0, 1)]
    assert loss(features, pairs).item() == pytest.approx(0.0, abs=1e-6)


def test_terms_against_plain_formulas() -> None:
    students, teachers, temperature = unit(4, 5, seed=1), unit(8, 5, seed=2), 0.2
    rows = torch.tensor([[0, 1], [2, 3]])
    features = [{"given": students[:2]}, {"given": students[2:]}]

    def value(**weights: float) -> float:
        zero = {"vector_weight": 0.0, "score_weight": 0.0}
        loss = DistillationLoss(
            Echo(5), teachers.numpy(), temperature=temperature, **{**zero, **weights}
        )
        return with_identity(loss)(features, rows).item()

    matched = torch.cat([teachers[rows[:, 0]], teachers[rows[:, 1]]])
    assert value(vector_weight=2.0) == pytest.approx(
        2 * (1 - (students * matched).sum(1).mean()).item(), abs=1e-6
    )
    p = (teachers[rows[:, 0]] @ teachers[rows[:, 1]].T / temperature).softmax(1)
    q = (students[:2] @ students[2:].T / temperature).softmax(1)
    assert value(score_weight=1.0) == pytest.approx(
        (p * (p / q).log()).sum(1).mean().item(), abs=1e-6
    )


@pytest.mark.parametrize("texts", [1, 2])
def test_scores_are_float32_where_products_are_bfloat16(texts: int) -> None:
    vectors = [unit(4, 5, seed) for seed in range(texts)]
    with torch.autocast("cpu", torch.bfloat16):
        scores = batch_scores(vectors)
    assert scores.dtype == torch.float32 and torch.equal(scores, batch_scores(vectors))


def test_gradients_are_finite_for_single_texts() -> None:
    given = unit(5, 4, seed=3).requires_grad_()
    loss = DistillationLoss(Echo(4), unit(5, 6, seed=4).numpy())
    loss([{"given": given}], torch.arange(5)[:, None]).backward()
    assert (
        given.grad is not None and torch.isfinite(given.grad).all() and given.grad.abs().sum() > 0
    )


def distillation_loss(**options: float) -> DistillationLoss:
    """A loss over four teacher vectors of width 3."""
    return DistillationLoss(Echo(3), unit(4, 3, seed=0).numpy(), **options)


@refusals(
    {
        ConfigError: {
            "temperature is 0": lambda: distillation_loss(temperature=0),
            "nothing to learn": lambda: distillation_loss(vector_weight=0, score_weight=0),
        },
        InputError: {
            "1 texts and 2 teacher rows": lambda: distillation_loss()(
                [{"given": torch.ones(2, 3)}], torch.zeros(2, 2, dtype=torch.int64)
            ),
            "rows 1 to 4, there are 4": lambda: distillation_loss()(
                [{"given": torch.ones(2, 3)}], torch.tensor([[1], [4]])
            ),
        },
    }
)
def test_bad_losses_are_refused(refused: Refusal) -> None:
    refused()


def test_a_teacher_of_another_dimension(
    tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path
) -> None:
    make_student(tmp_path / "other", tokenizer, seed=9, hidden_size=40)

    settings = replace(SETTINGS, steps=2, save_every=1)

    def run(name: str, resume: bool = False) -> None:
        distilled(tokenizer, name, tmp_path / "run", settings, resume=resume)

    run(teacher)
    for resume in (False, True):
        with pytest.raises(InputError, match=r"'dim': 48.*'dim': 40"):
            run(str(tmp_path / "other"), resume)
    # The teacher's vectors replaced behind the run's back: its head has 48 outputs, the new vectors
    # 40.
    shutil.rmtree(tmp_path / "run" / "teacher")
    with pytest.raises(InputError, match="their shapes differ"):
        run(str(tmp_path / "other"), True)


def test_distillation_moves_the_student_towards_the_teacher(
    tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path
) -> None:
    student = make_student(tmp_path / "student", tokenizer)
    wanted = SentenceTransformer(teacher, device="cpu").encode(TEXTS)

    def agreement() -> float:
        mine = student.encode(TEXTS)
        upper = np.triu_indices(len(TEXTS), 1)
        return float(np.corrcoef((mine @ mine.T)[upper], (wanted @ wanted.T)[upper])[0, 1])

    before = agreement()
    settings = replace(SETTINGS, steps=60, batch_size=16, log_every=20)
    folder = train_distill(
        student,
        TEXTS,
        teacher,
        TrainingRun(tmp_path / "run", DATA, device="cpu"),
        settings=settings,
    )
    assert agreement() > before + 0.1
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["vector_weight"] == 5.0
    )
    again = SentenceTransformer(str(folder), device="cpu")
    assert np.allclose(again.encode(TEXTS), student.encode(TEXTS), atol=1e-5)


def test_interrupted_and_resumed_equals_unbroken(
    tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path
) -> None:
    def run(name: str, resume: bool = False) -> SentenceTransformer:
        return distilled(tokenizer, teacher, tmp_path / name, SETTINGS, resume=resume)

    whole = run("whole")
    with pytest.MonkeyPatch.context() as patch:
        StopAfter(patch, 3)
        run("broken")
    assert same(whole, run("broken", resume=True))


def test_a_checkpoint_that_a_killed_run_left_half_written_is_passed_over(
    tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, steps=3, save_every=1)

    def run(resume: bool = False) -> SentenceTransformer:
        return distilled(tokenizer, teacher, tmp_path / "run", settings, resume=resume)

    whole, newest = run(), tmp_path / "run" / "checkpoints" / "checkpoint-3"
    for path in newest.rglob("*.*"):
        if path.is_file() and path.name != "config.json":
            path.unlink()
    assert same(whole, run(resume=True)) and (newest / "trainer_state.json").is_file()
    for path in newest.parent.glob("*/trainer_state.json"):
        path.unlink()
    with pytest.raises(InputError, match="holds no checkpoint to resume from: start the run again"):
        run(resume=True)


class Killed(BaseException):
    """What stands for the end of the process."""


def killed_while_saving(patch: pytest.MonkeyPatch, step: int, when: str) -> None:
    """Kill a run at the last file of a checkpoint: before, within or behind it."""
    original = TrainerState.save_to_json

    def save(state: TrainerState, path: str) -> None:
        if state.global_step < step:
            original(state, path)
            return
        if when != "before":
            original(state, path)
        if when == "within":
            whole = Path(path).read_text()
            Path(path).write_text(whole[: len(whole) // 2])
        raise Killed

    patch.setattr(TrainerState, "save_to_json", save)


@pytest.mark.parametrize("when", ["before", "within", "behind"])
def test_a_run_killed_around_the_end_of_a_checkpoint_is_resumed(
    when: str, tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, steps=4, save_every=1, keep=1)

    def run(name: str, resume: bool = False) -> SentenceTransformer:
        return distilled(tokenizer, teacher, tmp_path / name, settings, resume=resume)

    whole = run("whole")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        killed_while_saving(patch, 3, when)
        run("broken")
    newest = last_checkpoint(tmp_path / "broken" / "checkpoints")
    assert newest.endswith("-3" if when == "behind" else "-2")
    assert (Path(newest) / "loss.safetensors").is_file()
    assert same(whole, run("broken", resume=True))


def test_a_checkpoint_without_the_head_is_passed_over(
    tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, steps=3, save_every=1)

    def run(resume: bool = False) -> SentenceTransformer:
        return distilled(tokenizer, teacher, tmp_path / "run", settings, resume=resume)

    whole = run()
    (tmp_path / "run" / "checkpoints" / "checkpoint-3" / "loss.safetensors").unlink()
    assert same(whole, run(resume=True))


@pytest.mark.parametrize("clip", [0.01, 0.0])
def test_the_limit_of_the_gradient_holds_for_the_head_and_the_model_together(
    clip: float, tokenizer: AveyBTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = make_student(tmp_path / "student", tokenizer)
    loss = DistillationLoss(student, unit(len(TEXTS), 24, seed=7).numpy())
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def watched(optimizer: torch.optim.AdamW, *arguments: object, **options: object) -> object:
        gradients = [p.grad.flatten() for p in loss.parameters() if p.grad is not None]
        norms.append(float(torch.cat(gradients).norm()))
        return step(optimizer, *arguments, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    rows = Dataset.from_list([{"text": text, "label": [i]} for i, text in enumerate(TEXTS)])
    settings = replace(SETTINGS, steps=3, clip=clip)
    train_sentence_model(
        student,
        {"t": rows},
        loss,
        TrainingRun(tmp_path / "run", DATA, device="cpu"),
        title="x",
        settings=settings,
    )
    assert len(norms) == 3
    if clip:
        assert norms == pytest.approx([clip] * 3, rel=1e-3)
    else:
        assert min(norms) > 0.1


def two_process_run(folder: Path) -> None:
    """What each of two processes does: batches of pairs and of single texts, both terms of the
    loss.
    """
    tokenizer, name = AveyBTokenizer.load(folder / "vocabulary"), os.environ.get("WORLD_SIZE", "1")
    student = make_student(folder / f"{name}-start-{os.environ.get('RANK')}", tokenizer)
    torch.manual_seed(5)
    loss = DistillationLoss(student, np.load(folder / "teacher.npy"), temperature=0.2)
    pairs = [
        {"anchor": TEXTS[i], "positive": TEXTS[i + 1], "label": [i, i + 1]} for i in range(0, 40, 2)
    ]
    single = [{"text": text, "label": [i]} for i, text in enumerate(TEXTS)]
    train_sentence_model(
        student,
        {"pairs": Dataset.from_list(pairs), "single": Dataset.from_list(single)},
        loss,
        TrainingRun(folder / name, DATA, device="cpu"),
        title="two processes",
        settings=replace(SETTINGS, steps=20, save_every=20),
    )


@pytest.mark.slow
def test_two_processes_equal_one(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "vocabulary")
    np.save(tmp_path / "teacher.npy", unit(len(TEXTS), 24, seed=7).numpy())
    two_process_run(tmp_path)
    in_two_processes(two_process_run, tmp_path)
    same_to(1e-5, tmp_path / "1" / "model", tmp_path / "2" / "model")
    heads = [
        load_file(tmp_path / n / "checkpoints/checkpoint-20/loss.safetensors")["head.weight"]
        for n in "12"
    ]
    assert torch.allclose(*heads, atol=1e-5)


def test_too_few_texts(tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path) -> None:
    student = make_student(tmp_path / "student", tokenizer)
    with pytest.raises(InputError, match="2 texts are less than one batch of 8"):
        train_distill(
            student,
            ["one", "two", " "],
            teacher,
            TrainingRun(tmp_path / "run", DATA, device="cpu"),
            settings=SETTINGS,
        )


@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_teacher_runs_where_the_student_does(
    tokenizer: AveyBTokenizer,
    teacher: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str | None,
) -> None:
    asked: list[str | None] = []

    def load(model: str, *, device: str | None, max_tokens: int) -> None:
        asked.append(device)
        raise KeyboardInterrupt

    monkeypatch.setattr("aveyb_retrieval.training.teacher.load_teacher", load)
    student = make_student(tmp_path / "student", tokenizer)
    with pytest.raises(KeyboardInterrupt):
        train_distill(
            student,
            TEXTS,
            teacher,
            TrainingRun(tmp_path / "run", DATA, device=device),
            settings=SETTINGS,
        )
    assert asked == [device]


def test_sentence_model_views_any_folder(
    tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path
) -> None:
    view, own = sentence_model(teacher, tmp_path / "view", {"query": "ask: "})
    assert view.prompts == {"query": "ask: ", "document": ""}
    assert view.get_embedding_dimension() == 48
    assert own.ranks == tokenizer.ranks


def test_a_student_reads_its_own_prompts(
    tokenizer: AveyBTokenizer, teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = make_student(tmp_path / "student", tokenizer)
    student.prompts = {"query": "q: ", "document": "d: "}
    asked: dict[str, object] = {}
    monkeypatch.setattr(
        distill, "train_sentence_model", lambda *_, **options: asked.update(options)
    )
    train_distill(
        student,
        TEXTS,
        teacher,
        TrainingRun(tmp_path / "run", DATA, device="cpu"),
        settings=SETTINGS,
    )
    assert asked["prompts"] == {"text": "d: ", "query": "q: "}
