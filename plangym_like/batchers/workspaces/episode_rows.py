"""`EpisodeRows`: lanes of environments, with the account of their episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.engine.lanes import Lanes
from plangym_like.batchers.engine.nests import Leaf, map_nest

# What a row holds beside the observation, under the names that workspaces know.
MEASURES = {
    "terminated": Leaf((), torch.bool),
    "truncated": Leaf((), torch.bool),
    "done": Leaf((), torch.bool),
    "reward": Leaf((), torch.float32),
    "cumulated_reward": Leaf((), torch.float32),
    "timestep": Leaf((), torch.int64),
}


class Row(NamedTuple):
    """One time of all lanes: a nest of arrays ``(B, ...)``, and what `MEASURES` names."""

    obs: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    done: NDArray[np.bool_]
    reward: NDArray[np.float32]
    cumulated_reward: NDArray[np.float32]
    timestep: NDArray[np.int64]


class EpisodeRows:
    """Writes what a workspace is told of each step of `lanes` into a `Row` of zeros.

    Parameters
    ----------
    lanes : Lanes
    autoreset : bool
        Let a lane that has ended begin anew in the next row; else it waits.
    include_last_state : bool
        ``False``: begin anew in the same row, whose observation is the first of the next episode.

    Attributes
    ----------
    last : Row or None
        The last row that was written; ``None`` if a step or reset was not finished.
    standing : int
        Set by the user of this class: the number of the row that holds the lanes' states, 0 if that
        is unknown.
    keeps_last : bool
        Whether the last observation of an episode is in some row.
    done, timestep : array ``(B,)``
        Where each lane stands in its episode.
    """

    def __init__(self, lanes: Lanes, *, autoreset: bool, include_last_state: bool) -> None:
        self.lanes = lanes
        self._autoreset = autoreset
        self.keeps_last = include_last_state or not autoreset
        self.last: Row | None = None
        self.standing = 0
        self.done = np.zeros(lanes.num_lanes, bool)
        self.timestep = np.zeros(lanes.num_lanes, np.int64)
        self._rewards = np.zeros(lanes.num_lanes)
        self._returns = np.zeros(lanes.num_lanes)

    def begin(self, seeds: Sequence[int] | None, blank: Callable[[], Row]) -> None:
        """Reset every lane, by its seed or to what its own generator draws next.

        Parameters
        ----------
        seeds : sequence of int, optional
            They may be left out if the lanes have been started before.
        blank : callable
            Returns the row to write; called once the layout of observations is known.
        """
        self.last = None
        if seeds is not None:
            first = self.lanes.start(seeds)
            row = blank()
            map_nest(np.copyto, row.obs, first)
        else:
            row = blank()
            self.lanes.reset(row.obs)
        for account in (self.done, self.timestep, self._returns):
            account.fill(0)
        self.last = row

    def step(self, actions: Any, row: Row) -> None:
        """Step the lanes that are in an episode; let the others begin one, or wait."""
        # Lanes of which some were stepped, and then one raised, stand nowhere.
        last, self.last = self.last, None
        done, timestep = self.done, self.timestep
        timestep += 1
        if not np.count_nonzero(done):
            self._advance(actions, row, None)
        elif self.keeps_last:
            (ended,) = done.nonzero()
            self._step_some(actions, row, ended, last)
        else:
            timestep[done] = 1
            self._advance(actions, row, None)
        np.logical_or(row.terminated, row.truncated, out=done)
        row.done[...] = done
        row.reward[...] = self._rewards
        row.cumulated_reward[...] = self._returns
        row.timestep[...] = timestep
        if not self.keeps_last and np.count_nonzero(done):
            (ended,) = done.nonzero()
            self.lanes.reset(row.obs, ended)
            self._returns[ended] = 0.0
        self.last = row

    def _step_some(self, actions: Any, row: Row, ended: NDArray[np.intp], last: Row | None) -> None:
        """Step the lanes but for those that have `ended`."""
        if self._autoreset and self.lanes.steps_ended:
            # To leave lanes out of a step in NumPy costs more than to step them for nothing.
            self._advance(actions, row, None)
            row.terminated[ended] = row.truncated[ended] = False
            self._begin_anew(row, ended)
            return
        if len(ended) < len(self.done):
            self._rewards[ended] = 0.0
            self._advance(actions, row, (~self.done).nonzero()[0])
        else:
            self._rewards.fill(0.0)
        if self._autoreset:
            self._begin_anew(row, ended)
            return
        self.timestep[ended] -= 1
        assert last is not None

        def wait(now: NDArray[Any], before: NDArray[Any]) -> None:
            now[ended] = before[ended]

        map_nest(wait, row.obs, last.obs)
        wait(row.terminated, last.terminated)
        wait(row.truncated, last.truncated)

    def _begin_anew(self, row: Row, ended: NDArray[np.intp]) -> None:
        self.lanes.reset(row.obs, ended)
        self._rewards[ended] = 0.0
        self._returns[ended] = 0.0
        self.timestep[ended] = 0

    def _advance(self, actions: Any, row: Row, lanes: NDArray[np.intp] | None) -> None:
        self.lanes.step(actions, row.obs, self._rewards, row.terminated, row.truncated, lanes)
        self._returns += self._rewards
