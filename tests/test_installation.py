"""Installing: what is built of this project, and the command that installs what is missing, from
where the package itself came.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
ADAPTERS = ["langchain", "llama-index", "haystack", "mcp"]
HINT = "from aveyb_retrieval.system import install_command\nprint(install_command('files'))"


def run(code: str, *arguments: str, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=source,
        env={"PYTHONPATH": str(source)},
    )


def test_from_a_clone_its_folder_is_named() -> None:
    assert run(HINT).stdout == f"pip install -e '{ROOT}[files]'\n"


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "'aveyb-retrieval[files]'"),
        (
            {"url": "file:///home/me/clone", "dir_info": {}},
            "'aveyb-retrieval[files] @ file:///home/me/clone'",
        ),
        (
            {"url": "https://example.org/it.git", "vcs_info": {"vcs": "git", "commit_id": "0f"}},
            "'aveyb-retrieval[files] @ git+https://example.org/it.git@0f'",
        ),
    ],
)
def test_installed_it_is_named_by_where_it_came_from(
    origin: dict[str, Any] | None, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "aveyb_retrieval").symlink_to(ROOT / "aveyb_retrieval")
    about = tmp_path / "aveyb_retrieval-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: aveyb-retrieval\nVersion: 0.1.0\n"
    )
    if origin:
        (about / "direct_url.json").write_text(json.dumps(origin))
    done = run(HINT, source=tmp_path)
    assert done.stdout == f"pip install {expected}\n", done.stderr


@pytest.mark.parametrize("extra", ADAPTERS)
def test_an_adapter_without_its_extra_names_it(extra: str) -> None:
    package = {"langchain": "langchain_core"}.get(extra, extra.replace("-", "_"))
    module = extra.replace("-", "_")
    done = run(
        "import sys\nsys.modules[sys.argv[1]] = None\nfrom aveyb_retrieval import"
        f" OptionalDependencyError\ntry:\n    import aveyb_retrieval.integrations.{module}\nexcept"
        " OptionalDependencyError as error:\n    print(error)",
        package,
    )
    shown = package.replace("_", "-")
    assert done.stdout.startswith(f"{shown} is needed for ") and done.stdout.endswith(
        f" and is not installed: pip install -e '{ROOT}[{extra}]'\n"
    ), done.stderr


@pytest.mark.parametrize(
    ("command", "package", "extra"), [("mcp", "mcp", "mcp"), ("serve", "uvicorn", "server")]
)
def test_a_command_without_its_extra_names_it(command: str, package: str, extra: str) -> None:
    done = run(
        f"import sys\nsys.modules[sys.argv.pop()] = None\nfrom aveyb_retrieval.cli.{command} import"
        " main\nmain(sys.argv[1:])",
        "no-index",
        package,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith(f" and is not installed: pip install -e '{ROOT}[{extra}]'")


# --- what is built -------------------------------------------------------------------------------

FILES = [
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "NOTICE",
    "aveyb_retrieval/__init__.py",
    "aveyb_retrieval/py.typed",
    "aveyb_retrieval/cli/__init__.py",
    "tests/__init__.py",
    "tests/test_installation.py",
]


def build(tmp_path: Path, what: str) -> Path:
    """Build a copy of the project, without the models, by what pip asks setuptools for."""
    pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 builds the package")
    for name in FILES:
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "project" / name)
    code = f"from setuptools.build_meta import build_{what}; print(build_{what}({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "project", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / done.stdout.splitlines()[-1]


def test_an_editable_install_is_a_path_that_type_checkers_follow(tmp_path: Path) -> None:
    with zipfile.ZipFile(build(tmp_path, "editable")) as wheel:
        (path,) = [name for name in wheel.namelist() if name.endswith((".pth", ".py"))]
        # no line of code
        assert Path(wheel.read(path).decode().strip()).resolve() == tmp_path / "project"


def test_the_source_distribution_holds_no_tests(tmp_path: Path) -> None:
    with tarfile.open(build(tmp_path, "sdist")) as sdist:
        held = [name.partition("/")[2] for name in sdist.getnames()]
    assert {"aveyb_retrieval/py.typed", "LICENSE", "NOTICE", "README.md"} <= set(held)
    assert [name for name in held if name.startswith("tests")] == []
