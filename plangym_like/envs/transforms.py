"""`TransformKernel`: steps blocks of rows through wrappers that only change one value of a step.

The environment inside the wrappers is stepped by its own kernel, many rows at once. The wrappers'
methods (``reward``, ``observation`` or ``action``) are called for one row after the other. The
results are those of the wrappers' own ``step`` if each method depends only on its argument and on
the attributes of its wrapper, and changes nothing. `Reach` decides from the code whether this is
so. The code may still change arrays and lists, which is noticed in each block, and
`TransformKernel.disagreement` compares results. Rows that fail, and rows in which a method raises
an error, are stepped by the wrappers themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, Rows
from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import as_reward
from plangym_like.envs.kernel import Kernel, NotVectorisableError, trial_actions
from plangym_like.envs.wrapper_methods import Reach, method_of
from plangym_like.states.rows import HEADER_NBYTES, Row, padded

# The largest number of frames of one row, and of all rows that are stepped together.
_MOST_FRAMES = 4096
_WORD = 8
Change = Callable[[Any], Any]


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

    Raises
    ------
    NotVectorisableError
        A method does not qualify; see `Reach`.
    """
    inside = sim.base.action_space
    if not isinstance(inside, Box | Discrete) or not spaces.is_leaf(sim.base.observation_space):
        return None
    if sim.exactness != "exact":
        return None
    reach = Reach(transforms, sim.base)
    action = owned(trial_actions(sim.action_space, kind)[0])
    for change in _action_changes(transforms):
        action = change(action)
    inner = sim.make_kernel(np.asarray(action).dtype.char)
    if inner is None or not inner.use_for_frames():
        return None
    return TransformKernel(sim, inner, transforms, reach)


def _action_changes(transforms: Sequence[Any]) -> list[Change]:
    """Return the methods that change actions, those of the outermost wrapper first."""
    return [each.action for each in reversed(transforms) if method_of(each) == "action"]


class _ChangedValueError(Exception):
    """A method has changed something that it can reach."""


class _Cursor:
    """The cursor of the rows `at` of a batch, for a kernel that numbers them from 0.

    Parameters
    ----------
    cursor : array ``(1,)``
        The cursor of the batch.
    at : sequence of int
    """

    def __init__(self, cursor: NDArray[np.int64], at: Sequence[int]) -> None:
        self._cursor, self._at = cursor, at
        self._row = 0

    def __getitem__(self, place: int) -> int:
        return self._row

    def __setitem__(self, place: int, row: int) -> None:
        self._row = row
        self._cursor[0] = self._at[row]


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
    reach : Reach
        What the wrappers' methods can reach.
    """

    # If one row cannot be stepped in a block, up to this many rows are stepped one by one.
    most = 1024
    # The forms of actions and observations of the environment inside, and the type of its rewards.
    _action_form: tuple[Any, ...]
    _obs_form: tuple[Any, ...]
    _reward_type: Any

    def __init__(self, sim: Any, inner: Kernel, transforms: Sequence[Any], reach: Reach) -> None:
        self._sim, self._inner, self._reach = sim, inner, reach
        self.plays_on, self.beyond = inner.plays_on, inner.beyond
        self._action_changes = _action_changes(transforms)
        # Whether it is a reward that a method changes, and the method.
        self._changes = [
            (method_of(each) == "reward", getattr(each, method_of(each)))
            for each in transforms
            if method_of(each) != "action"
        ]
        self._changes_observations = not all(is_reward for is_reward, _ in self._changes)
        self._space: Any = sim.base.observation_space
        self._end = HEADER_NBYTES + sim.wrappers_at
        # The last result of `_results`.
        self._kept: dict[str, Any] = {}
        # Whether a method has changed something that it can reach.
        self._is_refuted = False

    def takes(self, rows: Rows) -> bool:
        return not self._is_refuted and super().takes(rows)

    def sample_states(self, sim: Any) -> Sequence[Row] | None:
        return self._inner.sample_states(sim)

    def disagreement(self, sim: Any, kind: str) -> str:
        saved, seed = np.zeros(sim.payload_nbytes, np.uint8), sim.base._np_random_seed
        sim.read(saved)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                reason = self._learn_forms(sim, kind)
        finally:
            sim.write(saved)
            sim.base._np_random_seed = seed
        return reason or super().disagreement(sim, kind)

    def _learn_forms(self, sim: Any, kind: str) -> str:
        """Find out which types of values pass between the wrappers and the environment inside.

        Return why the kernel cannot be used, or ``""``. The result of a method may depend on the
        type of its argument, so the types must be the same in all steps.
        """
        starts = self.sample_states(sim)
        if starts is None:
            sim.env.reset(seed=0)
        forms = set()
        for index, given in enumerate(trial_actions(sim.action_space, kind, beyond=self.beyond)):
            if starts is not None:
                sim.write(starts[index])
            action = given
            for change in self._action_changes:
                action = change(action)
            form = _form(action)[:3]
            obs, reward = sim.base.step(action)[:2]
            forms.add((form, _form(obs), type(reward)))
        if len(forms) > 1:
            return "rewards, observations or actions have several types"
        ((action_form, obs_form, reward_type),) = forms
        space = self._space
        if obs_form[0] is np.ndarray and obs_form[1:3] != (np.dtype(space.dtype), space.shape):
            return "observations have another form than their space"
        if obs_form[0] is None or action_form[0] is None:
            return "observations or actions are not arrays or numbers"
        if not issubclass(reward_type, float | int | np.floating | np.integer):
            return "rewards are not numbers"
        self._action_form, self._obs_form, self._reward_type = action_form, obs_form, reward_type
        return ""

    # Blocks

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``, each from its own state."""
        dt = rows.inputs.dt
        for held in [dt] if isinstance(dt, int) else np.unique(dt[first:last]).tolist():
            every: Sequence[int] = range(first, last)
            if not isinstance(dt, int):
                every = (first + np.flatnonzero(dt[first:last] == held)).tolist()
            frames = held * self._sim.frameskip
            size = _MOST_FRAMES // (frames * max(1, rows.inputs.horizon))
            if not size:
                raise NotVectorisableError
            for begin in range(0, len(every), size):
                self._run(rows, every[begin : begin + size], frames)

    # In rollouts, each row is stepped through its T actions, or until its episode ends.
    rollout = step

    def _run(self, rows: Rows, indices: Sequence[int], frames: int) -> None:
        """Step the rows `indices`; each action is held for `frames` frames."""
        inputs, at = rows.inputs, _place_of(indices)
        states = inputs.states if len(inputs.states) == 1 else inputs.states[at]
        try:
            elapsed_at = self._load_wrappers(states)
            self._reach.begin()
            inner = self._inner_rows(rows, indices, states, frames, elapsed_at)
            if not self._inner.takes(inner):
                raise NotVectorisableError
            step = self._inner.rollout if inner.inputs.horizon else self._inner.step
            step(inner, 0, len(indices))
            rewards, observations = self._changed_results(rows, indices, inner, frames)
        except _ChangedValueError as error:
            self._is_refuted = True
            raise NotVectorisableError from error
        except (Exception, SystemExit) as error:
            # Which row raises what is shown by the wrappers' own steps.
            raise NotVectorisableError from error
        self._write(rows, at, states, inner, elapsed_at)
        rows.rewards[at] = rewards
        if rows.observations is not None:
            space = self._sim.observation_space
            pairs = spaces.flatten(space, rows.observations), spaces.flatten(space, observations)
            for array, part in zip(*pairs, strict=True):
                array[at] = part

    def _load_wrappers(self, states: Row) -> int:
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
            other = np.zeros(memory.nbytes, np.uint8)
            limit._elapsed_steps = ~steps
            memory.read(other)
            limit._elapsed_steps = steps
            place = int(np.argmax(saved[0] != other[: saved.shape[1]]))
            saved = saved.copy()
            saved[:, place : place + _WORD] = 0
            elapsed_at = end + place
        words = saved.view(np.int64)
        if np.count_nonzero(words != words[0]):
            raise NotVectorisableError
        return elapsed_at

    def _inner_rows(
        self, rows: Rows, indices: Sequence[int], states: Row, frames: int, elapsed_at: int
    ) -> Rows:
        """Return rows of the environment inside for some rows; several frames are a rollout."""
        inputs, count, end, at = rows.inputs, len(indices), self._end, _place_of(indices)
        given = np.empty((len(states), end + _WORD * bool(elapsed_at)), np.uint8)
        given[:, :end] = states[:, :end]
        if elapsed_at:
            given[:, end:] = states[:, elapsed_at : elapsed_at + _WORD]
        actions = self._inner_actions(rows, indices)
        if frames > 1:
            actions = actions.repeat(frames, axis=1)
        horizon = actions.shape[1] if inputs.horizon or frames > 1 else 0
        seeds = None if inputs.seeds is None else inputs.seeds[at]
        plans = actions if horizon else actions[:, 0]
        is_seen = rows.observations is not None or self._changes_observations
        lead = (count, horizon) if horizon else (count,)
        found = self._results(lead, given.shape[1], rows.columns)
        rewards, terminateds, truncateds, n_step = found["outcomes"]
        return Rows(
            Inputs(count, horizon, plans, given, 1, seeds),
            None if rows.next_states is None else found["states"],
            found["observations"] if is_seen else None,
            rewards,
            terminateds,
            truncateds,
            n_step,
            found["columns"],
            None,
            _Cursor(rows.cursor, indices),  # type: ignore[arg-type]
        )

    def _results(
        self, lead: tuple[int, ...], nbytes: int, columns: dict[str, NDArray[Any]]
    ) -> dict[str, Any]:
        """Return arrays for results of rows of the environment inside.

        The arrays of the last call are used again if they have the same shapes.
        """
        shape, count = (lead, nbytes, len(columns)), lead[0]
        if self._kept.get("shape") != shape:
            flags = np.empty((2, *lead), bool)
            self._kept = {
                "shape": shape,
                "states": np.empty((count, nbytes), np.uint8),
                "observations": np.empty((*lead, *self._space.shape), self._space.dtype),
                "outcomes": (np.empty(lead), *flags, np.empty(count, np.int64)),
                "columns": {
                    name: np.empty((count, *column.shape[1:]), column.dtype)
                    for name, column in columns.items()
                },
            }
        return self._kept

    def _inner_actions(self, rows: Rows, indices: Sequence[int]) -> NDArray[Any]:
        """Return the actions of some rows for the environment inside, ``(N, T, ...)``."""
        actions = rows.inputs.actions[_place_of(indices)]
        plans: NDArray[Any] = actions if rows.inputs.horizon else actions[:, None]
        if not self._action_changes:
            return plans
        count, horizon = plans.shape[:2]
        changed, is_unchanged = [], self._reach.is_unchanged
        for index, plan in zip(indices, plans, strict=True):
            rows.cursor[0] = index
            for action in plan:
                action = owned(action)
                for change in self._action_changes:
                    action = change(action)
                    if not is_unchanged():
                        raise _ChangedValueError
                if _form(action)[:3] != self._action_form:
                    raise NotVectorisableError
                changed.append(action)
        found = np.array(changed).reshape(count, horizon, *np.shape(changed[0]))
        space = self._sim.base.action_space
        if isinstance(space, Discrete):
            is_valid = (found >= space.start) & (found < space.start + space.n)
        else:
            is_valid = np.isfinite(found)
        if found.shape[2:] != space.shape or not is_valid.all():
            raise NotVectorisableError
        return found

    def _changed_results(
        self, rows: Rows, indices: Sequence[int], inner: Rows, frames: int
    ) -> tuple[NDArray[np.float64], Any]:
        """Return the rewards and observations of some rows, as the wrappers change them."""
        horizon, cursor, changes = rows.inputs.horizon, rows.cursor, self._changes
        lead = (len(indices), horizon) if horizon else (len(indices),)
        rewards, seen = self._given_rewards(inner), inner.observations
        if seen is not None:
            seen = seen.reshape(-1, *self._space.shape)
        totals: list[float] = []
        shown: Any = []
        obs, is_unchanged = None, self._reach.is_unchanged
        for index, frame, end in _spans(indices, inner.n_step, max(1, horizon), frames):
            cursor[0], total = index, 0.0
            for each in range(frame, end):
                reward = rewards[each]
                if self._changes_observations:
                    obs = self._given_observation(seen[each])
                for is_reward, change in changes:
                    if is_reward:
                        reward = change(reward)
                    else:
                        obs = change(obs)
                    if not is_unchanged():
                        raise _ChangedValueError
                total += float(reward) if isinstance(reward, float) else as_reward(reward)
            totals.append(total)
            shown.append(obs)
        changed = np.array(totals).reshape(lead)
        if rows.observations is None or seen is None:
            return changed, None
        if not self._changes_observations:
            shown, space = seen[frames - 1 :: frames], self._sim.observation_space
            if (space.dtype, space.shape) == (shown.dtype, self._space.shape):
                return changed, shown.reshape(*lead, *space.shape)
        return changed, self._batch(shown, lead)

    def _batch(self, shown: Any, lead: tuple[int, ...]) -> Any:
        """Return a batch of the observations `shown` with the leading shape `lead`."""
        space = self._sim.observation_space
        batch = spaces.empty(space, lead)
        for place, obs in zip(np.ndindex(*lead), shown, strict=True):
            spaces.put(space, batch, place, obs)
        return batch

    def _given_rewards(self, inner: Rows) -> list[Any]:
        """Return the rewards of all frames in the type that the environment returns."""
        kind, rewards = self._reward_type, inner.rewards
        if issubclass(kind, np.floating) and not rewards.all():
            # Kernels do not return the sign of zeros.
            zeros = (rewards == 0).reshape(len(inner.n_step), -1)
            if np.count_nonzero(zeros & (np.arange(zeros.shape[1]) < inner.n_step[:, None])):
                raise NotVectorisableError
        if kind is float:
            return rewards.ravel().tolist()
        if issubclass(kind, np.generic):
            return list(rewards.ravel().astype(kind))
        return [kind(reward) for reward in rewards.ravel().tolist()]

    def _given_observation(self, row: Any) -> Any:
        """Return a copy of `row`, one observation, in the form that the environment returns."""
        kind = self._obs_form[0]
        if kind is not np.ndarray:
            return kind(row)
        return row.copy() if self._obs_form[3] else row.copy()[...]

    def _write(
        self, rows: Rows, at: slice | list[int], states: Row, inner: Rows, elapsed_at: int
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


def _place_of(indices: Sequence[int]) -> Any:
    """Return `indices` as an index of arrays: a range becomes a slice, which makes no copies."""
    is_range = isinstance(indices, range)
    return slice(indices[0], indices[-1] + 1) if is_range else indices


def _spans(
    indices: Sequence[int], ran: NDArray[np.int64], horizon: int, frames: int
) -> Iterable[tuple[int, int, int]]:
    """Return for each action its row, and the first and the last frame that it was held, plus 1.

    Frames are numbered through all rows, ``horizon * frames`` for each. After the end of an
    episode, actions are held for no frames.
    """
    if horizon == frames == 1:
        return zip(indices, range(len(indices)), range(1, len(indices) + 1), strict=True)
    rows = np.arange(len(indices))[:, None] * (horizon * frames)
    starts = rows + np.arange(0, horizon * frames, frames)
    ends = np.minimum(starts + frames, rows + ran[:, None])
    each = [index for index in indices for _ in range(horizon)]
    return zip(each, starts.ravel().tolist(), ends.ravel().tolist(), strict=True)


def _form(value: Any) -> tuple[Any, ...]:
    """Return the type of an array or number, and for arrays, dtype, shape and whether it is a view.

    The first item is ``None`` for other values, and for arrays of another kind than those that are
    made for each row.
    """
    if type(value) is np.ndarray:
        flags = value.flags
        usual = flags.c_contiguous and flags.writeable and not value.dtype.hasobject
        return np.ndarray if usual else None, value.dtype, value.shape, flags.owndata
    return type(value) if isinstance(value, int | float | np.generic) else None, None, (), True
