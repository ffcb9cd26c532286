"""Replace exceptions such as `SystemExit` that a row raises and that would end the program."""

from __future__ import annotations

import dis
import signal
import threading
from collections.abc import Iterator
from types import CodeType, TracebackType
from typing import Any

from plangym_like.errors import RowExitError

_RAISE = dis.opmap["RAISE_VARARGS"]
_SIGNALS = tuple(signal.valid_signals())


def row_exit(error: BaseException) -> RowExitError:
    """Return the error that replaces `error`, which is a `SystemExit` or similar exception."""
    found = RowExitError(
        f"the environment raised {error!r} in a step of a batch; that would end the program, so "
        "this error is raised instead. An environment should end an episode by its flags and raise "
        "an ordinary exception for a failure"
    )
    found.__cause__ = error
    return found


def not_exiting(error: BaseException) -> Exception:
    """Return `error`, or a `RowExitError` if `error` would end the program.

    If `error` or one of its causes comes from a signal handler, that error is raised again.
    """
    if (interruption := interruption_in(error)) is not None:
        raise interruption
    return error if isinstance(error, Exception) else row_exit(error)


class errors_suppressed:
    """Suppress errors of `kinds` (by default, all kinds), unless a signal handler raised them."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds or (BaseException,)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, self._kinds):
            return False
        not_exiting(error)
        return True


def interruption_in(error: BaseException | None) -> BaseException | None:
    """Return the first of `error` and its causes that a signal handler raised, or ``None``."""
    while error is not None and not raised_by_signal_handler(error):
        error = error.__cause__
    return error


def raised_by_signal_handler(error: BaseException) -> bool:
    """Return whether `error` comes from a signal handler that interrupted a row (Ctrl-C).

    Handlers run in the main thread only, and worker processes have no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [found for number in _SIGNALS if callable(found := _handler(number))]
    codes = {_code(handler) for handler in handlers if handler is not signal.default_int_handler}
    trace = list(_entries(error.__traceback__))
    if any(entry.tb_frame.f_code in codes for entry in trace):
        return True
    if isinstance(error, Exception) or (trace and _raises(trace[-1])):
        return False
    # The remaining cases come from C code, which is not in the traceback: sys.exit or Ctrl-C.
    interrupt = isinstance(error, KeyboardInterrupt) and signal.default_int_handler in handlers
    return interrupt or None in codes


def _handler(number: int) -> Any:
    return signal.getsignal(number)


def _code(handler: Any) -> CodeType | None:
    """Return the code object of a handler, or ``None`` if it is not written in Python."""
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    for found in (handler, type(handler).__call__):
        code = getattr(found, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _raises(entry: TracebackType) -> bool:
    """Return whether the instruction that the traceback points to is a ``raise`` statement."""
    return entry.tb_frame.f_code.co_code[entry.tb_lasti] == _RAISE
