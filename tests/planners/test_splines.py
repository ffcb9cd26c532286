"""Plans that are splines, and predictive sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import plangym_like
from plangym_like.errors import InputError
from plangym_like.planners import CEM, ICEM, MPPI, Planner, PredictiveSampling, play
from plangym_like.planners.continuous_plans import KINDS, Spline

PLANNERS = {
    "CEM": lambda env, **more: CEM(env, horizon=15, batch=30, elites=5, **more),
    "ICEM": lambda env, **more: ICEM(env, horizon=15, batch=30, elites=5, **more),
    "MPPI": lambda env, **more: MPPI(env, horizon=15, batch=30, **more),
    "PredictiveSampling": lambda env, **more: PredictiveSampling(env, 15, batch=30, **more),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_spline_passes_through_its_knots(kind: str) -> None:
    knots = np.random.default_rng(0).normal(size=(3, 4, 2))
    actions = Spline(kind, 4, 10).actions(knots)
    assert actions.shape == (3, 10, 2)
    if kind == "zero":
        np.testing.assert_array_equal(
            actions[:, [0, 2, 3, 4, 5, 7, 8, 9]], knots[:, [0, 0, 1, 1, 2, 2, 3, 3]]
        )
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
    full = np.random.default_rng(0).normal(size=(2, 6))
    np.testing.assert_allclose(Spline(kind, 6, 6).shifted(full), np.c_[full[:, 1:], full[:, -1:]])


def test_held_knots_move_towards_the_next() -> None:
    spline = Spline("zero", 3, 9)
    knots = np.array([[0.0, 3.0, 6.0]])
    np.testing.assert_allclose(spline.shifted(knots), [[1.0, 4.0, 6.0]])
    for _ in range(30):
        knots = spline.shifted(knots)
    np.testing.assert_allclose(knots, 6.0, atol=1e-2)


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_each_planner_are_splines(name: str, kind: str) -> None:
    env = plangym_like.make("Pendulum-v1")
    state = env.reset(seed=0).state
    planner = PLANNERS[name](env, knots=4, spline=kind)
    plan = planner.plan(state, budget=3_000, seed=0)
    assert plan.replay(env) == plan.score
    assert plan.actions.shape == (15, 1)
    assert (abs(plan.actions) <= 2).all()
    if kind != "cubic":  # actions of cubic splines are clipped
        spline = Spline(kind, 4, 15)
        fitted = np.linalg.lstsq(spline._actions, plan.actions, rcond=None)[0]
        np.testing.assert_allclose(spline.actions(fitted[None])[0], plan.actions, atol=1e-5)
    planner.advance()
    again = planner.plan(env.step(plan.actions[0], state=state).state, budget=3_000, seed=1)
    assert again.score > -300


@pytest.mark.parametrize("name", PLANNERS)
def test_a_knot_for_each_action_gives_the_plans_without_a_spline(name: str) -> None:
    env = plangym_like.make("Pendulum-v1")
    state = env.reset(seed=0).state
    plans = [
        PLANNERS[name](env, **options).plan(state, budget=2_000, seed=0)
        for options in ({}, {"knots": 15, "spline": "linear"})
    ]
    np.testing.assert_allclose(plans[0].actions, plans[1].actions, atol=1e-6)


def test_predictive_sampling_swings_up_a_pendulum() -> None:
    env = plangym_like.make("Pendulum-v1")
    state = env.reset(seed=3).state
    planner = PredictiveSampling(env, horizon=25, batch=40, knots=6)
    episode = play(planner, 120, state, budget=1_100, seed=0)
    assert episode.rewards[-30:].mean() > -0.1
    still = play(PredictiveSampling(env, horizon=25, batch=1), 120, state, budget=60, seed=0)
    assert episode.score > still.score + 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"knots": 1}, "knots must be at least 2, and at most horizon = 15, got 1"),
        ({"knots": 16}, "knots must be at least 2, and at most horizon = 15, got 16"),
        ({"knots": 2.5}, "knots must be"),
        ({"knots": 4, "spline": "quintic"}, "spline must be one of 'zero', 'linear', 'cubic'"),
    ],
)
def test_invalid_splines_are_errors(options: dict[str, Any], message: str) -> None:
    env = plangym_like.make("Pendulum-v1")
    with pytest.raises(InputError, match=message):
        PLANNERS["MPPI"](env, **options)


def test_a_search_with_knots_can_be_saved(tmp_path: Any) -> None:
    env = plangym_like.make("Pendulum-v1")
    state = env.reset(seed=0).state
    whole = PLANNERS["MPPI"](env, knots=5).plan(state, budget=3_000, seed=0)
    planner = PLANNERS["MPPI"](env, knots=5)
    planner.plan(state, budget=1_500, seed=0)
    planner.save(tmp_path / "search")
    resumed = Planner.load(tmp_path / "search", env).resume(budget=3_000)
    np.testing.assert_array_equal(resumed.actions, whole.actions)
