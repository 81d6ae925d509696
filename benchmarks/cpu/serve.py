"""A running server under load: one client, many at once, and one again, for a minute each; its
memory meanwhile.

    python benchmarks/cpu/serve.py                                  # this project's documentation,
    three minutes python benchmarks/cpu/serve.py INDEX --clients 32 --seconds 60  # an index of
    yours python benchmarks/cpu/serve.py --hostile                        # one client beside
    attackers: hostile.py

Every client keeps one connection open and asks the next question when the last one is answered.
Questions are the words of sentences of the documents themselves, drawn with a fixed seed; after
5,000 requests they come again. Times are from sending a request to having read its answer, in the
client; clients and server share the machine's processors. Memory is the resident set of the server
and its processes: before the load, and twelve times during it (Linux alone).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from hostile import under_attack

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.server.limits import ServerLimits

ROOT = Path(__file__).parents[2]
SAMPLES = 12  # of the server's memory
HOSTILE = ROOT / "benchmarks" / "results" / "cpu_serve_hostile.json"
RESULTS = ROOT / "benchmarks" / "results" / "cpu_serve.json"


def documentation(folder: Path) -> Path:
    """Build an index of this project's pages."""
    paths = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*.md"))]
    build_index(
        [{"_id": path.name, "text": path.read_text(encoding="utf-8")} for path in paths], folder
    )
    return folder


def draw_questions(index: Path, count: int) -> list[str]:
    """Draw runs of 4 to 12 words from documents of the index."""
    rng = random.Random(0)
    with Retriever.load(index) as retriever:
        texts = [document.text for document in retriever.documents(limit=200)]
    words = [found for text in texts if len(found := re.findall(r"\w+", text)) > 12]
    questions = []
    for _ in range(count):
        text = rng.choice(words)
        start = rng.randrange(len(text) - 12)
        questions.append(" ".join(text[start : start + rng.randint(4, 12)]))
    return questions


def load(
    url: str, server: int, questions: list[str], clients: int, seconds: float
) -> dict[str, Any]:
    """Ask with some clients for some seconds."""
    times: list[list[float]] = [[] for _ in range(clients)]
    statuses: list[set[int]] = [set() for _ in range(clients)]
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
        position = number
        while time.monotonic() < end:
            body = json.dumps({"query": questions[position % len(questions)], "k": 10})
            began = time.perf_counter()
            connection.request("POST", "/search", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            times[number].append(time.perf_counter() - began)
            statuses[number].add(answer.status)
            position += clients
        connection.close()

    memory = [resident(server)]
    step = seconds / SAMPLES
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for _ in range(SAMPLES):
        time.sleep(step)
        memory.append(resident(server))
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    values = np.concatenate([np.array(each) for each in times])
    return {
        "clients": clients,
        "seconds": round(took, 2),
        "requests": len(values),
        "requests_per_second": round(len(values) / took, 1),
        "milliseconds": {
            f"p{q}": round(1000 * float(np.percentile(values, q)), 1) for q in (50, 95, 99)
        },
        "statuses": sorted(set().union(*statuses)),
        "resident_mib": memory,
    }


def metric(url: str, name: str) -> float:
    """Read one number from the server's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])


def resident(server: int) -> float:
    """Return the resident memory in MiB of the server of a process id, and of the processes that it
    started.
    """
    tasks = Path(f"/proc/{server}/task").glob("*/children")
    children = [each for task in tasks for each in task.read_text().split()]
    pages = sum(
        int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in (server, *children)
    )
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def start(index: Path, options: argparse.Namespace) -> tuple[subprocess.Popen[str], str]:
    """Start a server of an index; return it and its address."""
    given = [
        "--port",
        "0",
        "--threads",
        str(options.threads),
        "--processes",
        str(options.processes),
    ]
    command = [sys.executable, "-m", "aveyb_retrieval.cli.serve", str(index), *given]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    url = next(line.strip().rstrip("/") for line in server.stderr if line.startswith("http"))
    threading.Thread(target=server.stderr.read, daemon=True).start()  # or its log fills the pipe
    return server, url


def write(result: dict[str, Any], path: Path) -> None:
    """Write and show what was measured."""
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def measure_hostile(options: argparse.Namespace, load_before: float) -> None:
    """Measure one client alone, beside each attack, and alone again."""
    with tempfile.TemporaryDirectory() as folder:
        index = options.index or documentation(Path(folder) / "documentation")
        questions = draw_questions(index, 5000)
        server, url = start(index, options)
        try:
            load(url, server.pid, questions[::-1], 4, 5.0)  # warm
            quiet = load(url, server.pid, questions, 1, options.seconds)
            attacks = list(
                under_attack(url, lambda: load(url, server.pid, questions, 1, options.seconds))
            )
            again = load(url, server.pid, questions, 1, options.seconds)
        finally:
            server.terminate()
            server.wait()
    result = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_before": load_before,
        "python": platform.python_version(),
        "threads": options.threads,
        "processes": options.processes,
        "quiet": quiet,
        "attacks": attacks,
        "quiet_again": again,
    }
    write(result, options.out or HOSTILE)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("index", nargs="?", type=Path)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--threads",
        type=int,
        default=ServerLimits.threads,
        help="searches that the server runs at once",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=ServerLimits.processes,
        help="processes of the server that search",
    )
    parser.add_argument(
        "--hostile", action="store_true", help="one client alone, then beside attackers"
    )
    parser.add_argument("--out", type=Path, help=f"[default: {RESULTS.name} or {HOSTILE.name}]")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    if options.hostile:
        measure_hostile(options, load_before)
        return
    with tempfile.TemporaryDirectory() as folder:
        index = options.index or documentation(Path(folder) / "documentation")
        questions = draw_questions(index, 5000)
        server, url = start(index, options)
        try:
            load(url, server.pid, questions[::-1], options.clients, 2.0)  # warm
            alone = load(url, server.pid, questions, 1, options.seconds)
            before = [metric(url, f"aveyb_query_batch_size_{part}") for part in ("count", "sum")]
            together = load(url, server.pid, questions, options.clients, options.seconds)
            after = [metric(url, f"aveyb_query_batch_size_{part}") for part in ("count", "sum")]
            again = load(url, server.pid, questions[::-1], 1, options.seconds)
        finally:
            server.terminate()
            server.wait()
        if options.processes == 1:  # others do not count them
            together["queries_per_batch"] = round(
                (after[1] - before[1]) / (after[0] - before[0]), 2
            )
        with Retriever.load(index) as retriever:
            documents = len(retriever)
    result = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_before": load_before,
        "python": platform.python_version(),
        "index": str(options.index or "documentation of this project"),
        "documents": documents,
        "threads": options.threads,
        "processes": options.processes,
        "exit_code": server.returncode,
        "one_client": alone,
        "many_clients": together,
        "one_client_again": again,
    }
    write(result, options.out or RESULTS)


if __name__ == "__main__":
    main()
