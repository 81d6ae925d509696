"""Limits of a process: memory, processor time, core dumps, open files. Windows has none of these calls."""

from __future__ import annotations

import os
import sys

if sys.platform != "win32":
    import resource


def limit_memory(most: int) -> None:
    """Let this process have at most so many bytes of address space."""
    if sys.platform != "win32":
        _lower(resource.RLIMIT_AS, most)


def limit_seconds(more: int) -> None:
    """Let this process use so many more seconds of processor time, and one; then SIGXCPU ends it."""
    if sys.platform != "win32":
        used = resource.getrusage(resource.RUSAGE_SELF)
        _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + more)


def forbid_dumps() -> None:
    """Let this process leave no core dump."""
    if sys.platform != "win32":
        _lower(resource.RLIMIT_CORE, 0)


def allow_files(wanted: int) -> int:
    """Raise the limit of open files to what is wanted, as far as this process may; return what it may open of these."""
    if sys.platform == "win32":
        return wanted
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        return wanted
    return wanted if now == resource.RLIM_INFINITY else now


def memory_of_the_machine() -> int | None:
    """Return its bytes; None where the system does not say."""
    if sys.platform == "win32":
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


if sys.platform != "win32":

    def _lower(what: int, value: int) -> None:
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
