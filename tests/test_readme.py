"""README's blocks run in order, line by line, in an empty folder, as somebody copies them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```$",
    (ROOT / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
# lines that are not run, by how they begin, and why
SKIPPED = {
    "make demo": "makes an environment, for which it fetches packages",
    "make test": "runs this test",
    "pip install": "fetches packages; the packages are what runs here",
}
# the programs of this checkout, whatever is installed
PROGRAMS = "".join(
    f'aveyb-{name}() {{ {shlex.quote(sys.executable)} -m aveyb_retrieval.cli.{name} "$@"; }}\n'
    for name in ("index", "serve", "mcp", "eval", "train")
)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
    }


def serve(line: str, folder: Path) -> None:
    """Start a server as the line says, on a free port; ask it, and stop it."""
    _, *arguments = shlex.split(line, comments=True)
    command = [sys.executable, "-m", "aveyb_retrieval.cli.serve", *arguments, "--port", "0"]
    server = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        url = next((said.strip() for said in server.stderr if said.startswith("http://")), None)
        assert url is not None, f"{line}: it ended"
        with urllib.request.urlopen(f"{url}health", timeout=30) as answer:
            assert answer.status == 200
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0
        server.stderr.close()


def lines() -> list[tuple[str, str]]:
    """What is run: lines of shell, and blocks of Python, each with its language."""
    found: list[tuple[str, str]] = []
    for language, code in BLOCKS:
        found += (
            [(language, line) for line in code.splitlines() if line]
            if language == "sh"
            else [(language, code)]
        )
    return found


@pytest.mark.slow
def test_the_blocks_run_in_order_in_an_empty_folder(tmp_path: Path) -> None:
    ran = []
    for language, code in lines():
        if any(code.startswith(start) for start in SKIPPED):
            continue
        if code.startswith("aveyb-serve"):
            serve(code, tmp_path)
        elif language == "sh":
            run(["bash", "-c", PROGRAMS + code], tmp_path)
        else:
            run([sys.executable, "-c", code], tmp_path)
        ran.append(code.split()[0])
    assert {"from", "aveyb-index", "aveyb-serve"} <= set(ran)


def test_all_blocks_are_run_and_nothing_is_skipped_that_is_not_there() -> None:
    assert {language for language, _ in BLOCKS} <= {"sh", "python"}
    for start in SKIPPED:
        assert any(code.startswith(start) for _, code in lines()), (
            f"README has no line {start!r} any more"
        )
