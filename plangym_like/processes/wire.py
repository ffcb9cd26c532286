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
import contextlib
import functools
import io
import os
import pickle
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

ACCESS, CALL, RESULT, EXCEPTION, CLOSE = range(1, 6)

HEADER = struct.Struct("<BQBQ")
MAX_DESCRIPTORS = 250

# Writing to a dead worker must raise an error, even in programs that set SIGPIPE to its default.
SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)

# Shorter payloads are copied behind their header and sent in one call.
_JOIN_NBYTES = 1 << 16
# How many bytes to receive at once, for short and for long messages.
_CHUNK_NBYTES = 1 << 16
_LARGE_CHUNK_NBYTES = 1 << 20

# What pickle and cloudpickle raise; errors of a class's own methods have other types.
_UNPICKLABLE = (
    TypeError,
    AttributeError,
    NotImplementedError,
    ValueError,
    pickle.PicklingError,
)

# Ancillary data, as `socket.sendmsg` takes it, and data to be sent with it.
Rights = list[tuple[int, int, "array.array[int]"]]
Buffer = tuple[memoryview, Rights]


class Message(NamedTuple):
    """One message.

    Attributes
    ----------
    kind, request : int
    payload : bytes
    descriptors : list of int, optional
        Open descriptors, which the receiver owns; ``None`` if some of those that were sent have not
        arrived, because the receiver may not have more open files.
    """

    kind: int
    request: int
    payload: bytes
    descriptors: list[int] | None


Deliver = Callable[[Message], object]


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles lambdas, local classes, and everything of ``__main__`` by value.

    This works around limits of cloudpickle 3.1: it replaces a class that has ``__slots__`` by one
    without them, which cannot exchange objects with the original class; it looks up functions with
    an ``lru_cache`` in the worker; and before Python 3.12, it rejects
    ``functools.cached_property``.
    """

    # The thing that is being pickled.
    last: Any = None

    def reducer_override(self, thing: Any) -> Any:
        self.last = thing
        if type(thing) is functools.cached_property:
            return _cached_property, (thing.func, thing.attrname)
        if type(thing) is functools._lru_cache_wrapper and _is_local(thing):
            return _cached_function, (thing.__wrapped__, thing.cache_parameters())
        reduced = super().reducer_override(thing)
        if isinstance(thing, type) and "__slots__" in vars(thing) and isinstance(reduced, tuple):
            name_space = reduced[1][3:4]
            if name_space and isinstance(name_space[0], dict):
                name_space[0]["__slots__"] = vars(thing)["__slots__"]
        return reduced


def dumps(value: Any) -> bytes:
    """Return `value` pickled for a process that has another ``__main__`` than this process.

    Plain pickle is used where possible, because it is several times as fast. cloudpickle is used
    for lambdas, closures, and everything defined in ``__main__`` or in a module that is registered
    with ``cloudpickle.register_pickle_by_value``.

    Raises
    ------
    TypeError
        A part of `value` cannot be pickled; the message names its class.
    """
    try:
        data = pickle.dumps(value, 5)
    except Exception:
        return dumps_by_value(value)
    by_value = b"_main__" in data or cloudpickle.list_registry_pickle_by_value()
    return dumps_by_value(value) if by_value else data


def dumps_by_value(value: Any) -> bytes:
    """Return `value` pickled by `ByValuePickler`; see `dumps`."""
    # The script of a program whose `multiprocessing` has spawned this process.
    if "__mp_main__" in sys.modules:
        cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])
    stream = io.BytesIO()
    pickler = ByValuePickler(stream, 5)
    try:
        pickler.dump(value)
    except _UNPICKLABLE as error:
        culprit = value if pickler.last is None else pickler.last
        kind = culprit if isinstance(culprit, type) else type(culprit)
        what = "the class" if kind is culprit else "an object of class"
        raise TypeError(
            f"{what} {kind.__module__}.{kind.__qualname__} cannot be sent to another process: "
            f"{error}; make it in a function that the worker calls, or move what uses it to a "
            "module of its own, which workers import"
        ) from error
    return stream.getvalue()


def _is_local(function: Any) -> bool:
    """Return whether other processes cannot import a function with an ``lru_cache``."""
    module = function.__module__
    by_value = module == "__main__" or module in cloudpickle.list_registry_pickle_by_value()
    return by_value or module not in sys.modules or "<locals>" in function.__qualname__


def _cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _cached_function(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def loads(payload: bytes | memoryview) -> Any:
    """Return the value that `dumps` pickled."""
    return pickle.loads(payload)


def receive_with_descriptors(
    connection: socket.socket, nbytes: int
) -> tuple[bytes, list[int], bool]:
    """Receive once; return the data, and the descriptors that came along, not inheritable.

    The last result is whether descriptors are missing, because this process may not have more open
    files. The descriptors of two messages never arrive together.
    """
    descriptors = array.array("i")
    size = descriptors.itemsize
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * size)
    # Not `socket.recv_fds`, which ignores its flags in Python 3.11: a process that another thread
    # starts at this moment would inherit the descriptors.
    data, ancillary, flags, _ = connection.recvmsg(nbytes, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) // size * size])
    return data, descriptors.tolist(), bool(flags & socket.MSG_CTRUNC)


def close_all(descriptors: Sequence[int]) -> None:
    """Close `descriptors`; those that are closed already are left out."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def outgoing(
    kind: int, request: int, payload: bytes, descriptors: Sequence[int] = ()
) -> list[Buffer]:
    """Return the buffers of one message, for `Channel.send`.

    The descriptors must stay open until the message is sent.
    """
    rights: Rights = []
    if descriptors:
        if len(descriptors) > MAX_DESCRIPTORS:
            raise ValueError(
                f"one message takes {MAX_DESCRIPTORS} descriptors at most, got {len(descriptors)}"
            )
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    for descriptor in descriptors:
        os.fstat(descriptor)  # an error now is the caller's; later, it would end the worker
    header = HEADER.pack(kind, request, len(descriptors), len(payload))
    if len(payload) < _JOIN_NBYTES:
        return [(memoryview(header + payload), rights)]
    return [(memoryview(header), rights), (memoryview(payload), [])]


class Channel:
    """Sends and receives messages over a stream socket; it is not thread-safe.

    After an exception in one of its methods, such as a `KeyboardInterrupt`, bytes may be lost, and
    the channel cannot be used any more.

    Parameters
    ----------
    connection : socket.socket
    blocking : bool
        Whether `send` waits until everything is sent, and `receive` until something arrives.

    Attributes
    ----------
    ended : bool
        Whether the other process has closed its end.
    outbox : deque
        What has not been sent yet.
    """

    def __init__(self, connection: socket.socket, *, blocking: bool = False) -> None:
        connection.setblocking(blocking)
        self.ended = False
        self.outbox: deque[Buffer] = deque()
        self._socket = connection
        self._blocking = blocking
        self._received = bytearray()
        # The descriptors of each message that has some; ``None`` if some are missing.
        self._descriptors: deque[list[int] | None] = deque()

    def send(self, message: Sequence[Buffer] = ()) -> None:
        """Queue `message`, and send as much of the queue as possible."""
        outbox = self.outbox
        outbox.extend(message)
        while outbox:
            data, ancillary = outbox[0]
            try:
                sent = self._socket.sendmsg([data], ancillary, SEND_FLAGS)
            except BlockingIOError:
                return
            except ConnectionError:
                # What the process has sent before it ended may still be received.
                outbox.clear()
                return
            if sent < len(data):
                outbox[0] = data[sent:], []
            else:
                outbox.popleft()

    def receive(self, deliver: Deliver) -> bool:
        """Receive what has arrived; return whether there was anything.

        ``deliver(message)`` is called for each complete message.
        """
        received = False
        while not self.ended:
            is_long = len(self._received) > _CHUNK_NBYTES
            wanted = _LARGE_CHUNK_NBYTES if is_long else _CHUNK_NBYTES
            try:
                chunk, descriptors, is_missing = receive_with_descriptors(self._socket, wanted)
            except BlockingIOError:
                break
            except ConnectionError:
                chunk, descriptors, is_missing = b"", [], False
            self.ended = not chunk
            if chunk:
                received = True
                if is_missing:
                    close_all(descriptors)
                if descriptors or is_missing:
                    self._descriptors.append(None if is_missing else descriptors)
                self._received += chunk
                self._deliver_complete(deliver)
            if self._blocking or len(chunk) < wanted:
                break
        return received

    def _deliver_complete(self, deliver: Deliver) -> None:
        received = self._received
        while len(received) >= HEADER.size:
            kind, request, num_descriptors, nbytes = HEADER.unpack_from(received)
            end = HEADER.size + nbytes
            if end > len(received):
                return
            payload = bytes(memoryview(received)[HEADER.size : end])
            del received[:end]
            descriptors = self._descriptors.popleft() if num_descriptors else []
            deliver(Message(kind, request, payload, descriptors))
