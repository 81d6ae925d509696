"""Sweeps over learning rates and seeds: what is trained, what counts, what continues."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner, Result

from aveyb_retrieval.cli.train import main
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.run_folder import CHECKPOINTS
from aveyb_retrieval.training.sweep import FILE, Sweep

from .conftest import SENTENCES, VERBS, tiny_config

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

FAST = ["--batch-size", "8", "--steps", "3", "--precision", "float32", "--held-out", "0.2", "--save-every", "1000",
        "--device", "cpu"]  # fmt: skip


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def encoder(tokenizer: AveyBTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    AveyBModel(tiny_config()).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_rate_and_seed_is_trained_once_and_the_median_decides(tmp_path: Path) -> None:
    trained: list[tuple[str, float, int]] = []

    def train(folder: Path, rate: float, seed: int, resume: bool) -> dict[str, float]:
        assert not resume and not folder.exists()
        trained.append((folder.name, rate, seed))
        return {"loss": abs(rate - 1e-3) + (seed == 1) * 10, "accuracy": seed / 4}

    sweep = Sweep(tmp_path, "mlm", ["text.jsonl"], "loss")
    sweep.run([1e-2, 1e-3], range(3), train)
    assert trained[:3] == [("0.01-0", 1e-2, 0), ("0.01-1", 1e-2, 1), ("0.01-2", 1e-2, 2)] and len(trained) == 6
    again = Sweep(tmp_path, "mlm", ["text.jsonl"], "loss")
    again.run([1e-3, 1e-2, 1e-4], range(3), train)
    assert trained[6:] == [(f"0.0001-{seed}", 1e-4, seed) for seed in range(3)]
    assert again.best() == 1e-3
    assert again.medians()[1e-3] == {"loss": 0.0, "accuracy": 0.25}
    stored = json.loads((tmp_path / FILE).read_text())
    assert stored["best"] == {"rate": 1e-3, "medians": {"loss": 0.0, "accuracy": 0.25}}
    assert len(stored["runs"]) == 9
    assert again.table()[2] == ["0.001", "3", "0.0000", "0.0000", "10.0000", "best"]
    assert Sweep(tmp_path, "mlm", ["text.jsonl"], "accuracy").best() == 1e-4, "more is better, and the lowest of equals"


def test_an_interrupted_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "0.01-0" / CHECKPOINTS / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "0.01-1").mkdir()  # ended before its first checkpoint
    seen: dict[int, tuple[bool, bool]] = {}

    def train(folder: Path, rate: float, seed: int, resume: bool) -> dict[str, float]:
        seen[seed] = resume, folder.exists()
        if seed == 1:
            raise SystemExit(130)
        return {"loss": 1.0}

    sweep = Sweep(tmp_path, "mlm", [], "loss")
    with pytest.raises(SystemExit):
        sweep.run([1e-2], range(3), train)
    assert seen == {0: (True, True), 1: (False, False)}
    assert [run.seed for run in Sweep(tmp_path, "mlm", [], "loss").runs] == [0]


def test_another_sweep_in_the_folder_and_an_unknown_metric_are_refused(tmp_path: Path) -> None:
    Sweep(tmp_path, "mlm", ["a"], "loss").run([1.0], [0], lambda *_: {"loss": 1.0})
    with pytest.raises(ConfigError, match=r"arguments was \['a'\], now it is \['b'\]"):
        Sweep(tmp_path, "mlm", ["b"], "loss")
    with pytest.raises(ConfigError, match="objective was 'mlm', now it is 'clm'"):
        Sweep(tmp_path, "clm", ["a"], "loss")
    with pytest.raises(ConfigError, match="metric is 'f1'; mlm gives loss"):
        Sweep(tmp_path, "mlm", ["a"], "f1").run([2.0], [0], lambda *_: {"loss": 1.0})


def test_the_command_trains_heads(encoder: Path, tmp_path: Path) -> None:
    rows = [{"text": text, "label": next(v for v in VERBS if v in text)} for text in SENTENCES][:60]
    files = ["classify", write(tmp_path / "rows.jsonl", rows), "--model", encoder, *FAST]
    done = call("sweep", *files, "-o", tmp_path / "out", "--rate", "1e-3", "--rate", "1e-2", "--seeds", "2")
    assert done.exit_code == 0, done.output
    assert "accuracy, median" in done.output and "best" in done.output
    stored = json.loads((tmp_path / "out" / FILE).read_text())
    assert [(run["rate"], run["seed"]) for run in stored["runs"]] == [(1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)]
    assert all(0 <= run["figures"]["accuracy"] <= 1 for run in stored["runs"])
    again = call("sweep", *files, "-o", tmp_path / "out", "--rate", "1e-3", "--rate", "1e-2", "--seeds", "2")
    assert again.exit_code == 0 and "held out" not in again.output


def test_the_command_measures_retrieval(encoder: Path, tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.jsonl", [{"query": text[:12], "positive": text} for text in SENTENCES[:40]])
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    write(
        folder / "corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(SENTENCES[:9])]
    )
    write(folder / "queries.jsonl", [{"_id": f"q{i}", "text": text[:12]} for i, text in enumerate(SENTENCES[:4])])
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(4))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    options = [option for option in FAST if option not in ("--held-out", "0.2")]
    arguments = ["sweep", "contrastive", pairs, "--model", encoder, *options, "-o", tmp_path / "out"]
    done = call(*arguments, "--rate", "1e-3", "--seeds", "1", "--evaluate", folder)
    assert done.exit_code == 0, done.output
    (run,) = json.loads((tmp_path / "out" / FILE).read_text())["runs"]
    assert run["figures"]["score"] == run["figures"]["set"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["classify", "rows.jsonl", "--seed", "3"], "--seed is what a sweep sets"),
        (["classify", "rows.jsonl", "--learning-rate=1"], "--learning-rate=1 is what a sweep sets"),
        (["contrastive", "pairs.jsonl", "--model", "x"], "contrastive is swept with --evaluate"),
        (["mlm", "text.jsonl", "--evaluate", "set"], "contrastive is swept with --evaluate"),
        (["mlm", "text.jsonl", "--no-such-option"], "No such option"),
    ],
)
def test_bad_arguments(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = call("sweep", *arguments, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert words.lower() in result.output.lower()
    assert not (tmp_path / "out").exists()
