"""What an index in an object store costs: requests, bytes and milliseconds, and what is left after
failures.

    python -m benchmarks.cpu.object_store TEXTS...        # some nine minutes; --passages 10000 for
    a quick look

TEXTS are `.jsonl.zst` files with a field `text`, cut into passages as `growth.py` does; vectors are
given. The store is moto, a stand-in for S3 on this machine, behind a proxy that adds 20 ms to each
request (and cuts ranges from what it keeps of the objects, as moto reads an object whole for each
range of it). Each reader and writer is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.cpu.growth import DIM, RESULTS, GivenVectors, Questions, documents, draw_vectors
from tests import one_change
from tests.indexes.store_server import Weather, store_server

if TYPE_CHECKING:
    from collections.abc import Callable

WHERE, SMALL = "s3://shelf/large.index", "s3://shelf/small.index"
DELAY = 0.02
SEARCHES = {"whole": 50, "in parts": 10}
KILLS, RACES, TROUBLED = 100, 50, 20


def worker(*arguments: str, cache: Path, whole: int | None = None) -> subprocess.Popen[str]:
    """Start a process of this file with a cache of its own."""
    variables = {**os.environ, "AVEYB_INDEX_CACHE": str(cache)}
    if whole is not None:
        variables["AVEYB_INDEX_CACHE_WHOLE"] = str(whole)
    command = [sys.executable, "-m", "benchmarks.cpu.object_store", *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
        cwd=Path(__file__).parents[2],
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def counted(weather: Weather, work: Callable[[], Any]) -> dict[str, Any]:
    """Requests, bytes and milliseconds of some work."""
    requests, size, started = weather.requests, weather.bytes, time.perf_counter()
    work()
    milliseconds = round((time.perf_counter() - started) * 1e3)
    return {
        "requests": weather.requests - requests,
        "bytes": weather.bytes - size,
        "ms": milliseconds,
    }


class Results(dict[str, Any]):
    """What was measured, printed as it comes."""

    def __setitem__(self, name: str, value: Any) -> None:
        print(f"{name}: {json.dumps(value)}", flush=True)
        super().__setitem__(name, value)


# --- the processes -------------------------------------------------------------------------------


def read(asked: str) -> None:
    """Open the index, and answer a question for each line of the input."""
    from aveyb_retrieval import Retriever

    given = np.load(asked)
    model = GivenVectors(np.zeros((1, DIM), np.float16))
    model.queries = dict(zip(given["texts"].tolist(), given["vectors"], strict=True))
    print("ready", flush=True)
    opened = None
    for number in sys.stdin:
        started = time.perf_counter()
        opened = opened or Retriever.load(WHERE, model=model)
        assert opened.search(given["texts"][int(number)], k=10)
        print(round((time.perf_counter() - started) * 1e3, 1), flush=True)


def write() -> None:
    """Upsert a document into the small index for each line of the input, and say which ones are
    acknowledged.
    """

    from aveyb_retrieval.errors import AveyBError

    model = GivenVectors(draw_vectors(8, 0))
    print("ready", flush=True)
    for name in map(str.strip, sys.stdin):
        try:
            one_change.upsert(
                [{"_id": name, "text": f"a document called {name}"}], SMALL, model=model, wait=120
            )
        except AveyBError as error:
            print(f"refused {error}", flush=True)
        else:
            print(f"done {name}", flush=True)


# --- what is measured ----------------------------------------------------------------------------


def costs(paths: list[Path], count: int, weather: Weather, folder: Path) -> dict[str, Any]:
    """Requests, bytes and milliseconds of a build, of cold and warm searches, and of changes."""
    from aveyb_retrieval import build_index, copy_index

    vectors, out = draw_vectors(count, 1), Results()
    questions, model = Questions(paths, count, vectors), GivenVectors(vectors)
    np.savez(folder / "questions.npz", texts=questions.texts, vectors=questions.vectors)
    here = folder / "index"
    started = time.perf_counter()
    build_index(documents(paths, count), here, model=model, storage_dtype="float16")
    out["build in a folder, s"] = round(time.perf_counter() - started, 1)
    out["MB"] = round(
        sum(path.stat().st_size for path in here.rglob("*") if path.is_file()) / 1e6, 1
    )
    weather.delay, weather.keeps = DELAY, True
    out["copy"] = counted(weather, lambda: copy_index(here, WHERE))
    out["copy again"] = counted(weather, lambda: copy_index(here, WHERE))
    for name, whole in (("whole", 1 << 40), ("in parts", 0)):
        cache = folder / name.replace(" ", "-")
        for state in ("cold", "warm"):
            reader = worker("--read", str(folder / "questions.npz"), cache=cache, whole=whole)
            line(reader)

            def ask(number: int, reader: subprocess.Popen[str] = reader) -> float:
                say(reader, str(number))
                return float(line(reader))

            first = counted(weather, lambda ask=ask: ask(0))
            taken: list[float] = []
            others = counted(
                weather,
                lambda name=name, taken=taken, ask=ask: taken.extend(
                    map(ask, range(1, SEARCHES[name] + 1))
                ),
            )
            found = {
                "open and first search": first,
                "requests of a search": round(others["requests"] / SEARCHES[name], 2),
                "bytes of a search": round(others["bytes"] / SEARCHES[name]),
                "p50 ms": round(float(np.percentile(taken, 50)), 1),
                "p99 ms": round(float(np.percentile(taken, 99)), 1),
            }
            out[f"{name}, {state}"] = found
            reader.communicate()
    row = next(documents(paths, 8))
    out["first upsert on a machine"] = counted(
        weather, lambda: one_change.upsert([row], WHERE, model=model)
    )
    row["text"] += " More."
    out["upsert"] = counted(weather, lambda: one_change.upsert([row], WHERE, model=model))
    weather.delay, weather.keeps = 0.0, False
    return out


class Failures:
    """Writers of a small index: what they were told is written, and what of that is not there."""

    def __init__(self, weather: Weather, folder: Path) -> None:
        from aveyb_retrieval import build_index

        self.weather, self.folder = weather, folder
        self.acknowledged, self.lost = {"first"}, set[str]()
        build_index(
            [{"_id": "first", "text": "The first."}], SMALL, model=GivenVectors(draw_vectors(8, 0))
        )

    def check(self) -> int:
        """How many documents were lost so far."""
        from aveyb_retrieval import Retriever

        with Retriever.load(SMALL, model=GivenVectors(draw_vectors(8, 0))) as opened:
            self.lost |= self.acknowledged - {document.id for document in opened.documents()}
        return len(self.lost)

    def upsert(self, process: subprocess.Popen[str], name: str) -> str:
        """Ask a writer for a document, and note what it answers: "" where it is dead."""
        try:
            say(process, name)
            return self.note(line(process))
        except BrokenPipeError:
            return ""

    def note(self, answer: str) -> str:
        if answer.startswith("done "):
            self.acknowledged.add(answer.removeprefix("done "))
        return answer

    def killed(self) -> dict[str, Any]:
        """Writers that are killed at a random request."""
        rng = random.Random(0)
        for turn in range(KILLS):
            process = worker("--write", cache=self.folder / "killed")
            line(process)
            last = self.weather.requests + rng.randint(1, 80)

            def kill(
                number: int, last: int = last, process: subprocess.Popen[str] = process
            ) -> None:
                if number >= last:
                    process.kill()

            self.weather.hook = kill
            names = (f"k{turn}-{number}" for number in range(20))
            while self.upsert(process, next(names)):
                pass
            self.weather.hook = None
            process.wait()
            self.check()
        return {"kills": KILLS, "acknowledged": len(self.acknowledged), "lost": self.check()}

    def racing(self) -> dict[str, Any]:
        """Two writers that begin together, each time."""
        pair, won = [worker("--write", cache=self.folder / name) for name in ("one", "two")], []
        for process in pair:
            line(process)
        for turn in range(RACES):
            for name, process in zip("ab", pair, strict=True):
                say(process, f"r{turn}{name}")
            won.append(sum(self.note(line(process)).startswith("done ") for process in pair))
        for process in pair:
            process.communicate()
        return {
            "turns": RACES,
            "both acknowledged, one after the other": won.count(2),
            "lost": self.check(),
        }

    def troubled(self, **trouble: Any) -> dict[str, Any]:
        """A writer whose store has troubles."""
        vars(self.weather).update(trouble)
        process = worker("--write", cache=self.folder / "troubled")
        line(process)
        done = [self.upsert(process, f"{next(iter(trouble))}{turn}") for turn in range(TROUBLED)]
        process.communicate()
        self.weather.fails, self.weather.cuts, self.weather.forgets = 0.0, 0.0, False
        acknowledged = sum(answer.startswith("done ") for answer in done)
        return {"changes": TROUBLED, "acknowledged": acknowledged, "lost": self.check()}


def failures(weather: Weather, folder: Path) -> dict[str, Any]:
    """What is left after writers that were killed, that raced, and a store that fails, cuts and
    forgets.
    """
    from tests.contents import problems_of

    tried = Failures(weather, folder)
    return {
        "writers killed at random requests": tried.killed(),
        "two writers racing": tried.racing(),
        "a store that answers 503 to a tenth": tried.troubled(fails=0.1),
        "a store that cuts a tenth of the bodies": tried.troubled(cuts=0.1),
        "a store whose lists are empty": tried.troubled(forgets=True),
        "problems afterwards": problems_of(SMALL),
    }


def main() -> None:
    """Measure, and write `results/object_store.json`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="*", type=Path)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read(given.read)
        return
    if given.write:
        write()
        return
    out: dict[str, Any] = {
        "passages": given.passages,
        "delay ms": DELAY * 1e3,
        "machine": platform.platform(),
    }
    with tempfile.TemporaryDirectory() as name, store_server() as (weather, variables):
        os.environ.update(variables, AVEYB_INDEX_CACHE=str(Path(name, "main")))
        out |= costs(given.texts, given.passages, weather, Path(name))
        out["failures"] = failures(weather, Path(name))
    print(json.dumps(out["failures"], indent=1))
    (RESULTS / "object_store.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
