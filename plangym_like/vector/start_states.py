"""`StartStates` and `StartLanes`: episodes that begin in given states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.vector.batching import checked_observations, with_object_arrays
from plangym_like.vector.lanes import (
    Lanes,
    Options,
    Seeds,
    Step,
    Which,
)
from plangym_like.vector.tree import take, tree_map, write_rows


@dataclass(frozen=True)
class StartStates:
    """States that episodes begin in, and the observations of these states.

    An observation cannot be computed from a state alone (a stack of frames needs earlier frames),
    so both are kept together, as returned by `PlanEnv.step_batch` and `PlanEnv.reset`.

    Attributes
    ----------
    rows : array uint8 ``(n, state_nbytes)``
    obs : tree of array ``(n, ...)``
    """

    rows: NDArray[np.uint8]
    obs: Any

    @classmethod
    def of(cls, given: Any, name: str = "states", space: Space[Any] | None = None) -> Self | None:
        """Check and copy the user's argument ``name=(rows, obs)``; ``None`` stays ``None``.

        If the space of the observations is given, texts and other objects of no fixed size may be
        in tuples or lists, as in results.

        Raises
        ------
        InputError
            `given` is not a pair of state rows and observations, with one observation for each row.
        """
        if given is None:
            return None
        if not isinstance(given, tuple) or len(given) != 2:
            raise InputError(
                f"{name} must be a pair (rows, obs) of state rows and the observations that came "
                f"with them, got {type(given).__name__}"
            )
        obs = given[1] if space is None else with_object_arrays(given[1], space)
        rows, obs = _copied(given[0]), tree_map(_copied, obs)
        if rows.dtype != np.uint8 or rows.ndim != 2:
            raise InputError(
                "state rows must be uint8 of shape (n, state_nbytes), got "
                f"{rows.dtype} of shape {rows.shape}"
            )

        def check(array: NDArray[Any]) -> None:
            if array.shape[:1] != rows.shape[:1]:
                raise InputError(
                    f"{len(rows)} state rows came with observations of shape {array.shape}"
                )

        tree_map(check, obs)
        return cls(rows, obs)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.rows[index], take(self.obs, index))

    def check(self, num_lanes: int) -> None:
        """Raise an `InputError` unless there is one state for each of `num_lanes` lanes."""
        if len(self) != num_lanes:
            raise InputError(f"{len(self)} states were given for {num_lanes} environments")

    def place(self, lanes: Lanes, obs: Any, generator: np.random.Generator) -> None:
        """Put all `lanes` into these states, one for each.

        Parameters
        ----------
        lanes : Lanes
        obs : tree of array ``(n, ...)``
            The observations of the lanes, which those of the states replace.
        generator : Generator
            What the seeds of the lanes' new random generators are drawn from.

        Raises
        ------
        InputError
            An observation does not fit the lanes' observation space.
        SnapshotError, StateError
            As in `Lanes.set_states`.
        """
        lanes.set_states(self.rows, None, generator.choice(2**31, len(self), replace=False))
        write_rows(obs, ..., checked_observations(self.obs, lanes.observation_space, len(self)))


class StartLanes:
    """Lanes that begin each episode in one of some states, drawn at random.

    A lane is reset as usual, and then put into the state, with a new random generator. Everything
    else is done by the lanes inside.

    Parameters
    ----------
    lanes : Lanes
    given : (states, observations)
        States ``(n, state_nbytes)``, and the observations that came with them.

    Raises
    ------
    InputError
        `given` is no such pair, is empty, or an observation does not fit.
    StateError
        A state is damaged, or belongs to another environment.
    SnapshotError
        The environments are plain Gymnasium environments, which have no state rows.
    """

    def __init__(self, lanes: Lanes, given: Any) -> None:
        states = StartStates.of(given, "start_states", lanes.observation_space)
        if states is None or not len(states):
            raise InputError("start_states must have at least one state")
        for row_format in set(lanes.formats):
            row_format.check(states.rows)
        self._rows, self._lanes = states.rows, lanes
        self._obs = checked_observations(states.obs, lanes.observation_space, len(states))
        # Each lane draws its own states, so they do not depend on the order in which lanes end.
        self._generators = [np.random.default_rng() for _ in range(lanes.num_lanes)]

    def __getattr__(self, name: str) -> Any:
        # The methods of `Lanes` that do not begin episodes.
        return getattr(self._lanes, name)

    def start(self, seeds: Seeds = None, options: Options = None) -> Any:
        """Start all lanes; see `Lanes.start`. A lane that is given a seed draws anew from it."""
        obs = self._lanes.start(seeds, options)
        self._place(obs, range(self._lanes.num_lanes), seeds)
        return obs

    def reset(
        self, obs: Any, lanes: Which = None, *, seeds: Seeds = None, options: Options = None
    ) -> None:
        """Start new episodes; see `Lanes.reset`. A lane that is given a seed draws anew from it."""
        self._lanes.reset(obs, lanes, seeds=seeds, options=options)
        self._place(obs, range(self._lanes.num_lanes) if lanes is None else lanes, seeds)

    def step(self, *arguments: Any, **options: Any) -> None:
        """See `Lanes.step`."""
        step = Step(*arguments, **options)
        self._lanes.submit(step)
        self.collect(step)

    def collect(self, step: Step) -> None:
        """See `Lanes.collect`."""
        self._lanes.collect(step)
        ended = step.ended
        self._place(step.out.obs, step.finals or () if ended is None else np.flatnonzero(ended))

    def _place(self, obs: Any, lanes: Iterable[int], seeds: Seeds = None) -> None:
        """Put `lanes`, which have just been reset, into states."""
        which = [int(lane) for lane in lanes]
        for lane, seed in zip(which, seeds or (), strict=False):
            if seed is not None:
                self._generators[lane] = np.random.default_rng(seed)
        if which:
            ends = len(self._rows), 2**31
            drawn, new_seeds = np.transpose([self._generators[i].integers(ends) for i in which])
            self._lanes.set_states(self._rows[drawn], which, new_seeds)
            write_rows(obs, which, take(self._obs, drawn))


def _copied(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor of torch, which is not imported here
        value = value.detach().cpu().numpy()
    return np.array(value)
