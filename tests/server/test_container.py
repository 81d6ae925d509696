"""The container's files are true, as far as that can be told without a registry of images: copies,
extras, commands.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from aveyb_retrieval.cli import index
from aveyb_retrieval.cli import serve as serve_cli
from tests.server.conftest import running

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, click.Command] = {"aveyb-serve": serve_cli.main, "aveyb-index": index.main}
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each with what follows it."""
    lines = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8")).splitlines()
    found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in found]


def array(name: str) -> list[str]:
    """The command of an instruction, written as JSON."""
    (text,) = [rest for each, rest in instructions() if each == name]
    command: list[str] = json.loads(text[text.index("[") :])
    return command


def check_arguments(program: str, arguments: list[str]) -> dict[str, Any]:
    """Parse the arguments of a program; return what its options become."""
    command = COMMANDS[program]
    if isinstance(command, click.Group):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    options, rest, _ = command.make_parser(click.Context(command)).parse_args(list(arguments))
    assert not [each for each in rest if each.startswith("-")]
    return {name: value for name, value in options.items() if value is not None}


def test_every_file_that_is_copied_is_there_and_reaches_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    for name, rest in instructions():
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source.removeprefix('./')}" in ignored, source


def test_what_is_installed_is_what_pyproject_has() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (install,) = [rest for name, rest in instructions() if name == "RUN"]
    (extras,) = re.findall(r"'\.\[(.+?)\]'", install)
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", pyproject, re.MULTILINE), extra
    assert (
        f"-c {shlex.split(install)[shlex.split(install).index('-c') + 1]}" == "-c constraints.txt"
    )
    (image,) = [rest for name, rest in instructions() if name == "FROM"]
    version = image.removeprefix("python:").removesuffix("-slim")
    assert f"Programming Language :: Python :: {version}" in pyproject


def test_commands_parse_with_the_options_that_the_programs_have() -> None:
    (program,) = array("ENTRYPOINT")
    default = check_arguments(program, array("CMD"))
    (secret,) = COMPOSE["services"]["search"]["secrets"]
    assert default["api_key_file"] == f"/run/secrets/{secret}"
    assert default["host"] == "0.0.0.0"
    assert COMPOSE["secrets"][secret] == {"environment": "AVEYB_API_KEY"}
    for service in COMPOSE["services"].values():
        (program,) = service.get("entrypoint", [program])
        check_arguments(program, service.get("command", array("CMD")))
        assert service["image"] == COMPOSE["services"]["search"]["image"]


def test_ports_volumes_and_folders_agree() -> None:
    (exposed,) = [rest for name, rest in instructions() if name == "EXPOSE"]
    port = next(option.default for option in serve_cli.main.params if option.name == "port")
    (published,) = COMPOSE["services"]["search"]["ports"]
    assert published == f"127.0.0.1:{exposed}:{exposed}"
    assert int(exposed) == port
    (volume,) = [rest for name, rest in instructions() if name == "VOLUME"]
    for service in COMPOSE["services"].values():
        named, place = service["volumes"][0].split(":")
        assert (named in COMPOSE["volumes"], place) == (True, volume)
    folder = array("CMD")[0]
    assert folder.startswith(f"{volume}/")
    assert folder in COMPOSE["services"]["index"]["command"]


@pytest.mark.slow
def test_a_server_with_the_containers_arguments_is_healthy_until_it_stops(
    handbook: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("a-key\n")
    _, *options = array("CMD")
    options[options.index("--api-key-file") + 1] = str(tmp_path / "key")
    _, flag, code = array("HEALTHCHECK")
    with running(handbook, *options) as server:
        port = server.url.rpartition(":")[2]
        check = [sys.executable, flag, code.replace(":8080/", f":{port}/")]
        assert check[-1] != code
        assert subprocess.run(check, capture_output=True, timeout=30).returncode == 0
    assert subprocess.run(check, capture_output=True, timeout=30).returncode != 0
