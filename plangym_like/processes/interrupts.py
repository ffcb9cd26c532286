"""Two ways to protect a critical section from a ``KeyboardInterrupt``."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

# Time for a finalizer to return.
_SOON_SECONDS = 0.01


def hold(results: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """Append ``function(*arguments)`` to `results`, in one operation that signals cannot interrupt.

    Python runs signal handlers between bytecodes. So ``data = sock.recv(n)`` can lose the received
    data to a ``KeyboardInterrupt`` before the name is bound. Here, if `function` is written in C,
    no bytecode runs between its return and the storing of its result.

    Examples
    --------
    >>> results = []
    >>> hold(results, max, 3, 5)
    >>> results
    [5]
    """
    results.extend(map(function, *[(argument,) for argument in arguments]))


@contextlib.contextmanager
def interrupts_deferred(*, by_finalizer: bool = False) -> Iterator[None]:
    """Let Ctrl-C take effect only after the block, which should take milliseconds.

    Only the main thread is interrupted, so this does nothing in other threads. An exception in a
    finalizer is printed and lost. So if `by_finalizer` is true, Ctrl-C takes effect just after the
    finalizer has ended.

    Examples
    --------
    >>> try:
    ...     with interrupts_deferred():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("not interrupted")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    not interrupted
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
        restored = None
        if arrived and by_finalizer:
            restored = threading.Event()
            # Started before the handler is restored, because an exception that the handler raises
            # in this block would be lost.
            with contextlib.suppress(RuntimeError):  # an interpreter that exits starts no thread
                arguments = (threading.get_ident(), restored)
                threading.Thread(target=_interrupt_soon, args=arguments, daemon=True).start()
        signal.signal(signal.SIGINT, handler)
        if restored is not None:
            restored.set()
        elif arrived:
            handler(*arrived[0])


def _interrupt_soon(thread: int, restored: threading.Event) -> None:
    """Interrupt `thread` after the signal handler is `restored` and the finalizer has ended."""
    restored.wait(1.0)
    time.sleep(_SOON_SECONDS)
    # Not `_thread.interrupt_main`, which would not end a `time.sleep`.
    signal.pthread_kill(thread, signal.SIGINT)
