"""A Ctrl-C at a chosen moment: after the n-th call or loop, where CPython looks for signals."""

from __future__ import annotations

import dis
import functools
import signal
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import plangym_like

_PACKAGE = str(Path(plangym_like.__file__).parent)


@functools.cache
def _looks(code: CodeType) -> frozenset[int]:
    """Return the instructions after which signal handlers may run."""
    names = ("RESUME", "JUMP_BACKWARD", "CALL")
    return frozenset(at.offset for at in dis.get_instructions(code) if at.opname.startswith(names))


class AlarmError(KeyboardInterrupt):
    """What a signal handler may raise, such as one that limits the time of a call."""


class Moment:
    """The `number`-th moment in this package's code at which a signal handler may run.

    Attributes
    ----------
    where : str or None
        In which line that was; ``None`` if there were not as many.
    """

    def __init__(self, number: int) -> None:
        self.where: str | None = None
        self._left = number
        self._last: dict[int, int] = {}

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_back is not None:
            # What is called in Python looks itself, and not again when it returns.
            self._last.pop(id(frame.f_back), None)
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._last.pop(id(frame), None)
        return self._trace

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode":
            return self._trace
        last = self._last.get(id(frame), -1)
        self._last[id(frame)] = frame.f_lasti
        if last in _looks(frame.f_code) and self.where is None:
            if self._left == 1 and _ignores_errors(frame):
                return self._trace
            self._left -= 1
            if not self._left:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self._trace

    @contextmanager
    def strikes(self, error: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
        """Press Ctrl-C at that moment in this block; the handler raises `error`, caught here."""
        usual = signal.getsignal(signal.SIGINT)

        def raises(*_: Any) -> None:
            raise error

        if error is not KeyboardInterrupt:
            signal.signal(signal.SIGINT, raises)
        # Without this, Python 3.12 traces no opcodes until settrace is called a second time.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._enter)
        try:
            yield
        except error:
            pass
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, usual)


def _ignores_errors(frame: FrameType | None) -> bool:
    """Return whether Python itself ignores what is raised here: a finalizer runs."""
    while frame is not None:
        code = frame.f_code
        # Python calls a `weakref.finalize` with the dead reference, and others without argument.
        is_finalize = code is weakref.finalize.__call__.__code__ and frame.f_locals["_"] is not None
        if is_finalize or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
