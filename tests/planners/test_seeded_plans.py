"""Plans of environments without masks do not change from one version to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import plangym_like
from plangym_like import planners
from plangym_like.planners import Plan, Planner

# For each planner, a digest of two plans in each of two environments, the second one after
# `advance`. They are those of the versions before planners knew masks and players.
RECORDED = {
    "UCT": "cf6ff651e6c2c3a4",
    "UCT outcomes": "8a10e16414f23845",
    "PUCT": "f4657bcf5c8a1386",
    "PUCT rollout": "aff01c38684c3566",
    "OpenLoopMCTS": "82e00ee40666c331",
    "OpenLoopMCTS stochastic": "5324ce826629711e",
    "RandomShooting": "565ce631407b6cde",
    "BeamSearch": "474b0a4efd094fd0",
    "FractalMonteCarlo": "4c0d0fd816fda42a",
    "GoExplore": "151da7ce95dda23d",
    "IW": "64154a77b12a2938",
    "RolloutIW": "65f90319e0f78bc9",
    "BestFirst": "a1fd26a2821d2f13",
    "AStar": "a1fd26a2821d2f13",
}


def _digest(plans: list[Plan]) -> str:
    """Return a digest of the actions, rewards and statistics of plans."""
    parts: list[Any] = []
    for plan in plans:
        parts += [plan.actions.tolist(), np.round(plan.rewards, 6).tolist()]
        parts += [plan.ended, plan.spent.transitions]
        for name in sorted({"visits", "values", "value"} & plan.info.keys()):
            parts.append((name, np.round(np.nan_to_num(plan.info[name], nan=-9), 6).tolist()))
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _evaluate(obs: Any) -> Any:
    size = 2 if obs.ndim > 1 else 4
    return np.full((len(obs), size), 1 / size), np.zeros(len(obs))


def _features(obs: Any, infos: Any) -> Any:
    return (np.asarray(obs) * 10 + 50).astype(int)


def _width(cls: Any) -> Callable[[Any], Planner]:
    def make(env: Any) -> Planner:
        planner: Planner = cls(env, **({"features": _features} if env.obs_shape else {}))
        return planner

    return make


MAKERS: dict[str, Callable[[Any], Planner]] = {
    "UCT": lambda env: planners.UCT(env, discount=0.97),
    "UCT outcomes": lambda env: planners.UCT(env, outcomes=4, discount=0.9),
    "PUCT": lambda env: planners.PUCT(env, _evaluate, discount=0.97, noise=0.25),
    "PUCT rollout": lambda env: planners.PUCT(env, rollout=5),
    "OpenLoopMCTS": lambda env: planners.OpenLoopMCTS(env, discount=0.97),
    "OpenLoopMCTS stochastic": lambda env: planners.OpenLoopMCTS(env, stochastic=True),
    "RandomShooting": planners.RandomShooting,
    "BeamSearch": lambda env: planners.BeamSearch(env, width=8),
    "FractalMonteCarlo": planners.FractalMonteCarlo,
    "GoExplore": lambda env: planners.GoExplore(env, batch=16),
    "IW": _width(planners.IW),
    "RolloutIW": _width(planners.RolloutIW),
    "BestFirst": lambda env: planners.BestFirst(env, key="obs"),
    "AStar": lambda env: planners.AStar(env, key="obs"),
}


@pytest.mark.parametrize("planner", MAKERS)
def test_seeded_plans_are_those_that_were_recorded(planner: str) -> None:
    found = []
    for name in ("CartPole-v1", "FrozenLake-v1"):
        with plangym_like.make(name) as env:
            state = env.reset(seed=3).state
            made = MAKERS[planner](env)
            found.append(made.plan(state, budget=2_000, seed=5))
            made.advance()
            after = env.step_batch([found[-1].next_action], state).states[0]
            found.append(made.plan(after, budget=700, seed=6))
    assert _digest(found) == RECORDED[planner]
