"""However the parent dies and whatever its workers are doing, none of them outlives it."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hosted import script_environ, wait_until_gone

PARENT = """
import ctypes, os, signal, sys, threading
sys.path.insert(0, {folder!r})
from harm import dangerous, loop
from playground import Meeting, get_stuck, sending
from plangym_like.constructors import ParallelEnv
from pathlib import Path

method, death, folder = sys.argv[1:]
meeting = Meeting(Path(folder))

def step(action):
    meeting.report()
    loop(action)

def hang(action):
    meeting.report()
    get_stuck(action)

env = ParallelEnv(dangerous([step, hang]), "toy", n_workers=3, isolate=True, start_method=method)
idle = ParallelEnv(dangerous([]), "toy", n_workers=2, isolate=True, start_method=method)
state = env.reset(seed=0).state
for each in (env, idle):
    sending(each)
future = env.step_batch([4096, 4097, 4097], state, blocking=False)
for _ in range(3):
    meeting.next_report()
starting = ParallelEnv(dangerous([]), "toy", n_workers=1, isolate=True, start_method=method)
print(*(process.pid for each in (env, idle, starting) for process in each.batch_env), flush=True)
if death == "exit":
    os._exit(3)
if death == "crash":
    ctypes.string_at(0)
future()  # until it is killed
"""


@pytest.mark.parametrize(
    ("method", "death"),
    [
        ("forkserver", "SIGKILL"),
        pytest.param("forkserver", "SIGTERM", marks=pytest.mark.full),
        pytest.param("forkserver", "exit", marks=pytest.mark.full),
        pytest.param("forkserver", "crash", marks=pytest.mark.full),
        pytest.param("spawn", "SIGKILL", marks=pytest.mark.full),
        pytest.param("spawn", "SIGTERM", marks=pytest.mark.full),
        pytest.param("spawn", "exit", marks=pytest.mark.full),
        pytest.param("spawn", "crash", marks=pytest.mark.full),
        pytest.param("fork", "SIGKILL", marks=pytest.mark.full),
        pytest.param("fork", "crash", marks=pytest.mark.full),
    ],
)
def test_no_worker_outlives_its_parent(method: str, death: str, tmp_path: Path) -> None:
    """Six workers: idle, starting, in a row's Python, and stuck in C with the GIL held."""
    script = PARENT.format(folder=str(Path(__file__).parent))
    parent = subprocess.Popen(
        [sys.executable, "-c", script, method, death, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=script_environ() | {"PYTHONFAULTHANDLER": ""},
    )
    with parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 6
        fork_servers = [] if parent.poll() is not None else _children(parent.pid)
        if death.startswith("SIG"):
            parent.send_signal(getattr(signal, death))
        parent.wait(100)
        begun = time.monotonic()
        for pid in {*workers, *fork_servers}:
            assert wait_until_gone(pid, max(0.0, begun + 100 - time.monotonic())), pid
        # No process holds its output open any more.
        poller = select.poll()
        poller.register(parent.stdout, select.POLLHUP)
        assert poller.poll(max(0.0, begun + 100 - time.monotonic()) * 1000)
        assert parent.stdout.read() == ""


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
