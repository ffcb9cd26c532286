"""LunarLander deep in a search: rows that continue, and rows that copy another row's state.

    python benchmarks/lander_search.py [--rows 64] [--depth 100] [--siblings 0.5]

Box2D cannot be given a state, so the exact alternative is to play each row's whole episode again
from its reset. Rates are divided by the rate of a loop that does so on one core. In each batch,
some rows copy another row's state, as a search clones its walkers; then all rows take one step. All
contenders step the same batches; rounds are interleaved, and figures are medians. Rewards are
compared with those of the loop.

plangym (0.1.32) rebuilds bodies from positions and velocities, which is not exact. If it is
installed, it is timed on fewer and smaller batches.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium
import numpy as np

import plangym_like

ENV_ID = "LunarLander-v3"
# The main engine more often than not: the lander stays in the air for longer.
ODDS = (0.15, 0.15, 0.55, 0.15)


class Plan:
    """The batches: who takes over from whom, and every row's action."""

    def __init__(self, rows: int, batches: int, depth: int, siblings: float, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.opening = random.choice(4, (depth, rows), p=ODDS)
        self.parents = np.tile(np.arange(rows), (batches, 1))
        moved = random.random((batches, rows)) < siblings
        self.parents[moved] = random.integers(0, rows, int(moved.sum()))
        self.actions = random.choice(4, (batches, rows), p=ODDS)


def replay_each(plan: Plan) -> tuple[float, list[np.ndarray]]:
    """Play every row from its reset, on one core; returns seconds and each batch's rewards."""
    env = gymnasium.make(ENV_ID, max_episode_steps=-1).unwrapped
    histories = [list(column) for column in plan.opening.T]
    rewards = []
    begun = time.perf_counter()
    for parents, actions in zip(plan.parents, plan.actions, strict=True):
        histories = [
            [*histories[parent], action] for parent, action in zip(parents, actions, strict=True)
        ]
        row = np.empty(len(histories))
        for index, history in enumerate(histories):
            env.reset(seed=0)
            for action in history:
                row[index] = env.step(action)[1]
        rewards.append(row)
    return time.perf_counter() - begun, rewards


def fork_and_step(env: Any) -> None:
    """Have a forked copy of this process take one step and reply: the other way to a sibling."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, np.float64(env.step(0)[1]).tobytes())
        os._exit(0)
    os.read(reading, 8)
    os.close(reading)
    os.close(writing)
    os.waitpid(child, 0)


def sibling_seconds(depth: int, times: int = 20) -> tuple[float, float]:
    """Return what a sibling costs by a fork of this process, and by playing `depth` steps."""
    env = gymnasium.make(ENV_ID, max_episode_steps=-1).unwrapped
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        begun = time.perf_counter()
        env.reset(seed=0)
        for _ in range(depth):
            env.step(2)
        played = time.perf_counter()
        fork_and_step(env)
        taken[0].append(time.perf_counter() - played)
        taken[1].append(played - begun)
    return median(taken[0]), median(taken[1])


def with_library(
    make: Callable[[], Any], plan: Plan, *, reopen: bool = True
) -> Callable[[], tuple[float, list[Any]]]:
    """Return what runs the batches in an environment that has states.

    `reopen` plays the opening before each run, as a search comes to its states.
    """
    env = make()
    state = env.reset(**({"seed": 0} if hasattr(env, "snapshot") else {}))[0]
    rows = plan.opening.shape[1]

    def opened() -> Any:
        states = [state] * rows
        for actions in plan.opening:
            states = env.step_batch(actions=list(actions), states=states)[0]
        return states

    kept: list[Any] = []

    def run() -> tuple[float, list[Any]]:
        if reopen or not kept:
            kept[:] = [opened()]
        states = kept[0]
        rewards = []
        begun = time.perf_counter()
        for parents, actions in zip(plan.parents, plan.actions, strict=True):
            chosen = [states[parent] for parent in parents]
            result = env.step_batch(actions=list(actions), states=chosen)
            states = result[0]
            rewards.append(np.asarray(result[2], float))
        return time.perf_counter() - begun, rewards

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--siblings", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    forked, played = sibling_seconds(chosen.depth)
    print(
        f"a sibling at depth {chosen.depth}: {1e3 * forked:.1f} ms by a fork of this process, "
        f"{1e3 * played:.1f} ms by playing it again"
    )
    plan = Plan(chosen.rows, chosen.batches, chosen.depth, chosen.siblings)
    contenders: dict[str, Callable[[], tuple[float, list[Any]]]] = {
        "a loop that replays each row": lambda: replay_each(plan),
        "plangym_like, serial": with_library(lambda: plangym_like.make(ENV_ID), plan),
        "plangym_like, 2 workers": with_library(
            lambda: plangym_like.make(ENV_ID, n_workers=2), plan
        ),
    }
    # So slow that a part of the work has to do.
    small = Plan(max(4, chosen.rows // 8), 2, chosen.depth, chosen.siblings)
    plans = dict.fromkeys(contenders, plan)
    try:
        import plangym
    except ImportError:
        print("plangym is not installed here: it takes no part")
    else:
        for name, workers in {"serial": None, "2 workers": 2}.items():
            contenders[f"plangym, {name}"] = with_library(
                lambda workers=workers: plangym.make(ENV_ID, n_workers=workers), small, reopen=False
            )
            plans[f"plangym, {name}"] = small
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    exact: dict[str, bool] = dict.fromkeys(contenders, True)
    expected = {id(each): replay_each(each)[1] for each in (plan, small)}
    for _ in range(chosen.rounds):
        for name, run in contenders.items():
            taken, rewards = run()
            rates[name].append(plans[name].actions.size / taken)
            same = map(np.array_equal, expected[id(plans[name])], rewards)
            exact[name] &= all(same)
    base = rates["a loop that replays each row"]
    print(
        f"{ENV_ID}, {chosen.rows} rows from depth {chosen.depth}, {chosen.siblings:.0%} of them "
        f"siblings; medians of {chosen.rounds} rounds"
    )
    for name, found in rates.items():
        ratio = median(one / other for one, other in zip(found, base, strict=True))
        told = "exact" if exact[name] else "NOT exact"
        print(f"{name:32} {median(found):10,.0f} transitions/s {ratio:8.2f} of the loop  {told}")


if __name__ == "__main__":
    main()
