"""Time batches with other values of the constants that were chosen by measurement.

Run it from anywhere::

    python benchmarks/constants.py                    # all constants
    python benchmarks/constants.py rows_spin put --rounds 15

For each constant, environments are made and stepped with several values in turn, in random order.
A figure is the median over rounds of the time with that value, divided by the time with the value
that the package uses; above 1 is slower. It writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import far_node
import numpy as np

import plangym_like
from plangym_like import ExternalProcess

CORES = 2
STORE_NBYTES = 200_000_000
SLICE_SECONDS = 0.3
GAME: dict[str, Any] = {"obs_type": "ram", "frameskip": 1}
Step = Callable[[], object]


def game_batches(count: int, *, shared: bool = False, **options: Any) -> Step:
    """Return what steps `count` rows of MsPacman, from different states or from a shared one."""
    env: Any = plangym_like.make("ALE/MsPacman-v5", n_workers=CORES, audit="off", **GAME, **options)
    if options.get("ray"):
        env.wait_ready(60)
    rng = np.random.default_rng(0)
    first = env.reset(seed=0).state
    actions = rng.integers(env.action_space.n, size=count)
    states = env.step_batch(actions, first, dt=rng.integers(1, 60, count)).states
    return lambda: env.step_batch(actions, states[0] if shared else states)


def lanes(name: str, count: int) -> Step:
    """Return what steps `count` vectorised environments in two processes."""
    envs = plangym_like.make_vec(name, count, CORES)
    envs.reset(seed=0)
    actions = envs.action_space.sample()
    return lambda: envs.step(actions)


def messages(nbytes: int) -> Step:
    """Return what sends `nbytes` bytes to another process, and receives them again."""
    echo = ExternalProcess(lambda: bytes, linger=0.005)
    payload = bytes(nbytes)
    return lambda: echo.call("__call__", payload).result()


def far_batches(*, shared: bool = False) -> Step:
    """Return what steps 256 rows on another node of a Ray cluster."""
    far_node.start(CORES, STORE_NBYTES)
    where = {"ray": True, "isolate": True, "resources": {"num_cpus": 0}}
    return game_batches(256, shared=shared, **where)


def near_and_far_batches() -> Step:
    """Return what steps 256 rows on this machine and on another node of a Ray cluster."""
    far_node.start(CORES, STORE_NBYTES)
    return game_batches(256, ray=True, resources={"num_cpus": 0})


class Constant(NamedTuple):
    """A constant of a module, the values to try, and what is timed; the first value is its own."""

    module: str
    name: str
    values: tuple[float, ...]
    workload: Callable[[], Step]


CONSTANTS = {
    "rows_spin": Constant(
        "execution.row_pool", "_SPIN_SECONDS", (3e-4, 0.0, 1e-4, 1e-3), lambda: game_batches(32)
    ),
    "rows_look": Constant(
        "execution.batch_run", "_LOOK_SECONDS", (6e-3, 1e-3, 3e-2), lambda: game_batches(256)
    ),
    "lanes_spin": Constant(
        *("vector.lanes_pool", "_SPIN_SECONDS", (3e-4, 0.0, 1e-4, 1e-3)),
        lambda: lanes("HalfCheetah-v5", 16),
    ),
    "lanes_waits": Constant(
        *("vector.lanes_pool", "_WAITS_WITHOUT_SPIN", (16, 1, 128)),
        lambda: lanes("HalfCheetah-v5", 16),
    ),
    "rows_linger": Constant(
        "execution.process_options", "_LINGER_SECONDS", (5e-3, 0.0), lambda: game_batches(32)
    ),
    "lanes_linger": Constant(
        "vector.process_lanes", "_LINGER_SECONDS", (5e-3, 0.0), lambda: lanes("HalfCheetah-v5", 16)
    ),
    "chunk": Constant(
        "processes.wire", "_CHUNK_NBYTES", (1 << 16, 1 << 12, 1 << 20), lambda: messages(1000)
    ),
    "large_chunk": Constant(
        *("processes.wire", "_LARGE_CHUNK_NBYTES", (1 << 20, 1 << 16, 1 << 24)),
        lambda: messages(1 << 24),
    ),
    "join": Constant(
        "processes.wire", "_JOIN_NBYTES", (1 << 16, 1 << 10, 1 << 22), lambda: messages(40_000)
    ),
    "ray_depth": Constant("cluster.ray_executor", "_DEPTH", (2, 1, 4), far_batches),
    "ray_pieces": Constant("cluster.ray_executor", "_PIECES", (8, 2, 32), near_and_far_batches),
    "ray_look": Constant(
        "cluster.ray_executor", "_LOOK_SECONDS", (2e-3, 5e-4, 1e-2), near_and_far_batches
    ),
    "put": Constant(
        "cluster.ray_executor",
        "_PUT_NBYTES",
        (1 << 16, 1, 1 << 30),
        lambda: far_batches(shared=True),
    ),
}


@contextlib.contextmanager
def changed(constant: Constant, value: float) -> Iterator[None]:
    """Give `constant` another value."""
    module = importlib.import_module(f"plangym_like.{constant.module}")
    usual = getattr(module, constant.name)
    assert usual == constant.values[0], f"{constant.name} is {usual} now: change the table"
    setattr(module, constant.name, value)
    try:
        yield
    finally:
        setattr(module, constant.name, usual)


def measure(constant: Constant, rounds: int) -> dict[float, float]:
    """Return the median ratio of times, by value."""
    steps: dict[float, Step] = {}
    for value in constant.values:
        with changed(constant, value):
            steps[value] = constant.workload()
    taken: dict[float, list[float]] = {value: [] for value in constant.values}
    for _ in range(rounds):
        for value in random.sample(constant.values, len(constant.values)):
            with changed(constant, value):
                taken[value].append(seconds_of(steps[value]))
    usual = taken[constant.values[0]]
    return {
        value: statistics.median(one / own for one, own in zip(times, usual, strict=True))
        for value, times in taken.items()
    }


def seconds_of(step: Step) -> float:
    """Return the mean time of a step."""
    begun, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < SLICE_SECONDS:
        step()
        count += 1
    return passed / count


def main() -> None:
    """Measure the chosen constants and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(CONSTANTS)}")
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    for name in chosen.names or CONSTANTS:
        constant = CONSTANTS[name]
        for value, ratio in measure(constant, chosen.rounds).items():
            print(f"{constant.module}.{constant.name} = {value:g}: {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
