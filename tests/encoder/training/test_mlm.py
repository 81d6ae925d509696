"""Masked-language modelling end to end on a tiny text: it learns, resumes bit for bit, and spreads over processes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aveyb_retrieval.encoder.model import AveyBForMaskedLM
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.training.mlm import MLMSettings, train_mlm
from aveyb_retrieval.encoder.training.runs import read_metrics
from aveyb_retrieval.errors import ConfigError, InputError

from .conftest import SENTENCES, in_two_processes, tiny_config

SETTINGS = MLMSettings(
    steps=8, length=40, batch_size=4, micro_batch=2, learning_rate=3e-3, bf16=False, log_every=1, save_every=4, eps=1e-8
)
TWENTY_STEPS = replace(SETTINGS, steps=20, save_every=1000)
DATA = {"text": "written in the tests"}


def fresh(**changes: object) -> AveyBForMaskedLM:
    torch.manual_seed(0)
    return AveyBForMaskedLM(tiny_config(**changes))


def run(
    folder: Path, tokenizer: AveyBTokenizer, settings: MLMSettings = SETTINGS, **options: object
) -> AveyBForMaskedLM:
    model = options.pop("model", None) or fresh()
    train_mlm(model, tokenizer, SENTENCES, folder, data=DATA, settings=settings, device="cpu", **options)
    return model


def same(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    return all(a.equal(b) for a, b in zip(left.state_dict().values(), right.state_dict().values(), strict=True))


def same_to(tolerance: float, left: Path, right: Path) -> None:
    """The models in two folders have the same weights."""
    one, two = (load_file(folder / "model.safetensors") for folder in (left, right))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=0, atol=tolerance), name


class StopAfter:
    """A Ctrl-C that arrives in the middle of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        from aveyb_retrieval.encoder.training.runs import RunCallback

        original = RunCallback.on_step_end

        def stop(callback: RunCallback, args, state, control, **kwargs):
            if state.global_step == step:
                callback._interrupt(2, None)
            return original(callback, args, state, control, **kwargs)

        monkeypatch.setattr(RunCallback, "on_step_end", stop)


def test_interrupted_and_resumed_equals_unbroken(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        StopAfter(patch, 3)
        run(tmp_path / "broken", tokenizer)
    assert not (tmp_path / "broken" / "model").exists()
    resumed = run(tmp_path / "broken", tokenizer, resume=True)
    assert same(whole, resumed)
    losses = [
        [m["loss"] for m in read_metrics(tmp_path / f / "metrics.jsonl") if "loss" in m] for f in ("whole", "broken")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 8


def test_overfits_a_small_text(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=150, batch_size=8, micro_batch=8, log_every=10, save_every=1000, length=20,
                       mask_rate=0.1, held_out_every=0, warmup=0.05, learning_rate=1e-2)  # fmt: skip
    model = fresh(hidden_size=48)
    train_mlm(model, tokenizer, SENTENCES[:4], tmp_path, data=DATA, settings=settings, device="cpu")
    losses = [m["loss"] for m in read_metrics(tmp_path / "metrics.jsonl") if "loss" in m]
    assert losses[0] > 3.0
    assert losses[-1] < 0.1


def test_a_run_leaves_everything(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    model = run(tmp_path, tokenizer, replace(SETTINGS, held_out_every=5))
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["settings"]["steps"] == 8 and record["data"] == DATA
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    card = (tmp_path / "README.md").read_text()
    assert "| accuracy |" in card and "written in the tests" in card
    again = AveyBForMaskedLM.from_pretrained(tmp_path / "model")
    assert same(model, again)
    assert AveyBTokenizer.load(tmp_path / "model").ranks == tokenizer.ranks
    assert read_metrics(tmp_path / "metrics.jsonl")[-2]["tokens_per_second"] > 0


def test_nothing_is_overwritten(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    run(tmp_path, tokenizer, replace(SETTINGS, steps=1))
    with pytest.raises(ConfigError, match="already holds a run"):
        run(tmp_path, tokenizer, replace(SETTINGS, steps=1))
    with pytest.raises(ConfigError, match=r"learning_rate = 0\.003, now it is 0\.5"):
        run(tmp_path, tokenizer, replace(SETTINGS, steps=1, learning_rate=0.5), resume=True)
    with pytest.raises(InputError, match="holds no run to resume"):
        run(tmp_path / "other", tokenizer, resume=True)


def test_a_loss_that_is_no_number_stops_the_run(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    model = fresh()
    with torch.no_grad():
        model.model.layers[0].fuser.bias[0] = float("nan")
    with pytest.raises(InputError, match="step 1 is nan: stopped, nothing was overwritten"):
        run(tmp_path, tokenizer, model=model)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch_size": 5}, "must be a multiple"),
        ({"steps": 0}, "steps is 0"),
        ({"mask_rate": 0.0}, "mask_rate"),
        ({"schedule": "zigzag"}, "schedule"),
    ],
)
def test_bad_settings(tokenizer: AveyBTokenizer, tmp_path: Path, changes: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        run(tmp_path, tokenizer, replace(SETTINGS, **changes))


def test_too_little_text_and_too_small_a_model(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one sequence needs 40"):
        train_mlm(fresh(), tokenizer, ["short"], tmp_path / "a", data=DATA, settings=SETTINGS, device="cpu")
    with pytest.raises(ConfigError, match="the model 300 embeddings"):
        run(tmp_path / "b", tokenizer, model=fresh(vocab_size=300))


def two_process_run(folder: Path) -> None:
    """What each of two processes does."""
    run(folder / "two", AveyBTokenizer.load(folder / "vocabulary"), TWENTY_STEPS)


def test_two_processes_equal_one(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    run(tmp_path / "one", tokenizer, TWENTY_STEPS)
    tokenizer.save(tmp_path / "vocabulary")
    in_two_processes(two_process_run, tmp_path)
    same_to(1e-5, tmp_path / "one" / "model", tmp_path / "two" / "model")
