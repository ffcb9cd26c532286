"""Measure what wrappers cost in batches, beside the environment without wrappers.

Run it from anywhere::

    python benchmarks/wrappers.py           # writes docs/figures/wrappers.*
    python benchmarks/wrappers.py --quick   # a rough look, writes nothing

Figures are medians in microseconds of CPU time of one row of a batch of 256, in this process,
without audits. The batches of one environment are measured in turn. "Row by row" is the same chain
of wrappers without the environment's kernel.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from harness import (
    calls_within,
    in_turn,
    machine,
    measured_on,
    medians,
    parser,
    report,
    seconds_of,
    table,
)

import plangym_like

_BATCH = 256
_IDS = ("HalfCheetah-v5", "CartPole-v1", "FrozenLake-v1")


class Penalty(gymnasium.RewardWrapper[Any, Any]):
    """A reward wrapper of four lines."""

    def reward(self, reward: Any) -> Any:
        return reward - 0.1


class Halved(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An observation wrapper of four lines."""

    def observation(self, observation: Any) -> Any:
        return observation // 2


class Mirrored(gymnasium.ActionWrapper[Any, Any, Any]):
    """An action wrapper of a few lines."""

    def action(self, action: Any) -> Any:
        if isinstance(action, np.ndarray):
            return -action
        space: Any = self.action_space
        return space.n - 1 - action


_LIMIT = (wrappers.TimeLimit, {"max_episode_steps": 1000})
_CHAINS: dict[str, list[Any]] = {
    "none": [],
    "a `RewardWrapper`": [Penalty],
    "an `ObservationWrapper`": [Halved],
    "an `ActionWrapper`": [Mirrored],
    "all three and a time limit": [_LIMIT, Mirrored, Halved, Penalty],
    "`TransformReward`": [(wrappers.TransformReward, {"func": abs})],
    "`ClipReward`": [(wrappers.ClipReward, {"min_reward": -1, "max_reward": 1})],
    "`DtypeObservation`": [(wrappers.DtypeObservation, {"dtype": np.float32})],
    "`RescaleAction`": [(wrappers.RescaleAction, {"min_action": -2, "max_action": 2})],
    "`NormalizeReward`": [wrappers.NormalizeReward],
}


class Contender:
    """A batch of an environment in a chain of wrappers; without a kernel if `singly` is true."""

    def __init__(self, env_id: str, chain: list[Any], *, singly: bool = False) -> None:
        self.env = plangym_like.make(env_id, wrappers=chain, audit="off")
        if singly:
            self.env.simulator.kernel_for = lambda actions: None
        state = self.env.reset(seed=0).state
        self.env.action_space.seed(0)
        self.actions = np.array([self.env.action_space.sample() for _ in range(_BATCH)])
        self.states = np.repeat(state[None], _BATCH, axis=0)
        self.count = calls_within(self.step, 0.04, time.process_time)

    def step(self) -> None:
        """Step the batch once."""
        self.env.step_batch(self.actions, self.states)

    def microseconds(self) -> float:
        """Return the time of one row."""
        return 1e6 * seconds_of(self.step, self.count, time.process_time) / self.count / _BATCH


def measure(env_id: str, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of a row in each chain, as it is and row by row."""
    found: dict[str, Contender] = {}
    for name, chain in _CHAINS.items():
        try:
            found[name] = Contender(env_id, chain)
            found[f"{name}, singly"] = Contender(env_id, chain, singly=True)
        except (TypeError, AssertionError):
            continue  # the wrapper is for other spaces
    times = medians(in_turn({name: each.microseconds for name, each in found.items()}, rounds))
    for each in found.values():
        each.env.close()
    return {name: [times[name], times[f"{name}, singly"]] for name in _CHAINS if name in times}


def main() -> None:
    """Measure, print a table, and write it unless ``--quick`` is given."""
    chosen = parser(__doc__).parse_args()
    here = machine()
    found = {env_id: measure(env_id, 5 if chosen.quick else 25) for env_id in _IDS}
    lines = [[name, *(_cell(found[env_id].get(name)) for env_id in _IDS)] for name in _CHAINS]
    head = (
        f"{measured_on(here)}. Medians, in microseconds of CPU time; in brackets, row by row; "
        "slices in random order; without audits."
    )
    shown = "\n".join([head, "", *table(["wrappers", *_IDS], lines)])
    report("wrappers", {"machine": here, "microseconds": found}, shown, quick=chosen.quick)


def _cell(pair: list[float] | None) -> str:
    return "" if pair is None else f"{pair[0]:.1f} ({pair[1]:.1f})"


if __name__ == "__main__":
    main()
