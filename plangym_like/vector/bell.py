"""`Bell`: requests a step from another process, and returns its reply, through shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.processes.shared_memory import WRITES_IN_ORDER

NUM_WORDS = 16
# The size of the memory for replies, in bytes per lane.
REPLY_NBYTES = 4096

# The words that the caller writes and those that the worker writes are in different cache lines.
_RUNG, _METHOD, _SLOT, _PUBLISH = range(4)
_DONE, _WATCHING, _NBYTES = range(8, 11)
_METHODS = ("step", "step_next", "step_same")


class Bell:
    """Requests a step of all lanes of a worker, without a message.

    Sending and receiving messages takes a considerable part of the time of short steps. So while a
    worker polls for its next message, it also polls its bell. All arguments of the step must be in
    shared memory.

    Parameters
    ----------
    words : array ``(NUM_WORDS,) int64``
        Shared memory, zero-filled at first.
    replies : array uint8
        Shared memory for the pickled reply.
    """

    def __init__(self, words: NDArray[np.int64], replies: NDArray[np.uint8]) -> None:
        # Items of a memoryview are read and written several times as fast as those of an array.
        self._words: Any = words.data
        self._replies = replies.reshape(-1).data

    # For the caller

    @property
    def is_watched(self) -> bool:
        """Whether the worker polls the bell, as far as is known."""
        watched: int = self._words[_WATCHING]
        return bool(watched)

    def ring(self, method: str, slot: int, publish: bool) -> bool:
        """If the worker polls the bell, request a step; return whether a step was requested.

        The arguments are those of `HostedLanes.step`. A worker that stops polling at this moment
        may not notice the request; `HostedLanes.collect` then runs the step.
        """
        if not self.is_watched:
            return False
        words = self._words
        words[_METHOD], words[_SLOT], words[_PUBLISH] = _METHODS.index(method), slot, publish
        words[_RUNG] += 1
        return True

    def is_done(self) -> bool:
        """Return whether the step is done, or has raised an error."""
        words = self._words
        done: bool = words[_DONE] == words[_RUNG]
        return done

    def reply(self) -> memoryview | None:
        """Return the pickled reply; ``None`` if the reply or error must be requested by message."""
        nbytes = self._words[_NBYTES]
        return self._replies[:nbytes] if nbytes else None

    # For the worker

    def begin(self) -> None:
        """Discard any request that was made to an earlier process of these lanes."""
        words = self._words
        words[_DONE], words[_WATCHING] = words[_RUNG], 0

    def has_rung(self, watching: bool) -> bool:
        """Return whether a step is requested; `watching` says if the worker continues to poll."""
        words = self._words
        words[_WATCHING] = watching and WRITES_IN_ORDER
        rung: bool = words[_RUNG] != words[_DONE]
        return rung

    def arguments(self) -> tuple[str, int, bool]:
        """Return the method, the slot and whether to publish, as given to `ring`."""
        words = self._words
        return _METHODS[words[_METHOD]], words[_SLOT], bool(words[_PUBLISH])

    def answer(self, reply: bytes | None) -> None:
        """Mark the step as done; a `reply` of ``None`` means that the step raised an error."""
        words, nbytes = self._words, len(reply or b"")
        if nbytes > len(self._replies):
            nbytes = 0
        elif reply:
            self._replies[:nbytes] = reply
        words[_NBYTES] = nbytes
        words[_DONE] = words[_RUNG]
