"""`WidthPlanner`: the base class of IW(1) and Rollout-IW(1)."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import all_actions
from plangym_like.planners.features import Features, default_features
from plangym_like.planners.lookahead_tree import LookaheadTree
from plangym_like.planners.novelty import Novelty
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Planner
from plangym_like.planners.search import Search
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number


class WidthPlanner(Planner):
    """Grows a tree of novel states, and returns the path with the highest return.

    See `IW` for the parameters.
    """

    def __init__(
        self,
        env: PlanEnv,
        *,
        features: Features | None = None,
        discount: float = 0.995,
        death_penalty: float = 0.0,
        batch: int = 64,
        dt: int = 1,
    ) -> None:
        super().__init__(env)
        self.actions = all_actions(env, self.name)
        if features is not None and not callable(features):
            raise InputError(f"features must be a function of (obs, infos), got {features!r}")
        self.features = default_features(env, self.name) if features is None else features
        self.discount = as_number("discount", discount, 0.0, 1.0)
        self.death_penalty = as_number("death_penalty", death_penalty, 0.0)
        self.batch, self.dt = as_count("batch", batch), as_count("dt", dt)
        self._last: tuple[LookaheadTree, int] | None = None
        self._kept: LookaheadTree | None = None

    def advance(self) -> None:
        """For the next search, keep the subtree of the first action of the last plan."""
        if self._last is not None:
            self._kept, self._last = self._last[0].subtree(self._last[1]), None

    def _search(self, state: Row, search: Search) -> Plan:
        tree, self._kept = self._kept, None
        if tree is None or not np.array_equal(tree.states(np.zeros(1, int))[0], state):
            tree = LookaheadTree(state, len(self.actions))
        tree.ended[0] = False  # a plan may start where an episode ended
        self._reported = 0
        novelty = Novelty()
        novel = self._test_again(tree, novelty)
        kept = tree.size
        exhausted = self._grow(tree, novel, novelty, search)
        path = tree.best_path(self.discount, search.rng)
        self._last = tree, path[0]
        search.report(math.fsum(tree.reward[path]), f"{tree.size:,} nodes")
        return search.plan(
            state,
            self.actions[tree.action[path]],
            tree.reward[path],
            self.dt,
            ended=tree.ended[path[-1]],
            nodes=tree.size,
            kept=kept,
            depth=int(np.max(tree.depth[: tree.size])),
            exhausted=exhausted,
        )

    @staticmethod
    def _test_again(tree: LookaheadTree, novelty: Novelty) -> NDArray[np.bool_]:
        """Return which nodes of a kept tree are novel if only the nodes of that tree count.

        At the same depth, nodes with children are tested first, because they are not pruned.
        """
        size = tree.size
        order = np.argsort(tree.leaves, kind="stable")
        novel, witness = np.zeros(size, np.bool_), np.full(size, -1, np.int32)
        atoms = tree.atoms[:size]
        novelty.reserve(int(np.max(atoms)) + 1)
        novel[order], witness[order] = novelty.test(atoms[order], tree.depth[:size][order])
        tree.witness[:size] = witness
        novel[0] = True  # the root is always expanded
        return novel

    def _step(
        self,
        tree: LookaheadTree,
        novelty: Novelty,
        search: Search,
        parents: NDArray[np.int32],
        actions: NDArray[Any],
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Step actions from nodes; return the new nodes, and which of them are novel."""
        step = search.step_batch(self.actions[actions], tree.states(parents), self.dt)
        count = len(parents)
        atoms = novelty.atoms(self.features(step.obs, step.infos), count)
        gain, lives = step.rewards, np.full(count, np.nan)
        if self.death_penalty and step.infos.mask("lives").all():
            lives = step.infos["lives"].astype(np.float64)
            lost = np.fmax(tree.lives[parents] - lives, 0)
            gain = gain - self.death_penalty * np.nan_to_num(lost)
        novel, witness = novelty.test(atoms, tree.depth[parents] + 1)
        nodes = tree.add(
            parents,
            actions,
            step.states,
            atoms,
            reward=step.rewards,
            gain=gain,
            lives=lives,
            ended=step.terminateds | step.truncateds,
            witness=witness,
        )
        if tree.size > 1.5 * self._reported:  # the search for the best path takes time, too
            self._reported = tree.size
            path = tree.best_path(self.discount)
            search.report(math.fsum(tree.reward[path]), f"{tree.size:,} nodes")
        return nodes, novel

    @abstractmethod
    def _grow(
        self, tree: LookaheadTree, novel: NDArray[np.bool_], novelty: Novelty, search: Search
    ) -> bool:
        """Add nodes with `_step`; return whether the search ended before the budget was spent."""
