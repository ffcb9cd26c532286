"""The ways in which worker processes can be started.

``"forkserver"``
    Forked from the fork server: fast, and safe.
``"spawn"``
    A new interpreter, which imports everything again.
``"fork"``
    Forked from the user's own process. The worker has everything in that process's memory, but
    locks held by other threads are never released, and simulators, GPU contexts and BLAS threads
    may hang or crash. Use this method only if the process has none of these.

The fork server is a process that has imported the workers' modules and forks workers on request. A
worker that is forked from it starts within milliseconds, and inherits no threads, locks or other
state of the user's process. The fork server is started when it is first needed. It runs
`fork_server_main` in a single thread, and its workers end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import logging
import os
import pickle
import select
import signal
import socket
import sys
import weakref
from collections.abc import Iterable, Sequence
from itertools import filterfalse
from typing import Any, NoReturn

from plangym_like.errors import InputError, WorkerStartError
from plangym_like.processes import worker
from plangym_like.processes.child import (
    ONE_THREAD,
    ChildProcess,
    die_with_parent,
    fill_standard_descriptors,
    flush_outputs,
    interrupts_deferred,
    serve_another_process,
    start_child,
    start_copy,
    start_python,
    tie_to,
)
from plangym_like.processes.shared_memory import none_are_left
from plangym_like.processes.wire import SEND_FLAGS, receive_with_descriptors, rights
from plangym_like.support.fork_safety import close_in_copies, new_lock

logger = logging.getLogger("plangym_like")

START_METHODS = ("forkserver", "spawn", "fork")

# What the fork server imports before it is asked to.
_PRELOADED = ("numpy", "numpy.random", "cloudpickle", "gymnasium", "plangym_like.states.rows")
# How many seconds to wait for an answer of the fork server, which may have to import modules.
_PATIENCE = 120.0

_lock = new_lock()
_current: ForkServer | None = None
# Modules that start threads when they are imported, so that the fork server must not import them;
# "" means that it starts threads in any case, and cannot be used.
_unfit: set[str] = set()


class ForkServerGoneError(Exception):
    """The fork server has ended or does not answer."""


class StartsThreadsError(Exception):
    """A preloaded module has started threads, so the fork server must not fork any more."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


class ForkServer:
    """Starts a fork server, and sends requests to it.

    Each request is sent with its own socket for the answer. So the answer to an interrupted request
    cannot be mistaken for the answer to a later one.

    Attributes
    ----------
    pid, owner_pid : int
        The ids of the fork server and of the process that started it.
    loaded : set of str, optional
        Modules that it has tried to import; ``None`` before its first answer.
    """

    def __init__(self) -> None:
        environ = dict(os.environ) | ONE_THREAD
        process = start_child(
            lambda *ends: start_python("start_methods.fork_server_main", ends, environ),
            socket.SOCK_SEQPACKET,
        )
        self.pid, self.owner_pid = process.pid, os.getpid()
        self.loaded: set[str] | None = None
        self._socket = process.connection
        self._finalizer = weakref.finalize(self, _end_fork_server, process)

    def close(self) -> None:
        """End the fork server, and all its workers."""
        self._finalizer()

    def send(self, modules: Sequence[str], descriptors: Sequence[int] = ()) -> socket.socket:
        """Ask the fork server to import `modules`, and to fork a worker with `descriptors`, if any.

        Return the socket on which the answer will come.
        """
        fit = tuple(filterfalse(_unfit.__contains__, modules))
        packet = pickle.dumps((fit, list(map(str, sys.path))))
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        close_in_copies(answers)
        try:
            with theirs:
                answers.settimeout(_PATIENCE)
                self._socket.settimeout(_PATIENCE)
                self._socket.sendmsg([packet], rights([theirs.fileno(), *descriptors]))
        except BaseException as error:
            answers.close()
            closed = isinstance(error, OSError) and self._socket.fileno() < 0
            if closed or isinstance(error, BrokenPipeError | ConnectionResetError | TimeoutError):
                raise ForkServerGoneError from error
            raise
        return answers

    def ask(
        self, modules: Sequence[str], descriptors: Sequence[int] = ()
    ) -> tuple[int, socket.socket]:
        """Do what `send` does, and wait for the answer.

        Return the process id of the worker, 0 if none was forked, and the socket on which its exit
        status will come.
        """
        # One request at a time, so that the time limit of a request does not include earlier ones.
        with _lock:
            answers = self.send(modules, descriptors)
            try:
                answer: Any = pickle.loads(answers.recv(1 << 16))
            except (OSError, EOFError) as error:  # a timeout, a reset or an end
                answers.close()
                raise ForkServerGoneError from error
            except BaseException:
                answers.close()
                raise
        if isinstance(answer, Exception):
            answers.close()
            raise answer
        self.loaded = (self.loaded or set()).union(modules)
        return answer, answers


class ForkedWorker(ChildProcess):
    """A worker that the fork server has forked, which sends its exit status on a socket.

    Parameters
    ----------
    pid : int
    connection, answers : socket.socket
        The owner's ends of the connection to the worker, and of the socket for its exit status.
    server : ForkServer
        The fork server, which has to run as long as the worker.
    """

    def __init__(
        self, pid: int, connection: socket.socket, answers: socket.socket, server: ForkServer
    ) -> None:
        super().__init__(pid, connection, sentinel=answers)
        answers.setblocking(False)
        self._answers = answers
        self._server: ForkServer | None = server

    def close(self) -> None:
        super().close()
        self._server = None

    def _look(self) -> None:
        try:
            status = self._answers.recv(64)
        except BlockingIOError:
            return
        except OSError:  # a reset
            status = b""
        if status:
            self.exitcode = int(status)
        self.ended = True


def check_start_method(start_method: str) -> None:
    """Raise `InputError` if `start_method` is unknown."""
    if start_method not in START_METHODS:
        raise InputError(
            f"start_method must be one of {', '.join(map(repr, START_METHODS))}, "
            f"got {start_method!r}"
        )


def warm_up(preload: Sequence[str] = ()) -> None:
    """Make the fork server import `preload`, without waiting; start it if necessary."""
    try:
        if "" not in _unfit:
            _fork_server().send(preload).close()
    except ForkServerGoneError:
        pass
    except OSError as error:
        if error.errno is None:
            raise  # raised by a signal handler, such as a TimeoutError
        # Otherwise `get_ready` raises it again, with advice.


def get_ready(start_method: str, preload: Sequence[str] = ()) -> None:
    """Do the slow part of `launch` in advance; this part may be interrupted.

    Raises
    ------
    InputError
        `start_method` is unknown.
    WorkerStartError
        The fork server could not be started.
    """
    check_start_method(start_method)
    loaded = None if _current is None else _current.loaded
    if start_method == "forkserver" and (loaded is None or not loaded.issuperset(preload)):
        try:
            found = _ask(preload)
        except OSError as error:
            raise _start_error(error) from error
        if found is not None:
            found[1].close()


def launch(start_method: str) -> ChildProcess:
    """Start a worker, which waits for its first request on the data socket.

    Raises
    ------
    WorkerStartError
        The process could not be made.
    """
    try:
        if start_method == "fork":
            return start_child(_start_copy)
        forked = _fork_worker() if start_method == "forkserver" else None
        return forked or start_child(
            lambda *ends: start_python("worker.run", ends, worker_environ())
        )
    except OSError as error:
        if error.errno is None:
            raise  # raised by a signal handler, such as a TimeoutError
        raise _start_error(error) from error


def worker_environ() -> dict[str, str]:
    """Return the environment variables of a worker, which limit numerical libraries to one thread.

    Workers share the cores. Variables that the user has set are kept.
    """
    return ONE_THREAD | dict(os.environ)


def _start_error(error: OSError) -> WorkerStartError:
    advice = none_are_left(error) or (
        "a limit on processes or memory may have been reached: see `ulimit -a`"
    )
    return WorkerStartError(f"no worker could be started ({error}): {advice}")


def _start_copy(data_fd: int, alive_fd: int) -> int:
    def run() -> None:
        atexit._clear()
        worker.run(data_fd, alive_fd)

    return start_copy(run)


def _fork_worker() -> ForkedWorker | None:
    """Return a new worker that the fork server has forked, or ``None`` if it cannot be used."""
    fill_standard_descriptors()
    here, there = socket.socketpair()
    close_in_copies(here)
    with there:
        try:
            # The outputs may have been redirected after the fork server started.
            found = _ask((), [there.fileno(), 1, 2])
        except BaseException:
            here.close()
            raise
    if found is None:
        here.close()
        return None
    pid, answers, server = found
    return ForkedWorker(pid, here, answers, server)


def _ask(
    modules: Sequence[str], descriptors: Sequence[int] = ()
) -> tuple[int, socket.socket, ForkServer] | None:
    """Ask the fork server, as in `ForkServer.ask`; it is replaced if it has ended.

    Return ``None`` if no fork server can be used.

    Raises
    ------
    WorkerStartError
        Two fork servers in succession ended or did not answer.
    """
    failed = False
    while "" not in _unfit:
        server = _fork_server()
        try:
            pid, answers = server.ask(modules, descriptors)
        except StartsThreadsError as error:
            _note_unfit(error.module)
        except ForkServerGoneError as error:
            if failed:
                raise WorkerStartError(
                    "the process that forks workers ended twice in a row, or did not answer; its "
                    'output may say why. start_method="spawn" does not need it'
                ) from error
            failed = True
        else:
            return pid, answers, server
        _replace(server)
    return None


def _note_unfit(module: str) -> None:
    _unfit.add(module)
    if module:
        logger.warning("importing %s starts threads, so it is not preloaded for workers", module)
    else:
        logger.warning(
            "workers cannot be forked safely, because a module that all workers import starts "
            'threads: each is spawned instead, as with start_method="spawn"'
        )


def _fork_server() -> ForkServer:
    global _current
    with _lock:
        if _current is None or _current.owner_pid != os.getpid():
            with interrupts_deferred():
                _current = ForkServer()
        return _current


def _replace(server: ForkServer) -> None:
    """Use another fork server from now on; `server` goes on until its workers have ended."""
    global _current
    with _lock:
        if _current is server:
            _current = None


def _end_fork_server(process: ChildProcess) -> None:
    with interrupts_deferred():
        process.end()
        process.close()


def fork_server_main(control_fd: int, alive_fd: int) -> NoReturn:
    """Serve requests on the socket `control_fd` until the owner is gone."""
    try:
        serve_another_process()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        tie_to(alive_fd)
        os.set_inheritable(control_fd, False)
        control = socket.socket(fileno=control_fd)
        ForkServerMain(control, alive_fd).serve()
    finally:
        os._exit(0)


class ForkServerMain:
    """Imports modules and forks workers, as one packet for each request says.

    A request is ``(modules, sys.path)``. File descriptors are sent with it; the first is a socket
    for the answer. If there are more, a worker is forked: they are its data socket, its standard
    output and its error output. The answer is the worker's process id, 0 if none was asked for, or
    an exception, which the owner raises. When the worker ends, its exit status is sent as text on
    the same socket.
    """

    def __init__(self, control: socket.socket, alive_fd: int) -> None:
        self._control = control
        self._alive_fd = alive_fd
        # By process id: the socket for the exit status of each worker that runs.
        self._workers: dict[int, socket.socket] = {}
        self._threaded_by: str | None = None
        # Python writes to this pipe when a child ends, which wakes `serve`.
        self._wake_fds = os.pipe()
        for descriptor in self._wake_fds:
            os.set_blocking(descriptor, False)

    def serve(self) -> None:
        """Answer requests and collect ended workers, until the control socket is closed."""
        self._import(_PRELOADED, default=True)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake_fds[0], select.POLLIN)
        while True:
            # Each time, because a module that was imported may have changed this.
            signal.signal(signal.SIGCHLD, lambda number, frame: None)
            signal.set_wakeup_fd(self._wake_fds[1], warn_on_full_buffer=False)
            self._collect_ended()
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._wake_fds[0] in ready:
                os.read(self._wake_fds[0], 1 << 16)
            if self._control.fileno() in ready and not self._answer_one():
                return

    def _collect_ended(self) -> None:
        for pid, answers in list(self._workers.items()):
            found = b""
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                found = b"%d" % os.waitstatus_to_exitcode(status)
            except ChildProcessError:  # a preloaded module has collected it
                pass
            del self._workers[pid]
            _send_answer(answers, found)
            answers.close()

    def _answer_one(self) -> bool:
        data, descriptors = receive_with_descriptors(self._control, 1 << 20)
        if not data:
            return False
        if not descriptors:  # this process may not have more open files; the owner sees the end
            return True
        answer_fd, *received = descriptors
        answers = socket.socket(fileno=answer_fd)
        modules, sys.path[:] = pickle.loads(data)
        answer: Any = 0
        try:
            self._import(modules)
            if self._threaded_by is not None:
                raise StartsThreadsError(self._threaded_by)
            if 0 < len(received) < 3:
                raise OSError(errno.EMFILE, "the fork server has too many open files")
            if received:
                answer = self._fork(answers, received)
        except (OSError, StartsThreadsError) as error:
            answer = error
        finally:
            for descriptor in received:
                os.close(descriptor)
        _send_answer(answers, pickle.dumps(answer))
        if answer not in self._workers:
            answers.close()
        return True

    def _import(self, modules: Iterable[str], *, default: bool = False) -> None:
        for name in modules:
            if name in sys.modules:
                continue
            # A worker that needs the module will raise the same error and report it.
            with contextlib.suppress(BaseException):  # also SystemExit
                importlib.import_module(name)
            if self._threaded_by is None and len(os.listdir("/proc/self/task")) > 1:
                self._threaded_by = "" if default else name

    def _fork(self, answers: socket.socket, descriptors: list[int]) -> int:
        # Garbage collection in the workers does not touch frozen objects, so the memory of these
        # objects stays shared.
        gc.collect()
        gc.freeze()
        flush_outputs()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(parent, answers, *descriptors)
        self._workers[pid] = answers
        return pid

    def _become_worker(
        self, parent: int, answers: socket.socket, data_fd: int, *outputs: int
    ) -> NoReturn:
        try:
            die_with_parent()
            if os.getppid() != parent:  # it ended before this
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for connection in (self._control, answers, *self._workers.values()):
                connection.close()
            for descriptor in (self._alive_fd, *self._wake_fds):
                os.close(descriptor)
            for target, output in enumerate(outputs, start=1):
                os.dup2(output, target)
                os.close(output)
            worker.run(data_fd)
        finally:
            os._exit(1)


def _send_answer(answers: socket.socket, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # the owner may have stopped waiting for the answer
        answers.sendmsg([packet], [], SEND_FLAGS)
