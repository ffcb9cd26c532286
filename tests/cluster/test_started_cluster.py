"""The commands of docs/ray.md: a cluster that requires a token, and a program that joins it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosted import script_environ
from suite import needs

pytest.importorskip("ray", reason="Ray is not installed")

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
PROGRAM = """
import numpy as np
import plangym_like

state = plangym_like.make("CartPole-v1").reset(seed=0).state
actions = np.arange(600) % 2
with plangym_like.make("CartPole-v1") as env:
    here = env.step_batch(actions, state)
with plangym_like.make(
    "CartPole-v1", ray=True, n_workers=1, isolate=True, resources={"num_cpus": 0, "elsewhere": 1}
) as env:
    env.wait_ready(120)
    there = env.step_batch(actions, state)
    assert env.stats.actors == 1
assert np.array_equal(there.states, here.states)
print("equal")
"""


def _environ(home: Path, **more: str) -> dict[str, str]:
    """Return the environment variables of a machine whose user has this home."""
    kept = {name: text for name, text in script_environ().items() if "RAY" not in name}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    return kept | quiet | {"HOME": str(home)} | more


@contextlib.contextmanager
def _node(environ: dict[str, str], log: Path, *options: str) -> Iterator[Path]:
    """Start a node, and kill all its processes in the end."""
    with log.open("w") as out:
        node = subprocess.Popen(
            [*RAY, "start", "--num-cpus", "1", "--disable-usage-stats", "--block", *options],
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(node, log, "Ray runtime started")
        yield log
    finally:
        started = []
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
            process = psutil.Process(node.pid)
            started = [process, *process.children(recursive=True)]
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, timeout=60)
        node.wait()


def _wait(node: Any, log: Path, text: str) -> None:
    while text not in log.read_text():
        assert node.poll() is None, log.read_text()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], str]]:
    """Two nodes that were started as docs/ray.md says: environment variables, and the address."""
    home = tmp_path_factory.mktemp("home")
    head = ("--head", "--port", "0", "--include-dashboard", "false")
    # The names of sockets must be short, and pytest's folders have long ones.
    with tempfile.TemporaryDirectory(prefix="ray") as sockets:
        environ = _environ(home, RAY_AUTH_MODE="token", RAY_TMPDIR=sockets)
        subprocess.run([*RAY, "get-auth-token", "--generate"], env=environ, check=True, timeout=300)
        assert (home / ".ray" / "auth_token").exists()
        with _node(environ, home / "head.log", *head) as log:
            found = re.search(r"ray start --address='([\d.:]+)'", log.read_text())
            assert found is not None
            address, more = found[1], '{"elsewhere": 1}'
            with _node(environ, home / "other.log", "--address", address, "--resources", more):
                yield environ, address


@pytest.mark.full
@needs("ray", "2.60")
def test_a_program_with_the_token_steps_on_the_other_machine(machines: Any) -> None:
    environ, address = machines
    done = _run(environ | {"RAY_ADDRESS": address})
    assert done.returncode == 0 and done.stdout.endswith("equal\n"), done.stderr


@pytest.mark.full
@needs("ray", "2.60")
def test_a_program_without_the_token_is_told_how_to_join(machines: Any, tmp_path: Path) -> None:
    _, address = machines
    done = _run(_environ(tmp_path, RAY_ADDRESS=address))
    assert done.returncode
    (last,) = done.stderr.splitlines()[-1:]
    assert last.startswith("plangym_like.errors.WorkerStartError: this program cannot join the Ray")
    assert "copy ~/.ray/auth_token from its first machine" in last
    assert "set RAY_AUTH_MODE=token" in last


def _run(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
