"""What differs between systems and installations: limits of a process, the package's version, its
extras.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

if sys.platform != "win32":
    import resource

LIMITED = sys.platform != "win32"  # whether a process can be limited


def limit_memory(most: int) -> None:
    """Let this process have at most so many bytes of address space."""
    _lower("RLIMIT_AS", most)


def limit_seconds(more: int) -> None:
    """Let this process use so many more seconds of processor time, and one; then
    SIGXCPU ends it.
    """
    if sys.platform != "win32":
        used = resource.getrusage(resource.RUSAGE_SELF)
        _lower("RLIMIT_CPU", int(used.ru_utime + used.ru_stime) + 1 + more)


def forbid_dumps() -> None:
    """Let this process leave no core dump."""
    _lower("RLIMIT_CORE", 0)


def allow_files(files: int) -> int:
    """Raise the limit of open files to what is wanted, as far as this process may; return what it
    may open of these.
    """
    if sys.platform != "win32":
        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY:
            files = min(files, most)
        if now != resource.RLIM_INFINITY:
            if now >= files:
                return now
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    return files


def usable_processors() -> int:
    """Return how many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def chosen_threads() -> int:
    """Return the threads that `OMP_NUM_THREADS` asks for; 0 where it asks for none."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdigit() else 0


def memory_of_the_machine() -> int | None:
    """Return its bytes; None where the system does not say."""
    if sys.platform == "win32":
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _lower(limit: str, value: int) -> None:
    if sys.platform != "win32":
        what = getattr(resource, limit)
        _, hard = resource.getrlimit(what)
        resource.setrlimit(
            what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard)
        )


def installed(package: str) -> str | None:
    """Return the version of a package that is installed; None where it is not."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def package_version() -> str:
    """Return the installed version, or "unknown" where the package was not installed but runs from
    a source folder.
    """
    return installed("aveyb-retrieval") or "unknown"


def install_command(extra: str) -> str:
    """Return what installs an extra from where this package came: a clone, an address
    (direct_url.json) or its name.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    requirement = f"aveyb-retrieval[{extra}]"
    try:
        origin = json.loads(distribution("aveyb-retrieval").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if "url" in origin:
        git = origin.get("vcs_info")
        requirement += (
            f" @ {git['vcs']}+{origin['url']}@{git['commit_id']}" if git else f" @ {origin['url']}"
        )
    return f"pip install {shlex.quote(requirement)}"
