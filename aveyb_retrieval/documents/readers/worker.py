"""The process that parses files: what one of them does to it does not reach the index.

One request in a line of JSON on standard input; on standard output one answer in a line of JSON, or for a table one for
some rows at a time and a last one. Each answer has a share of processor time; memory is limited, and a crash leaves no
dump behind. `process.py` is the other side.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import Unreadable
from aveyb_retrieval.documents.readers.formats import FileKind, read_file
from aveyb_retrieval.documents.records import LONGEST_REASON, FieldNames
from aveyb_retrieval.system import forbid_dumps, limit_memory, limit_seconds, memory_of_the_machine
from aveyb_retrieval.wording import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

# Half of a small machine: what the file does not take is needed for the index.
MEMORY = min(4 << 30, (memory_of_the_machine() or 8 << 30) // 2)


def main() -> None:
    """Answer requests until there are no more."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    for stream in (1, 2):  # a parser's own messages must not stand between answers, nor on the terminal
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    limit_memory(MEMORY)
    forbid_dumps()
    for line in sys.stdin:
        request = json.loads(line)
        answers = _answers(request)
        while True:
            limit_seconds(request["seconds"])
            answer = next(answers, None)
            if answer is None:
                break
            out.write(json.dumps(answer) + "\n")
            out.flush()
            if answer.get("last"):
                return


def _answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        path = Path(os.fsdecode(bytes.fromhex(request["path"])))
        yield from _rows(path, request) if request["kind"] is None else _text(path, request)
    except Unreadable as error:
        yield {"reason": shortened(str(error), LONGEST_REASON)}
    except MemoryError:
        yield {"reason": f"needs more than {MEMORY / 2**30:.1f} GiB of memory to be read", "last": True}
    except RecursionError:
        yield {"reason": "nested too deeply to be read"}
    except Exception as error:  # of a parser that a damaged file has confused
        yield {"reason": shortened(f"not readable ({type(error).__name__}: {error})", LONGEST_REASON)}


def _text(path: Path, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = FileKind(*request["kind"])
    found, digest = read_file(path, kind, request["encoding"], request["longest"], follow_links=request["follow_links"])
    pages = None if found.pages is None else found.pages.to_dict()
    yield {
        "title": found.title,
        "text": found.text,
        "pages": pages,
        "warning": found.warning,
        "metadata": found.metadata,
        "sha256": digest,
    }


def _rows(path: Path, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from aveyb_retrieval.documents.readers.parquet import read_rows

    for rows in read_rows(path, FieldNames(*request["names"]), request["longest"]):
        yield {"rows": rows}
    yield {"rows": None}
