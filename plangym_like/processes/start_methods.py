"""The ways in which worker processes can be started.

``"forkserver"``
    Forked from the fork server: fast, and safe.
``"spawn"``
    A new interpreter, which imports everything again.
``"fork"``
    Forked from the user's own process. The worker has everything in that process's memory, but
    locks held by other threads are never released, and simulators, GPU contexts and BLAS threads
    may hang or crash. Use this method only if the process has none of these.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Sequence

from plangym_like.errors import InputError, WorkerStartError
from plangym_like.processes import fork_server
from plangym_like.processes.child import (
    ONE_THREAD,
    ChildProcess,
    Launched,
    in_lasting_thread,
    launch_by,
    start_copy,
    start_python,
)
from plangym_like.processes.shared_memory import none_are_left

logger = logging.getLogger("plangym_like")

_fork_server_works: bool | None = None


def check_start_method(start_method: str) -> None:
    """Raise `InputError` if `start_method` is unknown."""
    if start_method not in START_METHODS:
        raise InputError(
            f"start_method must be one of {', '.join(map(repr, START_METHODS))}, "
            f"got {start_method!r}"
        )


def get_ready(start_method: str, preload: Sequence[str] = ()) -> None:
    """Do the slow part of `launch` in advance; this part may be interrupted.

    Raises
    ------
    InputError
        `start_method` is unknown.
    WorkerStartError
        The fork server could not be started.
    """
    global _fork_server_works
    check_start_method(start_method)
    if start_method == "forkserver" and _fork_server_works is not False:
        try:
            supported = fork_server.fork_server_supported()
            _fork_server_works = supported and fork_server.get_ready(preload)
        except OSError as error:
            raise _no_start(error) from error
        if not _fork_server_works:
            reason = "a module that all workers import starts threads"
            if not supported:
                reason = "this system has no descriptors of processes (Linux has them from 5.3 on)"
            logger.warning(
                "workers cannot be forked safely, because %s: each is spawned instead, as with "
                'start_method="spawn"',
                reason,
            )


def launch(start_method: str, preload: Sequence[str] = ()) -> Launched:
    """Start a worker, which waits for its first request on the data socket.

    Raises
    ------
    WorkerStartError
        The process could not be made.
    """
    try:
        start = START_METHODS[start_method]
        return launch_by(lambda *ends: start(preload, *ends))
    except OSError as error:
        if error.errno is None:
            raise  # raised by a signal handler, such as a TimeoutError
        raise _no_start(error) from error


def _no_start(error: OSError) -> WorkerStartError:
    advice = none_are_left(error) or (
        "a limit on processes or memory may have been reached: see `ulimit -a`"
    )
    return WorkerStartError(f"no worker could be started ({error}): {advice}")


def _start_from_fork_server(preload: Sequence[str], data_fd: int, alive_fd: int) -> ChildProcess:
    if not _fork_server_works:
        return _start_interpreter(preload, data_fd, alive_fd)
    # The outputs are sent along, since they may have been redirected after the fork server started;
    # `launch_by` has made sure that they are open.
    return fork_server.fork_worker([data_fd, alive_fd, 1, 2], preload)


def _start_interpreter(preload: Sequence[str], data_fd: int, alive_fd: int) -> ChildProcess:
    return start_python(
        "plangym_like.processes.worker",
        "run",
        [data_fd, alive_fd],
        worker_environ(),
        dies_with_parent=in_lasting_thread(),
    )


def _start_copy(preload: Sequence[str], data_fd: int, alive_fd: int) -> ChildProcess:
    from plangym_like.processes import worker

    def run() -> None:
        atexit._clear()
        worker.run(data_fd, alive_fd)

    return start_copy(run)


START_METHODS: dict[str, Callable[..., ChildProcess]] = {
    "forkserver": _start_from_fork_server,
    "spawn": _start_interpreter,
    "fork": _start_copy,
}


def worker_environ() -> dict[str, str]:
    """Return the environment variables of a worker, which limit numerical libraries to one thread.

    Workers share the cores. Variables that the user has set are kept.
    """
    return ONE_THREAD | dict(os.environ)
