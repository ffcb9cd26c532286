"""`libraries_left_open`: close one of several copies of an environment, but not what all share.

A game may end pygame when it is closed, for the whole process: the window and the fonts of all
other copies are then gone. Gymnasium's users close an environment when they need it no more; here,
copies are closed while others are in use.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

# Modules with a function ``quit`` that ends a library, or a part of it, in the whole process.
_MODULES = ("pygame", "pygame.display", "pygame.font", "pygame.freetype", "pygame.mixer")


@contextlib.contextmanager
def libraries_left_open() -> Iterator[None]:
    """Let the functions that end a library do nothing during the block."""
    ended: list[tuple[Any, Any]] = []
    for name in _MODULES:
        module: Any = sys.modules.get(name)
        end = getattr(module, "quit", None)
        # Another thread may be in such a block, too; it restores the function.
        if end is not None and end is not _nothing:
            ended.append((module, end))
            module.quit = _nothing
    try:
        yield
    finally:
        for module, end in ended:
            module.quit = end


def _nothing() -> None:
    """Do nothing."""
