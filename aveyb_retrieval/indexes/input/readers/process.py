"""Read files through a process of their own (`worker.py`), which is ended when a file takes too long."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from aveyb_retrieval.errors import OptionalDependencyError
from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable
from aveyb_retrieval.indexes.input.readers.formats import PACKAGES, TRUSTED, FileKind, read_file
from aveyb_retrieval.indexes.input.readers.worker import CPU_SECONDS
from aveyb_retrieval.indexes.pages import Pages

WALL_SECONDS = 900.0  # a process that waits for something else than the processor

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from aveyb_retrieval.indexes.input.readers.worker import main; main()"
)


class FileReader:
    """Reads files, those of formats that need a parser in another process. Use it in a `with`."""

    def __init__(self, encoding: str | None, longest: int) -> None:
        self._encoding = encoding
        self._longest = longest
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def read(self, path: Path, kind: FileKind) -> tuple[FileText, str]:
        """Read the document that a file holds; also give the SHA-256 of the file's bytes.

        Raises:
            Unreadable: it cannot be read; the message is the reason.
            OptionalDependencyError: the package for its format is not installed.
        """
        package = PACKAGES.get(kind.name)
        if package is not None and importlib.util.find_spec(package) is None:
            raise OptionalDependencyError(package, "files", f"reading {path}")
        if kind.name in TRUSTED:
            return read_file(path, kind, self._encoding, self._longest)
        answer = self._ask(
            {
                "path": os.fsencode(path.absolute()).hex(),
                "kind": kind,
                "encoding": self._encoding,
                "longest": self._longest,
            }
        )
        if "reason" in answer:
            raise Unreadable(answer["reason"])
        try:
            pages = None if answer["pages"] is None else Pages(*map(tuple, answer["pages"]))
        except ValueError as error:
            raise Unreadable(f"its pages cannot be told ({error})") from None
        return FileText(answer["title"], answer["text"], pages, answer["warning"]), answer["sha256"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = _start()
        process = self._process
        assert process.stdin is not None  # a pipe, as `_start` asks for
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(process))
        except (BrokenPipeError, EOFError):
            raise Unreadable(_died(process.wait())) from None
        if answer.get("last"):
            self._stop()
        return answer

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        parts: list[bytes] = []
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        deadline = time.monotonic() + WALL_SECONDS
        while not (parts and parts[-1].endswith(b"\n")):
            if not waiting.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                self._stop()
                raise Unreadable(f"took more than {WALL_SECONDS:.0f} s to read")
            block = os.read(process.stdout.fileno(), 1 << 20)
            if not block:
                raise EOFError
            parts.append(block)
        return b"".join(parts)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:  # what it was sent last and did not read
                        continue
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
    return subprocess.Popen(  # noqa: S603  # this Python, and a line of ours
        [sys.executable, "-I", "-c", _START, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=-1,
    )


def _died(code: int) -> str:
    if code == -signal.SIGXCPU:
        return f"took more than {CPU_SECONDS} s of processor time to read"
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"its reader crashed ({name}): damaged, or made to do that"
