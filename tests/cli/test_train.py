"""aveyb-train: every command end to end on a tiny text, and what it says about bad input."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from aveyb_retrieval.cli.train import main
from aveyb_retrieval.encoder.embedder import Embedder
from tests.encoder.training.conftest import SENTENCES, tiny_config
from tests.encoder.training.test_contrastive import TRIPLETS
from tests.encoder.training.test_mlm import StopAfter


def call(*arguments: object) -> Result:
    threads = torch.get_num_threads()
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    torch.set_num_threads(threads)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    path.write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in SENTENCES))
    return path


@pytest.fixture(scope="module")
def vocabulary(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary") / "tiny"
    result = call("tokenizer", text, "-o", folder, "--vocab-size", 360)
    assert result.exit_code == 0 and "360 tokens" in result.output
    return folder


@pytest.fixture(scope="module")
def encoder(vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from aveyb_retrieval.encoder.model import AveyBModel
    from aveyb_retrieval.encoder.sentence import sentence_transformer
    from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer

    folder = tmp_path_factory.mktemp("encoder")
    sentence_transformer(AveyBModel(tiny_config()), AveyBTokenizer.load(vocabulary), folder)
    return folder


RUN = ("--steps", 2, "--batch-size", 4, "--fp32", "--threads", 1, "--device", "cpu")


def test_help_is_fast_and_names_the_commands() -> None:
    result = call("--help")
    for command in ("tokenizer", "mlm", "contrastive", "distill"):
        assert command in result.output


def test_tokenizer_writes_both_views_and_overwrites_nothing(text: Path, vocabulary: Path) -> None:
    assert (vocabulary / "vocab.tiktoken").is_file() and (vocabulary / "tokenizer.json").is_file()
    before = (vocabulary / "vocab.tiktoken").read_bytes()
    result = call("tokenizer", text, "-o", vocabulary, "--vocab-size", 300)
    assert result.exit_code == 2 and "add --overwrite" in result.output
    assert (vocabulary / "vocab.tiktoken").read_bytes() == before


def test_mlm_then_contrastive_then_resume(text: Path, vocabulary: Path, tmp_path: Path) -> None:
    common = ("--vocabulary", vocabulary, "--length", 32, "--micro-batch", 2, "--held-out-every", 10)
    result = call("mlm", text, *common, "--evaluate-every", 1, "-o", tmp_path / "mlm", *RUN)
    assert result.exit_code == 0, result.output
    assert "held out loss: " in result.output
    assert (tmp_path / "mlm" / "metrics.jsonl").read_text().count("eval_accuracy") == 2
    assert json.loads((tmp_path / "mlm" / "run.json").read_text())["data"]["text.jsonl"]["sha256"]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(t) + "\n" for t in TRIPLETS[:8]))
    arguments = ("contrastive", pairs, "--model", tmp_path / "mlm" / "model", "-o", tmp_path / "fine", *RUN)
    result = call(*arguments, "--query-prompt", "Query: ", "--matryoshka", 64, "--save-every", 1)
    assert result.exit_code == 0, result.output
    assert Embedder.load(tmp_path / "fine" / "model").prompts["query"] == "Query: "
    again = call(*arguments, "--query-prompt", "Query: ", "--matryoshka", 64)
    assert again.exit_code == 2 and "already holds a run" in again.output
    other = call(*arguments, "--query-prompt", "Other: ", "--matryoshka", 64, "--resume")
    assert other.exit_code == 2 and "prompts" in other.output


def test_distill(text: Path, encoder: Path, tmp_path: Path) -> None:
    result = call("distill", text, "--model", encoder, "--teacher", encoder, "-o", tmp_path / "run", *RUN)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run" / "teacher" / "vectors-00000.npy").is_file()
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert Embedder.load(tmp_path / "run" / "model").encode_queries(["the heron"]).shape == (1, 32)


def test_bad_input_ends_with_code_2_and_a_reason(text: Path, vocabulary: Path, encoder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"query": "a"}\n')
    run = ("-o", tmp_path / "run", *RUN)
    cases = [
        (("tokenizer", bad, "-o", tmp_path / "v"), "line 1: field 'text'"),
        (("tokenizer", text, "-o", tmp_path / "v", "--vocab-size", 100), "vocab_size is 100"),
        (("mlm", text, "--vocabulary", tmp_path, *run), "is missing"),
        (("mlm", "--vocabulary", vocabulary, *run), "give FILES or --hub"),
        (
            ("mlm", text, "--vocabulary", vocabulary, "--length", 100_000, "--micro-batch", 4, *run),
            "one sequence needs 100000",
        ),
        (("contrastive", bad, "--model", encoder, *run), "no positive side"),
        (("contrastive", text, "--model", tmp_path / "nothing", *run), "no such model folder"),
        (("distill", text, "--model", encoder, "--teacher", encoder, *run, "--threads", 0), "--threads is 0"),
    ]
    for arguments, reason in cases:
        result = call(*arguments)
        assert result.exit_code == 2 and reason in result.output, (arguments, result.output)


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
