"""`EpisodeLanes`: lanes that are stepped together for a batcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.vector.lanes import Lanes, Options, Seeds, StepArrays
from plangym_like.vector.start_states import StartStates
from plangym_like.vector.tree import has_objects, layout_of_space, take, write_rows

_NONE: NDArray[np.intp] = np.empty(0, np.intp)


class Outcome(NamedTuple):
    """The results of one step of B lanes: arrays ``(B, ...)``; `obs` is a tree of such arrays."""

    obs: Any
    reward: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    done: NDArray[np.bool_]

    @property
    def arrays(self) -> StepArrays:
        """The arrays that lanes write to, which are all except `done`."""
        return StepArrays(*self[:4])


class EpisodeLanes:
    """Steps the lanes of a batcher, and reports which episodes ended.

    `step` never restarts a lane. For a restart, the batcher calls `restart` or `step_or_restart`.

    Parameters
    ----------
    lanes : Lanes
    seed : sequence of int, optional
        Used if episodes begin in given states: it determines their random generators. By default,
        fresh entropy is used.

    Attributes
    ----------
    lanes : Lanes
    timestep : array int64 ``(B,)``
        The number of steps so far in each lane's episode.
    running : array of int or None
        The lanes that `step` steps, in ascending order; ``None`` for all. The others wait.

    Raises
    ------
    InputError
        Observations or actions are not arrays of one shape, so they cannot become tensors.
    """

    def __init__(self, lanes: Lanes, seed: Sequence[int] | None = None) -> None:
        for space in (lanes.observation_space, lanes.action_space):
            if has_objects(layout_of_space(space)):
                raise InputError(
                    f"the elements of {space} are not arrays of one shape, so they cannot become "
                    "tensors"
                )
        self.lanes = lanes
        self.timestep = np.zeros(lanes.num_lanes, np.int64)
        self.running: NDArray[np.intp] | None = None
        self._generator = np.random.default_rng(seed)

    def begin(
        self, seeds: Seeds = None, *, options: Options = None, states: StartStates | None = None
    ) -> Any:
        """Begin an episode in every lane; return the first observations in new arrays ``(B, ...)``.

        Parameters
        ----------
        seeds, options : sequence, optional
            One item for each lane, passed to the lane's reset.
        states : StartStates, optional
            The states that the episodes begin in, one for each lane. Each gets a new random
            generator, since lanes that begin in equal states would otherwise draw equal numbers.
        """
        self.running = None
        self.timestep.fill(0)
        if states is not None:
            states.check(self.lanes.num_lanes)
        obs = self.lanes.start(seeds, options)
        if states is not None:
            states.place(self.lanes, obs, self._generator)
        return obs

    def restart(self, obs: Any, lanes: NDArray[np.intp], options: Options = None) -> None:
        """Begin an episode in each of `lanes`; write the first observations into `obs`."""
        self.lanes.reset(obs, lanes, options=options)
        self.timestep[lanes] = 0

    def step(
        self, actions: Any, outcome: Outcome, previous: Outcome | None = None
    ) -> NDArray[np.intp]:
        """Step the running lanes, and return the lanes whose episodes ended with this step.

        Parameters
        ----------
        actions : tree of array ``(B, ...)``
        outcome : Outcome
            The arrays that receive the results.
        previous : Outcome, optional
            The previous step's outcome, which is repeated for waiting lanes with a reward of 0.
            Without it, nothing is written for waiting lanes.
        """
        running = self.running
        if running is None:
            self.lanes.step(actions, outcome.arrays)
            self.timestep += 1
        else:
            if len(running):
                self.lanes.step(actions, outcome.arrays, running)
                self.timestep[running] += 1
            if previous is not None:
                self._repeat(outcome, previous, running)
        done = np.logical_or(outcome.terminated, outcome.truncated, out=outcome.done)
        if not np.count_nonzero(done):
            return _NONE
        (ended,) = done.nonzero()
        return ended if running is None else np.intersect1d(ended, running, assume_unique=True)

    def step_or_restart(self, actions: Any, outcome: Outcome, ended: NDArray[np.intp]) -> None:
        """Begin an episode in each of the lanes `ended`, and step the others.

        The lanes `ended` get a reward of 0, and no flags.
        """
        is_reset = np.zeros(self.lanes.num_lanes, bool)
        is_reset[ended] = True
        self.lanes.step(actions, outcome.arrays, ended=is_reset)
        self.timestep += 1
        self.timestep[ended] = 0
        np.logical_or(outcome.terminated, outcome.truncated, out=outcome.done)

    def _repeat(self, outcome: Outcome, previous: Outcome, running: NDArray[np.intp]) -> None:
        waiting = np.delete(np.arange(self.lanes.num_lanes), running)
        for name in ("obs", "terminated", "truncated"):
            before = take(getattr(previous, name), waiting)
            write_rows(getattr(outcome, name), waiting, before)
        outcome.reward[waiting] = 0.0
