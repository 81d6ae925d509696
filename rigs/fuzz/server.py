"""A running server under requests that are wrong in every layer: no 500, no hang, memory flat.

    python -m rigs.fuzz.server --minutes 30 --seed 7 [--out FILE]
    python -m rigs.fuzz.server --replay SEED NUMBER

Two things ask at once, each for all of the time: schemathesis, with what it draws from
`/openapi.json` (where it is installed), and a fuzzer that writes bytes into connections: heads and
framing that are no HTTP, JSON that is none, fields of any type, paths and parameters of any bytes,
bodies that end early. Beside them, `/health` is asked every five seconds, and the server's resident
memory noted. What was counted is written as JSON; the exit code is 1 where there was a finding: a
status of 500, an answer that did not come within the time of a request, a health check that was not
answered, a server that ended, or, in ten minutes or more, memory that grew by more than a tenth
behind the first fifth, which begins with the largest requests that the server takes: what these
need is kept by allocators.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2

from aveyb_retrieval import build_index
from aveyb_retrieval.server.openapi import OPERATIONS
from rigs.fuzz.mutate import INTERESTING, mutate_bytes, text, value
from tests.server.conftest import pages_of_this_project, running

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "http_fuzz.json"
TIMEOUT = 20.0  # seconds that the server gives a request; the head of one may take HEAD
HEAD = 2.0
HANG = TIMEOUT + 20  # seconds after which an answer that did not come is a finding
FUZZERS = 3
CLIENTS = 8  # that ask for as much as they may
DEMAND = 90.0  # seconds in which they do
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"  # noqa: E501
# times as much memory at the end as after the first fifth, of a run of LONG minutes or more:
GROWTH = 1.1
LONG = 10.0  # in a shorter one there are threads that have not worked yet


@dataclass
class Seen:
    """What was counted; used by several threads."""

    statuses: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    requests: int = 0


# --- one request ---------------------------------------------------------------------------------

SOUND: dict[str, dict[str, Any]] = {
    "/search": {
        "query": "which filters are there?",
        "k": 3,
        "filter": {"kilobytes": {"$gte": 2}},
        "unit": "passage",
    },
    "/v1/embeddings": {
        "input": ["a valve", "a pump"],
        "model": "aveyb-base-en-v2",
        "encoding_format": "base64",
    },
    "/v1/rerank": {"query": "valve", "documents": ["a valve", {"text": "a pump"}], "top_n": 1},
}


def request(rng: random.Random) -> tuple[bytes, bool]:
    """Make a request; also say whether it is framed so that an answer must come."""
    kind = rng.randrange(6)
    if kind == 0:  # anything at all
        return mutate_bytes(rng, _post(rng, _body(rng))), False
    if kind == 1:  # what goes around a body
        return _framed(rng), False
    if kind == 2:
        return _get(rng), True
    if kind == 3:
        return _post(rng, mutate_bytes(rng, _body(rng))), True
    return _post(rng, _body(rng)), True


def _head(method: str, target: str, *headers: str) -> bytes:
    lines = (f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", *headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _path(rng: random.Random) -> str:
    return rng.choice(OPERATIONS).path.format(
        id=quote(text(rng).encode("utf-8", "replace")), name="aveyb-base-en-v2"
    )


def _get(rng: random.Random) -> bytes:
    names = [
        "query",
        "k",
        "offset",
        "filter",
        "mode",
        "text",
        "start",
        "stop",
        "index",
        "context",
        "q",
    ]
    chosen = [(rng.choice(names), value(rng)) for _ in range(rng.randrange(6))] + [
        ("query", "valve")
    ]
    pairs = (f"{name}={quote(_written(rng, given))}" for name, given in chosen)
    return _head(
        rng.choice(("GET", "GET", "HEAD", "DELETE", "OPTIONS")), f"{_path(rng)}?{'&'.join(pairs)}"
    )


def _written(rng: random.Random, given: Any) -> bytes:
    shown = given if isinstance(given, str) and rng.random() < 0.5 else json.dumps(given)
    return shown[:2000].encode("utf-8", "replace")


def _body(rng: random.Random) -> bytes:
    """A body whose fields are changed, dropped, added, or nested."""
    fields = dict(rng.choice(list(SOUND.values())))
    for _ in range(rng.randrange(3)):
        name = rng.choice(
            [*fields, "k", "offset", "filter", "context", "rerank", "min_score", text(rng)]
        )
        choice = rng.randrange(5)
        if choice == 0:
            fields.pop(name, None)
        elif choice == 1:
            fields[name] = rng.choice(INTERESTING)
        elif choice == 2:
            fields[name] = _nested(rng)
        else:
            fields[name] = value(rng)
    return json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _nested(rng: random.Random) -> Any:
    found: Any = {text(rng): value(rng)}
    size = len(json.dumps(found))
    for _ in range(rng.choice((1, 5, 19, 21, 60))):
        key = rng.choice(("$not", "$and", "$or", "a", "$in", "$contains", "$elemMatch"))
        times = rng.choice((1, 2)) if key in ("$and", "$or", "$in") else 0
        size = size * max(times, 1) + len(key) + 8
        if size > 1 << 20:  # sixty levels of two each are more than any memory holds
            break
        found = {key: [found] * times if times else found}
    return found


def _post(rng: random.Random, body: bytes) -> bytes:
    kind = rng.choice(("application/json",) * 8 + ("Application/JSON; charset=x", "text/plain", ""))
    headers = (f"Content-Type: {kind}", f"Content-Length: {len(body)}")
    return (
        _head("POST", rng.choice(list(SOUND)) if rng.random() < 0.9 else _path(rng), *headers)
        + body
    )


def _framed(rng: random.Random) -> bytes:
    """A body whose length is told wrongly, twice, or in chunks of odd sizes; heads that are large
    or no heads.
    """
    body = _body(rng)
    kind = "Content-Type: application/json"
    size = rng.choice([0, 1, len(body) - 1, len(body) + 1, *INTERESTING])
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[i : i + 9]), body[i : i + 9]) for i in range(0, len(body), 9)
    )
    return rng.choice(
        (
            _head("POST", "/search", kind, f"Content-Length: {size}") + body,
            _head(
                "POST", "/search", kind, f"Content-Length: {len(body)}", f"Content-Length: {size}"
            )
            + body,
            _head("POST", "/search", kind, "Transfer-Encoding: chunked")
            + mutate_bytes(rng, chunks + b"0\r\n\r\n"),
            _head("POST", "/search", kind, "Transfer-Encoding: chunked", f"Content-Length: {size}")
            + chunks,
            _head(
                "GET",
                "/health",
                *(f"X-{i}: {'v' * rng.choice((1, 100))}" for i in range(rng.choice((1, 900)))),
            ),
            _head("GET", "/" + "v" * rng.choice((100, 70_000))),
            _head("POST", "/search", kind, "Expect: 100-continue", f"Content-Length: {len(body)}")
            + body,
            _head("GET", "/health", "Upgrade: websocket", "Connection: Upgrade")
            * rng.choice((1, 50)),
            rng.randbytes(rng.choice((1, 100, 10_000))),
        )
    )


LARGEST = {
    "/search": {
        "query": ["valve"] * 900,
        "k": 10,
        "text": True,
        "passages": 10,
        "context": 5,
        "candidates": 1000,
    },
    "/v1/embeddings": {"input": ["the valve of a pump " * 200] * 64, "model": "aveyb-base-en-v2"},
    "/v1/rerank": {"query": "valve", "documents": ["the valve of a pump " * 200] * 64},
}


# --- many of them --------------------------------------------------------------------------------


def ask(address: tuple[str, int], sent: bytes, *, is_whole: bool) -> str:
    """Send a request; return the status of its first answer, or what came in its place."""
    with socket.create_connection(address, timeout=HANG) as connection:
        try:
            connection.sendall(sent)
            connection.settimeout(HANG if is_whole else HEAD + TIMEOUT + HANG)
            if not is_whole:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while len(received) < 16 and (part := connection.recv(4096)):
                received += part
        except TimeoutError:
            return "hang"
        except OSError:
            return "closed"
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", received)
    return found[1].decode() if found else "closed"


def fuzz(address: tuple[str, int], seed: int, first: int, deadline: float, seen: Seen) -> None:
    """Send requests until the deadline: of one seed the numbers `first`, and every `FUZZERS`-th
    behind it.
    """
    number = first
    while time.monotonic() < deadline:
        sent, is_whole = request(random.Random(f"{seed} {number}"))
        try:
            status = ask(address, sent, is_whole=is_whole)
        except OSError as error:  # no connection
            status = type(error).__name__
        seen.statuses[status] += 1
        seen.requests += 1
        if status in ("hang", "500") or "Error" in status:
            seen.findings.append(
                {"what": status, "seed": seed, "number": number, "sent": repr(sent[:400])}
            )
        number += FUZZERS


def demand(address: tuple[str, int], deadline: float) -> None:
    """Ask for as much as may be asked for, from several clients at once, until the deadline."""

    def ask_on() -> None:
        for path, fields in itertools.cycle(LARGEST.items()):
            if time.monotonic() > deadline:
                return
            body = json.dumps(fields).encode()
            headers = ("Content-Type: application/json", f"Content-Length: {len(body)}")
            ask(address, _head("POST", path, *headers) + body, is_whole=True)

    threads = [threading.Thread(target=ask_on) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def watch(url: str, deadline: float, seen: Seen) -> None:
    """Note whether the server answers, and its memory."""
    while time.monotonic() < deadline:
        try:
            httpx2.get(f"{url}/health", timeout=5).raise_for_status()
            metrics = httpx2.get(f"{url}/metrics", timeout=10).text
            resident = re.search(r"^process_resident_memory_bytes (\S+)$", metrics, re.MULTILINE)
            seen.memory.append(round(float(resident[1]) / 2**20, 1) if resident else -1.0)
        except httpx2.HTTPError as error:
            seen.findings.append({"what": f"health: {type(error).__name__}"})
        time.sleep(5)


def draw(url: str, seed: int, minutes: float, folder: Path) -> dict[str, Any]:
    """Have schemathesis ask; what it says, and whether it found something."""
    command = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if command is None:
        return {"skipped": "schemathesis is not installed"}
    options = [
        "--phases",
        "fuzzing",
        "--max-time",
        str(round(60 * minutes)),
        "--seed",
        str(seed),
        "--checks",
        CHECKS,
    ]
    options += [
        "--suppress-health-check",
        "all",
        "--request-timeout",
        str(HANG),
        "--no-color",
        "--continue-on-failure",
    ]
    arguments = [command, "run", f"{url}/openapi.json", *options]
    done = subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=60 * minutes + 600
    )
    cases = re.findall(r"([\d,]+) generated", done.stdout)
    said = "" if done.returncode == 0 else done.stdout[-1000:]
    return {
        "exit_code": done.returncode,
        "cases": int(cases[-1].replace(",", "")) if cases else None,
        "said": said,
    }


def attack(index: Path, minutes: float, seed: int, folder: Path) -> dict[str, Any]:
    """Start a server of an index and attack it for some minutes; what was counted, and the
    findings.
    """
    limits = ("--timeout", str(TIMEOUT), "--head-timeout", str(HEAD), "--max-rate", str(1 << 30))
    seen = Seen()
    log: list[str] = []
    with running(index, *limits) as server:
        assert server.process.stderr is not None
        stderr = server.process.stderr
        reader = threading.Thread(target=lambda: log.extend(stderr), daemon=True)
        reader.start()  # or its log fills the pipe
        host, port = server.url.removeprefix("http://").split(":")
        if minutes >= LONG:
            demand((host, int(port)), time.monotonic() + DEMAND)
        deadline = time.monotonic() + 60 * minutes
        threads = [threading.Thread(target=watch, args=(server.url, deadline, seen))]
        threads += [
            threading.Thread(target=fuzz, args=((host, int(port)), seed, first, deadline, seen))
            for first in range(FUZZERS)
        ]
        for thread in threads:
            thread.start()
        drawn = draw(server.url, seed, minutes, folder)
        for thread in threads:
            thread.join()
        if server.process.poll() is not None:
            seen.findings.append({"what": f"the server ended with {server.process.returncode}"})
    reader.join(timeout=10)
    if drawn.get("exit_code"):
        seen.findings.append({"what": "schemathesis"})
    after = seen.memory[len(seen.memory) // 5 :]
    if minutes >= LONG and after[-1] > GROWTH * after[0]:
        seen.findings.append({"what": f"memory: {after[0]} MiB, then {after[-1]}"})
    kept = [after[place * (len(after) - 1) // 11] for place in range(12)] if after else []
    return {
        "minutes": minutes,
        "seed": seed,
        "options": " ".join(limits),
        "requests": seen.requests,
        "statuses": dict(sorted(seen.statuses.items())),
        "schemathesis": drawn,
        "resident_mib": {
            "after_a_fifth": after[0] if after else None,
            "most": max(after, default=None),
            "kept": kept,
        },
        "log_lines": len(log),
        "tracebacks": sum(line.startswith("Traceback") for line in log),
        "findings": seen.findings,
    }


def main() -> None:
    """Attack, and write what was counted."""
    parser = argparse.ArgumentParser(prog="python -m rigs.fuzz.server", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument(
        "--replay", type=int, nargs=2, metavar=("SEED", "NUMBER"), help="show a request"
    )
    options = parser.parse_args()
    if options.replay:
        sent, is_whole = request(random.Random("{} {}".format(*options.replay)))
        print(sent, "an answer must come" if is_whole else "")
        return
    with tempfile.TemporaryDirectory() as folder:
        build_index(pages_of_this_project(), Path(folder) / "handbook")
        result = attack(Path(folder) / "handbook", options.minutes, options.seed, Path(folder))
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["findings"] else 0)


if __name__ == "__main__":
    main()
