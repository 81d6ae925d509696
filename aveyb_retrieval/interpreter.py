"""Which program runs Python for processes of our own."""

from __future__ import annotations

import sys
from pathlib import Path

from aveyb_retrieval.errors import ConfigError


def python_program() -> str:
    """Return the path of a Python that runs this version and sees what this process sees.

    `sys.executable` is another program where one holds Python (uWSGI, mod_wsgi, an application that
    embeds it). Raises ConfigError where no Python stands in the environment's folder, either.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if Path(sys.executable).name.lower().startswith(("python", "pypy")):
        return sys.executable
    folders = (sys.exec_prefix, sys.base_exec_prefix)
    names = ("python.exe",) if sys.platform == "win32" else (f"bin/python{version}", "bin/python3")
    for program in (Path(folder, name) for folder in folders for name in names):
        if program.is_file():
            return str(program)
    raise ConfigError(
        f"sys.executable is {sys.executable!r}, which is no Python, and none stands in"
        f" {' or '.join(dict.fromkeys(folders))}; set sys.executable to Python {version}"
    )
