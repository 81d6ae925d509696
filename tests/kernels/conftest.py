"""Keeps the interpreter suite to its own process, and prints the compile gate's table at the end of
a run with -v.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

# tests/kernels/test_interpreter.py starts these with TRITON_INTERPRET=1, which Triton reads when a
# kernel is defined.
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreter"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    rows = [
        json.loads(v)
        for r in reports
        for name, v in getattr(r, "user_properties", [])
        if name == "compile_gate"
    ]
    if not rows or terminalreporter.verbosity < 0:
        return
    from rigs.kernels.compile_gate import markdown

    terminalreporter.section("compile gate")
    terminalreporter.write_line(markdown(sorted(rows, key=lambda row: row["case"])))
