"""`Search`: steps an environment during a search, and counts the steps against a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError, RewardError
from plangym_like.planners.action_sets import as_plan
from plangym_like.planners.plan import CURVE, Plan, Spent
from plangym_like.results import BatchTransition, Rollout
from plangym_like.states.rows import Row, States


class Progress(NamedTuple):
    """The progress of a search.

    Attributes
    ----------
    done : float
        The part of the budget or of the time that is spent, whichever is larger, from 0 to 1.
    score : float
        The best score so far; NaN before there is one.
    spent : Spent
    note : str
        A note from the planner, such as the number of cells.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import RandomShooting
    >>> def stop_at_20(progress):
    ...     if progress.score >= 20:
    ...         raise StopIteration
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = RandomShooting(env).plan(state, budget=50_000, seed=0, progress=stop_at_20)
    >>> plan.score >= 20, plan.spent.transitions < 50_000
    (True, True)
    """

    done: float
    score: float
    spent: Spent
    note: str


class Search:
    """Steps the environment of a planner, and counts the cost.

    Parameters
    ----------
    env : PlanEnv
    budget : int, optional
        The largest number of transitions.
    seconds : float, optional
        The time after which no more batches are stepped.
    seed : int, sequence of int, SeedSequence or Generator, optional
    progress : callable, optional
        It is called with a `Progress` after every batch. If it raises StopIteration, `has` returns
        False from then on.

    Attributes
    ----------
    env : PlanEnv
    rng : numpy.random.Generator
        The source of all random numbers of the search.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> search = Search(env, budget=10, seconds=None, seed=0)
    >>> step = search.step_batch(search.rng.integers(2, size=8), state)
    >>> search.remaining, search.has(2), search.has(3), search.fit(64)
    (2, True, False, 2)
    """

    def __init__(
        self,
        env: PlanEnv,
        budget: int | None,
        seconds: float | None,
        seed: Any = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> None:
        self.env, self.rng = env, make_rng(seed)
        self._budget, self._seconds, self._progress = budget, seconds, progress
        self._begun = time.perf_counter()
        self._transitions = self._frames = 0
        self._seconds_in_env = 0.0
        self._curve: list[tuple[int, int, float, float]] = []
        self._note, self._stopped = "", False

    def has(self, transitions: int) -> bool:
        """Return whether the search may step this many more transitions.

        Raises
        ------
        InputError
            The first batch does not fit into the budget, so the search would find nothing.
        """
        if self._budget is not None and self._transitions + transitions > self._budget:
            if not self._transitions:
                raise InputError(
                    f"a budget of {self._budget} transitions is too small: the first batch of this "
                    f"planner has {transitions}; give more, or make its batches smaller"
                )
            return False
        if self._stopped:
            return False
        if self._seconds is None or not self._transitions:
            return True
        return time.perf_counter() - self._begun < self._seconds

    @property
    def remaining(self) -> int | None:
        """The number of transitions left in the budget; None if only the time is limited."""
        return None if self._budget is None else self._budget - self._transitions

    def fit(self, count: int, cost: int = 1) -> int:
        """Return how many of `count` items the budget allows, if each costs `cost` transitions.

        The result is at least 1, so that `has` decides whether the search ends.
        """
        remaining = self.remaining
        return count if remaining is None else max(1, min(count, remaining // cost))

    def step_batch(
        self, actions: Any, states: States, dt: Any = 1, *, seeds: Any = None
    ) -> BatchTransition:
        """Call `PlanEnv.step_batch`, and count its rows.

        Raises
        ------
        RewardError
            A reward is infinite or NaN.
        """
        begun = time.perf_counter()
        step = self.env.step_batch(actions, states, dt, seeds=seeds)
        self._count(begun, len(step.rewards), step.infos["n_step"], step.rewards)
        return step

    def rollout_batch(
        self,
        actions: Any,
        states: States,
        dt: Any = 1,
        *,
        seeds: Any = None,
        return_observations: bool = False,
    ) -> Rollout:
        """Call `PlanEnv.rollout_batch`, and count the actions up to the end of each episode.

        Raises
        ------
        RewardError
            A reward is infinite or NaN.
        """
        begun = time.perf_counter()
        rollout = self.env.rollout_batch(
            actions, states, dt, seeds=seeds, return_observations=return_observations
        )
        steps = int(lengths(rollout).sum())
        self._count(begun, steps, rollout.infos["n_step"], rollout.rewards)
        return rollout

    def _count(
        self,
        begun: float,
        transitions: int,
        frames: NDArray[np.int64],
        rewards: NDArray[np.float64],
    ) -> None:
        self._seconds_in_env += time.perf_counter() - begun
        finite = np.isfinite(rewards)
        if not finite.all():
            raise RewardError(
                f"{self.env.name} returned the reward {rewards[~finite][0]}, but planners can only "
                "compare finite rewards: replace it, for example with the wrapper "
                "gymnasium.wrappers.TransformReward(env, numpy.nan_to_num)"
            )
        self._transitions += transitions
        self._frames += int(frames.sum())
        if self._progress is not None:
            try:
                self._progress(self.progress())
            except StopIteration:
                self._stopped = True

    def report(self, score: float, note: str = "") -> None:
        """Record the score of the best plan so far; scores that are not higher are ignored.

        Minus infinity means that no plan has a score yet.
        """
        spent = self.spent()
        self._note = note
        if score > (self._curve[-1][3] if self._curve else -np.inf):
            self._curve.append((spent.transitions, spent.frames, spent.seconds, float(score)))

    def spent(self) -> Spent:
        """Return the cost so far."""
        seconds = time.perf_counter() - self._begun
        return Spent(self._transitions, self._frames, seconds, self._seconds_in_env)

    def progress(self) -> Progress:
        """Return the progress of the search."""
        spent = self.spent()
        parts = [0.0]
        if self._budget is not None:
            parts.append(spent.transitions / self._budget)
        if self._seconds is not None:
            parts.append(spent.seconds / self._seconds)
        score = self._curve[-1][3] if self._curve else np.nan
        return Progress(min(max(parts), 1.0), score, spent, self._note)

    def plan(
        self,
        state: Row,
        actions: Any,
        rewards: Any,
        dt: Any = 1,
        *,
        ended: bool,
        seeds: Any = None,
        **info: Any,
    ) -> Plan:
        """Return the result of the search.

        Parameters
        ----------
        state : row
            Where the plan starts.
        actions : sequence ``(T, *action_shape)``
        rewards : sequence ``(T,)``
        dt : int or sequence ``(T,)``
        ended : bool
        seeds : sequence ``(T,)``, optional
        **info
            `Plan.info`.
        """
        chosen = as_plan(self.env.action_space, actions)
        rewards, spent = np.array(rewards, np.float64), self.spent()
        return Plan(
            np.array(state),
            chosen,
            np.broadcast_to(np.asarray(dt, np.int64), len(chosen)).copy(),
            rewards,
            bool(ended),
            None if seeds is None else np.array(seeds, np.int64),
            spent,
            self._finished_curve(rewards, spent),
            info,
        )

    def _finished_curve(self, rewards: NDArray[np.float64], spent: Spent) -> NDArray[np.void]:
        """Return the curve of a search that has found a plan with these rewards."""
        curve = np.array([*self._curve, *self._curve[-1:]], CURVE)
        if len(curve):
            scores, exact = curve["score"], math.fsum(rewards)
            curve[-1] = (spent.transitions, spent.frames, spent.seconds, scores[-1])
            # Planners add up the same rewards in another order, with other rounding errors.
            if abs(scores[-1] - exact) <= 1e-9 * math.fsum(np.abs(rewards)):
                scores[scores >= min(scores[-1], exact)] = exact
        return curve


def make_rng(seed: Any) -> np.random.Generator:
    """Return ``numpy.random.default_rng(seed)``.

    Raises
    ------
    InputError
        `seed` is invalid.
    """
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise InputError(
            "seed must be a whole number of at least 0, a sequence of them, a SeedSequence or a "
            f"Generator, got {seed!r}"
        ) from error


def lengths(rollout: Rollout) -> NDArray[np.int64]:
    """Return how many actions of each row were stepped, ``(N,)``.

    These include the action that ended the episode; later actions are not stepped.
    """
    over = rollout.terminateds | rollout.truncateds
    ends: NDArray[np.int64] = np.where(over.any(axis=1), over.argmax(axis=1) + 1, over.shape[1])
    return ends
