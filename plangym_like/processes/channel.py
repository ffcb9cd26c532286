"""`Channel`: the owner's end of a worker's data socket, non-blocking and safe under signals."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence

from plangym_like.processes.interrupts import hold
from plangym_like.processes.messages import HEADER, SEND_FLAGS, frame, rights

# How many bytes to receive at once, for short and for long messages (`benchmarks/constants.py`).
_CHUNK_NBYTES = 1 << 16
_LARGE_CHUNK_NBYTES = 1 << 20

Deliver = Callable[[int, int, memoryview], None]


class Outgoing:
    """One buffer to send; `sent` lists how many of its bytes each call of ``send`` has sent."""

    __slots__ = ("data", "descriptors", "sent")

    def __init__(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        self.data = memoryview(data)
        self.descriptors = descriptors
        self.sent: list[int] = []


def outgoing(
    kind: int, request: int, payload: bytes, descriptors: Sequence[int] = ()
) -> list[Outgoing]:
    """Return the buffers of one message, for `Channel.post`."""
    first, *others = frame(kind, request, payload, len(descriptors))
    return [Outgoing(first, descriptors), *map(Outgoing, others)]


class Channel:
    """Sends and receives messages over a non-blocking stream socket.

    A signal handler that raises an exception may interrupt any method between two bytecodes, and
    the method can then be repeated. This is safe because bytes move from the kernel into `_chunks`,
    and from `_outbox` to the kernel, in single operations that cannot be interrupted. Everything
    else is derived from these two attributes.

    A channel is not thread-safe: hold one lock around `post`, `flush` and `retract`, and another
    one around `receive` and `pass_on`. A signal handler may call `receive` and `pass_on` even if it
    has interrupted one of them.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._chunks: list[bytes] = []
        self._outbox: deque[Outgoing] = deque()

    @property
    def unsent(self) -> bool:
        """Whether there are queued bytes for `flush` to send."""
        return bool(self._outbox)

    def post(self, parts: list[Outgoing]) -> None:
        """Queue a message; its descriptors must stay open until it is sent."""
        self._outbox.extend(parts)

    def flush(self) -> bool:
        """Send as much as possible without blocking; return whether everything was sent."""
        outbox = self._outbox
        while outbox:
            part = outbox[0]
            done = sum(part.sent)
            if done >= len(part.data):
                outbox.popleft()
                continue
            try:
                if part.descriptors and not part.sent:
                    ancillary = rights(part.descriptors)
                    hold(part.sent, self.socket.sendmsg, [part.data], ancillary, SEND_FLAGS)
                else:
                    hold(part.sent, self.socket.send, part.data[done:], SEND_FLAGS)
            except BlockingIOError:
                return False
        return True

    def retract(self, parts: list[Outgoing]) -> bool:
        """Remove an unsent message from the queue; return False if part of it has been sent."""
        if parts[0].sent:
            return False
        self._outbox = deque([part for part in self._outbox if part not in parts])
        return True

    def receive(self, deliver: Deliver, *, everything: bool = False) -> bool:
        """Receive and deliver all complete messages; return whether more may follow.

        Parameters
        ----------
        deliver : callable
            Called with the kind, request id and payload of each message. It may be called twice for
            a message if a signal handler interrupts this method.
        everything : bool
            Whether to read until it is certain, not only likely, that the kernel has no more data.
        """
        while True:
            wanted = _CHUNK_NBYTES if len(self._chunks) < 2 else _LARGE_CHUNK_NBYTES
            try:
                hold(self._chunks, self.socket.recv, wanted)
            except BlockingIOError:
                return True
            except ConnectionError:
                return False
            # None if a signal handler has already delivered the received bytes.
            received = self._chunks[-1] if self._chunks else None
            if received == b"":
                return False
            self.pass_on(deliver)
            if (received is None or len(received) < wanted) and not everything:
                return True

    def pass_on(self, deliver: Deliver) -> bool:
        """Deliver all complete messages received so far; return whether there were any."""
        chunks = self._chunks
        parts = chunks[:]
        if not parts:
            return False
        count, first = len(parts), parts[0]
        if count > 1:
            if len(first) >= HEADER.size:
                needed = HEADER.size + HEADER.unpack_from(first)[3]
                if sum(map(len, parts)) < needed:
                    return False
            first = b"".join(parts)
        data = memoryview(first)
        start = 0
        while len(data) - start >= HEADER.size:
            kind, request, _, nbytes = HEADER.unpack_from(data, start)
            body = start + HEADER.size
            if len(data) - body < nbytes:
                break
            deliver(kind, request, data[body : body + nbytes])
            start = body + nbytes
        if not start and count == 1:
            return False
        rest = [bytes(data[start:])] if start < len(data) else []
        # No signal handler runs between the next two lines, but one may have run before and
        # delivered these messages already.
        if chunks[:count] == parts:
            chunks[:count] = rest
        return start > 0

    def clear(self) -> None:
        """Drop all queued messages."""
        self._outbox.clear()
