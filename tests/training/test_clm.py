"""Next-token training: samples, a floor of the learning rate, a text learned by heart, and generation from it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from aveyb_retrieval.cli.train import main
from aveyb_retrieval.encoder.config import AveyConfig
from aveyb_retrieval.encoder.network.avey import AveyForCausalLM
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.training.models import causal_model
from aveyb_retrieval.training.pretraining import NextTokens, end_of_text, pretrain
from aveyb_retrieval.training.run_folder import read_metrics
from aveyb_retrieval.training.settings import CLMSettings
from aveyb_retrieval.training.trainer import learning_rate_factor

from .conftest import SENTENCES

SETTINGS = CLMSettings(
    steps=8, length=24, batch_size=4, micro_batch=2, precision="float32", log_every=1, save_every=100, eps=1e-8
)
DATA = {"text": "written in the tests"}


def fresh(tokenizer: AveyBTokenizer) -> AveyForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "split_size": 8, "num_retrieved": 2}
    model = AveyForCausalLM(AveyConfig(vocab_size=tokenizer.vocab_size, **sizes))
    model.generation_config.eos_token_id = end_of_text(tokenizer)
    return model


def test_labels_are_the_next_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(np.arange(25, dtype="<i4").tobytes())
    sequences = NextTokens(file, length=8)
    assert len(sequences) == 3
    for i, sample in enumerate(sequences):
        assert sample["input_ids"].tolist() == list(range(8 * i, 8 * i + 8))
        assert sample["labels"].tolist() == list(range(8 * i + 1, 8 * i + 9))
    assert len(NextTokens(file, length=24)) == 1
    with pytest.raises(InputError, match="the text has 25 tokens, one sequence needs 26"):
        NextTokens(file, length=25)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "trapezoidal"])
def test_the_learning_rate_falls_to_its_floor(schedule: str) -> None:
    factor = learning_rate_factor(schedule, 100, 0.0, 0.1)
    assert factor(0) == 1.0
    assert factor(100) == pytest.approx(0.1)
    assert all(factor(i) >= factor(i + 1) for i in range(100))
    plain = learning_rate_factor(schedule, 100, 0.0)
    assert factor(60) == pytest.approx(0.1 + 0.9 * plain(60))
    with pytest.raises(ConfigError, match=r"floor is 1\.5"):
        learning_rate_factor(schedule, 100, 0.0, 1.5)


def test_learns_a_text_by_heart_and_goes_on_with_it(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=150, batch_size=8, micro_batch=8, learning_rate=1e-2, held_out_every=0)
    pretrain(fresh(tokenizer), tokenizer, SENTENCES[:12:3], tmp_path, data=DATA, settings=settings, device="cpu")
    metrics = read_metrics(tmp_path / "metrics.jsonl")
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert losses[0] == pytest.approx(math.log(tokenizer.vocab_size), rel=0.1)
    assert losses[-1] < 0.3
    rates = [line["learning_rate"] for line in metrics if "learning_rate" in line]
    assert rates[-1] == pytest.approx(1e-3, rel=0.05)
    model = AveyForCausalLM.from_pretrained(tmp_path / "model")
    start = tokenizer.encode_ids(SENTENCES[3])[:-2]
    ids = model.generate(torch.tensor([start.tolist()]), max_new_tokens=10, pad_token_id=0)[0].tolist()
    assert tokenizer.decode(ids[:-1]) == SENTENCES[3]
    assert ids[-1] == tokenizer.sep_id


def test_accumulated_gradients_are_those_of_the_whole_batch(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    weights = []
    for micro in (1, 4):
        model, settings = fresh(tokenizer), replace(SETTINGS, micro_batch=micro, held_out_every=5)
        figures = pretrain(model, tokenizer, SENTENCES, tmp_path / str(micro), data=DATA, settings=settings,
                            device="cpu")  # fmt: skip
        assert 0 < figures["loss"] < 10 and 0 <= figures["accuracy"] <= 1
        weights.append(model.embed.weight.detach())
    torch.testing.assert_close(weights[0], weights[1], atol=2e-4, rtol=0)


def test_models_that_a_run_starts_from(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    made = causal_model(None, "mini", tokenizer, seed=3)
    assert made.config.vocab_size == tokenizer.vocab_size and made.config.split_size == 32
    assert made.generation_config.eos_token_id == tokenizer.sep_id
    made.save_pretrained(tmp_path)
    again = causal_model(str(tmp_path), "mini", tokenizer, seed=4)
    assert torch.equal(again.embed.weight, made.embed.weight)
    AveyForCausalLM(AveyConfig.mini(vocab_size=17)).save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="has 360 ids, the model 17 embeddings"):
        causal_model(str(tmp_path / "other"), "mini", tokenizer, seed=4)
    with pytest.raises(ConfigError, match="vocab_size is the vocabulary's, 360"):
        causal_model(None, "mini", tokenizer, seed=4, fields={"vocab_size": 5})
    with pytest.raises(ConfigError, match="preset is 'tiny'"):
        causal_model(None, "tiny", tokenizer, seed=4)


def test_the_command(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "vocabulary")
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in SENTENCES[:40]))
    run = ("--steps", 1, "--length", 24, "--batch-size", 2, "--micro-batch", 2, "--precision", "float32",
           "--held-out-every", 4, "--device", "cpu")  # fmt: skip
    arguments = ("clm", text, "--vocabulary", tmp_path / "vocabulary", "-o", tmp_path / "run", *run)
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    assert "held out loss, as trained: " in result.output
    assert AveyForCausalLM.from_pretrained(tmp_path / "run" / "model").config.num_hidden_layers == 4
    result = CliRunner().invoke(main, ["mlm", str(text), "--vocabulary", str(tmp_path / "vocabulary"), "--model",
                                       str(tmp_path / "run" / "model"), "-o", str(tmp_path / "no")])  # fmt: skip
    assert result.exit_code == 2 and "model_type is 'avey', only 'avey-b' can be loaded" in result.output
