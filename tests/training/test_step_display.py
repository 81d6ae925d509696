"""What is shown of a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from aveyb_retrieval.training.run_folder import RunCallback, RunFolder


def test_lines_count_the_time_from_where_a_resumed_run_began(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    callback = RunCallback(RunFolder(tmp_path, {}, {}, resume=False), units_per_step=100, unit="rows")
    callback._first_step, callback._started = 40, callback._started - 30  # ten steps took half a minute
    state = SimpleNamespace(is_world_process_zero=True, global_step=50, max_steps=100)
    callback.on_log(None, state, None, {"loss": 2.34567})  # type: ignore[arg-type]
    assert capsys.readouterr().err == "step 50/100, loss 2.346, 33 rows/s, 02:30 left\n"
