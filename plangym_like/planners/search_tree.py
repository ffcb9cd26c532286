"""`SearchTree`, which many descents grow at a time, and `TreePlanner`, which searches with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.planners.action_sets import all_actions, index_of
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.nodes import ROOT, Floats, Ints, Nodes
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Best, Search
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

# Returns scores ``(n, A)`` of the actions of nodes ``(n,)``. The other arguments ``(n, 1)`` are
# numbers of descents of this round: those that count as having taken the action already, and all
# descents that reach the node.
ScoreFn = Callable[[Ints, Ints, Ints], Floats]

# Steps actions ``(n,)`` of nodes ``(n,)``, and returns the nodes of the outcomes; returns None if
# the budget is spent.
DrawFn = Callable[[Ints, Ints], Ints | None]

# Seeds of steps and rollouts are less than this.
SEEDS = 2**31

# Untried actions get at least this score, which is higher than all others (see `tree_bounds`).
FIRST = 1e18


class Level(NamedTuple):
    """One step of n descents, in arrays ``(n,)``; `ids` are the numbers of the descents.

    They take `actions` from `nodes` to `kids`, which are nodes or leaves as in `Descents.last`.
    """

    ids: Ints
    nodes: Ints
    actions: Ints
    kids: Ints


class Descents(NamedTuple):
    """One round of B descents from the root.

    Attributes
    ----------
    levels : list of Level
    last : array ``(B,)``
        Where each descent ends: a node, or ``-1 - i`` for leaf i.
    parents, actions : array ``(L,)``
        The transitions that lead to the leaves, and have to be stepped.
    """

    levels: list[Level]
    last: Ints
    parents: Ints
    actions: Ints

    def without_repeats(self) -> Descents:
        """Return the descents; if several end at the same node, keep only the first."""
        _, first = np.unique(self.last, return_index=True)
        kept = np.zeros(len(self.last), bool)
        kept[first] = True
        levels = [Level(*(part[kept[level.ids]] for part in level)) for level in self.levels]
        return self._replace(levels=levels)

    def ends(self, new: Ints) -> Ints:
        """Return the nodes ``(B,)`` where descents end; leaf i has become node ``new[i]``."""
        return _resolved(self.last, new)


@stored
class SearchTree(Nodes):
    """The nodes of a tree search.

    Parameters
    ----------
    num_actions : int
        A, the number of actions of each node.
    state : array uint8
        The root's state; an empty array if the search keeps no states.
    outcomes : int
        K, the largest number of outcomes of an action: 1 unless there are chance nodes.
    widening : float
        After n visits, an action has at most ``ceil(n ** widening)`` samples of its outcome
        (progressive widening, A. Couetoux et al. 2011, "Continuous upper confidence trees").

    Attributes
    ----------
    fields of a node
        ``action`` (the index of the action that leads to the node), ``seed``, ``reward``,
        ``score`` (the sum of the rewards from the root), ``value`` (set by the planner), ``ended``,
        ``samples`` (how often this outcome was drawn), ``passes`` (how many descents passed through
        the node), ``key`` (distinguishes outcomes), ``visits`` and ``total`` ``(A,)`` (number and
        sum of the returns of each action), ``prior`` ``(A,)``, ``closed`` ``(A,)`` (see `close`),
        ``child`` ``(A,)`` (the outcome of each action that was found last), ``next`` (the outcome
        of the same action that was found before this one) and ``state``.
    low, high : float
        The range of the mean returns that were seen.
    """

    def __init__(
        self, num_actions: int, state: NDArray[np.uint8], outcomes: int = 1, widening: float = 1.0
    ) -> None:
        self.num_actions, self.outcomes, self.widening = num_actions, outcomes, widening
        self.low, self.high = np.inf, -np.inf
        super().__init__(
            *((name, np.intp) for name in ("action", "seed", "samples", "passes", "key", "next")),
            *((name, float) for name in ("reward", "score", "value")),
            *((name, float, (num_actions,)) for name in ("visits", "total", "prior")),
            ("child", np.intp, (num_actions,)),
            ("closed", bool, (num_actions,)),
            ("ended", bool),
            ("state", np.uint8, state.shape),
            links=("child", "next"),
        )
        self["action"][ROOT], self["seed"][ROOT], self["samples"][ROOT] = -1, -1, 1
        self["state"][ROOT] = state

    def expand(self, parents: Ints, actions: Ints, **fields: Any) -> Ints:
        """Append outcomes of different actions, and return their nodes ``(n,)``."""
        new = self.add(parents, **{"action": actions, "samples": 1, "seed": -1, **fields})
        self["score"][new] = self["score"][parents] + self["reward"][new]
        self["next"][new] = self["child"][parents, actions]
        self["child"][parents, actions] = new
        return new

    def outcomes_of(self, nodes: Ints, actions: Ints) -> Ints:
        """Return the known outcomes ``(n, k)`` of actions, the last one first; -1 for none."""
        found = [self["child"][nodes, actions]]
        while (found[-1] >= 0).any():
            found.append(np.where(found[-1] >= 0, self["next"][found[-1]], -1))
        return np.stack(found[: max(1, len(found) - 1)], axis=1)

    def add_outcomes(self, parents: Ints, actions: Ints, keys: Ints, **fields: Any) -> Ints:
        """Append samples of outcomes, and return their nodes ``(n,)``.

        A sample with the key of a known outcome of the same action is counted as that outcome.
        Other samples become new outcomes, until the action has the maximum number of outcomes;
        after that, each is counted as a known outcome, in proportion to their numbers of samples.
        """
        found = np.full(len(parents), -1)
        for row in range(len(parents)):
            one = slice(row, row + 1)
            (known,) = self.outcomes_of(parents[one], actions[one])
            known = known[known >= 0]
            same = known[self["key"][known] == keys[row]]
            if not len(same) and len(known) == self.outcomes:
                shares = np.cumsum(self["samples"][known])
                same = known[np.searchsorted(shares, keys[row] % shares[-1], "right") :]
            if len(same):
                found[row] = same[0]
                self["samples"][same[0]] += 1
            else:
                part = {name: values[one] for name, values in fields.items()}
                found[row] = self.expand(parents[one], actions[one], key=keys[one], **part)[0]
        return found

    def descend(
        self, count: int, score: ScoreFn, draw: DrawFn | None = None, depth: float = np.inf
    ) -> Descents:
        """Walk down from the root `count` times, always to an action with the highest score.

        All descents take a step together. When k descents reach a node together, each action of the
        node is scored k times: as if 0, 1, ..., k - 1 of these descents had already taken that
        action. The k highest of all these scores decide which actions the descents take. If an
        action's score falls each time the action is taken, k descents one after the other would
        make the same choices.

        A descent ends at a node that no descent has reached before, or where the episode has ended.

        Parameters
        ----------
        count : int
            The number of descents, B.
        score, draw : callable
            See `ScoreFn` and `DrawFn`. `draw` is needed if there are chance nodes. If it returns
            None, the descents end.
        depth : int
            The maximum number of steps of a descent.
        """
        levels: list[Level] = []
        last = np.zeros(count, np.intp)
        ids, at = np.arange(count), np.zeros(count, np.intp)
        leaves = np.zeros(0, np.intp)
        while len(ids) and len(levels) < depth:
            order = np.argsort(at, kind="stable")
            ids, at = ids[order], at[order]
            starts, sizes, ranks = _groups(at)
            actions = _best(score(at, ranks[:, None], sizes[:, None]), starts, ranks)
            if draw is None:
                kids = self["child"][at, actions]
                (empty,) = (kids < 0).nonzero()
                if len(empty):  # a leaf that several descents find is stepped once
                    edges = at[empty] * self.num_actions + actions[empty]
                    new, which = np.unique(edges, return_inverse=True)
                    kids[empty] = -1 - len(leaves) - which
                    leaves = np.append(leaves, new)
            else:
                order = np.lexsort((actions, at))
                ids, at, actions = ids[order], at[order], actions[order]
                drawn = self._outcomes(at, actions, draw)
                if drawn is None:
                    last[ids] = at
                    break
                kids = drawn
            levels.append(Level(ids, at, actions, kids))
            last[ids] = kids
            (known,) = (kids >= 0).nonzero()
            nodes = kids[known]
            on = known[(self["passes"][nodes] > 0) & ~self["ended"][nodes]]
            ids, at = ids[on], kids[on]
        return Descents(levels, last, *np.divmod(leaves, self.num_actions))

    def _outcomes(self, nodes: Ints, actions: Ints, draw: DrawFn) -> Ints | None:
        """Return an outcome ``(n,)`` for each action: a new sample or a known outcome.

        Each known outcome is visited in proportion to the number of its samples.
        """
        starts, sizes, ranks = _groups(nodes * self.num_actions + actions)
        known = self.outcomes_of(nodes, actions)
        samples = np.where(known >= 0, self["samples"][known], 0)
        limit = np.ceil((self["visits"][nodes, actions] + sizes) ** self.widening)
        fresh = ranks < limit - samples.sum(axis=1)
        due = -(self["passes"][known] + ranks[:, None] + 1) / np.maximum(samples, 1)
        due[known < 0] = -np.inf
        kids = known[np.arange(len(nodes)), _best(due, starts, ranks)]
        fresh |= kids < 0
        if fresh.any():
            sampled = draw(nodes[fresh], actions[fresh])
            if sampled is None:
                return None
            kids[fresh] = sampled
        return kids

    def back_up(self, descents: Descents, new: Ints, values: Floats, discount: float) -> None:
        """Add the return of each descent to the actions on its path.

        Parameters
        ----------
        descents : Descents
        new : array ``(L,)``
            The nodes of the leaves.
        values : array ``(B,)``
            The return that follows the last node of each descent.
        discount : float
        """
        values = values.copy()
        for level in reversed(descents.levels):
            rewards = self["reward"][_resolved(level.kids, new)]
            values[level.ids] = rewards + discount * values[level.ids]
            self.record(level, new, values[level.ids])
            closed = self["closed"][level.nodes]
            if closed.any():  # the returns of closed actions are certain
                returns = self["total"][level.nodes] / np.maximum(self["visits"][level.nodes], 1)
                certain = np.where(closed, returns, -np.inf).max(axis=1)
                values[level.ids] = np.maximum(values[level.ids], certain)

    def close(self, descents: Descents, new: Ints, discount: float) -> None:
        """Close the actions whose whole subtree is known, and give them their best return.

        Without chance nodes, which this method assumes, another descent through a closed action
        would find nothing new (compare M. Winands, Y. Bjornsson and J. Saito, "Monte-Carlo tree
        search solver", 2008). Later descents through its node return at least this best return.
        """
        for level in reversed(descents.levels):
            kids = _resolved(level.kids, new)
            over, closed = self["ended"][kids], self["closed"][kids].all(axis=1)
            (known,) = (over | closed).nonzero()
            nodes, actions, kids = level.nodes[known], level.actions[known], kids[known]
            returns = self["total"][kids] / np.maximum(self["visits"][kids], 1)
            best = np.where(over[known], 0.0, returns.max(axis=1))
            exact = self["reward"][kids] + discount * best
            self._table["closed"][nodes, actions] = True
            self._table["total"][nodes, actions] = self["visits"][nodes, actions] * exact

    def record(self, level: Level, new: Ints, returns: Floats) -> None:
        """Add the returns ``(n,)`` to the statistics of a level's actions."""
        edges = level.nodes, level.actions
        np.add.at(self._table["passes"], _resolved(level.kids, new), 1)
        np.add.at(self._table["visits"], edges, 1)
        np.add.at(self._table["total"], edges, returns)
        means = self["total"][edges] / self["visits"][edges]
        self.low, self.high = min(self.low, means.min()), max(self.high, means.max())

    def scaled(self, nodes: Ints) -> tuple[Floats, Floats]:
        """Return the totals and visits ``(n, A)`` of nodes, with mean returns scaled to [0, 1]."""
        visits, totals = self["visits"][nodes], self["total"][nodes]
        if self.high > self.low:
            return (totals - self.low * visits) / (self.high - self.low), visits
        return np.zeros_like(totals), visits

    def below(self, root: int) -> SearchTree:
        """Return the subtree of the node `root` as a new tree."""
        tree = self.subtree(root)
        tree["score"][:] -= self["score"][root]
        return tree


def _resolved(kids: Ints, new: Ints) -> Ints:
    """Return `kids`, with every ``-1 - i`` replaced by ``new[i]``."""
    (leaves,) = (kids < 0).nonzero()
    if not len(leaves):
        return kids
    nodes = kids.copy()
    nodes[leaves] = new[-1 - kids[leaves]]
    return nodes


def _groups(keys: Ints) -> tuple[Ints, Ints, Ints]:
    """Group equal keys; the keys must be sorted.

    For each key, return the start and the size of its group, and the key's place in the group.
    """
    rows = np.arange(len(keys))
    if len(keys) == 1:
        return rows, rows + 1, rows
    start, end = keys.searchsorted(keys), keys.searchsorted(keys, "right")
    return start, end - start, rows - start


def _best(scores: Floats, starts: Ints, ranks: Ints) -> Ints:
    """Return one column for each of the n rows, ``(n,)``.

    A group of k rows gets the columns of the k highest scores in the group; a column may recur.
    """
    if not ranks.any():
        return np.asarray(scores.argmax(axis=1))
    width = scores.shape[1]
    order = np.lexsort((-scores.ravel(), np.repeat(starts, width)))
    columns: Ints = order[starts * width + ranks] % width
    return columns


@stored
@dataclass
class TreeMemory:
    """The state of a tree search; `horizon` is only used by `OpenLoopMCTS`."""

    tree: SearchTree
    descents: int = 0
    horizon: int = 0


class TreePlanner(Planner):
    """The base class of tree searches that run many descents at a time.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    batch : int
        The number of descents in a round.
    discount : float
        The factor for the return after a step, from 0 to 1.
    virtual_loss : float
        From 0 to 1. In the mean return of an action, each descent under way counts as this many
        returns of 0. In the number of visits, it counts as 1.
    dt : int
        How long each action is held.

    Attributes
    ----------
    actions : array ``(A, *action_shape)``
        All actions, in the order used by the arrays of shape ``(A,)`` in `Plan.info`.
    """

    def __init__(
        self, env: PlanEnv, batch: int, discount: float, virtual_loss: float, dt: int
    ) -> None:
        super().__init__(env)
        self.actions: NDArray[Any] = all_actions(env, self.name)
        self.batch, self.dt = as_count("batch", batch), as_count("dt", dt)
        self.discount = as_number("discount", discount, 0.0, 1.0)
        self.virtual_loss = as_number("virtual_loss", virtual_loss, 0.0, 1.0)

    def _new_tree(self, state: Row) -> SearchTree:
        return SearchTree(len(self.actions), state)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> TreeMemory:
        """Keep the subtree of the action that was played, if it led to `state`."""
        tree = None
        if kept is not None:
            old: SearchTree = kept.memory.tree
            action = index_of(self.actions, kept.action)
            (children,) = old.outcomes_of(np.array([ROOT]), np.array([action]))
            same = (children >= 0) & (old["state"][children] == state).all(axis=1)
            if action >= 0 and same.any():
                child = int(children[same.argmax()])
                tree = self._kept_tree(kept, search, child)
        return TreeMemory(self._new_tree(state) if tree is None else tree)

    @staticmethod
    def _kept_tree(kept: Kept, search: Search, child: int) -> SearchTree | None:
        """Return the subtree of a child of the root unless it is complete; keep its best plan."""
        old: SearchTree = kept.memory.tree
        if kept.best.found is not None:
            actions, rewards, seeds = kept.best.found
            leads_there = (actions[0], seeds[0]) == (old["action"][child], old["seed"][child])
            if leads_there and len(actions) > 1:
                rest = actions[1:], rewards[1:], seeds[1:]
                search.best = Best(math.fsum(rewards[1:]), kept.best.ended, rest)
        if old["ended"][child] or old["closed"][child].all():
            return None
        return old.below(child)

    def _affordable(self, search: Search, memory: TreeMemory, cost: int) -> int:
        """Return the number of descents in the next round; each costs at most `cost` transitions.

        Descents to ended states may cost nothing, so the search has at most as many descents as its
        budget has transitions. The result is 0 when the search must end.
        """
        count, descents = self.batch, memory.descents
        if search.remaining is not None:
            total = search.remaining + search.spent().transitions
            count = min(count, search.remaining // cost, max(total - descents, 0))
        goes_on = search.has(max(count, 1) * cost)
        if memory.tree["closed"][ROOT].all() or (descents and search.progress().done == 1.0):
            return 0
        return count if goes_on else 0

    def _plan(self, search: Search, state: Row, tree: SearchTree, **info: Any) -> Plan:
        """Return the best trajectory, with statistics of the root's actions."""
        assert search.best.found is not None, "the first round keeps a trajectory"
        actions, rewards, seeds = search.best.found
        visits, totals = tree["visits"][ROOT].copy(), tree["total"][ROOT].copy()
        values = np.divide(totals, visits, np.full(len(visits), -np.inf), where=visits > 0)
        closed = tree["closed"][ROOT]
        chosen = int(np.lexsort((values, np.where(closed, -1, visits)))[-1])
        exact = np.where(closed, values, -np.inf)
        if closed.any() and exact.max() >= values[chosen]:
            chosen = int(np.argmax(exact))
        value = values.max() if closed.all() else max(totals.sum() / visits.sum(), exact.max())
        return search.plan(
            state,
            self.actions[actions],
            rewards,
            self.dt,
            ended=search.best.ended,
            seeds=seeds if (seeds >= 0).any() else None,
            action=self.actions[chosen],
            visits=visits.astype(np.int64),
            values=np.where(visits > 0, values, np.nan),
            value=float(value),
            nodes=tree.size,
            **info,
        )
