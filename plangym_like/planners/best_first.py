"""Best-first search: expand the most promising states first, until a plan is proven optimal."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from plangym_like.env import PlanEnv
from plangym_like.planners import search_options as options
from plangym_like.planners.action_sets import all_actions
from plangym_like.planners.plan import Plan
from plangym_like.planners.planner import Planner
from plangym_like.planners.search import Search
from plangym_like.planners.search_graph import SearchGraph
from plangym_like.results import BatchTransition
from plangym_like.states.rows import Row
from plangym_like.support.arguments import as_count


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
    ) -> None:
        super().__init__(env)
        self.actions = all_actions(env, self.name)
        self.heuristic, self.goal = options.make_heuristic(heuristic), options.make_goal(goal)
        self.cost, self.key = options.make_cost(cost), options.make_key(key)
        self._knows_root = key == "state"
        self.batch, self.dt = as_count("batch", batch), as_count("dt", dt)
        self._last: Plan | None = None
        self._rest: Plan | None = None

    def advance(self) -> None:
        """If the last plan is optimal, keep its remaining actions for the next search."""
        self._rest, self._last = self._last, None

    def _priority(self, cost: float, heuristic: float) -> float:
        return heuristic

    def _search(self, state: Row, search: Search) -> Plan:
        rest, self._rest = self._rest, None
        plan = self._rest_of(rest, state, search) if rest is not None else None
        if plan is None:
            plan = self._find(state, search)
        self._last = plan if plan.info["optimal"] and len(plan) > 1 else None
        return plan

    def _rest_of(self, last: Plan, state: Row, search: Search) -> Plan | None:
        """Return `last` without its first action if that action leads to `state`, else ``None``.

        Return ``None``, too, if the budget is too small to test this and then search again.
        """
        if search.remaining is not None and search.remaining <= len(self.actions):
            return None  # a new search may need the whole budget
        step = search.step_batch(last.actions[:1], last.state[None], self.dt)
        if not np.array_equal(step.states[0], state):
            return None
        search.report(math.fsum(last.rewards[1:]))
        left = last.info["cost"] - float(self.cost(step)[0])
        info = {**last.info, "cost": left, "bound": left}
        return search.plan(
            state, last.actions[1:], last.rewards[1:], self.dt, ended=last.ended, **info
        )

    def _find(self, state: Row, search: Search) -> Plan:
        num_actions = len(self.actions)
        root_key = options.digests(state[None], 1)[0] if self._knows_root else None
        graph = SearchGraph(state, root_key)
        # States to expand: the priority, heuristic value and node of each.
        queue = [(0.0, 0.0, 0)]
        expanded = 0
        while True:
            fit = search.fit(self.batch, num_actions)
            chosen: list[tuple[float, float, int]] = []
            while queue and len(chosen) < fit:
                entry = heapq.heappop(queue)
                if graph.is_open(entry[2], entry[1]):
                    chosen.append(entry)
            if not chosen:
                break
            if not search.has(len(chosen) * num_actions) and expanded:
                queue += chosen
                break
            expanded += len(chosen)
            parents = [node for _, _, node in chosen for _ in self.actions]
            actions = np.tile(np.arange(num_actions), len(chosen))
            rows = np.repeat([graph.take(node) for _, _, node in chosen], num_actions, axis=0)
            step = search.step_batch(self.actions[actions], rows, self.dt)
            situation = step.obs, step.infos, step.states
            keys = options.digests(self.key(*situation), len(parents))
            values, ended = self.heuristic(*situation), step.terminateds | step.truncateds
            columns = (actions, step.rewards, self.cost(step), values, self.goal(step), ended)
            for node, value in graph.add(parents, keys, step.states, *columns):
                priority = self._priority(graph.costs[node], value)
                heapq.heappush(queue, (priority, value, node))
            if graph.goal is not None:
                search.report(graph.score(graph.goal), f"{len(graph.costs):,} states")
        left = [graph.costs[node] + h for _, h, node in queue if graph.is_open(node, h)]
        bound = min([graph.best_cost, *left])
        node = graph.best
        search.report(graph.score(node), f"{len(graph.costs):,} states")
        path = graph.path(node)
        return search.plan(
            state,
            self.actions[[graph.actions[one] for one in path]],
            [graph.rewards[one] for one in path],
            self.dt,
            ended=graph.ended[node],
            solved=graph.goal is not None,
            optimal=graph.goal is not None and not left,
            cost=graph.costs[node],
            bound=bound,
            exhausted=not left,
            expanded=expanded,
            generated=expanded * num_actions,
            duplicates=graph.duplicates,
        )
