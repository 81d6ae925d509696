"""Ray's actors make the shards of a corpus: each loads the model once and makes one shard after the other.

Only counts and manifests pass through Ray. Documents are read and shards written by the actors themselves, with the
code that makes them anywhere else; so a shard does not depend on who made it, and what an actor has written is there
when it dies. Ray neither restarts actors nor repeats their work here: `Distribution` gives the shard of a lost one to
another. A shard may so be made twice, wholly or in part; since it has one content and one name, it exists once.
"""

from __future__ import annotations

import logging
import os
import textwrap
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import AveyBError, ConfigError, EngineError, InputError, OptionalDependencyError
from aveyb_retrieval.indexes.input.corpus import STDIN, source_names
from aveyb_retrieval.indexes.shards.encoder import EncodeJob, ShardEncoder
from aveyb_retrieval.indexes.shards.place import Place
from aveyb_retrieval.indexes.shards.shard import ShardManifest
from aveyb_retrieval.indexes.types import Progress, silent
from aveyb_retrieval.version import package_version

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.shards.ray_cluster import RayCluster

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # actors that may die over one shard
_TICK = 1.0  # seconds between two looks at the nodes and at how far actors are
_PATIENCE = 30.0  # seconds without an actor after which it is said what is waited for
_REASON = 300  # characters of what Ray says


def encode_on_ray(job: EncodeJob, cluster: RayCluster, progress: Progress) -> tuple[list[ShardManifest], int]:
    """Return the manifests of all shards of a job, and how many documents were encoded for them now.

    Raises:
        ConfigError: the actors do not fit into the cluster, or cannot read the corpus.
        InputError, ModelError: an actor's own error, with the node that it came from; or actors read different corpora,
            or write where this process does not see it.
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
    with cluster.connect() as ray:
        shards = Distribution(ray, cluster, replace(job, out=Place(job.out).url), progress)
        try:
            return shards.run(), shards.encoded
        finally:
            shards.close()


class ShardActor:
    """What runs on the cluster: one process with the model. Its answers are small."""

    def __init__(self, job: EncodeJob, folder: str, version: str) -> None:
        """Take a job from a command that runs in `folder` with this `version` of the package; start nothing yet."""
        self._job, self._folder, self._version = job, folder, version
        self._node = ""
        self._encoder: ShardEncoder | None = None
        self._shard = 0
        self._before = (0, 0)

    def start(self) -> None:
        """Load the model."""
        import ray

        self._node = ray.util.get_node_ip_address()
        if package_version() != self._version:
            raise self._error(
                ConfigError(
                    f"this node has aveyb-retrieval {package_version()}, the command {self._version}; install the same"
                )
            )
        if Path(self._folder).is_dir():  # relative paths then mean what they mean to the command
            os.chdir(self._folder)
        try:
            self._encoder = ShardEncoder(self._job, silent)
        except Exception as error:
            raise self._error(error) from error

    def encode(self, shard: int) -> tuple[ShardManifest, int, int, str]:
        """Return the manifest of a shard, documents and tokens that were encoded for it now, and this node."""
        assert self._encoder is not None
        self._shard, self._before = shard, (self._encoder.encoded, self._encoder.tokens)
        try:
            manifest = self._encoder.encode(shard, log=shard == 1)
        except Exception as error:
            raise self._error(error) from error
        return manifest, *self.status()[1:3], self._node

    def status(self) -> tuple[int, int, int, str]:
        """Return the shard being made, the documents and tokens encoded for it now, and the document it is at."""
        if self._encoder is None:
            return 0, 0, 0, ""
        (documents, tokens), at = self._before, self._encoder.at
        where = f"{at.id!r} ({at.location})" if at else ""
        return self._shard, self._encoder.encoded - documents, self._encoder.tokens - tokens, where

    def _error(self, error: Exception) -> AveyBError:
        """An error of ours that says where it happened, which nobody else can say."""
        if isinstance(error, OptionalDependencyError):
            return error
        if isinstance(error, AveyBError):
            return type(error)(f"node {self._node}: {error}")
        at = self.status()[3]
        shard = f"shard {self._shard}/{self._job.of}{f' at the document {at}' if at else ''}: " if self._shard else ""
        return EngineError(f"node {self._node}: {shard}{type(error).__name__}: {error}")


@dataclass(eq=False)
class _Worker:
    """An actor, the shard that it makes (0: none), and how far it is, as `ShardActor.status` says."""

    actor: Any
    ready: bool = False
    shard: int = 0
    status: tuple[int, int, int, str] = (0, 0, 0, "")


class Distribution:
    """The shards of a job in the hands of as many actors as were asked for; one that dies is replaced.

    Attributes:
        made: the manifests of complete shards, by number.
        encoded: documents that were encoded for them now.
    """

    def __init__(self, ray: Any, cluster: RayCluster, job: EncodeJob, progress: Progress) -> None:
        """Take a job; the cluster must have room for its actors."""
        self._ray, self._cluster, self._job, self._progress = ray, cluster, job, progress
        self._place = Place(job.out)
        self._count = cluster.actors_for(ray.nodes(), job.of)
        self._class = ray.remote(ShardActor).options(
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,  # encoding, and saying how far it is
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": _threads(cluster.cpus)},
        )
        self._workers: list[_Worker] = []
        self._pending: dict[Any, tuple[_Worker, str]] = {}  # what is asked of whom
        self._waiting = deque(range(1, job.of + 1))
        self._died: Counter[int] = Counter()  # over a shard; 0: before they were ready, since one last was
        self._looked = self._worked = time.monotonic()
        self._tokens = 0
        self.made: dict[int, ShardManifest] = {}
        self.encoded = 0

    def run(self) -> list[ShardManifest]:
        """Return the manifests of all shards, by number, when all are complete.

        Raises:
            AveyBError: an actor refuses its shard.
            InputError: actors read different corpora, or write where this process does not see it.
            EngineError: several actors die over one shard or before they are ready, or no node is left.
        """
        for _ in range(self._count):
            self._start()
        while len(self.made) < self._job.of:
            answered, _ = self._ray.wait(list(self._pending), timeout=_TICK)
            for reference in answered:
                worker, what = self._pending.pop(reference)
                if worker in self._workers:  # else lost meanwhile; another one has its shard
                    self._answer(reference, worker, what)
            for worker in self._workers:
                if self._waiting and worker.ready and not worker.shard:
                    worker.shard = self._waiting.popleft()
                    self._ask(worker, "encode", worker.shard)
            if time.monotonic() - self._looked >= _TICK:
                self._looked = time.monotonic()
                self._look()
            self._tell()
        return [self.made[shard] for shard in sorted(self.made)]

    def close(self) -> None:
        """End all actors."""
        for worker in self._workers:
            self._ray.kill(worker.actor)

    def _start(self) -> None:
        worker = _Worker(self._class.remote(self._job, str(Path.cwd()), package_version()))
        self._workers.append(worker)
        self._ask(worker, "start")

    def _ask(self, worker: _Worker, what: str, *arguments: Any) -> None:
        self._pending[getattr(worker.actor, what).remote(*arguments)] = worker, what

    def _answer(self, reference: Any, worker: _Worker, what: str) -> None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, AveyBError) else EngineError(f"ray: {_in_one_line(error)}") from error
        except errors.RayError as error:  # the actor, its node, or the way to it
            self._lose(worker, _in_one_line(error))
            return
        if what == "status":
            worker.status = answer
        elif what == "start":
            worker.ready, self._died[0] = True, 0
        else:
            worker.shard = 0
            self._take(*answer)

    def _take(self, manifest: ShardManifest, documents: int, tokens: int, node: str) -> None:
        if ShardManifest.read(self._place, manifest.shard, manifest.of) != manifest:
            raise InputError(
                f"{self._place}: shard {manifest.shard} was written on the node {node}, but is not here; give a "
                "folder that all nodes share under this name, or a URL"
            )
        for other in self.made.values():
            if other.corpus != manifest.corpus:
                raise InputError(
                    f"{self._place}: shard {manifest.shard}, made on the node {node}, and shard {other.shard} are "
                    "of different corpora; every node must read the same files"
                )
        self.made[manifest.shard] = manifest
        self.encoded += documents
        self._tokens += tokens

    def _lose(self, worker: _Worker, reason: str) -> None:
        """Give an actor up, also one that only seems to be gone, and start another one in its place."""
        self._workers.remove(worker)
        self._ray.kill(worker.actor)
        shard, (seen, _, _, at) = worker.shard, worker.status
        if shard:
            self._waiting.appendleft(shard)
        if shard or not worker.ready:
            self._died[shard] += 1
        if shard and self._died[shard] == ATTEMPTS:
            where = f" It was last seen at the document {at}" if at and seen == shard else ""
            raise EngineError(
                f"shard {shard}/{self._job.of}: {ATTEMPTS} workers died over it; the last one: {reason}.{where}"
            )
        if self._died[0] == ATTEMPTS * self._count:
            raise EngineError(f"ray: {self._died[0]} actors died before they were ready; the last one: {reason}")
        logger.warning("ray: an actor is lost; another one goes on with its shard (%s)", reason)
        self._start()

    def _look(self) -> None:
        """See how far actors are, and whether there are any."""
        asked = {worker for worker, what in self._pending.values() if what == "status"}
        for worker in self._workers:
            if worker.ready and worker not in asked:
                self._ask(worker, "status")
        if self._cluster.room(self._ray.nodes()) == 0:
            raise EngineError("ray: no node of the cluster with room for an actor is left; what is complete stays")
        if any(worker.ready for worker in self._workers):
            self._worked = time.monotonic()
        elif time.monotonic() - self._worked > _PATIENCE:
            self._worked = float("inf")  # once
            free = self._ray.available_resources()
            logger.warning(
                "ray: no actor is ready yet; each needs cpus=%g and gpus=%g (free: %g and %g), and loads its model",
                self._cluster.cpus, self._cluster.gpus, free.get("CPU", 0), free.get("GPU", 0),
            )  # fmt: skip

    def _tell(self) -> None:
        going = [worker.status for worker in self._workers if worker.shard == worker.status[0] != 0]
        documents = sum(manifest.total("documents") for manifest in self.made.values()) + sum(s[1] for s in going)
        total = next((manifest.consumed for manifest in self.made.values()), None)  # with what is no document
        whole = documents if len(self.made) == self._job.of else total
        self._progress("encoding", documents, whole, self._tokens + sum(s[2] for s in going))


def _threads(cpus: float) -> dict[str, str]:
    """The environment of an actor with this number of processors."""
    number = str(max(1, int(cpus)))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {"OMP_WAIT_POLICY": "PASSIVE", **dict.fromkeys(names, number)}


def _in_one_line(error: BaseException) -> str:
    return textwrap.shorten(str(error), _REASON, placeholder=" ...")
