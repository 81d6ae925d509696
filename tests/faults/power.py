"""A power cut, imitated: what a disk may hold at any moment of a command is made from a record of its system calls.

    python -m tests.faults.power [--every N] [--seed N] [--seconds N]

strace records what a command writes, renames and flushes. From that every file has two contents, the one in memory and
the one that a flush has brought to the disk, and every folder two lists of names. After a cut the disk may hold, for each
file that was not flushed since its last write, the old bytes, none, some or all of them; for each folder, the old names
or the new ones. Whatever it is, the index must open as it was before the command or, once that has returned, as it is
after it; and the same command must go on from there.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.errors import AveyBError
from tests.faults import strace, workload
from tests.faults.check import check, held, wanted
from tests.faults.processes import child, quiet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

TRACED = (
    "open,openat,creat,close,lseek,dup,dup2,dup3,fcntl,write,writev,pwrite64,pwritev,pwritev2,truncate,ftruncate,fallocate,"
    "copy_file_range,sendfile,fsync,fdatasync,sync,syncfs,sync_file_range,rename,renameat,renameat2,link,linkat,symlink,"
    "symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,mmap,io_uring_setup"
)
KINDS = ("build", "add", "upsert", "delete", "metadata", "batch", "sync", "compact", "shards")
State = dict[str, bytes | None]  # of a disk: bytes by path, None for a folder
LOSSES = ("names", "bytes", "half", "mixed")


# --- what strace wrote ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A system call that succeeded, by any thread: its arguments as strace writes them, and what it returned."""

    name: str
    arguments: list[str]
    result: int


_LINE = re.compile(r"\d+ +(\w+)\((.*)\) += (-?\d+)")
_BEGUN = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
_HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")


def calls(log: Path) -> Iterator[Call]:
    """The calls of a log written with `-xx`, in the order in which they ended."""
    begun: dict[str, str] = {}
    with log.open() as lines:
        for line in lines:
            if match := _BEGUN.match(line):
                begun[match[1]] = match[2]
                continue
            if match := _RESUMED.match(line):
                line = f"{match[1]} {begun.pop(match[1])}{match[2]}"
            match = _LINE.match(line)
            if match and int(match[3]) >= 0:
                yield Call(match[1], _split(match[2]), int(match[3]))


def _split(arguments: str) -> list[str]:
    """Arguments at the commas between them; with `-xx` no string holds one, but lists of buffers do."""
    found, depth, start = [], 0, 0
    for place, sign in enumerate(arguments):
        if sign in "[{<":
            depth += 1
        elif sign in "]}>":
            depth -= 1
        elif sign == "," and depth == 0:
            found.append(arguments[start:place].strip())
            start = place + 1
    return [*found, arguments[start:].strip()]


def _bytes(text: str) -> bytes:
    """The bytes of all strings in an argument."""
    return b"".join(bytes.fromhex(each.replace("\\x", "")) for each in re.findall(r'"([^"]*)"', text))


def _of_fd(argument: str) -> tuple[int, Path | None]:
    """The number of a descriptor, and the path that strace knows of it."""
    number, _, path = argument.partition("<")
    name = bytes.fromhex("".join(_HEX.findall(path)).replace("\\x", "")).decode() if "\\x" in path else path.rstrip(">")
    return (int(number) if number.lstrip("-").isdigit() else -1), Path(name) if name.startswith("/") else None


# --- the disk ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class File:
    data: bytearray
    durable: bytes = b""


@dataclass(eq=False)
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


class Disk:
    """A folder on a disk: what is there, and what would be there after a power cut."""

    def __init__(self, place: Path, top: Path | None = None) -> None:
        """Load what is at `place`; calls name it as `top`."""
        self.top = top or place
        self.root = _loaded(place)
        self._places: dict[int, tuple[Path, int]] = {}  # of descriptors
        self.unknown: Counter[str] = Counter()

    def apply(self, call: Call) -> bool:
        """Do what a call did; whether it changed anything here."""
        name, a = call.name, call.arguments
        if name in ("open", "openat", "creat"):
            return self._open(call)
        if name == "close":
            self._places.pop(_of_fd(a[0])[0], None)
            return False
        if name in ("unlink", "unlinkat", "rmdir"):
            return self._remove(self._path(a, name))
        if name in ("mkdir", "mkdirat"):
            return self._put(self._path(a, name), Folder())
        if name in ("rename", "renameat", "renameat2", "link", "linkat"):
            old, new = (self._path(a, name), self._path(a[1 if name in ("rename", "link") else 2 :], name))
            node = self._find(old)
            if node is not None and self._find(new) is node:
                return False
            changed = node is not None and self._put(new, node)
            return (self._remove(old) if "rename" in name else False) or changed
        number, path = _of_fd(a[0])
        file = None if path is None else self._find(path)
        if file is None:
            return False
        if name in ("fsync", "fdatasync"):
            if isinstance(file, File):
                file.durable = bytes(file.data)
            else:
                file.durable = dict(file.names)
            return True
        if isinstance(file, Folder):
            return False
        if name == "lseek":
            self._places[number] = (path or Path(), call.result)
        elif name in ("write", "writev"):
            data = _bytes(a[1])[: call.result]
            place = self._places.get(number, (path, 0))[1]
            place = len(file.data) if place == -1 else place
            file.data[place : place + len(data)] = data
            if self._places.get(number, (path, 0))[1] != -1:
                self._places[number] = (path or Path(), place + len(data))
        elif name in ("pwrite64", "pwritev", "pwritev2"):
            data, place = _bytes(a[1])[: call.result], int(a[3])
            file.data.extend(bytes(max(0, place - len(file.data))))
            file.data[place : place + len(data)] = data
        elif name == "ftruncate":
            size = int(a[1])
            del file.data[size:]
            file.data.extend(bytes(size - len(file.data)))
        elif name == "mmap":
            if "PROT_WRITE" in a[2] and "MAP_SHARED" in a[3]:
                self.unknown[name] += 1
            return False
        elif name not in ("fcntl", "dup", "dup2", "dup3"):
            self.unknown[name] += 1
        return name not in ("lseek", "fcntl", "dup", "dup2", "dup3")

    def _open(self, call: Call) -> bool:
        flags = next((each for each in call.arguments if "O_" in each), "")
        path = self._path(call.arguments, call.name)
        node, changed = self._find(path), False
        if node is None and "O_CREAT" in flags:
            node = File(bytearray())
            changed = self._put(path, node)
        if isinstance(node, File):
            if "O_TRUNC" in flags and node.data:
                node.data.clear()
                changed = True
            self._places[call.result] = (path, -1 if "O_APPEND" in flags else 0)
        return changed

    def _path(self, arguments: list[str], name: str) -> Path:
        if not name.endswith(("at", "at2")):
            return Path(_bytes(arguments[0]).decode())
        base = _of_fd(arguments[0])[1] or Path("/")
        return base / _bytes(arguments[1]).decode()

    def _find(self, path: Path) -> File | Folder | None:
        if not path.is_relative_to(self.top):
            return None
        node: File | Folder | None = self.root
        for part in path.relative_to(self.top).parts:
            node = node.names.get(part) if isinstance(node, Folder) else None
        return node

    def _put(self, path: Path, node: File | Folder) -> bool:
        parent = self._find(path.parent)
        if not isinstance(parent, Folder):
            return False
        parent.names[path.name] = node
        return True

    def _remove(self, path: Path) -> bool:
        parent = self._find(path.parent)
        return isinstance(parent, Folder) and parent.names.pop(path.name, None) is not None

    def same_as(self, place: Path) -> bool:
        """Whether what is there is what a folder holds: whether the record was understood."""
        return _listed(self.root) == _listed(_loaded(place))

    def after_a_cut(self, loss: str, rng: random.Random) -> State:
        """What a disk may hold now: bytes by path, None for a folder."""
        found: State = {}

        def walk(folder: Folder, prefix: str) -> None:
            durable = loss == "names" or (loss == "mixed" and rng.random() < 0.5)
            for name, node in sorted((folder.durable if durable else folder.names).items()):
                if isinstance(node, Folder):
                    found[prefix + name] = None
                    walk(node, f"{prefix}{name}/")
                else:
                    found[prefix + name] = _left(node, loss, rng)

        walk(self.root, "")
        return found


def _left(file: File, loss: str, rng: random.Random) -> bytes:
    """What is left of a file."""
    data = bytes(file.data)
    if file.durable == data:
        return data
    how = rng.choice(("names", "bytes", "half", "all")) if loss == "mixed" else loss
    if how == "names":
        return file.durable
    if how == "bytes":
        return b""
    return data[: rng.randrange(len(data) + 1)] if how == "half" else data


def _loaded(place: Path) -> Folder:
    folder = Folder()
    for path in place.iterdir():
        if path.is_dir():
            folder.names[path.name] = _loaded(path)
        else:
            data = path.read_bytes()
            folder.names[path.name] = File(bytearray(data), data)
    folder.durable = dict(folder.names)
    return folder


def _listed(folder: Folder, prefix: str = "") -> State:
    found: State = {}
    for name, node in folder.names.items():
        if isinstance(node, Folder):
            found[prefix + name] = None
            found |= _listed(node, f"{prefix}{name}/")
        else:
            found[prefix + name] = bytes(node.data)
    return found


# --- cuts -------------------------------------------------------------------------------------------------------------


def record(connection: Connection, root: Path, command: workload.Command) -> None:
    """Give a command when told to."""
    quiet()
    workload.small_steps()
    connection.recv()
    command.run(root)
    connection.send("returned")
    connection.recv()


def prepared(kind: str, seed: int, folder: Path) -> tuple[Path, workload.Command, workload.Documents]:
    """An index that a command of this kind can change, with a few versions behind it."""
    root, documents = folder / "ix", workload.Documents()
    with child(record_all, root, seed, kind) as run:
        documents = run.answer()
    number = 0 if kind == "build" else 5
    return root, workload.draw(seed, number, documents, (kind,)), documents


def record_all(connection: Connection, root: Path, seed: int, kind: str) -> None:
    """Make what the command `kind` starts from."""
    quiet()
    workload.small_steps()
    documents = workload.Documents()
    for number in range(0 if kind == "build" else 5):
        command = workload.draw(seed, number, documents, ("upsert", "delete", "sync") if number else ("build",))
        command.prepare(root)
        command.run(root)
        documents = command.after(documents)
    connection.send(documents)
    connection.recv()


def cuts(
    kind: str, seed: int, folder: Path, *, every: int = 1, deadline: float = float("inf")
) -> tuple[int, list[str]]:
    """Cut the power during a command of one kind and after it: how many different disks were checked, and violations."""
    place, before = folder / "place", folder / "before"
    place.mkdir(parents=True)
    root, command, documents = prepared(kind, seed, place)
    command.prepare(root)
    shutil.copytree(place, before)
    disk, log = Disk(place), folder / "strace.log"
    with child(record, root, command) as run:
        with strace.attached(run.pid, "-y", "-xx", "-s", "100000000", "-e", f"trace={TRACED}", "-o", str(log)):
            run.connection.send("go")
            assert run.answer() == "returned"
    recorded = list(calls(log))
    changing = [at for at, call in enumerate(recorded) if disk.apply(call)]
    assert disk.same_as(place), f"{kind}: the record was not understood ({dict(disk.unknown)})"
    assert not disk.unknown, disk.unknown
    rng, violations = random.Random(f"{kind} {seed}"), list[str]()
    end = len(recorded) - 1
    moments = [end, *(at for at in changing if at != end and not rng.randrange(every))]
    disks = _disks(Disk(before, place), recorded, moments, rng)
    checked = 0
    for (at, loss), state in disks:
        if time.monotonic() > deadline:
            break
        checked += 1
        _write(place, state)
        with child(check_disk, root, command, documents, at == end) as checker:
            wrong = checker.answer()
        if wrong:
            call = recorded[at]
            where = f"{kind}, seed {seed}, after call {at} of {len(recorded)}, loss of {loss}"
            violations.append(f"{where} ({call.name} {_of_fd(call.arguments[0])[1]}): {wrong}")
            print(violations[-1], flush=True)
    return checked, violations


def _disks(
    disk: Disk, recorded: list[Call], moments: list[int], rng: random.Random
) -> list[tuple[tuple[int, str], State]]:
    """The different disks after cuts at some moments, the last moment's first, the others in any order."""
    found: dict[int, tuple[tuple[int, str], State]] = {}
    for at, call in enumerate(recorded):
        disk.apply(call)
        for loss in LOSSES * (3 if at == moments[0] else 1) if at in moments else ():
            state = disk.after_a_cut(loss, rng)
            found[hash(tuple(sorted(state.items())))] = (at, loss), state  # the last moment of a state is the strictest
    disks = list(found.values())
    rng.shuffle(disks)
    return sorted(disks, key=lambda each: each[0][0] != moments[0])


def _write(place: Path, state: State) -> None:
    shutil.rmtree(place)
    place.mkdir()
    for name, data in state.items():  # folders come before what is in them
        if data is None:
            (place / name).mkdir()
        else:
            (place / name).write_bytes(data)


def check_disk(
    connection: Connection, root: Path, command: workload.Command, documents: workload.Documents, returned: bool
) -> None:
    """Say what is wrong with an index after a cut, and after the command was given again; "" where nothing is."""
    quiet()
    workload.small_steps()
    before = wanted(documents) if command.number else None
    documents = command.after(documents)
    after = wanted(documents)
    try:
        seen = held(root)
        if seen != after and (returned or seen != before):
            connection.send(f"neither as before nor as after ({seen and len(seen)} documents)")
            return
        if command.kind == "sync":  # the folder is not what is looked at here
            command.prepare(root)
        command.run(root, done=seen == after)
        check(root, documents)
    except (AveyBError, AssertionError) as error:
        connection.send(f"{type(error).__name__}: {error}")
    else:
        connection.send("")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.power")
    parser.add_argument("--every", type=int, default=1, help="cut after about one call of so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these commands")
    arguments = parser.parse_args()
    if reason := strace.why_not():
        raise SystemExit(reason)
    started, wrong = time.monotonic(), 0
    for kind in arguments.kind or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            number, violations = cuts(
                kind, arguments.seed, Path(folder), every=arguments.every, deadline=started + arguments.seconds
            )
        wrong += len(violations)
        print(f"{kind}: {number} disks after a cut, {len(violations)} violations ({time.monotonic() - started:.0f} s)")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
