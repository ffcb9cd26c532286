"""CEM, iCEM and MPPI alike: a pendulum swung up, a known optimum, budgets, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import CEM, ICEM, MPPI, Plan, Planner, play
from plangym_like.planners.continuous_plans import filtered, power_spectrum, shifted

ALL = pytest.mark.parametrize("planner_class", [CEM, ICEM, MPPI])
GOAL = np.array([0.3, -0.7, 1.4])


class Quadratic(gymnasium.Env[Any, Any]):
    """One step; the reward is the negative squared distance of the action to `GOAL`."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(
        np.array([-1, -1, -1.0]), np.array([1, 1, 3.0]), (3,), float
    )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        reward = -float(((action - GOAL) ** 2).sum())
        return np.zeros(1, np.float32), reward, True, False, {}


class Unbounded(Quadratic):
    """Its actions have no bounds."""

    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))


@pytest.fixture
def pendulum() -> Iterator[Any]:
    with plangym_like.make("Pendulum-v1") as env:
        env.reset(seed=0)
        yield env


def _hanging(env: Any) -> Any:
    return env.make_state(x=[np.pi, 0.0])


@pytest.mark.parametrize(
    ("planner_class", "options", "near"),
    [
        (CEM, {"std": 1.0}, 0.002),
        (ICEM, {"std": 1.0, "elites": 20}, 0.002),
        (MPPI, {"std": 0.2}, 0.05),
    ],
)
def test_the_optimum_of_a_quadratic_is_found(
    planner_class: type[Planner], options: dict[str, Any], near: float
) -> None:
    with plangym_like.make(Quadratic) as env:
        env.reset(seed=0)
        planner: Any = planner_class(env, horizon=1, batch=100, **options)  # type: ignore[call-arg]
        plan = planner.plan(budget=2000, seed=0)
        assert plan.actions == pytest.approx(GOAL[None], abs=near)
        assert plan.info["mean"] == pytest.approx(GOAL[None], abs=near)
        assert plan.score == pytest.approx(0, abs=3 * near**2)
        assert plan.ended
        assert len(plan) == 1


@pytest.mark.parametrize("planner_class", [CEM, ICEM])
def test_a_search_ends_when_its_distribution_is_a_point(planner_class: type[Planner]) -> None:
    with plangym_like.make(Quadratic) as env:
        env.reset(seed=0)
        planner: Any = planner_class(env, horizon=1, batch=60, elites=20, std=1.0)  # type: ignore[call-arg]
        plan = planner.plan(budget=1_000_000, seed=0)
        assert plan.spent.transitions < 10_000
        assert plan.actions == pytest.approx(GOAL[None], abs=0.002)


# Dynamic programming on a grid of 361 angles and 321 velocities gives -301.9 from this start.
@pytest.mark.parametrize(
    ("planner_class", "options", "at_least"),
    [
        pytest.param(CEM, {"horizon": 30, "batch": 64}, -400, marks=pytest.mark.full),
        pytest.param(
            ICEM, {"horizon": 25, "batch": 64, "std": 1.0, "dt": 2}, -320, marks=pytest.mark.full
        ),
        (MPPI, {"horizon": 30, "batch": 64}, -400),
    ],
)
def test_a_hanging_pendulum_is_swung_up(
    pendulum: Any, planner_class: type[Planner], options: dict[str, Any], at_least: float
) -> None:
    planner: Any = planner_class(pendulum, **options)
    steps, budget = 200 // planner.dt, 5 * 64 * planner.horizon
    episode = play(planner, steps, _hanging(pendulum), budget=budget, seed=0)
    assert -301 > episode.score > at_least
    assert episode.rewards[-20:].min() > -0.2
    assert episode.replay(pendulum) == episode.score


@ALL
def test_plans_of_any_number_of_workers_are_the_same(planner_class: type[Planner]) -> None:
    plans: list[Plan] = []
    for n_workers in (None, 1, 2):
        with plangym_like.make("HalfCheetah-v5", n_workers=n_workers) as env:
            state = env.reset(seed=1).state
            planner: Any = planner_class(env, horizon=6, batch=30)  # type: ignore[call-arg]
            plans.append(play(planner, 3, state, budget=500, seed=3))
            assert plans[-1].replay(env) == plans[-1].score
    for other in plans[1:]:
        assert np.array_equal(plans[0].actions, other.actions)
        assert np.array_equal(plans[0].rewards, other.rewards)
        assert plans[0].spent.transitions == other.spent.transitions


@ALL
def test_budgets_are_kept_and_scores_do_not_fall(
    pendulum: Any, planner_class: type[Planner]
) -> None:
    planner: Any = planner_class(pendulum, horizon=10, dt=2)  # type: ignore[call-arg]
    for budget in (20, 50, 1000, 20_000):
        plan = planner.plan(budget=budget, seed=0)
        assert 0 < plan.spent.transitions <= budget
        assert plan.spent.frames == 2 * plan.spent.transitions
        assert plan.replay(pendulum) == plan.score == plan.curve["score"][-1]
        assert np.all(np.diff(plan.curve["score"]) >= 0)
    with pytest.raises(InputError, match="a budget of 19 transitions is too small"):
        planner.plan(budget=19)
    plan = planner.plan(seconds=0.05, seed=0)
    assert plan.replay(pendulum) == plan.score


class Falling(gymnasium.Env[Any, Any]):
    """An episode ends after 3 to 5 steps; the reward is the negative square of the action."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,), float)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.height = 5.0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.height -= 1 + abs(float(action[0]))
        return np.zeros(1, np.float32), -(float(action[0]) ** 2), self.height <= 0, False, {}


@ALL
@pytest.mark.parametrize(("horizon", "budget"), [(100, 2_000), (100, 9_000), (10, 2_000)])
def test_what_short_episodes_leave_of_the_budget_is_spent(
    planner_class: type[Planner], horizon: int, budget: int
) -> None:
    with plangym_like.make(Falling) as env:
        env.reset(seed=0)
        planner: Any = planner_class(env, horizon=horizon, std=1.0)  # type: ignore[call-arg]
        plan = planner.plan(budget=budget, seed=0)
        # Two plans of full length must fit, and one more batch of the usual length.
        left = 2 * horizon + 5 * planner.batch
        assert budget - left < plan.spent.transitions <= budget
        assert plan.score > -0.1 and plan.replay(env) == plan.score


@ALL
def test_a_last_batch_is_made_to_fit(pendulum: Any, planner_class: type[Planner]) -> None:
    planner: Any = planner_class(pendulum, horizon=10, batch=50)  # type: ignore[call-arg]
    spent = planner.plan(budget=10 * (50 * 7 + 1 + 40), seed=0).spent
    # iCEM makes batches smaller: 50, 40, 32, 25, and so on until all are 20.
    assert spent.transitions > 10 * (50 * 7 + 1 + 40 - (10 if planner_class is ICEM else 1))


@ALL
def test_a_search_begins_where_the_last_one_ended_only_after_advance(
    pendulum: Any, planner_class: type[Planner]
) -> None:
    state = _hanging(pendulum)
    planner: Any = planner_class(pendulum, horizon=10, batch=32)  # type: ignore[call-arg]
    first = planner.plan(state, budget=2000, seed=0)
    again = planner.plan(state, budget=2000, seed=0)
    assert np.array_equal(first.info["mean"], again.info["mean"])
    planner.advance()
    warm = planner.plan(state, budget=2000, seed=0)
    assert not np.array_equal(warm.info["mean"], again.info["mean"])
    last = planner.plan(state, budget=2000, seed=0)
    assert np.array_equal(first.info["mean"], last.info["mean"])


@ALL
def test_an_episode_is_the_same_whatever_was_played_before(
    pendulum: Any, planner_class: type[Planner]
) -> None:
    planner: Any = planner_class(pendulum, horizon=10, batch=32)  # type: ignore[call-arg]
    episodes = [play(planner, 5, budget=1000, seed=0) for _ in range(2)]
    assert np.array_equal(episodes[0].actions, episodes[1].actions)


@ALL
def test_environments_that_are_refused(planner_class: type[Planner]) -> None:
    name = planner_class.__name__
    finite, unbounded = plangym_like.make("CartPole-v1"), plangym_like.make(Unbounded)
    with finite, pytest.raises(InputError, match=f"{name} needs continuous actions.*use UCT"):
        planner_class(finite)
    with unbounded, pytest.raises(InputError, match=f"{name} needs an action space with finite"):
        planner_class(unbounded)


@pytest.mark.parametrize(
    ("planner_class", "options", "words"),
    [
        (CEM, {"horizon": 0}, "horizon must be a whole number of at least 1"),
        (CEM, {"std": 0}, "std must be a finite number of at least 1e-06, got 0"),
        (CEM, {"alpha": 1.5}, "alpha must be a finite number from 0 to 1, got 1.5"),
        (CEM, {"elites": 200}, "elites must be less than batch = 200, got 200"),
        (ICEM, {"elites": 51}, "elites must be at most batch / 2 = 50, got 51"),
        (ICEM, {"decay": 0.9}, "decay must be a finite number of at least 1"),
        (ICEM, {"beta": -1}, "beta must be a finite number from 0 to 10"),
        (MPPI, {"beta": 1000}, "beta must be a finite number from 0 to 10"),
        (ICEM, {"kept": "all"}, "kept must be a finite number from 0 to 1, got 'all'"),
        (MPPI, {"temperature": float("nan")}, "temperature must be a finite number"),
        (MPPI, {"temperature": float("inf")}, "temperature must be a finite number"),
    ],
)
def test_options_that_are_refused(
    pendulum: Any, planner_class: type[Planner], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        planner_class(pendulum, **options)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_the_spectrum_of_coloured_noise_has_the_slope_beta(beta: float) -> None:
    horizon = 128
    white = np.random.default_rng(0).standard_normal((2000, horizon))
    noise = filtered(white, np.sqrt(power_spectrum(beta, horizon)))
    assert noise.var(axis=0).mean() == pytest.approx(1, abs=0.03)
    power = (np.abs(np.fft.rfft(noise, axis=1)) ** 2).mean(axis=0)[1:]
    slope = np.polyfit(np.log(np.fft.rfftfreq(horizon)[1:]), np.log(power), 1)[0]
    assert slope == pytest.approx(-beta, abs=0.05)


@pytest.mark.parametrize("horizon", [1, 2, 5, 30])
def test_coloured_noise_of_any_horizon_has_variance_one(horizon: int) -> None:
    power = power_spectrum(1.5, horizon)
    impulse = np.zeros((1, horizon, 1))
    impulse[0, 0] = 1.0
    # The response to an impulse is the weight of each white sample in the noise.
    response = filtered(impulse, np.sqrt(power))
    assert (response**2).sum() == pytest.approx(1)


def test_shifted_plans() -> None:
    plans = np.arange(12.0).reshape(2, 3, 2)
    assert shifted(plans)[0].tolist() == [[2, 3], [4, 5], [4, 5]]
    assert shifted(plans[:, :1])[0].tolist() == [[0, 1]]


def test_kept_elites_fit_into_a_smaller_budget(pendulum: Any) -> None:
    planner = ICEM(pendulum, horizon=10, kept=1.0)
    state = pendulum.get_state()
    planner.plan(state, budget=5_000, seed=0)
    planner.advance()
    assert planner.plan(state, budget=20, seed=0).spent.transitions == 20
