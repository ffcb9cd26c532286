"""CEM, iCEM, MPPI and predictive sampling: known optima, budgets, noise, splines, objectives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from usual import first_of

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import CEM, ICEM, MPPI, PredictiveSampling, RandomShooting, play
from plangym_like.planners.continuous_plans import (
    KINDS,
    Objective,
    Spline,
    filtered,
    power_spectrum,
)

PLANNERS = (CEM, ICEM, MPPI, PredictiveSampling)
ALL = pytest.mark.parametrize("planner", PLANNERS)
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


@pytest.fixture(scope="module")
def pendulum() -> Iterator[Any]:
    with plangym_like.make("Pendulum-v1") as env:
        env.reset(seed=0)
        yield env


@pytest.mark.parametrize(
    ("planner", "options", "near"),
    [
        (CEM, {"std": 1.0}, 0.002),
        (ICEM, {"std": 1.0, "elites": 20}, 0.002),
        (MPPI, {"std": 0.2}, 0.05),
        (PredictiveSampling, {"std": 0.1}, 0.1),
    ],
)
def test_the_optimum_of_a_quadratic_is_found(
    planner: Any, options: dict[str, Any], near: float
) -> None:
    with plangym_like.make(Quadratic) as env:
        env.reset(seed=0)
        plan = planner(env, horizon=1, batch=100, **options).plan(budget=2000, seed=0)
        assert plan.actions == pytest.approx(GOAL[None], abs=near)
        assert plan.info["mean"] == pytest.approx(GOAL[None], abs=near)
        assert plan.ended and len(plan) == 1
        if planner in (CEM, ICEM):  # the search ends when its distribution is a point
            long = planner(env, horizon=1, batch=60, **options).plan(budget=1_000_000, seed=0)
            assert long.spent.transitions < 10_000


# Dynamic programming on a grid of 361 angles and 321 velocities gives -301.9 from this start.
@pytest.mark.full
@pytest.mark.parametrize(
    ("planner", "options", "at_least"),
    [
        (CEM, {"horizon": 30, "batch": 64}, -400),
        (ICEM, {"horizon": 25, "batch": 64, "std": 1.0, "dt": 2}, -320),
        (MPPI, {"horizon": 30, "batch": 64}, -400),
    ],
)
def test_a_hanging_pendulum_is_swung_up(
    pendulum: Any, planner: Any, options: dict[str, Any], at_least: float
) -> None:
    made, hanging = planner(pendulum, **options), pendulum.make_state(x=[np.pi, 0.0])
    budget = 5 * 64 * made.horizon
    episode = play(made, 200 // made.dt, hanging, budget=budget, seed=0)
    assert -301 > episode.score > at_least
    assert episode.rewards[-20:].min() > -0.2
    assert episode.replay(pendulum) == episode.score


def test_predictive_sampling_swings_up_a_pendulum(pendulum: Any) -> None:
    state = pendulum.reset(seed=3).state
    planner = PredictiveSampling(pendulum, horizon=25, batch=40, knots=6)
    episode = play(planner, 80, state, budget=1_100, seed=0)
    assert episode.rewards[-10:].mean() > -0.1


@ALL
@pytest.mark.parametrize(("horizon", "budget"), first_of([(100, 2_000), (100, 9_000), (10, 2_000)]))
def test_what_short_episodes_leave_of_the_budget_is_spent(
    planner: Any, horizon: int, budget: int
) -> None:
    with plangym_like.make(Falling) as env:
        env.reset(seed=0)
        made = planner(env, horizon=horizon, std=1.0)
        plan = made.plan(budget=budget, seed=0)
        # Two plans of full length must fit, and one more batch of the usual length.
        assert budget - 2 * horizon - 5 * made.batch < plan.spent.transitions <= budget
        assert plan.score > -0.1 and plan.replay(env) == plan.score


@ALL
def test_a_last_batch_is_made_to_fit(pendulum: Any, planner: Any) -> None:
    made = planner(pendulum, horizon=10, batch=50)
    spent = made.plan(budget=10 * (50 * 7 + 1 + 40), seed=0).spent
    # iCEM makes batches smaller: 50, 40, 32, 25, and so on until all are 20.
    assert spent.transitions > 10 * (50 * 7 + 1 + 40 - (10 if planner is ICEM else 1))


@ALL
def test_a_search_begins_where_the_last_one_ended_only_after_advance(
    pendulum: Any, planner: Any
) -> None:
    state, made = pendulum.make_state(x=[np.pi, 0.0]), planner(pendulum, horizon=10, batch=32)
    means = []
    for advances in (False, False, True, False):
        if advances:
            made.advance()
        means.append(made.plan(state, budget=1000, seed=0).info["mean"])
    assert np.array_equal(means[0], means[1]) and np.array_equal(means[0], means[3])
    assert not np.array_equal(means[0], means[2])


def test_kept_elites_fit_into_a_smaller_budget(pendulum: Any) -> None:
    planner, state = ICEM(pendulum, horizon=10, kept=1.0), pendulum.get_state()
    planner.plan(state, budget=5_000, seed=0)
    planner.advance()
    assert planner.plan(state, budget=20, seed=0).spent.transitions == 20


DOUBLE_INTEGRATOR = """
<mujoco>
  <option timestep="0.04" gravity="0 0 0"/>
  <worldbody>
    <body><joint name="slide" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/></body>
  </worldbody>
  <actuator><motor joint="slide" ctrlrange="-1 1" ctrllimited="true"/></actuator>
</mujoco>
"""


def test_a_double_integrator_is_brought_to_rest_within_2_percent_of_the_least_time() -> None:
    pytest.importorskip("mujoco")
    with plangym_like.make_mujoco(DOUBLE_INTEGRATOR, reward=lambda data: 0 * data.time) as env:
        # From 1 m away, the least time is 2 s, 50 steps: full force, and full force back.
        start = env.make_state(env.reset(seed=0).state, qpos=[-1.0], qvel=[0.0])
        planner = CEM(
            env,
            horizon=51,
            batch=100,
            elites=10,
            std=1.0,
            alpha=0.5,
            knots=2,
            spline="zero",
            terminal_value=lambda seen: -(seen**2).sum(axis=1),
        )
        plan = planner.plan(start, budget=60_000, seed=0)
        end = env.rollout_batch(plan.actions[None], start).states[0]
        fields = env.view_state(end)
        assert abs(fields["qpos"][0]) < 5e-3 and abs(fields["qvel"][0]) < 5e-3


# Noise


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_the_spectrum_of_coloured_noise_has_the_slope_beta(beta: float) -> None:
    horizon = 128
    white = np.random.default_rng(0).standard_normal((1000, horizon))
    noise = filtered(white, np.sqrt(power_spectrum(beta, horizon)))
    power = (np.abs(np.fft.rfft(noise, axis=1)) ** 2).mean(axis=0)[1:]
    slope = np.polyfit(np.log(np.fft.rfftfreq(horizon)[1:]), np.log(power), 1)[0]
    assert slope == pytest.approx(-beta, abs=0.05)
    for length in (1, 2, 5, 30):
        impulse = np.zeros((1, length, 1))
        impulse[0, 0] = 1.0
        # The response to an impulse is the weight of each white sample in the noise.
        response = filtered(impulse, np.sqrt(power_spectrum(beta, length)))
        assert (response**2).sum() == pytest.approx(1)


# MPPI's weights and control cost, by hand


def test_weights_with_a_control_cost(pendulum: Any) -> None:
    # Half the range of a torque is 2, so Σ = (0.25 * 2)**2 = 0.25 for each of both actions.
    options: dict[str, Any] = {"std": 0.25, "temperature": 2.0, "beta": 0.0, "relative": False}
    mean = np.array([[1.0], [-0.5]])
    noise = np.array([[[0.0], [0.0]], [[0.1], [0.2]], [[-0.3], [0.4]]])
    # u^T Σ^-1 ε = 4 * (1 * ε_0 - 0.5 * ε_1) = 0, 0, -2; the costs are half of it times λ = 2.
    for alpha, costs in ((0.5, [-1.0, -2.0, -3.0]), (1.0, [-1.0, -2.0, -1.0])):
        planner = MPPI(pendulum, horizon=2, alpha=alpha, **options)
        weights = planner.weights(np.array([1.0, 2.0, 1.0]), mean, noise)
        by_hand = [math.exp(-(cost - min(costs)) / 2.0) for cost in costs]
        assert weights == pytest.approx(np.array(by_hand) / sum(by_hand))


def test_the_control_cost_of_coloured_noise_is_that_of_its_covariance(pendulum: Any) -> None:
    horizon = 5
    planner = MPPI(
        pendulum, horizon=horizon, std=0.5, temperature=1.0, alpha=0.0, beta=1.0, relative=False
    )
    filters = filtered(np.eye(horizon), np.sqrt(planner._power))
    covariance = filters.T @ filters  # of ε in time; the std of a torque is 1
    rng = np.random.default_rng(0)
    mean, noise = rng.normal(size=(horizon, 1)), rng.normal(size=(4, horizon, 1))
    costs = noise[..., 0] @ np.linalg.inv(covariance) @ mean[:, 0]
    by_hand = np.exp(costs.min() - costs)
    weights = planner.weights(np.zeros(4), mean, noise)
    assert weights == pytest.approx(by_hand / by_hand.sum())


def test_a_relative_temperature_does_not_depend_on_the_scale_of_rewards(pendulum: Any) -> None:
    planner = MPPI(pendulum, horizon=2)
    mean, noise = np.ones((2, 1)), np.zeros((3, 2, 1))
    returns = np.array([1.0, 3.0, 4.0])
    weights = planner.weights(returns, mean, noise)
    assert weights == pytest.approx(planner.weights(1000 * returns, mean, noise))
    assert planner.weights(np.ones(3), mean, noise) == pytest.approx([1 / 3] * 3)


# Splines


@pytest.mark.parametrize("kind", KINDS)
def test_a_spline_passes_through_its_knots(kind: str) -> None:
    knots = np.random.default_rng(0).normal(size=(3, 4, 2))
    actions = Spline(kind, 4, 10).actions(knots)
    if kind == "zero":
        expected = knots[:, [0, 0, 1, 1, 2, 2, 3, 3]]
        np.testing.assert_array_equal(actions[:, [0, 2, 3, 4, 5, 7, 8, 9]], expected)
    else:
        np.testing.assert_allclose(actions[:, ::3], knots)


def test_cubic_splines_reproduce_parabolas_between_inner_knots() -> None:
    def parabola(times: Any) -> Any:
        return 2 * times**2 - times + 1

    knots = parabola(np.arange(0.0, 13.0, 3.0))[None, :, None]
    actions = Spline("cubic", 5, 13).actions(knots)[0, :, 0]
    np.testing.assert_allclose(actions[3:10], parabola(np.arange(3.0, 10.0)))
    line = Spline("cubic", 5, 13).actions(np.arange(5.0)[None, :, None])[0, :, 0]
    np.testing.assert_allclose(line, np.arange(13) / 3)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_a_shifted_line_is_the_line_one_action_later(kind: str) -> None:
    spline = Spline(kind, 4, 10)
    later = spline.actions(spline.shifted(np.arange(4.0)[None]))[0]
    exact = 7 if kind == "linear" else 4  # the end is held, which bends a cubic spline before it
    np.testing.assert_allclose(later[:exact], (np.arange(exact) + 1) / 3)
    assert later[-1] == pytest.approx(3.0)
    held = Spline("zero", 3, 9).shifted(np.array([[0.0, 3.0, 6.0]]))
    np.testing.assert_allclose(held, [[1.0, 4.0, 6.0]])


@pytest.mark.parametrize("planner", [*PLANNERS, RandomShooting])
def test_plans_of_each_planner_are_splines(pendulum: Any, planner: Any) -> None:
    state = pendulum.reset(seed=0).state

    def planned(**options: Any) -> Any:
        return planner(pendulum, horizon=15, batch=30, **options).plan(state, budget=2_000, seed=0)

    for kind in KINDS:
        plan = planned(knots=4, spline=kind)
        assert plan.replay(pendulum) == plan.score
        assert plan.actions.shape == (15, 1) and (abs(plan.actions) <= 2).all()
        if kind != "cubic":  # actions of cubic splines are clipped
            spline = Spline(kind, 4, 15)
            fitted = np.linalg.lstsq(spline._actions, plan.actions, rcond=None)[0]
            np.testing.assert_allclose(spline.actions(fitted[None])[0], plan.actions, atol=1e-5)
    if planner is not RandomShooting:  # with a knot for each action, plans are those without
        np.testing.assert_allclose(planned().actions, planned(knots=15).actions, atol=1e-6)


# What is maximised


def _rightward(observations: Any, actions: Any) -> Any:
    return actions[..., 0] + 0 * observations[..., 0]


def _upright(observations: Any) -> Any:
    return 100.0 * observations[..., 0]


@pytest.mark.parametrize("planner", [*PLANNERS, RandomShooting])
def test_a_reward_takes_the_place_of_the_environment_s(pendulum: Any, planner: Any) -> None:
    state, options = pendulum.reset(seed=0).state, {"horizon": 8, "knots": 2}
    plan = planner(pendulum, reward=_rightward, **options).plan(state, budget=10_000, seed=0)
    assert plan.actions.mean() > 1.6
    assert plan.replay(pendulum) == plan.score
    usual = planner(pendulum, **options).plan(state, budget=10_000, seed=0)
    assert usual.actions.mean() < 0 and usual.score > plan.score


def test_the_value_of_the_last_state_makes_a_short_plan_far_sighted(pendulum: Any) -> None:
    state = pendulum.reset(seed=0).state
    heights, far = [], {"terminal_value": _upright}
    for options in ({}, far, {**far, "discount": 0.1}):
        plan = CEM(pendulum, horizon=6, batch=60, **options).plan(state, budget=10_000, seed=0)
        end = pendulum.rollout_batch(plan.actions[None], state, return_observations=True)
        heights.append(end.observations[0, -1, 0])
    assert heights[1] > heights[0] + 0.005
    assert heights[2] < heights[1]


def test_the_value_of_a_plan_is_that_of_the_formula() -> None:
    with plangym_like.make("CartPole-v1") as env:
        state = env.reset(seed=0).state
        plans = np.random.default_rng(0).integers(2, size=(20, 30))
        rollout = env.rollout_batch(plans, state, return_observations=True)
        assert 0 < rollout.terminateds[:, -1].sum() < 20

        def reward(observations: Any, actions: Any) -> Any:
            return observations[..., 2] + actions

        def terminal_value(observations: Any) -> Any:  # NaN where it does not count
            return np.where(abs(observations[:, 2]) > 0.2095, np.nan, 7.0 + observations[:, 0])

        found = Objective(0.9, reward, terminal_value).values(plans, rollout)
        for row in range(20):
            at, total = state, 0.0
            for time in range(30):
                step = env.step(plans[row, time], state=at)
                at = step.state
                total += 0.9**time * (step.obs[2] + plans[row, time])
                if step.terminated:
                    break
            else:
                total += 0.9**30 * (7.0 + step.obs[0])
            assert found[row] == pytest.approx(total, rel=1e-6)


def test_a_time_limit_leaves_the_value_of_the_last_observation() -> None:
    with plangym_like.make("Pendulum-v1", max_episode_steps=5) as env:
        rollout = env.rollout_batch(
            np.zeros((2, 9, 1)), env.reset(seed=0).state, return_observations=True
        )
    goal = Objective(0.5, terminal_value=lambda obs: 32.0 + obs[:, 0])
    rewards = rollout.rewards[0, :5] @ 0.5 ** np.arange(5)
    last = rollout.observations[0, 4, 0]
    found = goal.values(np.zeros((2, 9, 1)), rollout)
    np.testing.assert_allclose(found, rewards + 0.5**5 * (32.0 + last), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": lambda obs, actions: obs[:, 0, 0]}, "reward must return numbers of shape"),
        ({"terminal_value": lambda obs: obs}, "terminal_value must return numbers of shape"),
        ({"terminal_value": lambda obs: np.nan * obs[:, 0]}, "infinite or NaN"),
    ],
)
def test_functions_that_are_wrong(pendulum: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MPPI(pendulum, horizon=5, **options).plan(budget=1_000, seed=0)
