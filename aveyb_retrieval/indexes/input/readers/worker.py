"""The process that parses files: what one of them does to it does not reach the index.

One request in a line of JSON on standard input, one answer in a line of JSON on standard output. Each file has a share
of processor time; memory is limited. `process.py` is the other side.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from aveyb_retrieval.indexes.input.readers.base import Unreadable
from aveyb_retrieval.indexes.input.readers.formats import FileKind, read_file

CPU_SECONDS = 120
MEMORY = 4 << 30


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a parser's own messages must not stand between answers
    _limit(resource.RLIMIT_AS, MEMORY)
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS)
        answer = _answer(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer.get("last"):
            return


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    path, kind = Path(os.fsdecode(bytes.fromhex(request["path"]))), FileKind(*request["kind"])
    try:
        found, digest = read_file(path, kind, request["encoding"], request["longest"])
    except Unreadable as error:
        return {"reason": str(error)}
    except MemoryError:
        return {"reason": f"needs more than {MEMORY >> 30} GiB of memory to be read", "last": True}
    except RecursionError:
        return {"reason": "nested too deeply to be read"}
    except Exception as error:  # of a parser that a damaged file has confused
        return {"reason": f"not readable as {kind.name} ({type(error).__name__}: {str(error)[:200]})"}
    pages = None if found.pages is None else [found.pages.starts, found.pages.labels]
    return {"title": found.title, "text": found.text, "pages": pages, "warning": found.warning, "sha256": digest}
