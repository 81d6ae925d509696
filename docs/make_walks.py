"""Draw the pictures of docs/architecture.md: `python docs/make_walks.py`, or `--check` to compare
only.

The floors are those that tests/test_architecture.py holds. A walk is traced: a row for each file
that a search, or a build of one document, enters for the first time, in the column of its room.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import click

sys.path.insert(0, str(Path(__file__).parents[1]))
from aveyb_retrieval import Retriever, build_index
from tests.test_architecture import FLOORS, PACKAGE, ROOMS

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGES = Path(__file__).with_name("images")
WIDTH, ROW, HEAD = 900, 26, 78  # points
HANDBOOK = [
    {"_id": f"d{i}", "text": f"The tenant may end lease {i} with three months notice. " * 8}
    for i in range(30)
]
# files that are in no room
SIDE = {"indexes": "index.py, ...", "encoder": "config.py, ...", "": "files.py, ..."}


def entered(run: Callable[[], object]) -> list[str]:
    """Return the files of the package that `run` enters, each once, in the order of its first call
    there.
    """
    found: dict[str, None] = {}

    def profile(frame: Any, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if (
            event == "call"
            and name.startswith(f"{PACKAGE}{os.sep}")
            and frame.f_code.co_name != "<module>"
        ):
            found.setdefault(Path(name).relative_to(PACKAGE).as_posix())

    # all in one thread: the order must not depend on which is faster
    with patch.object(ThreadPoolExecutor, "submit", do_at_once):
        sys.setprofile(profile)
        try:
            run()
        finally:
            sys.setprofile(None)
    return list(found)


def do_at_once(
    _: ThreadPoolExecutor, work: Callable[..., Any], /, *arguments: Any, **options: Any
) -> Future[Any]:
    """Do what another thread would do."""
    done: Future[Any] = Future()
    try:
        done.set_result(work(*arguments, **options))
    except Exception as error:  # its caller gets it from the future
        done.set_exception(error)
    return done


def room(file: str) -> str:
    """The folder of a file, two levels deep where the package has rooms there."""
    parts = file.split("/")[:-1]
    return "/".join(parts[: 2 if parts and parts[0] in ROOMS else 1])


def stairs() -> list[str]:
    """All rooms, from the top floor down."""
    names = []
    for floor in reversed(FLOORS):
        rooms = [
            f"{floor}/{name}"
            for name in reversed(ROOMS.get(floor, []))
            if (PACKAGE / floor / name).is_dir()
        ]
        names += [floor, *rooms]
    return [*names, ""]


def svg(title: str, height: int, parts: list[str]) -> str:
    """Return a picture of these elements on a light ground."""
    style = (
        "rect { rx: 4; stroke: #555; fill: #fff } .page { fill: #fafafa; stroke: #ddd } text {"
        " fill: #222 } .indexes { fill: #fdf1e0 } .encoder { fill: #e8f0fe } .documents { fill:"
        " #e9f5e9 } .head { font-weight: bold; fill: #555 } .small { fill: #555 } path { fill:"
        " none; stroke: #999 }"
    )
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                'font-family="Helvetica, Arial, sans-serif" font-size="12">'
            ),
            f"  <title>{title}</title>",
            f"  <style>{style}</style>",
            f'  <rect class="page" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}"/>',
            *(f"  {part}" for part in parts),
            "</svg>\n",
        ]
    )


def walk(title: str, files: list[str]) -> str:
    """Draw a walk: rooms side by side, the highest on the left; files below each other as they are
    entered.
    """
    rooms = [name for name in stairs() if any(room(file) == name for file in files)]
    step = (WIDTH - 40) / len(rooms)
    parts, points = [f'<text x="20" y="28" font-size="15">{title}</text>'], []
    for column, name in enumerate(rooms):
        floor, _, inner = name.partition("/")
        lines = (floor or "aveyb_retrieval", inner or SIDE.get(name, ""))
        x = 24 + column * step
        heads = [
            f'<text class="head" x="{x:.0f}" y="{50 + 15 * n}">{text}</text>'
            for n, text in enumerate(lines)
        ]
        parts += heads[: 1 + bool(lines[1])]
    for row, file in enumerate(files):
        x, y = 20 + rooms.index(room(file)) * step, HEAD + row * ROW
        points.append(f"{x + step / 2:.0f} {y + 10}")
        parts += [
            (
                f'<rect class="{file.split("/")[0]}" x="{x:.0f}" y="{y}" width="{step - 4:.0f}"'
                ' height="20"/>'
            ),
            (
                f'<text x="{x + 4:.0f}" y="{y + 14}">{row + 1}'
                f" {file.rpartition('/')[2].removesuffix('.py')}</text>"
            ),
        ]
    return svg(
        title,
        HEAD + len(files) * ROW + 12,
        [parts[0], f'<path d="M{"L".join(points)}"/>', *parts[1:]],
    )


def floors() -> str:
    """Draw the folders above each other, with the rooms of those that have some."""
    parts = ['<text x="20" y="28" font-size="15">A folder imports only what stands below it</text>']
    for level, floor in enumerate(reversed(FLOORS)):
        y = 46 + level * 34
        parts += [
            f'<rect class="{floor}" x="20" y="{y}" width="860" height="28"/>',
            f'<text class="head" x="32" y="{y + 18}">{floor}</text>',
            (
                '<text class="small" x="140"'
                f' y="{y + 18}">{" > ".join(reversed(ROOMS.get(floor, [])))}</text>'
            ),
        ]
    return svg("Floors of the package", 46 + len(FLOORS) * 34 + 10, parts)


def pictures() -> dict[Path, str]:
    """Return each picture's file and text."""
    with tempfile.TemporaryDirectory() as top:
        index = Path(top) / "index"
        build_index(HANDBOOK, index)
        with Retriever.load(index) as retriever:
            query = "which notice period applies?"
            retriever.search(query, k=5)  # loads the model
            search = entered(lambda: retriever.search(query, k=10))
        build = entered(
            lambda: build_index([{"_id": "a", "text": "The pump is closed."}], Path(top) / "one")
        )
    return {
        IMAGES / "floors.svg": floors(),
        IMAGES / "walk-query.svg": walk(f"A query, the model loaded: {len(search)} files", search),
        IMAGES / "walk-document.svg": walk(
            f"A document, built into an index: {len(build)} files", build
        ),
    }


def main() -> int:
    """Write the pictures, or only compare them; return how many are not as they should be."""
    check, stale = "--check" in sys.argv, 0
    for path, text in pictures().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        click.echo(f"{path.name}: {'run `python docs/make_walks.py`' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main())
