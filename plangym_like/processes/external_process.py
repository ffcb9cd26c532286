"""`ExternalProcess`: hosts any object in a child process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Self

from plangym_like.errors import ClosedError, WorkerDiedError
from plangym_like.processes.child import check_can_start, interrupts_deferred
from plangym_like.processes.connection import Connection
from plangym_like.processes.start_methods import get_ready, launch, start_error, worker_environ
from plangym_like.processes.wire import ACCESS, CALL, dumps, dumps_by_value, loads
from plangym_like.results import Future
from plangym_like.support.fork_safety import new_lock

_serial_numbers = count()


class ExternalProcess:
    """Hosts, in a child process, the object that `constructor` returns.

    The process starts immediately and makes the object in the background. The first use waits for
    the object, and raises any error of its constructor. All attributes and methods of the object
    can be used through this one, under their own names and with their own arguments, except names
    with a leading underscore and the names of this class. `call` has no such exceptions. Errors of
    the object are raised with their own type and a `RemoteTraceback` as their cause. The process
    continues.

    The process ends when `close` is called, when the last references to this object and its futures
    are dropped, or when its owner ends, even if the owner is killed.

    Parameters
    ----------
    constructor : callable
        A callable without arguments that returns the object; lambdas and closures are fine.
    start_method : {"forkserver", "spawn", "fork"}
        See `plangym_like.processes.start_methods`.
    preload : sequence of str
        Modules that the fork server imports once, for this worker and all later ones.
    name : str, optional
        The name of the worker in errors and logs.
    linger : float
        Seconds for which the worker polls for the next request before it sleeps. The kernel tends
        to wake a sleeping process on the caller's core, where one of the two processes has to
        wait.

    Attributes
    ----------
    linger : float

    Examples
    --------
    >>> with ExternalProcess(lambda: [3, 1, 2]) as numbers:
    ...     numbers.sort()
    ...     future = numbers.call("index", 3)
    ...     future.result()
    2
    """

    def __init__(
        self,
        constructor: Callable[[], Any],
        *,
        start_method: str = "forkserver",
        preload: Sequence[str] = (),
        name: str | None = None,
        linger: float = 0.0,
    ) -> None:
        if not callable(constructor):
            raise TypeError(
                "constructor must be callable without arguments, got "
                f"{type(constructor).__name__}; to host an object that exists already, return it "
                "from a lambda"
            )
        check_can_start()
        self._name = f"worker-{next(_serial_numbers)}" if name is None else name
        self._constructor = dumps_by_value(constructor)
        self._start_method = start_method
        self._preload = tuple(preload)
        self.linger = linger
        self._closed = False
        self._restarting = new_lock()
        self._connection, self._ready = self._launch()

    def _launch(self) -> tuple[Connection, Future[Any]]:
        from plangym_like.states.rows import session_key

        try:
            directory = os.getcwd()
        except OSError:  # it has been removed
            directory = None
        setup = {
            "path": list(map(str, sys.path)),
            "directory": directory,
            "argv": list(map(str, getattr(sys, "argv", []))),
            "environ": worker_environ(),
            "session_key": session_key(),
            "linger": self.linger,
        }
        payload = dumps((setup, self._constructor))
        try:
            get_ready(self._start_method, self._preload)
            with interrupts_deferred():
                connection = Connection(launch(self._start_method), self._name)
        except OSError as error:
            if error.errno is None:
                raise  # raised by a signal handler, such as a TimeoutError
            raise start_error(error) from error
        return connection, connection.request(CALL, payload, patient=True)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the object has been constructed.

        Raises
        ------
        TimeoutError
            This took longer than `timeout` seconds.
        BaseException
            Any exception that the constructor raised.
        """
        self._usable()
        self._ready.result(timeout)

    def construct_here(self) -> Any:
        """Call the constructor in this process, and return the new object."""
        return _construct(self._constructor)

    def make_another(self) -> ExternalProcess:
        """Return a new `ExternalProcess` with the same constructor."""
        return ExternalProcess(
            partial(_construct, self._constructor),
            start_method=self._start_method,
            preload=self._preload,
            linger=self.linger,
        )

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the object's method `name`, and return the future of its result."""
        return self._usable().request(CALL, dumps((name, args, kwargs)))

    def apply(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        fds: Sequence[int] = (),
        patient: bool = False,
    ) -> Future[Any]:
        """Call ``fn(object, *args)`` in the process, and return the future of its result.

        If `fds` is given, copies of these open file descriptors are sent along. The call is then
        ``fn(object, *args, fds=[...])``, and `fn` owns the copies. If `patient` is true, this sends
        only as much as it can without waiting for the process to read. The rest is sent with the
        next request, by `drain`, or while a thread waits for a result.
        """
        return self._usable().request(CALL, dumps((fn, args, {})), fds, patient=patient)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}; names with a leading "
                "underscore are not looked up in the process"
            )
        is_method, value = self._usable().request(ACCESS, dumps(name)).result()
        if not is_method:
            return value

        def remote_method(*args: Any, **kwargs: Any) -> Any:
            return self.call(name, *args, **kwargs).result()

        remote_method.__name__ = remote_method.__qualname__ = name
        return remote_method

    @property
    def pid(self) -> int:
        """The process id."""
        return self._connection.process.pid

    @property
    def exitcode(self) -> int | None:
        """The exit status of the process, negative for a signal; ``None`` while it is running.

        It is also ``None`` in the rare case that the status is not known; see `is_alive`.
        """
        self._connection.process.poll()
        return self._connection.process.exitcode

    def is_alive(self) -> bool:
        """Return whether the process is alive."""
        return not self._connection.has_ended() and not self._connection.process.poll()

    def awaited(self) -> dict[int, int]:
        """Return the events to wait for, by descriptor; after one of them, call `drain`.

        Return an empty dict if the connection has ended.
        """
        return self._connection.awaited()

    def drain(self) -> None:
        """Process all replies that have arrived; if the process has ended, complete all requests.

        The futures of these replies are done afterwards. Their errors are not raised here. This
        does not wait for further replies.
        """
        self._connection.drain()

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self._connection.kill()

    def restart(self) -> None:
        """Kill the process if it is still running, and start a new one with the same constructor.

        Pending futures fail with `WorkerDiedError`. The new object is made in the background.
        """
        with self._restarting:
            old = self._usable()
            pid = old.process.pid
            message = f"worker {self._name!r} (pid {pid}) was replaced before it had answered"

            def replaced() -> WorkerDiedError:
                return WorkerDiedError(message, pid, -signal.SIGKILL)

            old.close(0.0, replaced)
            self._connection, self._ready = self._launch()

    def begin_close(self) -> None:
        """Ask the process to exit after its pending requests; call `close` to wait for its exit."""
        self._connection.ask_to_close()

    def close(self, timeout: float = 3.0) -> None:
        """Ask the process to exit, and kill it if it is still running after `timeout` seconds.

        The process calls the hosted object's ``close`` method, if there is one, before it exits.
        Futures that are still pending afterwards fail with `ClosedError`. Calling `close` again
        does nothing.
        """
        self._closed = True
        message = f"worker {self._name!r} has been closed; make another one"
        self._connection.close(timeout, lambda: ClosedError(message))

    def _usable(self) -> Connection:
        if self._closed:
            raise ClosedError(f"worker {self._name!r} has been closed; make another one")
        return self._connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "an ExternalProcess cannot be pickled or copied; send its constructor instead"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "alive" if self.is_alive() else "dead"
        return f"<ExternalProcess {self._name!r}, pid {self.pid}, {state}>"


def _construct(constructor: bytes) -> Any:
    """Unpickle a constructor, call it, and return the result."""
    return loads(constructor)()
