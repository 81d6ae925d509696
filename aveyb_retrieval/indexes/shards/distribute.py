"""Hand out the shards of a corpus to workers, and those of a lost worker to another.

Who the workers are is left to a `Workers`: this file decides only who makes which shard. A shard may be made twice,
wholly or in part, where a worker is lost or seems to be; since a shard has one content and one name, it exists once.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aveyb_retrieval.errors import EngineError, InputError
from aveyb_retrieval.indexes.shards.shard import ShardManifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aveyb_retrieval.indexes.shards.place import Place
    from aveyb_retrieval.indexes.types import Progress

ATTEMPTS = 3  # workers that may die over one shard


@dataclass(frozen=True)
class Ready:
    """A worker has loaded the model, and waits for a shard."""

    worker: int


@dataclass(frozen=True)
class Status:
    """How far a worker is with a shard: documents and tokens encoded now, and the document that it is at."""

    worker: int
    shard: int
    documents: int
    tokens: int
    document: str


@dataclass(frozen=True)
class Done:
    """A worker has completed a shard. `documents` and `tokens`: what it had to encode for that; `node`: where it is."""

    worker: int
    manifest: ShardManifest
    documents: int
    tokens: int
    node: str


@dataclass(frozen=True)
class Lost:
    """A worker is gone, with or without a shard in its hands."""

    worker: int
    reason: str


class Workers(Protocol):
    """Those who make shards. Each has a number, used once."""

    def assign(self, worker: int, shard: int) -> None:
        """Let a worker that is ready begin a shard."""
        ...

    def wait(self, unfinished: int) -> Iterable[Ready | Status | Done | Lost]:
        """Wait until something happens, or a moment; `unfinished`: shards that are not complete yet.

        Raises:
            AveyBError: a worker refuses its shard, or none can be had.
        """
        ...


@dataclass
class Distribution:
    """Shards 1 to `of` in the hands of workers.

    Attributes:
        made: the manifests of complete shards, by number.
        encoded: documents that were encoded for them now.
    """

    workers: Workers
    place: Place
    of: int
    progress: Progress
    made: dict[int, ShardManifest] = field(default_factory=dict)
    encoded: int = 0
    _tokens: int = 0
    _at_work: dict[int, int] = field(default_factory=dict)
    _status: dict[int, Status] = field(default_factory=dict)  # of shards at work
    _died: Counter[int] = field(default_factory=Counter)

    def run(self) -> list[ShardManifest]:
        """Return the manifests of all shards, by number, when all are complete.

        Raises:
            InputError: workers read different corpora, or write where this process does not see it.
            EngineError: one shard is the last of several workers.
        """
        waiting, idle = deque(range(1, self.of + 1)), deque[int]()
        while len(self.made) < self.of:
            for event in self.workers.wait(self.of - len(self.made)):
                if isinstance(event, Lost):
                    if event.worker in idle:
                        idle.remove(event.worker)
                    waiting.extendleft(self._returned(event))
                elif isinstance(event, Status):
                    if self._at_work.get(event.worker) == event.shard:
                        self._status[event.worker] = event
                else:
                    if isinstance(event, Done):
                        self._take(event)
                    idle.append(event.worker)
            while idle and waiting:
                worker, shard = idle.popleft(), waiting.popleft()
                self._at_work[worker] = shard
                self.workers.assign(worker, shard)
            self._tell()
        return [self.made[shard] for shard in sorted(self.made)]

    def _take(self, done: Done) -> None:
        manifest = done.manifest
        del self._at_work[done.worker]
        self._status.pop(done.worker, None)
        if ShardManifest.read(self.place, manifest.shard, manifest.of) != manifest:
            raise InputError(
                f"{self.place}: shard {manifest.shard} was written on the node {done.node}, but is not here; give a "
                "folder that all nodes share under this name, or a URL"
            )
        for other in self.made.values():
            if other.corpus != manifest.corpus:
                raise InputError(
                    f"{self.place}: shard {manifest.shard}, made on the node {done.node}, and shard {other.shard} are "
                    "of different corpora; every node must read the same files"
                )
        self.made[manifest.shard] = manifest
        self.encoded += done.documents
        self._tokens += done.tokens

    def _returned(self, lost: Lost) -> list[int]:
        """The shard that a lost worker had in its hands, if any."""
        shard = self._at_work.pop(lost.worker, None)
        status = self._status.pop(lost.worker, None)
        if shard is None:
            return []
        self._died[shard] += 1
        if self._died[shard] == ATTEMPTS:
            at = f" It was last seen at the document {status.document}" if status and status.document else ""
            raise EngineError(
                f"shard {shard}/{self.of}: {ATTEMPTS} workers died over it; the last one: {lost.reason}.{at}"
            )
        return [shard]

    def _tell(self) -> None:
        documents = sum(m.total("documents") for m in self.made.values()) + sum(
            s.documents for s in self._status.values()
        )
        tokens = self._tokens + sum(s.tokens for s in self._status.values())
        total = next((m.consumed for m in self.made.values()), None)  # with what is no document
        self.progress("encoding", documents, documents if len(self.made) == self.of else total, tokens)
