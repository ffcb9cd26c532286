"""`libraries_left_open`: close a copy of an environment without shutting down whole libraries.

A game may call ``pygame.quit`` when it is closed, which shuts pygame down in the whole process. The
windows and fonts of all other copies are then gone. This package closes copies while others are in
use.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

# Modules whose function ``quit`` shuts down a library, or a part of it, in the whole process.
_MODULES = ("pygame", "pygame.display", "pygame.font", "pygame.freetype", "pygame.mixer")

_lock = threading.Lock()
# The modules whose ``quit`` is replaced, each with its original function.
_exchanged: list[tuple[Any, Any]] = []
_threads = 0  # the number of threads inside `libraries_left_open`


@contextlib.contextmanager
def libraries_left_open() -> Iterator[None]:
    """During the block, functions that shut down a library, such as ``pygame.quit``, do nothing."""
    global _threads
    with _lock:
        _threads += 1
        for name in _MODULES:
            module: Any = sys.modules.get(name)
            end = getattr(module, "quit", None)
            if end is not None and end is not _nothing:
                _exchanged.append((module, end))
                module.quit = _nothing
    try:
        yield
    finally:
        with _lock:
            _threads -= 1
            while _exchanged and not _threads:
                module, end = _exchanged.pop()
                module.quit = end


def close_copy(env: Any) -> None:
    """Close one of several copies of an environment; ignore exceptions that its ``close`` raises.

    Libraries that the other copies use, such as pygame, are not shut down.
    """
    with contextlib.suppress(Exception), libraries_left_open():
        env.close()


def _nothing() -> None:
    """Do nothing."""
