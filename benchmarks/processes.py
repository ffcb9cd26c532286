"""Find the descendants of a process, and the private memory of processes, in ``/proc``."""

from __future__ import annotations

import time
from pathlib import Path

PROC = Path("/proc")


def descendants(pid: int) -> list[int]:
    """Return all children of ``pid``, and theirs."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                # It ended while the list was being read.
                continue
            # The name, in parentheses, may itself hold blanks and parentheses.
            parent = int(stat.rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        children = parents.get(pending.pop(), [])
        found += children
        pending += children
    return found


def wait_for_descendants(pid: int, *, seconds: float = 0.5) -> list[int]:
    """Return the descendants of ``pid`` once short-lived ones had time to end."""
    time.sleep(seconds)
    return descendants(pid)


def private_megabytes(pids: list[int]) -> list[float]:
    """Return each process's private memory, clean and dirty, in MB (10^6 bytes), largest first."""
    sizes = []
    for pid in pids:
        kibibytes = 0
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")):
                kibibytes += int(line.split()[1])
        sizes.append(round(kibibytes * 1024 / 1e6, 1))
    return sorted(sizes, reverse=True)
