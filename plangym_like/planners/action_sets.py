"""List the actions of an action space, return its bounds, and draw random actions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError

# The largest number of actions that planners try one by one.
_MOST_ACTIONS = 4096


def all_actions(env: PlanEnv, planner: str) -> NDArray[Any]:
    """Return every action ``(A, *action_shape)`` of a finite action space, in ascending order.

    Raises
    ------
    InputError
        The space is not finite, or has more than 4,096 actions; the message names `planner`.

    Examples
    --------
    >>> import plangym_like
    >>> all_actions(plangym_like.make("CartPole-v1"), "UCT")
    array([0, 1])
    """
    space, found = env.action_space, _ranges(env.action_space)
    if found is None:
        raise InputError(
            f"{planner} tries actions one by one, and needs a Discrete, MultiDiscrete or "
            f"MultiBinary action space, got {space}; for continuous actions use CEM, ICEM, MPPI or "
            "RandomShooting"
        )
    number = int(np.prod(found[1].astype(object)))
    if number > _MOST_ACTIONS:
        raise InputError(
            f"{planner} tries actions one by one, and {space} has {number:,} of them; at most "
            f"{_MOST_ACTIONS:,} are possible"
        )
    starts, sizes = (part.ravel().tolist() for part in found)
    ranges = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    actions = np.array(list(itertools.product(*ranges)), space.dtype)
    return actions.reshape(-1, *(space.shape or ()))


def _ranges(space: Space[Any]) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return the lowest value and the number of values of each part of a finite action.

    Both are ``(*action_shape)``. The result is None if the space is not finite.
    """
    if isinstance(space, Discrete):
        return np.array(space.start), np.array(space.n)
    if isinstance(space, MultiDiscrete):  # sums may be too large for the dtype of the space
        return space.start.astype(int), space.nvec.astype(int)
    if isinstance(space, MultiBinary):
        return np.zeros(space.shape, int), np.full(space.shape, 2)
    return None


def count_actions(space: Space[Any]) -> int | None:
    """Return the number of actions of a finite action space; None if there are too many to list.

    >>> count_actions(MultiDiscrete([2, 3]))
    6
    """
    found = _ranges(space)
    number = _MOST_ACTIONS + 1 if found is None else int(np.prod(found[1].astype(object)))
    return number if number <= _MOST_ACTIONS else None


def index_of(actions: NDArray[Any], action: Any) -> int:
    """Return the first place of `action` among `actions` ``(A, *action_shape)``; -1 if it is not.

    Examples
    --------
    >>> index_of(np.array([[0, 1], [1, 0]]), [1, 0])
    1
    """
    same = (actions == np.asarray(action)).reshape(len(actions), -1).all(axis=1)
    return int(same.argmax()) if same.any() else -1


def allowed(
    actions: NDArray[np.intp], legal: NDArray[np.bool_] | None, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return actions ``(N,)`` in which those that are not legal are replaced by random legal ones.

    If the actions were drawn uniformly from all, the results are uniform among the legal ones.

    >>> allowed(np.array([0, 1]), np.array([[True, True], [True, False]]), np.random.default_rng(0))
    array([0, 0])
    """
    if legal is None:
        return actions
    (wrong,) = (~legal[np.arange(len(actions)), actions]).nonzero()
    if not len(wrong):
        return actions
    counts = np.cumsum(legal[wrong], axis=1)
    places = rng.integers(counts[:, -1]) + 1
    replaced = actions.copy()
    replaced[wrong] = (counts >= places[:, None]).argmax(axis=1)
    return replaced


def bounds(env: PlanEnv, planner: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lowest and the highest action of a bounded box, each ``(*action_shape)``.

    Raises
    ------
    InputError
        The space is not a `Box` of floats, or is empty or not bounded; the message names `planner`.
    """
    space = env.action_space
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise InputError(
            f"{planner} needs continuous actions, a Box of floats, got {space}; for finite action "
            "spaces use UCT, BeamSearch, FractalMonteCarlo or RandomShooting"
        )
    if 0 in space.shape:
        raise InputError(f"{planner} needs actions that hold numbers, got {space}: nothing to plan")
    if not space.is_bounded():
        raise InputError(
            f"{planner} needs an action space with finite bounds, got {space}; a model without "
            "ctrlrange gets them by make_mujoco(..., control_range=(low, high))"
        )
    return space.low.astype(np.float64), space.high.astype(np.float64)


def as_plan(space: Space[Any], actions: Any) -> NDArray[Any]:
    """Return the actions of a plan as an array ``(T, *action_shape)``.

    As in batches, actions of a `Box` keep the dtype that ``numpy.asarray`` gives them, because an
    environment computes in the precision of its actions. Other actions get the dtype of the space.

    Examples
    --------
    >>> as_plan(Box(-1, 1, (1,)), np.array([[0.1], [0.2]])).dtype
    dtype('float64')
    """
    keeps = isinstance(space, Box) and len(actions) > 0
    array = np.asarray(actions, None if keeps else space.dtype)
    return array.reshape(-1, *(space.shape or ()))


class ActionSampler:
    """Draws uniform random actions of a finite or bounded action space.

    Parameters
    ----------
    env : PlanEnv
    planner : str
        The name of the planner, for error messages.

    Raises
    ------
    InputError
        The space is neither finite nor a bounded box of floats.
    """

    def __init__(self, env: PlanEnv, planner: str) -> None:
        space, finite = env.action_space, _ranges(env.action_space)
        self._dtype, self._shape = space.dtype, space.shape or ()
        self._is_box = isinstance(space, Box)
        if finite is not None:
            self._low, self._high = finite[0], finite[0] + finite[1]
        elif self._is_box:
            self._low, self._high = bounds(env, planner)
        else:
            raise InputError(
                f"{planner} needs a Discrete, MultiDiscrete, MultiBinary or Box action space, got "
                f"{space}"
            )

    def __call__(self, rng: np.random.Generator, *count: int) -> NDArray[Any]:
        """Return random actions ``(*count, *action_shape)``."""
        shape = (*count, *self._shape)
        if self._is_box:
            return rng.uniform(self._low, self._high, shape).astype(self._dtype)
        return rng.integers(self._low, self._high, shape, dtype=np.int64).astype(self._dtype)

    def among(
        self, actions: NDArray[Any], legal: NDArray[np.bool_], rng: np.random.Generator
    ) -> NDArray[Any]:
        """Return actions ``(N, *action_shape)``, of which those that are not legal are drawn again.

        `legal` is ``(N, A)``, in the order of `all_actions`; A is 0 for boxes, which have no masks.
        """
        if legal.all():
            return actions
        sizes = (self._high - self._low).ravel()
        offsets = (actions.astype(np.int64) - self._low).reshape(len(actions), -1)
        numbers = np.ravel_multi_index(tuple(offsets.T), tuple(np.atleast_1d(sizes)))
        places = np.unravel_index(allowed(numbers, legal, rng), tuple(np.atleast_1d(sizes)))
        drawn = np.stack(places, axis=1).reshape(actions.shape) + self._low
        result: NDArray[Any] = drawn.astype(self._dtype)
        return result
