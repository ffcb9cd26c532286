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
from itertools import chain
from typing import Any, NoReturn

from plangym_like.processes import worker
from plangym_like.processes.child import (
    Fate,
    Status,
    child_status,
    collect_child,
    fill_standard_descriptors,
    flush_outputs,
    kill_at_end_of,
    open_again,
    open_pidfd,
    serve_another_process,
    tie_to,
)
from plangym_like.processes.fork_server import StartsThreadsError
from plangym_like.processes.wire import SEND_FLAGS, receive_with_descriptors, rights

_PRELOADED = ("numpy", "numpy.random", "cloudpickle", "gymnasium", "plangym_like.states.rows")


def run(control_fd: int, alive_fd: int) -> NoReturn:
    """Serve requests on the socket `control_fd` until the owner is gone."""
    try:
        serve_another_process()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        tie_to(alive_fd)
        fill_standard_descriptors()
        os.set_inheritable(control_fd, False)
        control = socket.socket(fileno=control_fd)
        ForkServerMain(control, alive_fd).serve()
    finally:
        os._exit(0)


class ForkServerMain:
    """Handles the requests ``preload``, ``fork`` and ``status``, one packet each.

    A request is ``(verb, content, sys.path)``. File descriptors are sent with it; the first is a
    socket for the answer. If the answer is an exception, the owner raises it.
    """

    def __init__(self, control: socket.socket, alive_fd: int) -> None:
        self._control = control
        self._alive_fd = alive_fd
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        # For each worker: its pidfd, and the descriptor of the file through which the kernel kills
        # the worker when the owner ends (see `child`).
        self._children: dict[int, tuple[int, int]] = {}
        self._statuses: dict[int, int] = {}
        self._threaded_by: str | None = None

    def serve(self) -> None:
        """Answer requests and collect ended children, until the control socket is closed."""
        self._import(_PRELOADED, default=True)
        while True:
            for descriptor, _ in self._poller.poll():
                if descriptor == self._control.fileno():
                    if not self._answer_one():
                        return
                else:
                    self._collect_ended()

    def _answer_one(self) -> bool:
        data, descriptors = receive_with_descriptors(self._control, 1 << 20)
        if not data:
            return False
        reply_fd, *received = descriptors
        verb, content, sys.path[:] = pickle.loads(data)
        answer: Any = None
        with socket.socket(fileno=reply_fd) as replies:
            pidfd: int | None = None
            try:
                if verb == "status":
                    answer = self._status(content)
                elif verb == "preload":
                    self._import(content)
                    self._check_threads()
                else:
                    self._check_threads()
                    answer, pidfd = self._fork([reply_fd, *received])
            except (OSError, StartsThreadsError) as error:
                answer = error
            finally:
                for descriptor in received:
                    os.close(descriptor)
            # The owner may have stopped waiting for the answer.
            with contextlib.suppress(OSError):
                ancillary = rights([] if pidfd is None else [pidfd])
                replies.sendmsg([pickle.dumps(answer)], ancillary, SEND_FLAGS)
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

    def _check_threads(self) -> None:
        if self._threaded_by is not None:
            raise StartsThreadsError(self._threaded_by)

    def _fork(self, descriptors: list[int]) -> tuple[int, int]:
        # Garbage collection in the workers does not touch frozen objects, so the memory of these
        # objects stays shared.
        gc.collect()
        gc.freeze()
        flush_outputs()
        guard = open_again(self._alive_fd)
        try:
            pid = os.fork()
        except OSError:
            os.close(guard)
            raise
        if pid == 0:
            self._become_worker(descriptors, guard)
        kill_at_end_of(guard, pid)
        pidfd = open_pidfd(pid)
        if pidfd is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(guard)
            raise OSError(errno.EMFILE, "the process that forks workers has too many open files")
        self._children[pid] = pidfd, guard
        self._statuses.pop(pid, None)
        self._poller.register(pidfd, select.POLLIN)
        return pid, pidfd

    def _become_worker(self, descriptors: list[int], guard: int) -> NoReturn:
        try:
            self._control.close()
            for descriptor in (self._alive_fd, guard, *chain(*self._children.values())):
                os.close(descriptor)
            reply_fd, data_fd, alive_fd, *outputs = descriptors
            os.close(reply_fd)
            for target, output in enumerate(outputs, start=1):
                os.dup2(output, target)
                os.close(output)
            worker.run(data_fd, alive_fd)
        finally:
            os._exit(1)

    def _collect_ended(self) -> None:
        for pid in list(self._children):
            status = child_status(pid)
            if status is Fate.RUNNING:
                continue
            collect_child(pid)
            pidfd, guard = self._children.pop(pid)
            self._poller.unregister(pidfd)
            os.close(pidfd)
            os.close(guard)
            if isinstance(status, int):
                self._statuses[pid] = status
        # Statuses are kept after they were requested, since the answer may not have arrived.
        while len(self._statuses) > 4096:
            del self._statuses[next(iter(self._statuses))]

    def _status(self, pid: int) -> Status:
        self._collect_ended()
        if pid in self._children:
            return Fate.RUNNING
        return self._statuses.get(pid, Fate.UNKNOWN)
