"""The tree of tree searches: descents, chance nodes, returns, and the tree below a node."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest

from plangym_like.planners.search_tree import SearchTree
from plangym_like.planners.uct import tree_bounds, ucb1

NO_STATE = np.zeros((1, 0), np.uint8)


def _grown(seed: int, num_actions: int = 3, rounds: int = 60) -> SearchTree:
    """Return a tree of random returns, grown by descents in batches."""
    rng = np.random.default_rng(seed)
    tree = SearchTree(num_actions, NO_STATE)
    for _ in range(rounds):
        paths = tree.descend(np.zeros(8, int), partial(tree_bounds, tree, rng, 1.0, 1.0))
        ended = rng.random(len(paths.parents)) < 0.2
        rewards = rng.normal(size=len(paths.parents))
        new = tree.expand(
            paths.parents, paths.actions, reward=rewards, gains=rewards[:, None], ended=ended
        )
        tree.back_up(paths, new, rng.normal(size=(8, 1)), 0.9)
    return tree


def _one_after_another(tree: SearchTree, count: int, virtual_loss: float) -> Counter[Any]:
    """Return how many of `count` descents take each action, by the formula, one at a time."""
    taken: Counter[Any] = Counter()
    coming = {0: count}
    while coming:
        node, arrivals = coming.popitem()
        totals, visits = tree.scaled(np.array([node]))
        under_way = np.zeros((1, tree.num_actions))
        for _ in range(arrivals):
            bounds = ucb1(
                totals,
                visits,
                0.7,
                visits.sum() + arrivals,
                pending=under_way,
                virtual_loss=virtual_loss,
            )
            under_way[0, bounds.argmax()] += 1
        for action, number in enumerate(under_way[0].astype(int)):
            child = tree["child"][node, action]
            if number:
                taken[node, action] = number
            if number and child >= 0 and not tree["ended"][child]:
                coming[child] = number
    return taken


@pytest.mark.parametrize("virtual_loss", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_descents_together_are_descents_one_after_another(seed: int, virtual_loss: float) -> None:
    tree = _grown(seed)
    assert tree.size > 100
    assert tree["ended"].any()
    bounds = partial(tree_bounds, tree, np.random.default_rng(0), 0.7, virtual_loss)
    for count in (1, 7, 64):
        paths = tree.descend(np.zeros(count, int), bounds)
        taken: Counter[Any] = Counter()
        for level in paths.levels:
            taken.update(zip(level.nodes.tolist(), level.actions.tolist(), strict=True))
        known = [node for node, _ in taken if tree["visits"][node].all()]
        one_by_one = _one_after_another(tree, count, virtual_loss)
        # Which untried action of a node comes first is random, how many descents take one is not.
        for node in known:
            for action in range(3):
                assert taken[node, action] == one_by_one[node, action]
        assert sum(taken[0, action] for action in range(3)) == count


def test_ucb1_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    visits = rng.integers(1, 9, (5, 4)).astype(float)
    totals = rng.random((5, 4)) * visits
    parents = visits.sum(axis=1, keepdims=True)
    bounds = ucb1(totals, visits, math.sqrt(2), parents)
    pending = ucb1(totals, visits, 0.5, parents, pending=2, virtual_loss=1.0)
    for row in range(5):
        for action in range(4):
            n, parent = visits[row, action], parents[row, 0]
            mean = totals[row, action] / n
            assert bounds[row, action] == pytest.approx(mean + math.sqrt(2 * math.log(parent) / n))
            lost = totals[row, action] / (n + 2) + 0.5 * math.sqrt(math.log(parent) / (n + 2))
            assert pending[row, action] == pytest.approx(lost)


def test_returns_are_those_of_the_paths() -> None:
    tree, rng = SearchTree(2, NO_STATE), np.random.default_rng(0)
    expected: dict[Any, list[float]] = {}
    for _ in range(40):
        paths = tree.descend(np.zeros(4, int), partial(tree_bounds, tree, rng, 1.0, 1.0))
        rewards = rng.normal(size=len(paths.parents))
        gains = rewards[:, None]
        new = tree.expand(paths.parents, paths.actions, reward=rewards, gains=gains)
        values = rng.normal(size=4)
        for node, value in zip(paths.ends(new), values, strict=True):
            path = tree.path(int(node))
            for depth, child in enumerate(path):
                rewards = [*tree["reward"][path[depth:]], value]
                total = sum(0.5**step * reward for step, reward in enumerate(rewards))
                edge = int(tree["parent"][child]), int(tree["action"][child])
                expected.setdefault(edge, []).append(total)
        tree.back_up(paths, new, values[:, None], 0.5)
    for (node, action), returns in expected.items():
        assert tree["visits"][node, action] == len(returns)
        assert tree["total"][node, action] == pytest.approx(sum(returns))
    assert tree["visits"][0].sum() == 160
    assert tree["visits"].sum() == sum(map(len, expected.values()))


def test_the_tree_below_a_node() -> None:
    tree = _grown(1)
    child = int(tree["child"][0, tree["visits"][0].argmax()])
    part = tree.below(child)
    assert part.size == sum(child in tree.path(node) for node in range(tree.size))
    assert np.array_equal(part["visits"][0], tree["visits"][child])
    assert part["visits"].sum() < tree["visits"].sum()
    for node in range(1, part.size):
        parent, action = part["parent"][node], part["action"][node]
        assert part["child"][parent, action] == node
        assert part["score"][node] == pytest.approx(part["reward"][part.path(node)].sum())


def test_outcomes_are_visited_as_often_as_they_are_drawn() -> None:
    rng, chances = np.random.default_rng(0), np.array([0.6, 0.3, 0.1])
    for widening, fewest in ((1.0, 2000), (0.5, math.ceil(2000**0.5))):
        tree = SearchTree(1, NO_STATE, outcomes=4, widening=widening)

        def draw(parents: Any, actions: Any, tree: SearchTree = tree) -> Any:
            keys = rng.choice(3, len(parents), p=chances)
            ended = np.ones(len(parents), bool)
            gains = 1.0 * keys[:, None]
            return tree.add_outcomes(parents, actions, keys, gains=gains, ended=ended)

        for _ in range(250):
            paths = tree.descend(np.zeros(8, int), partial(tree_bounds, tree, rng, 1.0, 1.0), draw)
            tree.back_up(paths, paths.parents, np.zeros((8, 1)), 1.0)
        assert tree.size == 4
        order = np.argsort(tree["key"][1:]) + 1
        samples, passes = tree["samples"][order], tree["passes"][order]
        assert passes.sum() == 2000
        assert samples.sum() == fewest
        assert np.allclose(passes / 2000, samples / fewest, atol=0.01)
        if widening == 1.0:
            assert np.allclose(samples / fewest, chances, atol=0.04)
            assert tree["total"][0, 0] / 2000 == pytest.approx(chances @ [0, 1, 2], abs=0.05)


def test_outcomes_beyond_the_limit_keep_the_proportions_of_the_others() -> None:
    tree, rng = SearchTree(1, NO_STATE, outcomes=2), np.random.default_rng(0)
    nodes = np.zeros(1, np.intp)
    for key in [0, 0, 0, 1] * 50:
        tree.add_outcomes(nodes, nodes, np.array([key]))
    for key in rng.integers(2, 2**31, size=2000):
        tree.add_outcomes(nodes, nodes, np.array([key]))
    assert tree.size == 3 and tree["samples"][1:].sum() == 2200
    assert tree["samples"][1] / 2200 == pytest.approx(0.75, abs=0.1)
