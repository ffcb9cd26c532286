"""Refuse a second use of an object in the middle of the first one, by the same thread.

A signal handler, or an environment's own code, may call an environment that this thread is using.
The lock that keeps other threads out does not keep it out, because that lock is re-entrant.
"""

from __future__ import annotations

import threading


def not_in_use(mark: threading.Lock) -> threading.Lock:
    """Return `mark`, which the caller holds while it uses the object.

    Call this only while holding the object's re-entrant lock, so that no other thread has `mark`.

    Raises
    ------
    RuntimeError
        The object is in use.
    """
    if mark.locked():
        raise RuntimeError(
            "an environment was used in the middle of another use of it, by a signal handler or "
            "by its own code; set a flag in the handler instead, or use a clone of the environment"
        )
    return mark
