"""`Swarm`: the walkers of Fractal Monte Carlo."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.planners.lineage import ROOT
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row


class Swarm(NamedTuple):
    """N walkers, as arrays; `nodes` are nodes of the `Lineage`.

    `lives` is one number for all: a walker that has fewer lives after a step is dead.
    """

    states: NDArray[np.uint8]
    obs: NDArray[np.float64]
    scores: NDArray[np.float64]
    frames: NDArray[np.int64]
    nodes: NDArray[np.int64]
    lives: float

    @classmethod
    def at(cls, state: Row, size: int) -> Swarm:
        """Return `size` walkers at the root, where observations and lives are not known."""
        states, zeros = np.repeat(np.asarray(state)[None], size, axis=0), np.zeros(size)
        return cls(states, zeros[:, None], zeros, zeros.astype(int), np.full(size, ROOT), -np.inf)

    def take(self, rows: NDArray[np.int64]) -> Swarm:
        """Return the walkers in these rows; a row may occur more than once."""
        states, obs, scores, frames, nodes, lives = self
        return Swarm(states[rows], obs[rows], scores[rows], frames[rows], nodes[rows], lives)

    def some(self, count: int, rng: np.random.Generator) -> Swarm:
        """Return at most `count` walkers: the one with the best score, and random ones."""
        if len(self.scores) <= count:
            return self
        rows = rng.permutation(len(self.scores))[:count]
        rows[0] = np.argmax(self.scores)
        return self.take(rows)


def dead_walkers(step: BatchTransition, lives: float) -> tuple[NDArray[np.bool_], float]:
    """Return which rows ``(N,)`` are dead, and the largest number of lives so far.

    A row is dead if its episode has ended, or if it has fewer lives than `lives`, the largest
    number before this step. If the lives of some rows are not known, lives are ignored.
    """
    over = step.terminateds | step.truncateds
    if not step.infos.mask("lives").all():
        return over, lives
    have = step.infos["lives"]
    return over | (have < lives), max(lives, float(have.max()))
