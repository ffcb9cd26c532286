"""`Kernel`: steps many rows of a simulator at once, and is tested before it is used.

`ArrayKernel` is one that has the states of its rows in arrays, and implements held actions and
rollouts.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from plangym_like.batch.arrays import Inputs, Outcome, Rows, given_states, put_outcome
from plangym_like.batch.simulator import Simulator
from plangym_like.snapshots.chains import innermost
from plangym_like.states.random_state import GENERATOR_NBYTES, save_generator, seeded_generator
from plangym_like.states.rows import HEADER_NBYTES, Row

TRIALS = 32
# The largest int64; no episode lasts this many frames.
_MOST_FRAMES = 2**63 - 1


class NotVectorisableError(Exception):
    """A row of the block must be stepped by the environment itself."""


class Kernel(abc.ABC):
    """Steps blocks of rows at once, with the same results as the environment's own ``step``.

    A kernel never reads from the arrays that it writes results to, because two workers may step
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
        """Return whether this kernel can step the batch `rows`."""
        return "rgb" not in rows.columns

    def takes_threads(self, inputs: Inputs) -> bool:
        """Return whether this kernel can step `inputs` on several threads."""
        return False

    def step_one(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step one row outside a batch; see `Simulator.step_row`.

        Return ``None`` if this kernel cannot step the row in this way.
        """
        return None

    def use_for_frames(self) -> bool:
        """From now on, step each action for one frame, whatever the frameskip.

        Return False if this is not possible, or if the environment may return rewards and
        observations of several types, which arrays do not show. It is called before the kernel is
        first used, by a kernel of wrappers around the environment.
        """
        return False

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

        Raise `NotVectorisableError` if this kernel cannot do it, or as in `step`.
        """
        raise NotVectorisableError

    def disagreement(self, sim: Simulator, kind: str) -> str:
        """Describe the first difference from stepping `sim` row by row, or return "".

        An error that this kernel raises is described too, whatever it is. NumPy and libm may treat
        single numbers and arrays differently on another processor or in another version, so each
        kernel is tested before it is used: in `TRIALS` steps of `sim` with actions of the dtype
        `kind`, a type character, and in as many rows of this kernel. The state of `sim` does not
        change.
        """
        with state_kept(sim):
            return _disagreement(self, sim, trial_actions(sim.action_space, kind))


def has_replaced_methods(env: Any) -> bool:
    """Return whether a method of the class of `env` was replaced in the object."""
    kind: Any = type(env)
    return not vars(env).keys().isdisjoint(_methods(kind))


@functools.cache
def _methods(kind: Any) -> frozenset[str]:
    # Static, because a user's descriptor may raise an error if the class is asked for its value.
    found = ((name, inspect.getattr_static(kind, name, None)) for name in dir(kind))
    return frozenset(
        name
        for name, value in found
        if isinstance(value, classmethod) or (callable(value) and not isinstance(value, type))
    )


@contextlib.contextmanager
def state_kept(sim: Simulator) -> Iterator[None]:
    """Restore the present state of `sim` at the end."""
    base: Any = innermost(sim.env)
    original, seed = np.zeros(sim.payload_nbytes, np.uint8), base._np_random_seed
    sim.read(original)
    try:
        yield
    finally:
        sim.write(original)
        base._np_random_seed = seed


def held_frames(inputs: Inputs, block: slice, frameskip: int) -> int | NDArray[np.int64]:
    """Return the number of frames for which each row of `block` holds an action.

    If ``dt`` is one int for all rows, the result is one int too.
    """
    if isinstance(inputs.dt, int):
        return inputs.dt * frameskip
    return np.minimum(inputs.dt[block], _MOST_FRAMES // frameskip) * frameskip


# Rows in arrays


class States:
    """The states of N rows; the base of dataclasses whose fields are arrays, or ``None``.

    Arrays are ``(..., N)``, or ``(N, ...)`` if the subclass overrides `_at`.
    """

    __slots__: tuple[str, ...] = ()

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Return a copy of the states of `rows`."""
        columns = [getattr(self, name) for name in self.__slots__]
        kind, at = cast("Any", type(self)), self._at(rows)
        part: Self = kind(*(None if each is None else each[at] for each in columns))
        return part

    def put(self, rows: NDArray[np.intp], part: Self) -> None:
        """Replace the states of `rows` with `part`, a result of `take` that has been stepped."""
        at = self._at(rows)
        for name in self.__slots__:
            if getattr(self, name) is not None:
                getattr(self, name)[at] = getattr(part, name)

    def _at(self, rows: NDArray[np.intp]) -> Any:
        """Return the index of `rows` in each array."""
        return ..., rows


S = TypeVar("S", bound=States)


@dataclass(slots=True)
class Outcomes:
    """The results of stepping N rows, each ``(N,)``."""

    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    n_step: NDArray[np.int64]

    @classmethod
    def empty(cls, count: int) -> Outcomes:
        """Return uninitialised arrays for `count` rows."""
        flags = np.empty((2, count), bool)
        return cls(np.empty(count), flags[0], flags[1], np.empty(count, np.int64))


class ArrayKernel(Kernel, Generic[S]):
    """Steps blocks of rows, with their states in arrays.

    A subclass for each family defines how states are loaded, stepped by one frame, observed and
    stored. This class holds actions, counts the steps for a time limit, and makes random generators
    from seeds. The states are instances of a dataclass of the family, a subclass of `States`. A row
    begins with a header of `HEADER_NBYTES` bytes; the codec's bytes follow, and then the generator.

    Parameters
    ----------
    sim : GymnasiumSimulator
        A simulator without wrappers, except those of `TransformKernel` and a time limit.
    """

    def __init__(self, sim: Any) -> None:
        self._frameskip: int = sim.frameskip
        self._time_limit: Any = sim.time_limit
        self._generator_at = HEADER_NBYTES + sim.codec.nbytes
        self._elapsed_at = (HEADER_NBYTES + sim.wrappers_at) // 8
        self._outcomes = Outcomes.empty(0)

    def use_for_frames(self) -> bool:
        self._frameskip = 1
        return True

    @abc.abstractmethod
    def load(self, given: Row, count: int) -> S:
        """Return the states of `count` rows, copied from `given` ``(N or 1, nbytes)``."""

    @abc.abstractmethod
    def frame(self, states: S, actions: NDArray[Any], out: Outcomes) -> None:
        """Step each of `states` in place by one frame; fill ``out.rewards`` and ``.terminated``.

        ``out.truncated`` is false; it may be set, and the time limit is applied later.
        """

    @abc.abstractmethod
    def observe(self, states: S, out: NDArray[Any]) -> None:
        """Fill `out` ``(N, *obs_shape)`` with the observations of `states`."""

    @abc.abstractmethod
    def store(self, states: S, fresh: Row) -> None:
        """Write `states` into `fresh` ``(N, nbytes)``, copies of the rows that they began with."""

    def infos(self, states: S) -> Mapping[str, NDArray[Any]]:
        """Return the infos of the last frame of `states` by name, each ``(N, ...)``."""
        return {}

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``, each from its own state."""
        block = slice(first, last)
        given = self._given(rows, block)
        with np.errstate(all="ignore"):
            states, elapsed = self.load(given, last - first), self._elapsed(given, last - first)
            if len(self._outcomes.rewards) != last - first:
                self._outcomes = Outcomes.empty(last - first)
            out = self._outcomes
            frames = held_frames(rows.inputs, block, self._frameskip)
            self._hold(states, rows.inputs.actions[block], frames, elapsed, out)
            rows.rewards[block], rows.terminateds[block] = out.rewards, out.terminated
            rows.truncateds[block], rows.n_step[block] = out.truncated, out.n_step
            if rows.observations is not None:
                self.observe(states, rows.observations[block])
            self._store(states, given, elapsed, rows, block)

    def rollout(self, rows: Rows, first: int, last: int) -> None:
        """Step each of the rows ``first:last`` through its T actions, or until its episode ends."""
        block, count = slice(first, last), last - first
        given = self._given(rows, block)
        with np.errstate(all="ignore"):
            states, elapsed = self.load(given, count), self._elapsed(given, count)
            frames = held_frames(rows.inputs, block, self._frameskip)
            going = _Survivors(states, count)
            terminated, truncated = np.zeros((2, count), bool)
            n_step = np.zeros(count, np.int64)
            for time in range(rows.inputs.horizon):
                rewards = np.zeros(count)
                if going.count:
                    at = going.rows
                    out = Outcomes.empty(going.count)
                    actions = np.ascontiguousarray(rows.inputs.actions[block, time][at])
                    wanted = frames if isinstance(frames, int) else frames[at]
                    begun = None if elapsed is None else elapsed[at] + n_step[at]
                    self._hold(going.part, actions, wanted, begun, out)
                    rewards[at] = out.rewards
                    terminated[at], truncated[at] = out.terminated, out.truncated
                    n_step[at] += out.n_step
                    going.keep(~(out.terminated | out.truncated))
                rows.rewards[block, time] = rewards
                rows.terminateds[block, time] = terminated
                rows.truncateds[block, time] = truncated
                if rows.observations is not None:
                    going.write_back()
                    self.observe(states, rows.observations[block, time])
            going.write_back()
            rows.n_step[block] = n_step
            self._store(states, given, elapsed, rows, block)

    def _hold(
        self,
        states: S,
        actions: NDArray[Any],
        frames: int | NDArray[np.int64],
        elapsed: NDArray[np.int64] | None,
        out: Outcomes,
    ) -> None:
        """Step each row for its number of `frames`, or until its episode ends; fill `out`."""
        if isinstance(frames, int) and frames == 1:
            out.truncated.fill(False)
            self.frame(states, actions, out)
            if elapsed is not None:
                out.truncated |= elapsed >= self._time_limit._max_episode_steps - 1
            out.n_step.fill(1)
            return
        for array in (out.rewards, out.terminated, out.truncated, out.n_step):
            array.fill(0)
        going = _Survivors(states, len(actions))
        frame = 0
        while going.count:
            at, one = going.rows, Outcomes.empty(going.count)
            one.truncated.fill(False)
            self.frame(going.part, actions[at], one)
            frame += 1
            if elapsed is not None:
                one.truncated |= elapsed[at] >= self._time_limit._max_episode_steps - frame
            out.rewards[at] += one.rewards
            out.terminated[at], out.truncated[at] = one.terminated, one.truncated
            out.n_step[at] += 1
            wanted = frames if isinstance(frames, int) else frames[at]
            going.keep(~(one.terminated | one.truncated) & (wanted > frame))
        going.write_back()

    def _given(self, rows: Rows, block: slice) -> Row:
        """Return the rows that `block` starts from, with new generators if there are seeds."""
        given, seeds = given_states(rows.inputs, block), rows.inputs.seeds
        if seeds is None:
            return given
        given = np.tile(given, (block.stop - block.start, 1)) if len(given) == 1 else given.copy()
        place = slice(self._generator_at, self._generator_at + GENERATOR_NBYTES)
        for row, seed in zip(given, seeds[block].tolist(), strict=True):
            row[place] = np.frombuffer(save_generator(seeded_generator(seed)), np.uint8)
        return given

    def _elapsed(self, given: Row, count: int) -> NDArray[np.int64] | None:
        """Return a copy of the number of steps of `count` rows, if there is a time limit."""
        if self._time_limit is None:
            return None
        elapsed = np.empty(count, np.int64)
        elapsed[:] = given.view(np.int64)[:, self._elapsed_at]
        return elapsed

    def _store(
        self, states: S, given: Row, elapsed: NDArray[np.int64] | None, rows: Rows, block: slice
    ) -> None:
        """Write infos, and the next states if requested; `elapsed` is that of `given`."""
        for name, column in self.infos(states).items():
            if name in rows.columns:
                rows.columns[name][block] = column
        if rows.next_states is None:
            return
        fresh = rows.next_states[block]
        fresh[:] = given
        self.store(states, fresh)
        if elapsed is not None:
            fresh.view(np.int64)[:, self._elapsed_at] = elapsed + rows.n_step[block]


class _Survivors(Generic[S]):
    """The rows of `whole` that are still being stepped; a row that stops is dropped.

    Attributes
    ----------
    part : States
        The states to step: at first `whole` itself; later, a copy of the rows not yet dropped.
    rows : slice or index array
        The rows of `whole` that `part` holds.
    count : int
        Their number.
    """

    def __init__(self, whole: S, count: int) -> None:
        self._whole = whole
        self.part, self.count = whole, count
        self.rows: slice | NDArray[np.intp] = slice(None)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the rows of `part` where `mask` is false."""
        if mask.all():
            return
        self.write_back()
        self.rows = mask.nonzero()[0] if isinstance(self.rows, slice) else self.rows[mask]
        self.part, self.count = self._whole.take(self.rows), len(self.rows)

    def write_back(self) -> None:
        """Copy the stepped states from `part` back to `whole`."""
        if not isinstance(self.rows, slice):
            self._whole.put(self.rows, self.part)


# The test of a kernel


def trial_actions(space: Any, kind: str) -> NDArray[Any]:
    """Return random actions ``(TRIALS, ...)`` of `space`, of dtype `kind`."""
    if isinstance(space, Box) and space.is_bounded():
        rng = np.random.Generator(np.random.PCG64(6))
        drawn = rng.uniform(space.low, space.high, (TRIALS, *space.shape))
        return (drawn if np.dtype(kind).kind == "f" else np.abs(drawn).round()).astype(kind)
    space = copy.deepcopy(space)
    space.seed(6)
    return np.stack([space.sample() for _ in range(TRIALS)]).astype(kind)


def _disagreement(kernel: Kernel, sim: Simulator, actions: NDArray[Any]) -> str:
    """Step `actions` with `sim`, and then with `kernel`, together and one by one; compare them."""
    states = np.zeros((len(actions), HEADER_NBYTES + sim.payload_nbytes), np.uint8)
    expected, found = (_rows(sim, actions, states) for _ in range(2))
    assert expected.next_states is not None and found.next_states is not None
    sim.reset(0)
    for index, action in enumerate(actions):
        sim.save(states[index])
        outcome = sim.step(action.copy(), 1)
        if outcome[4].keys() != expected.columns.keys():
            return f"the info of row {index} is {outcome[4]!r}, not {', '.join(expected.columns)}"
        put_outcome(expected, index, sim.observation_space, outcome)
        sim.save(expected.next_states[index])
        if outcome[2] or outcome[3]:
            sim.reset()
    try:
        kernel.step(found, 0, len(actions))
        if difference := _first_difference(found, expected):
            return difference
        for index, action in enumerate(actions):
            one = kernel.step_one(states[index], action, 1)
            if one is not None:
                found.next_states[index], outcome = one
                put_outcome(found, index, sim.observation_space, outcome)
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
