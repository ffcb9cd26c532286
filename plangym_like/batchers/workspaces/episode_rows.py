"""`EpisodeRows`: the rows that environments write to a workspace at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plangym_like.batchers.episode_lanes import EpisodeLanes, Outcome
from plangym_like.batchers.start_states import StartStates
from plangym_like.vector.lanes import Lanes
from plangym_like.vector.tree import Leaf, tree_map

# The fields of a row after the observation, with the names that workspaces use.
MEASURES = {
    "terminated": Leaf((), torch.bool),
    "truncated": Leaf((), torch.bool),
    "done": Leaf((), torch.bool),
    "reward": Leaf((), torch.float32),
    "cumulated_reward": Leaf((), torch.float32),
    "timestep": Leaf((), torch.int64),
}


class Row(NamedTuple):
    """One row for all lanes: `obs`, a tree of arrays ``(B, ...)``, and the fields in `MEASURES`."""

    obs: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    done: NDArray[np.bool_]
    reward: NDArray[np.float32]
    cumulated_reward: NDArray[np.float32]
    timestep: NDArray[np.int64]


class EpisodeRows:
    """Steps lanes, and writes each step into a `Row`, whose arrays must hold zeros beforehand.

    Parameters
    ----------
    lanes : Lanes
    autoreset : bool
        Whether a lane whose episode has ended begins another episode in the next row. Otherwise,
        it waits.
    include_last_state : bool
        If ``False``, and `autoreset` is true, a lane whose episode ends begins the next episode in
        the same row. The row then holds the first observation of the next episode.

    Attributes
    ----------
    last : Row or None
        The last row that was written; ``None`` if a step or reset was not finished.
    last_number : int
        The number that the user of this object gave to `last`; 0 if it has none. It is kept here
        because setting attributes of torch modules is slow.
    keeps_last : bool
        Whether rows hold the last observations of episodes.
    done : array bool ``(B,)``
        Which lanes' episodes had ended in the last row.
    """

    def __init__(self, lanes: Lanes, *, autoreset: bool, include_last_state: bool) -> None:
        self.lanes = lanes
        self.keeps_last = include_last_state or not autoreset
        self.last: Row | None = None
        self.last_number = 0
        self._autoreset = autoreset
        self._episodes = EpisodeLanes(lanes)
        self.done = np.zeros(lanes.num_lanes, bool)
        self._rewards = np.zeros(lanes.num_lanes)
        self._returns = np.zeros(lanes.num_lanes)

    def seed(self, seed: Sequence[int]) -> None:
        """Set the seed of the resets after episodes that begin in given states.

        See `EpisodeLanes`.
        """
        self._episodes = EpisodeLanes(self.lanes, seed)

    def begin(
        self,
        seeds: Sequence[int] | None,
        states: StartStates | None,
        blank: Callable[[], Row],
    ) -> None:
        """Begin an episode in every lane; see `EpisodeLanes.begin`.

        Parameters
        ----------
        blank : callable
            Returns the row to write. It is called when the layout of observations is known.
        """
        self.last = None
        first = self._episodes.begin(seeds, states=states)
        row = blank()
        tree_map(np.copyto, row.obs, first)
        self.done.fill(False)
        self._returns.fill(0.0)
        self.last = row

    def step(self, actions: Any, row: Row) -> None:
        """Step the lanes whose episodes have not ended; the others begin an episode or wait."""
        # `last` stays None if a lane raises, since some of the others have been stepped already.
        last, self.last = self.last, None
        assert last is not None
        episodes, done = self._episodes, self.done
        outcome = Outcome(row.obs, self._rewards, row.terminated, row.truncated, done)
        if not self.keeps_last or not np.count_nonzero(done):
            ended = episodes.step(actions, outcome)
            self._returns += self._rewards
        elif self._autoreset:
            (ended,) = done.nonzero()
            episodes.step_or_restart(actions, outcome, ended)
            self._returns += self._rewards
            self._returns[ended] = 0.0
        else:
            (episodes.running,) = np.logical_not(done).nonzero()
            before = Outcome(last.obs, last.reward, last.terminated, last.truncated, last.done)
            ended = episodes.step(actions, outcome, before)
            self._returns += self._rewards
        row.done[...] = done
        row.reward[...] = self._rewards
        row.cumulated_reward[...] = self._returns
        row.timestep[...] = episodes.timestep
        if not self.keeps_last and len(ended):
            episodes.restart(row.obs, ended)
            self._returns[ended] = 0.0
        self.last = row
