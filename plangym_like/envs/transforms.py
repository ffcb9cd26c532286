"""`TransformKernel`: steps blocks of rows through wrappers that only change one value of a step.

Gymnasium's `RewardWrapper`, `ObservationWrapper` and `ActionWrapper` call one method of a subclass
in each step: ``reward``, ``observation`` or ``action``. The environment inside such wrappers is
stepped by its own kernel, many rows at once, and the methods are called for one row after the
other. Meanwhile, wrappers have no access to the environment, and their state must not change. A
block in which a method breaks these rules, or raises an error, is stepped by the wrappers
themselves.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, Rows, given_states
from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import as_reward
from plangym_like.envs.kernel import (
    ArrayKernel,
    Kernel,
    NotVectorisableError,
    Outcomes,
    States,
    state_kept,
    trial_actions,
)
from plangym_like.envs.reaching import reach_environment
from plangym_like.envs.wrapping import method_of
from plangym_like.states.rows import HEADER_NBYTES, Row
from plangym_like.support.arguments import name_of

logger = logging.getLogger("plangym_like")
_WORD = 8


def checked_kernel(sim: Any, transforms: Sequence[Any], kind: str) -> Kernel | None:
    """Return a kernel that gives the same results as `sim`; ``None`` if there is none.

    Parameters
    ----------
    sim : GymnasiumSimulator
        The simulator. Its `make_kernel` is called for the environment without wrappers.
    transforms : sequence of gymnasium.Wrapper
        The wrappers that change a value of a step, innermost first; see `transforms_of`.
    kind : str
        The dtype of actions, a type character.
    """
    try:
        make = partial(_transform_kernel, sim, transforms) if transforms else sim.make_kernel
        kernel: Kernel | None = make(kind)
        if kernel is None or not kernel.disagreement(sim, kind):
            return kernel
    except Exception as error:
        # It was written for other shapes or values than those of this environment.
        logger.info("%s is stepped row by row: %r", name_of(sim.name), error)
    return None


def _transform_kernel(sim: Any, transforms: Sequence[Any], kind: str) -> Kernel | None:
    if not isinstance(sim.base.action_space, Box | Discrete):
        return None
    if not all(map(spaces.is_leaf, (sim.base.observation_space, sim.observation_space))):
        return None
    if reach_environment(transforms, sim.base):
        return None
    action = owned(trial_actions(sim.action_space, kind)[0])
    with state_kept(sim):
        sim.env.reset(seed=0)
        for change in _methods(reversed(transforms), "action"):
            action = change(action)
        obs, reward = sim.base.step(action)[:2]
    action_kind = np.asarray(action).dtype.char
    inner = sim.make_kernel(action_kind)
    if inner is None or not inner.use_for_frames():
        return None
    return TransformKernel(sim, inner, transforms, (action_kind, type(obs), type(reward)))


@dataclass(slots=True)
class InnerRows(States):
    """N rows of the environment inside the wrappers.

    ``numbers`` ``(N,)`` are the numbers of the rows in their batch. ``rows`` ``(N, nbytes)`` are
    the states, ``obs`` ``(N, *shape)`` the last observations, and ``infos`` the last infos by name,
    each ``(N, ...)``.
    """

    numbers: NDArray[np.intp]
    rows: Row
    obs: NDArray[Any]
    infos: dict[str, NDArray[Any]]

    def take(self, rows: NDArray[np.intp]) -> InnerRows:
        infos = {name: column[rows] for name, column in self.infos.items()}
        return InnerRows(self.numbers[rows], self.rows[rows], self.obs[rows], infos)

    def put(self, rows: NDArray[np.intp], part: InnerRows) -> None:
        self.rows[rows], self.obs[rows] = part.rows, part.obs
        for name, column in self.infos.items():
            column[rows] = part.infos[name]


class TransformKernel(ArrayKernel[InnerRows]):
    """Steps blocks of rows with another kernel, and changes actions and results as wrappers do.

    Parameters
    ----------
    sim : GymnasiumSimulator
        The simulator of the chain.
    inner : Kernel
        A kernel of the environment inside; see `Kernel.use_for_frames`. A payload of its rows has
        no wrappers' state, except the number of steps of the time limit at the end, if there is
        one.
    transforms : sequence of gymnasium.Wrapper
        The wrappers, innermost first.
    kinds : tuple
        The type character of the actions that reach the environment, and the types of its
        observations and rewards, on which the results of methods may depend.
    """

    # If one row cannot be stepped in a block, up to this many rows are stepped one by one.
    most = 1024

    def __init__(
        self, sim: Any, inner: Kernel, transforms: Sequence[Any], kinds: tuple[str, type, type]
    ) -> None:
        super().__init__(sim)
        self._time_limit = None  # the kernel inside counts the steps
        self._sim, self._inner, self._transforms = sim, inner, transforms
        self._action_kind, self._obs_type, self._reward_type = kinds
        self._stand_ins = [_NoEnv(each.env) for each in transforms]
        # Where in a row the wrappers' state begins: the number of steps, if there is a time limit,
        # which is part of the inner rows; and the state of the wrappers, which is not.
        self._begin = HEADER_NBYTES + sim.wrappers_at
        self._end = self._begin + _WORD * (sim.time_limit is not None)
        self._stop = self._begin + sim.memory.nbytes
        # The batch that is stepped, and its first row.
        self._batch: Any = None
        self._first = 0

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``, each from its own state."""
        self._run(super().step, rows, first, last)

    def rollout(self, rows: Rows, first: int, last: int) -> None:
        """Step each of the rows ``first:last`` through its T actions, or until its episode ends."""
        self._run(super().rollout, rows, first, last)

    def _run(self, step: Callable[..., None], rows: Rows, first: int, last: int) -> None:
        states = given_states(rows.inputs, slice(first, last))
        try:
            self._check_stand_ins()
            self._batch, self._first = rows, first
            self._restore_wrappers(states)
            with self._without_environments():
                step(rows, first, last)
            self._check_stand_ins()
            self._check_wrappers(states)
        except Exception as error:
            # Which row raises what is shown by the wrappers' own steps.
            raise NotVectorisableError from error

    # Wrappers

    def _check_stand_ins(self) -> None:
        """Raise `NotVectorisableError` if a method has ever used the environment."""
        for stand_in in self._stand_ins:
            stand_in.check()

    def _restore_wrappers(self, states: Row) -> None:
        """Restore the wrappers; all but the step count must be the same in all of `states`."""
        kept = states[:, self._end : self._stop].view(np.int64)
        if np.count_nonzero(kept != kept[0]):
            raise NotVectorisableError
        if self._stop > self._end:
            self._sim.memory.write(states[0, self._begin : self._stop])

    def _check_wrappers(self, states: Row) -> None:
        """Raise `NotVectorisableError` if a method has changed the state of its wrapper."""
        if self._stop == self._end:
            return
        now: Row = np.zeros(self._stop - self._begin, np.uint8)
        self._sim.memory.read(now)
        if not np.array_equal(now, states[0, self._begin : self._stop]):
            raise NotVectorisableError("a method changes the state of its wrapper")

    @contextlib.contextmanager
    def _without_environments(self) -> Iterator[None]:
        """Replace the environment in each wrapper with an object that only has its spaces."""
        envs = [each.env for each in self._transforms]
        try:
            for wrapper, stand_in in zip(self._transforms, self._stand_ins, strict=True):
                vars(wrapper)["env"] = stand_in
            yield
        finally:
            for wrapper, env in zip(self._transforms, envs, strict=True):
                vars(wrapper)["env"] = env

    # Blocks

    def load(self, given: Row, count: int) -> InnerRows:
        space = self._sim.base.observation_space
        rows = np.empty((count, self._end), np.uint8)
        rows[:] = given[:, : self._end]
        infos = {
            name: np.empty((count, *column.shape[1:]), column.dtype)
            for name, column in self._batch.columns.items()
        }
        numbers = np.arange(self._first, self._first + count)
        return InnerRows(numbers, rows, np.empty((count, *space.shape), space.dtype), infos)

    def frame(self, states: InnerRows, actions: NDArray[Any], out: Outcomes) -> None:
        numbers, count = states.numbers.tolist(), len(actions)
        changed = self._changed_actions(numbers, actions)
        # The kernel does not read from the arrays that it writes to.
        given = states.rows.copy()
        self._inner.step(
            Rows(
                Inputs(count, 0, changed, given, 1, None),
                states.rows,
                states.obs,
                out.rewards,
                out.terminated,
                out.truncated,
                np.empty(count, np.int64),
                states.infos,
                None,
            ),
            0,
            count,
        )
        out.rewards[:] = self._changed_rewards(numbers, out.rewards)

    def _changed_actions(self, numbers: list[int], actions: NDArray[Any]) -> NDArray[Any]:
        """Return the actions that reach the environment inside, ``(N, ...)``."""
        changes, cursor = _methods(reversed(self._transforms), "action"), self._batch.cursor
        if not changes:
            return actions
        changed = []
        for number, action in zip(numbers, actions, strict=True):
            cursor[0], action = number, owned(action)
            for change in changes:
                action = change(action)
            changed.append(action)
        found, space = np.array(changed), self._sim.base.action_space
        if isinstance(space, Discrete):
            is_valid = (found >= space.start) & (found < space.start + space.n)
        else:
            is_valid = np.isfinite(found)
        form = found.shape[1:], found.dtype.char
        if form != (space.shape, self._action_kind) or not is_valid.all():
            raise NotVectorisableError
        return found

    def _changed_rewards(
        self, numbers: list[int], given: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        kind, cursor = self._reward_type, self._batch.cursor
        changes = _methods(self._transforms, "reward")
        if not changes:
            return given
        every: Any = given.astype(kind) if issubclass(kind, np.generic) else given.tolist()
        rewards = []
        for number, reward in zip(numbers, every, strict=True):
            cursor[0] = number
            reward = kind(reward)
            for change in changes:
                reward = change(reward)
            rewards.append(float(reward) if isinstance(reward, float) else as_reward(reward))
        return np.array(rewards) + 0.0  # without the sign of zeros, as sums of rewards

    def observe(self, states: InnerRows, out: NDArray[Any]) -> None:
        changes = _methods(self._transforms, "observation")
        if not changes:
            out[...] = states.obs
            return
        kind, space = self._obs_type, self._sim.observation_space
        for row, given in enumerate(states.obs):
            self._batch.cursor[0] = states.numbers[row]
            obs = given.copy() if kind is np.ndarray else kind(given)
            for change in changes:
                obs = change(obs)
            spaces.put(space, out, row, obs)

    def store(self, states: InnerRows, fresh: Row) -> None:
        fresh[:, : self._end] = states.rows

    def infos(self, states: InnerRows) -> Mapping[str, NDArray[Any]]:
        return states.infos


class _NoEnv:
    """Takes the place of an environment in a wrapper; it has the spaces, and nothing else."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.action_space, self.observation_space = env.action_space, env.observation_space
        self._used = ""

    def __getattr__(self, name: str) -> Any:
        self._used = name
        self.check()

    def check(self) -> None:
        """Raise `NotVectorisableError` if a method has used the environment, now or before."""
        if self._used:
            raise NotVectorisableError(f"a wrapper uses {self._used} of its environment")


def _methods(wrappers: Iterable[Any], name: str) -> list[Callable[[Any], Any]]:
    """Return the methods `name` of those of `wrappers` that have it, in the same order."""
    return [getattr(each, name) for each in wrappers if method_of(each) == name]
