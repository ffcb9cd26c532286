"""`BlockStepper`: steps blocks of rows as arrays, and implements held actions and rollouts."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.arrays import Rows
from plangym_like.envs.fast_form import FastForm, held_frames
from plangym_like.states.random_state import GENERATOR_NBYTES, save_generator, seeded_generator
from plangym_like.states.rows import Row


class States(Protocol):
    """The states of N rows, in arrays."""

    def __len__(self) -> int: ...

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Return a copy of the states of `rows`."""
        ...

    def put(self, rows: NDArray[np.intp], part: Self) -> None:
        """Replace the states of `rows` with `part`, a result of `take` that has been stepped."""
        ...


class ColumnStates:
    """The base of dataclasses whose fields are arrays ``(..., N)``, or ``None``."""

    __slots__: tuple[str, ...] = ()

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Return a copy of the states of `rows`."""
        columns = [getattr(self, name) for name in self.__slots__]
        kind: Any = type(self)
        part: Self = kind(*(None if each is None else each[..., rows] for each in columns))
        return part

    def put(self, rows: NDArray[np.intp], part: Self) -> None:
        """Replace the states of `rows` with `part`, a result of `take` that has been stepped."""
        for name in self.__slots__:
            if getattr(self, name) is not None:
                getattr(self, name)[..., rows] = getattr(part, name)

    def __len__(self) -> int:
        return int(getattr(self, self.__slots__[0]).shape[-1])


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


class BlockStepper(FastForm, Generic[S]):
    """Steps blocks of rows, with their states in arrays.

    A subclass for each family defines how states are loaded, stepped by one frame, observed and
    stored.

    Parameters
    ----------
    frameskip : int
        The number of frames per action.
    """

    def __init__(self, frameskip: int) -> None:
        self._frameskip = frameskip
        self._outcomes = Outcomes.empty(0)

    @abc.abstractmethod
    def load(self, rows: Rows, block: slice) -> S:
        """Return the states of the rows in `block`, copied into arrays."""

    @abc.abstractmethod
    def frame(self, states: S, actions: NDArray[Any], out: Outcomes) -> None:
        """Step each of `states` in place by one frame; fill all of `out` except ``n_step``."""

    @abc.abstractmethod
    def observe(self, states: S, out: NDArray[Any]) -> None:
        """Fill `out` ``(N, *obs_shape)`` with the observations of `states`."""

    @abc.abstractmethod
    def store(self, states: S, rows: Rows, block: slice) -> None:
        """Write `states` into the next states of the rows in `block`.

        If there are seeds, also write the random generators made from them. Everything else in a
        next state is copied from the state that the row started from.
        """

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``, each from its own state."""
        block = slice(first, last)
        with np.errstate(all="ignore"):
            states = self.load(rows, block)
            if len(self._outcomes.rewards) != last - first:
                self._outcomes = Outcomes.empty(last - first)
            out = self._outcomes
            frames = held_frames(rows.inputs, block, self._frameskip)
            self._hold(states, rows.inputs.actions[block], frames, out)
            rows.rewards[block], rows.terminateds[block] = out.rewards, out.terminated
            rows.truncateds[block], rows.n_step[block] = out.truncated, out.n_step
            if rows.observations is not None:
                self.observe(states, rows.observations[block])
            if rows.next_states is not None:
                self.store(states, rows, block)

    def rollout(self, rows: Rows, first: int, last: int) -> None:
        """Step each of the rows ``first:last`` through its T actions, or until its episode ends."""
        block, count = slice(first, last), last - first
        with np.errstate(all="ignore"):
            states = self.load(rows, block)
            frames = held_frames(rows.inputs, block, self._frameskip)
            going = _Survivors(states)
            terminated, truncated = np.zeros((2, count), bool)
            n_step = np.zeros(count, np.int64)
            for time in range(rows.inputs.horizon):
                rewards = np.zeros(count)
                if len(going.part):
                    at = going.rows
                    out = Outcomes.empty(len(going.part))
                    actions = np.ascontiguousarray(rows.inputs.actions[block, time][at])
                    wanted = frames if isinstance(frames, int) else frames[at]
                    self._hold(going.part, actions, wanted, out)
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
            if rows.next_states is not None:
                self.store(states, rows, block)

    def _hold(
        self, states: S, actions: NDArray[Any], frames: int | NDArray[np.int64], out: Outcomes
    ) -> None:
        """Step each row for its number of `frames`, or until its episode ends; fill `out`."""
        if isinstance(frames, int) and frames == 1:
            self.frame(states, actions, out)
            out.n_step.fill(1)
            return
        for array in (out.rewards, out.terminated, out.truncated, out.n_step):
            array.fill(0)
        going = _Survivors(states)
        frame = 0
        while len(going.part):
            at, one = going.rows, Outcomes.empty(len(going.part))
            self.frame(going.part, actions[at], one)
            out.rewards[at] += one.rewards
            out.terminated[at], out.truncated[at] = one.terminated, one.truncated
            out.n_step[at] += 1
            frame += 1
            wanted = frames if isinstance(frames, int) else frames[at]
            going.keep(~(one.terminated | one.truncated) & (wanted > frame))
        going.write_back()


class _Survivors(Generic[S]):
    """The rows of `whole` that are still being stepped; a row that stops is dropped.

    Attributes
    ----------
    part : States
        The states to step: at first `whole` itself; later, a copy of the rows not yet dropped.
    rows : slice or index array
        The rows of `whole` that `part` holds.
    """

    def __init__(self, whole: S) -> None:
        self._whole = whole
        self.part = whole
        self.rows: slice | NDArray[np.intp] = slice(None)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the rows of `part` where `mask` is false."""
        if mask.all():
            return
        self.write_back()
        self.rows = mask.nonzero()[0] if isinstance(self.rows, slice) else self.rows[mask]
        self.part = self._whole.take(self.rows)

    def write_back(self) -> None:
        """Copy the stepped states from `part` back to `whole`."""
        if not isinstance(self.rows, slice):
            self._whole.put(self.rows, self.part)


def put_generators(fresh: Row, begin: int, seeds: NDArray[np.uint64]) -> None:
    """Write a random generator into each row of `fresh`, beginning at byte `begin`.

    Each generator is made from its row's seed in `seeds`.
    """
    for row, seed in zip(fresh, seeds.tolist(), strict=True):
        memory = save_generator(seeded_generator(seed))
        row[begin : begin + GENERATOR_NBYTES] = np.frombuffer(memory, np.uint8)
