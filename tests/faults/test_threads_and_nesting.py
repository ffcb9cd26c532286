"""Environments made and used in odd places: busy threads, daemons, pools, forks, with torch."""

from __future__ import annotations

import importlib.util

import pytest
from hosted import run_script

BUSY_THREADS = """
import io, logging, sys, threading
import numpy as np
import plangym_like

logging.basicConfig(stream=io.StringIO(), level=logging.DEBUG)
over = threading.Event()

def work(number):
    while not over.is_set():
        kept = [bytearray(1000 + number) for _ in range(200)]
        logging.getLogger("work").info("thread %d keeps %d", number, len(kept))
        np.random.default_rng(number).random((50, 50)) @ np.ones((50, 50))

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
try:
    with plangym_like.make("CartPole-v1") as serial:
        state = serial.reset(seed=0).state
        expected = serial.step_batch(np.arange(400) % 2, state).states.tobytes()
    for method in {methods}:
        for _ in range({times}):
            with plangym_like.make(
                "CartPole-v1", n_workers=3, isolate=True, start_method=method
            ) as env:
                assert env.step_batch(np.arange(400) % 2, state).states.tobytes() == expected
finally:
    over.set()
print("fine")
"""

IN_A_DAEMON = """
import multiprocessing, sys
import numpy as np
import plangym_like

def use(method="forkserver"):
    with (
        plangym_like.make("CartPole-v1", n_workers=2, isolate=True, start_method=method) as env,
        plangym_like.make("CartPole-v1") as serial,
    ):
        state = env.reset(seed=0).state
        ours = env.step_batch([0, 1, 1], state).states
        assert ours.tobytes() == serial.step_batch([0, 1, 1], state).states.tobytes()
        return len(ours)

def tell(queue):
    queue.put((multiprocessing.current_process().daemon, use()))

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=tell, args=(queue,), daemon=True)
        process.start()
        print(queue.get(timeout=600))
        process.join(100)
        assert process.exitcode == 0
"""

IN_A_POOL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import plangym_like

def use(number):
    with plangym_like.make("CartPole-v1", n_workers=2, isolate=True) as env:
        state = env.reset(seed=number).state
        return env.step_batch(np.arange(10) % 2, state).obs.tobytes()

if __name__ == "__main__":
    expected = [use(number) for number in range(4)]
    for method in {methods}:
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            assert list(pool.map(use, range(4), timeout=600)) == expected
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(use, range(4)) == expected
    print("fine")
"""

AFTER_FORK = """
import os, traceback
import numpy as np
import plangym_like
from plangym_like.errors import ClosedError

env = plangym_like.make("CartPole-v1", n_workers=2, isolate=True)
state = env.reset(seed=0).state
expected = env.step_batch(np.arange(50) % 2, state)
for _ in range({times}):
    future = env.step_batch(np.arange(50) % 2, state, blocking=False)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for use in (lambda: env.step_batch([0, 1], state), future):
                try:
                    use()
                except ClosedError:
                    continue
                raise AssertionError("a copy must not use its parent's workers")
            assert env.step(0).reward == 1.0  # the simulator is its own
            with plangym_like.make("CartPole-v1", n_workers=2, isolate=True) as own:
                ours = own.step_batch(np.arange(50) % 2, state)
                assert ours.states.tobytes() == expected.states.tobytes()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    again = env.step_batch(np.arange(50) % 2, state)
    assert again.states.tobytes() == expected.states.tobytes()
assert future().states.tobytes() == expected.states.tobytes()
env.close()
print("fine")
"""

WITH_TORCH = """
import numpy as np
{imports}
import plangym_like

with (
    plangym_like.make("CartPole-v1", n_workers=3, isolate=True, start_method={method!r}) as env,
    plangym_like.make("CartPole-v1") as serial,
):
    state = env.reset(seed=0).state
    for _ in range(10):
        {work}
        actions = np.arange(300) % 2
        ours = env.step_batch(actions, state).states
        assert ours.tobytes() == serial.step_batch(actions, state).states.tobytes()
print("fine")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("methods", "times"),
    [(["forkserver"], 2), pytest.param(["forkserver", "spawn"], 5, marks=pytest.mark.full)],
)
def test_made_while_eight_threads_allocate_and_log(methods: list[str], times: int) -> None:
    result = run_script(BUSY_THREADS.format(methods=methods, times=times), timeout=600)
    assert (result.stdout, result.stderr) == ("fine\n", "")


@pytest.mark.full
def test_in_a_daemonic_process(tmp_path: object) -> None:
    result = run_script(IN_A_DAEMON, path=tmp_path / "daemon.py")  # type: ignore[operator]
    assert (result.stdout, result.returncode) == ("(True, 3)\n(True, 3)\n", 0), result.stderr


@pytest.mark.parametrize(
    "methods",
    [["fork"], pytest.param(["fork", "forkserver", "spawn"], marks=pytest.mark.full)],
)
def test_in_a_process_pool(tmp_path: object, methods: list[str]) -> None:
    path = tmp_path / "pool.py"  # type: ignore[operator]
    result = run_script(IN_A_POOL.format(methods=methods), path=path, timeout=600)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.full)])
def test_after_a_fork_of_the_users_program(times: int) -> None:
    result = run_script(AFTER_FORK.format(times=times))
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr


TORCH = ("import torch\ntorch.set_num_threads(4)", "torch.ones(300, 300) @ torch.ones(300, 300)")
JAX = (
    "import jax",
    "jax.numpy.ones((300, 300)).dot(jax.numpy.ones((300, 300))).block_until_ready()",
)


@pytest.mark.full
@pytest.mark.parametrize("module", ["torch", pytest.param("jax", marks=pytest.mark.full)])
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.full)])
def test_beside_libraries_with_threads_of_their_own(module: str, method: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    imports, work = {"torch": TORCH, "jax": JAX}[module]
    result = run_script(WITH_TORCH.format(imports=imports, work=work, method=method), timeout=600)
    assert (result.stdout, result.returncode) == ("fine\n", 0), result.stderr
