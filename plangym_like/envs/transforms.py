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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import ActionWrapper, ObservationWrapper, RewardWrapper
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, Rows
from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import as_reward
from plangym_like.envs.kernel import Kernel, NotVectorisableError, state_kept, trial_actions
from plangym_like.snapshots.known_wrappers import visible
from plangym_like.states.rows import HEADER_NBYTES, Row, padded

# The largest number of frames of one row, and of all rows that are stepped together.
_MOST_FRAMES = 4096
_WORD = 8
_METHODS: dict[Any, str] = {
    RewardWrapper: "reward",
    ObservationWrapper: "observation",
    ActionWrapper: "action",
}


def method_of(wrapper: Any) -> str:
    """Return the method by which `wrapper` changes a value of a step, its only part in steps.

    Return ``""`` if its class, or the wrapper itself, has a ``step`` or ``reset`` of its own.

    >>> from gymnasium.wrappers import ClipReward, NormalizeReward
    >>> env = gymnasium.make("CartPole-v1")
    >>> method_of(ClipReward(env, 0, 1)), method_of(NormalizeReward(env))
    ('reward', '')
    """
    kind: Any = type(wrapper)
    for base, name in _METHODS.items():
        if isinstance(wrapper, base):
            inherits = kind.step is base.step and kind.reset is base.reset
            return name if inherits and not vars(wrapper).keys() & {"step", "reset"} else ""
    return ""


def transforms_of(env: gymnasium.Env[Any, Any]) -> list[Any] | None:
    """Return the wrappers of the chain `env` that change a value of a step, innermost first.

    Return ``None`` if another wrapper takes part in steps, except one `TimeLimit`.
    """
    wrappers = visible(env)[::-1]
    transforms = [each for each in wrappers if type(each) is not TimeLimit]
    if len(wrappers) - len(transforms) > 1 or not all(map(method_of, transforms)):
        return None
    return transforms


def transform_kernel(sim: Any, transforms: Sequence[Any], kind: str) -> Kernel | None:
    """Return a kernel for a chain of wrappers, or ``None`` if there is none.

    Parameters
    ----------
    sim : GymnasiumSimulator
        The simulator of the chain. Its `make_kernel` is called for the environment inside.
    transforms : sequence of gymnasium.Wrapper
        The wrappers that change a value of a step, innermost first; see `transforms_of`.
    kind : str
        The dtype of actions, a type character.
    """
    inside = sim.base.action_space
    if not isinstance(inside, Box | Discrete) or not spaces.is_leaf(sim.base.observation_space):
        return None
    action = owned(trial_actions(sim.action_space, kind)[0])
    for change in _methods(reversed(transforms), "action"):
        action = change(action)
    with state_kept(sim):
        sim.env.reset(seed=0)
        obs, reward = sim.base.step(action)[:2]
    action_kind = np.asarray(action).dtype.char
    inner = sim.make_kernel(action_kind)
    if inner is None or not inner.use_for_frames():
        return None
    return TransformKernel(sim, inner, transforms, (action_kind, type(obs), type(reward)))


class TransformKernel(Kernel):
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
        self._sim, self._inner, self._transforms = sim, inner, transforms
        self._action_kind, self._obs_type, self._reward_type = kinds
        self.plays_on = inner.plays_on
        self._stand_ins = [_NoEnv(each.env) for each in transforms]
        self._space: Any = sim.base.observation_space
        self._end = HEADER_NBYTES + sim.wrappers_at

    def sample_states(self, sim: Any) -> Sequence[Row] | None:
        return self._inner.sample_states(sim)

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``, each from its own state."""
        dt, every = rows.inputs.dt, np.arange(first, last)
        for held in [dt] if isinstance(dt, int) else np.unique(dt[first:last]).tolist():
            indices = every if isinstance(dt, int) else every[dt[first:last] == held]
            frames = held * self._sim.frameskip
            size = _MOST_FRAMES // (frames * max(1, rows.inputs.horizon))
            if not size:
                raise NotVectorisableError
            for begin in range(0, len(indices), size):
                self._run(rows, indices[begin : begin + size].tolist(), frames)

    # In rollouts, each row is stepped through its T actions, or until its episode ends.
    rollout = step

    def _run(self, rows: Rows, indices: list[int], frames: int) -> None:
        """Step the rows `indices`; each action is held for `frames` frames."""
        given, count = rows.inputs.states, len(indices)
        # A slice makes no copies.
        is_slice = indices[-1] - indices[0] == count - 1
        at = slice(indices[0], indices[-1] + 1) if is_slice else np.array(indices)
        states = given if len(given) == 1 else given[at]
        try:
            elapsed_at = self._restore_wrappers(states)
            with self._without_environments():
                plans = self._inner_actions(rows, indices, at)
                inner = self._inner_rows(rows, at, plans, states, frames, elapsed_at)
                inner.cursor = _Cursor(rows.cursor, indices)  # type: ignore[assignment]
                if not self._inner.takes(inner):
                    raise NotVectorisableError
                step = self._inner.rollout if inner.inputs.horizon else self._inner.step
                step(inner, 0, count)
                totals = self._rewards(rows, indices, inner, frames)
                self._write_observations(rows, indices, at, inner, frames)
            self._check_wrappers(states)
        except Exception as error:
            # Which row raises what is shown by the wrappers' own steps.
            raise NotVectorisableError from error
        rows.rewards[at] = np.array(totals).reshape(rows.rewards[at].shape)
        self._write(rows, at, states, inner, elapsed_at)

    # Wrappers

    def _restore_wrappers(self, states: Row) -> int:
        """Restore the wrappers, which must be in the same state in all of `states`.

        Return where in a row the number of steps of the time limit is, which alone may differ; 0 if
        rows do not hold one.
        """
        memory, limit, end = self._sim.memory, self._sim.time_limit, self._end
        if memory.time_limit is not None or not memory.nbytes:
            return end if memory.nbytes else 0
        used = int(states[0, end : end + _WORD].view(np.int64)[0])
        saved = states[:, end : end + padded(_WORD + used)]
        memory.write(states[0, end : end + memory.nbytes])
        elapsed_at = 0
        if limit is not None:
            # With another number of steps, only the bytes of this number are different.
            steps = limit._elapsed_steps
            limit._elapsed_steps = ~steps
            other = self._wrappers_state()
            limit._elapsed_steps = steps
            place = int(np.argmax(saved[0] != other[: saved.shape[1]]))
            saved = saved.copy()
            saved[:, place : place + _WORD] = 0
            elapsed_at = end + place
        words = saved.view(np.int64)
        if np.count_nonzero(words != words[0]):
            raise NotVectorisableError
        return elapsed_at

    def _check_wrappers(self, states: Row) -> None:
        """Raise `NotVectorisableError` if a method has changed the state of its wrapper."""
        memory, end = self._sim.memory, self._end
        if memory.time_limit is not None or not memory.nbytes:
            return
        if not np.array_equal(self._wrappers_state(), states[0, end : end + memory.nbytes]):
            raise NotVectorisableError("a method changes the state of its wrapper")

    def _wrappers_state(self) -> Row:
        state = np.zeros(self._sim.memory.nbytes, np.uint8)
        self._sim.memory.read(state)
        return state

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

    # The environment inside

    def _inner_actions(self, rows: Rows, indices: list[int], at: Any) -> NDArray[Any]:
        """Return the actions of some rows for the environment inside, ``(N, T, ...)``."""
        plans: NDArray[Any] = rows.inputs.actions[at]
        if not rows.inputs.horizon:
            plans = plans[:, None]
        changes = _methods(reversed(self._transforms), "action")
        if not changes:
            return plans
        changed = []
        for index, plan in zip(indices, plans, strict=True):
            rows.cursor[0] = index
            for action in plan:
                action = owned(action)
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
        return found.reshape(*plans.shape[:2], *space.shape)

    def _inner_rows(
        self,
        rows: Rows,
        at: Any,
        actions: NDArray[Any],
        states: Row,
        frames: int,
        elapsed_at: int,
    ) -> Rows:
        """Return rows of the environment inside for some rows; several frames are a rollout."""
        inputs, count, end = rows.inputs, len(actions), self._end
        given = np.empty((len(states), end + _WORD * bool(elapsed_at)), np.uint8)
        given[:, :end] = states[:, :end]
        if elapsed_at:
            given[:, end:] = states[:, elapsed_at : elapsed_at + _WORD]
        is_rollout = bool(inputs.horizon) or frames > 1
        plans = actions.repeat(frames, axis=1) if is_rollout else actions[:, 0]
        lead = plans.shape[:2] if is_rollout else (count,)
        seeds = None if inputs.seeds is None else inputs.seeds[at]
        is_seen, flags = rows.observations is not None, np.empty((2, *lead), bool)
        return Rows(
            Inputs(count, plans.shape[1] if is_rollout else 0, plans, given, 1, seeds),
            None if rows.next_states is None else np.empty((count, given.shape[1]), np.uint8),
            np.empty((*lead, *self._space.shape), self._space.dtype) if is_seen else None,
            np.empty(lead),
            flags[0],
            flags[1],
            np.empty(count, np.int64),
            {
                name: np.empty((count, *column.shape[1:]), column.dtype)
                for name, column in rows.columns.items()
            },
            None,
        )

    # Results

    def _rewards(
        self, rows: Rows, indices: list[int], inner: Rows, frames: int
    ) -> list[float]:
        """Return the rewards of some rows, as the wrappers change them, summed for each action."""
        kind, changes = self._reward_type, _methods(self._transforms, "reward")
        given, cursor = inner.rewards.ravel(), rows.cursor
        every: Any = given.astype(kind) if issubclass(kind, np.generic) else given.tolist()
        rewards = list(every) if kind is float else list(map(kind, every))
        totals, length = [], frames * max(1, rows.inputs.horizon)
        stops = range(frames, length + 1, frames)
        for row, (index, ran) in enumerate(zip(indices, inner.n_step.tolist(), strict=True)):
            cursor[0], first = index, row * length
            for stop in stops:
                total = 0.0
                # After the end of an episode, actions are held for no frames.
                for reward in rewards[first + stop - frames : first + min(stop, ran)]:
                    for change in changes:
                        reward = change(reward)
                    total += float(reward) if isinstance(reward, float) else as_reward(reward)
                totals.append(total)
        return totals

    def _write_observations(
        self, rows: Rows, indices: list[int], at: Any, inner: Rows, frames: int
    ) -> None:
        """Write the last observation of each action, as the wrappers change it."""
        if rows.observations is None or inner.observations is None:
            return
        # After the end of an episode, a rollout repeats its last observation.
        seen = inner.observations.reshape(-1, *self._space.shape)[frames - 1 :: frames]
        changes, horizon = _methods(self._transforms, "observation"), rows.inputs.horizon
        if not changes:
            rows.observations[at] = seen.reshape(rows.observations[at].shape)
            return
        kind, space = self._obs_type, self._sim.observation_space
        for number, given in enumerate(seen):
            row, time = divmod(number, max(1, horizon))
            rows.cursor[0] = index = indices[row]
            obs = given.copy() if kind is np.ndarray else kind(given)
            for change in changes:
                obs = change(obs)
            spaces.put(space, rows.observations, (index, time) if horizon else index, obs)

    def _write(
        self, rows: Rows, at: Any, states: Row, inner: Rows, elapsed_at: int
    ) -> None:
        """Write all results of the rows `at` that wrappers do not change."""
        flags = (rows.terminateds, inner.terminateds), (rows.truncateds, inner.truncateds)
        for array, part in flags:
            # Flags remain true after the end of an episode.
            array[at] = part.reshape(*array[at].shape, -1)[..., -1]
        rows.n_step[at] = inner.n_step
        for name, values in rows.columns.items():
            values[at] = inner.columns[name]
        if rows.next_states is not None and inner.next_states is not None:
            rows.next_states[at, : self._end] = inner.next_states[:, : self._end]
            rows.next_states[at, self._end :] = states[:, self._end :]
            if elapsed_at:
                place = slice(elapsed_at, elapsed_at + _WORD)
                rows.next_states[at, place] = inner.next_states[:, self._end :]


class _NoEnv:
    """Takes the place of an environment in a wrapper; it has the spaces, and nothing else."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.action_space, self.observation_space = env.action_space, env.observation_space

    def __getattr__(self, name: str) -> Any:
        raise NotVectorisableError(f"a method of a wrapper uses {name} of the environment")


class _Cursor:
    """The cursor of the rows `indices` of a batch, for a kernel that numbers them from 0."""

    def __init__(self, cursor: NDArray[np.int64], indices: list[int]) -> None:
        self._cursor, self._indices = cursor, indices
        self._row = 0

    def __getitem__(self, place: int) -> int:
        return self._row

    def __setitem__(self, place: int, row: int) -> None:
        self._row = row
        self._cursor[0] = self._indices[row]


def _methods(wrappers: Iterator[Any] | Sequence[Any], name: str) -> list[Callable[[Any], Any]]:
    """Return the methods `name` of those of `wrappers` that have it, in the same order."""
    return [getattr(each, name) for each in wrappers if method_of(each) == name]
