"""Masked-language modeling end to end on a tiny text: it learns, resumes bit for bit, and spreads
over processes.
"""

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM
from aveyb_retrieval.encoder.text.tokenizer import GPT2_PATTERN, AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.training import trainer
from aveyb_retrieval.training.pretraining import evaluate_labels, open_held_out, pretrain
from aveyb_retrieval.training.run_folder import RunCallback, TrainingRun, check_shapes, read_metrics
from aveyb_retrieval.training.settings import MLMSettings
from tests.refusals import Refusal, refusals

from .conftest import SENTENCES, in_two_processes, tiny_config

SETTINGS = MLMSettings(
    steps=8,
    length=40,
    batch_size=4,
    micro_batch=2,
    learning_rate=3e-3,
    precision="float32",
    log_every=1,
    save_every=4,
    eps=1e-8,
)
TWENTY_STEPS = replace(SETTINGS, steps=20, save_every=1000)
DATA = {"text": "written in the tests"}


def fresh(**changes: object) -> AveyBForMaskedLM:
    torch.manual_seed(0)
    return AveyBForMaskedLM(tiny_config(**changes))


def run(
    folder: Path,
    tokenizer: AveyBTokenizer,
    settings: MLMSettings = SETTINGS,
    *,
    model: AveyBForMaskedLM | None = None,
    resume: bool = False,
) -> AveyBForMaskedLM:
    model = model or fresh()
    pretrain(
        model,
        tokenizer,
        SENTENCES,
        TrainingRun(folder, DATA, resume=resume, device="cpu"),
        settings=settings,
    )
    return model


def same(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    return all(
        a.equal(b)
        for a, b in zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    )


def same_to(tolerance: float, left: Path, right: Path) -> None:
    """The models in two folders have the same weights."""
    one, two = (load_file(folder / "model.safetensors") for folder in (left, right))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=0, atol=tolerance), name


class StopAfter:
    """A Ctrl-C that arrives in the middle of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        original = RunCallback.on_step_end

        def stop(callback: RunCallback, args, state, control, **kwargs):
            if state.global_step == step:
                signal.raise_signal(signal.SIGINT)
            return original(callback, args, state, control, **kwargs)

        monkeypatch.setattr(RunCallback, "on_step_end", stop)


def test_interrupted_and_resumed_equals_unbroken(
    tokenizer: AveyBTokenizer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = run(tmp_path / "whole", tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        StopAfter(patch, 3)
        run(tmp_path / "broken", tokenizer)
    assert not (tmp_path / "broken" / "model").exists()
    assert (tmp_path / "broken" / "checkpoints" / "checkpoint-3").is_dir()
    capfd.readouterr()
    resumed = run(tmp_path / "broken", tokenizer, resume=True)
    printed = "".join(capfd.readouterr())
    assert "missing keys" not in printed and "model shards" not in printed
    assert same(whole, resumed)
    losses = [
        [m["loss"] for m in read_metrics(tmp_path / f / "metrics.jsonl") if "loss" in m]
        for f in ("whole", "broken")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 8


def test_overfits_a_small_text(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    settings = replace(
        SETTINGS,
        steps=130,
        batch_size=8,
        micro_batch=8,
        log_every=10,
        save_every=1000,
        length=20,
        mask_rate=0.1,
        held_out_every=0,
        warmup=0.05,
        learning_rate=1e-2,
    )
    model = fresh(hidden_size=48)
    pretrain(
        model,
        tokenizer,
        SENTENCES[:4],
        TrainingRun(tmp_path, DATA, device="cpu"),
        settings=settings,
    )
    losses = [m["loss"] for m in read_metrics(tmp_path / "metrics.jsonl") if "loss" in m]
    assert losses[0] > 3.0
    assert losses[-1] < 0.1


def test_a_run_leaves_everything(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    model = run(tmp_path, tokenizer, replace(SETTINGS, held_out_every=5))
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["settings"]["steps"] == 8 and record["settings"]["model.hidden_size"] == 32
    assert record["data"].items() > DATA.items()
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    card = (tmp_path / "README.md").read_text()
    assert "| accuracy |" in card and "written in the tests" in card
    again = AveyBForMaskedLM.from_pretrained(tmp_path / "model")
    assert same(model, again)
    assert AveyBTokenizer.load(tmp_path / "model").ranks == tokenizer.ranks
    assert read_metrics(tmp_path / "metrics.jsonl")[-2]["tokens_per_second"] > 0


@refusals(
    {
        ConfigError: {
            "already holds a run": run,
            r"learning_rate = 0\.003, now it is 0\.5": lambda *where, settings: run(
                *where, replace(settings, learning_rate=0.5), resume=True
            ),
        },
        InputError: {
            "holds no run to resume": lambda folder, *where, settings: run(
                folder / "other", *where, settings, resume=True
            ),
        },
    }
)
def test_nothing_is_overwritten(
    tokenizer: AveyBTokenizer, tmp_path: Path, refused: Refusal
) -> None:
    settings = replace(SETTINGS, steps=1)
    run(tmp_path, tokenizer, settings)
    refused(tmp_path, tokenizer, settings=settings)


class NaNAt:
    """A weight that becomes NaN when so many steps are done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        original = RunCallback.on_step_end

        def spoil(callback: RunCallback, args, state, control, model, **kwargs):
            if state.global_step == step:
                with torch.no_grad():
                    next(p for p in model.parameters() if p.dim() == 1)[0] = float("nan")
            return original(callback, args, state, control, model=model, **kwargs)

        monkeypatch.setattr(RunCallback, "on_step_end", spoil)


def test_a_loss_that_is_no_number_stops_the_run(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        NaNAt(patch, 5)
        with pytest.raises(
            InputError, match=r"batch at step 6 is nan: stopped, nothing was .* is .*checkpoint-4"
        ):
            run(tmp_path / "bad", tokenizer)
    assert signal.getsignal(signal.SIGINT) is handler
    assert not (tmp_path / "bad" / "model").exists()
    assert [f.name for f in (tmp_path / "bad" / "checkpoints").iterdir()] == ["checkpoint-4"]
    assert same(run(tmp_path / "bad", tokenizer, resume=True), run(tmp_path / "good", tokenizer))


def test_held_out_loss_along_the_run_changes_nothing(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    watched = run(
        tmp_path / "watched", tokenizer, replace(SETTINGS, held_out_every=5, evaluate_every=4)
    )
    assert same(watched, run(tmp_path / "plain", tokenizer, replace(SETTINGS, held_out_every=5)))
    seen = [m for m in read_metrics(tmp_path / "watched" / "metrics.jsonl") if "eval_loss" in m]
    assert [m["step"] for m in seen] == [4, 8]
    last = evaluate_labels(
        watched, open_held_out(tmp_path / "watched", tokenizer, SETTINGS), batch_size=3
    )
    assert seen[-1]["eval_loss"] == pytest.approx(last["loss"], abs=1e-5)
    assert seen[-1]["eval_accuracy"] == pytest.approx(last["accuracy"])
    with pytest.raises(
        InputError, match="holds less than one sequence of 40 tokens, evaluate_every is 4"
    ):
        run(tmp_path / "none", tokenizer, replace(SETTINGS, held_out_every=0, evaluate_every=4))


def test_a_resume_with_another_model_or_vocabulary_is_refused(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, steps=4)
    run(tmp_path, tokenizer, settings)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = AveyBTokenizer.from_ranks(
        sorted(tokenizer.ranks, key=tokenizer.ranks.__getitem__), pattern=GPT2_PATTERN
    )
    with pytest.raises(
        ConfigError, match=r"settings model.mix_activation = 'relu', now it is 'none'"
    ):
        run(tmp_path, tokenizer, settings, model=fresh(mix_activation="none"), resume=True)
    with pytest.raises(InputError, match=r"data vocabulary = '[0-9a-f]{64}', now it is"):
        run(tmp_path, other, settings, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 48}, r"has the shape \[360, 32\], in the model to train \[360, 48\]"),
        ({"num_hidden_layers": 1}, "layers.1.* is no weight of the model to train"),
        ({"num_hidden_layers": 3}, "layers.2.* has the shape None"),
        # as many of each shape
        ({"layer_pattern": ["dynamic", "static"]}, "layers.1.* has the shape None"),
    ],
)
def test_a_checkpoint_of_another_model(
    tokenizer: AveyBTokenizer, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    fresh().save_pretrained(tmp_path)
    check_shapes(tmp_path, fresh())
    with pytest.raises(ModelError, match=words + ".*belongs to another model"):
        check_shapes(tmp_path, fresh(**changes))


def test_a_run_that_ended_before_its_first_checkpoint_is_started_again(
    tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    # the second has logged nothing yet
    for cause in ("pretraining.pack_texts", "run_folder.RunCallback.on_step_end"):
        folder = tmp_path / cause
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"aveyb_retrieval.training.{cause}", killed)
            with pytest.raises(KeyboardInterrupt):
                run(folder, tokenizer, replace(SETTINGS, steps=1))
        with pytest.raises(
            InputError, match="holds no checkpoint to resume from: start the run again without"
        ):
            run(folder, tokenizer, replace(SETTINGS, steps=1), resume=True)
        run(folder, tokenizer, replace(SETTINGS, steps=1))
        assert (folder / "model").is_dir()


def test_progress_is_shown_with_loss_speed_and_time_left(
    tokenizer: AveyBTokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, tokenizer, replace(SETTINGS, steps=2))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert len(lines) == 2
    assert re.fullmatch(r"step 2/2, loss \d\.\d+, [\d,]+ tokens/s, 00:00 left", lines[1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch_size": 5}, "must be a multiple"),
        ({"steps": 0}, "steps is 0"),
        ({"mask_rate": 0.0}, "mask_rate"),
        ({"schedule": "zigzag"}, "schedule"),
        ({"evaluate_every": -1}, "evaluate_every is -1"),
        ({"keep": 0}, "keep is 0"),
    ],
)
def test_bad_settings(
    tokenizer: AveyBTokenizer, tmp_path: Path, changes: dict, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        run(tmp_path, tokenizer, replace(SETTINGS, **changes))


@refusals(
    {
        InputError: {
            "one sequence needs 40": lambda folder, tokenizer: pretrain(
                fresh(),
                tokenizer,
                ["short"],
                TrainingRun(folder, DATA, device="cpu"),
                settings=SETTINGS,
            ),
        },
        ConfigError: {
            "the model 300 embeddings": lambda folder, tokenizer: run(
                folder, tokenizer, model=fresh(vocab_size=300)
            ),
        },
    }
)
def test_too_little_text_and_too_small_a_model(
    tokenizer: AveyBTokenizer, tmp_path: Path, refused: Refusal
) -> None:
    refused(tmp_path / "run", tokenizer)


def two_process_run(folder: Path) -> None:
    """What each of two processes does."""
    run(folder / "two", AveyBTokenizer.load(folder / "vocabulary"), TWENTY_STEPS)


@pytest.mark.slow
def test_two_processes_equal_one(tokenizer: AveyBTokenizer, tmp_path: Path) -> None:
    run(tmp_path / "one", tokenizer, TWENTY_STEPS)
    tokenizer.save(tmp_path / "vocabulary")
    in_two_processes(two_process_run, tmp_path)
    same_to(1e-5, tmp_path / "one" / "model", tmp_path / "two" / "model")


def test_a_step_that_would_not_fit_is_refused_before_it_starts(
    tokenizer: AveyBTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(trainer, "free_bytes", lambda device: asked.append(1) or (1 << 18))
    with pytest.raises(
        ConfigError, match=r"500 sequences of 40 tokens are read .* need about .* lower micro"
    ):
        run(tmp_path / "run", tokenizer, replace(SETTINGS, batch_size=500, micro_batch=500))
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(trainer, "free_bytes", lambda device: 1 << 24)
    run(tmp_path / "run", tokenizer, replace(SETTINGS, steps=1))
    assert asked
