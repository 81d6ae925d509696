"""The paper's forward pass in `examples/`, written straight through, gives what the model gives."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from tests.encoder.models import small_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "avey_b_in_100_lines.py"


def test_the_example_prints_differences_of_rounding_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    printed = re.findall(
        r"^(random|embedded) .* largest difference (\S+), numbers up to (\S+)$", said, re.M
    )
    assert [name for name, _, _ in printed] == ["random", "embedded"], said
    for _, difference, largest in printed:
        assert float(difference) < 1e-5 * max(1, float(largest))
    assert float(printed[0][1]) < 1e-5


@pytest.mark.parametrize(
    "settings", [{}, {"num_retrieved": 1}, {"num_retrieved": 9, "final_norm": False}]
)
def test_the_example_is_the_model_in_its_parts(settings: dict[str, int]) -> None:
    compare = runpy.run_path(str(EXAMPLE))["compare"]
    model = small_model("paper", **settings)  # biases are not zero
    for tokens in (1, 16, 17, 150):
        assert compare("small model", model, torch.randint(0, 97, (tokens,))) < 1e-5
