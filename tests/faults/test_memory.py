"""Too little memory, of any kind: it works, or there is a clean error; never a signal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import sending
from gymnasium import spaces
from hosted import script_environ
from usual import first_of

import plangym_like
from plangym_like.support import memory_limits

GAME = """
import numpy as np
import plangym_like
kwargs = {"obs_type": "rgb", "frameskip": 1}
"""

LIMITED = """
import os, resource, sys
import numpy as np
from playground import CounterEnv, sending
from plangym_like.constructors import ParallelEnv

what, side, megabytes = sys.argv[1], sys.argv[2], float(sys.argv[3])
owner = os.getpid()

def limit():
    used = 0
    if what == "RLIMIT_AS":
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    most = used + int(megabytes * (1 << 20))
    limited = getattr(resource, what)
    resource.setrlimit(limited, (most, resource.getrlimit(limited)[1]))

def make(name, **kwargs):
    env = CounterEnv(name, **kwargs)
    env.setup()
    if side == "worker" and os.getpid() != owner:
        limit()
    return env

with ParallelEnv(make, "toy", n_workers=2, isolate=True) as env, CounterEnv("toy") as serial:
    sending(env)
    state = env.reset(seed=0).state
    expected = {count: serial.step_batch(np.arange(count) % 4096, state).states.tobytes()
                for count in (100, 30_000)}
    env.step_batch(np.arange(100), state)
    if side == "owner":
        limit()
    told = []
    for count in (100, 30_000, 100, 30_000, 100):
        try:
            result = env.step_batch(np.arange(count) % 4096, state)
            assert result.states.tobytes() == expected[count]
            del result
            told.append("works")
        except MemoryError as error:
            told.append("refused")
    assert env.stats.deaths == 0
    print(*told)
    for name in ("RLIMIT_AS", "RLIMIT_FSIZE"):
        most = resource.getrlimit(getattr(resource, name))[1]
        resource.setrlimit(getattr(resource, name), (most, most))
"""


@pytest.mark.parametrize(
    ("what", "side", "megabytes"),
    [
        pytest.param("RLIMIT_FSIZE", "owner", 0.5, marks=pytest.mark.full),
        pytest.param("RLIMIT_AS", "owner", 1, marks=pytest.mark.full),
        ("RLIMIT_AS", "worker", 1),
        pytest.param("RLIMIT_AS", "worker", 256, marks=pytest.mark.full),
    ],
)
def test_limits_of_processes(what: str, side: str, megabytes: float) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, what, side, str(megabytes)],
        capture_output=True,
        text=True,
        timeout=600,
        env=script_environ(),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    told = result.stdout.split()
    assert len(told) == 5 and told[0] == "works"
    if megabytes <= 1:
        assert told == ["works", "refused"] * 2 + ["works"]
    elif megabytes >= 256:
        assert told == ["works"] * 5


class Large(gymnasium.Env[Any, Any]):
    """Has observations of one megabyte."""

    observation_space = spaces.Box(0, 255, (1 << 20,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1 << 20, np.uint8), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.full(1 << 20, self.count % 256, np.uint8), 1.0, False, False, {}

    def save_state(self) -> bytes:
        return self.count.to_bytes(8, "little")

    def load_state(self, data: bytes) -> None:
        self.count = int.from_bytes(data, "little")


def limit_by_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace /proc and the cgroups by folders that tell of a cgroup with 150 free megabytes."""
    proc, group = tmp_path / "proc", tmp_path / "cgroup" / "job"
    (proc / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / "meminfo").write_text("MemAvailable: 8000000 kB\nSwapFree: 0 kB\n")
    (proc / "self/cgroup").write_text("0::/job\n")
    (group / "memory.max").write_text(f"{250 << 20}\n")
    (group / "memory.current").write_text(f"{100 << 20}\n")
    monkeypatch.setattr(memory_limits, "_PROC", proc)
    monkeypatch.setattr(memory_limits, "_CGROUPS", group.parent)


@pytest.mark.parametrize(
    "options", first_of([{"n_workers": 2, "isolate": True}, {}, {"n_workers": 2}])
)
def test_a_batch_of_300_megabytes_in_a_cgroup_of_250(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would kill this process; a cgroup that only files tell of does not."""
    with sending(plangym_like.make(Large, **options)) as env:
        state = env.reset(seed=0).state
        limit_by_files(monkeypatch, tmp_path)
        for count in (20, 300, 20):
            actions = np.zeros(count, int)
            if count == 20:
                assert (env.step_batch(actions, state).obs == 1).all()
                continue
            with pytest.raises(MemoryError, match="cgroup"):
                env.step_batch(actions, state)
            with pytest.raises(MemoryError, match="cgroup"):
                env.step_batch(actions, state, blocking=False).result(100)
            with pytest.raises(MemoryError, match="cgroup"):
                env.rollout_batch(actions.reshape(30, 10), state, return_observations=True)
