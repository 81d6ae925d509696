"""Next-token training: samples, recipes, a text learned by heart and gone on with."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from aveyb_retrieval import AveyConfig, AveyForCausalLM
from aveyb_retrieval.cli.train import main
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.training.pretraining import NextTokens, pretrain, starting_model
from aveyb_retrieval.training.run_folder import TrainingRun, read_metrics
from aveyb_retrieval.training.settings import CausalSettings, MLMSettings, recipe
from tests.jsonl import write_jsonl

from .conftest import SENTENCES

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

SETTINGS = CausalSettings(
    steps=8,
    length=24,
    batch_size=4,
    micro_batch=2,
    precision="float32",
    log_every=1,
    save_every=100,
    eps=1e-8,
)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "split_size": 8, "num_retrieved": 2}


def fresh(tokenizer: AveyBTokenizer) -> AveyForCausalLM:
    model = starting_model(None, "mini", tokenizer, seed=0, fields=SIZES, objective="causal")
    assert isinstance(model, AveyForCausalLM)
    return model


def test_labels_are_the_next_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(np.arange(25, dtype="<i4").tobytes())
    sequences = NextTokens(file, length=8)
    assert len(sequences) == 3
    for i in range(3):
        sample = sequences[i]
        assert sample["input_ids"].tolist() == list(range(8 * i, 8 * i + 8))
        assert sample["labels"].tolist() == list(range(8 * i + 1, 8 * i + 9))
    assert len(NextTokens(file, length=24)) == 1
    with pytest.raises(InputError, match="the text has 25 tokens, one sequence needs 26"):
        NextTokens(file, length=25)


def test_recipes() -> None:
    assert recipe("masked", "paper-base") == recipe("masked", None) == MLMSettings()
    assert recipe("masked", "paper-large").learning_rate == 2.5e-4
    paper = recipe("causal", "avey-small")
    assert paper == recipe("causal", None) == CausalSettings()
    assert paper.steps * paper.batch_size * paper.length == pytest.approx(100e9, rel=1e-4)
    large = recipe("causal", "avey-large")
    assert large.steps * large.batch_size * large.length == pytest.approx(100e9, rel=1e-4)
    assert recipe("causal", "mini").batch_size == 8


def test_learns_a_text_by_heart_and_goes_on_with_it(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    settings = replace(
        SETTINGS, steps=150, batch_size=8, micro_batch=8, learning_rate=1e-2, held_out_every=0
    )
    model, texts = fresh(tokenizer), SENTENCES[:12:3]
    pretrain(model, tokenizer, texts, TrainingRun(tmp_path, {}, device="cpu"), settings=settings)
    metrics = read_metrics(tmp_path / "metrics.jsonl")
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert losses[0] == pytest.approx(math.log(tokenizer.vocab_size), rel=0.1)
    assert losses[-1] < 0.3
    rates = [line["learning_rate"] for line in metrics if "learning_rate" in line]
    assert rates[-1] == pytest.approx(1e-3, rel=0.05)
    model = AveyForCausalLM.from_pretrained(tmp_path / "model")
    start = tokenizer.encode_ids(SENTENCES[3])[:-2]
    made = model.generate(torch.tensor([start.tolist()]), max_new_tokens=10, pad_token_id=0)
    ids = made[0].tolist()
    assert tokenizer.decode(ids[:-1]) == SENTENCES[3]
    assert ids[-1] == tokenizer.sep_id


def test_accumulated_gradients_are_those_of_the_whole_batch(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    weights = []
    for micro in (1, 4):
        model, folder = fresh(tokenizer), tmp_path / str(micro)
        settings = replace(
            SETTINGS, micro_batch=micro, held_out_every=5, gradient_checkpointing=micro == 1
        )
        figures = pretrain(
            model, tokenizer, SENTENCES, TrainingRun(folder, {}, device="cpu"), settings=settings
        )
        assert 0 < figures["loss"] < 10
        assert 0 < figures["strict_loss"] < 10
        assert 0 <= figures["strict_accuracy"] <= 1
        weights.append(model.wte.weight.detach())
    torch.testing.assert_close(weights[0], weights[1], atol=2e-4, rtol=0)


def test_models_that_a_run_starts_from(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    made = starting_model(None, "mini", tokenizer, seed=3, fields={}, objective="causal")
    assert made.config.vocab_size == tokenizer.vocab_size
    assert made.config.split_size == 32
    made.save_pretrained(tmp_path)
    again = starting_model(str(tmp_path), "mini", tokenizer, seed=4, fields={}, objective="causal")
    assert torch.equal(again.wte.weight, made.wte.weight)
    assert again.generation_config.eos_token_id == tokenizer.sep_id
    AveyForCausalLM(AveyConfig.mini(vocab_size=17)).save_pretrained(tmp_path / "other")
    other = str(tmp_path / "other")
    with pytest.raises(ModelError, match="has 360 ids, the model 17 embeddings"):
        starting_model(other, "mini", tokenizer, seed=4, fields={}, objective="causal")
    with pytest.raises(ConfigError, match="preset is 'paper-base'; choose one of mini, avey-small"):
        starting_model(None, "paper-base", tokenizer, seed=4, fields={}, objective="causal")
    with pytest.raises(ConfigError, match="'tail' is not a field of AveyConfig"):
        starting_model(None, "mini", tokenizer, seed=4, fields={"tail": 1}, objective="causal")


def test_the_command(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "vocabulary")
    text = write_jsonl(tmp_path / "text.jsonl", ({"text": words} for words in SENTENCES[:40]))

    def run(*options: object) -> tuple[int, str]:
        common = ["mlm", text, "-o", tmp_path / "run", "--device", "cpu", "--precision", "float32"]
        result = CliRunner().invoke(main, [str(a) for a in (*common, *options)])
        return result.exit_code, result.output

    causal = ("--objective", "causal", "--vocabulary", tmp_path / "vocabulary")
    sizes = ("--steps", 1, "--length", 24, "--batch-size", 2, "--micro-batch", 2)
    code, output = run(*causal, "--mask-rate", "0.3")
    assert code == 2
    assert "--mask-rate is for --objective masked" in output
    code, output = run(*causal, *sizes, "--held-out-every", 4)
    assert code == 0, output
    assert "held out strict_loss: " in output
    model = tmp_path / "run" / "model"
    assert AveyForCausalLM.from_pretrained(model).config.num_hidden_layers == 4
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert recorded["learning_rate"] == 1e-3
    assert recorded["seed"] == 11
    code, output = run("--model", model, *sizes)
    assert code == 2
    assert "model_type is 'avey', only 'avey-b' can be loaded" in output
