"""Ray's actors as workers: each loads the model once and makes one shard after the other.

Only counts and manifests pass through Ray. Documents are read and shards written by the actors themselves, with the
code that makes them anywhere else; so a shard does not depend on who made it, and what an actor has written is there
when it dies. Ray neither restarts actors nor repeats their work here: `Distribution` does, since it also has to know
when nobody is left.
"""

from __future__ import annotations

import logging
import os
import textwrap
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import AveyBError, ConfigError, EngineError, OptionalDependencyError
from aveyb_retrieval.indexes.input.corpus import STDIN, source_names
from aveyb_retrieval.indexes.shards.distribute import ATTEMPTS, Distribution, Done, Lost, Ready, Status
from aveyb_retrieval.indexes.shards.encoder import ShardEncoder
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.types import Progress, silent
from aveyb_retrieval.version import package_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.indexes.shards.encoder import EncodeJob
    from aveyb_retrieval.indexes.shards.ray_cluster import RayCluster
    from aveyb_retrieval.indexes.shards.shard import ShardManifest

logger = logging.getLogger(__name__)

_TICK = 1.0  # seconds between two looks at the nodes and at how far actors are
_PATIENCE = 30.0  # seconds without an actor after which it is said what is waited for
_REASON = 300  # characters of what Ray says


def encode_on_ray(job: EncodeJob, cluster: RayCluster, progress: Progress) -> tuple[list[ShardManifest], int]:
    """Return the manifests of all shards of a job, and how many documents were encoded for them now.

    Raises:
        ConfigError: the actors do not fit into the cluster, or cannot read the corpus.
        InputError, ModelError: an actor's own error, with the node that it came from.
        EngineError: no cluster answers, or actors die again and again.
    """
    names = source_names(job.corpus)
    if names is not None and STDIN in names:
        raise ConfigError("corpus '-' with ray: actors cannot read this command's standard input; give a file")
    if not (names or isinstance(job.corpus, (list, tuple))):
        raise ConfigError(
            f"corpus of type {type(job.corpus).__name__} with ray: every actor reads the corpus by itself; give paths "
            "or a list"
        )
    cluster.check_device(job.options.get("device", "cpu"))
    job = replace(job, out=Place(job.out).url)
    with cluster.connect() as ray:
        actors = cluster.actors_for(ray.nodes(), job.of)
        workers = RayWorkers(ray, cluster, job, actors)
        try:
            shards = Distribution(workers, Place(job.out), job.of, progress)
            return shards.run(), shards.encoded
        finally:
            workers.close()


class ShardActor:
    """What runs on the cluster: one process with the model. Its answers are small."""

    def __init__(self, job: EncodeJob, folder: str, version: str) -> None:
        """Take a job from a command that runs in `folder` with this `version` of the package; start nothing yet."""
        self._job, self._folder, self._version = job, folder, version
        self._encoder: ShardEncoder | None = None
        self._shard = 0
        self._before = (0, 0)

    def start(self) -> str:
        """Load the model; return the address of the node."""
        import ray

        if package_version() != self._version:
            raise ConfigError(
                f"this node has aveyb-retrieval {package_version()}, the command {self._version}; install the same"
            )
        if Path(self._folder).is_dir():  # relative paths then mean what they mean to the command
            os.chdir(self._folder)
        self._encoder = ShardEncoder(self._job, silent)
        address: str = ray.util.get_node_ip_address()
        return address

    def encode(self, shard: int) -> tuple[ShardManifest, int, int]:
        """Return the manifest of a shard, and the documents and tokens that were encoded for it now."""
        assert self._encoder is not None
        encoder = self._encoder
        self._before = encoder.encoded, encoder.tokens
        self._shard = shard
        try:
            manifest = encoder.encode(shard, log=shard == 1)
        except AveyBError:
            raise
        except Exception as error:  # whatever it is: nobody else can say at which document it happened
            at = f" at the document {self._at()}" if self._at() else ""
            raise EngineError(f"shard {shard}/{self._job.of}{at}: {type(error).__name__}: {error}") from error
        return manifest, *self._counts()

    def status(self) -> tuple[int, int, int, str]:
        """Return the shard being made, the documents and tokens encoded for it now, and the document it is at."""
        return self._shard, *self._counts(), self._at()

    def _counts(self) -> tuple[int, int]:
        encoder = self._encoder
        if encoder is None:
            return 0, 0
        return encoder.encoded - self._before[0], encoder.tokens - self._before[1]

    def _at(self) -> str:
        record = self._encoder.at if self._encoder else None
        return f"{record.id!r} ({record.location})" if record else ""


class RayWorkers:
    """As many actors as were asked for, as long as there is room; one that dies is replaced."""

    def __init__(self, ray: Any, cluster: RayCluster, job: EncodeJob, actors: int) -> None:
        """Start the first actors with the next `wait`."""
        self._ray, self._cluster, self._job, self._count = ray, cluster, job, actors
        self._numbers = count(1)
        self._actors: dict[int, Any] = {}
        self._nodes: dict[int, str] = {}  # of actors that are ready
        self._pending: dict[Any, tuple[int, str]] = {}  # what is asked of whom
        self._stillborn = 0  # actors lost before they were ready, since one last was
        self._looked = 0.0
        self._alone_since: float | None = None
        self._class = ray.remote(ShardActor).options(
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,  # encoding, and saying how far it is
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": _threads(cluster.cpus)},
        )

    def assign(self, worker: int, shard: int) -> None:
        """Let an actor begin a shard."""
        self._ask(worker, "encode", shard)

    def wait(self, unfinished: int) -> Iterator[Ready | Status | Done | Lost]:
        """Wait for an answer, at most a second.

        Raises:
            AveyBError: an actor refuses its shard.
            EngineError: no node is left, or actors die before they are ready.
        """
        if time.monotonic() - self._looked >= _TICK:
            self._looked = time.monotonic()
            self._fill(unfinished)
            busy = {worker for worker, what in self._pending.values() if what == "status"}
            for worker in self._nodes.keys() - busy:
                self._ask(worker, "status")
        if not self._pending:
            time.sleep(_TICK)
            return
        answered, _ = self._ray.wait(list(self._pending), timeout=_TICK)
        for reference in answered:
            worker, what = self._pending.pop(reference)
            if worker not in self._actors:  # lost meanwhile; another one has its shard
                continue
            yield self._answer(reference, worker, what)

    def close(self) -> None:
        """End all actors."""
        for actor in self._actors.values():
            self._ray.kill(actor)

    def _fill(self, unfinished: int) -> None:
        """Start the actors that are missing, as far as the nodes that are alive have room."""
        room = self._cluster.room(self._ray.nodes())
        for _ in range(len(self._actors), min(self._count, room, unfinished)):
            worker = next(self._numbers)
            self._actors[worker] = self._class.remote(self._job, str(Path.cwd()), package_version())
            self._ask(worker, "start")
        if self._nodes:
            self._alone_since = None
        elif room == 0:
            raise EngineError("ray: no node of the cluster with room for an actor is left; what is complete stays")
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > _PATIENCE:
            self._alone_since = float("inf")  # once
            free = self._ray.available_resources()
            logger.warning(
                "ray: no actor is ready yet; each needs cpus=%g and gpus=%g (free: %g and %g), and loads its model",
                self._cluster.cpus, self._cluster.gpus, free.get("CPU", 0), free.get("GPU", 0),
            )  # fmt: skip

    def _ask(self, worker: int, what: str, *arguments: Any) -> None:
        self._pending[getattr(self._actors[worker], what).remote(*arguments)] = worker, what

    def _answer(self, reference: Any, worker: int, what: str) -> Ready | Status | Done | Lost:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise self._refusal(error, worker) from error
        except errors.RayError as error:  # the actor, its node, or the way to it
            return self._lose(worker, error)
        if what == "start":
            self._nodes[worker], self._stillborn = answer, 0
            return Ready(worker)
        if what == "status":
            return Status(worker, *answer)
        manifest, documents, tokens = answer
        return Done(worker, manifest, documents, tokens, self._nodes[worker])

    def _lose(self, worker: int, error: Exception) -> Lost:
        """Give an actor up, also one that only seems to be gone, so that its place is free."""
        self._ray.kill(self._actors.pop(worker))
        self._looked = 0.0  # replace it at once
        reason = _in_one_line(error)
        if self._nodes.pop(worker, None) is None:
            self._stillborn += 1
            if self._stillborn == ATTEMPTS * self._count:
                raise EngineError(f"ray: {self._stillborn} actors died before they were ready; the last one: {reason}")
        logger.warning("ray: an actor is lost; another one goes on with its shard (%s)", reason)
        return Lost(worker, reason)

    def _refusal(self, error: Any, worker: int) -> AveyBError:
        """What an actor raised, as an error of this process that names the node."""
        where = f"node {self._nodes[worker]}: " if worker in self._nodes else ""
        cause = error.cause
        if isinstance(cause, OptionalDependencyError):
            return cause
        if isinstance(cause, AveyBError):
            return type(cause)(f"{where}{cause}")
        return EngineError(f"{where}{type(cause).__name__}: {_in_one_line(cause)}")


def _threads(cpus: float) -> dict[str, str]:
    """The environment of an actor with this number of processors."""
    number = str(max(1, int(cpus)))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {"OMP_WAIT_POLICY": "PASSIVE", **dict.fromkeys(names, number)}


def _in_one_line(error: BaseException) -> str:
    return textwrap.shorten(str(error), _REASON, placeholder=" ...")
