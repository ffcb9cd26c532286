"""Inject the same faults into this package and its rivals, each in a new process.

    python benchmarks/faults.py            # writes docs/figures/faults.json and faults.md
    python benchmarks/faults.py --quick    # this package alone; writes nothing

The script starts itself for each cell of the table, as ``faults.py LIBRARY FAULT``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from harness import parser, report, table

START_LIMIT, LIMIT = 120.0, 12.0
VERSIONS = ("plangym", "gymnasium", "stable_baselines3", "numpy")
NUM = 4
CRASH, HANG, LOCKED, SLOW = range(90, 94)
TIMEOUT = 1.0

Outcome = tuple[bool, str]


class Locked(Exception):
    """Does not pickle."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Echo(gymnasium.Env):
    """Observes the action that it was given; some do harm."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    # So many that actions drawn at random never do harm.
    action_space = gymnasium.spaces.Discrete(1 << 40)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.last = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if action == CRASH:
            ctypes.string_at(0)
        if action == HANG:
            ctypes.PyDLL(None).sleep(600)
        if action == LOCKED:
            raise Locked
        if action == SLOW:
            time.sleep(1.0)
        self.last = int(action)
        return np.array([action], np.float32), 0.0, False, False, {}


class Ours:
    """plangym_like, isolated lanes."""

    def __init__(self) -> None:
        import plangym_like

        self.env = plangym_like.make(Echo, n_workers=2, isolate=True, step_timeout=60.0)
        self.state = self.env.reset(seed=0).state
        self.step([0] * NUM)

    def step(self, actions: Any, timeout: float | None = None) -> list[int]:
        self.env.batch_env.step_timeout = timeout or 60.0
        return [int(x) for x in self.env.step_batch(actions, self.state).obs[:, 0]]

    def begin(self, actions: Any) -> None:
        self.env.step_batch(actions, self.state, blocking=False)

    def close(self) -> None:
        self.env.close()


class Plangym:
    """plangym's ParallelEnv."""

    def __init__(self) -> None:
        from plangym.core import PlangymEnv
        from plangym.vectorization.parallel import ParallelEnv

        class EchoEnv(PlangymEnv):
            def get_state(self) -> Any:
                return np.array([self.gym_env.unwrapped.last])

            def set_state(self, state: Any) -> None:
                self.gym_env.unwrapped.last = int(state[0])

        gymnasium.register("Echo-v0", lambda **kwargs: Echo())
        self.env = ParallelEnv(EchoEnv, "Echo-v0", n_workers=2, render_mode=None)
        self.state = self.env.reset()[0]

    def step(self, actions: Any, timeout: float | None = None) -> list[int]:
        result = self.env.step_batch(np.array(actions), [self.state] * len(actions))
        return [int(obs[0]) for obs in result[1]]

    def begin(self, actions: Any) -> None:
        half = len(actions) // 2
        for worker, some in zip(self.env._batch_env, (actions[:half], actions[half:]), strict=True):
            worker.step_batch(some, [self.state] * len(some), np.ones(len(some), int), None, False)

    def close(self) -> None:
        self.env.close()


class Gym:
    """Gymnasium's AsyncVectorEnv."""

    def __init__(self) -> None:
        self.env = gymnasium.vector.AsyncVectorEnv([Echo] * NUM)
        self.env.reset(seed=0)

    def step(self, actions: Any, timeout: float | None = None) -> list[int]:
        self.env.step_async(np.array(actions))
        return [int(x) for x in self.env.step_wait(timeout)[0][:, 0]]

    def begin(self, actions: Any) -> None:
        self.env.step_async(np.array(actions))

    def close(self) -> None:
        self.env.close(timeout=2)


class SB3:
    """Stable-Baselines3's SubprocVecEnv."""

    def __init__(self) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self.env = SubprocVecEnv([Echo] * NUM)
        self.env.reset()

    def step(self, actions: Any, timeout: float | None = None) -> list[int]:
        return [int(x) for x in self.env.step(np.array(actions))[0][:, 0]]

    def begin(self, actions: Any) -> None:
        self.env.step_async(np.array(actions))

    def close(self) -> None:
        self.env.close()


LIBRARIES: dict[str, Any] = {
    "plangym_like": Ours,
    "plangym": Plangym,
    "AsyncVectorEnv": Gym,
    "SubprocVecEnv": SB3,
}


def told(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return what `call` returned and the error that it raised, with the seconds it took."""
    begun = time.perf_counter()
    try:
        return call(), ""
    except BaseException as error:
        seconds = time.perf_counter() - begun
        first = (str(error).splitlines() or [""])[0][:60]
        return None, f"{type(error).__name__} after {seconds:.1f} s ({first})"


def then_right(env: Any, error: str) -> Outcome:
    """Tell the next step after a fault: right, stale, or an error."""
    print(f"0|{error}; next step: no answer", flush=True)  # in case that there is none
    result, failure = told(lambda: env.step([5, 6, 7, 8]))
    if failure:
        return False, f"{error}; next step: {failure}"
    if result != [5, 6, 7, 8]:
        return False, f"{error}; next step answers {result} to [5, 6, 7, 8]"
    return True, f"{error}; next step right"


def with_action(action: int, timeout: float | None = None) -> Callable[[Any], Outcome]:
    def run(env: Any) -> Outcome:
        _, error = told(lambda: env.step([1, action, 3, 4], timeout))
        return then_right(env, error or "no error")

    return run


def kill_a_worker(env: Any) -> Outcome:
    env.step([1, 2, 3, 4])
    victims = [p for p in psutil.Process().children(recursive=True) if _is_worker(p)]
    victims[-1].kill()
    result, error = told(lambda: env.step([1, 2, 3, 4]))
    if error or result != [1, 2, 3, 4]:
        return False, error or f"answers {result}"
    return True, "replaced, the step is right"


def _is_worker(process: psutil.Process) -> bool:
    """Return whether it runs environments, rather than helping to start or to clean up."""
    words = " ".join(process.cmdline())
    helper = any(name in words for name in ("fork_server_main", "resource_tracker", "forkserver"))
    return not helper or process.ppid() != os.getpid()


def press_ctrl_c(env: Any) -> Outcome:
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    _, error = told(lambda: env.step([1, SLOW, 3, 4]))
    return then_right(env, error or "no error")


def give_a_wrong_action(env: Any) -> Outcome:
    result, error = told(lambda: env.step([1, -1, 3, 4]))
    if not error:
        return False, f"taken without a word, {len(result)} rows come back"
    return then_right(env, error)


def drop_an_answer(env: Any) -> Outcome:
    env.begin([1, 2, 3, 4])
    fine, text = then_right(env, "begun")
    # To refuse the next step is as good as to answer it.
    return fine or "answers" not in text, text


def close_while_it_hangs(env: Any) -> Outcome:
    before = psutil.Process().children(recursive=True)
    env.begin([1, HANG, 3, 4])
    time.sleep(0.5)
    begun = time.perf_counter()
    _, error = told(env.close)
    seconds = time.perf_counter() - begun
    left = [p for p in before if p.is_running() and _is_worker(p) and _alive(p)]
    fine = seconds < 3 and not left
    return fine, f"{error or 'closed'} in {seconds:.1f} s, {len(left)} processes left"


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def kill_the_parent(library: str, action: int) -> Outcome:
    command = [sys.executable, __file__, "parent", library, str(action)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    print("ready", flush=True)
    time.sleep(0.7)
    children = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait()
    time.sleep(2)
    left = [child for child in children if child.is_running() and _alive(child)]
    for child in left:
        child.kill()
    return not left, f"{len(left)} of {len(children)} processes alive 2 s later"


FAULTS: dict[str, Callable[[Any], Outcome]] = {
    "a worker is killed (SIGKILL) between two steps": kill_a_worker,
    "a row crashes its simulator (SIGSEGV)": with_action(CRASH),
    "a row hangs in C with the GIL held; the timeout is 1 s": with_action(HANG, TIMEOUT),
    "an exception that cannot be pickled": with_action(LOCKED),
    "Ctrl-C within a step": press_ctrl_c,
    "a step is begun, its answer never taken": drop_an_answer,
    "an action outside the space": give_a_wrong_action,
    "close() while a row hangs in C": close_while_it_hangs,
}
DEATHS = {
    "the parent is killed (SIGKILL), workers idle": 0,
    "the parent is killed (SIGKILL), a worker stuck in C": HANG,
}


def inject(library: str, fault: str) -> None:
    """Print ``ready``, inject the fault, and print ``fine|text``."""
    if fault in DEATHS:
        fine, text = kill_the_parent(library, DEATHS[fault])
    else:
        env = LIBRARIES[library]()
        print("ready", flush=True)
        fine, text = FAULTS[fault](env)
    print(f"{int(fine)}|{text}", flush=True)
    os._exit(0)


def be_the_parent(library: str, action: int) -> None:
    """Open a library, begin the action if there is one, and wait to be killed."""
    env = LIBRARIES[library]()
    print("ready", flush=True)
    if action:
        env.step([1, action, 3, 4])
    time.sleep(60)


def measure(library: str, fault: str) -> dict[str, Any]:
    """Return what became of one library under one fault."""
    # Into a file: orphans would hold a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, library, fault],
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        in_time = True
        try:
            wait_until_ready(process, output)
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        said = output.read().splitlines()
    if not in_time:
        what = said[-1].partition("|")[2] if "|" in said[-1] else "no answer"
        return {"fine": False, "what": f"{what} within {LIMIT:.0f} s"}
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return {"fine": False, "what": f"the whole program died ({name})"}
    if not said or "|" not in said[-1]:
        return {"fine": False, "what": "the whole program ended without a word"}
    fine, _, what = said[-1].partition("|")
    return {"fine": fine == "1", "what": what}


def wait_until_ready(process: subprocess.Popen[bytes], output: Any) -> None:
    """Wait until the library's processes are ready; that may take seconds and is not measured."""
    until = time.monotonic() + START_LIMIT
    ended = False
    while os.fstat(output.fileno()).st_size == 0:
        if ended or time.monotonic() > until:
            raise RuntimeError(f"{process.args}: the library is missing, or does not start")
        ended = process.poll() is not None
        time.sleep(0.05)


def page(faults: dict[str, dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    versions = []
    for name in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    rows = []
    for fault, cells in faults.items():
        told = (
            f"{'✅' if x['fine'] else '❌'} {x['what']}".replace("|", "/") for x in cells.values()
        )
        rows.append((fault, *told))
    lines = [
        f"Measured with `make fault-table`; {', '.join(versions)}.",
        "✅: as one would wish; ❌: not.",
        "",
        *table(("fault", *next(iter(faults.values()))), rows),
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure every cell, and write the table."""
    if sys.argv[1:2] == ["parent"]:
        be_the_parent(sys.argv[2], int(sys.argv[3]))
    if sys.argv[1:2] and sys.argv[1] in LIBRARIES:
        inject(*sys.argv[1:3])
    chosen = parser(__doc__).parse_args()
    libraries = ["plangym_like"] if chosen.quick else list(LIBRARIES)
    results: dict[str, dict[str, Any]] = {fault: {} for fault in (*FAULTS, *DEATHS)}
    for fault in results:
        for library in libraries:
            cell = results[fault][library] = measure(library, fault)
            said = "fine" if cell["fine"] else "bad"
            print(f"{said:4} {library:15} {fault}: {cell['what']}", flush=True)
    figures = {"limit_seconds": LIMIT, "faults": results}
    report("faults", figures, page(results), quick=chosen.quick)


if __name__ == "__main__":
    main()
