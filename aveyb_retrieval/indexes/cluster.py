"""`build_on_ray`: tasks on a Ray cluster build the shards of a corpus, and this process builds one
index of them.

A shard is a resumable build, so placing tasks and repeating those whose process or node died is
left to Ray: a task that runs again continues its shard.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from aveyb_retrieval import files
from aveyb_retrieval.documents.corpus import STDIN, source_names
from aveyb_retrieval.errors import (
    AveyBError,
    ConfigError,
    EngineError,
    IndexLockedError,
    InputError,
    extra_for,
    first_line,
)
from aveyb_retrieval.indexes.changes.update import build_index
from aveyb_retrieval.indexes.model import BuildOptions, check_options
from aveyb_retrieval.indexes.nearest.faiss_file import NONE
from aveyb_retrieval.indexes.progress import shown
from aveyb_retrieval.indexes.store.place import open_directory
from aveyb_retrieval.indexes.vectors import check_share

if TYPE_CHECKING:
    from aveyb_retrieval.documents.corpus import Source
    from aveyb_retrieval.indexes.changes.change import Report

LOCAL = "local"
TASK_ATTEMPTS = 3  # of a task whose process or node died
_OBJECT_STORE_BYTES = 128 << 20  # bytes of Ray's object store: tasks return paths, never vectors
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# options of the index, not of shards
_LAST = ("index", "overwrite", "restart", "allow_empty", "progress")


def build_on_ray(
    corpus: Source,
    out: str | Path,
    *,
    of: int,
    address: str = LOCAL,
    cpus: float = 1.0,
    gpus: float = 0.0,
    **options: Unpack[BuildOptions],
) -> Report:
    """Build an index by tasks of a Ray cluster. Killed at any moment, the same call continues it.

    The shards are built in the folder OUT.shards, which every node must see under the same path, as
    it must the corpus; it is removed when the index is complete.

    Args:
        corpus: Paths, or a list of documents: every task reads all of it.
        out: The index directory.
        of: How many shards: several for each place that a task can have keep all of them busy.
        address: "local" starts a cluster of this machine alone, "auto" finds the one that runs
            here, HOST:PORT is the address of a head. A process that is connected to a cluster
            already uses that.
        cpus: Processors of each task, which is also its number of threads (at least one).
        gpus: GPUs of each task; with a `device` of "cuda".
        **options: See `BuildOptions`, `ReadOptions` and `EncodeOptions`.

    Raises:
        ConfigError: an argument is out of range, or tasks cannot read such a corpus.
        EngineError: no cluster answers, or a task failed again and again.
        InputError, ModelError: what a task says; or it wrote where this process does not see it.
        OptionalDependencyError: Ray is not installed.
    """
    build_options: dict[str, Any] = dict(check_options(options, BuildOptions, "build_on_ray"))
    check_share((1, of))
    if not 0 < cpus < float("inf") or not 0 <= gpus < float("inf"):
        raise ConfigError(
            f"cpus={cpus!r}, gpus={gpus!r}: a task needs more than 0 processors, and 0 or more GPUs"
        )
    if gpus and str(build_options.get("device", "cpu")).startswith("cpu"):
        raise ConfigError(
            f"gpus={gpus:g} and device 'cpu': the model would leave them idle; give device='cuda'"
        )
    place = Path(f"{Path(out).absolute()}.shards")
    if open_directory(out).current() is not None and not build_options.get("overwrite"):
        raise ConfigError(
            f"{out}: an index is already there; replace it with --overwrite (overwrite=True)"
        )
    read = _for_all_nodes(corpus)
    shared = {name: value for name, value in build_options.items() if name not in _LAST}
    if build_options.get("restart"):
        files.remove_tree(place)
    with extra_for("building on a cluster", "ray"):
        import ray
    connected = ray.is_initialized()
    if not connected:
        _connect(ray, address)
    try:
        again: Any = [IndexLockedError]  # of a process that Ray gave up, and that still runs
        threads = dict.fromkeys(_THREADS, str(max(1, int(cpus))))
        environment = {"env_vars": {"OMP_WAIT_POLICY": "PASSIVE", **threads}}
        task = ray.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            max_retries=TASK_ATTEMPTS,
            retry_exceptions=again,
            runtime_env=environment,
        )(build_shard)
        waiting = {
            task.remote(read, str(place), (number, of), shared) for number in range(1, of + 1)
        }
        with shown(build_options.get("progress")) as show:
            while waiting:
                show("building shards", of - len(waiting), of, 0)
                (done, *_), _ = ray.wait(list(waiting))
                waiting.remove(done)
                _check_answer(ray, done)
    finally:
        if not connected:
            ray.shutdown()
    last: Any = {
        name: value for name, value in build_options.items() if name in _LAST and name != "restart"
    }
    report = build_index(None, out, vectors=place, **last)
    files.remove_tree(place)
    return report


def build_shard(
    corpus: Source,
    place: str,
    share: tuple[int, int],
    options: dict[str, Any],
) -> str:
    """Build one shard, or find it complete; returns its folder. This is what a task runs."""
    folder = Path(place) / f"{share[0]:04}-of-{share[1]:04}"
    files.make_folder(folder.parent)
    if open_directory(folder).current() is None:
        try:
            build_index(corpus, folder, share=share, index=NONE, **options)
        except IndexLockedError:
            raise
        except AveyBError as error:
            raise type(error)(
                f"node {socket.gethostname()}, shard {share[0]}/{share[1]}: {error}"
            ) from error
    return str(folder)


def _for_all_nodes(corpus: Source) -> Any:
    """The corpus as tasks in other folders can read it."""
    names = source_names(corpus)
    if names is None:
        if isinstance(corpus, (list, tuple)):
            return corpus
        raise ConfigError(
            f"corpus of type {type(corpus).__name__} on Ray: every task reads the corpus itself;"
            " give paths or a list"
        )
    if STDIN in names:
        raise ConfigError(
            "corpus '-' on Ray: tasks cannot read this command's standard input; give a file"
        )
    return [Path(name).absolute() if Path(name).exists() else Path(name) for name in names]


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports to its makers
    started: dict[str, Any] = {
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    try:
        ray.init(
            address=address, logging_level=logging.WARNING, **(started if address == LOCAL else {})
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EngineError(
            f"ray: no cluster at {address!r} ({first_line(error)}); give the address that `ray"
            f" start --head` printed, or {LOCAL}"
        ) from error


def _check_answer(ray: Any, done: Any) -> None:
    """Raise what went wrong in a task."""
    try:
        folder = Path(ray.get(done))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, AveyBError):
            raise error.cause from error
        raise EngineError(f"ray: a task failed: {first_line(error)}") from error
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"ray: a shard could not be built in {TASK_ATTEMPTS + 1} attempts: {first_line(error)}"
        ) from error
    if open_directory(folder).current() is None:
        raise InputError(
            f"{folder}: was built on another node, but is not here; give a folder that all nodes"
            " share"
        )
