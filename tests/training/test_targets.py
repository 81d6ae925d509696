"""Several teachers at once: what a student learns of them, and that it does."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.distill import rows_to_learn, train_distill
from aveyb_retrieval.training.run_folder import TrainingRun
from aveyb_retrieval.training.settings import DistillSettings
from aveyb_retrieval.training.teacher import (
    Targets,
    Teacher,
    centred,
    phrases,
    read_targets,
    turned,
    unit,
)
from tests.refusals import Refusal, refusals

from .conftest import SENTENCES, make_student

TEXTS, QUERIES = SENTENCES[:40], [" ".join(text.split()[:4]) for text in SENTENCES[5:17]]
SETTINGS = DistillSettings(
    steps=40,
    batch_size=12,
    learning_rate=3e-3,
    schedule="linear",
    precision="float32",
    log_every=20,
    near=3,
)


@pytest.fixture(scope="module")
def teachers(tokenizer: AveyBTokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[Teacher]:
    """Two of other widths, of which one reads with prompts."""
    found = []
    for width, prompts in ((48, None), (40, ("who: ", ""))):
        folder = tmp_path_factory.mktemp("teachers") / str(width)
        make_student(folder, tokenizer, seed=width, hidden_size=width)
        found.append(Teacher(str(folder), prompts))
    return found


def read(teachers: list[Teacher], folder: Path) -> Targets:
    return read_targets(teachers, TEXTS, QUERIES, folder, dim=32, seed=SETTINGS.seed, device="cpu")


def test_what_all_texts_share_counts_for_nothing() -> None:
    one, rng = np.ones(8), np.random.default_rng(0)
    own = rng.normal(size=(50, 8))
    moved = unit(own - own.mean(0))
    assert np.allclose(centred(own + 9 * one), moved, atol=2e-3)
    both = np.concatenate([moved, moved], axis=1)
    kept = turned(both, 8, 0).astype(np.float64)
    assert kept.shape == (50, 8) and np.allclose(kept @ kept.T, moved @ moved.T, atol=5e-3)


def test_a_query_goes_with_a_text_near_it() -> None:
    vectors = unit(np.random.default_rng(1).normal(size=(30, 6)))
    targets = Targets(vectors.astype(np.float16), 20)
    cosines = vectors[20:] @ vectors[:20].T
    assert np.array_equal(targets.near(1, 0), cosines.argmax(1))
    ranks = (cosines > cosines[np.arange(10), targets.near(4, 0)][:, None]).sum(1)
    assert ranks.max() == 3 and len({*ranks}) > 1
    assert np.array_equal(targets.near(4, 0), targets.near(4, 0))


def test_phrases_are_runs_of_words_of_texts_that_are_long_enough() -> None:
    long = " ".join(f"w{i}" for i in range(30))
    drawn = phrases(["too short", long], 20, 0)
    assert len(drawn) == 20 and all(
        phrase in long and 3 <= len(phrase.split()) <= 16 for phrase in drawn
    )
    assert drawn == phrases(["too short", long], 20, 0) != phrases(["too short", long], 20, 1)


def test_a_student_learns_what_two_teachers_say(
    tokenizer: AveyBTokenizer, teachers: list[Teacher], tmp_path: Path
) -> None:
    student = make_student(tmp_path / "student", tokenizer)
    targets = read(teachers, tmp_path / "run")
    assert targets.vectors.shape == (len(TEXTS) + len(QUERIES), 32)
    upper = np.triu_indices(len(targets.vectors), 1)
    wanted = (targets.vectors.astype(np.float32) @ targets.vectors.astype(np.float32).T)[upper]

    def agreement() -> float:
        own = student.encode([*TEXTS, *QUERIES])
        return float(np.corrcoef((own @ own.T)[upper], wanted)[0, 1])

    before = agreement()
    train_distill(
        student,
        [*TEXTS, ""],
        teachers,
        TrainingRun(tmp_path / "run", {}, device="cpu"),
        queries=[*QUERIES, " "],
        settings=SETTINGS,
    )
    assert agreement() > before + 0.1


def test_rows_name_their_targets(teachers: list[Teacher], tmp_path: Path) -> None:
    targets = read(teachers, tmp_path)
    rows = rows_to_learn(TEXTS, QUERIES, targets, SETTINGS)
    assert [row["label"] for row in rows["texts"]] == [[i] for i in range(len(TEXTS))]
    for i, row in enumerate(rows["queries"]):
        query, text = row["label"]
        assert query == len(TEXTS) + i and row["query"] == QUERIES[i] and row["text"] == TEXTS[text]
    alone = rows_to_learn(TEXTS, QUERIES, targets, replace(SETTINGS, near=0))["queries"]
    assert alone[2] == {"query": QUERIES[2], "label": [len(TEXTS) + 2]}


def distill_without_queries(
    student: SentenceTransformer, teachers: list[Teacher], folder: Path, **options: Any
) -> None:
    run = TrainingRun(folder, {}, device="cpu")
    train_distill(student, TEXTS, teachers, run, settings=SETTINGS, **options)


@refusals(
    {
        ConfigError: {
            "name each one once": lambda _, teachers, folder: read([teachers[0]] * 2, folder),
            "near is 3, but there are no queries": [
                distill_without_queries,
                partial(distill_without_queries, queries=[" "]),
            ],
        },
    }
)
def test_what_cannot_be_learned_is_refused(
    tokenizer: AveyBTokenizer, teachers: list[Teacher], tmp_path: Path, refused: Refusal
) -> None:
    refused(make_student(tmp_path / "student", tokenizer), teachers, tmp_path / "run")
    assert not (tmp_path / "run").exists()
