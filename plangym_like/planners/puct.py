"""PUCT: the tree search of AlphaZero, guided by priors and values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.games import Mask
from plangym_like.planners.nodes import Floats, Ints, Rows
from plangym_like.planners.observations import joined, rows_of
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept
from plangym_like.planners.search import Search
from plangym_like.planners.search_tree import SEEDS, SearchTree
from plangym_like.planners.tree_planner import ClosedLoopOptions, TreeMemory, TreePlanner, spread
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

Evaluate = Callable[[Any], tuple[Any, Any]]


class PUCT(TreePlanner):
    """AlphaZero's tree search, guided by priors and values, for example from a network.

    D. Silver et al., "A general reinforcement learning algorithm that masters chess, shogi and Go
    through self-play", 2018, section "Search" of the supplement: descend to the action with the
    highest ``Q(s, a) + C(s) * P(s, a) * sqrt(N(s)) / (1 + N(s, a))``, where
    ``C(s) = log((1 + N(s) + base) / base) + explore``; step it once, evaluate the new state, and
    add the value to all actions on the way. Differences from the paper:

    - There may be one player or more than two, and rewards on the way count: the return of an
      action is its reward plus the discounted return after it. Mean returns are scaled to [0, 1] by
      their range so far, as in J. Schrittwieser et al., "Mastering Atari, Go, chess and shogi by
      planning with a learned model", 2020, equation 5.
    - An action without visits counts as the mean of its state in games of several players (S. Gelly
      and Y. Wang, "Exploration exploitation in Go", 2006), and as 0 with one player, as in the
      paper's code. If 0, a lost game, were its value in games, a search with few descents would
      hardly try more than the first good action.
    - ``N(s)`` includes all descents of the round that reach the node.
    - In games of several players, solved subtrees are not searched again, as in `UCT`. With one
      player they are.
    - A round has up to `batch` descents, which the virtual loss keeps apart. It calls `step_batch`
      once and `evaluate` once. If several descents find the same leaf, only one counts.
    - With `rollout`, the value of a new state is the mean of the value from `evaluate` and the
      return of random actions (D. Silver et al., "Mastering the game of Go with deep neural
      networks and tree search", 2016). Without `evaluate`, it is this return alone.

    The plan is the path in the tree with the best score; if several paths have this score, it is
    the first one found. `Plan.next_action`, for closed-loop control, is the most visited action.
    ``info["visits"]`` can be the target of a policy network, and ``info["value"]`` is the mean
    return of the root.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    evaluate : callable, optional
        ``evaluate(observations) -> (priors, values)``. It takes observations ``(N, *obs_shape)`` of
        N states, as `PlanEnv.step_batch` returns them. It returns probabilities ``(N, A)`` of
        actions, in the order of `TreePlanner.actions`, and expected returns ``(N,)`` of the
        players to move, or ``(N, P)`` of all players. Actions with a prior of 0 are not tried.
        Priors of actions that are not legal are ignored. `evaluate` is not called for states where
        the episode has ended. Without `evaluate`, priors are uniform.
    observe : callable, optional
        ``observe(state)`` returns the observation of a root, ``(1, *obs_shape)``, because a row
        holds no observation. It is not needed if `plan` is given a result of ``reset`` or ``step``.
        Otherwise, the priors of a root are uniform, unless the root was kept from the last search
        by `advance`.
    batch, discount, **options
        See `TreePlanner`.
    rollout : int
        The number of random actions after a new state.
    explore, base : float
        ``c_init`` and ``c_base`` of the paper. With uniform priors and `rollout`, an `explore` of 4
        plays board games better than the paper's 1.25 (``benchmarks/games.py``).
    noise : float
        The fraction of the root's priors that is drawn from a Dirichlet distribution; 0.25 in the
        paper, for learning.
    alpha : float
        The parameter of the Dirichlet distribution.

    Examples
    --------
    A uniform policy, and a value that measures how upright the pole is:

    >>> import numpy as np, plangym_like
    >>> from plangym_like.planners import PUCT, play
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> def evaluate(obs):
    ...     return np.full((len(obs), 2), 0.5), 20 - 50 * np.abs(obs[:, 2])
    >>> play(PUCT(env, evaluate, discount=0.95), steps=50, budget=40, seed=0).score
    50.0
    """

    def __init__(
        self,
        env: PlanEnv,
        evaluate: Evaluate | None = None,
        batch: int = 8,
        explore: float = 1.25,
        discount: float = 1.0,
        *,
        observe: Callable[[Row], Any] | None = None,
        rollout: int = 0,
        base: float = 19_652.0,
        noise: float = 0.0,
        alpha: float = 0.3,
        **options: Unpack[ClosedLoopOptions],
    ) -> None:
        super().__init__(env, batch, discount, **options)
        for name, function in (("evaluate", evaluate), ("observe", observe)):
            if function is not None and not callable(function):
                raise InputError(f"{name} must be a function, got {function!r}")
        self.evaluate, self.observe = evaluate, observe
        self.rollout = as_count("rollout", rollout, 0)
        if evaluate is None and not self.rollout:
            raise InputError("PUCT needs evaluate or rollout, to estimate values")
        self.explore, self.base = as_number("explore", explore, 0.0), as_number("base", base, 1.0)
        self.noise = as_number("noise", noise, 0.0, 1.0)
        self.alpha = as_number("alpha", alpha, 1e-6)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> TreeMemory:
        memory = super()._begin(state, search, kept)
        self._set_root_priors(memory.tree, search)
        return memory

    def _search_all(self, states: Rows, search: Search) -> list[Plan]:
        memory: TreeMemory = search.memory
        tree, roots = memory.tree, memory.tree.roots
        while len(starts := self._affordable(search, memory, 1 + self.rollout)):
            seen: list[tuple[Ints, Any]] = []
            draw = partial(self._draw, memory, search, len(starts) * self.rollout, seen)
            paths = tree.descend(
                starts, partial(self._scores, tree), draw if self.outcomes > 1 else None
            ).without_repeats()
            new = self._expand(memory, search, paths.parents, paths.actions, seen)
            ends = paths.ends(new)
            tree.back_up(paths, new, tree["value"][ends], self.discount)
            if tree.players > 1:
                self._close(memory, paths, new)
            for row in self._improved(memory, ends, tree["score"][ends]).tolist():
                end = ends[row]
                memory.best[tree["root"][end]] = tree.trajectory(int(end), tree["ended"][end])
            self._report(search, memory)
        return self._plans(search, states, memory, prior=tree["prior"][:roots].copy())

    def _scores(self, tree: SearchTree, nodes: Ints, ranks: Ints, counts: Ints) -> Floats:
        totals, visits = tree.scaled(nodes)
        means = totals / np.maximum(visits + self.virtual_loss * ranks, 1e-9)
        # The paper's code counts the node's own visit; `counts` includes it.
        own_visits = np.add.reduce(visits, axis=1, keepdims=True)
        parent_visits = own_visits + counts
        if tree.players > 1:
            mean = totals.sum(axis=1, keepdims=True) / np.maximum(own_visits, 1)
            means = np.where(visits + ranks > 0, means, mean)
        priors = tree.values_of("prior", nodes)
        scores = puct(means, priors, visits + ranks, parent_visits, self.explore, self.base)
        return _without(scores, tree, nodes, visits) if tree.has_closed else scores

    def _expand(
        self,
        memory: TreeMemory,
        search: Search,
        parents: Ints,
        actions: Ints,
        seen: list[tuple[Ints, Any]],
    ) -> Ints:
        """Step the leaves, evaluate all new nodes, and return those of the leaves.

        With chance nodes there are no leaves; `seen` are the nodes that were drawn.
        """
        new = parents
        if len(parents):
            step, fields = self._step(search, memory, parents, actions)
            new = memory.tree.expand(parents, actions, **fields)
            (on,) = (~fields["ended"]).nonzero()
            nodes, obs = new[on], rows_of(step.obs, on)
        else:
            nodes, obs = _fresh(memory.tree, seen)
        if len(nodes):
            self._assess(memory, search, nodes, obs)
        return new

    def _assess(self, memory: TreeMemory, search: Search, nodes: Ints, obs: Any) -> None:
        """Give new nodes their priors and values."""
        tree, count = memory.tree, len(nodes)
        turns = self._turns(search, tree, nodes)
        priors, values = evaluated(
            self.evaluate, obs, count, len(self.actions), turns.to_play, tree.players
        )
        if self.rollout:
            plans = search.rng.integers(len(self.actions), size=(count, self.rollout))
            seeds = search.rng.integers(SEEDS, size=count) if self.outcomes > 1 else None
            states = tree["state"][nodes]
            played = search.play_out(self.actions, plans, states, turns, self.dt, seeds=seeds)
            self._charge(memory, nodes, played.lengths)
            returns = self._returns(tree, played)
            values = returns if self.evaluate is None else (values + returns) / 2
        tree["prior"][nodes], tree["value"][nodes] = legal_priors(priors, turns.legal), values

    def _set_root_priors(self, tree: SearchTree, search: Search) -> None:
        starts, roots = search.starts, np.arange(tree.roots)
        unknown = roots[~tree["prior"][roots].any(axis=1)]
        if len(unknown):
            size = len(self.actions)
            priors = np.full((len(unknown), size), 1 / size)
            obs = None
            if self.observe is not None:
                obs = joined([self.observe(state) for state in starts.states[unknown]])
            elif starts.is_given and self.evaluate is not None:
                obs = rows_of(starts.obs, unknown)
            if obs is not None:
                movers, players = tree["to_play"][unknown], search.game.players
                priors = evaluated(self.evaluate, obs, len(unknown), size, movers, players)[0]
            tree["prior"][unknown] = legal_priors(priors, search.turns.take(unknown).legal)
        if self.noise:
            _add_noise(tree["prior"][: tree.roots], self.noise, self.alpha, search.rng)


def _add_noise(priors: Floats, noise: float, alpha: float, rng: np.random.Generator) -> None:
    """Mix Dirichlet noise into priors ``(n, A)``, in place, where they are not 0."""
    for prior in priors:
        (possible,) = prior.nonzero()
        drawn = rng.dirichlet(np.full(len(possible), alpha))
        prior[possible] += noise * (drawn - prior[possible])


def _without(scores: Floats, tree: SearchTree, nodes: Ints, visits: Floats) -> Floats:
    """Return scores ``(n, A)`` that are -inf for closed actions, but not for all actions."""
    closed = tree.values_of("closed", nodes)
    if not closed.any():
        return scores
    scores[closed] = -np.inf
    (lost,) = (scores == -np.inf).all(axis=1).nonzero()  # all others have a prior of 0
    scores[lost] = np.where(closed[lost], -np.inf, -visits[lost])
    return scores


def _fresh(tree: SearchTree, seen: list[tuple[Ints, Any]]) -> tuple[Ints, Any]:
    """Return the nodes and observations of `seen` that have to be evaluated, each of them once."""
    fresh: list[tuple[Ints, Any]] = []
    for nodes, obs in seen:
        rows = np.unique(nodes, return_index=True)[1]
        rows.sort()
        rows = rows[~tree["ended"][nodes[rows]] & (tree["passes"][nodes[rows]] == 0)]
        if len(rows):
            fresh.append((nodes[rows], rows_of(obs, rows)))
    if not fresh:
        return np.zeros(0, np.intp), None
    return np.concatenate([nodes for nodes, _ in fresh]), joined([obs for _, obs in fresh])


def legal_priors(priors: Floats, legal: Mask | None) -> Floats:
    """Return priors ``(N, A)`` that are 0 where actions are not legal.

    >>> legal_priors(np.array([[0.5, 0.25, 0.25]]), np.array([[False, True, True]]))
    array([[0. , 0.5, 0.5]])
    """
    if legal is None:
        return priors
    kept = np.where(legal, priors, 0.0)
    none = kept.sum(axis=1) < 1e-12
    kept[none] = legal[none]
    result: Floats = kept / np.maximum(kept.sum(axis=1, keepdims=True), 1e-12)
    return result


def puct(
    means: Floats, priors: Floats, visits: Any, parent_visits: Any, explore: float, base: float
) -> Floats:
    """Return AlphaZero's score of each action in each of n nodes; -inf where the prior is 0.

    `means`, `priors` and `visits` are ``(n, A)``, `parent_visits` is ``(n, 1)``.

    >>> means, priors, visits = np.array([[[0.5, 0.0]], [[0.2, 0.8]], [[3, 0]]])
    >>> puct(means, priors, visits, 4, 1.0, 1e9).round(3)
    array([[0.6, 1.6]])
    """
    rate = np.log((1 + parent_visits + base) / base) + explore
    scores = means + rate * priors * np.sqrt(parent_visits) / (1 + visits)
    return np.where(priors > 0, scores, -np.inf)


def evaluated(
    evaluate: Evaluate | None,
    observations: Any,
    count: int,
    num_actions: int,
    movers: Ints,
    players: int,
) -> tuple[Floats, Floats]:
    """Return the priors ``(count, A)`` and the values ``(count, P)`` of `count` states.

    `movers` ``(count,)`` are the players to move. Without `evaluate`, priors are uniform, and
    values are 0.

    Raises
    ------
    InputError
        `evaluate` did not return a pair of arrays with these shapes, or it returned priors that
        are not probabilities, or values that are not finite.

    Examples
    --------
    >>> evaluated(None, None, 1, 2, np.zeros(1, int), 1)
    (array([[0.5, 0.5]]), array([[0.]]))
    """
    if evaluate is None:
        return np.full((count, num_actions), 1 / num_actions), np.zeros((count, players))
    result = evaluate(observations)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise InputError(f"evaluate must return a pair (priors, values), got {result!r}")
    priors, values = (np.asarray(part, np.float64) for part in result)
    shapes = [(count,)] if players == 1 else [(count,), (count, players)]
    if priors.shape != (count, num_actions) or values.shape not in shapes:
        is_wide = values.ndim == 2 and values.shape[1] > players
        hint = '; info["rewards"] of reset says how many players there are' * is_wide
        raise InputError(
            f"evaluate must return priors (N, {num_actions}) and values (N,), got shapes "
            f"{priors.shape} and {values.shape} for {count} observations and {players} "
            f"player{'s' * (players > 1)}{hint}"
        )
    sums = priors.sum(axis=1)
    if not (priors >= 0).all() or not np.allclose(sums, 1.0, atol=1e-3):
        raise InputError("evaluate must return priors that are probabilities with a sum of 1")
    if not np.isfinite(values).all():
        raise InputError("evaluate must return finite values")
    if values.ndim == 1 and players > 2:
        raise InputError(
            f"in a game of {players} players, evaluate must return values (N, {players})"
        )
    return priors, spread(values, movers, players) if values.ndim == 1 else values
