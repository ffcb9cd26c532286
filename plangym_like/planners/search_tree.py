"""`SearchTree`, which many descents grow at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plangym_like.errors import InputError
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.games import Turns
from plangym_like.planners.nodes import Floats, Ints, Nodes, Rows
from plangym_like.planners.search import Best

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

# Returns that differ by less are equal.
_EQUAL = 1e-9


class Level(NamedTuple):
    """One step of n descents, in arrays ``(n,)``; `ids` are the numbers of the descents.

    They take `actions` from `nodes` to `kids`, which are nodes or leaves as in `Descents.last`.
    """

    ids: Ints
    nodes: Ints
    actions: Ints
    kids: Ints


class Descents(NamedTuple):
    """One round of B descents from roots."""

    levels: list[Level]
    last: Ints  # where each descent ends, ``(B,)``: a node, or ``-1 - i`` for leaf i
    # The transitions that lead to the leaves, and have to be stepped, ``(L,)``.
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
        return resolved(self.last, new)


@stored
class SearchTree(Nodes):
    """The nodes of tree searches from R roots, which are the nodes 0 to ``R - 1``.

    Returns are kept for each of P players. `total` holds, for each action, the sum of the returns
    of the player to move, who chooses the action.

    Parameters
    ----------
    num_actions : int
        A, the number of actions of each node.
    states : array ``(R, state_nbytes) uint8``
        The states of the roots; ``(R, 0)`` if the search keeps no states.
    turns : Turns, optional
        Those of the roots.
    outcomes : int
        K, the largest number of outcomes of an action: 1 unless there are chance nodes.
    widening : float
        After n visits, an action has at most ``ceil(n ** widening)`` samples of its outcome
        (progressive widening, A. Couetoux et al. 2011, "Continuous upper confidence trees").

    Attributes
    ----------
    fields of a node
        ``root``, ``action`` (the index of the action that leads to the node), ``seed``, ``reward``,
        ``score`` (the sum of the rewards from the root), ``gains`` ``(P,)`` (the rewards of all
        players), ``value`` ``(P,)`` (set by the planner), ``ended``, ``to_play`` (the player to
        move), ``samples`` (how often this outcome was drawn), ``passes`` (how many descents passed
        through the node), ``key`` (distinguishes outcomes), ``visits`` and ``total`` ``(A,)``
        (number and sum of the returns of each action), ``prior`` ``(A,)``, ``closed`` ``(A,)``
        (actions that no descent takes: those that are not legal, which have no visits, and those
        that lead to a solved node), ``solved`` (whether the returns that follow are certain; see
        `close`), ``exact`` ``(P,)`` (these returns), ``length`` (the actions that follow until the
        end), ``child`` ``(A,)`` (the outcome of each action that was found last), ``next`` (the
        outcome of the same action that was found before this one) and ``state``.
    has_closed : bool
        Whether any action of a node may be closed.
    low, high : array ``(R,)``
        The range of the mean returns that were seen below each root.
    """

    def __init__(
        self,
        num_actions: int,
        states: Rows,
        turns: Turns | None = None,
        outcomes: int = 1,
        widening: float = 1.0,
    ) -> None:
        self.num_actions, self.outcomes, self.widening = num_actions, outcomes, widening
        self.low, self.high = np.zeros(0), np.zeros(0)
        numbers = (
            "action",
            "seed",
            "samples",
            "passes",
            "key",
            "next",
            "root",
            "to_play",
            "length",
        )
        super().__init__(
            *((name, np.intp) for name in numbers),
            *((name, float) for name in ("reward", "score")),
            *((name, float, (1,)) for name in ("value", "gains", "exact")),
            *((name, float, (num_actions,)) for name in ("visits", "total", "prior")),
            ("child", np.intp, (num_actions,)),
            ("closed", bool, (num_actions,)),
            *(("ended", bool), ("solved", bool)),
            ("state", np.uint8, states.shape[1:]),
            links=("child", "next"),
            roots=0,  # `plant` adds them
        )
        self.has_closed = False
        self.plant(states, Turns(None, np.zeros(len(states), np.intp)) if turns is None else turns)

    @property
    def roots(self) -> int:
        """R, the number of roots."""
        return len(self.low)

    @property
    def players(self) -> int:
        """P, the number of players that was seen so far."""
        players: int = self._columns["gains"].shape[1]
        return players

    def plant(self, states: Rows, turns: Turns) -> Ints:
        """Append roots, and return their nodes ``(n,)``."""
        roots = self.add(
            np.full(len(states), -1),
            state=states,
            to_play=turns.to_play,
            closed=turns.closed(),
            action=-1,
            seed=-1,
            samples=1,
        )
        self.has_closed = self.has_closed or turns.legal is not None
        self["root"][roots] = np.arange(len(roots)) + self.roots
        self.low = np.append(self.low, np.full(len(roots), np.inf))
        self.high = np.append(self.high, np.full(len(roots), -np.inf))
        return roots

    def play_for(self, players: int) -> None:
        """Make room for the returns of this many players."""
        for name in ("value", "gains", "exact"):
            self.widen(name, players, 0.0)

    def expand(self, parents: Ints, actions: Ints, **fields: Any) -> Ints:
        """Append outcomes of different actions, and return their nodes ``(n,)``."""
        more: dict[str, Any] = {
            "action": actions,
            "samples": 1,
            "seed": -1,
            "solved": fields.get("ended", False),
        }
        if self.roots > 1:
            more["root"] = self["root"][parents]
        self.has_closed = self.has_closed or "closed" in fields
        new = self.add(parents, **{**more, **fields})
        self["score"][new] = self["score"][parents] + self["reward"][new]
        self["next"][new] = self["child"][parents, actions]
        self["child"][parents, actions] = new
        return new

    def outcomes_of(self, nodes: Ints, actions: Ints) -> Ints:
        """Return the known outcomes ``(n, k)`` of actions, the last one first; -1 for none."""
        found = [self["child"][nodes, actions]]
        while (found[-1] >= 0).any():
            found.append(np.where(found[-1] >= 0, self["next"][found[-1]], -1))
        columns = found[: max(1, len(found) - 1)]
        return columns[0][:, None] if len(columns) == 1 else np.stack(columns, axis=1)

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
        self, starts: Ints, score: ScoreFn, draw: DrawFn | None = None, depth: float = np.inf
    ) -> Descents:
        """Walk down from each of `starts`, always to an action with the highest score.

        All descents take a step together. When k descents reach a node together, each action of the
        node is scored k times: as if 0, 1, ..., k - 1 of these descents had already taken that
        action. The k highest of all these scores decide which actions the descents take. If an
        action's score falls each time the action is taken, k descents one after the other would
        make the same choices.

        A descent ends at a node that no descent has reached before, or where the episode has ended.

        Parameters
        ----------
        starts : array ``(B,)``
            The roots where descents begin.
        score, draw : callable
            See `ScoreFn` and `DrawFn`. `draw` is needed if there are chance nodes. If it returns
            None, the descents end.
        depth : int
            The maximum number of steps of a descent.
        """
        levels: list[Level] = []
        last, at = starts.copy(), starts
        ids = np.arange(len(starts))
        leaves = np.zeros(0, np.intp)
        while len(ids) and len(levels) < depth:
            if len(at) > 1:
                order = at.argsort(kind="stable")
                ids, at = ids[order], at[order]
            starts, sizes, ranks = _groups(at)
            actions = _best(score(at, ranks[:, None], sizes[:, None]), starts, ranks)
            if draw is None:
                kids = self["child"][at, actions]
                (empty,) = (kids < 0).nonzero()
                if len(empty):  # a leaf that several descents find is stepped once
                    edges = at[empty] * self.num_actions + actions[empty]
                    new, which = edges, np.zeros(1, np.intp)
                    if len(edges) > 1:
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

        `new` ``(L,)`` are the nodes of the leaves, and `values` ``(B, P)`` the returns that follow
        the last node of each descent.
        """
        values = values.copy()
        for level in reversed(descents.levels):
            kids = resolved(level.kids, new)
            returns = self["gains"][kids] + discount * values[level.ids]
            mine = self._of_movers(returns, level.nodes)
            self.record(level, kids, mine)
            if self.has_closed:
                self._raise(returns, mine, level.nodes, discount)
            values[level.ids] = returns

    def _of_movers(self, returns: Floats, nodes: Ints) -> Floats:
        """Return the returns ``(n,)`` of the players to move, given those of all ``(n, P)``."""
        if self.players == 1:
            return returns[:, 0]
        chosen: Floats = returns[np.arange(len(nodes)), self["to_play"][nodes]]
        return chosen

    def _raise(self, returns: Floats, mine: Floats, nodes: Ints, discount: float) -> None:
        """Put certain returns in place of lower ones: the player to move has at least these.

        `returns` ``(n, P)`` are those of all players, and `mine` ``(n,)`` of those to move.
        """
        if not self.values_of("closed", nodes).any():
            return
        certain = self.certain(nodes)
        (rows,) = (certain.max(axis=1) > mine).nonzero()
        if len(rows):
            sure = self["child"][nodes[rows], certain[rows].argmax(axis=1)]
            returns[rows] = self["gains"][sure] + discount * self["exact"][sure]

    def certain(self, nodes: Ints) -> Floats:
        """Return the certain returns ``(n, A)`` of the player to move; -inf if not certain."""
        visits, totals = self.values_of("visits", nodes), self.values_of("total", nodes)
        closed = self.values_of("closed", nodes)
        return np.where(closed & (visits > 0), totals / np.maximum(visits, 1), -np.inf)

    def close(self, descents: Descents, new: Ints, discount: float, win: float = np.inf) -> None:
        """Solve the nodes whose returns are certain, and close the actions that lead to them.

        A node is solved if its episode has ended, if all its actions are closed, or if the player
        to move has a certain return of `win`, which nothing exceeds (M. Winands, Y. Bjornsson and
        J. Saito, "Monte-Carlo tree search solver", 2008). A later win that is worth less because of
        the discount does not solve a node alone. There must be no chance nodes: another descent to
        a solved node would find nothing new. Later descents through the nodes above return at least
        the best certain return.

        Raises
        ------
        InputError
            A certain return is higher than `win`.
        """
        for level in reversed(descents.levels):
            kids = resolved(level.kids, new)
            (known,) = self["solved"][kids].nonzero()
            if not len(known):
                continue
            nodes, actions, kids = level.nodes[known], level.actions[known], kids[known]
            exact = self["gains"][kids] + discount * self["exact"][kids]
            mine = self._of_movers(exact, nodes)
            refuse_above(win, mine)
            self.has_closed, self["closed"][nodes, actions] = True, True
            self["total"][nodes, actions] = self["visits"][nodes, actions] * mine
            self._solve(np.unique(nodes), discount, win)

    def _solve(self, nodes: Ints, discount: float, win: float) -> None:
        """Solve those of the nodes that can be solved."""
        certain = self.certain(nodes)
        chosen = self.best_certain(nodes, certain)
        rows = np.arange(len(nodes))
        kids, best = self["child"][nodes, chosen], certain[rows, chosen]
        (done,) = (self["closed"][nodes].all(axis=1) | (best >= win - _EQUAL)).nonzero()
        nodes, kids = nodes[done], kids[done]
        self["solved"][nodes] = True
        self["length"][nodes] = self["length"][kids] + 1
        self["exact"][nodes] = self["gains"][kids] + discount * self["exact"][kids]

    def best_certain(self, nodes: Ints, certain: Floats) -> Ints:
        """Return the best of the certain actions of nodes ``(n,)``.

        Of equal ones, it is the first; in games, the fastest win or the slowest loss.
        """
        if self.players == 1:
            return np.asarray(certain.argmax(axis=1))
        best = certain.max(axis=1, keepdims=True)
        lengths = self["length"][self["child"][nodes]]
        order = np.where(best > 0, -lengths, lengths)
        preferred: Ints = np.where(certain >= best - _EQUAL, order, -np.iinfo(np.intp).max).argmax(
            axis=1
        )
        return preferred

    def recommended(self, nodes: Ints) -> Ints:
        """Return the action ``(n,)`` to play in each node: the most visited one.

        Actions with a certain return are compared by this return instead. In a solved node, the
        best of them proves its value.
        """
        visits, closed = self["visits"][nodes], self["closed"][nodes]
        values = np.where(visits > 0, self["total"][nodes] / np.maximum(visits, 1), -np.inf)
        most = np.where(closed, -1, visits)
        tied = np.where(most == most.max(axis=1, keepdims=True), values, -np.inf)
        chosen: Ints = self.num_actions - 1 - tied[:, ::-1].argmax(axis=1)
        if not self.has_closed:
            return chosen
        certain = self.certain(nodes)
        rows = np.arange(len(nodes))
        sure = self.best_certain(nodes, certain)
        best = certain[rows, sure]
        is_sure = (best > -np.inf) & ((best >= values[rows, chosen]) | self["solved"][nodes])
        return np.where(is_sure, sure, chosen)

    def record(self, level: Level, kids: Ints, returns: Floats) -> None:
        """Add the returns ``(n,)`` of the players to move to those of a level's actions.

        `kids` ``(n,)`` are the nodes that the actions lead to.
        """
        edges = level.nodes, level.actions
        visits, total = self["visits"], self["total"]
        np.add.at(self["passes"], kids, 1)
        np.add.at(visits, edges, np.ones(len(kids)))  # several times as fast as the number 1
        np.add.at(total, edges, returns)
        means = total[edges] / visits[edges]
        if self.roots == 1:
            low, high = means.min(), means.max()
            if low < self.low[0]:
                self.low[0] = low
            if high > self.high[0]:
                self.high[0] = high
        else:
            roots = self["root"][level.nodes]
            np.minimum.at(self.low, roots, means)
            np.maximum.at(self.high, roots, means)

    def scaled(self, nodes: Ints) -> tuple[Floats, Floats]:
        """Return the totals and visits ``(n, A)`` of nodes, with mean returns scaled to [0, 1]."""
        visits, totals = self.values_of("visits", nodes), self.values_of("total", nodes)
        low: Any
        high: Any
        if self.roots == 1:
            low, high = self.low.item(), self.high.item()
            if not high > low:  # returns that do not differ count as 0
                low, high = 0.0, np.inf
        else:
            roots = self["root"][nodes]
            low, high = self.low[roots, None], self.high[roots, None]
            low, high = np.where(high > low, low, 0.0), np.where(high > low, high, np.inf)
        return (totals - low * visits) / (high - low), visits

    def trajectory(self, node: int, ended: Any, *rest: NDArray[Any]) -> Best:
        """Return the path from the root to `node`, and what was played after it, as a plan.

        `rest` are the actions, rewards and seeds, each ``(T,)``; -1 stands for no seed.
        """
        path = self.path(node)
        found = tuple(self[name][path] for name in ("action", "reward", "seed"))
        if rest:
            found = tuple(map(np.append, found, rest))
        return Best(math.fsum(found[1]), bool(ended), found)

    def below(self, *roots: int) -> SearchTree:
        """Return the subtrees of the nodes `roots` as a new tree."""
        tree = self.subtree(*roots)
        old = tree["root"][: len(roots)].copy()
        tree.low, tree.high = self.low[old], self.high[old]
        scores = self["score"][list(roots)]
        numbers = np.zeros(self.roots, np.intp)
        numbers[old] = np.arange(len(roots))
        tree["root"][:] = numbers[tree["root"]]
        tree["score"][:] -= scores[tree["root"]]
        return tree


def refuse_above(win: float, returns: Floats) -> None:
    """Raise `InputError` if one of `returns` is higher than `win`."""
    highest = np.max(returns, initial=-np.inf)
    if highest > win + _EQUAL:
        raise InputError(
            f"a player can get a return of {highest:g}, but wins were taken to be proven by "
            f"{win:g}: give win=, the highest return in this game"
        )


def resolved(kids: Ints, new: Ints) -> Ints:
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
