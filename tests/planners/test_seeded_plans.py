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

# For each planner, a digest of its plan, and one of the next plan after `advance`. They were
# recorded before planners knew masks and players.
RECORDED = {
    ("CartPole-v1", "UCT"): ("09a5c330dc8e2a31", "613208470d9d23f4"),
    ("CartPole-v1", "UCT outcomes"): ("47d885fcdf1ca0d7", "b729b62bf57c066f"),
    ("CartPole-v1", "PUCT"): ("7e9bda580742c8cd", "476894420e064a8c"),
    ("CartPole-v1", "PUCT rollout"): ("1084362ade166fa5", "db31426162768ac5"),
    ("CartPole-v1", "OpenLoopMCTS"): ("566477598c874de1", "3ebf442c573504b7"),
    ("CartPole-v1", "OpenLoopMCTS stochastic"): ("7d1ff5e0f89b10ab", "d6fc98f8aea260e1"),
    ("CartPole-v1", "RandomShooting"): ("27e974a044fbe449", "49c6dc30fb433ccc"),
    ("CartPole-v1", "BeamSearch"): ("ce137b862198ded3", "28858f70b6afbfc8"),
    ("CartPole-v1", "FractalMonteCarlo"): ("272361118f8b0896", "059819cf8c0d56ad"),
    ("CartPole-v1", "GoExplore"): ("3a9d8d07f3d04407", "552ffb5cd11292b9"),
    ("CartPole-v1", "IW"): ("46b65e96387fafcc", "27881cbf66ec54dc"),
    ("CartPole-v1", "RolloutIW"): ("9ce0a9f9c9f652ea", "5e64719624bebcd7"),
    ("CartPole-v1", "BestFirst"): ("d4cf9db6f17ce4b5", "76c406cedca87f11"),
    ("CartPole-v1", "AStar"): ("d4cf9db6f17ce4b5", "76c406cedca87f11"),
    ("FrozenLake-v1", "UCT"): ("f97903fe06f3c93b", "db97b5c1e1fd3405"),
    ("FrozenLake-v1", "UCT outcomes"): ("47e082a1f18f1709", "2ad2b0b41355d37c"),
    ("FrozenLake-v1", "PUCT"): ("08f8f5e9b1038512", "d48af5509600c35d"),
    ("FrozenLake-v1", "PUCT rollout"): ("6b4e43905453f637", "4389f7ec5ebf31b1"),
    ("FrozenLake-v1", "OpenLoopMCTS"): ("db268ea6b7bcda08", "08ed49c7150a0b49"),
    ("FrozenLake-v1", "OpenLoopMCTS stochastic"): ("f933febbd0c6212d", "24229aabb0031399"),
    ("FrozenLake-v1", "RandomShooting"): ("f39a0f508e5ed6e5", "22f2f4c1705e527e"),
    ("FrozenLake-v1", "BeamSearch"): ("c3c1cf6b245d07a5", "960b9e4192dec693"),
    ("FrozenLake-v1", "FractalMonteCarlo"): ("31f9010c92658f39", "aaf481ddec7b2d15"),
    ("FrozenLake-v1", "GoExplore"): ("5ccf3eeb60c40253", "cd6355064e56267b"),
    ("FrozenLake-v1", "IW"): ("579ec657424bee48", "6dcfde76eefe0db6"),
    ("FrozenLake-v1", "RolloutIW"): ("579ec657424bee48", "00c685612d340560"),
    ("FrozenLake-v1", "BestFirst"): ("579ec657424bee48", "5827d35a128fdcac"),
    ("FrozenLake-v1", "AStar"): ("579ec657424bee48", "5827d35a128fdcac"),
}


def _digest(plan: Plan) -> str:
    """Return a digest of the actions, rewards and statistics of a plan."""
    parts: list[Any] = [plan.actions.tolist(), np.round(plan.rewards, 6).tolist()]
    parts += [plan.ended, plan.spent.transitions]
    for name in ("visits", "values", "value"):
        if name in plan.info:
            parts.append(np.round(np.nan_to_num(plan.info[name], nan=-9), 6).tolist())
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


@pytest.mark.parametrize(("name", "planner"), RECORDED)
def test_seeded_plans_are_those_that_were_recorded(name: str, planner: str) -> None:
    with plangym_like.make(name) as env:
        state = env.reset(seed=3).state
        made = MAKERS[planner](env)
        plan = made.plan(state, budget=2_000, seed=5)
        made.advance()
        after = env.step_batch([plan.next_action], state).states[0]
        following = made.plan(after, budget=700, seed=6)
        assert (_digest(plan), _digest(following)) == RECORDED[name, planner]
