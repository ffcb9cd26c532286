"""What happens to locks and descriptors when this process forks.

Only the thread that forks exists in the copy, so a lock that another thread held would stay locked
there. And while a copy has the owner's end of a worker's alive pipe open, the worker goes on after
its owner has ended (see `plangym_like.processes.child`). So in each copy, one hook releases locks
and closes descriptors. What belongs to another process compares process ids when it is used, and
raises an error.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol, TypeVar


class Closeable(Protocol):
    """An object that has descriptors."""

    def close(self) -> None:
        """Close the descriptors; may be called again."""


_Thing = TypeVar("_Thing", bound=Closeable)

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_closed_in_copies: weakref.WeakSet[Any] = weakref.WeakSet()
# How often this process, and those that it was forked from, have forked.
num_forks = 0


def new_lock() -> Any:
    """Return a re-entrant lock that no thread holds in a forked copy of this process."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def close_in_copies(thing: _Thing) -> _Thing:
    """Return `thing`, whose ``close()`` is called in every forked copy of this process."""
    _closed_in_copies.add(thing)
    return thing


def _count_fork() -> None:
    global num_forks
    num_forks += 1


def _begin_copy() -> None:
    _count_fork()
    for lock in list(_locks):
        lock._at_fork_reinit()
    for thing in list(_closed_in_copies):
        thing.close()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_copy, after_in_parent=_count_fork)
