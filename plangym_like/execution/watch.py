"""`Watch`: waiting for word from workers."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from plangym_like.execution.worker_lane import WorkerLane

# The last rows take little longer in other lanes than here, and waking up costs as much.
_SPIN_SECONDS = 3e-4


class Watch:
    """Looks out for replies and deaths, and for rows that are done in shared memory.

    Parameters
    ----------
    lanes : sequence of WorkerLane
    """

    def __init__(self, lanes: Sequence[WorkerLane]) -> None:
        self._lanes = lanes
        self._poller = select.poll()
        self._watched: dict[int, int] = {}

    def wait(self, seconds: float, *, finished: Sequence[WorkerLane]) -> float:
        """Wait for `seconds` at most, first awake and then asleep; return how long it was.

        It ends early if one of the lanes `finished` has finished its rows.
        """
        self._look_at_all()
        begun = time.perf_counter()
        until = begun + min(seconds, _SPIN_SECONDS)
        while not self._poller.poll(0):
            if any(lane.finished for lane in finished):
                break
            if time.perf_counter() > until:
                self._poller.poll(max(0.0, seconds - _SPIN_SECONDS) * 1000)
                break
        return time.perf_counter() - begun

    def _look_at_all(self) -> None:
        watched: dict[int, int] = {}
        for lane in self._lanes:
            process = lane.process
            wanted = select.POLLIN | select.POLLOUT if process.unsent else select.POLLIN
            watched[process.fileno()] = wanted
            watched[process.sentinel or -1] = select.POLLIN
        watched.pop(-1, None)
        if watched != self._watched:
            self._poller = select.poll()
            for fd, mask in watched.items():
                self._poller.register(fd, mask)
            self._watched = watched
