"""What holds for every planner: budgets, workers, replays, progress, and wrong options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from suite import TAXI

import plangym_like
from plangym_like import planners
from plangym_like.cli.planner_classes import options_of, planner_classes
from plangym_like.errors import InputError
from plangym_like.planners import Progress, play

# For each planner, an environment, a function that makes it, and the smallest budget.
PLANNERS: dict[str, tuple[str, Any, int]] = {
    "random": (TAXI, partial(planners.RandomShooting, horizon=10, batch=8), 10),
    "beam": (TAXI, partial(planners.BeamSearch, width=8), 6),
    "uct": (TAXI, planners.UCT, 11),
    "chance": (TAXI, partial(planners.UCT, outcomes=2), 11),
    "open loop": (TAXI, partial(planners.OpenLoopMCTS, dt=2), 20),
    "luck": ("FrozenLake-v1", partial(planners.OpenLoopMCTS, stochastic=True), 20),
    "puct": (TAXI, partial(planners.PUCT, rollout=5), 6),
    "iw": (TAXI, partial(planners.IW, batch=4), 6),
    "rollout iw": (TAXI, partial(planners.RolloutIW, batch=8), 1),
    "best first": (TAXI, partial(planners.BestFirst, batch=4), 6),
    "a star": (TAXI, partial(planners.AStar, batch=4), 6),
    "fractal": (TAXI, planners.FractalMonteCarlo, 1),
    "go-explore": (TAXI, planners.GoExplore, 1),
    "cem": ("Pendulum-v1", partial(planners.CEM, horizon=10, batch=20, elites=4), 20),
    "icem": ("Pendulum-v1", partial(planners.ICEM, horizon=10, batch=20, dt=2), 20),
    "mppi": ("Pendulum-v1", partial(planners.MPPI, horizon=10, batch=20), 20),
    "predictive": ("Pendulum-v1", partial(planners.PredictiveSampling, horizon=10), 20),
}


@pytest.fixture(scope="module", params=[TAXI, "FrozenLake-v1", "Pendulum-v1"])
def envs(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One environment without workers and one with two; tests try every planner for it."""
    name = request.param
    with plangym_like.make(name) as env, plangym_like.make(name, n_workers=2) as parallel:
        found = [(maker, least) for env_id, maker, least in PLANNERS.values() if env_id == name]
        yield env, parallel, found


def test_budgets_are_kept_and_plans_are_the_same_on_workers(envs: Any) -> None:
    env, parallel, found = envs
    start = env.reset(seed=1)  # with the mask of its info
    for maker, least in found:
        for budget in (least, 3 * least + 1, 700):
            plan, other = (maker(one).plan(start, budget=budget, seed=3) for one in (env, parallel))
            assert 0 < plan.spent.transitions <= budget
            assert 0 < plan.spent.seconds_in_env <= plan.spent.seconds
            assert len(plan) and plan.replay(env) == plan.score
            assert np.all(np.diff(plan.curve["score"]) >= 0)
            if len(plan.curve):
                assert plan.curve["score"][-1] == plan.score
            for name in ("actions", "dt", "rewards", "ended", "seeds"):
                np.testing.assert_equal(getattr(other, name), getattr(plan, name))
            assert other.spent.transitions == plan.spent.transitions
            assert np.array_equal(other.curve["score"], plan.curve["score"])
        if least > 1:
            with pytest.raises(InputError, match=f"budget of {least - 1} transitions is too small"):
                maker(env).plan(start, budget=least - 1)


def test_progress_ends_a_search(envs: Any) -> None:
    env, _, found = envs
    env.reset(seed=1)
    for maker, _ in found:
        calls = 0

        def end(progress: Progress) -> None:
            nonlocal calls
            calls += 1
            if calls >= 3:
                raise StopIteration

        plan = maker(env).plan(budget=10**9, seed=0, progress=end)
        # Only the mean is stepped after that, or deeper levels of a round with chance nodes.
        assert calls <= 8
        assert len(plan) and plan.replay(env) == plan.score
        calls = -3
        episode = play(maker(env), 10, budget=2_000, seed=0, progress=end)
        assert calls <= 8, "only the round that was under way is finished"
        assert 1 <= len(episode) < 6
        assert episode.replay(env) == episode.score


# A planner does not take a number for these.
FUNCTIONS = {
    *("cell_of", "cost", "evaluate", "features", "goal", "heuristic", "key", "legal", "observe"),
    *("reward", "terminal_value", "to_play"),
}


@pytest.mark.parametrize("name", planner_classes())
def test_options_that_are_refused(name: str) -> None:
    planner = planner_classes()[name]
    needed: Any = {"rollout": 5} if name == "puct" else {}
    is_continuous = issubclass(planner, planners.CEM.__mro__[1])
    with plangym_like.make("Pendulum-v1" if is_continuous else "FrozenLake-v1") as env:
        for option, default in options_of(planner).items():
            if option in FUNCTIONS:
                wrong, words = 3, f"{option} must be .*function"
            elif option == "variants":
                wrong, words = {"x": 1}, "variants must be a sequence of dicts"
            elif isinstance(default, bool) or option == "spline":
                continue
            elif isinstance(default, float):
                wrong, words = np.nan, f"{option} must be a finite number"
            else:
                wrong, words = -1, f"{option} must be a whole number of at least [01]"
            with pytest.raises(InputError, match=words):
                planner(env, **{**needed, option: wrong})


@pytest.mark.parametrize("name", planner_classes())
def test_action_spaces_that_are_refused(name: str) -> None:
    planner = planner_classes()[name]
    if name in ("beam-search", "random-shooting", "fractal-monte-carlo", "go-explore"):
        return  # they take any space that can be sampled
    is_continuous = issubclass(planner, planners.CEM.__mro__[1])
    words = "needs continuous actions.*use UCT" if is_continuous else "one by one.*use CEM"
    made = plangym_like.make("CartPole-v1" if is_continuous else "Pendulum-v1")
    with made as env, pytest.raises(InputError, match=f"{planner.__name__} .*{words}"):
        planner(env)


@pytest.mark.parametrize(
    ("planner", "options", "words"),
    [
        (planners.CEM, {"elites": 200}, "elites must be less than batch = 200, got 200"),
        (planners.ICEM, {"elites": 51}, "elites must be at most batch / 2 = 50, got 51"),
        (planners.MPPI, {"beta": 1000}, "beta must be a finite number from 0 to 10"),
        (planners.CEM, {"knots": 31}, "knots must be at least 2, and at most horizon = 30, got 31"),
        (planners.CEM, {"knots": 4, "spline": "x"}, "spline must be one of 'zero', 'linear', 'cu"),
    ],
)
def test_options_that_do_not_fit_together(planner: Any, options: Any, words: str) -> None:
    with plangym_like.make("Pendulum-v1") as env, pytest.raises(InputError, match=words):
        planner(env, **options)
