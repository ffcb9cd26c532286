"""Best-first search, A* and beam search: expand the states that look best."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
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
from plangym_like.planners.nodes import ROOT, Floats, Nodes
from plangym_like.planners.observations import digests, make_key
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Kept, Planner
from plangym_like.planners.search import Search
from plangym_like.planners.walkers import Lineage, Walkers
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count


@stored
class SearchGraph(Nodes):
    """Every transition of a search, and the cheapest known path to each key. Node 0 is the root.

    A node has the ``action`` and ``reward`` of its transition, whether it has ``ended`` the
    episode, and the ``cost`` and ``score`` (sum of rewards) of its path, which never changes: a
    cheaper path to a known key leads to another node. `goal` is the node of the cheapest goal so
    far. `duplicates` counts transitions to a key that was reached at the same cost or less.
    """

    def __init__(self, state: Row, key: Any, legal: Mask) -> None:
        numbers = ((name, float) for name in ("reward", "cost", "score"))
        super().__init__(("action", np.intp), ("ended", bool), *numbers)
        # The cheapest node of each key, and its cost; the key of the root may not be known.
        self._known = {} if key is None else {key: (ROOT, 0.0)}
        # The states of the nodes to expand, and the actions that are legal there.
        self._rows = {ROOT: (np.array(state), np.array(legal))}
        self.goal: int | None = None
        self.best_cost = math.inf
        self.duplicates = 0
        # The best node while no goal is found: heuristic value, negated score and node number.
        self._nearest = (math.inf, math.inf, ROOT)

    def grow(
        self,
        step: BatchTransition,
        keys: list[Any],
        legal: Mask,
        values: Floats,
        goals: Mask,
        **fields: Any,
    ) -> Iterator[tuple[int, float]]:
        """Add transitions in order; yield each new node that may lead to a cheaper goal.

        `values` are the heuristic values ``(N,)``; that of the node is yielded, too.
        """
        nodes = self.add(**fields)
        self["cost"][nodes] += self["cost"][fields["parents"]]
        self["score"][nodes] = self["score"][fields["parents"]] + fields["reward"]
        columns = (self["cost"][nodes], self["score"][nodes], self["ended"][nodes], values, goals)
        each = zip(nodes.tolist(), keys, *(column.tolist() for column in columns), strict=True)
        for row, (node, key, cost, score, ended, heuristic, is_goal) in enumerate(each):
            known, least = self._known.get(key, (-1, math.inf))
            is_known = not ended and least <= cost
            leads_nowhere = not is_goal and (ended or is_known)
            self.duplicates += is_known and not is_goal
            if not leads_nowhere or not self._nearest[2]:
                value = math.inf if leads_nowhere else heuristic
                self._nearest = min(self._nearest, (value, -score, node))
            if is_goal and cost < self.best_cost:
                self.goal, self.best_cost = node, cost
            if is_goal or leads_nowhere:
                continue
            self._known[key] = node, cost
            self._rows.pop(known, None)
            if cost + heuristic < self.best_cost:
                self._rows[node] = step.states[row].copy(), legal[row].copy()
                yield node, heuristic

    def is_open(self, node: int, heuristic: float) -> bool:
        """Return whether a node must still be expanded because it may lead to a cheaper goal."""
        return node in self._rows and self["cost"][node] + heuristic < self.best_cost

    def pop(self, node: int) -> tuple[Row, Mask]:
        """Remove and return the state of a node to expand, and which actions are legal there."""
        return self._rows.pop(node)

    @property
    def best(self) -> int:
        """The cheapest goal; without one, the node with the lowest heuristic value."""
        return self._nearest[2] if self.goal is None else self.goal

    def score(self, node: int) -> float:
        """Return the sum of the rewards on the path to a node."""
        return math.fsum(self["reward"][self.path(node)])


@stored
@dataclass
class _GraphMemory:
    """The state of a search."""

    graph: SearchGraph
    # A heap of the states to expand: the priority, heuristic value and node of each.
    queue: list[tuple[float, float, int]] = field(default_factory=lambda: [(0.0, 0.0, 0)])
    expanded: int = 0
    generated: int = 0
    # The actions, rewards, end and info of an optimal plan, once there is one.
    plan: tuple[NDArray[Any], NDArray[np.float64], bool, dict[str, Any]] | None = None


class BestFirst(Planner):
    """Greedy best-first search for a plan of least cost, with recognition of repeated states.

    J. Pearl, "Heuristics: intelligent search strategies for computer problem solving", 1984,
    chapter 2: of all states that are not expanded yet, expand the one that looks best. Here, that
    is the state with the lowest heuristic value. If several states have this value, the one found
    first is expanded. Without a heuristic, this is breadth-first search.

    The search continues after the first plan. States with
    ``cost so far + heuristic >= cost of the best plan`` are dropped, because they lead to no
    cheaper plan. When no states are left, the plan is optimal, provided that the heuristic never
    exceeds the true cost and states with the same key are equivalent.

    Difference from the book: the best `batch` states are expanded at once, so some states are
    expanded needlessly.

    Parameters
    ----------
    env : PlanEnv
        Its action space is finite.
    heuristic : callable, optional
        A function of ``(obs, infos, states)`` of N transitions that returns an estimate ``(N,)`` of
        the cost to the goal: at least 0, and infinite for dead ends.
    cost : "steps", "reward" or callable
        The cost of an action, which must be at least 0: 1 for ``"steps"``, the negated reward for
        ``"reward"``, or the result ``(N,)`` of a function of the `BatchTransition`.
    goal : callable, optional
        A function of the `BatchTransition` that returns which transitions reach the goal, ``(N,)``.
        By default, these are the transitions that terminate the episode with a reward above 0. If
        the goal's reward is 0 or less, as in MountainCar, pass
        ``goal=lambda step: step.terminateds``.
    key : "state", "obs" or callable
        How situations are told apart: by state rows, by observations, or by a function that takes
        ``(obs, infos, states)`` of N transitions and returns an array ``(N, ...)`` or N hashable
        objects. Rows also hold details that do not matter to a plan: MiniGrid counts its steps, and
        the toy text environments keep the last action. Equal situations then have different rows,
        and the search repeats itself or never ends. Use ``"obs"`` if observations show all that
        matters, as in toy text, and in MiniGrid with its ``FullyObsWrapper``. See
        ``duplicates`` in the notes.
    batch : int
        The number of states that are expanded at once.
    dt : int
        How long each action is held.
    **rules
        See `Rules`.

    Notes
    -----
    `Plan.info` has ``solved``, ``optimal``, ``cost``, ``bound`` (the least cost that a plan can
    have), ``exhausted`` (whether nothing was left to search), and the numbers ``expanded``,
    ``generated`` and ``duplicates`` (transitions to known situations). Without a solution, the plan
    leads to the state with the lowest heuristic value. If several states have this value, it leads
    to the one with the highest score. After `advance`, the rest of an optimal plan is reused.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import BestFirst
    >>> env = plangym_like.make("FrozenLake-v1", is_slippery=False, map_name="8x8")
    >>> state, obs, info = env.reset(seed=0)
    >>> def distance(obs, infos, states):
    ...     return 14 - obs // 8 - obs % 8
    >>> plan = BestFirst(env, heuristic=distance, key="obs").plan(state, budget=10_000)
    >>> plan.info["optimal"], len(plan), plan.info["cost"]
    (True, 14, 14.0)
    """

    def __init__(
        self,
        env: PlanEnv,
        *,
        heuristic: Callable[..., Any] | None = None,
        cost: str | Callable[[BatchTransition], Any] = "steps",
        goal: Callable[[BatchTransition], Any] | None = None,
        key: str | Callable[..., Any] = "state",
        batch: int = 16,
        dt: int = 1,
        **rules: Unpack[Rules],
    ) -> None:
        super().__init__(env, **rules)
        self.actions = all_actions(env, self.name)
        _check_options(heuristic, cost, goal)
        self.heuristic, self.cost, self.goal, self.key = heuristic, cost, goal, make_key(key)
        self._knows_root = key == "state"
        self.batch, self.dt = as_count("batch", batch), as_count("dt", dt)

    def _priority(self, cost: float, heuristic: float) -> float:
        return heuristic

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _GraphMemory:
        """Keep the rest of an optimal plan whose first action was played, and led to `state`."""
        root_key = digests(state[None], 1)[0] if self._knows_root else None
        memory = _GraphMemory(SearchGraph(state, root_key, search.legal_starts()[0]))
        if kept is not None and kept.memory.plan is not None and len(kept.memory.plan[0]) > 1:
            actions, rewards, ended, info = kept.memory.plan
            reserve = len(self.actions)  # a new search may need the rest of the budget
            if np.array_equal(actions[0], kept.action) and search.affords(1 + reserve):
                step = search.step_batch(actions[:1], kept.state[None], self.dt)
                if np.array_equal(step.states[0], state):
                    left = info["cost"] - float(_costs(self.cost, step)[0])
                    info = {**info, "cost": left, "bound": left}
                    memory.plan = actions[1:], rewards[1:], ended, info
        return memory

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _GraphMemory = search.memory
        if memory.plan is None:
            self._find(memory, search)
            found = self._found(memory)
            if found[3]["optimal"]:
                memory.plan = found
        else:
            search.has(0)
            found = memory.plan
        actions, rewards, ended, info = found
        search.report(math.fsum(rewards), f"{memory.graph.size:,} nodes")
        return search.plan(state, actions, rewards, self.dt, ended=ended, **info)

    def _find(self, memory: _GraphMemory, search: Search) -> None:
        """Expand states until none is left, or the budget is spent."""
        num_actions, graph, queue = len(self.actions), memory.graph, memory.queue
        while True:
            fit = search.fit(self.batch, num_actions)
            chosen: list[tuple[float, float, int]] = []
            while queue and len(chosen) < fit:
                entry = heapq.heappop(queue)
                if graph.is_open(entry[2], entry[1]):
                    chosen.append(entry)
            for entry in chosen:
                heapq.heappush(queue, entry)  # the search may be saved here
            goes_on = search.has(len(chosen) * num_actions) or not memory.expanded
            if not chosen or not goes_on:
                return
            for _ in chosen:
                heapq.heappop(queue)
            memory.expanded += len(chosen)
            states, legal = zip(*(graph.pop(node) for _, _, node in chosen), strict=True)
            which, actions = np.concatenate(legal).reshape(len(chosen), num_actions).nonzero()
            parents = [chosen[place][2] for place in which.tolist()]
            rows = np.concatenate(states).reshape(len(chosen), -1)[which]
            memory.generated += len(parents)
            step = search.step_batch(self.actions[actions], rows, self.dt)
            situation = step.obs, step.infos, step.states
            keys = digests(self.key(*situation), len(parents))
            values, ended = np.zeros(len(parents)), step.terminateds | step.truncateds
            if self.heuristic is not None:
                values = _numbers("heuristic", self.heuristic(*situation), len(parents))
            costs, goals = _costs(self.cost, step), _goals(self.goal, step)
            legal_after = search.legal_after(step)
            fields = {"parents": parents, "action": actions, "reward": step.rewards}
            fields |= {"cost": costs, "ended": ended}
            for node, value in graph.grow(step, keys, legal_after, values, goals, **fields):
                priority = self._priority(float(graph["cost"][node]), value)
                heapq.heappush(queue, (priority, value, node))
            if graph.goal is not None:
                search.report(graph.score(graph.goal), f"{graph.size:,} nodes")

    def _found(
        self, memory: _GraphMemory
    ) -> tuple[NDArray[Any], NDArray[np.float64], bool, dict[str, Any]]:
        """Return the actions, rewards, end and info of the best plan."""
        graph = memory.graph
        waiting = [(node, h) for _, h, node in memory.queue if graph.is_open(node, h)]
        left = [float(graph["cost"][node]) + h for node, h in waiting]
        path = graph.path(graph.best)
        info = {
            "solved": graph.goal is not None,
            "optimal": graph.goal is not None and not left,
            "cost": float(graph["cost"][graph.best]),
            "bound": min([graph.best_cost, *left]),
            "exhausted": not left,
            "expanded": memory.expanded,
            "generated": memory.generated,
            "duplicates": graph.duplicates,
        }
        actions, ended = self.actions[graph["action"][path]], bool(graph["ended"][graph.best])
        return actions, graph["reward"][path], ended, info


def _check_options(heuristic: Any, cost: Any, goal: Any) -> None:
    """Raise `InputError` unless these options are functions, or have another valid value."""
    for name, option, others, arguments in (
        ("heuristic", heuristic, (None,), "(obs, infos, states)"),
        ("cost", cost, ("steps", "reward"), "a BatchTransition"),
        ("goal", goal, (None,), "a BatchTransition"),
    ):
        if not callable(option) and option not in others:
            words = [f'"{one}" or ' for one in others if one]
            raise InputError(
                f"{name} must be {''.join(words)}a function of {arguments}, got {option!r}"
            )


def _costs(cost: Any, step: BatchTransition) -> NDArray[np.float64]:
    """Return the cost of each transition, ``(N,)``."""
    if cost == "steps":
        return np.ones(len(step.rewards))
    if cost == "reward":
        return _numbers("minus the reward", -step.rewards, len(step.rewards))
    return _numbers("cost", cost(step), len(step.rewards))


def _goals(goal: Any, step: BatchTransition) -> NDArray[np.bool_]:
    """Return which transitions reach the goal, ``(N,)``."""
    if goal is None:
        return step.terminateds & (step.rewards > 0)
    goals = np.asarray(goal(step), np.bool_)
    if goals.shape != step.rewards.shape:
        raise InputError(f"goal must return an array {step.rewards.shape}, got {goals.shape}")
    return goals


def _numbers(name: str, numbers: Any, count: int) -> NDArray[np.float64]:
    """Return `numbers` as floats ``(count,)``; raise `InputError` if one is negative or NaN."""
    array = np.asarray(numbers, np.float64)
    if array.shape != (count,):
        raise InputError(f"{name} must be an array ({count},), got {array.shape}")
    if not (array >= 0).all():
        wrong = array[~(array >= 0)][0]
        raise InputError(
            f"{name} must be at least 0 for a search for the least cost, got {wrong:g}"
        )
    return array


class AStar(BestFirst):
    """A*: expand the state with the lowest sum of its cost so far and its heuristic value.

    P. E. Hart, N. J. Nilsson and B. Raphael, "A formal basis for the heuristic determination of
    minimum cost paths", IEEE Transactions on Systems Science and Cybernetics 4(2), 1968, section
    II. If several states have the same sum, the one with the lowest heuristic value is expanded
    first. Without a heuristic, this is Dijkstra's algorithm. States that are reached again at less
    cost are expanded again. The heuristic must not exceed the true cost, but need not be
    consistent.

    Difference from the paper: the best `batch` states are expanded at once. Each batch may
    therefore include up to ``batch - 1`` states that the paper's algorithm would not expand. The
    search ends when all states left to expand have a sum of at least the cost of the best goal
    found so far. (The paper's search ends when a goal is chosen for expansion, which is the same
    condition.)

    See `BestFirst` for the parameters, including `key`.

    Examples
    --------
    >>> import plangym_like
    >>> from plangym_like.planners import AStar
    >>> env = plangym_like.make("Taxi-v4")
    >>> state, obs, info = env.reset(seed=0)
    >>> plan = AStar(env, key="obs").plan(state, budget=10_000)
    >>> plan.info["optimal"], len(plan), plan.score
    (True, 15, 6.0)
    """

    def _priority(self, cost: float, heuristic: float) -> float:
        return cost + heuristic


@stored
@dataclass
class _BeamMemory:
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

    def _begin(self, state: Row, search: Search, kept: Kept | None) -> _BeamMemory:
        return _BeamMemory(Lineage(self.env), self.width, Walkers.at(state, search))

    def _search(self, state: Row, search: Search) -> Plan:
        memory: _BeamMemory = search.memory
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

    def _expand(self, memory: _BeamMemory, search: Search, count: int) -> None:
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
