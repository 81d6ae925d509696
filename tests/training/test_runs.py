"""What all runs share: parameters with decay, learning rates, and what is shown of a run."""

import io
import math

import pytest
import torch
from torch import nn

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.training.run_folder import StepDisplay
from aveyb_retrieval.training.settings import SCHEDULES, RunSettings
from aveyb_retrieval.training.trainer import learning_rate_factor, parameter_groups
from tests.refusals import Refusal, refusals


def test_decay_reaches_matrices_only() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2), nn.LayerNorm(2))
    decayed, free = parameter_groups(model, 0.1)
    assert [p.dim() for p in decayed["params"]] == [2, 2] and decayed["weight_decay"] == 0.1
    assert all(p.dim() == 1 for p in free["params"]) and free["weight_decay"] == 0.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_rise_and_fall(name: str) -> None:
    factor = learning_rate_factor(name, 100, 0.1)
    values = [factor(step) for step in range(101)]
    assert values[0] == pytest.approx(0.1) and values[9] == pytest.approx(1.0)
    assert max(values) <= 1.0 and min(values) >= 0.0
    assert values[100] == pytest.approx(1.0 if name == "constant" else 0.0, abs=1e-9)
    if name == "cosine":
        assert values[55] == pytest.approx(0.5 * (1 + math.cos(math.pi * 45 / 90)))
    if name == "trapezoidal":
        assert values[85] == 1.0 and values[95] < 1.0


def test_after_the_warm_up_schedules_are_those_of_transformers() -> None:
    import transformers

    steps, rising = 100, 10

    def theirs(name: str) -> list[float]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=1.0)
        if name == "trapezoidal":
            schedule = transformers.get_wsd_schedule(
                optimizer, rising, 9, num_stable_steps=81, decay_type="1-sqrt", min_lr_ratio=0.0
            )
        else:
            schedule = transformers.get_scheduler(name, optimizer, rising, steps)
        return [schedule.lr_lambdas[0](step) for step in range(rising, steps + 1)]

    for name in ("cosine", "linear", "trapezoidal"):
        factor = learning_rate_factor(name, steps, rising / steps)
        assert [factor(step) for step in range(rising, steps + 1)] == pytest.approx(
            theirs(name), abs=1e-9
        ), name


@refusals(
    {
        ConfigError: {
            "schedule is 'zigzag'": lambda: RunSettings(schedule="zigzag").check(),
            "warmup is 1": lambda: RunSettings(warmup=1.0).check(),
        },
    }
)
def test_settings_out_of_range_are_refused(refused: Refusal) -> None:
    refused()


# --- what is shown: a bar on a terminal, lines elsewhere ------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_count_the_time_from_where_a_resumed_run_began() -> None:
    out = io.StringIO()
    display = StepDisplay(100, 40, "rows", out=out)
    display.started -= 30  # ten steps took half a minute
    display.advance(50)
    display.report(50, 2.34567, 1234.5)
    display.close()
    assert out.getvalue() == "step 50/100, loss 2.346, 1,234 rows/s, 02:30 left\n"


def test_bar() -> None:
    out = Terminal()
    display = StepDisplay(100, 40, "tokens", out=out)
    for step in range(41, 51):
        display.advance(step)
    display.report(50, 2.34567, 98765.4)
    display.close()
    last = out.getvalue().split("\r")[-1]
    assert "50/100 steps" in last and "loss 2.346, 98,765 tokens/s" in last and "<" in last
