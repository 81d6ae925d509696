"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Return the installed version, or "unknown" where the package was not installed but runs from a source folder."""
    try:
        return version("aveyb-retrieval")
    except PackageNotFoundError:
        return "unknown"
