"""What happens to workers when the process that owns them forks.

The copy must not talk on its parent's connections, nor keep the write ends of their alive pipes
open: the workers would then outlive their owner. So it forgets them, at once and without a word.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Generic, Protocol, TypeVar


class Forgetful(Protocol):
    """Something that holds descriptors which a forked copy of its process must drop."""

    def forget(self) -> None:
        """Close the descriptors; runs in the child of a fork, where locks may be stuck."""


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
        self._references: list[weakref.ref[_Thing]] = []

    def add(self, thing: _Thing) -> None:
        known = False
        for each in list(self._references):
            other = each()
            known = known or other is thing
            if other is None:
                with contextlib.suppress(ValueError):  # another thread was quicker
                    self._references.remove(each)
        if not known:
            self._references.append(weakref.ref(thing))

    def alive(self) -> list[_Thing]:
        return [thing for each in self._references if (thing := each()) is not None]

    def clear(self) -> None:
        self._references.clear()


_careful: _WeakList[Careful] = _WeakList()
_known: _WeakList[Forgetful] = _WeakList()
_armed = False


def forget_after_fork(thing: Forgetful) -> None:
    """Have ``thing.forget()`` called in every process that this one forks from now on."""
    _arm()
    _known.add(thing)


def take_care_after_fork(thing: Careful) -> None:
    """Have ``thing.take_care()`` called in this process whenever it has forked."""
    _arm()
    _careful.add(thing)


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
    _known.clear()
