"""Many workers on few cores, and what a batch costs the caller.

Run it from anywhere::

    python benchmarks/many_workers.py              # writes docs/figures/many_workers.md
    python benchmarks/many_workers.py --quick      # a rough look, writes nothing

**Many workers.** Each step sleeps for 10 ms, which costs no CPU time. The efficiency of a batch is
the time that its rows would take if they were divided equally among the workers and nothing else
took time, divided by the measured time; the median over batches. For comparison, a bare pool:
forked processes that read a byte from a pipe, unpickle the environment, step it, pickle it and
write a byte. It has no memory for results, checks nothing, and cannot lose a worker.

**The caller.** With isolated workers, the caller only prepares batches and waits. Its CPU time for
each row says from how many workers on it is the bottleneck.
"""

from __future__ import annotations

import os
import pickle
import signal
import statistics
import time
from typing import Any

import gymnasium
import numpy as np
from harness import machine, measured_on, parser, report, seconds_of, table

import plangym_like

SECONDS = 0.01
# Workers, and rows for each of them.
CASES = ((32, 16), (64, 16), (64, 4))
# Environments whose callers are measured, with their options, and numbers of rows.
CALLERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ALE/MsPacman-v5", {"obs_type": "ram", "frameskip": 1}),
    ("HalfCheetah-v5", {}),
)
ROWS = (256, 4096)


class Sleeper(gymnasium.Env[Any, Any]):
    """Each step sleeps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin with a total of 0."""
        super().reset(seed=seed)
        self.total = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        """Sleep, and add the action to the total."""
        time.sleep(SECONDS)
        self.total += int(action)
        return np.array([float(self.total)]), 1.0, False, False, {}


def efficiency(workers: int, rows: int, batches: int) -> float:
    """Return the median efficiency of `batches` batches with `rows` rows for each worker."""
    with plangym_like.make(Sleeper, n_workers=workers, isolate=True, audit="off") as env:
        env.executor.pool.wait_ready()
        state = env.reset(seed=0).state
        actions = np.zeros(workers * rows, np.int64)
        seconds = [seconds_of(lambda: env.step_batch(actions, state)) for _ in range(batches + 1)]
    return rows * SECONDS / statistics.median(seconds[1:])


def bare_efficiency(workers: int, rows: int, batches: int) -> float:
    """Return what `efficiency` returns, for a bare pool of forked processes."""
    tokens, done = os.pipe(), os.pipe()
    env = Sleeper()
    env.reset(seed=0)
    pickled, pids = pickle.dumps(env), []
    for _ in range(workers):
        if (pid := os.fork()) == 0:
            while os.read(tokens[0], 1):
                copy = pickle.loads(pickled)
                copy.step(1)
                pickle.dumps(copy)
                os.write(done[1], b"x")
        pids.append(pid)

    def step() -> None:
        left = workers * rows
        os.write(tokens[1], bytes(left))
        while left:
            left -= len(os.read(done[0], left))

    seconds = [seconds_of(step) for _ in range(batches + 1)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for descriptor in (*tokens, *done):
        os.close(descriptor)
    return rows * SECONDS / statistics.median(seconds[1:])


def caller_microseconds(name: str, options: dict[str, Any], rows: int, batches: int) -> float:
    """Return the CPU time of the caller for each row, in microseconds."""
    with plangym_like.make(name, n_workers=2, isolate=True, audit="off", **options) as env:
        env.executor.pool.wait_ready()
        states = np.repeat(env.reset(seed=0).state[None], rows, 0)
        actions = np.array([env.action_space.sample() for _ in range(rows)])

        def step() -> float:
            return seconds_of(lambda: env.step_batch(actions, states), clock=time.process_time)

        seconds = [step() for _ in range(batches + 3)]
    return 1e6 * statistics.median(seconds[3:]) / rows


def main() -> None:
    """Measure, print, and write the table."""
    chosen, here = parser(__doc__).parse_args(), machine()
    batches = 3 if chosen.quick else 15
    rows, callers = [], []
    for case in CASES:
        found = efficiency(*case, batches), bare_efficiency(*case, batches)
        rows.append((*map(str, case), *(f"{each:.3f}" for each in found)))
    for name, options in CALLERS:
        each = [caller_microseconds(name, options, count, 2 * batches) for count in ROWS]
        callers.append((name, *(f"{microseconds:.1f}" for microseconds in each)))
    measured = (
        f"{measured_on(here)}. Each step sleeps for 10 ms. The efficiency is 1 if the rows are "
        "divided equally and nothing else takes time. A bare pool only unpickles the environment, "
        "steps it and pickles it."
    )
    names = ("workers", "rows for each", "efficiency", "of a bare pool")
    page = [measured, "", *table(names, rows), ""]
    page += ["CPU time of the caller for each row, in us, with two isolated workers:", ""]
    page += table(("environment", *(f"{count:,} rows" for count in ROWS)), callers)
    data = {"machine": here, "efficiency": rows, "microseconds": callers}
    report("many_workers", data, "\n".join(page), quick=chosen.quick)


if __name__ == "__main__":
    main()
