"""The recipe of aveyb-small-en from raw texts to a model, at toy size, and the limits of its plan for a GPU."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import packed_loop
import pytest
import torch
import zstandard
from click import Abort, UsageError
from packed import MANIFEST, PackedTexts
from safetensors.torch import load_file

from aveyb_retrieval.documents.records import prefix_of
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.passages import PassageSize
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.text.wordpiece import Tokenizer, WordPieceTokenizer
from aveyb_retrieval.errors import ConfigError, InputError

from ..wordpiece import save_vocabulary
from .conftest import RECIPES, SENTENCES, tiny_config

RECIPE = RECIPES / "aveyb-small-en"
SPLIT = 32
SETS = ("medquad", "scifact", "qmsum-long", "openstax-ccby-long", "cranfield", "nq-gold")
SOURCES = (
    "100_english_novels", "dc_code", "eltec_eng", "ethereum_eips", "kubernetes_keps", "ms_cpp_docs",
    "ms_powershell_docs", "ms_win32", "ms_windows_driver_docs", "php_manual", "python_peps", "rust_rfcs",
)  # fmt: skip
HELD_OUT = "Nobody who trains a model may see this answer, for it belongs to a test question that counts."


@pytest.fixture
def stage() -> Callable[[str], ModuleType]:
    """Import a stage of the recipe by its name."""
    return importlib.import_module


@pytest.fixture
def tokenizer(tokenizer: AveyBTokenizer, request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    """The tiny vocabulary, or by the parameter "wordpiece" one of BERT's kind."""
    if getattr(request, "param", "bytes") == "bytes":
        return tokenizer
    save_vocabulary(tmp_path / "bert", SENTENCES)
    return WordPieceTokenizer.load(tmp_path / "bert")


def run(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


def write(path: Path, records: list[dict]) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The files of the data folder, with texts of our own."""
    root = tmp_path / "data"
    folder = root / "train"
    folder.mkdir(parents=True)
    body = "# Mornings\n" + " ".join(SENTENCES[:20]) + "\n## Later\n" + " ".join(SENTENCES[20:40])
    for name in ("wikipedia_articles.texts.0", "abstracts.texts", "papers_biomed.texts", "factbook.texts"):
        write(folder / f"{name}.jsonl.zst", [{"title": f"{name} {i}", "text": f"{i} {body}"} for i in range(2)])
    for name in ("openstax_books", "squad", "fairytale", "wikiqa"):
        write(folder / f"{name}.docs.jsonl.zst", [{"_id": name, "title": name, "text": body}])
        question = {"query": f"{name}: who crosses the river?", "document_id": name, "spans": [[12, 90]]}
        other = {**question, "query": f"{name}?", "spans": [[90, 200]]}
        write(folder / f"{name}.questions.jsonl.zst", [question, other])
    for name, first in (("qa", 50), ("trivia_wikipedia", 60), ("definitions", 70)):
        pairs = [{"query": f"{name} {i}?", "positive": SENTENCES[first + i]} for i in range(6)]
        write(folder / f"{name}.pairs.jsonl.zst", pairs)
    for name in SOURCES:
        (root / "pretrain").mkdir(exist_ok=True)
        write(root / "pretrain" / f"{name}.jsonl.zst", [{"text": f"{name}, page {i}. {body}"} for i in range(20)])
    for name in SETS:
        documents = [{"_id": f"d{i}", "title": f"{name} {i}", "text": f"{name}: {SENTENCES[80 + i]}"} for i in range(4)]
        documents[3]["text"] = HELD_OUT
        queries = [{"_id": f"q{i}", "text": f"{name}, question {i}"} for i in range(4)]
        for file, records in (("corpus", documents), ("queries", queries)):
            (root / name / "qrels").mkdir(parents=True, exist_ok=True)
            (root / name / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        for split, rows in (("train", (0, 1, 2, 3)), ("test", (3,))):
            lines = "".join(f"q{i}\td{i}\t1\n" for i in rows)
            (root / name / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return root


def test_from_texts_to_a_model(
    stage, data: Path, tokenizer: AveyBTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("make_texts", "label_texts", "pack_texts"):
        monkeypatch.setattr(stage(name), "SPLIT", SPLIT)
    vocabulary, teacher, start = tmp_path / "vocabulary", tmp_path / "teacher", tmp_path / "start"
    tokenizer.save(vocabulary)
    sentence_transformer(AveyBModel(tiny_config(hidden_size=48)), tokenizer, teacher)
    prompts = {"query": " ", "document": " "}
    sentence_transformer(AveyBModel(tiny_config(split_size=SPLIT)), tokenizer, start, prompts=prompts)
    texts, packed, out = tmp_path / "texts", tmp_path / "packed", tmp_path / "run"

    run(monkeypatch, stage("make_texts"), "--data", data, "--vocabulary", vocabulary, "--out", texts)
    before = {path.name: path.read_bytes() for path in texts.iterdir()}
    run(monkeypatch, stage("make_texts"), "--data", data, "--vocabulary", vocabulary, "--out", texts)
    assert before == {path.name: path.read_bytes() for path in texts.iterdir()}
    report = json.loads(before["report.json"])
    assert report["passage_share"] >= 1 / 3
    assert {"passage", "question", "definition", "heading", "positive"} == set(report["tokens"])
    assert {"medquad/passage", "medquad/question", "openstax_books/heading"} <= set(report["texts"])
    assert "cranfield/passage" not in report["texts"] and HELD_OUT[:40].encode() not in before["texts.jsonl"]

    for part in (1, 0):
        label = ("--texts", texts, "--teacher", teacher, "--shard-size", 16, "--tokens-of", vocabulary)
        run(monkeypatch, stage("label_texts"), *label, "--part", part, 2)
    for teachers, of in ((start, ("--tokens-of", vocabulary)), (teacher, ())):
        with pytest.raises(InputError, match="was made with"):
            run(monkeypatch, stage("label_texts"), "--texts", texts, "--teacher", teachers, "--shard-size", 16, *of)

    common = ("--texts", texts, "--vocabulary", vocabulary, "--out", packed)
    run(monkeypatch, stage("pack_texts"), *common, "--part-mib", 0.01)
    in_order = {path.name: path.read_bytes() for path in packed.iterdir()}
    monkeypatch.setattr(stage("pack_texts"), "CHUNK", 7)
    run(monkeypatch, stage("pack_texts"), *common, "--part-mib", 0.01, "--processes", 2)
    assert in_order == {path.name: path.read_bytes() for path in packed.iterdir()}
    loaded = PackedTexts.load(packed)
    assert len(loaded.lengths) == sum(report["texts"].values()) and loaded.lengths.max() <= SPLIT
    assert (packed / "part-001.safetensors").is_file()

    train = ["--packed", packed, "--model", start, "-o", out, "--steps", 6, "--batch-size", 4, "--threads", 1]
    train += ["--precision", "float32", "--save-every", 2, "--log-every", 1]
    train += ["--labels", texts / "teacher", "--head", "rotation", "--token-weight", 1]
    command = stage("train_packed").main
    command([*map(str, train), "--minutes", "0"], standalone_mode=False)
    assert not (out / "model").exists()
    command([*map(str, train)], standalone_mode=False)

    pieces = stage("pieces")
    cut = pieces.cut(out / "model" / "model.safetensors", tmp_path / "pieces", 20_000)
    assert len(cut) > 1 and all(piece.stat().st_size <= 20_000 for piece in cut)
    back = tmp_path / "back"
    back.mkdir()
    pieces.join(tmp_path / "pieces", back / "model.safetensors")
    assert (back / "model.safetensors").read_bytes() == (out / "model" / "model.safetensors").read_bytes()
    cut[0].write_bytes(cut[1].read_bytes())
    with pytest.raises(InputError, match="copy them again"):
        pieces.join(tmp_path / "pieces", back / "other")
    cut[0].unlink()
    with pytest.raises(InputError, match=r"lacks model\.safetensors\.000"):
        pieces.join(tmp_path / "pieces", back / "other")
    assert [path.name for path in back.iterdir()] == ["model.safetensors"]

    run(monkeypatch, stage("assemble"), "--weights", out / "model", "--start", start, "--out", tmp_path / "final")
    embedder = Embedder.load(tmp_path / "final")
    assert embedder.prompts == prompts
    student = embedder.encode_queries(["the heron"])
    assert student.shape == (1, 32) and not np.allclose(student, Embedder.load(start).encode_queries(["the heron"]))

    whole = ("--weights", out / "model", "--start", start, "--start-share", 1)
    run(monkeypatch, stage("assemble"), *whole, "--out", tmp_path / "all-start")
    again = Embedder.load(tmp_path / "all-start").encode_queries(["the heron"])
    assert np.allclose(again, Embedder.load(start).encode_queries(["the heron"]), atol=1e-6)

    monkeypatch.setattr(stage("select_pairs"), "KEPT_ASIDE", 8)
    questions = tmp_path / "questions"
    run(monkeypatch, stage("select_pairs"), "--texts", texts, "--out", questions)
    chosen = [json.loads(line) for line in (questions / "texts.jsonl").read_text().splitlines()]
    pairs = [json.loads(line) for line in (questions / "pairs.jsonl").read_text().splitlines()]
    assert pairs and {chosen[pair["anchor"]]["kind"] for pair in pairs} == {"question"}
    aside = [json.loads(line) for line in (texts / "texts.jsonl").read_text().splitlines()][-8:]
    assert not [row for row in aside if row in chosen]
    run(monkeypatch, stage("label_texts"), "--texts", questions, "--teacher", teacher)
    run(
        monkeypatch,
        stage("pack_texts"),
        "--texts",
        questions,
        "--vocabulary",
        vocabulary,
        "--out",
        questions / "packed",
    )
    both = ["--packed", packed, "--packed", questions / "packed", "--model", start, "-o", tmp_path / "both"]
    few = ["--steps", 1, "--batch-size", 4, "--threads", 1, "--precision", "float32"]
    command([*map(str, both + few)], standalone_mode=False)
    with pytest.raises(UsageError, match="give --packed once"):
        command([*map(str, [*both, "--labels", texts / "teacher"])], standalone_mode=False)

    everything = tmp_path / "everything"
    run(monkeypatch, stage("select_pairs"), "--texts", texts, "--out", everything, "--kinds", "heading", "definition")
    chosen = [json.loads(line) for line in (everything / "texts.jsonl").read_text().splitlines()]
    pairs = [json.loads(line) for line in (everything / "pairs.jsonl").read_text().splitlines()]
    assert {chosen[pair["anchor"]]["kind"] for pair in pairs} == {"heading", "definition"}

    plan = ("--packed", packed, "--tree", RECIPE, "--parameters", 50_000)
    for speed, code in ((1e6, 0), (0.1, 1)):
        with pytest.raises(SystemExit) as ended:
            run(monkeypatch, stage("plan_gpu"), *plan, "--speed", speed)
        assert ended.value.code == code
    assert (packed / MANIFEST).is_file()
    stage("pieces").cut(texts / "texts.jsonl", tmp_path / "sent", 2_000)
    sent = ("--pieces", tmp_path / "sent", "--texts", texts, "--tree", RECIPE, "--parameters", 50_000, "--speed", 1e6)
    for speed, code in (((), 2), (("--label-speed", 1e6), 0), (("--label-speed", 0.1), 1)):
        with pytest.raises(SystemExit) as ended:
            run(monkeypatch, stage("plan_gpu"), *sent, *speed)
        assert ended.value.code == code


@pytest.fixture
def windows(stage, data: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Windows with a teacher's vectors, packed pairs, and a model to start from."""
    for name in ("make_texts", "make_windows", "label_texts", "pack_texts"):
        monkeypatch.setattr(stage(name), "SPLIT", SPLIT)
    monkeypatch.setattr(stage("make_windows"), "SIZES", (24, 16))
    parts = [f"## Part {i}\n" + " ".join(SENTENCES[10 * i : 10 * i + 10]) for i in range(4)]
    article = {"title": "The river", "text": "\n".join(parts)}
    write(data / "train" / "wikipedia_articles.texts.1.jsonl.zst", [article])
    meetings = [{"_id": f"d{i}", "title": "", "text": " ".join(SENTENCES[90 + 10 * i :][:10])} for i in range(4)]
    meetings[3]["text"] = " ".join([HELD_OUT] * 4)
    (data / "qmsum-long" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in meetings))
    spans = [{"query-id": f"q{i}", "corpus-id": f"d{i}", "spans": [[0, 60]]} for i in range(4)]
    (data / "qmsum-long" / "spans.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spans))
    vocabulary, teacher = tmp_path / "vocabulary", tmp_path / "teacher"
    tokenizer.save(vocabulary)
    torch.manual_seed(0)
    rows = tokenizer.vocab_size
    sentence_transformer(AveyBModel(tiny_config(hidden_size=48, vocab_size=rows)), tokenizer, teacher)
    prompts = {"query": " ", "document": " "}
    student = AveyBModel(tiny_config(split_size=SPLIT, vocab_size=rows))
    sentence_transformer(student, tokenizer, tmp_path / "start", prompts=prompts)
    made = ("--data", data, "--vocabulary", vocabulary, "--out")
    run(monkeypatch, stage("make_texts"), *made, tmp_path / "texts")
    run(monkeypatch, stage("make_windows"), *made, tmp_path / "windows", "--articles", 1)
    for name in ("texts", "windows"):
        run(monkeypatch, stage("label_texts"), "--texts", tmp_path / name, "--teacher", teacher)
    packed = ("--texts", tmp_path / "texts", "--vocabulary", vocabulary, "--out", tmp_path / "packed")
    run(monkeypatch, stage("pack_texts"), *packed)
    return tmp_path


def test_windows_hold_what_is_asked_about_and_nothing_kept_out(
    stage, windows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = windows / "windows"
    rows = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    found = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
    sources = {"squad", "fairytale", "openstax_books", "wikiqa", "wikipedia_articles", "qmsum-long"}
    assert {row["source"] for row in rows} == sources
    assert HELD_OUT[:40] not in (folder / "texts.jsonl").read_text()
    for window in found:
        first, count = window["passages"]
        title = prefix_of(window["title"])
        passages = [row["text"] for row in rows[first : first + count]]
        assert all(passage.startswith(title) for passage in passages)
        assert count >= 2 and window["queries"] and all(passage[len(title) :] in window["text"] for passage in passages)
        for line, start, end in window["queries"]:
            assert rows[line]["kind"] in ("question", "heading") and 0 <= start < end <= count
    (tale,) = [w for w in found if rows[w["passages"][0]]["source"] == "fairytale" and w["passages"][0] == min(
        v["passages"][0] for v in found if rows[v["passages"][0]]["source"] == "fairytale")]  # fmt: skip
    asked = {rows[line]["text"]: (start, end) for line, start, end in tale["queries"]}
    start, end = asked["fairytale: who crosses the river?"]  # characters 12 to 90 of the document
    first = tale["passages"][0]
    title = prefix_of(tale["title"])
    about = " ".join(row["text"].removeprefix(title) for row in rows[first + start : first + end])
    assert tale["text"][40:62] in about and tale["text"][200:] not in about

    before = {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
    again = ("--data", windows / "data", "--vocabulary", windows / "vocabulary", "--out", tmp_path / "again")
    run(monkeypatch, stage("make_windows"), *again, "--articles", 1)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}


def test_windows_are_read_as_an_index_reads_them(stage, windows: Path, tokenizer: AveyBTokenizer) -> None:
    model = AveyBModel.from_pretrained(windows / "start", dtype=torch.float32).eval()
    read = stage("train_windows").read_windows(windows / "windows", tokenizer, SPLIT)
    records = [json.loads(line) for line in (windows / "windows" / "windows.jsonl").read_text().splitlines()]
    assert any(record["title"] for record in records) and not all(record["title"] for record in records)
    for window, record in zip(read, records, strict=True):
        embedder = Embedder.load(windows / "start", passage_size=PassageSize(record["passage_tokens"]))
        (found,) = embedder.encode_documents([(prefix_of(record["title"]), record["text"])])
        with torch.inference_mode():
            vectors = stage("train_windows").passage_vectors(model, [window])
        np.testing.assert_allclose(vectors.numpy(), found.passages, atol=1e-5)


@pytest.mark.parametrize("tokenizer", ["bytes", "wordpiece"], indirect=True)
def test_training_on_windows_continues_and_finds_more_passages(stage, windows: Path, tmp_path: Path) -> None:
    command = stage("train_windows").main
    common = ["--windows", windows / "windows", "--packed", windows / "packed", "--model", windows / "start"]
    common += ["--head", "rotation", "--pair-weight", 4, "--batch-size", 4, "--batch-tokens", 128, "--aside", 1]
    common += ["--window-tokens", 400, "--epochs", 3, "--learning-rate", 3e-3, "--precision", "float32"]
    common += ["--threads", 1, "--log-every", 1, "--save-every", 2]

    def train(out: Path, *more: object) -> None:
        command([*map(str, [*common, "-o", out, *more])], standalone_mode=False)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) > 4 and lines[-1]["windows_loss"] < lines[0]["windows_loss"]

    save, saved = packed_loop.save_checkpoint, []

    def save_and_fail(*arguments: object) -> None:
        save(*arguments)
        saved.append(arguments[1])
        if len(saved) == 2:
            raise KeyboardInterrupt

    packed_loop.save_checkpoint = save_and_fail
    try:
        with pytest.raises((KeyboardInterrupt, Abort)):
            train(broken)
    finally:
        packed_loop.save_checkpoint = save
    assert saved == [0, 2] and not (broken / "model").exists()
    with pytest.raises(ConfigError, match="epochs"):
        train(broken, "--epochs", 2)
    train(broken)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole, broken))
    assert all(torch.equal(one[name], other[name]) for name in one)

    other = PackedTexts.load(windows / "packed")
    with pytest.raises(InputError, match="label both with one"):
        stage("train_windows").check_teacher(
            windows / "windows" / "teacher", replace(other, facts=other.facts | {"teacher": "another"})
        )
    (shard,) = (windows / "windows" / "teacher").glob("vectors-*")
    shard.rename(tmp_path / "shard")
    with pytest.raises(InputError, match="is missing"):
        train(tmp_path / "unlabelled")
    (tmp_path / "shard").rename(shard)

    (windows / "windows" / "windows.jsonl").write_text(
        (windows / "windows" / "windows.jsonl").read_text().replace('"passage_tokens": 24', '"passage_tokens": 16')
    )
    with pytest.raises(InputError, match="make it again"):
        train(tmp_path / "other")


@pytest.mark.parametrize(
    ("stages", "lacking"),
    [
        ("train_packed", ("datasets", "faiss", "tiktoken", "sentence_transformers")),
        ("label_texts, pack_texts, pieces", ("datasets", "faiss", "zstandard")),
    ],
)
def test_stages_need_nothing_that_a_rented_machine_lacks(stages: str, lacking: tuple[str, ...]) -> None:
    code = f"import sys, {stages}; print(*[name for name in {lacking} if name in sys.modules])"
    path = os.pathsep.join([str(RECIPE), str(RECIPE.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.stdout.split() == []


def test_the_plan_keeps_to_uploads_and_minutes(stage) -> None:
    gpu = stage("plan_gpu")
    limits, rates, mib = gpu.Limits(), gpu.Rates(training=1e6), gpu.MIB
    parts = {f"part-{i}": 40 * mib for i in range(3)}
    calls = gpu.plan(parts, 20 * mib, 0, 300_000_000, limits, rates)
    assert [len(call.parts) for call in calls] == [1, 1, 1]
    assert sum(call.training_minutes for call in calls) == pytest.approx(5.0)
    assert gpu.broken(calls, 33 * mib, limits) == []
    more = gpu.plan(parts, 20 * mib, 0, 900_000_000, limits, rates)
    assert len(more) == 4 and all(call.minutes <= 10 for call in more)
    assert sum(call.training_minutes for call in more) == pytest.approx(15.0)
    large = gpu.plan({"part": 50 * mib}, 20 * mib, 0, 1_000, limits, rates)
    assert any("uploads 70.0 MiB, 64 are allowed" in line for line in gpu.broken(large, mib, limits))
    long = gpu.plan(parts, 20 * mib, 0, 2_000_000_000, limits, rates)
    assert any("minutes, 30 are allowed" in line for line in gpu.broken(long, mib, limits))
    assert any("comes back in 11 files, 8 are allowed" in line for line in gpu.broken(calls, 144 * mib, limits))
    with pytest.raises(SystemExit, match="leave nothing"):
        gpu.plan(parts, 20 * mib, 0, 1_000_000_000, replace(limits, call_minutes=0.5), rates)


def test_a_plan_that_labels_there_first_labels_all_texts_once_and_then_trains(stage) -> None:
    gpu = stage("plan_gpu")
    limits, rates, mib = gpu.Limits(), gpu.Rates(training=1e6, labelling=2e5), gpu.MIB
    pieces = {f"piece-{i}": 40 * mib for i in range(3)}
    calls = gpu.plan(pieces, 20 * mib, 0, 60_000_000, limits, rates, epochs=4)
    assert [call.labelling_minutes > 0 for call in calls[:3]] == [False, False, True]
    assert sum(call.labelling_minutes for call in calls) == pytest.approx(5.0)
    assert sum(call.training_minutes for call in calls) == pytest.approx(4.0)
    slow = gpu.plan(pieces, 20 * mib, 0, 150_000_000, limits, rates)
    assert all(call.minutes <= 10 for call in slow)
    assert sum(call.labelling_minutes for call in slow) == pytest.approx(12.5)
    labelled = [call.labelling_minutes > 0 and call.training_minutes > 0 for call in slow]
    assert labelled.count(True) == 1, "training begins in the call that ends the labelling"
