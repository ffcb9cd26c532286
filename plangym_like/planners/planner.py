"""`Planner`: the interface of all search algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.plan import Plan, check_plan_env
from plangym_like.planners.progress_bar import ProgressBar
from plangym_like.planners.search import Progress, Search
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, check_seconds


class Planner(ABC):
    """Searches for good actions from a state of an environment.

    A planner only steps batches, so the environment's current state does not change. With the same
    seed and a budget in transitions, the plan is the same for any number of workers.

    To write a planner, implement `_search`.

    Parameters
    ----------
    env : PlanEnv

    Raises
    ------
    InputError
        `env` is not a `PlanEnv`.

    Examples
    --------
    >>> import plangym_like
    >>> class OneStep(Planner):
    ...     def _search(self, state, search):
    ...         assert search.has(2)  # it raises if the budget is too small
    ...         step = search.step_batch([0, 1], state)
    ...         best = [step.rewards.argmax()]
    ...         return search.plan(state, best, step.rewards[best], ended=step.terminateds[best])
    >>> env = plangym_like.make("CartPole-v1")
    >>> OneStep(env).plan(env.reset(seed=0).state, budget=2)
    Plan(score=1, 1 actions, ended=False, transitions=2)
    """

    def __init__(self, env: PlanEnv) -> None:
        check_plan_env(self.name, env)
        self.env = env

    def plan(
        self,
        state: Row | None = None,
        *,
        budget: int | None = None,
        seconds: float | None = None,
        seed: Any = None,
        progress: bool | Callable[[Progress], object] = False,
    ) -> Plan:
        """Search for a plan.

        Parameters
        ----------
        state : row, optional
            Where the plan starts; by default, the env's current state.
        budget : int, optional
            The largest number of transitions (see `Spent`).
        seconds : float, optional
            The time after which no new batch is stepped. With both limits, the search ends at the
            first one that it reaches.
        seed : int, sequence of int, SeedSequence or Generator, optional
            An argument for `numpy.random.default_rng`; by default, each search draws different
            numbers.
        progress : bool or callable
            ``True`` shows a progress bar if stderr is a terminal. A callable is called with a
            `Progress` after every batch; if it raises StopIteration, the search ends with the best
            plan so far.

        Returns
        -------
        Plan

        Raises
        ------
        InputError
            Neither `budget` nor `seconds` is given, the budget is too small for one batch, or an
            argument is invalid.
        StateError
            `state` is not a state of this environment.
        RewardError
            The environment returned a reward that is infinite or NaN.
        """
        if budget is None and seconds is None:
            raise InputError(
                "plan needs a budget in transitions, or seconds: give budget= or seconds="
            )
        if budget is not None:
            budget = as_count("budget", budget)
        if seconds is not None:
            check_seconds("seconds", seconds)
        start = checked_start(self.env, state)
        with ProgressBar(self.name, progress) as report:
            return self._search(start, Search(self.env, budget, seconds, seed, report))

    @property
    def name(self) -> str:
        """The name of the planner's class, for messages."""
        return type(self).__name__

    def advance(self) -> None:
        """Prepare the next search, after `Plan.next_action` of the last plan was played.

        The next search may then reuse results of the last one. Without this call, each search
        begins from scratch.
        """

    @abstractmethod
    def _search(self, state: Row, search: Search) -> Plan:
        """Search while ``search.has(n)`` allows n more transitions; return ``search.plan(...)``.

        Step every batch with `search`, and draw every random number from ``search.rng``.
        """


def checked_start(env: PlanEnv, state: Any) -> Row:
    """Return `state` as a row ``(state_nbytes,)``; by default, the env's current state."""
    return env.get_state() if state is None else env.layout.format.check_row(state)
