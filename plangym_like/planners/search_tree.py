"""`SearchTree`: the nodes of a tree search in flat arrays, with many descents at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]
# Returns scores ``(n, A)`` of the actions of nodes ``(n,)``. The other arguments ``(n, 1)`` are
# numbers of descents of this round: those that count as having taken the action already, and all
# descents that reach the node.
ScoreFn = Callable[[Ints, Ints, Ints], Floats]

# Steps actions ``(n,)`` of nodes ``(n,)``, and returns the nodes of the outcomes; returns None if
# the budget is spent.
DrawFn = Callable[[Ints, Ints], Ints | None]

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


class SearchTree:
    """Nodes in one structured array; node 0 is the root.

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
    size : int
    nodes : structured array
        With the fields ``parent``, ``action`` (the index of the action that leads to the node),
        ``seed``, ``reward``, ``score`` (the sum of the rewards from the root), ``value`` (set by
        the planner), ``ended``, ``samples`` (how often this outcome was drawn), ``passes`` (how
        many descents passed through the node), ``key`` (distinguishes outcomes), ``visits`` and
        ``total`` ``(A,)`` (number and sum of the returns of each action), ``prior`` ``(A,)``,
        ``child`` ``(A, K)`` (-1 if there is none), ``closed`` ``(A,)`` (see `close`), and
        ``state``.
    low, high : float
        The range of the mean returns that were seen.
    """

    def __init__(
        self, num_actions: int, state: NDArray[np.uint8], outcomes: int = 1, widening: float = 1.0
    ) -> None:
        per_action = [("visits", float), ("total", float), ("prior", float)]
        fields: list[Any] = [
            *((name, np.intp) for name in ("parent", "action", "seed", "samples", "passes")),
            *((name, float) for name in ("reward", "score", "value")),
            ("key", np.int64),
            ("ended", bool),
            ("closed", bool, (num_actions,)),
            *((name, kind, (num_actions,)) for name, kind in per_action),
            ("child", np.intp, (num_actions, outcomes)),
            ("state", np.uint8, state.shape),
        ]
        self.num_actions, self.outcomes, self.widening = num_actions, outcomes, widening
        self.low, self.high = np.inf, -np.inf
        self.nodes, self.size = np.zeros(64, np.dtype(fields)), 0
        self.add(np.array([-1]), np.array([-1]), state=state)

    def __getitem__(self, field: str) -> NDArray[Any]:
        """Return a field of all nodes."""
        return self.nodes[field][: self.size]

    def add(self, parents: Ints, actions: Ints, **fields: Any) -> Ints:
        """Append children of `parents`, and return their numbers ``(n,)``."""
        first, self.size = self.size, self.size + len(parents)
        if self.size > len(self.nodes):
            nodes = np.zeros(2 * self.size, self.nodes.dtype)
            nodes[:first] = self.nodes[:first]
            self.nodes = nodes
        new = np.arange(first, self.size)
        columns = {
            "parent": parents,
            "action": actions,
            "samples": 1,
            "child": -1,
            "seed": -1,
            **fields,
        }
        for name, values in columns.items():
            self.nodes[name][first : self.size] = values
        if first:
            slots = (self["child"][parents, actions] >= 0).sum(axis=1)
            self.nodes["score"][new] = self["score"][parents] + self["reward"][new]
            self.nodes["child"][parents, actions, slots] = new
        return new

    def add_outcomes(self, parents: Ints, actions: Ints, keys: Ints, **fields: Any) -> Ints:
        """Append samples of outcomes, and return their nodes ``(n,)``.

        A sample with the key of a known outcome of the same action is counted as that outcome.
        Other samples become new outcomes, until the action has the maximum number of outcomes;
        after that, each is counted as one of the known outcomes.
        """
        found = np.full(len(parents), -1)
        for row, (parent, action) in enumerate(zip(parents, actions, strict=True)):
            known = self.nodes["child"][parent, action]
            known = known[known >= 0]
            same = known[self.nodes["key"][known] == keys[row]]
            if len(same) or len(known) == self.outcomes:
                found[row] = same[0] if len(same) else known[row % len(known)]
                self.nodes["samples"][found[row]] += 1
            else:
                part = {name: values[row] for name, values in fields.items()}
                one = slice(row, row + 1)
                found[row] = self.add(parents[one], actions[one], key=keys[row], **part)[0]
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
                kids = self["child"][at, actions, 0]
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
        known = self["child"][nodes, actions]
        samples = np.where(known >= 0, self["samples"][known], 0)
        limit = np.ceil((self["visits"][nodes, actions] + sizes) ** self.widening)
        fresh = (ranks < limit - samples.sum(axis=1)) & (known < 0).any(axis=1)
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
            self.nodes["closed"][nodes, actions] = True
            self.nodes["total"][nodes, actions] = self["visits"][nodes, actions] * exact

    def record(self, level: Level, new: Ints, returns: Floats) -> None:
        """Add the returns ``(n,)`` to the statistics of a level's actions."""
        edges = level.nodes, level.actions
        np.add.at(self.nodes["passes"], _resolved(level.kids, new), 1)
        np.add.at(self.nodes["visits"], edges, 1)
        np.add.at(self.nodes["total"], edges, returns)
        means = self["total"][edges] / self["visits"][edges]
        self.low, self.high = min(self.low, means.min()), max(self.high, means.max())

    def scaled(self, nodes: Ints) -> tuple[Floats, Floats]:
        """Return the totals and visits ``(n, A)`` of nodes, with mean returns scaled to [0, 1]."""
        visits, totals = self["visits"][nodes], self["total"][nodes]
        if self.high > self.low:
            return (totals - self.low * visits) / (self.high - self.low), visits
        return np.zeros_like(totals), visits

    def path(self, node: int) -> Ints:
        """Return the nodes of the path from the root to `node`, without the root."""
        found = []
        while node > 0:
            found.append(node)
            node = self.nodes["parent"][node]
        return np.array(found[::-1], np.intp)

    def subtree(self, root: int) -> SearchTree:
        """Return the subtree of the node `root` as a new tree."""
        levels = [np.array([root])]
        while len(levels[-1]):
            kids = self["child"][levels[-1]].ravel()
            levels.append(kids[kids >= 0])
        kept = np.concatenate(levels)
        numbers = np.full(self.size + 1, -1)
        numbers[kept] = np.arange(len(kept))
        tree = SearchTree(self.num_actions, self["state"][root], self.outcomes, self.widening)
        tree.nodes, tree.size, tree.low, tree.high = (
            self.nodes[kept],
            len(kept),
            self.low,
            self.high,
        )
        tree.nodes["child"] = numbers[tree.nodes["child"]]
        tree.nodes["parent"] = numbers[tree.nodes["parent"]]
        tree.nodes["score"] -= self.nodes["score"][root]
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
