"""Needles and perplexity of a language model: prompts as asked for, figures as defined, commands."""

import json
import math
from pathlib import Path

import needle_lm
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from language_model import main
from needle_lm import TASKS, answer_greedily, make_needle, run_needles
from perplexity import perplexities, token_stream

from aveyb_retrieval.encoder.config import AveyConfig
from aveyb_retrieval.encoder.network.avey import AveyForCausalLM
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError

BYTES = [bytes([i]) for i in range(256)]
TEXT = "a heron, two boats; the mill's old wheel. Sixty letters here"
assert len(TEXT) == 60
HAYSTACK = ["Herons fish at dawn. They stand still. Then they strike.", "Boats\nneed paint."]


@pytest.fixture(scope="module")
def tokenizer() -> AveyBTokenizer:
    return AveyBTokenizer.from_ranks(BYTES)


@pytest.fixture(scope="module")
def model(tokenizer: AveyBTokenizer) -> AveyForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "split_size": 8, "num_retrieved": 2, "initializer_range": 0.3}
    return AveyForCausalLM(AveyConfig(vocab_size=tokenizer.vocab_size + 3, **sizes)).eval()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("depth", [0, 50, 100])
def test_prompts_have_their_length_and_hide_the_number_once_where_they_should(
    task: str, depth: int, tokenizer: AveyBTokenizer
) -> None:
    for length in (400, 1001):
        needle = make_needle(task, tokenizer, length, depth, 3, HAYSTACK)
        assert len(needle.ids) == length
        text = tokenizer.decode(needle.ids)
        assert text.count(needle.answer) == 1 and len(needle.answer) == 7
        assert text.endswith(" is") and text.split("\n")[0].startswith("A number is hidden")
        share = text.index(needle.answer) / length
        assert abs(share - depth / 100) < 0.5 * (400 / length)
        assert ("Herons" in text) == (task == "niah-2")
    first, second = (make_needle(task, tokenizer, 400, depth, seed, HAYSTACK) for seed in (3, 4))
    assert first.answer != second.answer
    assert np.array_equal(first.ids, make_needle(task, tokenizer, 400, depth, 3, HAYSTACK).ids)


def test_what_cannot_be_hidden(tokenizer: AveyBTokenizer) -> None:
    with pytest.raises(InputError, match=r"length 50: passkey needs \d+ tokens"):
        make_needle("passkey", tokenizer, 50, 10, 0)
    with pytest.raises(ConfigError, match="niah-2 hides the number in real texts"):
        make_needle("niah-2", tokenizer, 500, 10, 0)
    with pytest.raises(ConfigError, match="depth 101"):
        make_needle("passkey", tokenizer, 500, 101, 0)


def test_a_model_that_says_the_number_has_found_it(
    model: AveyForCausalLM, tokenizer: AveyBTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"tasks": ["passkey"], "lengths": [300, 320], "depths": [10, 90], "seeds": 2}
    cells = run_needles(model, tokenizer, **options)
    assert [(c.length, c.depth, c.found) for c in cells] == [(300, 10, 0), (300, 90, 0), (320, 10, 0), (320, 90, 0)]
    assert all(c.first_token_seconds > 0 for c in cells)

    def says(model: object, tokenizer: AveyBTokenizer, prompt: np.ndarray, *, tokens: int) -> tuple[str, float]:
        text = tokenizer.decode(prompt)
        found = "".join(c for c in text[: text.index("What is")] if c.isdigit())
        return (f" {found}." if len(prompt) == 300 else "1"), 0.5

    monkeypatch.setattr(needle_lm, "answer_greedily", says)
    cells = run_needles(model, tokenizer, **options)
    assert [(c.found, c.first_token_seconds) for c in cells] == [(1, 0.5), (1, 0.5), (0, 0.5), (0, 0.5)]


def test_greedy_answers_are_those_of_generate(model: AveyForCausalLM, tokenizer: AveyBTokenizer) -> None:
    prompt = np.arange(1, 41)
    said, seconds = answer_greedily(model, tokenizer, prompt, tokens=9)
    ids = model.generate(torch.from_numpy(prompt)[None], max_new_tokens=9, pad_token_id=0, eos_token_id=None)[0, 40:]
    assert said == tokenizer.decode([i for i in ids.tolist() if i < tokenizer.vocab_size])
    assert seconds > 0


def test_perplexities_are_those_of_the_losses(model: AveyForCausalLM, tokenizer: AveyBTokenizer) -> None:
    tokens = token_stream(iter([TEXT, "cd"]), tokenizer, tokenizer.sep_id, 65)
    assert len(tokens) == 64 and tokens[60] == tokenizer.sep_id and tokens[-1] == tokenizer.sep_id
    assert len(token_stream(iter([TEXT]), tokenizer, tokenizer.sep_id, 9)) == 9
    (row,) = perplexities(model, tokens, [20], windows=5, positions=20)
    assert (row.length, row.windows, row.positions) == (20, 3, 60)
    with torch.no_grad():
        ids = torch.from_numpy(tokens[:60]).view(3, 20)
        labels = torch.from_numpy(tokens[1:61]).view(3, 20)
        whole = model(ids, labels=labels).loss.item()
        logits = model(ids, strict=True).logits.flatten(0, 1)
        strict = torch.nn.functional.cross_entropy(logits, labels.flatten()).item()
    assert row.as_trained == pytest.approx(math.exp(whole), rel=1e-4)
    assert row.as_trained_sampled == pytest.approx(row.as_trained, rel=1e-5)  # every position was sampled
    assert row.strict == pytest.approx(math.exp(strict), rel=1e-4)
    assert abs(row.strict - row.as_trained) > 1e-4
    with pytest.raises(InputError, match="have 64 tokens, length 64 needs 65"):
        perplexities(model, tokens, [64])
    with pytest.raises(ConfigError, match="positions 0"):
        perplexities(model, tokens, [20], positions=0)


def test_the_commands(model: AveyForCausalLM, tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(HAYSTACK) * 5)
    call = ["needles", str(tmp_path), "--length", "300", "--depth", "50", "--seeds", "1"]
    result = CliRunner().invoke(main, [*call, "--task", "niah-2", "--haystack", str(text), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["cells"][0]["task"] == "niah-2"
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0 and "passkey: share found of 1" in result.output
    result = CliRunner().invoke(main, [*call, "--task", "niah-2"])
    assert result.exit_code == 2 and "--haystack" in result.output
    scored = ["perplexity", str(tmp_path), "--texts", str(text), "--length", "32", "--positions", "4"]
    result = CliRunner().invoke(main, scored)
    assert result.exit_code == 0 and "strict, sampled" in result.output
    result = CliRunner().invoke(main, ["needles", str(tmp_path / "none")])
    assert result.exit_code == 2 and "no such model folder" in result.output
