"""`RetryPolicy`: decides whether to replace workers that die or to raise an error."""

from __future__ import annotations

import signal
import time

from plangym_like.errors import WorkerDiedError, WorkerError, WorkerStartError

# The number of failed starts in succession, per worker, that raises an error. If the last process
# was killed, this may have been chance, so the second, larger number applies.
_FAILED_STARTS, _KILLED_STARTS = 3, 20
# The number of deaths in succession, without any task making progress, that raises an error.
_DEATHS_WITHOUT_PROGRESS = 64
# How long after the death of an idle worker to suspect that other processes kill workers.
_SUSPICION_SECONDS = 60.0
# Exit codes of signals that other processes may send. Other signals, and exit statuses, are caused
# by the worker.
_SENT = {
    -getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
    if hasattr(signal, name)
}


class RetryPolicy:
    """Counts the failures of one pool's workers, and raises an error if there are too many."""

    def __init__(self) -> None:
        self._failed_starts = self._deaths_without_progress = 0
        self._idle_death_at = float("-inf")

    def note_ready(self) -> None:
        """Record that a worker has made the object that it hosts."""
        self._failed_starts = 0

    def note_failed_start(self, error: WorkerError, num_workers: int) -> None:
        """Record that a worker died before its object was made, or took too long to make it.

        Raises
        ------
        WorkerStartError
            This has happened too often without any worker becoming ready in between.
        """
        self._failed_starts += 1
        killed = isinstance(error, WorkerDiedError) and may_be_sent(error.exitcode)
        most = _KILLED_STARTS if killed else _FAILED_STARTS
        if self._failed_starts >= most * num_workers:
            failed, self._failed_starts = self._failed_starts, 0
            raise WorkerStartError(
                f"workers died {failed} times in a row before they were ready, the last time "
                f"because: {error}"
            ) from error

    def note_progress(self) -> None:
        """Record that a task has made progress."""
        self._deaths_without_progress = 0

    def note_death_without_progress(self, error: WorkerDiedError) -> None:
        """Record that a worker died before its task made any progress.

        Raises
        ------
        WorkerDiedError
            This has happened too often in succession.
        """
        self._deaths_without_progress += 1
        if self._deaths_without_progress >= _DEATHS_WITHOUT_PROGRESS:
            died, self._deaths_without_progress = self._deaths_without_progress, 0
            raise WorkerDiedError(
                f"{died} workers died in succession without any progress, the last one because: "
                f"{error}; every task seems to kill its worker",
                error.pid,
                error.exitcode,
            ) from error

    def note_idle_death(self) -> None:
        """Record a worker's death that no task caused; something outside may be killing workers."""
        self._idle_death_at = time.monotonic()

    def suspects_killing(self, exitcode: int | None) -> bool:
        """Return whether a worker that ended with `exitcode` may have been killed from outside.

        This is suspected only if an idle worker died less than a minute ago.
        """
        recent = time.monotonic() - self._idle_death_at < _SUSPICION_SECONDS
        return recent and may_be_sent(exitcode)


def may_be_sent(exitcode: int | None) -> bool:
    """Return whether `exitcode` may be due to a signal from another process."""
    return exitcode is None or exitcode in _SENT
