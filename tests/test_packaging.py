"""What is built of this project: an editable install that type checkers find, and a source
distribution.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

setuptools = pytest.importorskip(
    "setuptools", minversion="77", reason="setuptools 77 builds the package"
)
ROOT = Path(__file__).parents[1]
FILES = [
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "NOTICE",
    "aveyb_retrieval/__init__.py",
]
FILES += [
    "aveyb_retrieval/py.typed",
    "aveyb_retrieval/cli/__init__.py",
    "tests/__init__.py",
    "tests/test_packaging.py",
]


def build(tmp_path: Path, what: str) -> Path:
    """Build a copy of the project, without the models, by what pip asks setuptools for."""
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
