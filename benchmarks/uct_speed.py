"""The planning speed of `UCT` and of ``gymcts``, on one task, in one run.

Run it from anywhere::

    python benchmarks/uct_speed.py

Both search from the first state of CartPole: descents in a tree, each followed by random actions to
the end of the episode. ``gymcts`` (``pip install gymcts``) saves a state as a deep copy of the
environment, or as the actions that led there; both are measured. It is left out if it is not
installed.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium

import plangym_like
from plangym_like.planners import UCT

ENV, DESCENTS, ROUNDS = "CartPole-v1", 200, 7
LONGEST = 60  # steps of a rollout; random actions rarely hold the pole for longer


class _Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts steps, in copies too."""

    steps = 0

    def step(self, action: Any) -> Any:
        _Counted.steps += 1
        return super().step(action)


def searches() -> dict[str, Callable[[], int]]:
    """Return by name what makes one plan and returns its transitions."""
    env = plangym_like.make(ENV)
    state = env.reset(seed=0).state
    found: dict[str, Callable[[], int]] = {}
    for batch in (1, 32):
        planner = UCT(env, batch=batch, rollout=LONGEST)

        def ours(planner: UCT = planner) -> int:
            plan = planner.plan(state, budget=DESCENTS * (1 + LONGEST), seed=0)
            return plan.spent.transitions

        found[f"UCT of this package, {batch} descents at a time"] = ours
    try:
        from gymcts.gymcts_action_history_wrapper import ActionHistoryMCTSGymEnvWrapper
        from gymcts.gymcts_agent import GymctsAgent
        from gymcts.gymcts_deepcopy_wrapper import DeepCopyMCTSGymEnvWrapper
    except ImportError:
        print("gymcts is not installed, and left out", file=sys.stderr)
        return found
    logging.getLogger("gymcts").setLevel(logging.ERROR)
    wrappers = {
        "deep copies": DeepCopyMCTSGymEnvWrapper,
        "lists of actions": ActionHistoryMCTSGymEnvWrapper,
    }
    for name, wrapper in wrappers.items():

        def theirs(wrapper: Any = wrapper) -> int:
            other = wrapper(_Counted(gymnasium.make(ENV)))
            other.reset(seed=0)
            _Counted.steps = 0
            agent = GymctsAgent(env=other)
            agent.vanilla_mcts_search(agent.search_root_node, num_simulations=DESCENTS)
            return _Counted.steps

        found[f"gymcts, states as {name}"] = theirs
    return found


def measure(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure all searches in turn, and return the medians."""
    found = searches()
    rates: dict[str, list[float]] = {name: [] for name in found}
    for round_number in range(rounds + 1):  # the first is warm-up
        for name, search in found.items():
            begun = time.perf_counter()
            transitions = search()
            if round_number:
                rates[name].append(transitions / (time.perf_counter() - begun))
    return [
        {"search": name, "transitions_per_second": round(statistics.median(values))}
        for name, values in rates.items()
    ]


if __name__ == "__main__":
    for row in measure():
        print(f"{row['search']:<50} {row['transitions_per_second']:>12,} transitions/s")
