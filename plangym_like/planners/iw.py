"""IW(1) and Rollout-IW(1): searches that prune states without anything new.

- `LookaheadTree`: the states that were generated
- `WidthPlanner`: what both planners share
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from plangym_like.env import PlanEnv
from plangym_like.errors import InputError
from plangym_like.planners.action_sets import all_actions, index_of
from plangym_like.planners.checkpoint import stored
from plangym_like.planners.games import Mask, Rules
from plangym_like.planners.nodes import ROOT, Ints, Nodes
from plangym_like.planners.novelty import Atom, Novelty
from plangym_like.planners.observations import Features, default_features
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Search
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count, as_number

# Random numbers of rollouts are drawn for this many levels of the tree at once.
_LEVELS = 32


@stored
class LookaheadTree(Nodes):
    """The states that a search has generated from its root.

    Parameters
    ----------
    state : row
        The state of the root.
    legal : array ``(A,) bool``
        Which actions are legal at the root. Actions are numbers from 0 to ``A - 1``.

    Attributes
    ----------
    fields of a node
        ``action`` and ``reward`` (of the step that leads to the node), ``depth``, ``gain`` (the
        term that the step adds to the sum that the planner maximises), ``worth`` (that sum),
        ``lives`` (NaN if infos lack them), ``ended``, ``child`` ``(A,)`` (the node that each action
        leads to, -1 if it was not tried), ``legal`` ``(A,)``, ``open`` ``(A,)`` (whether the action
        is legal and its child not solved; see `RolloutIW`), ``solved``, ``atoms`` (as
        `Novelty.atoms` returns them; those of the first root are not known, because no step has
        returned its observation), ``witness`` (an atom that is novel in the node; -1 if there is
        none), and ``state``.
    """

    def __init__(self, state: Row, legal: Mask) -> None:
        num_actions = len(legal)
        super().__init__(
            *(("action", np.intp), ("reward", float), ("gain", float), ("worth", float)),
            *(("lives", float), ("depth", np.int32), ("witness", np.int32)),
            *(("ended", bool), ("solved", bool)),
            *((name, bool, (num_actions,)) for name in ("legal", "open")),
            ("child", np.int32, (num_actions,)),
            ("atoms", np.int32, (1,)),
            ("state", np.uint8, state.shape),
            links=("child",),
        )
        self["state"][ROOT], self["atoms"][ROOT], self["witness"][ROOT] = state, -1, -1
        self["lives"][ROOT], self["open"][ROOT], self["legal"][ROOT] = np.nan, legal, legal

    def expand(
        self, parents: Ints, actions: Ints, atoms: NDArray[np.int32], legal: Mask, **fields: Any
    ) -> Ints:
        """Append the children that actions lead to, and return their numbers."""
        width = self["atoms"].shape[1]
        if atoms.shape[1] > width:
            width = max(atoms.shape[1], width + width // 4)
            self.widen("atoms", width, -1)
        atoms = np.pad(atoms, ((0, 0), (0, width - atoms.shape[1])), constant_values=-1)
        depth = self["depth"][parents] + 1
        more = {"action": actions, "atoms": atoms, "depth": depth, "legal": legal, "open": legal}
        nodes = self.add(parents, **more, **fields)
        self["worth"][nodes] = self["worth"][parents] + self["gain"][nodes]
        self["child"][parents, actions] = nodes
        return nodes

    @property
    def leaves(self) -> NDArray[np.bool_]:
        """Which nodes have no children, ``(size,) bool``."""
        leaves: NDArray[np.bool_] = np.all(self["child"] < 0, axis=1)
        return leaves

    def below(self, root: int) -> LookaheadTree:
        """Return the subtree of `root` as a new tree, in which no node is solved."""
        tree = self.subtree(root)
        tree["depth"][:] -= self["depth"][root]
        tree["worth"][:] -= self["worth"][root]
        tree["solved"][:], tree["open"][:] = False, tree["legal"]
        return tree

    def best_path(self, discount: float, rng: np.random.Generator | None = None) -> Ints:
        """Return the nodes below the root on the path with the highest discounted sum of gains.

        The path ends at a leaf. Ties between children are broken at random; without `rng`, the
        first child is taken.
        """
        parents, gains = self["parent"].tolist(), self["gain"].tolist()
        best = [-np.inf] * self.size  # the best value among each node's children
        worth = [0.0] * self.size
        for node in range(self.size - 1, 0, -1):
            below = best[node]
            worth[node] = gains[node] + (discount * below if below > -np.inf else 0.0)
            if worth[node] > best[parents[node]]:
                best[parents[node]] = worth[node]
        path, node = [], ROOT
        while best[node] > -np.inf:
            children = [child for child in self["child"][node].tolist() if child > 0]
            equal = [child for child in children if worth[child] == best[node]]
            node = equal[0 if rng is None or len(equal) == 1 else int(rng.integers(len(equal)))]
            path.append(node)
        return np.array(path, np.intp)


@stored
@dataclass
class _Memory:
    """The state of a search."""

    tree: LookaheadTree
    novelty: Novelty
    novel: NDArray[np.bool_]  # which nodes of the kept tree were novel when the search began
    # For each depth, the nodes that IW has still to expand, in parts; and those it expands now.
    waiting: dict[int, list[Ints]] = field(default_factory=dict)
    level: Ints = field(default_factory=lambda: np.zeros(0, np.intp))
    # The nodes where the rollouts of RolloutIW are.
    places: Ints = field(default_factory=lambda: np.zeros(0, np.intp))
    reported: int = 0  # the size of the tree at the last report


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
        subtables: bool = False,
        batch: int = 64,
        dt: int = 1,
        **rules: Unpack[Rules],
    ) -> None:
        super().__init__(env, **rules)
        self.actions = all_actions(env, self.name)
        if features is not None and not callable(features):
            raise InputError(f"features must be a function of (obs, infos), got {features!r}")
        self.features = default_features(env, self.name) if features is None else features
        self.discount = as_number("discount", discount, 0.0, 1.0)
        self.death_penalty = as_number("death_penalty", death_penalty, 0.0)
        self.subtables = bool(subtables)
        self.batch, self.dt = as_count("batch", batch), as_count("dt", dt)

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _Memory:
        """Keep the subtree of the action that was played, if it led to `state`."""
        tree = LookaheadTree(state, search.legal_starts()[0])
        if kept is not None:
            old: LookaheadTree = kept.memory.tree
            action = index_of(self.actions, kept.action)
            child = int(old["child"][ROOT, action]) if action >= 0 else -1
            if child > 0 and np.array_equal(old["state"][child], state):
                tree = old.below(child)
        tree["ended"][ROOT] = False  # a plan may start where an episode ended
        novelty = Novelty(subtables=self.subtables)
        return _Memory(tree, novelty, self._test_again(tree, novelty))

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _Memory = search.memory
        exhausted, tree = self._grow(memory, search), memory.tree
        path = tree.best_path(self.discount, search.rng)
        search.report(math.fsum(tree["reward"][path]), f"{tree.size:,} nodes")
        return search.plan(
            state,
            self.actions[tree["action"][path]],
            tree["reward"][path],
            self.dt,
            ended=tree["ended"][path[-1]],
            nodes=tree.size,
            kept=len(memory.novel),
            depth=int(np.max(tree["depth"])),
            exhausted=exhausted,
        )

    @staticmethod
    def _test_again(tree: LookaheadTree, novelty: Novelty) -> NDArray[np.bool_]:
        """Return which nodes of a kept tree are novel if only the nodes of that tree count.

        At the same depth, nodes with children are tested first, because they are not pruned.
        """
        order = np.argsort(tree.leaves, kind="stable")
        novel, atoms = np.zeros(tree.size, np.bool_), tree["atoms"]
        novelty.reserve(int(np.max(atoms)) + 1)
        novel[order], tree["witness"][order], _ = novelty.test(
            atoms[order], tree["depth"][order], tree["worth"][order]
        )
        novel[ROOT] = True  # the root is always expanded
        return novel

    def _step(
        self, memory: _Memory, search: Search, parents: Ints, actions: Ints
    ) -> tuple[Ints, NDArray[np.bool_], list[Atom]]:
        """Step actions from nodes.

        Return the new nodes, which of them are novel and have not ended, and the atoms that are now
        seen at a smaller depth (see `Novelty.test`).
        """
        tree, novelty, count = memory.tree, memory.novelty, len(parents)
        step = search.step_batch(self.actions[actions], tree["state"][parents], self.dt)
        atoms = novelty.atoms(self.features(step.obs, step.infos), count)
        gain, lives = step.rewards, np.full(count, np.nan)
        if self.death_penalty and step.infos.mask("lives").all():
            lives = step.infos["lives"].astype(np.float64)
            lost = np.fmax(tree["lives"][parents] - lives, 0)
            gain = gain - self.death_penalty * np.nan_to_num(lost)
        worth = tree["worth"][parents] + gain
        novel, witness, seen = novelty.test(atoms, tree["depth"][parents] + 1, worth)
        ended = step.terminateds | step.truncateds
        nodes = tree.expand(
            parents,
            actions,
            atoms,
            search.legal_after(step),
            state=step.states,
            reward=step.rewards,
            gain=gain,
            lives=lives,
            ended=ended,
            witness=witness,
        )
        if tree.size > 1.5 * memory.reported:  # the search for the best path takes time, too
            memory.reported = tree.size
            path = tree.best_path(self.discount)
            search.report(math.fsum(tree["reward"][path]), f"{tree.size:,} nodes")
        return nodes, novel & ~ended, seen

    @abstractmethod
    def _grow(self, memory: _Memory, search: Search) -> bool:
        """Add nodes with `_step`; return whether the search ended before the budget was spent."""


class IW(WidthPlanner):
    """IW(1): search breadth-first, and prune each state whose atoms were all seen before.

    N. Lipovetzky, M. Ramirez and H. Geffner, "Classical planning with simulators: results on the
    Atari video games", IJCAI 2015. An atom is a pair of a variable and its value, such as "byte 17
    of the RAM is 3". Each kept state has a new atom, so a search keeps at most as many states as
    there are atoms. States of equal depth are expanded in descending order of their return. The
    plan is the path with the highest discounted return; ties are broken at random. The plan leads
    to a leaf of the tree.

    In closed loop (`play`), `advance` keeps the subtree of the action that was taken. Its leaves
    are tested again, because they may be novel now that the states of other subtrees are gone.

    A batch has nodes of one depth, and its states are tested in order. So exactly the same states
    are pruned as in a search that expands one node after the other, with one exception. The atoms
    of the first root are not known, because its state holds no observation. A state may therefore
    be kept although its only new atoms are atoms of the root.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    features : callable, optional
        A function of ``(obs, infos)`` of N transitions. It returns an array ``(N, F)`` of integers,
        whose values are the atoms of F variables (a negative value means no atom), or of bools,
        whose true entries are the atoms, or a list of N integer arrays, which hold the numbers of
        each state's atoms. The default depends on the observations; see `default_features`. With
        poor features, IW is little better than breadth-first search.
    discount : float
        The discount of the returns; the default is the discount in the paper's experiments.
    death_penalty : float
        If infos have ``"lives"``, the penalty for each lost life when paths are compared. It is
        not part of the plan's rewards.
    subtables : bool
        Whether novelty is judged only among states with a similar return from the root: one table
        for returns of at most 0, and one from each power of 2 to the next. Penalties count.
    batch : int
        The number of nodes that are expanded at once.
    dt : int
        How long each action is held. The paper holds actions for 5 frames.
    **rules
        See `Rules`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import IW
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = IW(env).plan(state, budget=1000, seed=0)
    >>> plan.score, len(plan), plan.info["exhausted"]
    (1.0, 6, True)
    """

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _Memory:
        memory = super()._begin(state, search, kept)
        tree = memory.tree
        first = np.flatnonzero(tree.leaves & memory.novel & ~tree["ended"])
        for depth in np.unique(tree["depth"][first]).tolist():
            memory.waiting[depth] = [first[tree["depth"][first] == depth]]
        return memory

    def _grow(self, memory: _Memory, search: Search) -> bool:
        tree, num_actions = memory.tree, len(self.actions)
        while True:
            if not len(memory.level) and memory.waiting:
                level = np.concatenate(memory.waiting.pop(min(memory.waiting)))
                memory.level = level[np.argsort(-tree["worth"][level], kind="stable")]
            nodes = memory.level[: search.fit(self.batch, num_actions)]
            if not search.has(len(nodes) * num_actions) or not len(nodes):
                return not len(nodes)
            memory.level = memory.level[len(nodes) :]
            which, actions = tree["legal"][nodes].nonzero()
            children, novel, _ = self._step(memory, search, nodes[which], actions)
            if novel.any():
                depth = int(tree["depth"][children[0]])
                memory.waiting.setdefault(depth, []).append(children[novel])


class RolloutIW(WidthPlanner):
    """Rollout-IW(1): random rollouts that end at the first state that is not novel.

    W. Bandres, B. Bonet and H. Geffner, "Planning with pixels in (almost) real time", AAAI 2018. A
    rollout starts at the root, and takes random actions that lead to unsolved states. A new state
    is novel if one of its atoms was never seen at the same or a smaller depth. If a new state is
    not novel, or if it ends the episode, it is solved and the rollout ends. A state is also solved
    if all its atoms were later seen at a smaller depth, or if all its children are solved. The
    search ends when the root is solved. In the end, the same states are kept as in `IW` (up to ties
    between states of equal depth), but deep states are reached early.

    The plan is the path with the highest discounted return; ties are broken at random.
    `advance` keeps the subtree of the action that was taken, as in `IW`.

    Differences from the paper: `batch` rollouts run at the same time, and each of them steps
    a different transition of a batch. So a rollout chooses its action before the atoms of the
    batch's other transitions are known. The new states of a batch are tested in ascending order of
    depth. The atoms of the first root are not known; see `IW`. The default features of screens
    are the basic ones of B-PROST (`tile_colors`); `tile_pairs` has all of them. A state with the
    same features as its parent is pruned; the authors' code goes on for 30 frames with the same
    action. Negative rewards are not multiplied.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    features, discount, death_penalty, subtables
        As for `IW`. The paper's best variant, NS+RA, has novelty subtables, and is averse to risk:
        a death costs 500,000, and the discount is 1.
    batch : int
        The number of rollouts that run at the same time.
    dt : int
        How long each action is held. The paper holds actions for 15 frames.
    **rules
        See `Rules`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import RolloutIW
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False)
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = RolloutIW(env).plan(state, budget=1000, seed=0)
    >>> plan.score, len(plan), plan.info["exhausted"]
    (1.0, 6, True)
    """

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _Memory:
        memory = super()._begin(state, search, kept)
        tree, memory.places = memory.tree, np.zeros(self.batch, np.intp)
        solver = _Solver(memory)
        for node in np.flatnonzero(tree["ended"] | tree.leaves & ~memory.novel)[::-1].tolist():
            solver.solve(node)
        for node in np.flatnonzero((tree["witness"] < 0) & ~tree["solved"])[1:].tolist():
            solver.find_witness(node)
        return memory

    def _grow(self, memory: _Memory, search: Search) -> bool:
        tree, solver = memory.tree, _Solver(memory)
        while True:
            most = search.fit(self.batch)
            if not search.has(most) or tree["solved"][ROOT]:
                return bool(tree["solved"][ROOT])
            rollouts, parents, actions = _choose(memory, search.rng, most)
            if len(parents):
                nodes, novel, seen = self._step(memory, search, parents, actions)
                memory.places[rollouts] = np.where(novel, nodes, ROOT)
                solver.update(nodes, novel, seen)
                memory.places[tree["solved"][memory.places]] = ROOT


class _Solver:
    """Marks solved nodes, in the tree's fields ``solved`` and ``open``."""

    def __init__(self, memory: _Memory) -> None:
        self._tree, self._novelty = memory.tree, memory.novelty
        # The nodes whose witness is each atom.
        self._witnessed: defaultdict[Atom, list[int]] = defaultdict(list)
        self._add_witnesses(np.arange(self._tree.size))

    def _add_witnesses(self, nodes: Ints) -> None:
        keys = self._novelty.keys(self._tree["worth"][nodes]).tolist()
        atoms = self._tree["witness"][nodes].tolist()
        for node, key, atom in zip(nodes.tolist(), keys, atoms, strict=True):
            self._witnessed[key, atom].append(node)

    def solve(self, node: int) -> None:
        """Mark a node as solved, and all nodes above it that then have no unsolved child."""
        tree = self._tree
        solved, free = tree["solved"], tree["open"]
        while not solved[node]:
            solved[node] = True
            parent = int(tree["parent"][node])
            if parent < 0:
                return
            free[parent, tree["action"][node]] = False
            if free[parent].any():
                return
            node = parent

    def update(self, nodes: Ints, novel: NDArray[np.bool_], seen: list[Atom]) -> None:
        """Mark new nodes that are not novel, and nodes whose atoms were all seen at less depth.

        `seen` are the atoms that are now seen at a smaller depth.
        """
        tree = self._tree
        for node in nodes[~novel].tolist():
            self.solve(node)
        for atom in seen:
            for node in self._witnessed.pop(atom, []):
                if not tree["solved"][node] and node != ROOT:
                    self.find_witness(node)
        self._add_witnesses(nodes[novel])

    def find_witness(self, node: int) -> None:
        """Find an atom that is still novel in a node; without one, the node is solved."""
        atoms = self._tree["atoms"][node]
        key = int(self._novelty.keys(self._tree["worth"][node : node + 1])[0])
        left = atoms[self._novelty.depth_of(atoms, key) == self._tree["depth"][node]]
        if len(left):
            self._tree["witness"][node] = left[0]
            self._witnessed[key, int(left[0])].append(node)
        else:
            self.solve(node)


def _choose(memory: _Memory, rng: np.random.Generator, most: int) -> tuple[Ints, Ints, Ints]:
    """Move rollouts down the tree to untried actions.

    Return the rollouts, the nodes that they have reached, and an untried action of each node.
    Rollouts that find no untried action are left out of this batch; they will start again from
    the root.
    """
    free, child = memory.tree["open"], memory.tree["child"]
    here = memory.places[:most]
    rollouts = np.arange(len(here))
    chosen: list[tuple[Ints, Ints, Ints]] = []
    for level in itertools.count():
        if not len(rollouts):
            break
        if level % _LEVELS == 0:
            noise = 1.0 + rng.random((_LEVELS, len(rollouts), free.shape[1]))
        actions = (noise[level % _LEVELS, : len(here)] * free[here]).argmax(axis=1)
        there, is_free = child[here, actions], free[here, actions]
        if is_free.all() and there.min() >= 0:
            here = there
            continue
        memory.places[rollouts[~is_free]] = ROOT
        (new,) = (is_free & (there < 0)).nonzero()
        # Of the rollouts that chose the same action, the first one takes it.
        edges = here[new] * free.shape[1] + actions[new]
        new = new[np.unique(edges, return_index=True)[1]]
        chosen.append((rollouts[new], here[new], actions[new]))
        free[here[new], actions[new]] = False  # for the other rollouts of this batch
        going = is_free.copy()
        going[new] = False
        here = np.where(there >= 0, there, here)[going]
        rollouts = rollouts[going]
    taken, nodes, actions = (np.concatenate(part) for part in zip(*chosen, strict=True))
    free[nodes, actions] = True
    return taken, nodes, actions
