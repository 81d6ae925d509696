"""The version of the installed package, and how its extras are installed."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path


def package_version() -> str:
    """Return the installed version, or "unknown" where the package was not installed but runs from a source folder."""
    try:
        return version("aveyb-retrieval")
    except PackageNotFoundError:
        return "unknown"


def install_command(extra: str) -> str:
    """Return what installs an extra from where this package came: a clone, an address (direct_url.json) or its name."""
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    wanted = f"aveyb-retrieval[{extra}]"
    try:
        origin = json.loads(distribution("aveyb-retrieval").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if "url" in origin:
        git = origin.get("vcs_info")
        wanted += f" @ {git['vcs']}+{origin['url']}@{git['commit_id']}" if git else f" @ {origin['url']}"
    return f"pip install {shlex.quote(wanted)}"
