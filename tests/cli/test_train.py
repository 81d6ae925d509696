"""aveyb-train: every command end to end on a tiny text, and what it says about bad input."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from aveyb_retrieval.cli.train import fingerprints, main
from aveyb_retrieval.encoder.embedders.embedder import Embedder
from aveyb_retrieval.training.run_folder import TrainingRun
from aveyb_retrieval.training.settings import (
    ContrastiveSettings,
    DistillSettings,
    MiningRules,
    MLMSettings,
)
from tests.jsonl import write_jsonl
from tests.training.conftest import SENTENCES, tiny_config
from tests.training.test_contrastive import TRIPLETS
from tests.training.test_mlm import StopAfter


def call(*arguments: object) -> Result:
    threads = torch.get_num_threads()
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    torch.set_num_threads(threads)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = ({"text": sentence} for sentence in SENTENCES)
    return write_jsonl(tmp_path_factory.mktemp("text") / "text.jsonl", rows)


@pytest.fixture(scope="module")
def vocabulary(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary") / "tiny"
    result = call("tokenizer", text, "-o", folder, "--vocab-size", 360)
    assert result.exit_code == 0 and "360 tokens" in result.output
    return folder


@pytest.fixture(scope="module")
def encoder(vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
    from aveyb_retrieval.encoder.network.model import AveyBModel
    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    sentence_transformer(AveyBModel(tiny_config()), AveyBTokenizer.load(vocabulary), folder)
    return folder


RUN = ("--steps", 2, "--batch-size", 4, "--precision", "float32", "--threads", 1, "--device", "cpu")


def test_help_names_the_commands() -> None:
    result = call("--help")
    for command in ("tokenizer", "mlm", "mine", "contrastive", "distill"):
        assert command in result.output


@pytest.mark.parametrize(
    ("command", "defaults"),
    [
        ("mlm", MLMSettings()),
        ("contrastive", ContrastiveSettings()),
        ("distill", DistillSettings()),
        ("mine", MiningRules()),
    ],
)
def test_options_are_the_described_settings_with_their_defaults(
    command: str, defaults: object
) -> None:
    options = {option.name: option for option in main.commands[command].params}
    described = {
        f.name
        for base in type(defaults).__mro__
        if is_dataclass(base)
        for f in fields(base)
        if f.metadata
    }
    for name in described:
        assert options[name].default == getattr(defaults, name), name
        assert options[name].help, name
    shown = call(command, "--help").output
    assert ("--learning-rate" in shown and "[float32|bfloat16]" in shown) == (command != "mine")


def test_tokenizer_writes_both_views_and_overwrites_nothing(text: Path, vocabulary: Path) -> None:
    assert (vocabulary / "vocab.tiktoken").is_file() and (vocabulary / "tokenizer.json").is_file()
    before = (vocabulary / "vocab.tiktoken").read_bytes()
    result = call("tokenizer", text, "-o", vocabulary, "--vocab-size", 300)
    assert result.exit_code == 2 and "add --overwrite" in result.output
    assert (vocabulary / "vocab.tiktoken").read_bytes() == before


def test_the_rate_is_the_presets_unless_one_is_given(
    monkeypatch: pytest.MonkeyPatch, text: Path, vocabulary: Path, tmp_path: Path
) -> None:
    """The paper trains its large model at half the rate of its base model; fields of a new model
    can be set.
    """
    started: list[Any] = []

    def pretrain(
        model: Any, tokenizer: Any, texts: Any, run: TrainingRun, *, settings: MLMSettings
    ) -> Any:
        started.append((settings, model.config))
        (Path(run.folder) / "model").mkdir(parents=True, exist_ok=True)
        return {}

    monkeypatch.setattr("aveyb_retrieval.training.pretraining.pretrain", pretrain)
    small = (
        "--set",
        "hidden_size=8",
        "--set",
        "num_hidden_layers=2",
        "--set",
        "mix_activation=none",
    )
    common = ("mlm", text, "--vocabulary", vocabulary, "-o", tmp_path / "run", *small)
    for more, rate, steps in (
        (("--preset", "paper-base"), 5e-4, 343_323),
        (("--preset", "paper-large"), 2.5e-4, 343_323),
        (("--preset", "paper-large", "--learning-rate", 1e-3, "--betas", 0.8, 0.9), 1e-3, 343_323),
    ):
        result = call(*common, *more)
        assert result.exit_code == 0, result.output
        settings, config = started[-1]
        assert (settings.learning_rate, settings.steps) == (rate, steps)
        assert (config.hidden_size, config.num_hidden_layers, config.mix_activation) == (
            8,
            2,
            "none",
        )
    assert settings.betas == (0.8, 0.9)
    for more, words in (
        (("--set", "no_such=1"), "'no_such' is not a field of AveyBConfig"),
        (("--set", "mix_bias"), "'mix_bias' is not FIELD=VALUE"),
        (
            ("--set", "mix_bias=perhaps"),
            "AveyBConfig.mix_bias is 'perhaps'; it must be True or False",
        ),
        (
            ("--model", "somewhere"),
            "hidden_size, num_hidden_layers, mix_activation can be set for a new model only",
        ),
    ):
        result = call(*common, *more)
        assert (result.exit_code, words in result.output.replace("\n", " ")) == (
            2,
            True,
        ), result.output


def test_mlm_then_contrastive_then_resume(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    common = (
        "--vocabulary",
        vocabulary,
        "--length",
        32,
        "--micro-batch",
        2,
        "--held-out-every",
        10,
    )
    result = call("mlm", text, *common, "--evaluate-every", 1, "-o", tmp_path / "mlm", *RUN)
    assert result.exit_code == 0, result.output
    assert "held out loss: " in result.output
    assert (tmp_path / "mlm" / "metrics.jsonl").read_text().count("eval_accuracy") == 2
    assert json.loads((tmp_path / "mlm" / "run.json").read_text())["data"]["file 1"]["sha256"]
    pairs = write_jsonl(tmp_path / "pairs.jsonl", TRIPLETS[:8])
    arguments = (
        "contrastive",
        pairs,
        "--model",
        tmp_path / "mlm" / "model",
        "-o",
        tmp_path / "fine",
        *RUN,
    )
    result = call(*arguments, "--query-prompt", "Query: ", "--matryoshka", 64, "--save-every", 1)
    assert result.exit_code == 0, result.output
    assert Embedder.load(tmp_path / "fine" / "model").prompts["query"] == "Query: "
    again = call(*arguments, "--query-prompt", "Query: ", "--matryoshka", 64)
    assert again.exit_code == 2 and "already holds a run" in again.output
    other = call(*arguments, "--query-prompt", "Other: ", "--matryoshka", 64, "--resume")
    assert other.exit_code == 2 and "prompts" in other.output


def test_files_of_one_name_and_their_order_are_told_apart(tmp_path: Path) -> None:
    files = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / "x.jsonl")
        files[-1].write_text(folder)
    found = fingerprints(tuple(files))
    assert len(found) == 2 and found["file 1"] != found["file 2"]
    assert fingerprints(tuple(reversed(files))) != found


def test_mine_then_contrastive_on_what_was_mined(encoder: Path, tmp_path: Path) -> None:
    pairs = write_jsonl(tmp_path / "pairs.jsonl", TRIPLETS[:8])
    triplets = tmp_path / "triplets.jsonl"
    arguments = (
        "mine",
        pairs,
        "-o",
        triplets,
        "--model",
        encoder,
        "--mode",
        "lexical",
        "--quiet",
        "--threads",
        1,
    )
    result = call(*arguments, "--no-margin", "--rows", 6, "--negatives", 9, "--range-max", 9)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in triplets.read_text().splitlines()]
    assert {row["anchor"] for row in rows} == {t["query"] for t in TRIPLETS[:6]}
    assert all(
        row["negative"] in {t["positive"] for t in TRIPLETS[:6]} - {row["positive"]} for row in rows
    )
    assert f"{len(rows)} triplets in {triplets}, from 6 queries and 6 texts" in result.output
    assert "queries with fewer than 9 negatives: 6; the first: " in result.output
    before = triplets.read_bytes()
    again = call(*arguments)
    assert (
        again.exit_code == 2
        and "add --overwrite" in again.output
        and triplets.read_bytes() == before
    )
    nothing = call(*arguments, "--overwrite", "--max-score", -1)
    assert (
        nothing.exit_code == 2
        and "none of 8 anchors" in nothing.output
        and triplets.read_bytes() == before
    )
    result = call("contrastive", triplets, "--model", encoder, "-o", tmp_path / "run", *RUN)
    assert result.exit_code == 0, result.output


def test_distill(text: Path, encoder: Path, tmp_path: Path) -> None:
    result = call(
        "distill", text, "--model", encoder, "--teacher", encoder, "-o", tmp_path / "run", *RUN
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run" / "teacher" / "vectors-00000.npy").is_file()
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert Embedder.load(tmp_path / "run" / "model").encode_queries(["the heron"]).shape == (1, 32)


def test_distill_reads_questions_and_phrases(text: Path, encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text('{"text": "who repairs the gate"}\n')
    options = ["--teacher-prompts", "who: ", "", "--queries", tmp_path / "asked.jsonl", "--near", 1]
    result = call(
        "distill",
        text,
        "--model",
        encoder,
        "--teacher",
        encoder,
        *options,
        "-o",
        tmp_path / "run",
        *RUN,
    )
    assert "set 'queries' has 1 rows" in result.output  # less than a batch
    assert {path.name for path in (tmp_path / "run" / "teacher-1").iterdir()} == {
        "document",
        "query",
    }


def test_bad_input_ends_with_code_2_and_a_reason(
    text: Path, vocabulary: Path, encoder: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"query": "a"}\n')
    pairs = write_jsonl(tmp_path / "pairs.jsonl", TRIPLETS[:4])
    run = ("-o", tmp_path / "run", *RUN)
    triplets = ("-o", tmp_path / "triplets.jsonl", "--model", encoder)
    cases = [
        (("tokenizer", bad, "-o", tmp_path / "v"), "line 1: field 'text'"),
        (("tokenizer", text, "-o", tmp_path / "v", "--vocab-size", 100), "100 is not in the range"),
        (("mlm", text, "--vocabulary", tmp_path, *run), "is missing"),
        (("mlm", "--vocabulary", vocabulary, *run), "Missing argument 'FILES...'"),
        (
            ("mlm", text, "--vocabulary", vocabulary, "--length", 20_000, "--micro-batch", 1, *run),
            "one sequence needs 20000",
        ),
        (
            ("mlm", text, "--vocabulary", vocabulary, "--set", "vocab_size=5", *run),
            "vocab_size is the vocabulary's, 360",
        ),
        (("contrastive", bad, "--model", encoder, *run), "no field positive"),
        (("contrastive", pairs, "--model", tmp_path / "nothing", *run), "no such model folder"),
        (
            ("mine", pairs, "-o", tmp_path / "triplets.csv", "--model", encoder),
            "a name that ends in .jsonl",
        ),
        (("mine", pairs, *triplets, "--negatives", 51), "leave 50 ranks for 51 negatives"),
        (("mine", bad, *triplets), "bad.jsonl, line 1: no field positive"),
        (("mine", pairs, *triplets, "--positive", "best"), "pairs.jsonl, line 1: no field best"),
        (("mine", pairs, *triplets, "--corpus", bad), "bad.jsonl, line 1: field 'text'"),
        (
            ("distill", text, "--model", encoder, "--teacher", encoder, *run, "--threads", 0),
            "'--threads': 0 is not in the range",
        ),
        (
            (
                "distill",
                text,
                "--model",
                encoder,
                "--teacher",
                encoder,
                "--teacher",
                "b",
                "--teacher-prompts",
                "",
                "",
                *run,
            ),
            "--teacher-prompts is given 1 times for 2 --teacher",
        ),
    ]
    for arguments, reason in cases:
        result = call(*arguments)
        assert result.exit_code == 2 and reason in result.output, (arguments, result.output)
    assert not (tmp_path / "triplets.jsonl").exists()


def test_ctrl_c_saves_and_resume_goes_on(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    arguments = (
        "mlm",
        text,
        "--vocabulary",
        vocabulary,
        "--length",
        32,
        "--micro-batch",
        2,
        "-o",
        tmp_path / "run",
        *RUN,
    )
    with pytest.MonkeyPatch.context() as patch:
        StopAfter(patch, 1)
        result = call(*arguments)
    assert result.exit_code == 130 and "add --resume" in result.output
    assert not (tmp_path / "run" / "model").exists()
    result = call(*arguments, "--resume")
    assert result.exit_code == 0 and "model in" in result.output
