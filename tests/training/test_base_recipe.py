"""The recipe of the embedded model at toy size: texts, a student, whole documents, and the form
that ships.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import zstandard
from click.testing import CliRunner

from aveyb_retrieval import Embedder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.passages import PassageSize
from tests.jsonl import write_jsonl

from ..wordpiece import save_teacher
from .conftest import RECIPES, SENTENCES, tiny_config

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

RECORD = {
    "title": "Mills",
    "text": "".join(f"\n# Part {i}\n" + " ".join(SENTENCES[9 * i : 9 * i + 9]) for i in range(12)),
}


def recipe(name: str) -> ModuleType:
    return importlib.import_module(name)


def run(name: str, *arguments: object, code: int = 0) -> str:
    found = CliRunner().invoke(recipe(name).main, list(map(str, arguments)))
    assert found.exit_code == code, (found.output, found.exception)
    return found.output


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student that has a teacher's vocabulary and embeddings, and has learned nothing."""
    folder = tmp_path_factory.mktemp("student")
    run("student", save_teacher(folder / "teacher", SENTENCES), folder / "model")
    return folder / "model"


def with_questions() -> dict[str, object]:
    text = RECORD["text"]
    places = [text.index(f"# Part {i}") for i in range(12)] + [len(text)]
    asked = [{"query": SENTENCES[9 * i], "span": places[i : i + 2]} for i in range(12)]
    return RECORD | {"questions": asked}


def test_a_student_opens_and_ships_with_its_embeddings_once(student: Path, tmp_path: Path) -> None:
    assert "is there already" in run("student", student.with_name("teacher"), student, code=2)
    small = tmp_path / "small"
    assert "model_int8.onnx" in run("shrink", student, small)
    before, after = Embedder.load(student, precision="float32"), Embedder.load(small)
    assert after.precision == "int8"
    assert (before.encode_queries(SENTENCES[:5]) * after.encode_queries(SENTENCES[:5])).sum(
        1
    ).min() > 0.995
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (student, small)]
    assert sizes[1] < 0.55 * sizes[0]
    assert "is there already" in run("shrink", student, small, code=2)
    for name in (small, tmp_path):  # no BERT, nothing
        shutil.copy(student / "tokenizer.json", name)
        assert "no BERT can be loaded from it" in run("student", name, tmp_path / "none", code=2)


def test_a_step_has_the_vectors_of_an_index(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    documents = recipe("documents")
    torch.manual_seed(0)
    model = AveyBModel(tiny_config(split_size=64, num_retrieved=0)).eval()
    sentence_transformer(model, tokenizer, tmp_path / "model")
    document = documents.read_document(tokenizer, with_questions(), 64)
    steps = documents.Steps([document], [document.ids[:9]], 64, 1000)
    rng = np.random.default_rng(0)
    drawn = [steps.draw(1, rng) for _ in range(6)]
    assert {len(step.runs) for step in drawn} == {len(ends) for ends in document.ends}
    for size in documents.SIZES:
        embedder = Embedder.load(tmp_path / "model", precision="float32").with_passage_size(
            PassageSize(size)
        )
        (exact,) = embedder.encode_documents([(f"{RECORD['title']}\n", RECORD["text"])])
        step = next(step for step in drawn if len(step.runs) == len(exact.passages))
        with torch.no_grad():
            own = documents.passage_vectors(model, step).numpy()
        np.testing.assert_allclose(own, exact.passages, atol=1e-5)
        assert all(first < last for first, last in step.places)


TEACHERS = ("all-MiniLM-L6-v2", "all-mpnet-base-v2", "snowflake-arctic-embed-xs", "e5-small-v2")


@pytest.mark.slow
def test_the_whole_recipe_runs_from_toy_teachers_and_goes_on_where_it_was_killed(
    tmp_path: Path,
) -> None:
    """Teachers of other widths, with other vocabularies; what a killed stage leaves is in its
    place.
    """
    for i, name in enumerate(TEACHERS):
        save_teacher(tmp_path / "teachers" / name, SENTENCES[i:], width=32 + 8 * i, seed=i)
    work = tmp_path / "work"
    for left in ("start.part", "documents.part", "model.part", "distilled/checkpoints"):
        (work / left).mkdir(parents=True)
    rows = {
        "texts": [{"text": text} for text in SENTENCES[:60]],
        "queries": [{"text": text} for text in SENTENCES[60:90]],
        "documents": [with_questions()],
    }
    for name, lines in rows.items():
        write_jsonl(work / f"{name}.jsonl", lines)
    settings = {
        "WORK": str(work),
        "TEACHERS": str(tmp_path / "teachers"),
        "DATA": "",
        "PYTHON": sys.executable,
        "DISTILL": "--steps 2 --batch-size 8 --save-every 1 --device cpu --precision float32",
        "DOCUMENTS": "--steps 1 --step-tokens 600 --run-splits 2 --device cpu",
        "PYTHONPATH": str(RECIPES.parent),
        "OMP_NUM_THREADS": "1",
    }
    command = ["sh", str(RECIPES / "aveyb-base-en" / "run.sh")]

    def made() -> str:
        done = subprocess.run(
            command, env=os.environ | settings, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    made()
    assert Embedder.load(work / "model").encode_queries(["the mill"]).shape == (1, 32)
    assert not [*work.glob("*.part")]
    first = (work / "model" / "model.safetensors").read_bytes()
    (work / "distilled" / "README.md").unlink()  # killed as it wrote the model
    shutil.rmtree(work / "documents")
    shutil.rmtree(work / "model")
    assert "step 1/2" not in made()
    assert (work / "model" / "model.safetensors").read_bytes() == first


def test_documents_are_learned_and_the_rest_is_held(student: Path, tmp_path: Path) -> None:
    documents = recipe("documents")
    tokenizer, model = (
        documents.read_vocabulary(student),
        AveyBModel.from_pretrained(student).train(),
    )
    document = documents.read_document(tokenizer, with_questions(), 256)
    texts = [tokenizer.encode_ids(text).astype(np.int64) for text in SENTENCES[:30]]
    steps = documents.Steps([document], texts, 256, 3)
    step, frozen = steps.draw(700, np.random.default_rng(5)), copy.deepcopy(model)
    with torch.no_grad():
        before = float(documents.step_loss(model, frozen, step))
    start = documents.train(model, steps, count=40, tokens=700, learning_rate=3e-3, seed=0)
    with torch.no_grad():
        assert float(documents.step_loss(model, frozen, step)) < 0.9 * before
    assert torch.equal(model.embed.weight, frozen.embed.weight) and not model.ranker.down_proj.any()
    mean = documents.mean_of(model, start, 0.5)
    weights = [part.layers[0].fuser.weight for part in (model, frozen, mean)]
    assert torch.allclose(weights[2], (weights[0] + weights[1]) / 2)


def test_documents_are_read_from_files(student: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "documents.jsonl", [with_questions()])
    write_jsonl(tmp_path / "texts.jsonl", ({"text": text} for text in SENTENCES[:9]))
    options = [
        "--texts",
        tmp_path / "texts.jsonl",
        "--model",
        student,
        "--out",
        tmp_path / "out",
        "--steps",
        1,
    ]
    options += [
        "--step-tokens",
        600,
        "--run-splits",
        2,
        "--documents",
        tmp_path / "documents.jsonl",
    ]
    assert "1 steps over 1 documents" in run("documents", *options)
    assert Embedder.load(tmp_path / "out", precision="float32").encode_queries(["part"]).shape == (
        1,
        32,
    )
    assert "is there already" in run("documents", *options, code=2)
    (tmp_path / "documents.jsonl").write_text(json.dumps(RECORD | {"questions": []}) + "\n")
    options[options.index(tmp_path / "out")] = tmp_path / "again"
    assert "0 documents of several passages" in run("documents", *options, code=2)


def test_texts_leave_out_what_evaluation_needs(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, sources = recipe("texts"), recipe("sources")
    for name, value in {"TRAIN_SETS": ["one"], "PRETRAIN": [], "EVAL_ONLY": []}.items():
        monkeypatch.setattr(sources, name, value)
        monkeypatch.setattr(texts, name, value, raising=False)
    monkeypatch.setattr(texts, "TEXTS", ("articles",))
    monkeypatch.setattr(texts, "DOCUMENTS", ())
    monkeypatch.setattr(texts, "PAIRS", ())
    (tmp_path / "one" / "qrels").mkdir(parents=True)
    (tmp_path / "train").mkdir()
    secret, open_text = " ".join(f"secret {i}" for i in range(9)), " ".join(SENTENCES[60:66])
    for name, rows in {
        "corpus": [{"_id": "a", "text": secret}, {"_id": "b", "text": open_text}],
        "queries": [
            {"_id": "1", "text": "what is kept secret here"},
            {"_id": "2", "text": "who paints a gate"},
        ],
    }.items():
        write_jsonl(tmp_path / "one" / f"{name}.jsonl", rows)
    for split, line in {"test": "1\ta\t1", "train": "2\tb\t1"}.items():
        (tmp_path / "one" / "qrels" / f"{split}.tsv").write_text(
            f"query-id\tcorpus-id\tscore\n{line}\n"
        )
    articles = [{"text": f"Quoted: {secret}"}, RECORD]
    lines = "".join(json.dumps(row) + "\n" for row in articles).encode()
    (tmp_path / "train" / "articles.jsonl.zst").write_bytes(zstandard.compress(lines))
    run("texts", "--data", tmp_path, "--vocabulary", student, "--out", tmp_path / "out")
    found = {
        name: [
            json.loads(line)
            for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
        ]
        for name in ("texts", "queries", "documents")
    }
    everything = json.dumps(found)
    assert secret not in everything and open_text in [row["text"] for row in found["texts"]]
    asked = [row["text"] for row in found["queries"]]
    assert "Mills: Part 3" in asked and "what is kept secret here" not in asked
    assert [document["title"] for document in found["documents"]] == ["Mills"]


def test_stable_adamw_is_adamw_but_for_a_sudden_gradient() -> None:
    kinds = (torch.optim.AdamW, recipe("muon").StableAdamW)
    weights = [torch.nn.Parameter(torch.arange(1.0, 5.0)) for _ in kinds]
    # on the first step g^2 / v is one everywhere
    for weight, kind in zip(weights, kinds, strict=True):
        (weight**2).sum().backward()
        kind([weight], lr=0.1, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1).step()
    assert torch.allclose(*weights, atol=1e-6)
    steps = []
    for kind in kinds:
        weight = torch.nn.Parameter(torch.zeros(8))
        optimizer = kind([weight], lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        for size in [1e-3] * 20 + [1.0]:
            before = weight.detach().clone()
            weight.grad = torch.full((8,), size)
            optimizer.step()
        steps.append((weight.detach() - before).abs().max().item())
    assert steps[1] < 0.5 * steps[0]
