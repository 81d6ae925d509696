"""Turns: so many at once, fair to clients, and no work for those who wait no more."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from aveyb_retrieval.server.limits import ServerLimits
from aveyb_retrieval.server.refusals import Refusal
from aveyb_retrieval.server.tickets import Pool, Ticket, check_current
from aveyb_retrieval.server.work import Work


class Connection:
    """What the server receives of a client, which may leave."""

    def __init__(self):
        self.left = asyncio.Event()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


def ticket(client="a", seconds=30.0, connection=None):
    return Ticket(
        client, Pool(), ServerLimits(timeout=seconds), (connection or Connection()).receive
    )


async def settle():
    for _ in range(10):
        await asyncio.sleep(0.005)


async def test_clients_take_turns_however_much_one_asks_for():
    work, order, gate = Work("test", 1, 100), [], threading.Event()
    first = asyncio.ensure_future(work.run(gate.wait, ticket("flood")))
    await settle()
    flood = [
        asyncio.ensure_future(work.run(lambda: order.append("flood"), ticket("flood")))
        for _ in range(20)
    ]
    await settle()
    polite = [
        asyncio.ensure_future(work.run(lambda: order.append("polite"), ticket("polite")))
        for _ in range(2)
    ]
    await settle()
    gate.set()
    await asyncio.gather(first, *flood, *polite)
    assert order[:4].count("polite") == 2
    assert Counter(order) == {"flood": 20, "polite": 2}
    work.close()


async def test_one_client_leaves_half_of_the_threads_to_others():
    work, gate = Work("test", 2, 10), threading.Event()
    held = [asyncio.ensure_future(work.run(gate.wait, ticket("flood"))) for _ in range(5)]
    await settle()
    assert await asyncio.wait_for(work.run(lambda: "at once", ticket("polite")), 10) == "at once"
    gate.set()
    await asyncio.gather(*held)
    work.close()


async def test_parts_of_long_requests_leave_three_quarters_to_short_ones():
    work, gate = Work("test", 4, 10), threading.Event()
    long = [asyncio.ensure_future(work.run(gate.wait, ticket(name), part=1)) for name in "abc"]
    await settle()
    assert work._running.total() == 1
    assert await asyncio.wait_for(work.run(lambda: "short", ticket("d")), 10) == "short"
    gate.set()
    await asyncio.gather(*long)
    work.close()


async def test_who_waits_for_most_loses_the_last_place():
    work, gate = Work("test", 1, 3), threading.Event()
    # one runs, three wait
    held = [asyncio.ensure_future(work.run(gate.wait, ticket("flood"))) for _ in range(4)]
    await settle()
    polite = asyncio.ensure_future(work.run(lambda: "answer", ticket("polite")))
    await settle()
    with pytest.raises(Refusal, match="overloaded: 3 requests are waiting") as refused:
        await asyncio.wait_for(held[3], 10)
    assert refused.value.status == 429
    gate.set()
    assert await polite == "answer"
    await asyncio.gather(*held[:3])
    work.close()


async def test_a_client_that_leaves_ends_its_work_and_gives_its_place_back():
    work, connection, entered, seen = Work("test", 1, 10), Connection(), threading.Event(), []

    def long_work():
        entered.set()
        for _ in range(1000):
            threading.Event().wait(0.01)
            try:
                check_current()
            except Refusal as refusal:
                seen.append(refusal.status)
                raise

    running = asyncio.ensure_future(work.run(long_work, ticket(connection=connection)))
    waiting = asyncio.ensure_future(
        work.run(lambda: seen.append("never"), ticket(connection=connection))
    )
    while not entered.is_set():
        await asyncio.sleep(0.01)
    connection.left.set()
    for each in (running, waiting):
        with pytest.raises(Refusal, match="has left"):
            await each
    assert await work.run(lambda: "next", ticket()) == "next"
    assert seen == [499]
    work.close()


async def test_work_that_takes_too_long_finds_it_out():
    work, stopped = Work("test", 1, 10), threading.Event()

    def long_work():
        while True:
            threading.Event().wait(0.01)
            try:
                check_current()
            except Refusal:
                stopped.set()
                raise

    with pytest.raises(Refusal, match=r"took longer than the 0\.1 s"):
        await work.run(long_work, ticket(seconds=0.1))
    assert stopped.wait(10)
    assert await work.run(lambda: "next", ticket()) == "next"
    work.close()


async def test_a_cancelled_request_gives_its_turn_back():
    work, gate = Work("test", 1, 10), threading.Event()
    running = asyncio.ensure_future(work.run(gate.wait, ticket()))
    waiting = asyncio.ensure_future(work.run(lambda: None, ticket()))
    await settle()
    waiting.cancel()
    running.cancel()
    gate.set()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert await work.run(lambda: "next", ticket()) == "next"
    work.close()


def test_bytes_are_held_together_and_given_back():
    pool, limits = Pool(), ServerLimits(max_held=100, max_answer=50)
    first, second = (Ticket("a", pool, limits, Connection().receive) for _ in range(2))
    first.hold(70)
    with pytest.raises(Refusal, match="hold 70 bytes"):
        second.hold(40)
    first.release()
    second.answer(40)
    assert pool.used_bytes == 40
    with pytest.raises(Refusal, match="larger than the 50 bytes"):
        second.answer(11)
    with pytest.raises(Refusal, match="larger than the 50 bytes"):
        second.check_answer(11)
