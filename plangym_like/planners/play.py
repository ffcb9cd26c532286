"""`play`: plan, take the next action, plan again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import as_plan
from plangym_like.planners.games import Starts
from plangym_like.planners.plan import CURVE, Plan, Spent
from plangym_like.planners.planner import Planner, ProgressBar
from plangym_like.planners.search import Progress, make_rng
from plangym_like.results import ResetResult, Transition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count

# What the plan of an episode tells of each search.
_OF_ROOTS = ("visits", "policy", "mask", "value", "player")


def play(
    planner: Planner,
    steps: int,
    state: Row | ResetResult | Transition | None = None,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    seed: Any = None,
    progress: bool | Callable[[Progress], object] = False,
) -> Plan:
    """Play an episode in closed loop: each action is the `Plan.next_action` of a new plan.

    Parameters
    ----------
    planner : Planner
    steps : int
        The largest number of actions. The episode may end earlier.
    state : row, ResetResult or Transition, optional
        Where to start; by default, the env's current state, which does not change.
    budget, seconds : optional
        The limits of each search; see `Planner.plan`.
    seed : int, sequence of int, SeedSequence or Generator, optional
        The seeds of the searches are spawned from it. A SeedSequence or Generator spawns different
        seeds in each call.
    progress : bool or callable
        As in `Planner.plan`, for the whole episode: a callable is called after every batch and
        after every step, with the score of the episode so far. If it raises StopIteration, the
        current search ends, and the action of its best plan is the last one that is played.

    Returns
    -------
    Plan
        The actions played, and the cost of all searches. The curve is the score of the episode so
        far; unlike the curve of a search, it may fall. The score counts all rewards, whoever earned
        them. With planners that grow trees, ``info`` holds what a learner needs of each root:
        ``visits``, ``policy`` and ``mask``, each ``(T, A)``, and ``value`` and ``player``, each
        ``(T,)``.

    Raises
    ------
    InputError
        As in `Planner.plan`; or no seeds can be spawned from `seed`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import RandomShooting, play
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> play(RandomShooting(env, horizon=10), steps=50, budget=500, seed=0).score
    50.0
    """
    if not isinstance(planner, Planner):
        raise InputError(f"play needs a planner, such as UCT(env), got {planner!r}")
    steps, env = as_count("steps", steps), planner.env
    starts = Starts.of(env, state)
    start = starts.states[0]
    rng = make_rng(seed)
    total, score, ended, stopped = Spent(), 0.0, False, False
    moves: list[tuple[Any, int, float]] = []
    roots: list[dict[str, Any]] = []
    curve: list[tuple[int, int, float, float]] = []
    with ProgressBar(f"{planner.name}, {steps} steps", progress) as report:

        def watch(search: Progress) -> None:
            """Report the progress of the episode, given the progress of the current search."""
            nonlocal stopped
            done, note = (len(moves) + search.done) / steps, f"step {len(moves) + 1}"
            try:
                assert report is not None
                report(Progress(done, score, total + search.spent, note))
            except StopIteration:
                stopped = True
                raise

        for step in range(steps):
            if moves:
                planner.advance()
            plan = planner.plan(
                starts,
                budget=budget,
                seconds=seconds,
                seed=_spawned(rng),
                progress=False if report is None else watch,
            )
            action, dt = np.asarray(plan.next_action), int(plan.dt[0])
            result = env.step_batch(action[None], starts.states, dt=dt)
            starts = Starts(result.states, result.obs, result.infos)
            reward = float(result.rewards[0])
            roots.append(plan.info)
            total += plan.spent
            score += reward
            moves.append((action, dt, reward))
            curve.append((total.transitions, total.frames, total.seconds, score))
            ended = bool(result.terminateds[0] or result.truncateds[0])
            if report is not None and not stopped:
                try:
                    report(Progress((step + 1) / steps, score, total, f"step {step + 1}"))
                except StopIteration:
                    stopped = True
            if ended or stopped:
                break
    return Plan(
        start,
        *_columns(env, moves),
        ended,
        None,
        total,
        np.array(curve, CURVE),
        {name: np.array([one[name] for one in roots]) for name in _OF_ROOTS if name in roots[0]},
    )


def _columns(env: PlanEnv, moves: list[tuple[Any, int, float]]) -> tuple[Any, Any, Any]:
    """Return the actions, how long each was held, and its reward."""
    actions, held, rewards = zip(*moves, strict=True)
    played = as_plan(env.action_space, actions)
    return played, np.array(held, np.int64), np.array(rewards, np.float64)


def _spawned(rng: np.random.Generator) -> np.random.Generator:
    """Return a new generator with a seed spawned from `rng`."""
    try:
        return rng.spawn(1)[0]
    except TypeError as error:
        raise InputError(
            "play spawns a seed for each search, but the given seed cannot spawn any "
            f"({error}): give a whole number, or numpy.random.default_rng(number)"
        ) from error
