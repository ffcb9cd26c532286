"""Walkers that play at the same time, and the record of all their steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.games import Mask
from plangym_like.planners.nodes import ROOT, Floats, Ints, Nodes, Rows
from plangym_like.planners.search import Search
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row


@stored
class Lineage(Nodes):
    """The action, dt and reward of every step, so that paths can be read back.

    It holds no states: a step takes about 24 bytes, plus the size of its action.

    Parameters
    ----------
    env : PlanEnv

    Examples
    --------
    >>> import plangym_like
    >>> lineage = Lineage(plangym_like.make("CartPole-v1"))
    >>> nodes = lineage.record([ROOT, ROOT], [0, 1], 1, [1.0, 1.0])
    >>> nodes = lineage.record(nodes[[1, 1]], [0, 1], 2, [2.0, 2.0])
    >>> lineage.moves(nodes[0])
    (array([1, 0]), array([1, 2]), array([1., 2.]))
    """

    def __init__(self, env: PlanEnv) -> None:
        space = env.action_space
        action = ("action", space.dtype, space.shape or ())
        super().__init__(action, ("dt", np.int32), ("reward", np.float64))

    def record(self, parents: Any, actions: Any, dt: Any, rewards: Any) -> Ints:
        """Record N steps from the nodes `parents`, and return the nodes ``(N,)`` they lead to."""
        return self.add(parents, action=actions, dt=dt, reward=rewards)

    def moves(self, node: int) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
        """Return the actions ``(T, ...)``, dt and rewards ``(T,)`` on the path to `node`."""
        path = self.path(node)
        return self["action"][path], self["dt"][path].astype(np.int64), self["reward"][path]


@stored
class Walkers(NamedTuple):
    """N walkers, as arrays.

    `scores` and `frames` are sums since the first state, `nodes` are nodes of the `Lineage`, and
    `legal` ``(N, A)`` says which actions are legal. `lives` are those of the last step; minus
    infinity if infos lack them.
    """

    states: Rows
    scores: Floats
    frames: NDArray[np.int64]
    lives: Floats
    nodes: Ints
    legal: Mask

    @classmethod
    def at(cls, state: Row, search: Search, count: int = 1) -> Walkers:
        """Return walkers at the first state of a search."""
        zeros, row = np.zeros(count), np.zeros(count, np.intp)
        states, legal = np.array(state)[None][row], search.legal_starts()[row]
        return cls(states, zeros, zeros.astype(int), zeros - np.inf, row + ROOT, legal)

    def take(self, rows: Any) -> Walkers:
        """Return the walkers in these rows; a row may occur more than once."""
        columns: Any = (column[rows] for column in self)
        return Walkers(*columns)

    def step(
        self, search: Search, lineage: Lineage, actions: NDArray[Any], dt: Any
    ) -> tuple[BatchTransition, Walkers]:
        """Let each walker take an action; return the results, and the walkers afterwards."""
        step = search.step_batch(actions, self.states, dt)
        has_lives = step.infos.mask("lives").all()
        return step, Walkers(
            step.states,
            self.scores + step.rewards,
            self.frames + step.infos["n_step"],
            step.infos["lives"].astype(np.float64) if has_lives else self.lives,
            lineage.record(self.nodes, actions, dt, step.rewards),
            search.legal_after(step),
        )
