"""The way to an actor on the same machine and back: two pipes instead of messages of Ray's.

As with `NearMemory`, the actor opens this process's ends under ``/proc``. Where several machines
are at work Ray carries everything, because one can only wait for either.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedWriter
from itertools import count

from plangym_like.cluster.chunk import Harvest, Order
from plangym_like.cluster.near_memory import descriptor_path
from plangym_like.processes.interrupts import hold
from plangym_like.processes.messages import CALL, HEADER, RESULT, dumps, frame, loads
from plangym_like.processes.remote_errors import pack_exception

# Framed as messages to workers are. What the actor says first, of no order, is that it listens.
_LISTENING = 0
# So much a pipe takes as a whole or not at all (`PIPE_BUF` in pipe(7)).
_MOST_NBYTES = 4096
_READ_NBYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Address:
    """Where the actor's ends of a line are: a process and two of its descriptors."""

    pid: int
    orders: int
    harvests: int


class NearLine:
    """The end of a line on the side that deals out chunks; it never blocks.

    Attributes
    ----------
    address : Address
        What the actor needs to `answer`.
    """

    def __init__(self) -> None:
        orders, self._orders = os.pipe()
        self._harvests, harvests = os.pipe()
        os.set_blocking(self._orders, False)
        os.set_blocking(self._harvests, False)
        self.address = Address(os.getpid(), orders, harvests)
        # The actor's end for orders stays open here too: so no write ever meets a broken pipe.
        ends = [orders, self._orders, self._harvests]
        self._spare = weakref.finalize(self, os.close, harvests)
        self._finalizers = [weakref.finalize(self, os.close, end) for end in ends]
        self._numbers = count(1)
        self._chunks: list[bytes] = []
        self._heard: dict[int, bytes] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when the actor has said something or ended."""
        return self._harvests

    def send(self, order: Order) -> int | None:
        """Send `order` and return its number; ``None`` if the line cannot take it now."""
        if self._spare.alive:
            self.hear()
            if self._spare.alive:
                return None
        number = next(self._numbers)
        message = b"".join(frame(CALL, number, dumps(order)))
        if len(message) > _MOST_NBYTES:
            return None
        try:
            os.write(self._orders, message)
        except BlockingIOError:
            return None
        return number

    def hear(self) -> list[int]:
        """Take in what the actor has said, and return what orders can be taken from here.

        Raises
        ------
        EOFError
            It has ended, and said nothing else before.
        """
        ended = False
        try:
            while not ended:
                hold(self._chunks, os.read, self._harvests, _READ_NBYTES)
                ended = not self._chunks[-1]
        except BlockingIOError:
            pass
        data, start = b"".join(self._chunks), 0
        while len(data) - start >= HEADER.size:
            _, number, _, nbytes = HEADER.unpack_from(data, start)
            end = start + HEADER.size + nbytes
            if end > len(data):
                break
            if number != _LISTENING:
                self._heard[number] = data[start + HEADER.size : end]
            else:
                # From now on nobody but the actor holds its end, so that one sees it end.
                self._spare()
            start = end
        self._chunks[:] = [data[start:]]
        if ended and not self._heard:
            raise EOFError("its process has ended")
        return [*self._heard]

    def take(self, number: int) -> Harvest:
        """Return what an order has given.

        Raises
        ------
        EOFError
            The actor has ended before it was done.
        """
        if number not in self._heard:
            raise EOFError("its process has ended")
        harvest: Harvest = loads(self._heard.pop(number))
        return harvest

    def close(self) -> None:
        """Close all ends; the actor then stops listening."""
        for finalizer in (self._spare, *self._finalizers):
            finalizer()


def answer(address: Address, run: Callable[[Order], Harvest]) -> None:
    """Do what the other end of a line asks for, until it is closed."""
    path = descriptor_path
    with (
        contextlib.suppress(OSError),
        open(path(address.pid, address.orders), "rb") as orders,
        open(path(address.pid, address.harvests), "wb") as harvests,
    ):
        _tell(harvests, _LISTENING, b"")
        while header := orders.read(HEADER.size):
            _, number, _, nbytes = HEADER.unpack(header)
            harvest = run(loads(orders.read(nbytes)))
            try:
                told = dumps(harvest)
            except Exception as error:
                failure = pack_exception(error, skip_frames=1)
                told = dumps(Harvest(harvest.seconds, harvest.counts, failure))
            _tell(harvests, number, told)


def _tell(harvests: BufferedWriter, number: int, payload: bytes) -> None:
    harvests.writelines(frame(RESULT, number, payload))
    harvests.flush()
