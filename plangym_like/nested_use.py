"""Refuse to use an object while the same thread is already using it.

A signal handler, or an environment's own code, may call an environment that this thread is using.
The environment's lock keeps out other threads only: it is re-entrant, so a call in the same thread
gets through.
"""

from __future__ import annotations

import threading


def not_in_use(mark: threading.Lock) -> threading.Lock:
    """Return the lock `mark`, which the caller holds while it uses the object.

    Call this only while holding the object's re-entrant lock, so that no other thread has `mark`.

    Raises
    ------
    RuntimeError
        The object is in use.
    """
    if mark.locked():
        raise RuntimeError(
            "an environment was used while it was already in use: a signal handler, or code that "
            "one of its methods was running, called it again; set a flag in the handler instead, "
            "or use a clone of the environment there"
        )
    return mark
