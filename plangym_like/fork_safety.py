"""What happens to environments and workers when the process that owns them forks.

The copy must not talk on its parent's connections, nor keep the write ends of their alive pipes
open: the workers would then outlive their owner. So it forgets them, at once and without a word.

Only the thread that forks lives on in the copy. A lock that another thread held stays locked there
for ever, and what that lock guards may be half changed. So locks are replaced in the copy, and what
was in use by another thread is given up.
"""

from __future__ import annotations

import os
import weakref
from typing import Generic, Protocol, TypeVar


class Forgetful(Protocol):
    """Something that holds descriptors or locks which a forked copy of its process must drop."""

    def forget(self) -> None:
        """Close the descriptors; runs in the child of a fork, where locks may be stuck."""


class ReentrantLock(Protocol):
    """What `threading.RLock` makes."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take it, or with ``blocking=False`` return whether that was possible at once."""

    def release(self) -> None:
        """Give it back."""


class Careful(Protocol):
    """Something that its process must treat with more care once there is a copy of it."""

    def take_care(self) -> None:
        """Do so; runs in the process that has forked."""


_Thing = TypeVar("_Thing")


class _WeakList(Generic[_Thing]):
    """Things that are alive, without keeping them so.

    A `weakref.WeakSet` would not do: it removes the dead in a Python function that runs wherever
    they die, and a Ctrl-C that is noticed in such a one is lost.
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
    """Have ``thing.forget()`` called in every process that this one forks from now on.

    A copy that forks calls it once more.
    """
    _arm()
    _known.add(thing)


def take_care_after_fork(thing: Careful) -> None:
    """Have ``thing.take_care()`` called in this process whenever it has forked."""
    _arm()
    _careful.add(thing)


def held_by_lost_thread(lock: ReentrantLock) -> bool:
    """Return whether a thread that is not in this forked copy held `lock`; called in `forget`."""
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


def _arm() -> None:
    global _armed
    if not _armed:
        _armed = True
        os.register_at_fork(after_in_child=_forget_all, after_in_parent=_take_care_of_all)


def _take_care_of_all() -> None:
    for thing in _careful.alive():
        thing.take_care()


def _forget_all() -> None:
    for thing in _known.alive():
        thing.forget()
