"""What a start costs, with torch and without: seconds to a first answer, memory after it, and what
is installed.

    python benchmarks/cpu/start.py                                  # makes both environments,
    measures them python benchmarks/cpu/start.py --light .venv-light --full .venv # measures these,
    which hold more than is counted

In each environment: one search from the command line, a server until it says its address and until
its first answer, and a program after its first search: its peak, what it holds then, and what of
that is not mapped from files. An index of the pages in docs/. Forms of the model: int8 in both
environments, float32, which is torch, where it is installed. Commands of all forms take turns, so
that a slow moment of the machine does not fall on one alone; a figure is the best of the rounds.
Seconds are those of the clock; processor seconds, which other work changes less, stand beside those
of a search. `imports` are the packages that take longest to import in one search from the command
line, in milliseconds of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "cpu_start.json"
QUESTION = "which notice period applies?"
EXTRAS = {"light": "cpu", "full": "cpu,torch"}
# and digits
MEASURES = {
    "search_seconds": 3,
    "search_processor_seconds": 3,
    "server_ready_seconds": 3,
    "server_answer_seconds": 3,
    "peak_mb": 1,
    "after_mb": 1,
    "own_mb": 1,
}
INSTALLED = """
import json
from importlib.metadata import distributions
sizes = {}
for one in distributions():
    paths = [one.locate_file(file) for file in one.files or []]
    sizes[one.metadata["Name"].lower()] = sum(path.stat().st_size for path in paths if path.is_file()) / 1e6
for name in ("pip", "setuptools", "wheel", "aveyb-retrieval"):
    sizes.pop(name, None)
print(json.dumps(sizes))
"""  # noqa: E501
PROGRAM = """
import json, sys
from aveyb_retrieval import Retriever
with Retriever.load(sys.argv[1], precision=sys.argv[2]) as retriever:
    assert retriever.search(sys.argv[3], 3)
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
fields = (("peak_mb", "VmHWM"), ("after_mb", "VmRSS"), ("own_mb", "RssAnon"))
print(json.dumps({name: int(lines[field].split()[0]) / 1024 for name, field in fields}))
"""


def made(extras: str, folder: Path, python: str) -> dict[str, Any]:
    """Install the package into a fresh environment and return how long that took."""
    started = time.perf_counter()
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{ROOT}[{extras}]"], check=True)
    return {"install_seconds": round(time.perf_counter() - started, 1)}


def installed(python: Path) -> dict[str, Any]:
    """Return what is installed beside the package, and how large it is."""
    done = subprocess.run([python, "-c", INSTALLED], capture_output=True, text=True, check=True)
    sizes = json.loads(done.stdout)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
    return {
        "packages": len(sizes),
        "megabytes": round(sum(sizes.values())),
        "largest": {name: round(sizes[name], 1) for name in largest},
    }


def search(bin_folder: Path, index: Path, form: str) -> dict[str, float]:
    """One search from the command line."""
    command = [
        bin_folder / "aveyb-index",
        "search",
        index,
        QUESTION,
        "-k",
        "3",
        "--precision",
        form,
    ]
    before, started = _children(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=index.parent)
    return {
        "search_seconds": time.perf_counter() - started,
        "search_processor_seconds": _children() - before,
    }


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def server(bin_folder: Path, index: Path, form: str) -> dict[str, float]:
    """A server until it says its address, and until it has answered once."""
    command = [bin_folder / "aveyb-serve", index, "--port", "0", "--precision", form]
    started = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=index.parent) as process:
        try:
            assert process.stderr is not None
            url = (
                next(line for line in process.stderr if line.startswith("http://"))
                .strip()
                .rstrip("/")
            )
            ready = time.perf_counter() - started
            body = json.dumps({"query": QUESTION, "k": 3}).encode()
            request = urllib.request.Request(
                f"{url}/search", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.loads(answer.read())
            return {
                "server_ready_seconds": ready,
                "server_answer_seconds": time.perf_counter() - started,
            }
        finally:
            process.terminate()


def program(bin_folder: Path, index: Path, form: str) -> dict[str, float]:
    """Memory of a program, its peak and what it holds after its first search."""
    command = [bin_folder / "python", "-c", PROGRAM, index, form, QUESTION]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=index.parent)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def imports(bin_folder: Path, index: Path, form: str) -> dict[str, float]:
    """The packages whose own modules take longest to import in one search, in milliseconds."""
    arguments = [bin_folder / "aveyb-index", "search", index, QUESTION, "--precision", form]
    command = [bin_folder / "python", "-X", "importtime", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=index.parent)
    spent: Counter[str] = Counter()
    for own, name in re.findall(
        r"^import time:\s*(\d+) \|\s*\d+ \|\s*(\S+)$", done.stderr, re.MULTILINE
    ):
        spent[name.partition(".")[0]] += int(own)
    return {"all": round(spent.total() / 1e3, 1)} | {
        name: round(us / 1e3, 1) for name, us in spent.most_common(8)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--light", type=Path, help="an environment without torch; a fresh one is made if not given"
    )
    parser.add_argument(
        "--full", type=Path, help="one with torch; a fresh one is made if not given"
    )
    parser.add_argument("--python", default=sys.executable, help="what makes the environments")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--quiet", action="store_true", help="the machine is: pages show times of the clock, too"
    )
    parser.add_argument("--note", default="", help="about the machine, kept with the results")
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}

    with tempfile.TemporaryDirectory() as temporary:
        folder, rows, bins = Path(temporary), [], {}
        for name, extras in EXTRAS.items():
            environment = getattr(args, name)
            facts = {} if environment else made(extras, folder / name, args.python)
            bins[name] = (environment.absolute() if environment else folder / name) / "bin"
            facts |= installed(bins[name] / "python")
            if not environment:  # the server's own packages are not counted above
                subprocess.run(
                    [
                        bins[name] / "pip",
                        "install",
                        "-q",
                        "-c",
                        ROOT / "constraints.txt",
                        f"{ROOT}[server]",
                    ],
                    check=True,
                )
            print(name, facts, flush=True)
            rows += [
                {"environment": name, "form": form, **facts}
                for form in ("int8", "float32")[: 1 + (name == "full")]
            ]
        index, corpus = folder / "index", folder / "corpus.jsonl"
        pages = [
            {"_id": path.stem, "text": path.read_text(encoding="utf-8")}
            for path in sorted(ROOT.glob("docs/*.md"))
        ]
        corpus.write_text("".join(json.dumps(page) + "\n" for page in pages), encoding="utf-8")
        build = [bins["light"] / "aveyb-index", "build", corpus, "-o", index]
        subprocess.run(build, check=True, capture_output=True, cwd=folder)
        for number in range(args.rounds):
            for row in rows:
                place = bins[row["environment"]], index, row["form"]
                found = {**search(*place), **server(*place), **program(*place)}
                for measure, digits in MEASURES.items():
                    row[measure] = round(
                        min(found[measure], row.get(measure, float("inf"))), digits
                    )
                print(number, row["environment"], row["form"], found, flush=True)
        for row in rows:
            row["imports"] = imports(bins[row["environment"]], index, row["form"])
            print(json.dumps(row), flush=True)
    machine = {
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    machine |= {
        "processors": os.cpu_count(),
        "threads": args.threads,
        "quiet": args.quiet,
        "note": args.note,
    }
    args.json.write_text(
        json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
