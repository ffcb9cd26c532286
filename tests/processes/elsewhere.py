"""`hide` what Linux has and macOS or Windows lack, before `plangym_like` is imported."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing.connection
import os
import select
import shutil
import signal
import socket
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_OTHERS = (
    *("concurrent.futures", "tempfile", "subprocess"),
    *("numpy", "gymnasium.vector", "gymnasium.wrappers", "cloudpickle", "xxhash"),
    "matplotlib.font_manager",  # it asks a program of macOS for its fonts
)
_HIDDEN: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("O_ASYNC", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_TMPFILE"),
        *("P_PID", "WEXITED", "WNOHANG", "WNOWAIT", "CLD_EXITED", "MFD_CLOEXEC"),
        *("chown", "fchmod", "fchown", "getgid", "getloadavg", "lchown", "nice", "statvfs"),
        *("eventfd", "fork", "forkpty", "getpgid", "getuid", "geteuid", "killpg", "memfd_create"),
        *("openpty", "pidfd_open", "posix_fallocate", "posix_fadvise", "pread", "preadv", "pwrite"),
        *("pwritev", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sched_yield"),
        *("sendfile", "setsid", "splice", "sysconf", "uname", "waitid", "wait"),
    ),
    signal: (
        *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGIO", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGRTMAX"),
        *("SIGRTMIN", "SIGUSR1", "SIGUSR2", "alarm", "getitimer", "pidfd_send_signal"),
        *("pthread_kill", "pthread_sigmask", "setitimer", "sigpending", "sigwait", "sigtimedwait"),
    ),
    socket: (
        *("AF_UNIX", "CMSG_LEN", "CMSG_SPACE", "MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL", "SCM_RIGHTS"),
        *("SOCK_SEQPACKET", "recv_fds", "send_fds", "socketpair"),
    ),
    select: ("epoll", "poll"),
}
_HIDDEN_MODULES = ("fcntl", "grp", "posix_ipc", "pwd", "resource", "termios", "tty")


class _Hide:
    """An import hook that does not find the modules of `_HIDDEN_MODULES`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name in _HIDDEN_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} on this platform", name=name)
        return None


def hide(*packages: str) -> None:
    """Import `packages` and what all need, as they work everywhere, and hide names and modules."""
    assert multiprocessing.connection and "plangym_like" not in sys.modules
    for name in (*_OTHERS, *packages):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module, names in _HIDDEN.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in _HIDDEN_MODULES:
        sys.modules.pop(name, None)
    shutil._use_fd_functions = False  # Windows has no descriptors of folders
    sysconfig.get_config_vars()  # they are read once, from a file that is named after the platform
    sys.platform = "darwin"
    sys.meta_path.insert(0, _Hide())  # type: ignore[arg-type]
