"""What a process may use: as the machine and its cgroups tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from plangym_like.support import memory_limits

MB = 1 << 20
MEMINFO = "MemTotal: 9000000 kB\nMemAvailable: 4096000 kB\nSwapFree: 102400 kB\nHugePages_Free: 0\n"


def _lay_out(folder: Path, cgroup: str) -> Path:
    """Make a folder that looks like ``/proc``, and return it."""
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self/cgroup").write_text(cgroup)
    return proc


def _write(folder: Path, **files: int | str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"memory.{name}".replace("swap_", "swap.")).write_text(f"{content}\n")


def _left(proc: Path) -> list[int]:
    """Return the megabytes left on the machine, and in each cgroup from the inside out."""
    top = proc.parent / "cgroup fs"
    return [nbytes // MB for nbytes, _ in memory_limits._available(proc, top)]


def test_every_level_of_cgroups_counts(tmp_path: Path) -> None:
    top = tmp_path / "cgroup fs"
    proc = _lay_out(tmp_path, "0::/user/job\n")
    _write(top, stat="anon 5\n")
    _write(top / "user", max=500 * MB, current=400 * MB, swap_max="max")
    _write(top / "user", stat=f"anon 1\ninactive_file {20 * MB}\nactive_file {30 * MB}")
    _write(top / "user/job", max="max", current=300 * MB)
    # 4,000 and 100 of swap; 500 - 400 + 50 of files + 100 of swap - 16 in reserve.
    assert _left(proc) == [4100, 234]
    _write(top / "user/job", max=250 * MB, current=100 * MB, swap_max=0)
    assert _left(proc) == [4100, 134, 234]


@pytest.mark.parametrize("path", ["/docker/abc", "/", "/../other", "/.."])
def test_a_container_sees_its_own_part_only(path: str, tmp_path: Path) -> None:
    top = tmp_path / "cgroup fs"
    proc = _lay_out(tmp_path, f"0::{path}\n")
    _write(top, max=100 * MB, current=50 * MB, swap_max=0)
    assert _left(proc) == [4100, 34]


def test_what_no_machine_has_is_refused(tmp_path: Path) -> None:
    assert _left(tmp_path) == []  # nothing is known
    memory_limits.ensure_available(memory_limits.CHECKED_NBYTES - 1)
    with pytest.raises(MemoryError, match="this batch needs"):
        memory_limits.refuse_too_much(1 << 60)
