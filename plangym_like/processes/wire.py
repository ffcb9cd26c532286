"""Messages between processes: how they are pickled, framed, sent and received.

A message is a header and a payload over a unix stream socket:

========  ======  ==================================================
bytes     type    meaning
========  ======  ==================================================
0         uint8   kind: ACCESS, CALL, RESULT, EXCEPTION or CLOSE
1 to 8    uint64  request id; a reply carries the id of its request
9         uint8   number of file descriptors sent along (SCM_RIGHTS,
                  with the header's first byte)
10 to 17  uint64  number of bytes of the payload
========  ======  ==================================================

The payload of ACCESS is ``name``. The payload of CALL is ``(name or function, args, kwargs)``. The
payload of RESULT is the value. The payload of EXCEPTION is the exception, packed by
`plangym_like.processes.remote_errors`. CLOSE has no payload.
"""

from __future__ import annotations

import array
import pickle
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from plangym_like.processes.interrupts import hold

ACCESS, CALL, RESULT, EXCEPTION, CLOSE = range(1, 6)

HEADER = struct.Struct("<BQBQ")
MAX_DESCRIPTORS = 250

# Writing to a dead worker must raise an error, even in programs that set SIGPIPE to its default.
SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)

# What pickle and cloudpickle raise; errors of a class's own methods have other types.
_UNPICKLABLE = (
    TypeError,
    AttributeError,
    NotImplementedError,
    ValueError,
    pickle.PicklingError,
)
_ANCILLARY_NBYTES = 64 + MAX_DESCRIPTORS * array.array("i").itemsize
# Shorter payloads are copied behind their header and sent in one call (`benchmarks/constants.py`).
_JOIN_NBYTES = 1 << 16
# How many bytes to receive at once, for short and for long messages (`benchmarks/constants.py`).
_CHUNK_NBYTES = 1 << 16
_LARGE_CHUNK_NBYTES = 1 << 20

Deliver = Callable[[int, int, memoryview], None]


class Message(NamedTuple):
    """One message: its kind, request id, payload, and descriptors (owned by the receiver)."""

    kind: int
    request: int
    payload: memoryview
    descriptors: list[int]


def dumps(value: Any) -> bytes:
    """Return `value` pickled for a process that has another ``__main__`` than this process.

    Plain pickle is used where possible, because it is several times as fast. cloudpickle is used
    for lambdas, closures, and everything defined in ``__main__`` or in another module that the
    process cannot import.

    Raises
    ------
    TypeError
        A part of `value` cannot be pickled; the message says which part, and where it is.
    """
    try:
        data = pickle.dumps(value, 5)
    except Exception:
        return dumps_by_value(value)
    if b"_main__" in data:
        return dumps_by_value(value)
    by_value = sys.modules.get("plangym_like.processes.by_value")
    if by_value is not None and any(name in data for name in by_value.modules_sent):
        return dumps_by_value(value)
    cloudpickle = sys.modules.get("cloudpickle")
    if cloudpickle is not None and cloudpickle.list_registry_pickle_by_value():
        return dumps_by_value(value)
    return data


def dumps_by_value(value: Any) -> bytes:
    """Return `value` pickled by cloudpickle; see `dumps`."""
    import cloudpickle  # type: ignore[import-untyped]

    from plangym_like.processes.by_value import pickle_by_value

    # In a child process of multiprocessing, the user's script is the module `__mp_main__`, which
    # other processes cannot import.
    script = sys.modules.get("__mp_main__")
    if script is not None and script.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(script)
    try:
        return pickle_by_value(value)
    except _UNPICKLABLE as error:
        from plangym_like.processes.by_value import explain

        raise TypeError(explain(value, error)) from error


def loads(payload: bytes | memoryview) -> Any:
    """Return the value that `dumps` pickled."""
    return pickle.loads(payload)


def frame(kind: int, request: int, payload: bytes, num_descriptors: int = 0) -> list[bytes]:
    """Return the buffers to send for one message; the first begins with the header."""
    header = HEADER.pack(kind, request, num_descriptors, len(payload))
    return [header + payload] if len(payload) < _JOIN_NBYTES else [header, payload]


def rights(descriptors: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    """Return the ancillary data that sends `descriptors` along with the first byte of a buffer."""
    if len(descriptors) > MAX_DESCRIPTORS:
        raise ValueError(
            f"one message takes {MAX_DESCRIPTORS} descriptors at most, got {len(descriptors)}"
        )
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


def descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a received buffer; they are not inheritable."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def receive_with_descriptors(connection: socket.socket, nbytes: int, results: list[Any]) -> None:
    """Receive once; append ``(data, ancillary, flags, address)`` to `results` (see `hold`)."""
    hold(results, connection.recvmsg, nbytes, _ANCILLARY_NBYTES, socket.MSG_CMSG_CLOEXEC)


class BlockingReader:
    """The worker's end of the data socket; reads messages one by one, and waits for them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()
        self._descriptors: list[int] = []

    def read(self) -> Message | None:
        """Return the next message, or ``None`` if the connection has ended."""
        if not self._fill(HEADER.size):
            return None
        kind, request, num_descriptors, nbytes = HEADER.unpack_from(self._data)
        end = HEADER.size + nbytes
        if not self._fill(end):
            return None
        payload = memoryview(bytes(memoryview(self._data)[HEADER.size : end]))
        del self._data[:end]
        descriptors = self._descriptors[:num_descriptors]
        del self._descriptors[:num_descriptors]
        return Message(kind, request, payload, descriptors)

    def _fill(self, nbytes: int) -> bool:
        while len(self._data) < nbytes:
            received: list[Any] = []
            wanted = max(_JOIN_NBYTES, min(nbytes - len(self._data), 1 << 20))
            receive_with_descriptors(self._connection, wanted, received)
            data, ancillary, _, _ = received[0]
            if ancillary:
                self._descriptors += descriptors_in(ancillary)
            if not data:
                return False
            self._data += data
        return True


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
