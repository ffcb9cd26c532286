"""Ctrl-C in a search: the first ends it with the best plan so far, and the second aborts it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from plangym_like.planners import Progress

_STDERR = 2
_NOTICE = (
    b"plangym-like: interrupted; the search ends after this step. "
    b"Press Ctrl-C again to end at once\n"
)


class Interrupts:
    """Records the first Ctrl-C instead of raising; later ones raise `KeyboardInterrupt`.

    This context manager does nothing outside the main thread, or if SIGINT is ignored or has
    another handler.

    Attributes
    ----------
    came : bool
        Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Interrupts:
        self._before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._notice)
        return self

    def __exit__(self, *exc: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._notice:
            signal.signal(signal.SIGINT, self._before)

    def _notice(self, number: int, frame: Any) -> None:
        self.came = True
        signal.signal(signal.SIGINT, self._before)
        # Not by `print`: the progress bar may be writing to the same stream.
        os.write(_STDERR, _NOTICE)

    def ending(self, show: Callable[[Progress], object] | None) -> Callable[[Progress], object]:
        """Return a callback for ``progress=`` that ends the search after a Ctrl-C.

        The callback first calls `show`, if given.
        """

        def report(progress: Progress) -> None:
            if show is not None:
                show(progress)
            if self.came:
                raise StopIteration

        return report
