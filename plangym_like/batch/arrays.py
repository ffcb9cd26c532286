"""One batch: its checked inputs, how it is stepped, and the arrays for its results."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.ownership import owned_info
from plangym_like.results import Stats
from plangym_like.states.rows import Row

Leaf = tuple[tuple[int, ...], np.dtype[Any]]
# The result of `Simulator.step`.
Outcome = tuple[Any, float, bool, bool, dict[str, Any], int]

_AT_START = np.zeros(1, np.int64)


@dataclass(slots=True)
class Inputs:
    """The checked arguments of a batch of N rows.

    ``actions`` is ``(N, ...)``, or ``(N, T, ...)`` in rollouts. Actions of a `Box` keep the dtype
    in which they were given; actions that are not arrays are a list of objects. ``states`` is
    ``(N, state_nbytes)``, or ``(1, state_nbytes)`` if all rows share one state. ``dt`` is one int
    for all rows, or ``(N,) int64``. ``seeds`` is ``None`` or ``(N,) uint64``. ``verified`` says
    whether the checksums of the states have been verified. ``last_infos`` says whether rollouts on
    this machine return the info of each row's last step, which audits compare. ``legal`` says
    whether rollouts replace actions that are not legal; see `Simulator.plays_out`. ``threads`` is
    the number of threads of this process that step the rows; see `Simulator.takes_threads`.
    """

    count: int
    horizon: int
    actions: Any
    states: Row
    dt: int | NDArray[np.int64]
    seeds: NDArray[np.uint64] | None
    verified: bool = True
    last_infos: bool = False
    legal: bool = False
    threads: int = 1


class SubmitOptions(NamedTuple):
    """Options of `Executor.submit`, mainly about the result that it returns.

    Parameters
    ----------
    states, observations : bool
        Whether the result includes states and observations.
    blocking : bool
        ``False``: return a `Future` of the result.
    masked : bool
        Report failed rows in the result, instead of raising their exceptions.
    audit : bool
        Whether this is an audit, which steps rows a second time. They are not counted in `stats`.
    """

    states: bool = True
    observations: bool = True
    blocking: bool = True
    masked: bool = False
    audit: bool = False


class Executor(Protocol):
    """Steps checked batches: in this process (`RowStepper`), in workers, or on a Ray cluster."""

    stats: Stats
    """Counters of all batches so far."""

    @property
    def isolated(self) -> bool:
        """Whether only other processes step rows."""

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch; return its result, or a `Future` of it.

        `inputs` is the result of `Layout.check`. The checksum of a state is verified before its row
        is stepped.
        """

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return `Simulator.state_difference` of two payloads, found where rows are stepped."""

    def close(self) -> None:
        """Release processes and memory; results already returned stay valid."""


@dataclass(slots=True)
class Rows:
    """A batch in memory: its inputs, and the arrays for its results.

    ``horizon`` is 0 in ``step_batch``. In rollouts it is T, and rewards, flags and observations
    have a second axis of length T. ``next_states`` and ``observations`` are ``None`` if they
    were not requested. ``columns`` holds the values of the info keys that every row has, and
    ``infos`` holds each row's other infos. ``cursor[0]`` is the index of the row being stepped.
    ``objects`` holds the arrays of `observations` whose elements are Python objects, in order.
    ``marks`` ``(N,)``, in shared memory, tells which process has stepped each row: 0 for none, -1
    for the caller, or if the row is not to be stepped any more, and i + 1 for worker i; -2 - i if
    worker i has not reported the results yet.
    """

    inputs: Inputs
    next_states: Row | None
    observations: Any
    rewards: NDArray[np.float64]
    terminateds: NDArray[np.bool_]
    truncateds: NDArray[np.bool_]
    n_step: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]
    infos: MutableMapping[int, Mapping[str, Any]] | None
    cursor: NDArray[np.int64] = field(default_factory=_AT_START.copy)
    objects: Sequence[NDArray[Any]] = ()
    marks: NDArray[np.int32] | None = None


def put_outcome(rows: Rows, index: int, space: Space[Any], outcome: Outcome) -> None:
    """Write `outcome`, the result of one step, to row `index` of a batch.

    `space` is the space of its observation. Its info may hold other keys than ``rows.columns``.
    """
    obs, reward, terminated, truncated, info, n_step = outcome
    rows.rewards[index] = reward
    rows.terminateds[index] = terminated
    rows.truncateds[index] = truncated
    rows.n_step[index] = n_step
    spaces.put(space, rows.observations, index, obs)
    for name, column in rows.columns.items():
        column[index] = info[name]
    if rows.infos is not None and (info or type(info) is not dict):
        rest = owned_info(info, rows.columns)
        if rest:
            rows.infos[index] = rest


def select_rows(inputs: Inputs, rows: NDArray[np.intp]) -> Inputs:
    """Return copies of the inputs of `rows`; a state that all rows share is not copied."""
    actions, states = inputs.actions, inputs.states
    return replace(
        inputs,
        count=len(rows),
        actions=[actions[row] for row in rows] if isinstance(actions, list) else actions[rows],
        states=states if len(states) == 1 else states[rows],
        dt=inputs.dt if isinstance(inputs.dt, int) else inputs.dt[rows],
        seeds=None if inputs.seeds is None else inputs.seeds[rows],
    )


def given_states(inputs: Inputs, block: slice) -> Row:
    """Return the states that the rows of `block` start from: one row if all share one state."""
    return inputs.states if len(inputs.states) == 1 else inputs.states[block]


def dt_of(inputs: Inputs, index: int) -> int:
    """Return the ``dt`` of row `index`, an int of at least 1."""
    return inputs.dt if isinstance(inputs.dt, int) else int(inputs.dt[index])


def single_steps(inputs: Inputs, start: int = 0, stop: int | None = None) -> float:
    """Return how many single steps the rows ``start:stop`` take if no episode ends early.

    The result is a float, because a sum of large ``dt`` may not fit into an integer of 64 bits.

    >>> states, dt = np.zeros((3, 40), np.uint8), np.array([1, 2, 4])
    >>> inputs = Inputs(3, 0, np.zeros(3), states, dt, None)
    >>> single_steps(inputs, 1, 3), single_steps(inputs)
    (6.0, 7.0)
    """
    held = inputs.dt
    if stop is None:
        stop = inputs.count
    if isinstance(held, int):
        steps = float(held) * (stop - start)
    else:
        steps = float(held[start:stop].sum(dtype=np.float64))
    return steps * max(1, inputs.horizon)


def steps_of(inputs: Inputs) -> float:
    """Return how many single steps a row of `inputs` takes on average, at least 1."""
    if isinstance(inputs.dt, int):
        return float(inputs.dt * (inputs.horizon or 1))
    return single_steps(inputs) / inputs.count if inputs.count else 1.0
