"""The fuzzer of the server sees a 500 and a hang, and its requests can be made again."""

from __future__ import annotations

import random
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from rigs.fuzz import server as rig
from rigs.fuzz.server import Seen, attack, fuzz, request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def answering(answer: bytes) -> Iterator[tuple[str, int]]:
    """The address of a server that answers to everything in the same way, or never."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            kept = []
            while True:
                try:
                    kept.append(listener.accept()[0])
                except OSError:  # the test is over
                    return
                if answer:
                    kept[-1].recv(1 << 20)
                    kept[-1].sendall(answer)

        threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "what"), [(b"HTTP/1.1 500 Internal Server Error\r\n\r\n", "500"), (b"", "hang")]
)
def test_it_sees_what_no_client_may_see(
    answer: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HANG", "TIMEOUT", "HEAD"):
        monkeypatch.setattr(rig, name, 0.2)
    seen = Seen()
    for address in answering(answer):
        fuzz(address, 3, 0, time.monotonic() + 0.5, seen)
    assert seen.statuses[what]
    finding = seen.findings[0]
    assert (finding["what"], finding["seed"]) == (what, 3)
    sent, _ = request(random.Random(f"3 {finding['number']}"))
    assert repr(sent[:400]) == finding["sent"]


@pytest.mark.slow
def test_a_minute_of_wrong_requests_finds_nothing(handbook: Path, tmp_path: Path) -> None:
    result = attack(handbook, 1.0, 1, tmp_path)
    assert result["findings"] == []
    assert {"200", "400", "422"} <= set(result["statuses"])
