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
`fork_server_main`, and its workers end with it. Once it has threads, because a module has started
them when it was imported, it forks no more, and workers are spawned instead. If it ends, or does
not answer in time, another one takes its place. One that is stopped is continued.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from plangym_like.errors import InputError, WorkerStartError
from plangym_like.processes import worker
from plangym_like.processes.child import (
    ONE_THREAD,
    ChildProcess,
    flush_outputs,
    interrupts_deferred,
    open_pidfd,
    serve_another_process,
    start_child,
    start_python,
    tie_to,
)
from plangym_like.processes.shared_memory import none_are_left
from plangym_like.processes.wire import CALL, SEND_FLAGS, Channel, Message, close_all, outgoing
from plangym_like.support.fork_safety import close_in_copies, new_lock

logger = logging.getLogger("plangym_like")

START_METHODS = ("forkserver", "spawn", "fork")

# What the fork server imports before it is asked to.
_PRELOADED = ("numpy", "numpy.random", "cloudpickle", "gymnasium", "plangym_like.states.rows")
# How many seconds to wait for an answer of the fork server, which may have to import modules; and
# how often to continue it meanwhile, in case it is stopped.
_PATIENCE, _LOOK_SECONDS = 120.0, 1.0
_lock = new_lock()
_current: ForkServer | None = None


class ForkServer:
    """Starts a fork server, and sends requests to it.

    Each request is sent with its own socket for the answer. So the answer to an interrupted request
    cannot be mistaken for the answer to a later one.

    Attributes
    ----------
    owner_pid : int
        The id of the process that started it.
    is_broken : bool
        Whether it has ended, does not answer, or has got only a part of a request.
    threaded_by : str, optional
        The module that has started threads in it, if there is one.
    """

    def __init__(self) -> None:
        environ = dict(os.environ) | ONE_THREAD
        process = start_child(
            lambda *ends: start_python(
                "start_methods.fork_server_main", ends, descriptors=ends, environ=environ
            )
        )
        self.pid, self.owner_pid, self._sentinel = process.pid, os.getpid(), process.sentinel
        self.is_broken = False
        self.threaded_by: str | None = None
        self._channel = Channel(process.connection, blocking=True)
        self._finalizer = weakref.finalize(self, _end_fork_server, process)

    @property
    def is_usable(self) -> bool:
        """Whether it belongs to this process, and can be sent requests."""
        return self.owner_pid == os.getpid() and self._finalizer.alive and not self.is_broken

    def close(self) -> None:
        """End the fork server, and all its workers."""
        self._finalizer()

    def send(self, modules: Iterable[str], descriptors: Sequence[int] = ()) -> socket.socket:
        """Ask the fork server to import `modules`; with `descriptors`, also to fork a worker.

        Return the socket on which the answer will come, and then the exit status of the worker.
        """
        content = pickle.dumps((list(modules), list(map(str, sys.path))))
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        close_in_copies(answers)
        try:
            with interrupts_deferred(), theirs, _lock:
                self._channel.send(outgoing(CALL, 0, content, [theirs.fileno(), *descriptors]))
        except BaseException:
            self.is_broken = bool(self._channel.outbox)  # a part may have been sent
            answers.close()
            raise
        return answers

    def start_worker(self, modules: Iterable[str]) -> ChildProcess | None:
        """Import `modules` and fork a worker, which waits for a request on its data socket.

        Return ``None`` if the fork server has threads, so that it must not fork.

        Raises
        ------
        ConnectionError
            The fork server has ended, or does not answer.
        OSError
            A limit was reached.
        """
        here, there = socket.socketpair()
        close_in_copies(here)
        try:
            with there:
                # The outputs may have been redirected after the fork server started.
                answers = self.send(modules, (there.fileno(), 1, 2))
        except BaseException:
            here.close()
            raise
        try:
            pid = self._answer_on(answers)
        except BaseException:  # the worker, if there is one, ends because its socket is closed
            here.close()
            answers.close()
            raise
        if pid:
            return ChildProcess(pid, here, status=answers, wake=self.wake)
        here.close()
        answers.close()
        return None

    def _answer_on(self, answers: socket.socket) -> int:
        """Wait for the answer on a socket; return the worker's process id, or 0."""
        poller, until = select.poll(), time.monotonic() + _PATIENCE
        poller.register(answers, select.POLLIN)
        # A worker that was stopped when it was forked may keep the other end of the socket open.
        poller.register(self._sentinel, select.POLLIN)
        while not poller.poll(1000 * _LOOK_SECONDS):
            self.wake()
            if time.monotonic() > until:
                break
        packet = b""
        with contextlib.suppress(BlockingIOError):
            packet = answers.recv(1 << 16, socket.MSG_DONTWAIT)
        if not packet:
            self.is_broken = True
            raise ConnectionError("the fork server has ended, or does not answer")
        answer = pickle.loads(packet)
        if isinstance(answer, OSError):
            raise answer
        pid, threaded_by = answer
        if threaded_by is not None and self.threaded_by is None:
            self.threaded_by = threaded_by
            logger.warning(
                "%s starts threads, so workers cannot be forked safely: from now on, each is "
                'spawned, as with start_method="spawn"',
                threaded_by,
            )
        return int(pid)

    def wake(self) -> None:
        """Let the fork server continue if something has stopped it."""
        if self.is_usable:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)


def _end_fork_server(process: ChildProcess) -> None:
    with interrupts_deferred():
        process.end()
        process.close()


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
        _fork_server().send(preload).close()
    except OSError as error:
        if error.errno is None:
            raise  # raised by a signal handler, such as a TimeoutError
        # Otherwise `launch` raises it again, with advice, or starts another fork server.


def launch(start_method: str, preload: Sequence[str] = ()) -> ChildProcess:
    """Start a worker, which waits for its first request on the data socket.

    Raises
    ------
    InputError
        `start_method` is unknown.
    WorkerStartError
        Two fork servers in succession ended, or did not answer.
    OSError
        A limit was reached; see `start_error`.
    """
    check_start_method(start_method)
    if start_method == "fork":
        return start_child(_start_copy)
    if start_method == "spawn":
        return start_child(_start_interpreter)
    try:
        found = _fork_server().start_worker(preload)
    except ConnectionError:  # another one takes its place
        try:
            found = _fork_server().start_worker(preload)
        except ConnectionError as error:
            raise WorkerStartError(
                "the process that starts workers ended twice in a row; its output may say why. "
                'start_method="spawn" does not need it'
            ) from error
    return found or start_child(_start_interpreter)


def worker_environ() -> dict[str, str]:
    """Return the environment variables of a worker, which limit numerical libraries to one thread.

    Workers share the cores. Variables that the user has set are kept, but numerical libraries that
    the fork server has loaded already use one thread.
    """
    return ONE_THREAD | dict(os.environ)


def start_error(error: OSError) -> WorkerStartError:
    """Return the error to raise for an `error` of `launch`, with advice."""
    advice = none_are_left(error) or (
        "a limit on processes or memory may have been reached: see `ulimit -a`"
    )
    return WorkerStartError(f"no worker could be started ({error}): {advice}")


def _start_interpreter(data_fd: int, alive_fd: int) -> int:
    return start_python(
        "worker.run",
        (data_fd, _lasting_parent(), alive_fd),
        descriptors=[data_fd, alive_fd],
        environ=worker_environ(),
    )


def _lasting_parent() -> int:
    """Return the id of this process, or 0 in a thread that may end before the process does."""
    return os.getpid() if threading.get_native_id() == os.getpid() else 0


def _start_copy(data_fd: int, alive_fd: int) -> int:
    flush_outputs()
    parent = _lasting_parent()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            atexit._clear()
            worker.run(data_fd, parent, alive_fd)
        finally:
            os._exit(1)
    return pid


def _fork_server() -> ForkServer:
    global _current
    with _lock:
        if _current is None or not _current.is_usable:
            with interrupts_deferred():
                _current = ForkServer()
        return _current


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
    """Imports modules and forks workers, as the messages on the socket `control` say.

    A message is the pickled tuple ``(modules, sys.path)``. Its first descriptor is a socket for the
    answer. If there are more, a worker is forked, unless this process has threads: they are its
    data socket, its standard output and its error output. The answer is an `OSError`, which the
    owner raises, or the worker's process id (0 for none), and the name of the module that has
    started threads, if any. When the worker ends, its exit status is sent as text on the same
    socket.
    """

    def __init__(self, control: socket.socket, alive_fd: int) -> None:
        self._control = control
        self._channel = Channel(control, blocking=True)
        self._alive_fd = alive_fd
        # The id of each worker that runs, and the socket for its exit status, by its pidfd.
        self._workers: dict[int, tuple[int, socket.socket]] = {}
        self._threaded_by: str | None = None
        self._poller = select.poll()

    def serve(self) -> None:
        """Answer requests and collect ended workers, until the control socket is closed."""
        self._note_threads("the start of Python")
        self._import(_PRELOADED)
        self._poller.register(self._control, select.POLLIN)
        while not self._channel.ended:
            for descriptor, _ in self._poller.poll():
                if descriptor in self._workers:
                    self._collect(descriptor)
                else:
                    self._channel.receive(self._answer)

    def _collect(self, pidfd: int) -> None:
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid, answers = self._workers.pop(pidfd)
        with answers, contextlib.suppress(ChildProcessError):  # a module has collected it
            _, status = os.waitpid(pid, 0)
            _send_answer(answers, b"%d" % os.waitstatus_to_exitcode(status))

    def _answer(self, message: Message) -> None:
        if not message.descriptors:  # this process may not open more files; the owner sees the end
            return
        answer_fd, *received = message.descriptors
        answers = socket.socket(fileno=answer_fd)
        pidfd, pid = -1, 0
        try:
            modules, sys.path[:] = pickle.loads(message.payload)
            self._import(modules)
            if received and self._threaded_by is None:
                pid = self._fork(answers, received)
                pidfd = open_pidfd(pid)
            answer: Any = pid, self._threaded_by
        except OSError as error:
            answer = error
        finally:
            close_all(received)
        _send_answer(answers, pickle.dumps(answer))
        if pidfd >= 0:
            self._workers[pidfd] = pid, answers
            self._poller.register(pidfd, select.POLLIN)
        else:
            answers.close()

    def _import(self, modules: Iterable[str]) -> None:
        for name in modules:
            if name in sys.modules:
                continue
            # A worker that needs the module will raise the same error and report it.
            with contextlib.suppress(BaseException):  # also SystemExit
                importlib.import_module(name)
            self._note_threads(f"importing {name}")
        # A module may have changed this; the exit statuses of workers would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _note_threads(self, cause: str) -> None:
        if self._threaded_by is None and len(os.listdir("/proc/self/task")) > 1:
            self._threaded_by = cause

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
        return pid

    def _become_worker(
        self, parent: int, answers: socket.socket, data_fd: int, *outputs: int
    ) -> NoReturn:
        try:
            for _, connection in (*self._workers.values(), (0, answers), (0, self._control)):
                connection.close()
            for descriptor in (self._alive_fd, *self._workers):
                os.close(descriptor)
            for target, output in enumerate(outputs, start=1):
                os.dup2(output, target)
                os.close(output)
            worker.run(data_fd, parent)
        finally:
            os._exit(1)


def _send_answer(answers: socket.socket, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # the owner may have stopped waiting for the answer
        answers.sendmsg([packet], [], SEND_FLAGS)
