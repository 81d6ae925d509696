"""RayCluster: which cluster, how many actors on it, and what each of them gets; connecting to it."""

from __future__ import annotations

import logging
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError, EngineError, extra_for
from aveyb_retrieval.wording import first_line, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOCAL = "local"
AUTO = "auto"
_HOST_PORT = re.compile(r"(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_ANSWER = 5.0  # seconds
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # the frame that both sides of HTTP/2, and so of gRPC, send first
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS
_OBJECTS = 128 << 20  # bytes of Ray's object store: actors return counts, never vectors
_TINY = 1e-6


@dataclass(frozen=True)
class RayCluster:
    """Where Ray's actors encode.

    Attributes:
        address: "local" starts a cluster of this machine alone, which ends with the call; "auto" finds the one that
            runs here; HOST:PORT is the address of its head. A process that is connected to a cluster already uses that.
        actors: How many encode at once; None: as many as have room.
        cpus: Processors of each, which is also its number of threads (at least one).
        gpus: GPUs of each; with a `device` of "cuda".

    Raises:
        ConfigError: one is out of range.
    """

    address: str = LOCAL
    actors: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.address not in (LOCAL, AUTO) and not _HOST_PORT.fullmatch(self.address):
            raise ConfigError(
                f"ray: the address {self.address!r} is none; write {LOCAL}, {AUTO}, or HOST:PORT of the cluster's head"
            )
        if self.actors is not None and (isinstance(self.actors, bool) or self.actors < 1):
            raise ConfigError(f"ray: actors={self.actors!r}: must be at least 1")
        if not 0 < self.cpus < float("inf"):
            raise ConfigError(f"ray: cpus={self.cpus!r}: must be more than 0")
        if not 0 <= self.gpus < float("inf") or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise ConfigError(f"ray: gpus={self.gpus!r}: must be 0, a part of one, or a whole number")

    def check_device(self, device: str) -> None:
        """Check that a model on this device gets what it needs.

        Raises:
            ConfigError: the actors have no GPU for it, or GPUs that it would not use.
        """
        on_gpu = not device.startswith("cpu")
        if on_gpu and not self.gpus:
            raise ConfigError(f"ray: device={device!r}, but gpus=0: Ray hides GPUs from such actors; give gpus=1")
        if self.gpus and not on_gpu:
            raise ConfigError(f"ray: gpus={self.gpus:g}, but device={device!r} leaves them idle; give device='cuda'")

    def room(self, nodes: Sequence[dict[str, Any]]) -> int:
        """Return how many actors fit on the nodes that are alive, as `ray.nodes()` lists them."""
        return sum(self._fit(node["Resources"]) for node in nodes if node["Alive"])

    def _fit(self, resources: dict[str, float]) -> int:
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        return min(int(resources.get(kind, 0) / each + _TINY) for kind, each in wanted.items() if each)

    def actors_for(self, nodes: Sequence[dict[str, Any]], shards: int) -> int:
        """Return how many actors to start for this number of shards.

        Raises:
            ConfigError: the cluster has no room for them, or there are fewer shards than actors.
        """
        room = self.room(nodes)
        if room < (self.actors or 1):
            there = "; ".join(
                f"{node['NodeManagerAddress']}: CPU {node['Resources'].get('CPU', 0):g}, "
                f"GPU {node['Resources'].get('GPU', 0):g}"
                for node in nodes
                if node["Alive"]
            )
            raise ConfigError(
                f"ray: {plural(self.actors or 1, 'actor')} with cpus={self.cpus:g} and gpus={self.gpus:g} for each: "
                f"the cluster has room for {room} ({there}); ask for fewer or smaller ones"
            )
        if self.actors is not None and self.actors > shards:
            raise ConfigError(
                f"ray: {plural(self.actors, 'actor')} for {plural(shards, 'shard')}: one actor makes a shard; divide "
                "the corpus into more (--of, of=)"
            )
        return min(self.actors or room, shards)

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """Connect to the cluster, or start one; gives the module `ray`.

        Raises:
            EngineError: no cluster answers at the address.
            OptionalDependencyError: Ray is not installed.
        """
        with extra_for("encoding on a cluster", "ray"):
            import ray
        if ray.is_initialized():
            yield ray
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports to its makers
        self._check_answers()
        started: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECTS}
        try:
            ray.init(address=self.address, logging_level=logging.WARNING, **(started if self.address == LOCAL else {}))
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(f"ray: no cluster at {self.address!r} ({first_line(error)})") from error
        try:
            yield ray
        finally:
            ray.shutdown()

    def _check_answers(self) -> None:
        """Greet the head, so that Ray does not wait for minutes at an address where there is none."""
        match = _HOST_PORT.fullmatch(self.address)
        if match is None:
            return
        try:
            with socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=_ANSWER) as head:
                head.sendall(_GREETING)
                if head.recv(9)[3:4] != _SETTINGS[3:4]:
                    raise ConnectionError("what listens there is no head of Ray")
        except (OSError, OverflowError) as error:
            raise EngineError(
                f"ray: nothing answers at {self.address} ({error}); give the address that `ray start --head` printed, "
                f"or {LOCAL}"
            ) from error
