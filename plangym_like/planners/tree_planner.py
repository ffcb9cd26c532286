"""`TreePlanner`: what tree searches share, from the first state to the plan."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from plangym_like.batch.layout import GameFacts
from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import all_actions, index_of
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.games import Mask, Rules, Starts, Turns
from plangym_like.planners.nodes import Floats, Ints, Rows
from plangym_like.planners.observations import digests, make_key
from plangym_like.planners.plan import Plan, Spent
from plangym_like.planners.planner import Kept, Planner, checked_limits, progress_bar
from plangym_like.planners.search import Best, Played, Progress, Search
from plangym_like.planners.search_tree import SEEDS, SearchTree, refuse_above
from plangym_like.results import BatchInfo, BatchTransition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

# The most outcomes of an action in games whose rules have chance; two dice have 21.
_OUTCOMES = 32


@stored
@dataclass
class TreeMemory:
    """The state of tree searches from R roots."""

    tree: SearchTree
    spent: Ints  # transitions of each search ``(R,)``; not used if R is 1
    descents: Ints  # of each search, ``(R,)``
    best: list[Best]  # the best trajectory of each search; none in games of several players
    horizon: int = 0  # only used by `OpenLoopMCTS`


class TreeOptions(Rules, total=False):
    """Options of every tree search.

    Attributes
    ----------
    virtual_loss : float
        From 0 to 1, by default 1. In the mean return of an action, each descent under way counts as
        this many returns of 0. In the number of visits, it counts as 1.
    dt : int
        How long each action is held; by default, 1.
    """

    virtual_loss: float
    dt: int


class ClosedLoopOptions(TreeOptions, total=False):
    """Options of tree searches that keep states.

    Attributes
    ----------
    outcomes : int, optional
        The largest number of outcomes of an action that are distinguished; 1 means no chance nodes.
        If more are possible, samples of the others count as known outcomes. The default is 32 in
        games of several players whose rules have chance, such as OpenSpiel's backgammon, and
        otherwise 1.
    widening : float
        After n visits, an action has at most ``ceil(n ** widening)`` samples of its outcome; by
        default, n.
    win : float, optional
        In games of several players, the highest possible return; by default that of the rules of
        OpenSpiel's games, and otherwise 1. A node is solved when the player to move is certain of
        it. A search that meets a higher one raises `InputError`.
    """

    outcomes: int | None
    widening: float
    win: float | None


class TreePlanner(Planner):
    """The base class of tree searches that run many descents at a time.

    In a game of several players, each player maximises the own return (C. Luckhardt and K. Irani,
    "An algorithmic solution of n-person games", 1986); a single player is the case of one.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    batch : int
        The number of descents in a round, for each root.
    discount : float
        The factor for the return after a step, from 0 to 1.
    **options
        See `ClosedLoopOptions`, `TreeOptions` and `Rules`.

    Attributes
    ----------
    actions : array ``(A, *action_shape)``
        All actions, in the order used by the arrays of shape ``(A,)`` in `Plan.info`.

    Notes
    -----
    ``Plan.info`` holds, of the root: ``visits`` ``(A,)``, ``policy`` ``(A,)`` (the share of the
    visits, or the best action alone if its return is certain), ``values`` ``(A,)`` and ``value``
    (mean returns of the player to move), ``mask`` ``(A,)`` (legal actions), ``player``, ``solved``
    (whether `value` and the best action are certain), ``length`` (the actions until the end, if it
    is solved) and ``nodes``.
    """

    _is_for_games = True

    def __init__(
        self,
        env: PlanEnv,
        batch: int,
        discount: float,
        *,
        virtual_loss: float = 1.0,
        dt: int = 1,
        outcomes: int | None = None,
        widening: float = 1.0,
        win: float | None = None,
        **rules: Unpack[Rules],
    ) -> None:
        super().__init__(env, **rules)
        self.actions: NDArray[Any] = all_actions(env, self.name)
        self.batch, self.dt = as_count("batch", batch), as_count("dt", dt)
        self.discount = as_number("discount", discount, 0.0, 1.0)
        self.virtual_loss = as_number("virtual_loss", virtual_loss, 0.0, 1.0)
        game = env.layout.game or GameFacts(highest=1.0, has_chance=False, players=1)
        self._has_dice = game.has_chance and game.players > 1
        usual = _OUTCOMES if self._has_dice else 1
        self.outcomes = usual if outcomes is None else as_count("outcomes", outcomes)
        self.widening = as_number("widening", widening, 0.0, 1.0)
        self.win = game.highest if win is None else as_number("win", win, 0.0)

    def plan_batch(
        self,
        states: Any,
        *,
        budget: int | None = None,
        seconds: float | None = None,
        seed: Any = None,
        progress: bool | Callable[[Progress], object] = False,
    ) -> list[Plan]:
        """Search from B states together, with one `step_batch` and one evaluation for each round.

        Each search has its own tree and budget. A search that draws no random numbers, such as
        that of `PUCT` without noise and rollouts, finds the same as `plan` from its state.

        Parameters
        ----------
        states : rows ``(B, state_nbytes)``, BatchTransition, or list
            A list holds rows or results of ``reset`` and ``step``; see `plan`.
        budget : int, optional
            The largest number of transitions of each search.
        seconds : float, optional
            The time after which no new round begins.
        seed, progress
            As in `plan`, for all searches together.

        Returns
        -------
        list of Plan
            One for each state. `advance` takes B actions afterwards.

        Raises
        ------
        InputError
            As in `plan`.
        """
        budget, seconds = checked_limits(budget, seconds, needed=True)
        starts = Starts.of_many(self.env, states)
        count = len(starts.states)
        with progress_bar(f"{self.name}, {count} states", progress) as report:
            total = None if budget is None else budget * count
            search = self._started(starts, total, seconds, seed, report)
            self._last = self._next_action = None
            plans = self._search_all(starts.states, search)
        self._last = starts.states, search
        self._next_action = np.array([plan.next_action for plan in plans])
        return plans

    def _search(self, state: Row, search: Search) -> Plan:
        if state.ndim > 1:
            raise InputError("resume continues a single search, but the last one was plan_batch")
        search.game.is_masked = search.game.is_masked or search.turns.legal is not None
        return self._search_all(state[None], search)[0]

    @abstractmethod
    def _search_all(self, states: Rows, search: Search) -> list[Plan]:
        """Search from each of `states`, and return the plans."""

    def _new_tree(self, states: Rows, turns: Turns) -> SearchTree:
        return SearchTree(len(self.actions), states, turns, self.outcomes, self.widening)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> TreeMemory:
        """Keep the subtrees of the actions that were played, if they led to the states."""
        states, count = search.starts.states, len(search.starts.states)
        zeros = np.zeros(count, np.intp)
        best, tree = [Best()] * count, None
        if kept is not None:
            old: SearchTree = kept.memory.tree
            roots = []
            for start, (root, child) in enumerate(self._nodes_kept(kept, search)):
                best[start] = _rest(old, child, kept.memory.best[root])
                # A plan needs a step, which a complete tree of one player would not take again.
                is_over = child < 0 or old["ended"][child]
                is_complete = old.players == 1 and old["closed"][child].all()
                roots.append(-1 if is_over or is_complete else child)
            (new,) = (np.array(roots) < 0).nonzero()
            if len(new) < count:
                width = old["state"].shape[1]
                planted = old.plant(states[new, :width], search.turns.take(new))
                for root, node in zip(new.tolist(), planted.tolist(), strict=True):
                    roots[root] = node
                tree = old.below(*roots)
                tree["state"][:count] = states[:, :width]  # chance may have other random numbers
        if tree is None:
            tree = self._new_tree(states, search.turns)
        elif (tree["closed"] & (tree["visits"] == 0)).any():
            search.game.is_masked = True
        search.game.players = max(search.game.players, tree.players)
        tree.play_for(search.game.players)
        spent = zeros + search.spent().transitions // count
        return TreeMemory(tree, spent, zeros, best)

    def _nodes_after(self, kept: Kept) -> list[Ints]:
        """Return the nodes that the actions that were played may have led to, for each root."""
        tree: SearchTree = kept.memory.tree
        found = [np.array([root]) for root in range(tree.roots)]
        for actions in (kept.action, *kept.replies):
            for root, action in enumerate(actions.reshape(tree.roots, *self.actions.shape[1:])):
                nodes, index = found[root], index_of(self.actions, action)
                outcomes = tree.outcomes_of(nodes, np.full(len(nodes), max(index, 0)))
                found[root] = outcomes[(outcomes >= 0) & (index >= 0)]
        return found

    def _legal_after(self, kept: Kept) -> Mask | None:
        """Return which actions are legal ``(R, A)``; those of unknown nodes are."""
        tree: SearchTree = kept.memory.tree
        if self.outcomes > 1:  # there may be others than those that are known
            return None
        legal = np.ones((tree.roots, tree.num_actions), bool)
        for root, nodes in enumerate(self._nodes_after(kept)):
            for node in nodes[~tree["ended"][nodes]]:
                legal[root] = ~tree["closed"][node] | (tree["visits"][node] > 0)
        return legal

    def _nodes_kept(self, kept: Kept, search: Search) -> list[tuple[int, int]]:
        """Return a root of the last tree, and a node below it, for each first state.

        The node is where the actions that were played have led to that state; -1 if there is none.
        Some of the last states may be missing, because their games have ended. With chance nodes,
        it is the node of the outcome that was observed: states hold random generators.
        """
        old, starts = kept.memory.tree, search.starts
        marks: list[Any] = [row.tobytes() for row in starts.states]
        is_observed = self.outcomes > 1 and old.players > 1 and len(marks) == old.roots
        if is_observed and starts.rewards is not None:
            flags = np.zeros(len(marks), bool)
            infos = BatchInfo(len(marks), {}) if starts.infos is None else starts.infos
            states, obs, rewards = starts.states, starts.obs, starts.rewards
            step = BatchTransition(states, obs, rewards, flags, flags, infos)
            marks = list(enumerate(_outcome_keys(step, search.turns).tolist()))
        known: dict[Any, list[tuple[int, int]]] = {}
        for root, nodes in enumerate(self._nodes_after(kept)):
            for node in nodes[np.argsort(-old["passes"][nodes], kind="stable")].tolist():
                for mark in (old["state"][node].tobytes(), (root, int(old["key"][node]))):
                    known.setdefault(mark, []).append((root, node))
        return [known[mark].pop(0) if known.get(mark) else (0, -1) for mark in marks]

    def _affordable(self, search: Search, memory: TreeMemory, cost: int) -> Ints:
        """Return the roots of the next descents ``(B,)``; each costs at most `cost` transitions.

        Descents to ended states may cost nothing, so a search has at most as many descents as its
        budget has transitions. There are none when the search must end.
        """
        roots, done = memory.tree.roots, memory.descents
        counts = np.full(roots, self.batch)
        if search.budget is not None:
            total = search.budget // roots
            spent = memory.spent if roots > 1 else search.spent().transitions
            left = np.minimum((total - spent) // cost, total - done)
            counts = np.minimum(np.maximum(left, 0), self.batch)
        goes_on = search.has(max(int(counts.sum()), 1) * cost)
        counts[memory.tree["solved"][:roots]] = 0
        if not goes_on:
            counts[:] = 0
        memory.descents = done + counts
        return np.arange(roots).repeat(counts)

    def _step(
        self,
        search: Search,
        memory: TreeMemory,
        parents: Ints,
        actions: Ints,
        seeds: Any = None,
    ) -> tuple[BatchTransition, dict[str, Any]]:
        """Step actions of nodes; return the result, and the fields of the nodes they lead to."""
        tree, game = memory.tree, search.game
        step = search.step_batch(
            self.actions[actions], tree["state"][parents], self.dt, seeds=seeds
        )
        self._charge(memory, parents)
        turns = search.turns_after(step)
        if game.players > tree.players:
            tree.play_for(game.players)
        fields = {
            "state": step.states,
            "reward": step.rewards,
            "gains": game.gains(step, tree["to_play"][parents]),
            "ended": step.terminateds | step.truncateds,
        }
        if game.players > 1:
            fields["to_play"] = turns.to_play
        if turns.legal is not None:
            fields["closed"] = ~turns.legal
        if self.outcomes > 1:
            fields["key"] = _outcome_keys(step, turns)
        return step, fields

    def _draw(
        self,
        memory: TreeMemory,
        search: Search,
        reserve: int,
        seen: list[tuple[Ints, Any]],
        parents: Ints,
        actions: Ints,
    ) -> Ints | None:
        """Return an outcome of each action; None if less budget than `reserve` would be left.

        Append the outcomes and their observations to `seen`.
        """
        if not search.affords(len(parents) + reserve):
            return None
        seeds = search.rng.integers(SEEDS, size=len(parents))
        step, fields = self._step(search, memory, parents, actions, seeds)
        keys = fields.pop("key")
        nodes = memory.tree.add_outcomes(parents, actions, keys, seed=seeds, **fields)
        seen.append((nodes, step.obs))
        return nodes

    @staticmethod
    def _charge(memory: TreeMemory, nodes: Ints, steps: Ints | None = None) -> None:
        """Count steps ``(n,)`` from nodes ``(n,)`` for their searches; by default, one from each.

        A single search needs no count of its own.
        """
        if memory.tree.roots > 1:
            np.add.at(memory.spent, memory.tree["root"][nodes], 1 if steps is None else steps)

    def _returns(self, tree: SearchTree, played: Played) -> Floats:
        """Return the returns ``(n, P)`` of random play.

        Raises
        ------
        InputError
            In a game of several players, a return to the end is higher than `win`.
        """
        returns = played.returns(self.discount)
        if tree.players > 1:
            refuse_above(self.win, returns[played.ended])
        return returns

    @staticmethod
    def _turns(search: Search, tree: SearchTree, nodes: Ints) -> Turns:
        """Return the turns of nodes that no descent has passed."""
        legal = ~tree["closed"][nodes] if search.game.is_masked else None
        return Turns(legal, tree["to_play"][nodes])

    def _close(self, memory: TreeMemory, paths: Any, new: Ints) -> None:
        """Solve nodes after a round of descents."""
        tree = memory.tree
        if self._has_dice:  # with one outcome, the search knows what the dice will show
            return
        if self.outcomes == 1 and tree["solved"][paths.ends(new)].any():
            tree.close(paths, new, self.discount, self.win if tree.players > 1 else np.inf)

    @staticmethod
    def _improved(memory: TreeMemory, nodes: Ints, scores: Floats) -> Ints:
        """Return the best row of each root whose trajectory beats the best one so far.

        `scores` ``(n,)`` are those of trajectories through `nodes` ``(n,)``.
        """
        if memory.tree.players > 1:
            return np.zeros(0, np.intp)
        if len(memory.best) == 1:  # the usual case, without sorting
            row = int(np.argmax(scores))
            return np.full(int(scores[row] > memory.best[0].score), row)
        roots, known = memory.tree["root"][nodes], np.array([one.score for one in memory.best])
        (rows,) = (scores > known[roots]).nonzero()
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        found: Ints = rows[np.unique(roots[rows], return_index=True)[1]]
        return found

    @staticmethod
    def _report(search: Search, memory: TreeMemory) -> None:
        """Report the best score of all searches."""
        score = max(best.score for best in memory.best)
        search.report(score, f"{memory.tree.size:,} nodes")

    def _plans(
        self, search: Search, states: Rows, memory: TreeMemory, **columns: Any
    ) -> list[Plan]:
        """Return the plan of each root, with statistics of its actions.

        `columns` hold a part of `Plan.info` for each root.
        """
        tree = memory.tree
        lines = self._lines(tree) if tree.players > 1 else []
        total, share, plans = search.spent(), 1 / len(states), []
        for root, state in enumerate(states):
            found = lines[root] if lines else memory.best[root].found
            assert found is not None, "the first round keeps a trajectory"
            actions, rewards, seeds = found[:3]
            plan = search.plan(
                state,
                self.actions[actions],
                rewards,
                self.dt,
                ended=found[3] if lines else memory.best[root].ended,
                seeds=seeds if (seeds >= 0).any() else None,
                **self._root_info(tree, root),
                nodes=int(np.count_nonzero(tree["root"] == root)),
                **{name: column[root] for name, column in columns.items()},
            )
            if len(states) > 1:
                spent = Spent(
                    int(memory.spent[root]),
                    int(total.frames * share),
                    total.seconds * share,
                    total.seconds_in_env * share,
                )
                plan = dataclasses.replace(plan, spent=spent)
            plans.append(plan)
        return plans

    def _root_info(self, tree: SearchTree, root: int) -> dict[str, Any]:
        """Return what is known of the actions of a root; see the notes above."""
        node = np.array([root])
        visits, totals = tree["visits"][root].copy(), tree["total"][root].copy()
        values = np.divide(totals, visits, np.full(len(visits), np.nan), where=visits > 0)
        closed, (certain,) = tree["closed"][root], tree.certain(node)
        chosen, length = int(tree.recommended(node)[0]), None
        policy = visits / max(visits.sum(), 1)
        if certain[chosen] > -np.inf:
            policy = np.eye(len(visits))[chosen]
        if tree["solved"][root]:
            value = certain[chosen]
            length = 1 + int(tree["length"][tree["child"][root, chosen]])
        else:
            value = max(totals.sum() / max(visits.sum(), 1), certain.max())
        return {
            "action": self.actions[chosen],
            "visits": visits.astype(np.int64),
            "policy": policy,
            "values": values,
            "value": float(value),
            "mask": ~closed | (visits > 0),
            "player": int(tree["to_play"][root]),
            "solved": bool(tree["solved"][root]),
            "length": length,
        }

    def _lines(self, tree: SearchTree) -> list[tuple[Ints, Floats, Ints, bool]]:
        """Return the recommended line of play of each root: actions, rewards, seeds and its end."""
        at = np.arange(tree.roots)
        paths: list[list[int]] = [[] for _ in at]
        on = at
        while len(on):
            nodes = at[on]
            played = tree["visits"][nodes].any(axis=1) & (~tree["ended"][nodes] | (nodes == on))
            on, nodes = on[played], nodes[played]
            actions = tree.recommended(nodes)
            outcomes = tree.outcomes_of(nodes, actions)
            passes = np.where(outcomes >= 0, tree["passes"][outcomes], -1)
            at = at.copy()
            at[on] = outcomes[np.arange(len(on)), passes.argmax(axis=1)] if len(on) else at[on]
            for root, node in zip(on.tolist(), at[on].tolist(), strict=True):
                paths[root].append(node)
        return [
            (
                tree["action"][path],
                tree["reward"][path],
                tree["seed"][path],
                bool(tree["ended"][path[-1]]),
            )
            for path in paths
        ]


def spread(values: Floats, movers: Ints, players: int) -> Floats:
    """Return the values ``(N, P)`` of all players, given those of the players to move ``(N,)``.

    The others lose what the player to move wins, in equal parts.

    >>> spread(np.array([0.5]), np.array([1]), 2)
    array([[-0.5,  0.5]])
    """
    if players == 1:
        return values[:, None]
    is_mover = np.arange(players) == movers[:, None]
    result: Floats = np.where(is_mover, values[:, None], -values[:, None] / (players - 1))
    return result


def _rest(old: SearchTree, child: int, best: Best) -> Best:
    """Return the rest of the best plan after the node `child`, if it leads through that node."""
    if best.found is None or child < 0:
        return Best()
    actions, _, seeds = best.found
    path = old.path(child)
    done = len(path)
    leads_there = np.array_equal(actions[:done], old["action"][path]) and np.array_equal(
        seeds[:done], old["seed"][path]
    )
    if not leads_there or len(actions) == done:
        return Best()
    rest = tuple(part[done:] for part in best.found)
    return Best(math.fsum(rest[1]), best.ended, rest)


def _outcome_keys(step: BatchTransition, turns: Turns) -> NDArray[np.int64]:
    """Return a number for each row, ``(N,)``, that identifies its outcome.

    Outcomes differ in observation, reward, flags, legal actions or player. The state is left out,
    because it holds the random generator.
    """
    count = len(step.rewards)
    observed = digests(make_key("obs")(step.obs, step.infos, step.states), count)
    columns = (step.rewards, step.terminateds, step.truncateds)
    rows: list[tuple[Any, ...]]
    rows = [*zip(observed, *(column.tolist() for column in columns), strict=True)]
    movers, legal = turns.to_play.tolist(), turns.legal
    for index in range(count):
        mask = b"" if legal is None or legal[index].all() else legal[index].tobytes()
        if mask or movers[index]:
            rows[index] += (mask, movers[index])
    keys = [hashlib.blake2b(repr(row).encode(), digest_size=8).digest() for row in rows]
    return np.array([int.from_bytes(key, signed=True) for key in keys], np.int64)
