"""Spans of OpenTelemetry: there when its own command starts the server, and with its environment
variables.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

pytest.importorskip(
    "opentelemetry.instrumentation.starlette",
    reason="OpenTelemetry is not installed: pip install '.[telemetry]'",
)

ROOT = Path(__file__).parents[2]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SETTINGS = {
    "OTEL_SERVICE_NAME": "search",
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}


def test_a_request_is_a_span_of_its_callers_trace(handbook: Path, tmp_path: Path) -> None:
    instrument = [str(Path(sys.executable).parent / "opentelemetry-instrument"), sys.executable]
    command = [*instrument, "-m", "aveyb_retrieval.cli.serve", str(handbook), "--port", "0"]
    with (tmp_path / "spans").open("w") as written:
        environment = {**os.environ, **SETTINGS}
        server = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=written, stderr=subprocess.PIPE, text=True
        )
        try:
            assert server.stderr is not None
            url = next(line.strip() for line in server.stderr if line.startswith("http://"))
            headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
            assert (
                httpx2.post(
                    f"{url}search", json={"query": "valve"}, headers=headers, timeout=60
                ).status_code
                == 200
            )
        finally:
            server.terminate()
            assert server.wait(timeout=60) == 0
            server.stderr.close()
    decoder, text, spans = json.JSONDecoder(), (tmp_path / "spans").read_text(), []
    while text.strip():
        span, end = decoder.raw_decode(text.lstrip())
        spans.append(span)
        text = text.lstrip()[end:]
    (whole,) = [span for span in spans if span["name"] == "POST /search"]
    assert whole["context"]["trace_id"] == f"0x{TRACE}"
    assert whole["resource"]["attributes"]["service.name"] == "search"
