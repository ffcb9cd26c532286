"""`FractalMonteCarlo`: problems with a known answer, and scores that never fall."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from usual import first_of

import plangym_like
from plangym_like.planners import FractalMonteCarlo, Progress
from plangym_like.planners.fractal_monte_carlo import relativize


def test_without_a_score_above_0_only_episodes_that_ended_count() -> None:
    with plangym_like.make("Pendulum-v1", remove_time_limit=False) as env:
        env.reset(seed=0)
        plan = FractalMonteCarlo(env).plan(budget=160, seed=0)
        assert not plan.ended
        assert len(plan.curve) == 0
        assert len(plan) == 10, "the best of what was played in ten moves of 16 walkers"
        whole = FractalMonteCarlo(env).plan(budget=3200, seed=0)
        assert whole.ended
        assert whole.info["frames"] == 200
        assert whole.curve["score"][-1] == pytest.approx(whole.score)


class _Lives(gymnasium.Env[Any, Any]):
    """Gives 1 for each of 40 steps; each 10th takes one of the lives, of which there are 3."""

    observation_space = gymnasium.spaces.Box(0, 40, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, least: int) -> None:
        self._least, self._steps = least, 0

    @property
    def _info(self) -> dict[str, Any]:
        return {"lives": 3 - self._steps // 10}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), self._info

    def step(self, action: Any) -> Any:
        self._steps += 1
        over = self._info["lives"] <= self._least
        return np.full(1, self._steps, np.float32), 1.0, over, False, self._info


@pytest.mark.parametrize(("least", "score"), first_of([(1, 20), (2, 10), (0, 30)]))
def test_a_life_is_given_up_if_there_is_no_other_way(least: int, score: int) -> None:
    with plangym_like.make(lambda: _Lives(least)) as env:
        env.reset(seed=0)
        plan = FractalMonteCarlo(env, walkers=4, hold=1).plan(budget=8000, seed=0)
        assert plan.score == score
        assert plan.ended


@pytest.mark.parametrize("weights", [{"alpha": 1e4}, {"beta": 1e4}, {"alpha": 200, "walkers": 99}])
def test_virtual_rewards_of_any_size_are_compared(weights: dict[str, Any]) -> None:
    with plangym_like.make("CartPole-v1") as env:
        env.reset(seed=0)
        plan = FractalMonteCarlo(env, hold=2, **weights).plan(budget=2000, seed=0)
        assert plan.replay(env) == plan.score


def test_values_become_comparable() -> None:
    values = np.array([3.0, -2.0, 8.0, 3.5])
    virtual = relativize(values)
    assert (virtual > 0).all()
    assert np.array_equal(virtual.argsort(), values.argsort())
    assert np.allclose(virtual, relativize(1000 * values + 7))
    assert np.array_equal(relativize(np.full(3, 4.0)), np.ones(3))
    outlier = relativize(np.append(np.zeros(700_000), -1.0))
    assert (outlier > 0).all()
    # z = (1, -1): 1 + log(2) and exp(-1), as in the paper.
    assert np.allclose(relativize(np.array([1.0, -1.0])), [1 + np.log(2), np.exp(-1)])


class _Narrow(gymnasium.Env[Any, Any]):
    """Ends at step 20, except after one sequence of 6 actions, of 64."""

    observation_space = gymnasium.spaces.MultiDiscrete([100, 64])
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = self._code = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = self._code = 0
        return np.zeros(2, np.int64), {"lives": 1}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if 14 <= self._steps < 20:
            self._code = 2 * self._code + int(action)
        over = self._steps == 20 and self._code != 37
        obs = np.array([min(self._steps, 99), self._code])
        return obs, 1.0, over, self._steps == 50, {"lives": 1}


def test_the_swarm_grows_where_all_walkers_died() -> None:
    with plangym_like.make(_Narrow) as env:
        env.reset(seed=0)
        sizes: list[int] = []
        spent = [0]

        def note(progress: Progress) -> None:
            sizes.append(progress.spent.transitions - spent[0])
            spent[0] = progress.spent.transitions

        planner = FractalMonteCarlo(env, walkers=4, hold=1)
        plan = planner.plan(budget=20_000, seed=0, progress=note)
        assert plan.score == 50, "the narrow place was passed"
        assert set(sizes) <= {4, 8, 16, 32}
        assert sizes[0] == 4
        assert max(sizes) >= 16
