"""Check how much more memory this process may use, on this machine and in its cgroups.

A process that uses more memory gets no exception: the kernel kills it. The functions here are
therefore called before an array is made; they raise an error if the array would not fit.
"""

from __future__ import annotations

import contextlib
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
    try:
        lines = (line.split() for line in _read(proc / "meminfo").splitlines())
        machine = {words[0]: int(words[1]) << 10 for words in lines}
    except (OSError, ValueError, IndexError):
        return
    swap = machine.get("SwapFree:", 0)
    if "MemAvailable:" in machine:
        yield machine["MemAvailable:"] + swap, "on this machine"
    with contextlib.suppress(OSError, ValueError, IndexError):
        for folder in _cgroups(proc, cgroups):
            available = _left_in(folder, swap)
            if available is not None:
                yield available - _RESERVE_NBYTES, f"in the cgroup {folder}"


def _cgroups(proc: Path, top: Path) -> Iterator[Path]:
    """Yield the folder of each cgroup (version 2) that may limit memory, innermost first."""
    lines = _read(proc / "self/cgroup").splitlines()
    (path,) = [line[len("0::/") :] for line in lines if line.startswith("0::")]
    inner = PurePosixPath(path)
    # A container may see only its own part of the tree, under the name of the whole tree.
    if ".." in inner.parts or not (top / inner).is_dir():
        inner = PurePosixPath()
    for folder in (inner, *inner.parents):
        yield top / folder


def _left_in(folder: Path, swap: int) -> int | None:
    limit = _number(folder / "memory.max")
    used = _number(folder / "memory.current")
    if limit is None or used is None:
        return None
    swap_limit = _number(folder / "memory.swap.max")
    if swap_limit is not None:
        swap = min(swap, max(0, swap_limit - (_number(folder / "memory.swap.current") or 0)))
    counts = _counts(folder)
    # The page cache can be dropped, so it counts as available.
    cached = counts.get("inactive_file", 0) + counts.get("active_file", 0)
    return limit - used + cached + swap


def _counts(folder: Path) -> dict[str, int]:
    try:
        lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
        return {words[0]: int(words[1]) for words in lines}
    except (OSError, ValueError, IndexError):
        return {}


def _number(path: Path) -> int | None:
    """Return the number in a file, or ``None`` if the file is missing or holds no limit."""
    try:
        text = _read(path).strip()
    except OSError:
        return None
    return None if text == "max" else int(text)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")
