"""A polite client of a running server beside one that attacks it, from another address of this machine.

`serve.py --hostile` runs it: the polite client asks one question after the other, at first alone, then for each attack.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import select
import socket
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.synchronize import Event

SILENT = 1010
LONG = 8 << 20  # bytes of a query
LONG_CLIENTS = 8
GREEDY_CLIENTS = 64


def silent(host: str, port: int, own: str, stop: Event, seen: Counter[str]) -> None:
    """Keep connections open that never send a byte; what is closed is opened again."""
    poll, sockets = select.poll(), {}
    while not stop.is_set():
        while len(sockets) < SILENT:
            connection = socket.create_connection((host, port), timeout=30, source_address=(own, 0))
            sockets[connection.fileno()] = connection
            poll.register(connection, select.POLLIN)
            seen["opened"] += 1
        for number, _ in poll.poll(200):
            poll.unregister(number)
            sockets.pop(number).close()
            seen["closed by the server"] += 1
    for connection in sockets.values():
        connection.close()


def long_queries(host: str, port: int, own: str, stop: Event, seen: Counter[str]) -> None:
    """Ask with queries of 8 MB from some clients at once."""
    body = json.dumps({"query": "valve " * ((LONG - 100) // 6)}).encode()  # as large as a body may be
    _post_from(LONG_CLIENTS, host, port, own, body, stop, seen)


def greedy(host: str, port: int, own: str, stop: Event, seen: Counter[str]) -> None:
    """Ask for everything at once that a request may ask for, from many clients."""
    fields = {"query": ["valve"] * 900, "k": 10, "text": True, "passages": 10, "context": 5}
    body = json.dumps({**fields, "candidates": 1000, "rerank": "maxsim"}).encode()
    _post_from(GREEDY_CLIENTS, host, port, own, body, stop, seen)


def _post_from(clients: int, host: str, port: int, own: str, body: bytes, stop: Event, seen: Counter[str]) -> None:
    def ask() -> None:
        while not stop.is_set():
            connection = http.client.HTTPConnection(host, port, timeout=70, source_address=(own, 0))
            try:
                connection.request("POST", "/search", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                seen[str(answer.status)] += 1
            except OSError as error:
                seen[type(error).__name__] += 1
            finally:
                connection.close()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    stop.wait()


ATTACKS: dict[str, Callable[[str, int, str, Event, Counter[str]], None]] = {
    f"{SILENT:,} silent connections": silent,
    f"queries of 8 MB, {LONG_CLIENTS} clients": long_queries,
    f"everything at once, {GREEDY_CLIENTS} clients": greedy,
}


def _attack(name: str, url: str, stop: Event, results: Any) -> None:
    host, port = url.removeprefix("http://").split(":")
    seen: Counter[str] = Counter()
    own = f"127.0.0.{2 + list(ATTACKS).index(name)}"  # the server remembers what an address did
    ATTACKS[name](host, int(port), own, stop, seen)
    results.put(dict(seen))


def under_attack(url: str, measure: Callable[[], dict[str, Any]], warm: float = 3.0) -> Iterator[dict[str, Any]]:
    """Yield what `measure` gives while each attack runs, with the answers that the attacker got."""
    context = multiprocessing.get_context("spawn")
    for name in ATTACKS:
        stop, results = context.Event(), context.Queue()
        attacker = context.Process(target=_attack, args=(name, url, stop, results), daemon=True)
        attacker.start()
        time.sleep(warm)
        measured = measure()
        stop.set()
        yield {"attack": name, **measured, "attacker_got": results.get(timeout=120)}
        attacker.terminate()
        attacker.join()
        time.sleep(warm)  # what it left behind ends
