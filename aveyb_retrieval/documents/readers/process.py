"""The process that reads files (`main`), and what asks it (`FileReader`).

The process is ended when a file takes too long or too much memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.file_limits import FILE_SECONDS, Limits
from aveyb_retrieval.documents.readers.filetext import FileText, Unreadable, Unrecognized
from aveyb_retrieval.documents.readers.kinds import FileKind, missing_package, read_file
from aveyb_retrieval.documents.readers.originals import look
from aveyb_retrieval.documents.readers.table_lines import read_rows
from aveyb_retrieval.documents.records import (
    MAX_REASON_CHARACTERS,
    FieldNames,
    Pages,
    Record,
    Rejected,
    SourceLocation,
    path_text,
)
from aveyb_retrieval.errors import OptionalDependencyError, how_it_ended, shortened
from aveyb_retrieval.interpreter import python_program
from aveyb_retrieval.system import (
    LIMITED,
    forbid_dumps,
    limit_memory,
    limit_seconds,
    memory_of_the_machine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

WALL_SECONDS = 900.0  # a process that waits for something else than the processor
LOST_SECONDS = (
    600.0  # what files that cannot be read may take together, before each has SHORT_SECONDS only
)
SHORT_SECONDS = 5
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from aveyb_retrieval.documents.readers.process import main; main()"
)


class FileReader:
    """Reads files in another process, one after the other, each in `seconds` of processor time,
    which start again at each picture in it. Use it in a `with`.

    Where files that could not be read have taken `LOST_SECONDS` together, somebody has made them
    for that, and each further file has `SHORT_SECONDS`.
    """

    def __init__(self, limits: Limits, seconds: int = FILE_SECONDS) -> None:
        self.limits = limits
        self._seconds = seconds
        self._lost = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def read(self, path: Path, kind: FileKind) -> tuple[FileText, str]:
        """Read a file as `read_file` does.

        Also raises OptionalDependencyError: a package is not installed.
        """
        if missing := missing_package(kind.name):
            raise OptionalDependencyError(*missing, f"reading {path_text(path)}")
        began = time.monotonic()
        try:
            self._ask(path, kind=kind)
            answer = self._answer()
        except Unrecognized:  # the seconds of a picture bound what it takes
            raise
        except Unreadable:
            self._lost += time.monotonic() - began
            raise
        digest, pages = answer.pop("sha256"), answer.pop("pages")
        try:
            return (
                FileText(**answer, pages=None if pages is None else Pages.from_json(pages)),
                digest,
            )
        except ValueError as error:
            raise Unreadable(f"its pages cannot be told ({error})") from None

    def read_rows(self, path: Path, names: FieldNames) -> Iterator[Record | Rejected]:
        """Read the documents of a Parquet file, each batch in the seconds of a file.

        Raises Unreadable.
        """
        self._ask(path, kind=None, names=[names.id, names.title, names.text])
        source = path_text(path)
        while (rows := self._answer()["rows"]) is not None:
            for row in rows:
                location = SourceLocation(source, row.pop("row"), "row")
                yield (
                    Rejected(location, **row)
                    if "reason" in row
                    else Record(location=location, **row)
                )

    def look(self, **look_options: Any) -> dict[str, Any]:
        """Look into an original, as `originals.look` does; raises Unreadable where that cannot be
        done.
        """
        self._ask(Path(), look=look_options)
        return self._answer()

    @property
    def _allowed(self) -> int:
        return self._seconds if self._lost < LOST_SECONDS else min(self._seconds, SHORT_SECONDS)

    def _ask(self, path: Path, **request: Any) -> None:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = _start()
        assert self._process.stdin is not None  # a pipe, as `_start` asks for
        request |= {
            "path": os.fsencode(path.absolute()).hex(),
            "seconds": self._allowed,
            "limits": self.limits.values(),
        }
        with suppress(BrokenPipeError):  # reading the answer says of what it died
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line())
        while "pictures" in answer:
            self.limits.watch(*answer["pictures"])
            answer = json.loads(self._line())
        if answer.get("last"):
            self._stop()
        if "unrecognized_sha256" in answer:
            raise Unrecognized(answer["reason"], answer["unrecognized_sha256"])
        if "reason" in answer:
            raise Unreadable(answer["reason"])
        return answer

    def _line(self) -> bytes:
        process = self._process
        assert process is not None and process.stdout is not None  # `_ask` has started it
        late, most = threading.Event(), WALL_SECONDS if LIMITED else self._allowed

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(most, end)
        timer.daemon = True
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            return line
        if late.is_set():
            self._stop()
            raise Unreadable(f"took more than {most:.0f} s to read")
        if (how := how_it_ended(process.wait())) == "SIGXCPU":
            raise Unreadable(
                f"took more than {self._allowed} s of processor time to read (--file-seconds,"
                " file_seconds)"
            )
        raise Unreadable(f"its reader crashed ({how}): damaged, or made to do that")

    def _stop(self) -> None:
        if self._process is not None:
            with suppress(BrokenPipeError), self._process:  # what it was sent last and did not read
                self._process.kill()
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    command = [
        python_program(),
        "-I",
        "-c",
        _START,
        json.dumps([entry or str(Path.cwd()) for entry in sys.path]),
    ]
    # Tesseract reads a picture on each processor: more threads would only wait for each other
    environment = {"OMP_THREAD_LIMIT": "1", **os.environ}
    # a line of ours
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )


# Half of a small machine: what the file does not take is needed for the index.
MEMORY = min(4 << 30, (memory_of_the_machine() or 8 << 30) // 2)


def main() -> None:
    """Answer requests until there are no more."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    # a parser's own messages must not stand between answers, nor on the terminal
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    limit_memory(MEMORY)
    forbid_dumps()

    def write(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    for line in sys.stdin:
        request = json.loads(line)
        limits = Limits(*request["limits"])
        # a program that this process starts inherits its limit
        seconds = max(request["seconds"], limits.ocr_seconds)

        def watch(done: int, total: int, seconds: int = seconds) -> None:
            limit_seconds(seconds)
            write({"pictures": [done, total]})

        limit_seconds(request["seconds"])
        for answer in _answers(request, replace(limits, watch=watch)):
            write(answer)
            if answer.get("last"):
                return
            limit_seconds(request["seconds"])


def _answers(request: dict[str, Any], limits: Limits) -> Iterator[dict[str, Any]]:
    try:
        if "look" in request:
            yield look(**request["look"])
            return
        path = Path(os.fsdecode(bytes.fromhex(request["path"])))
        if request["kind"] is None:
            yield from (
                {"rows": rows}
                for rows in read_rows(path, FieldNames(*request["names"]), limits.longest)
            )
            yield {"rows": None}
        else:
            text, digest = read_file(path, FileKind(*request["kind"]), limits)
            yield {
                **vars(text),
                "pages": None if text.pages is None else text.pages.to_dict(),
                "sha256": digest,
            }
    except Unrecognized as error:
        reason = shortened(str(error), MAX_REASON_CHARACTERS)
        yield {"reason": reason, "unrecognized_sha256": error.sha256}
    except Unreadable as error:
        yield {"reason": shortened(str(error), MAX_REASON_CHARACTERS)}
    except MemoryError:
        yield {
            "reason": f"needs more than {MEMORY / 2**30:.1f} GiB of memory to be read",
            "last": True,
        }
    except RecursionError:
        yield {"reason": "nested too deeply to be read"}
    except Exception as error:  # of a parser that a damaged file has confused
        yield {
            "reason": shortened(
                f"not readable ({type(error).__name__}: {error})", MAX_REASON_CHARACTERS
            )
        }
