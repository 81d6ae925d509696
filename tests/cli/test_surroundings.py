"""What surrounds a command: a full disk behind its output, settings of other programs, an address,
the program that holds Python.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aveyb_retrieval import ConfigError, build_index
from aveyb_retrieval.cli.index import main as index_command
from aveyb_retrieval.interpreter import python_program
from tests.indexes.fake import FakeEmbedder


@pytest.fixture
def index(tmp_path: Path) -> Path:
    documents = [{"_id": "pump", "text": "The pump is closed by hand."}]
    build_index(documents, tmp_path / "pumps", model=FakeEmbedder())
    return tmp_path / "pumps"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", [["list"], ["info"], ["--help"]])
def test_an_output_without_room_is_told_in_a_line(index: Path, command: list[str]) -> None:
    places = [] if command == ["--help"] else [str(index)]
    program = [sys.executable, "-m", "aveyb_retrieval.cli.index", *command, *places]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ran = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode != 0
    assert "No space left" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://[::1/db/x", "Invalid IPv6"),
        ("postgresql://user:secret@host:port/db/x", "Port could not be cast"),
        ("postgresql://host:99999/db/x", "Port out of range"),
        ("s3://[::1/x", "s3://[::1/x: not an address (Invalid IPv6 URL)"),
        ("gs://me:secret@[::1/x", "gs://[::1/x: not an address (Invalid IPv6 URL)"),
    ],
)
def test_an_address_that_is_none_is_told_without_its_password(address: str, said: str) -> None:
    ran = CliRunner().invoke(index_command, ["search", address, "rent"], prog_name="aveyb-index")
    assert ran.exit_code == 2
    assert said in ran.output
    assert "secret" not in ran.output
    assert "Traceback" not in ran.output


def test_settings_of_a_client_keep_their_mode_and_their_link(tmp_path: Path, index: Path) -> None:
    home = tmp_path / "home"
    (home / ".cursor").mkdir(parents=True)
    real, link = tmp_path / "mcp.json", home / ".cursor" / "mcp.json"
    real.write_text('{"mcpServers": {"other": {"command": "x"}}}')
    real.chmod(0o600)
    link.symlink_to(real)
    program = [sys.executable, "-m", "aveyb_retrieval.cli.mcp", "install", "cursor", str(index)]
    environment = {**os.environ, "HOME": str(home)}
    subprocess.run([*program, "--yes"], env=environment, check=True, capture_output=True)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert set(json.loads(real.read_text())["mcpServers"]) == {"other", "pumps"}


def test_python_is_looked_for_where_another_program_holds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/sbin/httpd")
    program = python_program()
    version = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
    assert version.split()[1].rpartition(".")[0] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    monkeypatch.setattr(sys, "exec_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_exec_prefix", str(tmp_path))
    with pytest.raises(ConfigError, match=r"'/usr/sbin/httpd', which is no Python"):
        python_program()
