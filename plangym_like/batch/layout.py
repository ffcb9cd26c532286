"""`Layout`: checks the batches of one environment, and allocates their results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, Leaf, Rows, check_dt
from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import Outcome
from plangym_like.errors import BatchLengthError, InputError
from plangym_like.results import BatchInfo, BatchStep, BatchTransition, Rollout
from plangym_like.states.rows import Row, StateFormat
from plangym_like.support.memory_limits import refuse_too_much


class Layout:
    """Checks the batches of one environment, and allocates arrays for their results.

    All processes of the environment have the same layout.

    Attributes
    ----------
    observation_space, action_space : gymnasium.Space
    format : StateFormat
    columns : dict of str to (shape, dtype)
        Info keys that every step returns.
    plain_infos : bool
        Whether rows may have other info keys.
    exact : bool
        Whether stepping a row twice gives the same bytes. If false, two processes never step the
        same row at the same time.
    out_of_bounds : {"pass", "raise", "clip"}
        How to treat actions beyond the bounds of a `Box`.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        state_format: StateFormat,
        columns: Mapping[str, Leaf],
        *,
        plain_infos: bool,
        exact: bool = True,
        out_of_bounds: str = "pass",
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.format = state_format
        self.columns = dict(columns)
        self.plain_infos = plain_infos
        self.exact = exact
        self.out_of_bounds = out_of_bounds
        self.obs_leaves = spaces.leaves(observation_space)
        self._obs_nbytes = sum(
            math.prod(shape) * dtype.itemsize for shape, dtype in self.obs_leaves or ()
        )
        # The shape and dtype of observations that are arrays; ``None`` otherwise.
        is_array = spaces.is_leaf(observation_space)
        self._obs_leaf: Any = (self.obs_leaves or [])[0] if is_array else (None, None)
        self.array_actions = spaces.is_leaf(action_space)
        # The range and the dtype of `Discrete` actions; other spaces have an empty range.
        self._choices = range(0)
        self._choice: Any = int
        # The dtype of `Box` actions for which a quick check is enough; ``None`` if there are none.
        is_box = isinstance(action_space, Box) and action_space.dtype.kind == "f"
        usual = is_box and out_of_bounds == "pass"
        self._box_dtype = np.dtype(action_space.dtype) if usual else None
        self._box_shape = action_space.shape
        if isinstance(action_space, Discrete):
            start = int(action_space.start)
            self._choices = range(start, start + int(action_space.n))
            self._choice = np.dtype(action_space.dtype).type

    def check(
        self,
        actions: Any,
        states: Any,
        dt: Any,
        seeds: Any,
        *,
        horizon: bool = False,
        sums: bool = True,
    ) -> Inputs:
        """Check the arguments of a batch before it is stepped, and return its inputs.

        `horizon` is true for rollouts, whose actions have an axis of length T. With ``sums=False``,
        checksums may be left to `verify`; the result then has ``verified=False``.

        Raises
        ------
        InputError, StateError
            See `plangym_like.errors`; the message names the row.
        """
        lead = 2 if horizon else 1
        batch: Any = None
        if lead == 1 and _is_one(actions):
            batch = self._checked_quickly(actions[0])
        if batch is None:
            batch = spaces.as_actions(self.action_space, actions, lead, self.out_of_bounds)
        else:
            batch = batch[None]
        rows, verified = self._check_states(states, sums)
        steps = check_dt(dt)
        numbers = _check_seeds(seeds)
        if len(batch) == len(rows) and isinstance(steps, int) and numbers is None and not horizon:
            return Inputs(len(batch), 0, batch, rows, steps, None, verified)
        lengths = {"actions": len(batch), "states": len(rows)}
        if not isinstance(steps, int):
            lengths["dt"] = len(steps)
        if numbers is not None:
            lengths["seeds"] = len(numbers)
        count = _common_length(lengths)
        if len(batch) != count:
            batch = batch * count if isinstance(batch, list) else _spread(batch, count)
        if len(rows) != count and len(rows) != 1:
            rows = rows[:count]
        if not isinstance(steps, int) and len(steps) != count:
            steps = int(steps[0]) if len(steps) else 1
        if numbers is not None and len(numbers) != count:
            numbers = _spread(numbers, count)
        length = _horizon(batch, count) if horizon else 0
        return Inputs(count, length, batch, rows, steps, numbers, verified)

    def check_action(self, action: Any) -> Any:
        """Check one action, and return a copy of it.

        Raises
        ------
        ActionError
            The action is not in the action space.
        """
        checked = self._checked_quickly(action)
        if checked is None:
            checked = owned(spaces.as_actions(self.action_space, action, 0, self.out_of_bounds))
        return checked

    def _checked_quickly(self, action: Any) -> Any:
        """Return a copy of a usual action; ``None`` if it must be checked closely.

        Usual actions are whole numbers in a `Discrete` action space, and finite arrays with the
        shape and dtype of a `Box` space.
        """
        kind = type(action)
        if kind is np.ndarray:
            if action.dtype is not self._box_dtype or action.shape != self._box_shape:
                return None
            # A sum is finite only if every number is; testing each number takes longer.
            return action.copy() if math.isfinite(sum(action.ravel().tolist())) else None
        if (kind is int or kind is self._choice) and int(action) in self._choices:
            return self._choice(action)
        return None

    def verify(self, inputs: Inputs, start: int = 0, stop: int | None = None) -> None:
        """Verify the checksums of ``inputs.states[start:stop]``, unless ``inputs.verified``.

        Raises
        ------
        StateFormatError
            A checksum is wrong.
        """
        if not inputs.verified:
            self.format.verify(inputs.states[start:stop], start)

    def allocate(
        self,
        inputs: Inputs,
        *,
        states: bool = True,
        observations: bool = True,
    ) -> Rows:
        """Return `Rows` with `inputs` and new arrays for the results.

        Raises
        ------
        MemoryError
            The arrays would not fit into memory.
        """
        lead = (inputs.count, inputs.horizon) if inputs.horizon else (inputs.count,)
        refuse_too_much(
            inputs.count * self.row_nbytes(inputs.horizon, states=states, observations=observations)
        )
        return Rows(
            inputs,
            np.empty((inputs.count, self.format.state_nbytes), np.uint8) if states else None,
            self._new_observations(lead) if observations else None,
            np.empty(lead, np.float64),
            np.empty(lead, bool),
            np.empty(lead, bool),
            np.empty(inputs.count, np.int64),
            {
                name: np.empty((inputs.count, *shape), dtype)
                for name, (shape, dtype) in self.columns.items()
                if not inputs.horizon
            },
            {} if self.plain_infos and (inputs.last_infos or not inputs.horizon) else None,
        )

    def _new_observations(self, lead: tuple[int, ...]) -> Any:
        if self.obs_leaves is None:
            return [None] * math.prod(lead)
        return spaces.empty(self.observation_space, lead)

    def row_nbytes(self, horizon: int, *, states: bool = True, observations: bool = True) -> int:
        """Return about how many bytes the result of one row needs."""
        nbytes = states * self.format.state_nbytes
        return nbytes + observations * max(1, horizon) * self._obs_nbytes

    def result(
        self, rows: Rows, errors: Mapping[int, Exception] | None = None
    ) -> BatchTransition | BatchStep | Rollout:
        """Return the result of the finished `rows`; `errors` holds the errors of failed rows."""
        if errors:
            _blank(rows, list(errors))
        infos, observations = self._infos(rows, errors), rows.observations
        if isinstance(observations, list):
            observations = spaces.stacked(self.observation_space, observations, rows.inputs.horizon)
        if rows.inputs.horizon:
            assert rows.next_states is not None
            return Rollout(
                rows.next_states,
                observations,
                rows.rewards,
                rows.terminateds,
                rows.truncateds,
                infos,
            )
        if rows.next_states is None:
            return BatchStep(observations, rows.rewards, rows.terminateds, rows.truncateds, infos)
        return BatchTransition(
            rows.next_states,
            observations,
            rows.rewards,
            rows.terminateds,
            rows.truncateds,
            infos,
        )

    def result_of_one(
        self, inputs: Inputs, state: Row | None, outcome: Outcome
    ) -> BatchTransition | BatchStep:
        """Return the result of a batch of one row, without copying the state.

        `state` and `outcome` are the results of `Simulator.step_from`. An observation that has the
        shape and dtype of its space is not copied either.

        Raises
        ------
        ObservationError
            The observation does not match its space.
        """
        obs, reward, terminated, truncated, info, frames = outcome
        observations: Any
        if (
            type(obs) is np.ndarray
            and obs.dtype is self._obs_leaf[1]
            and obs.shape == self._obs_leaf[0]
        ):
            observations = obs[None]
        else:
            observations = spaces.empty(self.observation_space, (1,))
            spaces.put(self.observation_space, observations, 0, obs)
        rewards, flags = np.array((reward,), np.float64), np.array((terminated, truncated), bool)
        plain = None
        if self.plain_infos and info:
            rest = {key: value for key, value in info.items() if key not in self.columns}
            plain = [rest] if rest else None
        values = [info[name] for name in self.columns]
        columns = partial(_columns_of_one, self.columns, values, n_step=frames, dt=inputs.dt)
        infos = BatchInfo(1, columns, plain)
        if state is None:
            return BatchStep(observations, rewards, flags[:1], flags[1:], infos)
        return BatchTransition(state[None], observations, rewards, flags[:1], flags[1:], infos)

    def _infos(self, rows: Rows, errors: Mapping[int, Exception] | None) -> BatchInfo:
        count, dt = rows.inputs.count, rows.inputs.dt
        columns = {**rows.columns, "n_step": rows.n_step, "dt": dt}
        plain: Sequence[Mapping[str, Any]] | None = None
        if rows.infos:
            plain = [rows.infos.get(index, {}) for index in range(count)]
        return BatchInfo(count, columns, plain, errors)

    def _check_states(self, states: Any, sums: bool) -> tuple[Row, bool]:
        """Check `states`; return them as rows, and whether their checksums were verified."""
        if _is_one(states) and isinstance(states[0], np.ndarray) and states[0].ndim == 1:
            return self.format.check_row(states[0])[None], True
        if _is_empty(states):
            return np.empty((0, self.format.state_nbytes), np.uint8), True
        return self.format.check(states, sums=sums), sums or not self.format.checksum


def _is_one(given: Any) -> bool:
    """Return whether `given` is a list, tuple or array of length 1."""
    if type(given) is np.ndarray:
        return given.ndim > 0 and len(given) == 1
    return type(given) in (list, tuple) and len(given) == 1


def _is_empty(given: Any) -> bool:
    """Return whether `given` is an empty list or tuple, or an array of shape ``(0,)``."""
    if isinstance(given, np.ndarray):
        return bool(given.shape == (0,))
    return isinstance(given, (list, tuple)) and not given


def _blank(rows: Rows, failed: list[int]) -> None:
    """Fill failed rows: invalid states, NaN rewards, false flags, otherwise zeros or ``None``."""
    if rows.next_states is not None:
        rows.next_states[failed] = 0
    if isinstance(rows.observations, list) and (horizon := rows.inputs.horizon):
        starts = [index * horizon for index in failed]
        spaces.blank(rows.observations, [start + t for start in starts for t in range(horizon)])
    elif rows.observations is not None:
        spaces.blank(rows.observations, failed)
    rows.rewards[failed] = np.nan
    for column in (rows.terminateds, rows.truncateds, rows.n_step, *rows.columns.values()):
        column[failed] = 0
    if rows.infos is not None:
        for index in failed:
            rows.infos.pop(index, None)


def _columns_of_one(
    leaves: Mapping[str, Leaf], values: Sequence[Any], **counts: Any
) -> dict[str, NDArray[Any] | int]:
    """Return the columns of a batch of one row: `values`, each in its own dtype, and `counts`."""
    columns = {}
    for (name, (shape, dtype)), value in zip(leaves.items(), values, strict=True):
        columns[name] = np.empty((1, *shape), dtype)
        columns[name][0] = value
    return columns | counts


def _common_length(lengths: dict[str, int]) -> int:
    several = {count for count in lengths.values() if count != 1}
    if len(several) > 1:
        told = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise BatchLengthError(f"actions, states, dt and seeds must have length N or 1: got {told}")
    return several.pop() if several else 1


def _check_seeds(seeds: Any) -> NDArray[np.uint64] | None:
    if seeds is None:
        return None
    try:
        numbers = np.atleast_1d(np.asarray(seeds))
    except ValueError as error:
        raise _wrong_seeds(seeds) from error
    if numbers.size == 0:
        return np.empty(0, np.uint64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or bool((numbers < 0).any()):
        raise _wrong_seeds(seeds)
    return numbers.astype(np.uint64)


def _wrong_seeds(seeds: Any) -> InputError:
    return InputError(f"seeds must be whole numbers of at least 0, one for each row, got {seeds!r}")


def _spread(array: NDArray[Any], count: int) -> NDArray[Any]:
    return np.broadcast_to(array[0], (count, *array.shape[1:]))


def _horizon(batch: Any, count: int) -> int:
    if isinstance(batch, list):
        lengths = {len(row) for row in batch}
        if len(lengths) > 1:
            told = f"{min(lengths)} and {max(lengths)}"
            raise BatchLengthError(
                f"all rows of a rollout must have the same number of actions, got {told}"
            )
        length = max(lengths, default=0)
    else:
        length = batch.shape[1]
    if count and length < 1:
        raise BatchLengthError("a rollout needs actions of shape (N, T, ...) with T at least 1")
    return max(length, 1)
