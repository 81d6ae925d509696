"""Faults by the hundred: one system call of a command fails as on a full or broken disk.

    python -m rigs.faults.faults --faults 500 [--seed N] [--seconds N]

strace makes the N-th call of one kind fail, in each thread that comes so far: calls of Lance's
threads and of FAISS as well as Python's. A command ends with an error of ours, or as if nothing had
been; readers find the index as it was before or after it; the same command then succeeds, in the
same process, and everything is found.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import AveyBError
from rigs.faults import strace, workload
from rigs.faults.check import check, held, wanted
from rigs.faults.processes import Child, event, quiet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Event

CALLS = (
    "write",
    "pwrite64",
    "fsync",
    "fdatasync",
    "rename,renameat,renameat2",
    "openat",
    "link,linkat",
    "unlink,unlinkat",
    "ftruncate",
    "mkdir,mkdirat",
)
CODES = ("ENOSPC", "EIO")
ROUNDS = 40  # commands of one process and index
DEEP_EVERY = 10
_INJECTED = re.compile(r"(\w+)\((.*)\(INJECTED\)")


def serve(connection: Connection, root: Path, seed: int, returned: Event) -> None:
    """Give commands when told to; what became of one is said when asked, since saying it is a
    system call, too.
    """
    quiet()
    workload.small_steps()
    _warm_up(root.parent / "warm", seed)
    while True:
        what, *arguments = connection.recv()
        if what == "prepare":
            command, done, fresh = arguments
            if fresh:
                command.prepare(root)
            connection.send("ready")
            connection.recv_bytes()  # "go"
            outcome = _outcome(command, root, done)
            returned.set()
            connection.recv()
            connection.send(outcome)
        elif what == "held":
            connection.send(held(root))
        else:
            documents, deep = arguments
            check(root, documents, deep=deep)
            connection.send("sound")


def _outcome(command: workload.Command, root: Path, done: bool) -> tuple[str, str]:
    import traceback

    try:
        command.run(root, done=done)
    except AveyBError as error:
        return ("refused" if len(str(error).splitlines()) == 1 else "many lines"), str(error)
    except BaseException:  # a finding
        return "escaped", traceback.format_exc()
    return "returned", ""


def _warm_up(root: Path, seed: int) -> None:
    """Import whatever commands import, where no fault is."""
    documents: workload.Documents = {}
    for number, kind in enumerate(
        ("build", "upsert", "sync", "shards", "batch", "metadata", "delete", "compact", "build")
    ):
        command = workload.draw(seed, number, documents, (kind,))
        command.prepare(root / "ix")
        command.run(root / "ix")
        documents = command.after(documents)
        check(root / "ix", documents)


class Faults:
    """The commands of one index, each with a fault."""

    def __init__(self, folder: Path, seed: int, rng: random.Random) -> None:
        self.root, self.seed, self.rng = folder / "ix", seed, rng
        self.log = folder / "strace.log"
        self.documents: workload.Documents = {}
        self.number = 0
        self._start()

    def _start(self) -> None:
        self.returned = event()
        self.child = Child(serve, self.root, self.seed, self.returned)

    def one(self, *, deep: bool) -> tuple[str, str] | None:
        """Give the next command with a fault, check, and give it again; the call that failed, and
        what came of it.
        """
        command = workload.draw(self.seed, self.number, self.documents)
        before, after = (
            wanted(self.documents) if self.number else None,
            wanted(command.after(self.documents)),
        )
        calls, code, when = (
            self.rng.choice(CALLS),
            self.rng.choice(CODES),
            int(2 ** self.rng.uniform(0, 3.5)),
        )
        self.log.write_text("")
        inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:error={code}:when={when}"]
        if calls == "write" and self.rng.random() < 0.8:
            inject += [f"--trace-path={path}" for path in self._our_files()]
        said, text = self._give(command, inject)
        failed = _INJECTED.findall(self.log.read_text(errors="replace"))
        what = f"seed {self.seed}, command {command}, {calls} {when} {code}: {failed[:2]}\n{text}"
        if said == "given up":
            self.child.kill()
            self._start()
        else:
            assert said in ("returned", "refused"), what
            assert failed or said == "returned", what
        seen = self.child.ask("held")
        assert seen in (before, after), f"neither as before nor as after: {what}"
        assert said != "returned" or seen == after, f"it returned, and nothing has changed: {what}"
        again, text = self._give(command, (), done=seen == after)
        assert again == "returned", f"{what}\nand again: {text}"
        self.documents = command.after(self.documents)
        self.number += 1
        assert self.child.ask("check", self.documents, deep) == "sound"
        return (failed[0][0], said) if failed and said != "given up" else None

    def _our_files(self) -> list[Path]:
        """Files that Python and FAISS write, and not Lance: of these alone the names are known
        before.
        """
        current = self.root / "current"
        number, build = 1, "x"
        if current.exists():
            number, build = (
                int(current.read_text()[1:7]) + 1,
                current.read_text().strip().partition("-")[2],
            )
        version = f"v{number:06d}-{build}"
        names = ["lock", "current.tmp", "journal.json.tmp", f"versions/{version}.json.tmp"]
        names += [
            f"faiss/{kind}-{version}-{n}.faiss.tmp"
            for kind in ("document", "passage")
            for n in (0, 1)
        ]
        return [self.root / name for name in names]

    def _give(
        self, command: workload.Command, inject: Sequence[str], *, done: bool = False
    ) -> tuple[str, str]:
        assert self.child.ask("prepare", command, done, bool(inject)) == "ready"
        self.returned.clear()
        tracing = (
            strace.attached(self.child.pid, "-y", "-o", str(self.log), *inject)
            if inject
            else nullcontext()
        )
        with tracing:
            self.child.connection.send_bytes(b"go")
            deadline = time.monotonic() + 180.0
            while not self.returned.wait(0.1):
                alive = self.child.process.is_alive()
                if inject and not alive:
                    time.sleep(1.0)  # strace may write its last line after the process has ended
                # a fault of what wakes a thread is no fault of a disk, and Lance's threads do not
                # survive it
                if inject and self._hit_no_file():
                    return "given up", ""
                assert alive, f"{command} died with {inject}"
                assert time.monotonic() < deadline, f"{command} hangs with {inject}"
        if inject and self._hit_no_file():
            return "given up", ""
        said: tuple[str, str] = self.child.ask("tell")
        return said

    def _hit_no_file(self) -> bool:
        return any(
            "<anon_inode" in where
            or "<pipe:" in where
            or "<socket:" in where
            or str(self.root.parent) not in where
            for _, where in _INJECTED.findall(self.log.read_text(errors="replace"))
        )


def faults(
    count: int, seed: int, folder: Path, deadline: float = float("inf")
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Inject `count` faults that a command met; which calls failed and what became of the commands,
    and violations.
    """
    rng, outcomes, violations, part = (
        random.Random(f"faults {seed}"),
        Counter[tuple[str, str]](),
        list[str](),
        0,
    )
    while sum(outcomes.values()) < count and time.monotonic() < deadline:
        place = folder / f"{part}"
        place.mkdir()
        run = Faults(place, seed * 1000 + part, rng)
        try:
            for number in range(ROUNDS):
                if sum(outcomes.values()) >= count or time.monotonic() > deadline:
                    break
                if (met := run.one(deep=number % DEEP_EVERY == DEEP_EVERY - 1)) is not None:
                    outcomes[met] += 1
        except (AssertionError, EOFError) as error:  # the next index begins afresh
            violations.append(f"seed {seed * 1000 + part}: {error!r}")
            print(violations[-1], flush=True)
        run.child.kill()
        part += 1
    return outcomes, violations


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rigs.faults.faults")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    arguments = parser.parse_args()
    if reason := strace.why_not():
        raise SystemExit(reason)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, violations = faults(
            arguments.faults, arguments.seed, Path(folder), started + arguments.seconds
        )
    told: dict[str, Any] = {}
    for (call, said), number in sorted(outcomes.items()):
        told.setdefault(said, {})[call] = number
    print(
        f"{sum(outcomes.values())} faults in {time.monotonic() - started:.0f} s: {told};"
        f" {len(violations)} violations"
    )
    raise SystemExit(bool(violations))


if __name__ == "__main__":
    main()
