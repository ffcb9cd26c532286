"""Keep environments and workers safe when the process that owns them forks.

The forked copy must not send messages on its parent's connections to workers. It must also close
its copies of the workers' alive pipes (see `plangym_like.processes.child`): while a copy is
open, workers keep running after their owner has ended. So the forked copy drops connections and
pipes immediately.

Only the thread that forks exists in the copy. A lock that another thread held stays locked in the
copy, and the data that it guards may be half changed. So locks are replaced in the copy, and
objects that another thread was using cannot be used any more.
"""

from __future__ import annotations

import os
import weakref
from typing import Generic, Protocol, TypeVar


class Forgetful(Protocol):
    """An object with descriptors or locks that a forked copy of its process must drop."""

    def forget(self) -> None:
        """Drop file descriptors and locks; called after a fork, in the child process."""


class ReentrantLock(Protocol):
    """The type of the locks that `threading.RLock` returns."""

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; return False only if ``blocking=False`` and another thread has it."""

    def release(self) -> None:
        """Release the lock."""


class Careful(Protocol):
    """An object that must react when its process has forked."""

    def take_care(self) -> None:
        """React to a fork; called after it, in the parent process."""


_Thing = TypeVar("_Thing")


class _WeakList(Generic[_Thing]):
    """A list of weak references to objects.

    A `weakref.WeakSet` cannot be used: it removes objects in a Python callback, which may run at
    any point of the program. If Ctrl-C interrupts the callback, the `KeyboardInterrupt` is lost.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[_Thing]] = {}
        self._most = 64

    def add(self, thing: _Thing) -> None:
        self._references[id(thing)] = weakref.ref(thing)
        if len(self._references) > self._most:
            for key, reference in list(self._references.items()):
                if reference() is None and self._references.get(key) is reference:
                    self._references.pop(key, None)
            self._most = max(64, 2 * len(self._references))

    def alive(self) -> list[_Thing]:
        references = list(self._references.values())
        return [thing for each in references if (thing := each()) is not None]


_careful: _WeakList[Careful] = _WeakList()
_known: _WeakList[Forgetful] = _WeakList()
_armed = False


def forget_after_fork(thing: Forgetful) -> None:
    """Register ``thing.forget()`` to be called in every child process that this process forks.

    If the child process forks, ``thing.forget()`` is called again in the new child process.
    """
    _arm()
    _known.add(thing)


def take_care_after_fork(thing: Careful) -> None:
    """Register ``thing.take_care()`` to be called in this process after every fork."""
    _arm()
    _careful.add(thing)


def held_by_lost_thread(lock: ReentrantLock) -> bool:
    """Return whether `lock` was held by a thread that does not exist in this forked copy."""
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


def _arm() -> None:
    global _armed
    if not _armed:
        _armed = True
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(after_in_child=_forget_all, after_in_parent=_take_care_of_all)


def _take_care_of_all() -> None:
    for thing in _careful.alive():
        thing.take_care()


def _forget_all() -> None:
    for thing in _known.alive():
        thing.forget()
