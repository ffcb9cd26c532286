"""Check how much more memory this process may use, on this machine and in its cgroups.

A process that uses more memory gets no exception: the kernel kills it. The functions here are
therefore called before an array is made; they raise an error if the array would not fit.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Smaller requests are not checked: the check would take longer than filling the memory.
CHECKED_NBYTES = 1 << 24
# The memory that is kept free in a cgroup for other needs of its processes.
_RESERVE_NBYTES = 1 << 24
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def ensure_available(nbytes: int) -> None:
    """Raise an error if fewer than `nbytes` bytes are available.

    Raises
    ------
    OSError
        With ``errno.ENOMEM``: the machine, or a cgroup of this process, has less memory available.
    """
    if nbytes < CHECKED_NBYTES:
        return
    for available, where in _available(_PROC, _CGROUPS):
        if nbytes > available:
            raise OSError(errno.ENOMEM, f"only {max(available, 0)} bytes are available {where}")


def refuse_too_much(nbytes: int) -> None:
    """Raise an error if an array of `nbytes` bytes would not fit into memory.

    Raises
    ------
    MemoryError
        The machine, or a cgroup of this process, has less memory available.
    """
    try:
        ensure_available(nbytes)
    except OSError as error:
        raise MemoryError(
            f"this batch needs {nbytes} bytes of memory, but {error.strerror}: divide it into "
            "smaller batches"
        ) from error


def _available(proc: Path, cgroups: Path) -> Iterator[tuple[int, str]]:
    """For each limit on this process's memory, yield the available bytes and the limit's name."""
    machine = _numbers(proc / "meminfo")  # in kB
    swap = machine.get("SwapFree:", 0) << 10
    if "MemAvailable:" in machine:
        yield (machine["MemAvailable:"] << 10) + swap, "on this machine"
    for folder in _folders(proc, cgroups):
        limit, used = _numbers(folder / "memory.max"), _numbers(folder / "memory.current")
        if limit and used:
            # The page cache can be dropped, so it counts as available.
            counts = _numbers(folder / "memory.stat")
            cached = counts.get("inactive_file", 0) + counts.get("active_file", 0)
            more = cached + (0 if _numbers(folder / "memory.swap.max") else swap)
            yield limit[""] - used[""] + more - _RESERVE_NBYTES, f"in the cgroup {folder}"


def _folders(proc: Path, top: Path) -> list[Path]:
    """Return the folder of each cgroup (version 2) that may limit memory, innermost first."""
    paths = [line[len("0::/") :] for line in _lines(proc / "self/cgroup") if line.startswith("0::")]
    inner = PurePosixPath(*paths)
    # A container may see only its own part of the tree, under the name of the whole tree.
    if ".." in inner.parts or not (top / inner).is_dir():
        inner = PurePosixPath()
    return [top / folder for folder in (inner, *inner.parents)]


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers in a file by name; the name is empty if the file holds one number."""
    found = {}
    for line in _lines(path):
        name, _, number = line.removesuffix(" kB").rpartition(" ")
        if number.isdigit():
            found[name.strip()] = int(number)
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
