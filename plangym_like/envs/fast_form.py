"""`FastForm`: steps many rows of a simulator at once, and is tested before it is used."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Outcome, Rows, put_outcome
from plangym_like.batch.simulator import Simulator
from plangym_like.snapshots.chains import innermost
from plangym_like.states.rows import HEADER_NBYTES, Row

TRIALS = 32
# The largest int64; no episode lasts this many frames.
_MOST_FRAMES = 2**63 - 1


class NotVectorisableError(Exception):
    """A row of the block must be stepped by the environment itself."""


class FastForm(abc.ABC):
    """Steps blocks of rows at once, with the same results as the environment's own ``step``.

    A fast form never reads from the arrays that it writes results to, because two workers may step
    the same rows at the same time. It also writes the headers of the next states.

    Attributes
    ----------
    most : int
        The maximum number of rows that are stepped at once.
    is_vectorised : bool
        Whether stepping rows together is faster than one by one.
    rolls_out_one : bool
        Whether `rollout` of a single row is faster than the environment itself.
    """

    most: int = 1 << 62
    is_vectorised: bool = True
    rolls_out_one: bool = False

    def takes(self, rows: Rows) -> bool:
        """Return whether this form can step the batch `rows`."""
        return "rgb" not in rows.columns

    def step_one(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step one row outside a batch; see `Simulator.step_row`.

        Return ``None`` if this form cannot step the row in this way.
        """
        return None

    @abc.abstractmethod
    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``, each from its own state.

        Raises
        ------
        NotVectorisableError
            A row must be stepped by the environment itself; the results of all rows
            ``first:last`` may be wrong.
        """

    def rollout(self, rows: Rows, first: int, last: int) -> None:
        """Step each of the rows ``first:last`` through its T actions, or until its episode ends.

        Raise `NotVectorisableError` if this form cannot do it, or as in `step`.
        """
        raise NotVectorisableError


def held_frames(inputs: Inputs, block: slice, frameskip: int) -> int | NDArray[np.int64]:
    """Return the number of frames for which each row of `block` holds an action.

    If ``dt`` is one int for all rows, the result is one int too.
    """
    if isinstance(inputs.dt, int):
        return inputs.dt * frameskip
    return np.minimum(inputs.dt[block], _MOST_FRAMES // frameskip) * frameskip


def trial_actions(space: Any, kind: str, *, beyond: float = 1.2) -> NDArray[Any]:
    """Return random actions ``(TRIALS, ...)`` of dtype `kind`.

    Float actions of a bounded `Box` lie up to `beyond` times as far from its middle as its bounds;
    integer actions are rounded from numbers between ``-beyond`` and `beyond`.
    """
    dtype = np.dtype(kind)
    if not isinstance(space, Box) or not space.is_bounded():
        space = copy.deepcopy(space)
        space.seed(6)
        return np.stack([space.sample() for _ in range(TRIALS)]).astype(dtype)
    rng = np.random.Generator(np.random.PCG64(6))
    drawn = rng.uniform(-beyond, beyond, (TRIALS, *space.shape))
    middle, half = (space.high + space.low) / 2.0, (space.high - space.low) / 2.0
    if dtype.kind in "iu":
        drawn = np.abs(drawn.round()) if dtype.kind == "u" else drawn.round()
        return drawn.astype(dtype)
    return (middle + half * drawn).astype(dtype)


def disagreement(
    form: FastForm,
    sim: Simulator,
    kind: str,
    *,
    starts: Sequence[Row] | None = None,
    plays_on: bool = True,
    beyond: float = 1.2,
) -> str:
    """Describe the first difference between `form` and stepping `sim` row by row, or return "".

    An error that `form` raises is described too, whatever it is.

    NumPy and libm may treat single numbers and arrays differently on another processor or in
    another version, so each form is tested before it is used: in `TRIALS` steps of `sim`, and in as
    many rows of `form`. The state of `sim` does not change.

    Parameters
    ----------
    form : FastForm
    sim : Simulator
    kind : str
        The type character of the actions' dtype.
    starts : sequence of payloads, optional
        `TRIALS` states to step from; by default, the states of one episode.
    plays_on : bool
        Whether to keep stepping after an episode has ended; otherwise, a new episode begins.
    beyond : float
        As in `trial_actions`.
    """
    base: Any = innermost(sim.env)
    original, seed = np.zeros(sim.payload_nbytes, np.uint8), base._np_random_seed
    sim.read(original)
    try:
        actions = trial_actions(sim.action_space, kind, beyond=beyond)
        return _disagreement(form, sim, actions, starts, plays_on)
    finally:
        sim.write(original)
        base._np_random_seed = seed


def _disagreement(
    form: FastForm,
    sim: Simulator,
    actions: NDArray[Any],
    starts: Sequence[Row] | None,
    plays_on: bool,
) -> str:
    """Compare `form` with steps of `sim`; see `disagreement`."""
    states = np.zeros((len(actions), HEADER_NBYTES + sim.payload_nbytes), np.uint8)
    expected, found = _rows(sim, actions, states), _rows(sim, actions, states)
    assert expected.next_states is not None
    if starts is None:
        sim.env.reset(seed=0)
    for index, action in enumerate(actions):
        if starts is not None:
            sim.write(starts[index])
        sim.save(states[index])
        outcome = sim.step(action.copy(), 1)
        if outcome[4].keys() != expected.columns.keys():
            return f"the info of row {index} is {outcome[4]!r}, not {', '.join(expected.columns)}"
        put_outcome(expected, index, sim.observation_space, outcome)
        sim.save(expected.next_states[index])
        if not plays_on and (outcome[2] or outcome[3]):
            sim.env.reset()
    try:
        form.step(found, 0, len(actions))
        if difference := _first_difference(found, expected):
            return difference
        _step_each(form, sim, found)
        return _first_difference(found, expected)
    except NotVectorisableError:
        return "a row cannot be stepped in a block"
    except Exception as error:
        return f"it raises {type(error).__name__}: {error}"


def _rows(sim: Simulator, actions: NDArray[Any], states: Row) -> Rows:
    """Return rows that step `actions` from `states`, with uninitialised results."""
    count, space = len(actions), sim.observation_space
    columns = {}
    for name, (shape, dtype) in sim.columns.items():
        columns[name] = np.empty((count, *shape), dtype)
    return Rows(
        Inputs(count, 0, actions, states, 1, None),
        np.zeros_like(states),
        np.empty((count, *(space.shape or ())), space.dtype),
        np.empty(count),
        np.empty(count, bool),
        np.empty(count, bool),
        np.empty(count, np.int64),
        columns,
        None,
    )


def _step_each(form: FastForm, sim: Simulator, rows: Rows) -> None:
    """Step the rows one by one with `form.step_one`, and replace their results."""
    assert rows.next_states is not None
    for index, action in enumerate(rows.inputs.actions):
        one = form.step_one(rows.inputs.states[index], action, 1)
        if one is not None:
            rows.next_states[index], outcome = one
            put_outcome(rows, index, sim.observation_space, outcome)


def _first_difference(found: Rows, expected: Rows) -> str:
    """Describe the first result in `found` that differs from `expected` in a byte, or return ""."""
    assert found.next_states is not None and expected.next_states is not None
    start = HEADER_NBYTES
    pairs: dict[str, tuple[Any, Any]] = {
        "observation": (found.observations, expected.observations),
        "reward": (found.rewards, expected.rewards),
        "terminated": (found.terminateds, expected.terminateds),
        "truncated": (found.truncateds, expected.truncateds),
        "number of frames": (found.n_step, expected.n_step),
        "next state": (found.next_states[:, start:], expected.next_states[:, start:]),
    }
    for name, column in expected.columns.items():
        pairs[f"info {name}"] = found.columns[name], column
    for index in range(expected.inputs.count):
        for name, (ours, theirs) in pairs.items():
            if ours[index].tobytes() != theirs[index].tobytes():
                return f"the {name} of row {index} is {ours[index]!r} instead of {theirs[index]!r}"
    return ""
