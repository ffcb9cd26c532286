"""Two ways to keep a ``KeyboardInterrupt`` from tearing apart what belongs together."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def hold(results: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """Append ``function(*arguments)`` to `results`, with no room for a signal handler in between.

    Python runs signal handlers between bytecodes. ``data = sock.recv(n)`` can therefore lose what
    it received to a ``KeyboardInterrupt`` before the name is bound; here the result of a function
    written in C is stored without a bytecode being run.

    Examples
    --------
    >>> results = []
    >>> hold(results, max, 3, 5)
    >>> results
    [5]
    """
    results.extend(map(function, *[(argument,) for argument in arguments]))


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C take effect only after the block, which should take milliseconds.

    Only the main thread is ever interrupted, so this does nothing in others.

    Examples
    --------
    >>> try:
    ...     with interrupts_deferred():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("not torn apart")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    not torn apart
    interrupted
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[0])
