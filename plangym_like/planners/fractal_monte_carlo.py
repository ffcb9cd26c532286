"""Fractal Monte Carlo: a swarm of walkers that copy each other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.planners.action_sets import ActionSampler
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.games import Mask, Rules
from plangym_like.planners.nodes import ROOT
from plangym_like.planners.observations import as_vectors, ranges
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Search
from plangym_like.planners.walkers import Lineage, Walkers
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

_CAMP_EVERY = 8  # moves from one saved swarm to the next
_CAMPS = 128  # saved swarms that are kept
_SETBACKS = 6  # failures in which the swarm goes back; after them, it continues with one life less
_MOST = 8  # after going back, a swarm has at most this multiple of `walkers`


@stored
@dataclass
class _Memory:
    """The state of a search."""

    lineage: Lineage
    size: int  # the number of walkers to begin with
    start: Walkers
    # All have the most lives that any of them has had; a walker with fewer is dead.
    swarm: Walkers
    camps: deque[Walkers]  # earlier swarms to go back to
    leader: int = ROOT  # the node of the best walker
    frames: int = 0  # that it has played
    record: float = -np.inf  # the highest score since the last new episode
    setbacks: int = 0  # failures since then
    moves: int = 0  # since the last of them

    def start_again(self) -> None:
        """Start another episode, with the first swarm."""
        self.swarm, self.setbacks, self.record, self.moves = self.start, 0, -np.inf, 0
        self.camps = deque([self.start], maxlen=_CAMPS)

    def go_back(self) -> None:
        """Continue from an earlier swarm.

        Consecutive failures alternately add walkers and go back further.
        """
        for _ in range(min(2 ** ((self.setbacks + 1) // 2), len(self.camps))):
            self.swarm = self.camps.pop()
        self.camps.append(self.swarm)
        self.setbacks, self.moves = min(self.setbacks + 1, 30), 0
        rows = np.arange(self.size * min(2 ** ((self.setbacks + 1) // 2), _MOST))
        self.swarm = self.swarm.take(rows % len(self.swarm.scores))


class FractalMonteCarlo(Planner):
    """Let a swarm of walkers play, and copy walkers that have high scores and are far from others.

    S. Hernandez Cerezo and G. Duran-Ballester, "Fractal AI: a fragile theory of intelligence",
    2018, arXiv:1803.05049. All walkers start from one state. Then, until the budget is spent:

    1. Every walker holds a random action for a random time, in one batch.
    2. Every walker gets a virtual reward, ``score**alpha * distance**beta``. The score is the sum
       of the walker's rewards. The distance is measured between its observation and that of a
       random companion. `relativize` brings scores and distances to the same scale.
    3. Every walker is compared with another random companion, and becomes a copy of it with
       probability ``(companion's - own) / own``, where both are virtual rewards. A walker is dead
       if its episode has ended or it has lost a life. Dead walkers always become copies of living
       ones.

    The paper plans each action with a new swarm of a fixed depth. Here one swarm plays the whole
    episode, and the plan is the path of the best walker. There are four more differences:

    - Each number of an observation is divided by its range. If any number is unbounded, all are
      divided by their standard deviations among the walkers instead.
    - The living walker with the best score is never replaced.
    - Companions are always living walkers.
    - If all walkers die, the search goes back to an earlier swarm. Repeated failures alternately
      double the number of walkers and how far the search goes back, until the score is higher than
      ever before. After six failures, walkers continue with one life less instead. If all walkers
      die and an episode was truncated, the search starts again from the first state.

    An episode counts as a plan if it has ended or has a score greater than 0. If rewards are
    negative, there is therefore no score until an episode has ended.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite or a bounded box; its observations are numbers.
    walkers : int
        The number of walkers. If all of them die, more may be added (see above).
    hold : int
        The longest time that an action is held, in steps of the environment; 1 if the environment
        says which actions are legal.
    alpha, beta : float
        The exponents of the score and of the distance, 0 or greater. In the paper, they are 1.
    **rules
        See `Rules`.

    Notes
    -----
    ``Plan.info["frames"]`` is the number of frames of the plan.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1", remove_time_limit=False)
    >>> state, obs, info = env.reset(seed=0)
    >>> FractalMonteCarlo(env, hold=2).plan(state, budget=60_000, seed=0).score
    500.0
    """

    def __init__(
        self,
        env: PlanEnv,
        walkers: int = 16,
        hold: int = 8,
        alpha: float = 2.0,
        beta: float = 1.0,
        **rules: Unpack[Rules],
    ) -> None:
        super().__init__(env, **rules)
        self.walkers, self.hold = as_count("walkers", walkers), as_count("hold", hold)
        self.alpha, self.beta = as_number("alpha", alpha, 0.0), as_number("beta", beta, 0.0)
        self._sample = ActionSampler(env, self.name)
        self._ranges = ranges(env.observation_space, self.name)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _Memory:
        size = search.fit(self.walkers)
        start = Walkers.at(state, search, size)
        return _Memory(Lineage(self.env), size, start, start, deque([start], maxlen=_CAMPS))

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _Memory = search.memory
        while search.has(len(memory.swarm.scores)):
            if memory.moves and memory.moves % _CAMP_EVERY == 0:
                memory.camps.append(_some(memory.swarm, memory.size, search.rng))
            memory.moves += 1
            step, dead = self._move(memory, search)
            over = step.terminateds | step.truncateds
            search.report(search.best.score, f"episode of {memory.frames:,} frames")
            if dead.all() and memory.setbacks >= _SETBACKS and not over.all():
                # Going back has not helped: continue with one life less.
                lives = float(step.infos["lives"][~over].max())
                memory.swarm = memory.swarm._replace(lives=np.full_like(memory.swarm.lives, lives))
                dead = over | (step.infos["lives"] < lives)
            if not dead.all():
                swarm = memory.swarm.take(self._copies(memory.swarm, step.obs, dead, search.rng))
                if np.max(swarm.scores) > memory.record:
                    memory.record, memory.setbacks = float(np.max(swarm.scores)), 0
                    swarm = _some(swarm, memory.size, search.rng)
                memory.swarm = swarm
            elif step.truncateds.any():  # an episode has reached its limit
                memory.start_again()
            else:
                memory.go_back()
        actions, dt, rewards = memory.lineage.moves(memory.leader)
        frames = memory.frames
        return search.plan(state, actions, rewards, dt, ended=search.best.ended, frames=frames)

    def _move(self, memory: _Memory, search: Search) -> tuple[BatchTransition, NDArray[np.bool_]]:
        """Let all walkers take an action; return the step, and which of them are dead."""
        swarm, rng = memory.swarm, search.rng
        count = len(swarm.scores)
        actions, dt = self._sample(rng, count), rng.integers(1, self.hold + 1, count)
        if search.turns.legal is not None:  # an action might not be legal for longer
            actions, dt = self._sample.among(actions, swarm.legal, rng), np.ones_like(dt)
        step, after = swarm.step(search, memory.lineage, actions, dt)
        over = step.terminateds | step.truncateds
        dead = over | (after.lives < swarm.lives)
        most = np.maximum(swarm.lives, np.max(after.lives))
        memory.swarm = swarm = after._replace(lives=most)
        row = search.keep_episode(swarm.nodes, swarm.scores, over)
        if search.best.found is None:
            row = int(np.argmax(swarm.scores))
        if row is not None:
            memory.leader, memory.frames = int(swarm.nodes[row]), int(swarm.frames[row])
        return step, dead

    def _copies(
        self, swarm: Walkers, obs: Any, dead: Mask, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return the row ``(N,)`` that each walker continues from: its own or a companion's."""
        vectors = as_vectors(obs)
        size, alive = len(dead), np.flatnonzero(~dead)
        companion = alive[rng.integers(len(alive), size=size)]
        spread = vectors.std(axis=0) if self._ranges is None else self._ranges
        difference = (vectors - vectors[companion]) / np.where(spread > 0, spread, 1.0)
        distance = np.sqrt((difference * difference).sum(axis=1))
        # Logarithms, because virtual rewards may be too large or too small for a float.
        virtual = self.alpha * np.log(relativize(swarm.scores))
        virtual += self.beta * np.log(relativize(distance))
        companion = alive[rng.integers(len(alive), size=size)]
        gain = np.expm1(np.minimum(virtual[companion] - virtual, 1.0))
        copies = dead | (rng.random(size) < gain)
        copies[alive[np.argmax(swarm.scores[alive])]] = False
        return np.where(copies, companion, np.arange(size))


def _some(swarm: Walkers, count: int, rng: np.random.Generator) -> Walkers:
    """Return at most `count` walkers: the one with the best score, and random ones."""
    if len(swarm.scores) <= count:
        return swarm
    rows = rng.permutation(len(swarm.scores))[:count]
    rows[0] = np.argmax(swarm.scores)
    return swarm.take(rows)


def relativize(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Map values ``(N,)`` of any scale to positive values around 1, and keep their order.

    With ``z = (values - mean) / standard deviation``, the result is ``1 + log(1 + z)`` if
    ``z > 0``, else ``exp(z)`` (arXiv:1803.05049, section 2.2.3). This limits the weight of
    outliers.

    >>> relativize(np.array([0.0, 1.0, 2.0])).round(3)
    array([0.294, 1.   , 1.8  ])
    """
    deviations = values - values.mean()
    spread = np.sqrt((deviations * deviations).mean())  # `np.std` would take twice as long
    if not spread > 0:
        return np.ones(len(values))
    z = deviations / spread
    # The exponential of numbers below -745 is 0, which has no logarithm.
    virtual: NDArray[np.float64] = np.exp(np.maximum(np.minimum(z, 0.0), -700.0))
    virtual += np.log1p(np.maximum(z, 0.0))
    return virtual
