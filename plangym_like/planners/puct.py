"""PUCT: the tree search of AlphaZero, guided by priors and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.nodes import ROOT, Floats, Ints
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept
from plangym_like.planners.search import Best, Search
from plangym_like.planners.search_tree import SearchTree, TreeMemory, TreePlanner
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

    - There is only one player, and rewards on the way count: the return of an action is its reward
      plus the discounted return after it. Mean returns are scaled to [0, 1] by their range so far,
      and are 0 where there was no visit, as in J. Schrittwieser et al., "Mastering Atari, Go, chess
      and shogi by planning with a learned model", 2020, equation 5.
    - ``N(s)`` includes all descents of the round that reach the node.
    - Subtrees that are known completely are searched again (unlike in `UCT`).
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
        actions, in the order of `TreePlanner.actions`, and expected returns ``(N,)``. Actions with
        a prior of 0 are not tried. `evaluate` is not called for states where the episode has ended.
        Without `evaluate`, priors are uniform.
    observe : callable, optional
        ``observe(state)`` returns the observation of a root, ``(1, *obs_shape)``, because a state
        holds no observation. Without `observe`, the priors of a root are uniform, unless the root
        was kept from the last search by `advance`.
    batch, discount, virtual_loss, dt
        See `TreePlanner`.
    rollout : int
        The number of random actions after a new state.
    explore, base : float
        ``c_init`` and ``c_base`` of the paper.
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
        virtual_loss: float = 1.0,
        dt: int = 1,
    ) -> None:
        super().__init__(env, batch, discount, virtual_loss, dt)
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
        self._set_root_prior(memory.tree, search, state)
        return memory

    def _search(self, state: Row, search: Search) -> Plan:
        memory: TreeMemory = search.memory
        tree = memory.tree
        while count := self._affordable(search, memory, 1 + self.rollout):
            memory.descents += count
            paths = tree.descend(count, partial(self._scores, tree)).without_repeats()
            new = self._expand(tree, search, paths.parents, paths.actions)
            ends = paths.ends(new)
            values = tree["value"][ends]
            tree.back_up(paths, new, values, self.discount)
            row = search.better(tree["score"][ends])
            if row is not None:
                path = tree.path(int(ends[row]))
                found = tree["action"][path], tree["reward"][path], tree["seed"][path]
                search.best = Best(math.fsum(found[1]), bool(tree["ended"][ends[row]]), found)
            search.report(search.best.score, f"{tree.size:,} nodes")
        return self._plan(search, state, tree, prior=tree["prior"][ROOT].copy())

    def _scores(self, tree: SearchTree, nodes: Ints, ranks: Ints, counts: Ints) -> Floats:
        totals, visits = tree.scaled(nodes)
        means = totals / np.maximum(visits + self.virtual_loss * ranks, 1e-9)
        # The paper's code counts the node's own visit; `counts` includes it.
        parent_visits = visits.sum(axis=1, keepdims=True) + counts
        return puct(
            means, tree["prior"][nodes], visits + ranks, parent_visits, self.explore, self.base
        )

    def _expand(self, tree: SearchTree, search: Search, parents: Ints, actions: Ints) -> Ints:
        """Step the leaves, evaluate them, and return their nodes."""
        if not len(parents):
            return parents
        step = search.step_batch(self.actions[actions], tree["state"][parents], self.dt)
        ended = step.terminateds | step.truncateds
        priors, values = np.zeros((len(parents), len(self.actions))), np.zeros(len(parents))
        if not ended.all():
            (on,) = (~ended).nonzero()
            priors[on], values[on] = evaluated(
                self.evaluate, rows_of(step.obs, on), len(on), len(self.actions)
            )
            if self.rollout:
                returns = self._rolled_out(step.states[on], search)
                values[on] = returns if self.evaluate is None else (values[on] + returns) / 2
        return tree.expand(
            parents,
            actions,
            state=step.states,
            reward=step.rewards,
            ended=ended,
            prior=priors,
            value=values,
        )

    def _rolled_out(self, states: Row, search: Search) -> Floats:
        """Roll out random actions from each of `states`, and return the discounted returns."""
        plans = search.rng.integers(len(self.actions), size=(len(states), self.rollout))
        rewards = search.rollout_batch(self.actions[plans], states, self.dt).rewards
        returns: Floats = rewards @ self.discount ** np.arange(self.rollout)
        return returns

    def _set_root_prior(self, tree: SearchTree, search: Search, state: Row) -> None:
        prior = tree["prior"][ROOT]
        if not prior.any():
            prior[:] = 1 / len(prior)
            if self.observe is not None:
                observations = self.observe(state)
                prior[:] = evaluated(self.evaluate, observations, 1, len(prior))[0][0]
        if self.noise:
            (possible,) = prior.nonzero()
            drawn = search.rng.dirichlet(np.full(len(possible), self.alpha))
            prior[possible] += self.noise * (drawn - prior[possible])


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
    evaluate: Evaluate | None, observations: Any, count: int, num_actions: int
) -> tuple[Floats, Floats]:
    """Return the priors ``(count, A)`` and the values ``(count,)`` of `count` states.

    Without `evaluate`, priors are uniform, and values are 0.

    Raises
    ------
    InputError
        `evaluate` did not return a pair of arrays with these shapes, or it returned priors that
        are not probabilities, or values that are not finite.

    Examples
    --------
    >>> evaluated(None, None, 1, 2)
    (array([[0.5, 0.5]]), array([0.]))
    """
    if evaluate is None:
        return np.full((count, num_actions), 1 / num_actions), np.zeros(count)
    result = evaluate(observations)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise InputError(f"evaluate must return a pair (priors, values), got {result!r}")
    priors, values = (np.asarray(part, np.float64) for part in result)
    if (priors.shape, values.shape) != ((count, num_actions), (count,)):
        raise InputError(
            f"evaluate must return priors (N, {num_actions}) and values (N,), got shapes "
            f"{priors.shape} and {values.shape} for {count} observations"
        )
    sums = priors.sum(axis=1)
    if not (priors >= 0).all() or not np.allclose(sums, 1.0, atol=1e-3):
        raise InputError("evaluate must return priors that are probabilities with a sum of 1")
    if not np.isfinite(values).all():
        raise InputError("evaluate must return finite values")
    return priors, values


def rows_of(observations: Any, rows: Ints) -> Any:
    """Return `rows` of a batch of observations (an array, a list, or a tree of arrays and lists).

    >>> rows_of({"at": np.array([3, 4, 5]), "told": ["a", "b", "c"]}, np.array([0, 2]))
    {'at': array([3, 5]), 'told': ['a', 'c']}
    """
    if isinstance(observations, Mapping):
        return {key: rows_of(part, rows) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(rows_of(part, rows) for part in observations)
    if isinstance(observations, list):
        return [observations[row] for row in rows]
    return observations[rows]
