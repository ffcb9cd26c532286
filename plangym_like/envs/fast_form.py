"""`FastForm`: steps many rows of a simulator at once, and is tested before it is used."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Rows
from plangym_like.batch.ownership import owned
from plangym_like.batch.simulator import Outcome, Simulator
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
    another version, so each form is tested before it is used. The state of `sim` changes.

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
    actions = trial_actions(sim.action_space, kind, beyond=beyond)
    count = len(actions)
    states = np.zeros((2, count, HEADER_NBYTES + sim.payload_nbytes), np.uint8)
    outcomes = []
    if starts is None:
        sim.env.reset(seed=0)
    for index, action in enumerate(actions):
        if starts is not None:
            sim.write(starts[index])
        sim.save(states[0, index])
        outcomes.append(owned(sim.step(action.copy(), 1)))
        sim.save(states[1, index])
        if not plays_on and (outcomes[-1][2] or outcomes[-1][3]):
            sim.env.reset()
    space: Any = sim.observation_space
    rows = Rows(
        Inputs(count, 0, actions, states[0], 1, None),
        np.zeros_like(states[0]),
        np.empty((count, *space.shape), space.dtype),
        np.empty(count),
        np.empty(count, bool),
        np.empty(count, bool),
        np.empty(count, np.int64),
        {name: np.empty((count, *shape), dtype) for name, (shape, dtype) in sim.columns.items()},
        None,
    )
    try:
        form.step(rows, 0, count)
        found = _first_difference(rows, outcomes, states[1])
        if found:
            return found
        _step_each(form, rows)
        return _first_difference(rows, outcomes, states[1])
    except NotVectorisableError:
        return "a row cannot be stepped in a block"
    except Exception as error:
        return f"it raises {type(error).__name__}: {error}"


def _step_each(form: FastForm, rows: Rows) -> None:
    """Step the rows one by one with `form.step_one`, and replace their results."""
    assert rows.next_states is not None
    for index, action in enumerate(rows.inputs.actions):
        one = form.step_one(rows.inputs.states[index], action, 1)
        if one is not None:
            rows.next_states[index] = one[0]
            results = rows.observations, rows.rewards, rows.terminateds, rows.truncateds
            for column, value in zip(results, one[1][:4], strict=True):
                column[index] = value


def _first_difference(rows: Rows, outcomes: Sequence[Outcome], after: Row) -> str:
    for index, outcome in enumerate(outcomes):
        place = _difference(rows, index, outcome, after[index])
        if place:
            return f"the {place[0]} of row {index} is {place[1]!r} instead of {place[2]!r}"
    return ""


def _difference(rows: Rows, index: int, outcome: Any, after: Row) -> tuple[str, Any, Any] | None:
    """Return the first wrong result of row `index`: its name, its value, and the right value.

    Return ``None`` if all results are right.
    """
    obs, reward, terminated, truncated, info, _ = outcome
    assert rows.next_states is not None
    pairs = {
        "observation": (rows.observations[index], obs),
        "reward": (rows.rewards[index], reward),
        "terminated": (rows.terminateds[index], terminated),
        "truncated": (rows.truncateds[index], truncated),
        "info": (sorted(rows.columns), sorted(info)),
    }
    if pairs["info"][0] == pairs["info"][1]:
        pairs |= {f"info {name}": (rows.columns[name][index], info[name]) for name in info}
    start = HEADER_NBYTES
    pairs["next state"] = rows.next_states[index, start:], after[start:]
    for name, (found, wanted) in pairs.items():
        if not _same(np.asarray(found), np.asarray(wanted)):
            return name, found, wanted
    return None


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same bytes once one is converted to the other's dtype."""
    return one.shape == other.shape and (
        one.astype(other.dtype).tobytes() == other.tobytes()
        or one.tobytes() == other.astype(one.dtype).tobytes()
    )
