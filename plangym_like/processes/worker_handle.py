"""`WorkerHandle`: one worker of a `WorkerPool`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from plangym_like.future import Future
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.processes.remote_errors import is_remote, portable_result


class WorkerHandle:
    """A worker process, with its current task.

    A worker has one task at a time. The pool's owner starts the task, and takes the result from
    `task` when it is done. If the owner abandons the task, the pool frees or replaces the worker.

    Parameters
    ----------
    process : ExternalProcess
    index : int
        The worker's index in its pool.
    prepare : callable, optional
        ``prepare(hosted)`` is called in each new process; the worker is ready after that.

    Attributes
    ----------
    task : Future or None
        The future of the worker's current task.
    abandoned_at : float or None
        When the task was abandoned, if it was.
    send_interrupted : bool
        Whether sending a task was interrupted, so that the worker may not have received it.
    started_at : float
        When the process was started.
    """

    def __init__(
        self, process: ExternalProcess, index: int, prepare: Callable[[Any], Any] | None = None
    ) -> None:
        self.process = process
        self.index = index
        self._prepare = prepare or _do_nothing
        self.task: Future[Any] | None = None
        self.abandoned_at: float | None = None
        self.send_interrupted = False
        self._greet()

    def _greet(self) -> None:
        self._greeting: Future[Any] | None = self.process.apply(self._prepare, patient=True)
        self.started_at = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether the hosted object is known to be ready."""
        return self._greeting is None

    @property
    def busy(self) -> bool:
        """Whether the worker has a task."""
        return self.task is not None

    @property
    def free(self) -> bool:
        """Whether the worker can be given a task."""
        return self._greeting is None and self.task is None and not self.send_interrupted

    @property
    def died(self) -> bool:
        """Whether the process ended before it replied to its task."""
        return self.task is not None and _ended(self.task)

    @property
    def died_starting(self) -> bool:
        """Whether the process ended before it was ready, without reporting an exception."""
        return self._greeting is not None and _ended(self._greeting)

    def become_ready(self) -> bool:
        """Return whether the hosted object has become ready since the last call.

        Raises
        ------
        Exception
            Any error that the constructor or `prepare` raised, or the error for a process that has
            ended.
        """
        if self._greeting is None or not self._greeting.done():
            return False
        portable_result(self._greeting)
        self._greeting = None
        return True

    def start_task(self, fn: Callable[..., Any], *args: Any, fds: Sequence[int] = ()) -> None:
        """Call ``fn(hosted, *args)`` in the process; see `ExternalProcess.apply`.

        If this call is interrupted, the pool replaces the worker, since the task may be half sent.
        """
        try:
            self.task = self.process.apply(fn, *args, fds=fds, patient=True)
        except BaseException:
            self.send_interrupted = True
            raise

    def take_task(self) -> Future[Any]:
        """Return the future of the task, which may still be pending, and free the worker."""
        task = self.task
        assert task is not None
        self.task = self.abandoned_at = None
        return task

    def abandon(self) -> None:
        """Mark the task as abandoned: its result is not needed, and the worker should stop it."""
        self.abandoned_at = time.monotonic()

    def restart(self) -> None:
        """Kill the process if it is still running, and start a new one, which has no task."""
        self.process.restart()
        self._greet()
        self.task = self.abandoned_at = None
        self.send_interrupted = False


def _do_nothing(hosted: Any) -> None:
    pass


def _ended(future: Future[Any]) -> bool:
    """Return whether `future` failed because the process ended or was closed."""
    error = future.exception() if future.done() else None
    return error is not None and not is_remote(error)
