"""Searches over sequences of actions, without states: random shooting and open-loop MCTS."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import ActionSampler, all_actions, bounds
from plangym_like.planners.continuous_plans import Objective, Reward, Spline, TerminalValue
from plangym_like.planners.games import Mask, Rules, Turns
from plangym_like.planners.nodes import Floats, Ints, Rows
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Played, Search, ended, lengths
from plangym_like.planners.search_tree import SEEDS, Descents, Level, SearchTree, resolved
from plangym_like.planners.tree_planner import TreeMemory, TreeOptions, TreePlanner
from plangym_like.planners.uct import tree_bounds
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number


class RandomShooting(Planner):
    """Draw random plans, roll them out, and keep the best one.

    A. Nagabandi, G. Kahn, R. S. Fearing and S. Levine, "Neural network dynamics for model-based
    deep reinforcement learning with model-free fine-tuning", ICRA 2018, section IV-C, use this
    method for model predictive control. It is a baseline for other planners.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite or a bounded box.
    horizon : int
        The number of actions in a plan.
    batch : int
        The number of plans that are rolled out at once.
    dt : int
        How long each action is held.
    knots : int, optional
        Plans are splines through so many random knots; for a bounded box only. By default, every
        action is drawn.
    spline : {"zero", "linear", "cubic"}
        The kind of spline; see `Spline`. Without `knots`, it has no effect.
    discount, reward, terminal_value : optional
        What is maximised; see `Objective`. By default, it is the sum of the rewards. If some
        actions are not legal, it cannot be anything else.
    **rules
        See `Rules`.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = RandomShooting(env, horizon=20).plan(state, budget=10_000, seed=0)
    >>> plan.score, plan.replay(env)
    (20.0, 20.0)
    """

    def __init__(
        self,
        env: PlanEnv,
        horizon: int = 30,
        batch: int = 256,
        dt: int = 1,
        knots: int | None = None,
        spline: str = "linear",
        *,
        discount: float = 1.0,
        reward: Reward | None = None,
        terminal_value: TerminalValue | None = None,
        **rules: Unpack[Rules],
    ) -> None:
        super().__init__(env, **rules)
        self.objective = Objective(discount, reward, terminal_value)
        self.horizon, self.batch = as_count("horizon", horizon), as_count("batch", batch)
        self.dt = as_count("dt", dt)
        self._sample = ActionSampler(env, self.name)
        self.knots = None if knots is None else as_count("knots", knots)
        if knots is not None:
            self._low, self._high = bounds(env, self.name)
            self._spline = Spline(spline, knots, self.horizon)

    def _draw(self, search: Search, count: int) -> NDArray[Any]:
        """Return random plans ``(count, T, *action_shape)``."""
        if self.knots is None:
            return self._sample(search.rng, count, self.horizon)
        shape = (count, self.knots, *self._low.shape)
        actions = self._spline.actions(search.rng.uniform(self._low, self._high, shape))
        # Between its knots, a cubic spline may leave the bounds.
        clipped: NDArray[Any] = np.clip(actions, self._low, self._high)
        return clipped.astype(self.env.action_space.dtype)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> dict[str, Any]:
        return {}  # only the best plan is kept

    def _search(self, state: Row, search: Search) -> Plan:
        goal = self.objective
        if search.turns.legal is not None and not goal.is_score:
            raise InputError(
                "RandomShooting takes no discount, reward or terminal_value where some actions are "
                "not legal"
            )
        while search.has((batch := search.fit(self.batch, self.horizon)) * self.horizon):
            if search.turns.legal is None:
                plans = self._draw(search, batch)
                rollout = search.rollout_batch(
                    plans, state, dt=self.dt, return_observations=goal.needs_observations
                )
                values = None if goal.is_score else goal.values(plans, rollout)
                steps = lengths(rollout)
                search.keep_rollout(plans, rollout.rewards, steps, ended(rollout), values)
            else:
                actions = all_actions(self.env, self.name)
                plans = search.rng.integers(len(actions), size=(batch, self.horizon))
                states = np.repeat(state[None], batch, axis=0)
                turns = search.turns.take(np.zeros(batch, np.intp))
                played = search.play_out(actions, plans, states, turns, self.dt)
                plans = actions[played.actions]
                search.keep_rollout(plans, played.rewards, played.lengths, played.ended)
            search.report(search.best.score if goal.is_score else -np.inf)
        assert search.best.found is not None, "`has` raises if the budget is too small for a batch"
        actions, rewards = search.best.found
        return search.plan(state, actions, rewards, self.dt, ended=search.best.ended)


class OpenLoopMCTS(TreePlanner):
    """Monte Carlo tree search over action sequences.

    D. Perez Liebana et al., "Open loop search for general video game playing", GECCO 2015: a node
    represents a sequence of actions, which may lead to different states. Every descent steps its
    actions again from the root, and then random actions up to `horizon`.

    Difference from the paper: after `advance`, the subtree of the action that was played is kept,
    if the action led to the state (this is tested with one transition). The returns in it are those
    of one action less, so the next trajectories are shorter by one action, too, and all returns
    remain comparable. When a tree has lost half of the horizon, the next search begins with a new
    one.

    This has advantages: memory does not grow with the size of states, a round is one
    `rollout_batch`, all returns end at the same step, and random steps need no chance nodes. But
    transitions above a leaf are stepped again in every descent, and actions do not depend on
    earlier outcomes. E. Lecarpentier et al., "Open loop execution of tree-search algorithms", 2018,
    show when this loses nothing.

    Selection, virtual loss and scaling work as in `UCT`, but no subtree is solved. The legal
    actions and the player of a node, and in games of several players whether it ends the game, are
    those of the first trajectory that reached it. Where an action of the tree is not legal after
    other outcomes, a trajectory continues at random.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    batch, discount, **options
        See `TreePlanner`, `TreeOptions` and `Rules`.
    horizon : int
        The number of actions in a trajectory.
    explore : float
        The weight of the exploration term in the bounds; ``sqrt(2)`` gives UCB1.
    stochastic : bool, optional
        Whether each trajectory is stepped with its own seed instead of the random numbers that the
        environment would draw next. The plan is then the luckiest trajectory. By default, it is
        so in games of several players whose rules have chance, such as OpenSpiel's backgammon.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import OpenLoopMCTS, play
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> play(OpenLoopMCTS(env, horizon=25), steps=50, budget=1_000, seed=0).score
    50.0
    """

    def __init__(
        self,
        env: PlanEnv,
        batch: int = 32,
        horizon: int = 20,
        explore: float = 1.0,
        discount: float = 1.0,
        *,
        stochastic: bool | None = None,
        **options: Unpack[TreeOptions],
    ) -> None:
        super().__init__(env, batch, discount, **options)
        self.horizon = as_count("horizon", horizon)
        self.explore = as_number("explore", explore, 0.0)
        self.stochastic = self._has_dice if stochastic is None else bool(stochastic)

    def _new_tree(self, states: Rows, turns: Turns) -> SearchTree:
        return SearchTree(len(self.actions), states[:, :0], turns)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> TreeMemory:
        """Keep the subtree of the actions that were played, if they led to the state.

        The trajectories of the subtree are shorter than those of the last tree by these actions,
        and so are those of this search. A tree that has lost half of the horizon is not kept.
        """
        horizon = self.horizon
        left = 0 if kept is None else kept.memory.horizon - 1 - len(kept.replies)
        if left < (self.horizon + 1) // 2:
            kept = None
        memory = super()._begin(state, search, kept)
        if kept is not None and memory.tree["passes"][: memory.tree.roots].any():
            horizon = left
        memory.horizon, turns = horizon, search.turns
        if self.stochastic and turns.legal is not None:  # the nodes are those of other outcomes
            tree, roots = memory.tree, slice(memory.tree.roots)
            tree["closed"][roots] = ~turns.legal
            tree["visits"][roots] *= turns.legal
            tree["total"][roots] *= turns.legal
        return memory

    def _legal_after(self, kept: Kept) -> Mask | None:
        return None if self.stochastic else super()._legal_after(kept)

    def _nodes_kept(self, kept: Kept, search: Search) -> list[tuple[int, int]]:
        after, found = search.starts.states, [(0, -1)] * len(search.starts.states)
        tree: SearchTree = kept.memory.tree
        # After another outcome of chance, it may be the turn of another player.
        if len(after) != tree.roots or (self.stochastic and tree.players > 1):
            return found
        states = kept.state.reshape(len(after), -1)
        shape = (len(after), *self.actions.shape[1:])
        played = [actions.reshape(shape) for actions in (kept.action, *kept.replies)]
        for root, nodes in enumerate(self._nodes_after(kept)):
            actions = [each[root] for each in played]
            if len(nodes) and search.leads_to(
                states[root], actions, self.dt, after[root], self.horizon
            ):
                found[root] = root, int(nodes[0])
        return found

    def _search_all(self, states: Rows, search: Search) -> list[Plan]:
        memory: TreeMemory = search.memory
        tree, horizon = memory.tree, memory.horizon
        bounds = partial(tree_bounds, tree, search.rng, self.explore, self.virtual_loss)
        while len(roots := self._affordable(search, memory, horizon)):
            paths = tree.descend(roots, bounds, depth=horizon)
            plans = search.rng.integers(len(self.actions), size=(len(roots), horizon))
            for depth, level in enumerate(paths.levels):
                plans[level.ids, depth] = level.actions
            seeds = search.rng.integers(SEEDS, size=len(roots)) if self.stochastic else None
            turns = self._turns(search, tree, roots)
            played = search.play_out(
                self.actions,
                plans,
                states[roots],
                turns,
                self.dt,
                seeds=seeds,
                needs_turns=True,
            )
            self._charge(memory, roots, played.lengths)
            self._record(memory, paths, plans, played)
            self._keep(memory, roots, played, seeds)
            self._report(search, memory)
        return self._plans(search, states, memory)

    def _record(self, memory: TreeMemory, paths: Descents, plans: Ints, played: Played) -> None:
        """Add the new nodes to the tree, and the returns to the actions of the descents."""
        tree, horizon = memory.tree, memory.horizon
        tree.play_for(played.gains.shape[2])
        new = tree.expand(paths.parents, paths.actions)
        weights, kept = self.discount ** np.arange(horizon), None
        if played.turns:
            self._set_turns(tree, new, paths, played)
            kept = np.logical_and.accumulate(plans == played.actions, axis=1)
        gains = np.moveaxis(played.gains, 2, 0)
        for depth, level in enumerate(paths.levels):
            movers: Any = tree["to_play"][level.nodes] if len(gains) > 1 else 0
            returns = gains[movers, level.ids, depth:] @ weights[: horizon - depth]
            kids = resolved(level.kids, new)
            if kept is not None:  # later actions of the descent were not played
                some = kept[level.ids, depth]
                level = Level(*(part[some] for part in level))
                kids, returns = kids[some], returns[some]
            if len(kids):
                tree.record(level, kids, returns)

    @staticmethod
    def _set_turns(tree: SearchTree, new: Ints, paths: Descents, played: Played) -> None:
        """Set who moves in new nodes, which actions are legal there, and if the game ends there."""
        for leaf, node in enumerate(new.tolist()):
            row = int((paths.last == -1 - leaf).argmax())
            depth = sum(row in level.ids for level in paths.levels)
            if tree.players > 1 and depth <= played.lengths[row]:
                tree["reward"][node] = played.rewards[row, depth - 1]
                tree["ended"][node] = played.ended[row] and depth == played.lengths[row]
            rows, turns = played.turns[min(depth, len(played.turns)) - 1]
            (place,) = (rows == row).nonzero()
            if len(place) and depth <= len(played.turns):
                tree["to_play"][node] = turns.to_play[place[0]]
                if turns.legal is not None:
                    tree["closed"][node] = ~turns.legal[place[0]]
                    tree.has_closed = True

    def _lines(self, tree: SearchTree) -> list[tuple[Ints, Floats, Ints, bool]]:
        if not self.stochastic:
            return super()._lines(tree)
        # What follows the first action depends on chance.
        firsts = tree["child"][np.arange(tree.roots), tree.recommended(np.arange(tree.roots))]
        fields = [tree[name][firsts, None] for name in ("action", "reward", "seed")]
        return list(zip(*fields, tree["ended"][firsts].tolist(), strict=True))

    def _keep(self, memory: TreeMemory, roots: Ints, played: Played, seeds: Ints | None) -> None:
        """Keep the best trajectories."""
        for row in self._improved(memory, roots, played.rewards.sum(axis=1)).tolist():
            length = int(played.lengths[row])
            row_seeds = np.full(length, -1)
            row_seeds[0] = -1 if seeds is None else seeds[row]
            rest = played.actions[row, :length], played.rewards[row, :length], row_seeds
            root = int(roots[row])
            memory.best[root] = memory.tree.trajectory(root, played.ended[row], *rest)
