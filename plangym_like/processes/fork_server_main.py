"""The main loop of the fork server, which imports modules and forks workers in a single thread."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from plangym_like.processes import worker
from plangym_like.processes.child import (
    die_with_parent,
    flush_outputs,
    serve_another_process,
    tie_to,
)
from plangym_like.processes.start_methods import StartsThreadsError
from plangym_like.processes.wire import SEND_FLAGS, receive_with_descriptors

_PRELOADED = ("numpy", "numpy.random", "cloudpickle", "gymnasium", "plangym_like.states.rows")


def run(control_fd: int, alive_fd: int) -> NoReturn:
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
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_fds[1], warn_on_full_buffer=False)

    def serve(self) -> None:
        """Answer requests and collect ended workers, until the control socket is closed."""
        self._import(_PRELOADED, default=True)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake_fds[0], select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._wake_fds[0] in ready:
                os.read(self._wake_fds[0], 1 << 16)
                self._collect_ended()
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
            _send(answers, found)
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
        _send(answers, pickle.dumps(answer))
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


def _send(answers: socket.socket, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # the owner may have stopped waiting for the answer
        answers.sendmsg([packet], [], SEND_FLAGS)
