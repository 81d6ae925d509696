"""What is shown of a run: a bar on a terminal, lines elsewhere."""

import io

from aveyb_retrieval.training.run_folder import StepDisplay


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
