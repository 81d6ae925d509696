"""Ray's actors make the shards of a corpus: each loads the model once and makes one shard after the other.

Only counts and manifests pass through Ray. Documents are read and shards written by the actors themselves, with the
code that makes them anywhere else; so a shard does not depend on who made it, and what an actor has written is there
when it dies. Ray neither restarts actors nor repeats their work here: it uses up its attempts within seconds, before it
knows that a node is gone. `Distribution` starts another actor, which goes on with the shard. One may so be made twice,
wholly or in part; since it has one content and one name, it exists once.
"""

from __future__ import annotations

import logging
import os
import textwrap
import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.corpus import STDIN, source_names
from aveyb_retrieval.errors import AveyBError, ConfigError, EngineError, InputError, OptionalDependencyError
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
        self._encoder: ShardEncoder | None = None
        self._shard, self._before = 0, (0, 0)

    def encode(self, shard: int) -> tuple[ShardManifest, int, int, str]:
        """Return the manifest of a shard, documents and tokens that were encoded for it now, and the node's address.

        Raises:
            AveyBError: what went wrong, with the node, and where it is not known here with the document.
        """
        import ray

        node = f"node {ray.util.get_node_ip_address()}"
        try:
            encoder = self._encoder = self._encoder or self._start()
            self._shard, self._before = shard, (encoder.encoded, encoder.tokens)
            return encoder.encode(shard, log=shard == 1), *self.status()[1:3], node
        except OptionalDependencyError:
            raise
        except AveyBError as error:
            raise type(error)(f"{node}: {error}") from error
        except Exception as error:
            at = self.status()[3]
            where = f"shard {shard}/{self._job.of}{f' at the document {at}' if at else ''}"
            raise EngineError(f"{node}: {where}: {type(error).__name__}: {error}") from error

    def status(self) -> tuple[int, int, int, str]:
        """Return the shard being made, the documents and tokens encoded for it now, and the document it is at."""
        if self._encoder is None:
            return 0, 0, 0, ""
        (documents, tokens), at = self._before, self._encoder.at
        where = f"{at.id!r} ({at.location})" if at else ""
        return self._shard, self._encoder.encoded - documents, self._encoder.tokens - tokens, where

    def _start(self) -> ShardEncoder:
        if package_version() != self._version:
            raise ConfigError(
                f"this node has aveyb-retrieval {package_version()}, the command {self._version}; install the same"
            )
        if Path(self._folder).is_dir():  # relative paths then mean what they mean to the command
            os.chdir(self._folder)
        return ShardEncoder(self._job, silent)


class Distribution:
    """The shards of a job in the hands of actors.

    Attributes:
        made: the manifests of complete shards, by number.
        encoded: documents that were encoded for them now.
    """

    def __init__(self, ray: Any, cluster: RayCluster, job: EncodeJob, progress: Progress) -> None:
        """Start the actors; the cluster must have room for them."""
        self._ray, self._cluster, self._job, self._progress = ray, cluster, job, progress
        self._place = Place(job.out)
        self._class = ray.remote(ShardActor).options(
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2,  # encoding, and saying how far it is
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": _threads(cluster.cpus)},
        )
        self._actors = [self._new_actor() for _ in range(cluster.actors_for(ray.nodes(), job.of))]
        self._died: Counter[int] = Counter()  # actors over a shard
        self._waiting = deque(range(1, job.of + 1))
        self._pending: dict[Any, tuple[int, int]] = {}  # an actor, and the shard it makes; 0: it is asked how far it is
        self._status: dict[int, tuple[int, int, int, str]] = {}  # what each actor said last
        self._tokens = 0
        self.made: dict[int, ShardManifest] = {}
        self.encoded = 0

    def run(self) -> list[ShardManifest]:
        """Return the manifests of all shards, by number, when all are complete.

        Raises:
            AveyBError: an actor refuses its shard.
            InputError: actors read different corpora, or write where this process does not see it.
            EngineError: several actors die over one shard, or no node is left.
        """
        for number in range(len(self._actors)):
            self._begin(number, self._waiting.popleft())
        looked = time.monotonic()
        patience = looked + _PATIENCE
        while len(self.made) < self._job.of:
            answered, _ = self._ray.wait(list(self._pending), timeout=_TICK)
            for reference in answered:
                self._take(reference, *self._pending.pop(reference))
            if time.monotonic() - looked >= _TICK:
                looked = time.monotonic()
                self._look()
            if not self._status and time.monotonic() > patience:
                patience = float("inf")  # said once
                free = self._ray.available_resources()
                logger.warning(
                    "ray: no actor is ready yet; each needs cpus=%g and gpus=%g (free: %g and %g), and loads its model",
                    self._cluster.cpus, self._cluster.gpus, free.get("CPU", 0), free.get("GPU", 0),
                )  # fmt: skip
            self._tell()
        return [self.made[shard] for shard in sorted(self.made)]

    def close(self) -> None:
        """End all actors."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _new_actor(self) -> Any:
        return self._class.remote(self._job, str(Path.cwd()), package_version())

    def _begin(self, number: int, shard: int) -> None:
        self._pending[self._actors[number].encode.remote(shard)] = number, shard

    def _take(self, reference: Any, number: int, shard: int) -> None:
        """Take an actor's answer."""
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, AveyBError):
                raise error.cause from error
            raise EngineError(f"ray: {_in_one_line(error)}") from error
        except errors.RayError as error:  # the actor, its node, or the way to it
            if shard:  # else the answer for its shard fails, too, or it was ended
                self._replace(number, shard, _in_one_line(error))
            return
        if not shard:
            self._status[number] = answer
            return
        self._check(*answer)
        if self._waiting:
            self._begin(number, self._waiting.popleft())
        else:
            self._ray.kill(self._actors[number])  # one that is new may need its place

    def _replace(self, number: int, shard: int, reason: str) -> None:
        """Give an actor up, also one that only seems to be gone; another one goes on with its shard."""
        self._ray.kill(self._actors[number])
        self._died[shard] += 1
        if self._died[shard] == ATTEMPTS:
            seen, _, _, at = self._status.get(number, (0, 0, 0, ""))
            where = f" It was last seen at the document {at}" if at and seen == shard else ""
            raise EngineError(
                f"shard {shard}/{self._job.of}: {ATTEMPTS} workers died over it; the last one: {reason}.{where}"
            )
        logger.warning("ray: an actor is lost; another one goes on with its shard (%s)", reason)
        self._actors[number] = self._new_actor()
        self._begin(number, shard)

    def _check(self, manifest: ShardManifest, documents: int, tokens: int, node: str) -> None:
        if ShardManifest.read(self._place, manifest.shard, manifest.of) != manifest:
            raise InputError(
                f"{self._place}: shard {manifest.shard} was written on the {node}, but is not here; give a "
                "folder that all nodes share under this name, or a URL"
            )
        for other in self.made.values():
            if other.corpus != manifest.corpus:
                raise InputError(
                    f"{self._place}: shard {manifest.shard}, made on the {node}, and shard {other.shard} are "
                    "of different corpora; every node must read the same files"
                )
        self.made[manifest.shard] = manifest
        self.encoded += documents
        self._tokens += tokens

    def _look(self) -> None:
        """Ask actors how far they are, and see whether there is a place for them."""
        if self._cluster.room(self._ray.nodes()) == 0:
            raise EngineError("ray: no node of the cluster with room for an actor is left; what is complete stays")
        asked = {number for number, shard in self._pending.values() if not shard}
        for number, shard in list(self._pending.values()):
            if shard and number not in asked:
                self._pending[self._actors[number].status.remote()] = number, 0

    def _tell(self) -> None:
        going = [status for status in self._status.values() if status[0] not in self.made]
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
