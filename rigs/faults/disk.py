"""What a disk may hold after a power cut, from a record of system calls that strace wrote."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

TRACED = (
    "open,openat,creat,close,lseek,dup,dup2,dup3,fcntl,write,writev,pwrite64,pwritev,pwritev2,truncate,ftruncate,fallocate,"
    "copy_file_range,sendfile,fsync,fdatasync,sync,syncfs,sync_file_range,rename,renameat,renameat2,link,linkat,symlink,"
    "symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,mmap,io_uring_setup"
)
_NAMING = frozenset(
    [
        "unlink",
        "unlinkat",
        "rmdir",
        "mkdir",
        "mkdirat",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
    ]
)
APPENDS = -1  # the place of a descriptor that always writes at the end
State = dict[str, bytes | None]  # of a disk: bytes by path, None for a folder


# --- what strace wrote ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A system call that succeeded, by any thread: its arguments as strace writes them, and what it
    returned.
    """

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
    """Arguments at the commas between them; with `-xx` no string holds one, but lists of buffers
    do.
    """
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
    return b"".join(
        bytes.fromhex(each.replace("\\x", "")) for each in re.findall(r'"([^"]*)"', text)
    )


def of_fd(argument: str) -> tuple[int, Path | None]:
    """The number of a descriptor, and the path that strace knows of it."""
    number, _, path = argument.partition("<")
    name = (
        bytes.fromhex("".join(_HEX.findall(path)).replace("\\x", "")).decode()
        if "\\x" in path
        else path.rstrip(">")
    )
    return (int(number) if number.lstrip("-").isdigit() else -1), (
        Path(name) if name.startswith("/") else None
    )


# --- the disk ------------------------------------------------------------------------------------


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
        self._places: dict[int, int] = {}  # of descriptors
        self.unknown: Counter[str] = Counter()

    def apply(self, call: Call) -> bool:
        """Do what a call did; whether it changed anything here."""
        if call.name in ("open", "openat", "creat"):
            return self._open(call)
        if call.name == "close":
            self._places.pop(of_fd(call.arguments[0])[0], None)
            return False
        if call.name in _NAMING:
            return self._name(call)
        number, path = of_fd(call.arguments[0])
        node = None if path is None else self._find(path)
        if call.name in ("fsync", "fdatasync"):
            return _flush(node)
        return isinstance(node, File) and self._change(call, number, node)

    def _name(self, call: Call) -> bool:
        """Make, remove, or give another name."""
        name, a = call.name, call.arguments
        old = self._path(a, name)
        if name in ("unlink", "unlinkat", "rmdir"):
            return self._remove(old)
        if name in ("mkdir", "mkdirat"):
            return self._put(old, Folder())
        new = self._path(a[1 if name in ("rename", "link") else 2 :], name)
        node = self._find(old)
        if node is not None and self._find(new) is node:
            return False
        changed = node is not None and self._put(new, node)
        return ("rename" in name and self._remove(old)) or changed

    def _change(self, call: Call, number: int, file: File) -> bool:
        """Change what a file holds, or the place in it where the next write goes; whether it holds
        something else.
        """
        name, a = call.name, call.arguments
        if name == "lseek":
            self._places[number] = call.result
        elif name in ("write", "writev"):
            place = self._places.get(number, 0)
            _put_bytes(
                file, len(file.data) if place == APPENDS else place, _bytes(a[1])[: call.result]
            )
            if place != APPENDS:
                self._places[number] = place + call.result
        elif name in ("pwrite64", "pwritev", "pwritev2"):
            _put_bytes(file, int(a[3]), _bytes(a[1])[: call.result])
        elif name == "ftruncate":
            del file.data[int(a[1]) :]
            file.data.extend(bytes(int(a[1]) - len(file.data)))
        elif name not in ("fcntl", "dup", "dup2", "dup3", "mmap") or (
            "MAP_SHARED" in a[-3] and "PROT_WRITE" in a[2]
        ):
            self.unknown[name] += 1
        return name in ("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate")

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
            self._places[call.result] = APPENDS if "O_APPEND" in flags else 0
        return changed

    def _path(self, arguments: list[str], name: str) -> Path:
        if not name.endswith(("at", "at2")):
            return Path(_bytes(arguments[0]).decode())
        base = of_fd(arguments[0])[1] or Path("/")
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


def _flush(node: File | Folder | None) -> bool:
    if isinstance(node, File):
        node.durable = bytes(node.data)
    elif node is not None:
        node.durable = dict(node.names)
    return node is not None


def _put_bytes(file: File, place: int, data: bytes) -> None:
    file.data.extend(bytes(max(0, place - len(file.data))))
    file.data[place : place + len(data)] = data


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
