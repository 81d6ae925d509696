"""What a mailbox and one long text cost: seconds, and the memory of all processes together.

    python benchmarks/cpu/archives.py --mails 10000        # read, built, synced with 10 more
    python benchmarks/cpu/archives.py --megabytes 1 6 60   # a text of one file, and a search in it

Mails are conversations of four with quotations, in one MBOX file; the text is a log of English
words. Both are made anew from a seed. Each line is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from email.message import EmailMessage
from pathlib import Path

WORDS = [
    *("the", "pump", "valve", "gate", "crane", "berth", "harbour", "contract", "price", "notice"),
    *("lease", "delivery", "inspection", "pier", "concrete", "steel", "survey", "channel", "tide"),
    *("vessel", "meeting", "report", "invoice", "permit", "drawing", "bolt", "motor", "engine"),
    *("weather", "repair", "schedule", "budget", "supplier", "order", "quality", "pressure"),
]
THREAD = 4  # mails of a conversation
MORE = 10  # mails that are added


def sentence(rng: random.Random, count: int = 14) -> str:
    return " ".join(rng.choices(WORDS, k=count)).capitalize() + f" {rng.randrange(10_000)}."


def mail(number: int, seed: int) -> bytes:
    """One mail, which quotes the one before in its conversation."""
    rng = random.Random(f"{seed} {number}")
    first = number - number % THREAD
    message = EmailMessage()
    message["From"] = f"Person {number % 97} <person{number % 97}@harbour.example>"
    message["To"] = f"Person {number % 89} <person{number % 89}@harbour.example>"
    message["Subject"] = f"{'' if number == first else 'Re: '}{sentence(random.Random(first), 4)}"
    message["Date"] = time.strftime(
        "%a, %d %b %Y %H:%M:%S +0000", time.gmtime(1.7e9 + 977 * number)
    )
    message["Message-ID"] = f"<{number}@harbour.example>"
    body = "\n\n".join(sentence(rng) for _ in range(3))
    if number > first:
        message["References"] = " ".join(f"<{n}@harbour.example>" for n in range(first, number))
        before = "\n".join(f"> {sentence(rng)}" for _ in range(4))
        body += f"\n\nOn Mon, 6 May 2024 at 9:12 Person <p@harbour.example> wrote:\n\n{before}"
    message.set_content(f"{body}\n\n-- \nHarbour Works Ltd, Quay Street 4\n")
    return b"From - Mon May  6 09:12:00 2024\n" + message.as_bytes() + b"\n"


def write_log(path: Path, megabytes: float) -> None:
    rng = random.Random(1)
    lines = [f"2024-03-{1 + n % 28:02} {sentence(rng)}\n" for n in range(5000)]
    with path.open("w", encoding="utf-8") as out:
        while out.tell() < megabytes * 1e6:
            rng.shuffle(lines)
            out.writelines(lines)


def family(pid: int) -> list[int]:
    """A process and those that it has started."""
    listed = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            listed += family(int(child))
    return listed


def resident(pid: int) -> int:
    """The bytes that a process and those that it has started hold in memory."""
    total = 0
    for each in family(pid):
        try:
            pages = int(Path(f"/proc/{each}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        total += pages * 4096
    return total


def run(*arguments: object) -> tuple[float, float]:
    """Run a command of this package; return its seconds and the most memory, in MB."""
    command = [sys.executable, "-m", "aveyb_retrieval.cli.index", *map(str, arguments)]
    began, most, done = time.perf_counter(), 0, threading.Event()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:

        def watch() -> None:
            nonlocal most
            while not done.wait(0.1):
                try:
                    most = max(most, resident(process.pid))
                except OSError:
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        done.set()
        watcher.join()
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}")
    return time.perf_counter() - began, most / 1e6


def show(what: str, measured: tuple[float, float]) -> None:
    print(f"{what:<44} {measured[0]:8.1f} s {measured[1]:8.0f} MB", flush=True)


def measure_mails(count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder, index = Path(top, "mails"), Path(top, "index")
        folder.mkdir()
        box = folder / "Inbox.mbox"
        with box.open("wb") as out:
            out.writelines(mail(number, seed) for number in range(count))
        size = box.stat().st_size / 1e6
        show(f"build of {count:,} mails ({size:.1f} MB)", run("build", folder, "-o", index))
        show("sync without a change", run("sync", folder, "-o", index))
        with box.open("ab") as out:
            out.writelines(mail(number, seed) for number in range(count, count + MORE))
        show(f"sync with {MORE} more", run("sync", folder, "-o", index))
        show("search", run("search", index, "price of the pump", "--sort=-date"))


def measure_text(megabytes: float) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder, index = Path(top, "logs"), Path(top, "index")
        folder.mkdir()
        write_log(folder / "plant.log", megabytes)
        show(f"build of a text of {megabytes:g} MB", run("build", folder, "-o", index))
        show("search", run("search", index, "pressure of the pump"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mails", type=int)
    parser.add_argument("--megabytes", type=float, nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.mails:
        measure_mails(asked.mails, asked.seed)
    for megabytes in asked.megabytes:
        measure_text(megabytes)


if __name__ == "__main__":
    main()
