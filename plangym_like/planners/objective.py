"""`Objective`: what planners of continuous actions maximise; by default, the sum of rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plangym_like.errors import InputError
from plangym_like.planners.nodes import Floats
from plangym_like.planners.search import lengths
from plangym_like.results import Rollout
from plangym_like.support.arguments import as_number

Reward = Callable[[Any, NDArray[Any]], ArrayLike]
TerminalValue = Callable[[Any], ArrayLike]


class Objective:
    """The value of a plan: the discounted sum of its rewards, and the value of its last state.

    ::

        sum over t of discount**t * reward[t]  +  discount**T * terminal_value

    Here, t counts actions, whatever their `dt`.

    Parameters
    ----------
    discount : float
        From 0 to 1.
    reward : callable, optional
        ``reward(observations, actions)`` takes the place of the environment's rewards. It gets
        ``(N, T, *obs_shape)``, what was observed after each action, and the actions
        ``(N, T, *action_shape)``, and returns ``(N, T)``: one number for each action, however long
        it is held. Numbers after the end of an episode have no effect.
    terminal_value : callable, optional
        ``terminal_value(observations)`` gets the last observation of each plan,
        ``(N, *obs_shape)``, and returns its value ``(N,)``. Plans whose episode was terminated get
        none; if a time limit ends an episode, its last observation counts.

    Attributes
    ----------
    is_score : bool
        Whether the value is the sum of the environment's rewards, `Plan.score`.
    needs_observations : bool

    Notes
    -----
    If it is not the sum of rewards, `Plan.curve` has the end of the search only.

    Raises
    ------
    InputError
        An argument is invalid; or, from `values`, a function returns another shape, or NaN.
    """

    def __init__(
        self,
        discount: float = 1.0,
        reward: Reward | None = None,
        terminal_value: TerminalValue | None = None,
    ) -> None:
        for name, function in (("reward", reward), ("terminal_value", terminal_value)):
            if function is not None and not callable(function):
                raise InputError(f"{name} must be a function, got {function!r}")
        self.discount = as_number("discount", discount, 0.0, 1.0)
        self.reward, self.terminal_value = reward, terminal_value
        self.needs_observations = reward is not None or terminal_value is not None
        self.is_score = self.discount == 1.0 and not self.needs_observations

    def values(self, actions: NDArray[Any], rollout: Rollout) -> Floats:
        """Return the value ``(N,)`` of each plan; `actions` is ``(N, T, *action_shape)``."""
        if self.is_score:
            total: Floats = rollout.rewards.sum(axis=1)
            return total
        count, horizon = rollout.rewards.shape
        steps, rewards = lengths(rollout), rollout.rewards
        if self.reward is not None:
            given = self.reward(rollout.observations, actions)
            played = np.arange(horizon) < steps[:, None]
            rewards = _checked("reward", given, (count, horizon), played)
        # NumPy adds up each row in the same order, whatever the number of rows.
        values: Floats = (rewards * self.discount ** np.arange(horizon)).sum(axis=1)
        if self.terminal_value is not None:
            last = self.terminal_value(_last(rollout.observations, steps - 1))
            goes_on = ~rollout.terminateds[:, -1]
            values += self.discount**steps * _checked("terminal_value", last, (count,), goes_on)
        return values


def _last(observations: Any, at: NDArray[np.int64]) -> Any:
    """Return the observation of each row at its time in `at`; dicts and tuples keep their form."""
    if isinstance(observations, dict):
        return {name: _last(part, at) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_last(part, at) for part in observations)
    return observations[np.arange(len(at)), at]


def _checked(
    name: str, given: ArrayLike, shape: tuple[int, ...], counts: NDArray[np.bool_]
) -> Floats:
    """Return what a function gave, with 0 where it does not count."""
    found = np.asarray(given)
    if found.shape != shape or found.dtype.kind not in "fiub":
        raise InputError(
            f"{name} must return numbers of shape {shape}; it returned {found.dtype} of shape "
            f"{found.shape}"
        )
    found = np.where(counts, found, 0.0)
    if not np.isfinite(found).all():
        raise InputError(f"{name} returned a value that is infinite or NaN")
    return found.astype(np.float64)
