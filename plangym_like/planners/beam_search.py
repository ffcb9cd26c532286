"""Beam search: expand only the best states of each depth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import ActionSampler, all_actions
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.games import Mask, Rules
from plangym_like.planners.nodes import ROOT
from plangym_like.planners.observations import digests, make_key
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Search
from plangym_like.planners.walkers import Lineage, Walkers
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count


@stored
@dataclass
class _Memory:
    """The state of a search."""

    lineage: Lineage
    width: int  # of the current search
    beam: Walkers
    depth: int = 0  # of `beam`
    # The best score at which each key was in the beam.
    known: dict[Hashable, float] = field(default_factory=dict)
    leaf: int = ROOT  # the node of the best state of the last depth
    complete: bool = True  # whether the width has not limited the current search
    exhausted: bool = False  # whether it did not limit the last one: a wider beam finds nothing new


class BeamSearch(Planner):
    """Expand the `width` best states of each depth in one batch.

    The algorithm is described in B. T. Lowerre, "The HARPY speech recognition system", 1976. States
    are compared by the sum of their rewards, then by `heuristic`, then at random. A state is
    dropped if it was in the beam before with a score at least as high.

    When the beam has reached `depth`, or has no more states, the search begins again with twice the
    width, as in W. Zhang, "Complete anytime beam search", AAAI 1998. If the budget is too small for
    a whole beam, only its best states are expanded. The search ends when the budget is spent, or
    when the width did not limit the search, so that a wider beam would find nothing new.

    An episode counts as a plan if it has ended, has reached `depth`, or has a score greater than 0.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite or a bounded box.
    width : int
        The number of states that are kept at each depth, in the first search.
    depth : int, optional
        The largest number of actions in a plan; by default, the episode or the budget limits it.
    heuristic : callable, optional
        ``heuristic(obs, infos, states)`` returns ``(N,)`` numbers. Among states with equal scores,
        larger numbers are better. The function may remember earlier states to measure novelty.
    key : "state", "obs" or callable
        Which states count as the same, as in `BestFirst`: states with equal rows, with equal
        observations, or with equal values of ``key(obs, infos, states)``, which returns an array
        ``(N, ...)`` or N hashable objects. Rows of the same situation may differ, for example in
        random generators and step counts.
    dt : int
        How long each action is held.
    branches : int
        The number of random actions for each state, if the action space is a box.
    **rules
        See `Rules`.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("FrozenLake-v1", map_name="8x8", is_slippery=False)
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = BeamSearch(env, key="obs").plan(state, budget=10_000, seed=0)
    >>> plan.score, len(plan)  # no path to the goal is shorter
    (1.0, 14)
    """

    def __init__(
        self,
        env: PlanEnv,
        width: int = 64,
        depth: int | None = None,
        heuristic: Callable[..., Any] | None = None,
        key: str | Callable[..., Any] = "state",
        dt: int = 1,
        branches: int = 16,
        **rules: Unpack[Rules],
    ) -> None:
        super().__init__(env, **rules)
        self.width, self.dt = as_count("width", width), as_count("dt", dt)
        self.depth = None if depth is None else as_count("depth", depth)
        self.branches = as_count("branches", branches)
        if heuristic is not None and not callable(heuristic):
            raise InputError(
                f"heuristic must be a function of (obs, infos, states), got {heuristic!r}"
            )
        self.heuristic, self.key = heuristic, make_key(key)
        is_box = isinstance(env.action_space, Box)
        self._sample = ActionSampler(env, self.name) if is_box else None
        self._all = None if is_box else all_actions(env, self.name)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _Memory:
        return _Memory(Lineage(self.env), self.width, Walkers.at(state, search))

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _Memory = search.memory
        branches = self.branches if self._all is None else len(self._all)
        while True:
            if not len(memory.beam.nodes) or memory.depth == self.depth:
                memory.exhausted = memory.complete
                memory.width = min(2 * memory.width, sys.maxsize)  # larger ones are impossible
                memory.beam, memory.known = Walkers.at(state, search), {}
                memory.depth, memory.complete = 0, True
            fit = search.fit(len(memory.beam.nodes), branches)
            if not search.has(fit * branches) or memory.exhausted:
                break
            self._expand(memory, search, fit)
        best = search.best
        node = memory.leaf if best.found is None else best.found
        taken, dt, rewards = memory.lineage.moves(node)
        return search.plan(state, taken, rewards, dt, ended=best.ended)

    def _expand(self, memory: _Memory, search: Search, count: int) -> None:
        """Step all actions of the first `count` states of the beam, and choose the next beam."""
        beam, memory.depth = memory.beam, memory.depth + 1
        memory.complete = memory.complete and count == len(beam.nodes)
        parents, actions = self._branches(beam.legal[:count], search.rng)
        step, after = beam.take(parents).step(search, memory.lineage, actions, self.dt)
        nodes, scores = after.nodes, after.scores
        over = step.terminateds | step.truncateds
        search.keep_episode(nodes, scores, over, memory.depth == self.depth)
        search.report(search.best.score, f"width {memory.width:,}, depth {memory.depth:,}")
        order = self._ranking(step, scores, search.rng)
        memory.leaf = int(nodes[order[0]])
        keys = digests(self.key(step.obs, step.infos, step.states), len(nodes))
        alive = order[~over[order]]
        rows, are_all = _first_visits(keys, scores, alive, memory.known, memory.width)
        memory.complete = memory.complete and are_all and self._all is not None
        memory.beam = after.take(rows)

    def _branches(
        self, legal: Mask, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the parent ``(N,)`` and the action ``(N, ...)`` of each new state."""
        if self._all is None:
            assert self._sample is not None
            actions = self._sample(rng, len(legal) * self.branches)
            return np.repeat(np.arange(len(legal)), self.branches), actions
        parents, chosen = legal.nonzero()
        return parents, self._all[chosen]

    def _ranking(
        self, step: BatchTransition, scores: NDArray[np.float64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return the indices ``(N,)`` of the rows of `step`, from the best row to the worst."""
        keys = [rng.random(len(scores)), -scores]
        if self.heuristic is not None:
            values = np.asarray(self.heuristic(step.obs, step.infos, step.states), np.float64)
            if values.shape != scores.shape:
                raise InputError(
                    f"heuristic must return an array ({len(scores)},), got {values.shape}"
                )
            keys.insert(1, -values)
        return np.lexsort(keys)


def _first_visits(
    keys: Sequence[Hashable],
    scores: NDArray[np.float64],
    order: NDArray[np.int64],
    known: dict[Hashable, float],
    width: int,
) -> tuple[NDArray[np.int64], bool]:
    """Return the first `width` rows of `order` that beat the best score of their key so far.

    `known` holds the best scores, and is updated. Also return whether these are all such rows.
    """
    found: list[int] = []
    are_all = True
    for row in order.tolist():
        score = float(scores[row])
        if known.get(keys[row], -np.inf) < score:
            if len(found) == width:
                are_all = False
                break
            known[keys[row]] = score
            found.append(row)
    return np.array(found, np.int64), are_all
