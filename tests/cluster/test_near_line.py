"""The line to an actor on the same machine, without a cluster: the other end is a thread here."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from residents import descriptors

import plangym_like
from plangym_like.cluster.chunk import Harvest, Order
from plangym_like.cluster.near_line import NearLine, answer
from plangym_like.processes.remote_errors import unpack_exception

# A clone of this project may lie in a folder of any name, the package's included.
PACKAGE = Path(plangym_like.__file__).parent
ORDER = Order(3, 0, None, None, 1, None, wants_states=True, wants_observations=True)


class Ended(BaseException):
    """The other end breaks down."""


def echo(order: Order) -> Harvest:
    """Return how many rows were ordered, and 200,000 bytes where those are many."""
    infos = {0: {"blob": b"x" * 200_000}} if order.count > 1000 else {}
    return Harvest(float(order.count), {"deaths": order.count}, infos=infos)


@contextlib.contextmanager
def line_to(run: Callable[[Order], Harvest] = echo) -> Iterator[NearLine]:
    """Return a line whose other end is attended to."""
    line = NearLine()

    def attend() -> None:
        with contextlib.suppress(Ended):
            answer(line.address, run)

    thread = threading.Thread(target=attend)
    thread.start()
    try:
        until = time.monotonic() + 100
        while line.send(ORDER) is None:
            assert time.monotonic() < until
        await_all(line, 1)
        for number in line.hear():
            line.take(number)
        yield line
    finally:
        line.close()
        thread.join(100)
    assert not thread.is_alive()


def await_all(line: NearLine, wanted: int) -> list[int]:
    """Wait until so many orders have been answered."""
    until = time.monotonic() + 100
    while len(heard := line.hear()) < wanted:
        assert time.monotonic() < until
        select.select([line], [], [], 0.1)
    return heard


def test_orders_are_answered_in_their_order() -> None:
    with line_to() as line:
        sent = {line.send(replace(ORDER, count=count)): count for count in (5, 2000, 7)}
        assert await_all(line, 3) == [*sent]
        for number, count in sent.items():
            assert number is not None
            harvest = line.take(number)
            assert (harvest.seconds, harvest.counts) == (count, {"deaths": count})
            assert bool(harvest.infos) == (count > 1000)
        assert line.hear() == []


def test_what_it_cannot_take_it_refuses() -> None:
    line = NearLine()
    assert line.send(ORDER) is None  # nobody listens yet
    line.close()
    with line_to() as line:
        assert line.send(replace(ORDER, actions=list(range(5000)))) is None
        assert line.send(ORDER) is not None


def test_it_is_never_waited_for_however_much_is_sent() -> None:
    go_on = threading.Event()

    def slow(order: Order) -> Harvest:
        assert order.count == ORDER.count or go_on.wait(100)
        return echo(order)

    with line_to(slow) as line:
        held = 0
        while line.send(replace(ORDER, count=2000)) is not None:
            held += 1
        assert 10 < held < 10_000
        go_on.set()
        assert len(await_all(line, held)) == held


def test_what_was_said_before_the_end_counts() -> None:
    def short_lived(order: Order) -> Harvest:
        if order.count == 9:
            raise Ended
        return echo(order)

    with line_to(short_lived) as line:
        numbers = [line.send(replace(ORDER, count=count)) for count in (4, 9, 5)]
        assert await_all(line, 1) == numbers[:1]
        assert line.take(numbers[0] or 0).seconds == 4.0
        with pytest.raises(EOFError, match="ended"):
            await_all(line, 1)
        with pytest.raises(EOFError, match="ended"):
            line.take(numbers[1] or 0)
        assert line.send(ORDER) is not None  # an order to nobody is no error


def test_what_cannot_travel_arrives_as_an_error() -> None:
    def told(order: Order) -> Harvest:
        return Harvest(1.0, {}, infos={0: {"lock": threading.Lock()}})

    with pytest.raises(TypeError, match="pickle"), line_to(told) as line:
        number = line.send(ORDER)
        assert number is not None
        await_all(line, 1)
        raise unpack_exception(line.take(number).error or b"")


def test_nothing_is_lost_when_signal_handlers_raise() -> None:
    class Interruption(Exception):
        pass

    listening = False

    def interrupt(_: int, frame: Any) -> None:
        if listening:
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            if Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
                raise Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        with line_to() as line:
            for count in range(2000, 2300):
                number = line.send(replace(ORDER, count=count))
                assert number is not None
                heard: list[int] = []
                listening = True
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                while number not in heard:
                    try:
                        heard = line.hear()
                    except Interruption:
                        interrupted += 1
                listening = False
                harvest = line.take(number)
                assert harvest.seconds == count
                assert len(harvest.infos[0]["blob"]) == 200_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 30


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted under /proc")
def test_no_descriptor_stays() -> None:
    before = descriptors()
    for _ in range(3):
        with line_to() as line:
            os.fstat(line.fileno())
    assert descriptors() == before
